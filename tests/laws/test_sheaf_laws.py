"""Laws of the sheaf side that hold for any image, window and cover (design D1–D8)."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafstain.sheaf.cover import Lattice, cut, pairs, triples
from sheafstain.sheaf.crops import lattice, neighborhood
from sheafstain.sheaf.glue import Gluer, Kind, glue
from sheafstain.sheaf.section import Section, SectionStream, token_cells
from sheafstain.window import CELL, Size, Window

sizes = st.builds(Size, st.integers(1, 700), st.integers(1, 700))
side = st.integers(1, 20)
on_lattice = st.builds(
    lambda y, x, h, w: Window(y * CELL, x * CELL, h * CELL, w * CELL),
    st.integers(-6, 40),
    st.integers(-6, 40),
    side,
    side,
)
pitches = st.sampled_from([(16, 14), (14, 16)])


@st.composite
def sections(draw: st.DrawFn) -> Section:
    """Lattice or neighbourhood sections of encoders with either pitch."""
    pitch, grid = draw(pitches)
    if draw(st.booleans()):
        crops = list(lattice(draw(sizes), draw(st.sampled_from([80, 112, 160, 224]))))
    else:
        reference = Window(*(CELL * v for v in draw(st.tuples(st.integers(0, 48), st.integers(0, 48)))), 256, 256)
        crops = neighborhood(reference, Size(1024, 1024), draw(st.integers(0, 2**31)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    patch = torch.randn((len(crops), grid**2, 2), generator=generator)
    return Section.of(crops, patch, torch.randn((len(crops), 2), generator=generator), pitch)


def equal(one: Section, other: Section) -> bool:
    same = (torch.equal(a, b) for a, b in ((one.sum, other.sum), (one.count, other.count), (one.cls, other.cls)))
    return all(same) and torch.equal(one.M, other.M) and torch.equal(one.c_n, other.c_n) and one.crops == other.crops


@given(sections(), on_lattice, on_lattice)
@settings(max_examples=60, deadline=None)
def test_restriction_composes(section: Section, u: Window, v: Window):
    """ρ_UW = ρ_VW ∘ ρ_UV for W ⊆ V, whatever lies on the canvas (paper, appendix Sheaf Theory Background)."""
    w = u.overlap(v)
    if not w.empty:
        assert equal(section.restrict(u).restrict(w), section.restrict(w))
        assert equal(section.restrict(u).restrict(w), section.restrict(v).restrict(w))


@given(sections(), on_lattice, on_lattice)
@settings(max_examples=60, deadline=None)
def test_restrictions_of_overlapping_windows_agree_on_the_overlap(section: Section, u: Window, v: Window):
    """Gluing holds for M by construction: two windows see the same conditioning where they overlap (D1)."""
    w = u.overlap(v)
    if not w.empty:
        one, other = (section.restrict(x).M[:, *w.within(x).cells().slices] for x in (u, v))
        assert torch.equal(one, other)


@given(sections(), on_lattice)
@settings(max_examples=30, deadline=None)
def test_locality(section: Section, u: Window):
    """A section is determined by its restrictions to a cover."""
    pieces = [Window(y, x, CELL, CELL) for y in range(u.y, u.bottom, CELL) for x in range(u.x, u.right, CELL)]
    whole = section.restrict(u)
    for piece in pieces[:: max(len(pieces) // 20, 1)]:
        at = piece.within(u).cells()
        assert torch.equal(section.restrict(piece).sum[0, 0], whole.sum[at.y, at.x])


@given(pitches, st.integers(-500, 5000), st.integers(-500, 5000))
def test_tokens_land_in_the_cell_that_contains_their_centre(kind: tuple[int, int], y: int, x: int):
    pitch, grid = kind
    for cells, offset in zip(token_cells(torch.tensor([[y, x]]), grid**2, pitch), (y, x), strict=True):
        for k, cell in enumerate(cells[0].tolist()):
            assert 16 * cell <= offset + pitch * k + pitch / 2 < 16 * (cell + 1)


@given(sizes, pitches, st.data())
@settings(max_examples=25, deadline=None)
def test_a_cut_is_the_same_from_a_stream_and_from_the_whole(size: Size, kind: tuple[int, int], data: st.DataObject):
    pitch, grid = kind
    crops = list(lattice(size))
    generator = torch.Generator().manual_seed(0)
    patch, cls = (
        torch.randn((len(crops), grid**2, 2), generator=generator),
        torch.randn((len(crops), 2), generator=generator),
    )
    whole, stream = Section.of(crops, patch, cls, pitch), SectionStream(size, 2, pitch)
    windows = list(Lattice.over(size))
    start = 0
    while start < len(crops):
        stop = start + data.draw(st.integers(1, 40))
        stream.add(crops[start:stop], patch[start:stop], cls[start:stop])
        start = stop
        if start >= len(crops):
            stream.rows_done(stream.frame.bottom)
        while windows and stream.ready(windows[0]):
            window = windows.pop(0)
            stream.release(window.y)
            assert equal(stream.restrict(window), whole.restrict(window))
    assert not windows


@given(sizes, st.sampled_from([(256, 192), (256, 128), (64, 48), (224, 80)]))
@settings(max_examples=60, deadline=None)
def test_a_lattice_covers_any_image_with_windows_on_the_token_lattice(size: Size, shape: tuple[int, int]):
    count = np.zeros((size.h, size.w), int)
    for window in Lattice.over(size, *shape):
        assert window.y % CELL == window.x % CELL == 0
        count[window.slices] += 1
    assert count.min() > 0


@given(
    st.lists(
        st.builds(Window, st.integers(-50, 300), st.integers(-50, 300), st.integers(1, 90), st.integers(1, 90)),
        max_size=14,
    )
)
def test_pairs_and_triples_are_the_overlaps(windows: list[Window]):
    n = range(len(windows))
    assert pairs(windows) == [(i, j) for i in n for j in n if i < j and windows[i].meets(windows[j])]
    assert triples(windows) == [
        (i, j, k)
        for i in n
        for j in n
        for k in n
        if i < j < k and not windows[i].overlap(windows[j]).overlap(windows[k]).empty
    ]


@st.composite
def covers(draw: st.DrawFn) -> tuple[Size, list[tuple[Window, Kind]]]:
    """An image and windows of any size and kind that cover it: random ones over a lattice of random stride."""
    size = Size(draw(st.integers(1, 150)), draw(st.integers(1, 150)))
    base = Lattice.over(size, 48, draw(st.sampled_from([16, 32, 48])))
    kinds: st.SearchStrategy[Kind] = st.sampled_from(["lattice", "extra"])
    anywhere = st.builds(Window, st.integers(-20, 140), st.integers(-20, 140), st.integers(1, 90), st.integers(1, 90))
    windows: list[tuple[Window, Kind]] = [(w, draw(kinds)) for w in base]
    return size, draw(st.permutations(windows + draw(st.lists(st.tuples(anywhere, kinds), max_size=6))))


@given(covers())
@settings(max_examples=15, deadline=None)
def test_the_partition_of_unity_sums_to_one_at_every_pixel(cover: tuple[Size, list[tuple[Window, Kind]]]):
    """φᵢ is what is glued when window i shows 1 and the others 0 (paper, "Stitching as partition-of-unity gluing")."""
    size, windows = cover
    total = np.zeros((size.h, size.w))
    for i, (window, _) in enumerate(windows):
        shown = [(w, np.full((w.h, w.w, 1), float(i == j), np.float32), kind) for j, (w, kind) in enumerate(windows)]
        phi = glue(shown, size, channels=1, dtype=np.float32).pixels[..., 0]
        assert phi.min() >= 0
        outside = np.ones((size.h, size.w), bool)
        outside[window.overlap(Window.of(size)).slices] = False
        assert not phi[outside].any()
        total += phi
    assert np.allclose(total, 1, atol=1e-5)


@given(covers(), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_identity_in_is_identity_out(cover: tuple[Size, list[tuple[Window, Kind]]], seed: int):
    size, windows = cover
    image = np.random.default_rng(seed).integers(0, 256, (size.h, size.w, 3), dtype=np.uint8)
    glued = glue([(w, cut(image, w), kind) for w, kind in windows], size)
    assert np.array_equal(glued.pixels, image)
    assert glued.defect is not None and not np.nan_to_num(glued.defect).any()


@given(covers(), st.integers(0, 2**31), st.lists(st.integers(0, 150), max_size=6))
@settings(max_examples=60, deadline=None)
def test_order_and_bands_change_nothing(cover: tuple[Size, list[tuple[Window, Kind]]], seed: int, steps: list[int]):
    size, windows = cover
    windows = list(dict.fromkeys(windows))  # two windows in one place have no order of their own
    rng = np.random.default_rng(seed)
    pieces = [(w, rng.random((w.h, w.w, 3), dtype=np.float32), kind) for w, kind in windows]
    whole = glue(pieces, size, dtype=np.float32)
    gluer, bands, waiting = Gluer(size, dtype=np.float32), [], pieces[::-1]
    for y in [*sorted(steps), size.h]:
        for piece in [p for p in waiting if p[0].y < y]:
            gluer.add(*piece)
        waiting = [p for p in waiting if p[0].y >= y]
        bands += list(gluer.rows_done(y))
    assert np.array_equal(np.concatenate([b.pixels for b in bands]), whole.pixels)
    assert np.array_equal(np.concatenate([b.defect for b in bands]), whole.defect, equal_nan=True)  # type: ignore[arg-type]
