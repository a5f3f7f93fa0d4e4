"""What a phantom promises: any window alone, exact overlaps, no seams, a truth that is true."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import map_coordinates

from sheafstain.datasets.phantom.architecture import Tissue
from sheafstain.datasets.phantom.bed import Bed, Frame
from sheafstain.datasets.phantom.canvas import Canvas, canvas
from sheafstain.datasets.phantom.cut import FARTHEST, Cut
from sheafstain.datasets.phantom.look import Look
from sheafstain.datasets.phantom.nuclei import Nucleus
from sheafstain.datasets.phantom.paint import immunostain
from sheafstain.datasets.phantom.phantom import BLOCK, Phantom
from sheafstain.datasets.phantom.plan import ONE_LABORATORY, choose_fields
from sheafstain.datasets.phantom.specimen import Marker, Specimen
from sheafstain.window import Resolution, Size, Window

LAYERS = ("he", "ihc", "truth", "dab", "nuclei", "classes", "tissue", "displacement")


@cache
def field(seed: int, marker: Marker = "HER2") -> tuple[Phantom, Window]:
    """A phantom with its blocks kept over the tests of a process, and a window of it with tissue and tumour."""
    specimen = Specimen.draw(seed)
    window = choose_fields(specimen, Size(BLOCK, BLOCK), Resolution(0.5), 1)[0]
    return Phantom(specimen, marker), window


def section(seed: int, index: int, frame: Frame) -> Canvas:
    specimen = Specimen.draw(seed)
    bed = Bed.under(specimen, frame)
    assert bed is not None, "all glass"
    return canvas(specimen, (Cut.first, Cut.next)[index](seed), frame, bed)


@given(y=st.integers(-300, 500), x=st.integers(-300, 500), h=st.integers(1, 300), w=st.integers(1, 300))
@settings(max_examples=6, deadline=None)
def test_overlapping_windows_agree_exactly(y: int, x: int, h: int, w: int) -> None:
    """Two phantoms of one seed that share nothing but the seed, asked for different windows in a different order."""
    here, there = Phantom(Specimen.draw(5)), field(5)[0]
    window, other = Window(y, x, h, w), Window(40, -60, 200, 330)
    mine, its = here.draw(window, LAYERS), there.draw(other, LAYERS)
    both = window.overlap(other)
    for layer in LAYERS:
        np.testing.assert_array_equal(
            mine[layer][both.within(window).slices], its[layer][both.within(other).slices], err_msg=layer
        )


def test_laboratories_can_be_many_or_one() -> None:
    """The IHC of one laboratory varies less in every respect, that of none at all not, and H&E as ever."""
    many, one, none = (
        [Phantom(Specimen.draw(seed), ihc_variation=v).looks for seed in range(30)] for v in (1.0, ONE_LABORATORY, 0.0)
    )
    assert repr(many[0]["ihc"]) == repr(Look.draw(0, "ihc"))
    assert [repr(look["he"]) for look in many] == [repr(look["he"]) for look in none]
    assert len({repr(look["ihc"]) for look in none}) == 1
    for name in ("white", "dyes", "strength", "thickness", "blur", "noise", "gamma", "stroma", "jpeg"):
        wide, narrow = (np.array([getattr(look["ihc"], name) for look in looks]).std(0) for looks in (many, one))
        assert (narrow <= 0.6 * wide).all(), name


def test_layers_have_the_documented_shapes() -> None:
    phantom, window = field(5)
    drawn = phantom.draw(Window(window.y, window.x, 70, 50), LAYERS)
    shapes = {layer: (array.dtype.name, array.shape) for layer, array in drawn.items()}
    assert shapes == {
        "he": ("uint8", (70, 50, 3)),
        "ihc": ("uint8", (70, 50, 3)),
        "truth": ("uint8", (70, 50, 3)),
        "dab": ("float32", (70, 50)),
        "nuclei": ("int32", (70, 50)),
        "classes": ("uint8", (70, 50)),
        "tissue": ("uint8", (70, 50)),
        "displacement": ("float32", (70, 50, 2)),
    }


def test_a_layer_is_the_same_whatever_it_is_drawn_with() -> None:
    _, window = field(8)
    part = Window(window.y, window.x, 64, 64)
    together = Phantom(Specimen.draw(8)).draw(part, LAYERS)
    for layer in ("ihc", "truth", "dab"):
        np.testing.assert_array_equal(Phantom(Specimen.draw(8)).draw(part, (layer,))[layer], together[layer])


@pytest.mark.parametrize("index", [0, 1])
def test_no_seam_between_blocks(index: int) -> None:
    """A raster laid across the corner of four blocks must show what the blocks show."""
    phantom, window = field(9)
    step, side = 0.5, 128
    corner_y, corner_x = window.y - side // 2, window.x - side // 2
    across = section(9, index, Frame(corner_y * step, corner_x * step, step, side, side))
    pieces: dict[str, list[np.ndarray]] = {"tissue": [], "cover": [], "fibre": [], "dab": []}
    for y in (corner_y, window.y):
        for x in (corner_x, window.x):
            # As a block sees it: a raster of its own, with a halo, cut back to the block.
            own = section(9, index, Frame((y - 12) * step, (x - 12) * step, step, side // 2 + 24, side // 2 + 24))
            inner = (slice(12, -12), slice(12, -12))
            pieces["tissue"].append(own.tissue()[inner])
            pieces["cover"].append(own.stamped.cover[inner])
            pieces["fibre"].append(own.fibre[inner])
            pieces["dab"].append(immunostain(own, "HER2", phantom.looks["ihc"])[1][inner])
    joined = {k: np.block([[a, b], [c, d]]) for k, (a, b, c, d) in pieces.items()}
    assert (joined["tissue"] != across.tissue()).mean() < 1e-3
    assert np.abs(joined["cover"] - across.stamped.cover).max() < 1e-3
    assert np.abs(joined["fibre"] - across.fibre).max() < 1e-3
    dab = immunostain(across, "HER2", phantom.looks["ihc"])[1]
    assert np.abs(joined["dab"] - dab).mean() < 1e-4


def test_the_displacement_says_where_things_went() -> None:
    """Pulling the first section's tissue through the displacement gives the tissue of the consecutive section."""
    phantom, window = field(11)
    step = 0.5
    frame = Frame(window.y * step, window.x * step, step, 400, 400)
    consecutive = section(11, 1, frame).tissue()
    moved = phantom.draw(Window(window.y, window.x, 400, 400), ("displacement",))["displacement"]
    margin = int(FARTHEST / step) + 1
    first = section(
        11, 0, Frame(frame.y - margin * step, frame.x - margin * step, step, 400 + 2 * margin, 400 + 2 * margin)
    ).tissue()
    at = np.indices((400, 400)) + np.moveaxis(moved, -1, 0) + margin
    pulled = map_coordinates(first, at, order=0)
    assert np.unique(consecutive).size > 1
    assert np.abs(moved).max() > 4  # px: otherwise there is nothing to test
    assert (pulled == consecutive).mean() > 0.95
    assert (pulled == consecutive).mean() > (first[margin:-margin, margin:-margin] == consecutive).mean()


def test_displacements_are_those_of_registered_sections() -> None:
    """10–30 px residual at 0.5 µm/px (mean length) for most specimens, and never beyond the promised reach."""
    positions = np.arange(0, 2000, 50.0)
    lengths = []
    for seed in range(60):
        dy, dx = Cut.next(seed).displacement(positions, positions)
        length = np.hypot(dy, dx) / 0.5
        assert length.max() <= FARTHEST / 0.5
        lengths.append(length.mean())
    assert np.quantile(lengths, 0.1) > 8
    assert 10 < np.median(lengths) < 30
    assert np.quantile(lengths, 0.9) < 45


def test_consecutive_sections_share_most_nuclei_and_not_all() -> None:
    window = field(9)[1]
    frame = Frame(window.y * 0.5, window.x * 0.5, 0.5, 400, 400)
    first, second = (section(9, index, frame).nuclei for index in (0, 1))
    tumour = [
        set(n.key[(n.kind == Nucleus.TUMOUR) & n.seen & (n.y > frame.y) & (n.x > frame.x)]) for n in (first, second)
    ]
    assert len(tumour[0]) > 50
    shared = len(tumour[0] & tumour[1]) / len(tumour[0])
    assert 0.3 < shared < 0.85


def test_truth_labels_agree() -> None:
    phantom, window = field(9)
    d = phantom.draw(window, ("nuclei", "classes", "tissue"))
    assert ((d["nuclei"] > 0) == (d["classes"] > 0)).all()
    # One nucleus has one class.
    pairs = np.unique(np.stack([d["nuclei"].ravel(), d["classes"].ravel()]), axis=1)
    assert len(np.unique(pairs[0])) == pairs.shape[1]
    lymphocytes = d["tissue"][d["classes"] == Nucleus.FIBROBLAST]
    assert np.isin(lymphocytes, (Tissue.TUMOUR, Tissue.DUCT)).mean() < 0.1  # fibroblasts lie in stroma
    tumour = d["tissue"][d["classes"] == Nucleus.TUMOUR]
    assert (tumour == Tissue.TUMOUR).mean() > 0.85


def test_nuclei_are_where_the_picture_is_blue() -> None:
    """Independent of how it was painted: in H&E red light is absorbed by haematoxylin, and least by eosin."""
    for seed in (9, 12, 14):
        phantom, window = field(seed)
        d = phantom.draw(window, ("he", "nuclei"))
        red = d["he"][..., 0].astype(float)
        inside = d["nuclei"] > 0
        assert red[inside].mean() < red[~inside].mean() - 15


@pytest.mark.parametrize("marker", ["HER2", "ER"])
def test_unmixing_the_truth_finds_its_dab(marker: Marker) -> None:
    """The colour maths of the package, which the phantom does not use, recovers the amount of DAB that was painted."""
    import torch

    from sheafstain.stain import chromogen

    stained = next(
        seed
        for seed in range(200)
        if (Specimen.draw(seed).her2 == 3 if marker == "HER2" else Specimen.draw(seed).er > 0.6)
        and Phantom(Specimen.draw(seed)).looks["ihc"].blur < 0.4
    )
    phantom, window = field(stained, marker)
    d = phantom.draw(window, ("truth", "dab"))
    pixels = torch.from_numpy(d["truth"].copy()).permute(2, 0, 1)[None] / 255
    found = chromogen(pixels)[0].squeeze().numpy()
    assert d["dab"].mean() > 0.02
    assert np.corrcoef(found.ravel(), d["dab"].ravel())[0, 1] > 0.75


def test_glass_surrounds_a_slide_and_the_middle_is_tissue() -> None:
    phantom = Phantom(Specimen.draw(3), size=Size(6000, 8000))
    corner = phantom.draw(Window(0, 0, 64, 64), LAYERS)
    assert (corner["tissue"] == Tissue.GLASS).all()
    assert not corner["nuclei"].any() and not corner["classes"].any() and not corner["dab"].any()
    light = 255 * phantom.looks["he"].white ** phantom.looks["he"].gamma
    np.testing.assert_allclose(corner["he"].mean(axis=(0, 1)), light, atol=1.5)
    assert corner["he"].std(axis=(0, 1)).max() < 6
    assert {k: v.dtype for k, v in corner.items()} == {
        k: v.dtype for k, v in field(9)[0].draw(Window(field(9)[1].y, field(9)[1].x, 8, 8), LAYERS).items()
    }
    middle = phantom.draw(Window(3000, 4000, 64, 64), ("tissue",))
    assert (middle["tissue"] != Tissue.GLASS).any()
    with pytest.raises(ValueError, match="not on the slide"):
        phantom.he(Window(0, 7990, 16, 16))


def test_another_resolution_shows_the_same_tissue() -> None:
    phantom, window = field(9)
    fine = phantom.draw(Window(window.y, window.x, 256, 256), ("tissue",))["tissue"]
    coarse = Phantom(phantom.specimen, resolution=Resolution(1.0))
    half = coarse.draw(Window(window.y // 2, window.x // 2, 128, 128), ("tissue",))["tissue"]
    assert (half == fine[::2, ::2]).mean() > 0.9
