"""Sections: where tokens land, what is averaged, what lies beyond, and sections that arrive in bands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from sheafstain.sheaf.cover import Lattice, cut
from sheafstain.sheaf.crops import lattice, neighborhood
from sheafstain.sheaf.section import Section, SectionStream, encode_sections, token_cells
from sheafstain.window import Size, Window

IMAGE = Size(1024, 1024)
PITCHES = [(16, 14), (14, 16)]


def tokens(count: int, grid: int, width: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((count, grid**2, width), generator=generator), torch.randn((count, width), generator=generator)


def by_hand(crops: list[Window], patch: Tensor, pitch: int, window: Window) -> tuple[np.ndarray, np.ndarray]:
    """Token by token, in double precision: the mean and the count of each cell of a window."""
    grid = round(patch.shape[1] ** 0.5)
    total = np.zeros((window.h // 16, window.w // 16, patch.shape[2]))
    count = np.zeros(total.shape[:2], int)
    for crop, values in zip(crops, patch.double().numpy(), strict=True):
        for t, value in enumerate(values):
            y = crop.y + pitch * (t // grid) + pitch / 2 - window.y
            x = crop.x + pitch * (t % grid) + pitch / 2 - window.x
            if 0 <= y < window.h and 0 <= x < window.w:
                total[int(y // 16), int(x // 16)] += value
                count[int(y // 16), int(x // 16)] += 1
    return total / np.maximum(count, 1)[..., None], count


@pytest.mark.parametrize(("pitch", "grid"), PITCHES)
def test_tokens_are_averaged_in_the_cell_of_their_centre(pitch: int, grid: int):
    reference = Window(192, 384, 256, 256)
    crops = neighborhood(reference, IMAGE, seed=5)  # jitter: offsets are no multiples of 16
    patch, cls = tokens(len(crops), grid)
    cut_out = Section.of(crops, patch, cls, pitch).restrict(reference)
    mean, count = by_hand(crops, patch, pitch, reference)
    assert np.array_equal(cut_out.count.numpy(), count)
    assert np.array_equal(cut_out.covered.numpy(), count > 0)
    assert np.allclose(cut_out.M.numpy(), mean.transpose(2, 0, 1), atol=1e-6)
    assert torch.allclose(cut_out.c_n, cls.mean(0), atol=1e-6)
    assert cut_out.M.shape == (5, 16, 16) and cut_out.M.dtype == torch.float32


def test_the_paper_s_offset_formula_for_offsets_on_the_lattice():
    """y' + ⌊d / 16⌋ for a crop 96 px below and 64 px left of the reference."""
    rows, columns = token_cells(torch.tensor([[96, -64]]), 196, 16)
    assert rows.tolist() == [[k + 6 for k in range(14)]]
    assert columns.tolist() == [[k - 4 for k in range(14)]]


def test_offsets_between_cells_go_to_the_nearest():
    rows, columns = token_cells(torch.tensor([[-40, 72]]), 196, 16)
    assert rows[0, 0] == -2  # −40 + 8 = −32: on the border, hence the cell that begins there
    assert columns[0, 0] == 5  # 72 + 8 = 80


def test_pitch_14_puts_16_tokens_into_14_cells():
    rows, _ = token_cells(torch.tensor([[0, 0]]), 256, 14)
    assert rows[0].bincount().tolist() == [1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1]  # centres 7, 21, …, 217


def test_prefix_tokens_are_noticed():
    with pytest.raises(ValueError, match="square grid"):
        token_cells(torch.tensor([[0, 0]]), 197, 16)


@pytest.mark.parametrize(("reference", "empty"), [((0, 0), 55), ((0, 384), 16), ((192, 192), 0)])
def test_empty_cells_at_the_border_of_the_image_without_jitter(reference: tuple[int, int], empty: int):
    window = Window(*reference, 256, 256)
    crops = neighborhood(window, IMAGE, seed=0, jittered=0)
    cut_out = Section.of(crops, *tokens(len(crops), 14), 16).restrict(window)
    assert int((~cut_out.covered).sum()) == empty
    assert not cut_out.M[:, ~cut_out.covered].any()


def test_jitter_can_only_fill_empty_cells():
    corner = Window(0, 0, 256, 256)
    found = set()
    for seed in range(100):
        crops = neighborhood(corner, IMAGE, seed)
        found.add(int((~Section.of(crops, *tokens(len(crops), 14, 1), 16).restrict(corner).covered).sum()))
    assert max(found) == 55 and min(found) >= 24  # the 5×5 cells that only the absent centre crop would reach, less one


def test_training_references_have_4_percent_of_empty_cells():
    """3.8 % in quadrants of 512², measured independently of this code for references at any pixel."""
    rng = np.random.default_rng(0)
    empty = []
    for y, x in rng.integers(0, 257, (600, 2)).tolist():
        crops = neighborhood(Window(y, x, 256, 256), Size(512, 512), seed=2)
        moved = [c.shift(-y, -x) for c in crops]
        cells = Section.of(moved, *tokens(len(crops), 14, 1), 16).restrict(Window(0, 0, 256, 256))
        empty.append(float((~cells.covered).float().mean()))
    assert np.mean(empty) == pytest.approx(0.038, abs=0.006)


@pytest.mark.parametrize("size", [IMAGE, Size(100, 90), Size(500, 777), Size(256, 1001)], ids=str)
@pytest.mark.parametrize(("pitch", "grid"), PITCHES)
def test_the_lattice_leaves_no_cell_of_any_window_empty(size: Size, pitch: int, grid: int):
    crops = list(lattice(size))
    section = Section.of(crops, *tokens(len(crops), grid, 1), pitch)
    inside = Window.of(size)
    for window in Lattice.over(size):
        cells = section.restrict(window)
        visible = window.overlap(inside).snap().within(window).cells()
        assert cells.covered[visible.slices].all()


def test_beyond_the_canvas_there_are_zeros_and_the_mask_says_so():
    crops = [Window(0, 0, 224, 224)]
    section = Section.of(crops, *tokens(1, 14), 16)
    out = section.restrict(Window(-32, 160, 256, 256))
    assert out.covered[2:, :4].all() and int(out.covered.sum()) == 14 * 4
    assert torch.equal(out.M[:, 2:16, :4], section.M[:, :, 10:14])
    assert not out.M[:, ~out.covered].any()
    nowhere = section.restrict(Window(4000, 0, 256, 256))
    assert not nowhere.covered.any() and not nowhere.c_n.any() and nowhere.c_n.shape == (5,)


def test_restriction_off_the_token_lattice_is_refused():
    section = Section.of([Window(0, 0, 224, 224)], *tokens(1, 14), 16)
    with pytest.raises(ValueError, match="lattice"):
        section.restrict(Window(8, 0, 16, 16))


def test_c_n_is_the_mean_over_the_crops_that_overlap_the_window():
    crops = list(lattice(IMAGE))
    patch, cls = tokens(len(crops), 14)
    window = Window(384, 192, 256, 256)
    out = Section.of(crops, patch, cls, 16).restrict(window)
    near = [i for i, c in enumerate(crops) if c.meets(window)]
    assert len(near) == 5 * 6 and out.crops == [crops[i] for i in near]
    assert torch.allclose(out.c_n, cls[near].mean(0), atol=1e-6)


def test_the_order_of_the_crops_leaves_no_trace():
    crops = list(lattice(Size(500, 600)))
    patch, cls = tokens(len(crops), 14)
    shuffled = torch.randperm(len(crops), generator=torch.Generator().manual_seed(0))
    one = Section.of(crops, patch, cls, 16)
    other = Section.of([crops[i] for i in shuffled], patch[shuffled], cls[shuffled], 16)
    assert torch.equal(one.sum, other.sum) and torch.equal(one.c_n, other.c_n)


def test_adjacent_windows_fill_what_the_paper_s_shift_leaves_zero():
    """D4: on the overlap the cut equals the shifted map; beyond it holds the tokens that the canvas has."""
    reference = Window(384, 384, 256, 256)
    crops = neighborhood(reference, IMAGE, seed=0)
    section = Section.of(crops, *tokens(len(crops), 14), 16)
    M, adjacent = section.restrict(reference).M, section.restrict(reference.shift(0, 80))
    assert torch.equal(adjacent.M[:, :, :11], M[:, :, 5:])
    assert adjacent.covered[:, 11:].any()


def in_bands(section: SectionStream, crops: list[Window], patch: Tensor, cls: Tensor, most: int) -> Iterator[None]:
    for start in range(0, len(crops), most):
        part = slice(start, start + most)
        section.add(crops[part], patch[part], cls[part])
        yield
    section.rows_done(section.frame.bottom)
    yield


@pytest.mark.parametrize(("pitch", "grid"), PITCHES)
@pytest.mark.parametrize("most", [1, 7, 1000])
def test_a_stream_gives_the_same_bits_as_the_whole(pitch: int, grid: int, most: int):
    size = Size(1500, 640)
    crops = list(lattice(size))
    patch, cls = tokens(len(crops), grid)
    whole = Section.of(crops, patch, cls, pitch)
    stream = SectionStream(size, 5, pitch)
    rows = list(Lattice.over(size).rows())
    for _ in in_bands(stream, crops, patch, cls, most):
        while rows and stream.ready(rows[0][0]):
            for window in rows.pop(0):
                one, other = stream.restrict(window), whole.restrict(window)
                assert torch.equal(one.sum, other.sum) and torch.equal(one.count, other.count)
                assert torch.equal(one.M, other.M) and torch.equal(one.c_n, other.c_n)
                assert one.crops == other.crops
            if rows:
                stream.release(rows[0][0].y)
    assert not rows


def test_memory_of_a_stream_does_not_grow_with_the_height():
    held = []
    for height in (1000, 6000):
        size = Size(height, 300)
        crops = list(lattice(size))
        stream = SectionStream(size, 3, 16)
        rows = list(Lattice.over(size).rows())
        for _ in in_bands(stream, crops, *tokens(len(crops), 14, 3), 2):
            while rows and stream.ready(rows[0][0]):
                stream.restrict(rows.pop(0)[0])
                if rows:
                    stream.release(rows[0][0].y)
        held.append(stream.held)
    assert held[0] == held[1]


def test_a_ring_that_is_never_released_grows_and_loses_nothing():
    size = Size(1400, 260)
    crops = list(lattice(size))
    patch, cls = tokens(len(crops), 14)
    stream = SectionStream(size, 5, 16)
    for _ in in_bands(stream, crops, patch, cls, 3):
        pass
    whole = Section.of(crops, patch, cls, 16)
    assert torch.equal(stream.section().sum, whole.restrict(stream.frame).sum)


def test_misuse_of_a_stream_is_named():
    size = Size(900, 300)
    crops = list(lattice(size))
    patch, cls = tokens(len(crops), 14)
    stream = SectionStream(size, 5, 16)
    stream.add(crops[:4], patch[:4], cls[:4])
    with pytest.raises(ValueError, match="not ready"):
        stream.restrict(Window(0, 0, 256, 256))
    with pytest.raises(ValueError, match="raster order"):
        stream.add(crops[3:4], patch[:1], cls[:1])
    with pytest.raises(ValueError, match="leaves the frame"):
        stream.add([Window(720, 0, 224, 224)], patch[:1], cls[:1])
    stream.add(crops[4:], patch[4:], cls[4:])
    stream.rows_done(size.h)
    stream.release(192)
    with pytest.raises(ValueError, match="was released"):
        stream.restrict(Window(0, 0, 256, 256))
    stream.restrict(Window(192, 0, 256, 256))


def test_skipped_glass_is_empty_and_does_not_hold_up_the_stream():
    size = Size(1200, 256)
    crops = [c for c in lattice(size) if c.y >= 700]
    patch, cls = tokens(len(crops), 14)
    stream = SectionStream(size, 5, 16)
    stream.rows_done(600)
    glass = stream.restrict(Window(0, 0, 256, 256))
    assert not glass.covered.any() and not glass.c_n.any()
    stream.release(384)
    stream.add(crops, patch, cls)
    stream.rows_done(size.h)
    window = Window(944, 0, 256, 256)
    assert torch.equal(stream.restrict(window).M, Section.of(crops, patch, cls, 16).restrict(window).M)


@dataclass
class Batch:
    patch: Tensor
    cls: Tensor


class PlaceEncoder:
    """A test double whose tokens are the mean colour of their own pixels: no context, so sections must be smooth."""

    width, pitch, grid, crop = 3, 16, 14, 224

    def __init__(self) -> None:
        self.groups = 0

    def encode(self, crops: Iterable[np.ndarray]) -> Iterator[Batch]:
        for group in crops:
            self.groups += 1
            cells = torch.from_numpy(group).float().reshape(-1, 14, 16, 14, 16, 3).mean((2, 4))
            yield Batch(cells.flatten(1, 2), cells.mean((1, 2)))


def test_images_are_encoded_as_one_stream():
    rng = np.random.default_rng(0)
    images = {
        name: rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
        for name, shape in {"a": (1024, 1024), "b": (260, 300), "c": (100, 90)}.items()
    }
    encoder = PlaceEncoder()
    sections = dict(encode_sections(images.items(), encoder))
    assert list(sections) == ["a", "b", "c"]
    assert encoder.groups == 11 + 2 + 1  # one group of crops per lattice row
    for name, section in sections.items():
        image = images[name]
        cells = cut(image, section.window).astype(np.float64)
        h, w = section.window.h // 16, section.window.w // 16
        expected = cells.reshape(h, 16, w, 16, 3).mean((1, 3)).transpose(2, 0, 1)
        assert np.allclose(section.M.numpy(), expected, atol=1e-3)
