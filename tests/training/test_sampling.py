from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafstain.errors import SheafStainError
from sheafstain.training.sampling import VISITS, Sampler, tissue_cells
from sheafstain.window import CELL, Size, Window


def sampler(*sizes: tuple[int, int], seed: int = 1, side: int = 64, neighbours: bool = True) -> Sampler:
    cells = [np.ones((h // CELL, w // CELL), bool) for h, w in sizes]
    return Sampler(cells, [Size(*size) for size in sizes], seed, side, neighbours)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(128, 400), st.integers(128, 400))
def test_windows_lie_inside_on_the_lattice_and_overlap_thrice(seen: int, h: int, w: int) -> None:
    drawn = sampler((h, w), (256, 160), side=64)
    for sample in drawn.samples(seen, 0, 3):
        size = [Size(h, w), Size(256, 160)][sample.ref.image]
        windows = [sample.ref.window, *sample.neighbours]
        assert all(Window.of(size).contains(window) and window.on_lattice() for window in windows)
        assert sample.dy % CELL == sample.dx % CELL == 0
        assert abs(sample.dy) >= 64 and abs(sample.dx) >= 64
        other = [Size(h, w), Size(256, 160)][sample.second.image]
        assert Window.of(other).contains(sample.second.window)


def test_windows_of_the_papers_size_have_a_triple_overlap() -> None:
    offsets = set()
    for seen in range(200):
        (sample,) = sampler((1024, 1024), side=256).samples(seen, 0, 1)
        adj1, adj2 = sample.neighbours
        assert not sample.ref.window.overlap(adj1).overlap(adj2).empty
        offsets |= {sample.dy, sample.dx}
    assert offsets == {sign * step for sign in (-1, 1) for step in range(64, 193, 16)}


def test_a_batch_is_the_same_however_many_processes_share_it() -> None:
    drawn = sampler((512, 512), (512, 384))
    whole = drawn.samples(96, 0, 8)
    assert drawn.samples(96, 0, 4) + drawn.samples(96, 4, 4) == whole


def test_an_epoch_visits_every_image_four_times() -> None:
    drawn = sampler(*[(256, 256)] * 5)
    assert drawn.epoch == 5 * VISITS
    first = [s.ref.image for s in drawn.samples(0, 0, drawn.epoch)]
    again = [s.ref.image for s in drawn.samples(drawn.epoch, 0, drawn.epoch)]
    assert sorted(first) == sorted(again) == sorted(list(range(5)) * VISITS)
    assert first != again


def test_seed_and_place_decide_the_noise() -> None:
    one, other = sampler((512, 512), seed=1), sampler((512, 512), seed=2)
    assert one.samples(0, 0, 2) == sampler((512, 512), seed=1).samples(0, 0, 2) != other.samples(0, 0, 2)
    canvases = [p.canvas for s in one.samples(0, 0, 50) for p in (s.ref, s.second)]
    assert len(set(canvases)) == 100


def test_windows_go_where_the_tissue_is() -> None:
    cells = np.zeros((64, 64), bool)
    cells[:32] = True
    drawn = Sampler([cells], [Size(1024, 1024)], 0, 256)
    windows = [s.ref.window for s in drawn.samples(0, 0, 200)]
    assert np.mean([w.y + 128 < 512 for w in windows]) > 0.95
    assert len({w.x for w in windows}) > 20


def test_tissue_cells() -> None:
    image = np.full((70, 50, 3), 245, np.uint8)
    image[16:32, 32:48] = (180, 90, 170)
    cells = tissue_cells(torch.from_numpy(image))
    assert cells.shape == (4, 3) and cells.sum() == 1 and cells[1, 2]


@pytest.mark.parametrize(
    ("sizes", "neighbours", "words"),
    [((), True, "no image"), (((120, 300),), True, "128 px are needed"), (((48, 300),), False, "64 px are needed")],
)
def test_what_cannot_be_sampled_is_said(sizes: tuple[tuple[int, int], ...], neighbours: bool, words: str) -> None:
    with pytest.raises(SheafStainError, match=words):
        sampler(*sizes, neighbours=neighbours)
