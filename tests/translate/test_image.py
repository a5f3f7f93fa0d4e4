"""Images in memory: the same pixels by another computation, and whatever the batch, the bands and the region."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stain_doubles import Identity, MeanEncoder, Wobbling

from sheafstain.bridge.noise import CanvasNoise
from sheafstain.errors import UsageError
from sheafstain.methods.method import Tiling
from sheafstain.sheaf import crops
from sheafstain.sheaf.cover import Lattice, cut, pairs
from sheafstain.sheaf.defect import pair_energy
from sheafstain.sheaf.glue import Kind, glue
from sheafstain.sheaf.refine import refine
from sheafstain.sheaf.section import Section
from sheafstain.translate.image import ArraySink
from sheafstain.translate.measuring import Measuring
from sheafstain.translate.pipeline import run
from sheafstain.translate.pixels import ArraySource, Pixels
from sheafstain.translate.plan import Plan
from sheafstain.translate.protocol import StainProtocol
from sheafstain.translate.stainer import Stainer
from sheafstain.window import Size, Window

CONDITIONINGS = ["none", "lattice", "neighborhood"]


def drawn(h: int, w: int, seed: int = 0) -> np.ndarray:
    """Noise that is stronger in some places than in others, so that extra windows have something to prefer."""
    rng = np.random.default_rng(seed)
    strength = rng.random((h // 100 + 1, w // 100 + 1, 1)).repeat(100, 0).repeat(100, 1)[:h, :w]
    return (128 + 250 * strength * (rng.random((h, w, 3)) - 0.5)).astype(np.uint8)


def by_hand(image: np.ndarray, conditioning: str, nfe: int = 5, seed: int = 0) -> tuple[Any, float]:
    """The whole image at once, window by window, without any of the room under test."""
    size = Size(*image.shape[:2])
    lattice = Lattice.over(size)
    windows: list[tuple[Window, Kind]] = [(w, "lattice") for w in lattice]
    windows += [(w, "extra") for w in refine(image, lattice)]
    encoder, model = MeanEncoder(), Wobbling()

    def section(found: list[Window], window: Window) -> Section:
        (tokens,) = encoder.encode([np.stack([cut(image, c) for c in found])])
        return Section.of(found, tokens.patch, tokens.cls, 16).restrict(window)

    whole = section(list(crops.lattice(size)), Lattice.over(size).frame) if conditioning == "lattice" else None
    made = []
    for window, kind in windows:
        M = c_n = None
        if conditioning != "none":
            part = whole.restrict(window) if whole else section(crops.neighborhood(window, size, seed), window)
            M, c_n = part.M[None], part.c_n[None]
        he = torch.from_numpy(cut(image, window).astype(np.float32) / 127.5 - 1).permute(2, 0, 1)[None]
        out = model.translate(he, CanvasNoise(torch.tensor([seed]), [window], 4), M, c_n, nfe=nfe)[0]
        pixels = np.rint((out.permute(1, 2, 0).numpy().astype(np.float64) + 1) * 127.5).astype(np.uint8)
        made.append((window, pixels, kind))
    visible = [(w.overlap(Window.of(size)), p) for w, p, _ in made]
    visible = [(w, p[: w.h, : w.w]) for w, p in visible]
    energies = [pair_energy(*visible[i], *visible[j]) for i, j in pairs([w for w, _ in visible])]
    return glue(made, size), float(np.mean(energies))


def near(one: np.ndarray, other: np.ndarray) -> bool:
    """Equal but for halves that float32 and float64 round to different sides."""
    difference = np.abs(one.astype(int) - other)
    return difference.max() <= 1 and (difference > 0).mean() < 1e-4


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
@pytest.mark.parametrize("size", [(470, 830), (530, 200)], ids=str)
def test_the_same_as_window_by_window(size: tuple[int, int], conditioning: str):
    image = drawn(*size)
    expected, energy = by_hand(image, conditioning)
    stained = Stainer(Wobbling(conditioning=conditioning), MeanEncoder(), batch=3).stain(image)
    assert near(stained.pixels, expected.pixels)
    assert np.array_equal(np.isnan(stained.defect), np.isnan(expected.defect))
    assert np.nanmax(np.abs(stained.defect - expected.defect)) < 1e-4
    assert stained.energy == pytest.approx(energy, rel=1e-3)


@settings(max_examples=12)
@given(st.integers(1, 600), st.integers(1, 600), st.sampled_from(["refined", "lattice", "dense", "whole"]))
def test_an_identity_gives_back_every_bit(h: int, w: int, cover: Any):
    image = drawn(h, w, seed=h)
    stained = Stainer(Identity()).stain(image, cover=cover)
    assert np.array_equal(stained.pixels, image)
    assert np.all(stained.defect[~np.isnan(stained.defect)] == 0)
    assert not stained.energy > 0


def test_a_whole_image_is_one_piece_and_a_large_one_several():
    model = Identity()
    image = drawn(1024, 1024)
    assert np.isnan(Stainer(model).stain(image, cover="whole").defect).all()
    assert model.shapes == [(1, 3, 1024, 1024)]
    model.shapes.clear()
    image = drawn(300, 3000)
    assert np.array_equal(Stainer(model).stain(image, cover="whole").pixels, image)
    assert model.shapes == [(1, 3, 304, 1280)] * 3
    odd = Identity(tiling=Tiling(side=256, stride=256, multiple=256, free=True))
    assert np.array_equal(Stainer(odd).stain(image[:, :1000], cover="whole").pixels, image[:, :1000])
    assert odd.shapes == [(1, 3, 512, 1024)]


def test_rivals_are_tiled_without_overlap():
    model = Wobbling(tiling=Tiling(side=256, stride=256))
    stained = Stainer(model, batch=16).stain(drawn(1024, 1024))
    assert stained.report["windows"]["lattice"] == 16 and np.isnan(stained.defect).all()
    assert model.shapes == [(16, 3, 256, 256)]


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_neither_batch_nor_band_changes_a_bit(conditioning: str):
    image = drawn(450, 700)
    protocol = StainProtocol.of(Wobbling(conditioning=conditioning), glass=True)
    results = []
    for batch, band, ahead in ((1, 7, 0), (8, 256, 3), (50, 450, 100), (5, 33, 1)):
        stainer = Stainer(Wobbling(conditioning=conditioning), MeanEncoder(ahead=ahead), batch=batch)
        results.append(part(stainer, image, protocol, Window.of(Size(450, 700)), band))
    for pixels, defect, energies in results[1:]:
        assert np.array_equal(pixels, results[0][0])
        assert np.array_equal(defect, results[0][1], equal_nan=True)
        assert np.array_equal(energies, results[0][2])


def part(
    stainer: Stainer, image: np.ndarray, protocol: StainProtocol, region: Window, band: int = 100, **options: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    plan = Plan(protocol, Size(*image.shape[:2]), region, **options)
    sink = ArraySink(region.size, protocol.samples)
    measuring = Measuring(plan, region, sink)
    run(ArraySource(image), stainer.model, stainer.encoder, measuring, batch=stainer.batch, band=band)
    return sink.pixels, sink.defect, measuring.energy.energies


WAYS = [("none", "dense"), ("lattice", "whole"), *((conditioning, "refined") for conditioning in CONDITIONINGS)]


@pytest.mark.parametrize(("conditioning", "cover"), WAYS)
def test_a_region_is_that_part_of_the_whole(conditioning: str, cover: Any):
    size = Size(1400, 800) if cover == "whole" else Size(700, 1210)  # two pieces; two blocks of extra windows
    image = drawn(size.h, size.w)
    stainer = Stainer(Wobbling(conditioning=conditioning), MeanEncoder())
    protocol = StainProtocol.of(stainer.model, cover=cover, glass=True)
    pixels, defect, _ = part(stainer, image, protocol, Window.of(size))
    for region in (Window(300, 633, 211, 150), Window(size.h - 9, size.w - 20, 9, 20)):
        here, there, _ = part(stainer, image, protocol, region)
        assert np.array_equal(here, pixels[region.slices])
        assert np.array_equal(there, defect[region.slices], equal_nan=True)


def test_the_defect_of_two_windows_by_hand():
    """Two windows of an image 448 px wide; the model adds a constant that differs between them."""

    class Flat(Identity):
        def translate(self, he: Any, noise: CanvasNoise, *_: Any, **__: Any) -> Any:
            first = torch.tensor([w.x == 0 for w in noise.windows])[:, None, None, None]
            return torch.where(first, 40 / 127.5 - 1, 60 / 127.5 - 1).expand_as(he)

    stained = Stainer(Flat()).stain(drawn(256, 448), cover="lattice")
    k = np.arange(64) + 0.5
    one, other = np.minimum((64 - k) / 32, 1), np.minimum(k / 32, 1)
    share = other / (one + other)
    assert np.array_equal(stained.pixels[:, 192:256, 1], np.rint(40 + 20 * share).astype(int)[None].repeat(256, 0))
    assert np.allclose(stained.defect[100, 192:256], share * (1 - share) * (20 / 255) ** 2, rtol=1e-5)
    assert np.isnan(stained.defect[:, :192]).all() and np.isnan(stained.defect[:, 256:]).all()
    assert stained.energy == pytest.approx((20 / 255) ** 2)
    assert stained.report["defect"]["defined"] == pytest.approx(64 / 448)
    assert stained.report["energy"]["worst_overlap"] == [192, 0, 64, 256]


def test_samples_are_seeds_and_their_mean_and_variance_those_of_numpy():
    image = drawn(400, 500)
    stainer = Stainer(Wobbling())
    alone = [stainer.stain(image, seed=5 + k) for k in range(3)]
    together = stainer.stain(image, seed=5, samples=3)
    stack = np.stack([s.pixels for s in alone]).astype(np.float64)
    assert np.array_equal(together.pixels, np.rint(stack.mean(0)))
    assert together.spread is not None and stack.std(0).max() > 1
    assert np.allclose(together.spread, (stack / 255).var(0).mean(2), atol=1e-7)
    assert np.allclose(together.defect, np.mean([s.defect for s in alone], 0), equal_nan=True)
    assert alone[0].spread is None


@pytest.mark.parametrize("ahead", [0, 3, 100])
def test_crops_that_windows_have_in_common_are_encoded_once(ahead: int):
    """The paper's image: 121 crops on the lattice; around the 34 windows 439, of which some are the same."""
    image, size = drawn(1024, 1024), Size(1024, 1024)
    lattice = Lattice.over(size)
    around = [c for w in (*lattice, *refine(image, lattice)) for c in crops.neighborhood(w, size, 0)]
    assert 121 < len(set(around)) < len(around) < 544
    for conditioning, count in (("lattice", 121), ("neighborhood", len(set(around)))):
        encoder = MeanEncoder(ahead=ahead)
        Stainer(Identity(conditioning=conditioning), encoder, batch=17).stain(image)
        assert encoder.encoded == count


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_glass_costs_nothing_and_is_grey(conditioning: str):
    image = drawn(1500, 500)
    stainer = Stainer(Wobbling(conditioning=conditioning), MeanEncoder(), batch=4)
    protocol = StainProtocol.of(stainer.model, cover="lattice")
    tissue, whole = Window(1100, 200, 200, 160), Window.of(Size(1500, 500))
    everything = part(stainer, image, protocol, whole)
    assert isinstance(stainer.encoder, MeanEncoder) and isinstance(stainer.model, Wobbling)
    stainer.encoder.encoded = 0
    stainer.model.shapes.clear()
    pixels, defect, _ = part(stainer, image, protocol, whole, tissue=tissue.meets)
    assert np.array_equal(pixels[tissue.slices], everything[0][tissue.slices])
    assert (pixels[:800] == 245).all() and np.isnan(defect[:800]).all()
    assert stainer.model.shapes == [(4, 3, 256, 256)] * 3  # 9 of 24 windows
    assert stainer.encoder.encoded < {"none": 1, "lattice": 60, "neighborhood": 9 * 16}[conditioning]


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_rows_are_held_no_longer_than_windows_need_them(conditioning: str, monkeypatch: pytest.MonkeyPatch):
    """Down a high slide and over glass, on which the encoder reads ahead by ten groups of crops."""
    held: list[int] = []
    hold = Pixels._hold
    monkeypatch.setattr(Pixels, "_hold", lambda self, rows: (hold(self, rows), held.append(self.held))[0])
    image = np.full((9000, 256, 3), 200, np.uint8)
    for tissue in (None, lambda w: w.y < 600 or w.bottom > 8400):
        stainer = Stainer(Identity(conditioning=conditioning), MeanEncoder(ahead=10))
        part(stainer, image, StainProtocol.of(stainer.model), Window.of(Size(9000, 256)), band=64, tissue=tissue)
        block, ahead = 1152 + 224, {"none": 0, "lattice": 10 * 80, "neighborhood": 10 * 192}[conditioning]
        assert max(held) <= block + ahead + 2 * 64
        held.clear()


def test_the_stages_work_at_the_same_time():
    """Each waits for the next to have begun: one after the other they would wait for ever."""
    translating, written = threading.Event(), threading.Event()

    class Slow(ArraySource):
        def rows(self, window: Window, band: int) -> Any:
            for k, rows in enumerate(super().rows(window, band)):
                assert k < 4 or translating.wait(20), "nothing was translated before the last row was decoded"
                yield rows

    class Waiting(Identity):
        def translate(self, he: Any, *_: Any, **__: Any) -> Any:
            assert len(self.shapes) < 12 or written.wait(20), "nothing was written before the last window"
            translating.set()
            return super().translate(he, *_, **__)

    class Told(ArraySink):
        def rows(self, *arguments: Any) -> None:
            written.set()
            super().rows(*arguments)

    image = drawn(3000, 256)
    stainer = Stainer(Waiting(tiling=Tiling(side=256, stride=192)), batch=1)
    plan = Plan(stainer.protocol(glass=True), Size(3000, 256), Window(0, 0, 3000, 256))
    sink = Told(Size(3000, 256), 1)
    run(Slow(image), stainer.model, None, Measuring(plan, plan.target, sink), batch=1, band=128)
    assert np.array_equal(sink.pixels, image) and len(stainer.model.shapes) == 16


def test_what_a_model_cannot_do_is_refused():
    image = drawn(300, 300)
    tiled = Stainer(Identity(tiling=Tiling(side=256, stride=256)))
    with pytest.raises(UsageError, match="cover whole is not for it"):
        tiled.stain(image, cover="whole")
    with pytest.raises(UsageError, match="trained without conditioning"):
        tiled.stain(image, conditioning="lattice")
    with pytest.raises(UsageError, match="nfe is 1 to 5"):
        tiled.stain(image, nfe=6)
    with pytest.raises(UsageError, match="no cover 'thin'"):
        tiled.stain(image, cover="thin")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="needs an encoder"):
        Stainer(Identity(conditioning="lattice")).stain(image)
    with pytest.raises(UsageError, match=r"uint8 \[h, w, 3\]"):
        tiled.stain(image.astype(np.float32))


def test_an_error_in_any_stage_is_the_one_that_is_seen():
    class Broken(Identity):
        def translate(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("no such kernel")

    with pytest.raises(RuntimeError, match="no such kernel"):
        Stainer(Broken()).stain(drawn(800, 800))

    class Short(ArraySource):
        def rows(self, window: Window, band: int) -> Any:
            yield from super().rows(Window(0, 0, 300, window.w), band)
            raise OSError("the disk is gone")

    stainer = Stainer(Identity())
    with pytest.raises(OSError, match="the disk is gone"):
        stainer.stain_source(Short(drawn(800, 800)), stainer.protocol())

    class Nan(Identity):
        def translate(self, he: Any, *_: Any, **__: Any) -> Any:
            return he[:, :, :100]

    with pytest.raises(ValueError, match="needs pixels"):
        Stainer(Nan()).stain(drawn(800, 800))
