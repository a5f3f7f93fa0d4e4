"""The suite over folders and slides: the right function for each number, and the same numbers however they were had."""

from __future__ import annotations

import csv
import io
import json
import math
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sheafstain.errors import SheafStainError, UsageError
from sheafstain.metrics import chromogen, distribution, fidelity, scoring, seam, tables
from sheafstain.metrics.protocol import choose
from sheafstain.metrics.report import Report
from sheafstain.metrics.sources import ImageSet, Listing, list_items
from sheafstain.metrics.state import LOG, differences
from sheafstain.metrics.suite import Borders, Suite
from sheafstain.metrics.weights import MissingWeights
from sheafstain.slides.image import read_image
from sheafstain.slides.write import open_writer
from sheafstain.window import Resolution, Size

FIELD = Size(288, 304)
CHEAP = ("psnr", "ssim", "seam", "chromogen")


def tissue(seed: int, size: Size = FIELD) -> np.ndarray:
    """Blotches of blue and brown on white: every metric has something to see."""
    rng = np.random.default_rng(seed)
    coarse = rng.random((size.h // 16, size.w // 16)).repeat(16, 0).repeat(16, 1)[..., None]
    brown, blue, white = (np.array(rgb, float) for rgb in ((120, 80, 50), (90, 90, 140), (244, 243, 245)))
    picture = np.where(coarse > 0.7, brown, np.where(coarse > 0.4, blue, white))
    return (picture + rng.normal(0, 6, picture.shape)).clip(0, 255).astype(np.uint8)


def save(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Four images of each side, of two sizes and several formats."""
    for i in range(4):
        size = Size(288, 304) if i else Size(320, 272)
        save(tmp_path / "pred" / f"field{i}.png", tissue(10 + i, size))
        save(tmp_path / "real" / f"field{i}.{'tif' if i % 2 else 'png'}", tissue(20 + i, size))
        save(tmp_path / "he" / f"field{i}.png", tissue(30 + i, size))
    return tmp_path


def run(
    root: Path,
    out: str = "out",
    metrics: tuple[str, ...] = CHEAP,
    *,
    listing: Listing | None = None,
    pred: str = "pred",
    source: bool = False,
    suite: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    **how: Any,
) -> Report:
    suite, options = suite or {}, options or {}
    if listing is None:
        listing = list_items(root / pred, root / "real", root / "he" if source else None, **options)
    given = [key for key, value in suite.items() if value is not None]
    return scoring.score(listing, Suite(choose(metrics, given), **suite), root / out, name="x", **how)


def tensor(path: Path) -> torch.Tensor:
    return torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1)[None].float() / 255


# --- the right function for each number ------------------------------------------------------------------------------


def test_each_number_is_that_of_its_function(folders: Path):
    report = run(folders, source=True, suite={"borders": Borders.parse("lattice-192")})
    image = next(image for image in report.images if image.name == "field1")
    pred, real, he = (
        tensor(path) for path in (folders / "pred/field1.png", folders / "real/field1.tif", folders / "he/field1.png")
    )
    for key, function in {
        "psnr": fidelity.psnr,
        "ssim": fidelity.ssim,
        "dab-r": chromogen.dab_r,
        "dab-kl": chromogen.dab_kl,
        "dab-kl-reverse": chromogen.dab_kl_reverse,
        "dab-jsd": chromogen.dab_jsd,
        "dab-dice": chromogen.dab_dice,
        "dab-iou": chromogen.dab_iou,
    }.items():
        assert image.values[key] == pytest.approx(float(function(pred, real)), rel=1e-6), key
    for key, quantity in {"iod": chromogen.iod, "miod": chromogen.miod, "fod": chromogen.fod}.items():
        sides = {side: float(quantity(images)) for side, images in (("pred", pred), ("real", real), ("source", he))}
        assert image.sides[key] == pytest.approx(sides), key
        assert image.values[key] == pytest.approx(abs(sides["pred"] - sides["real"])), key
    for key, function, lines in (
        ("ts", seam.tiling_score, (seam.multiples(288), seam.multiples(304))),
        ("seam-excess", seam.seam_excess, (seam.multiples(288), seam.multiples(304))),
        ("ts-borders", seam.tiling_score, (seam.lattice_borders(288), seam.lattice_borders(304))),
        ("seam-excess-borders", seam.seam_excess, (seam.lattice_borders(288), seam.lattice_borders(304))),
    ):
        assert image.values[key] == pytest.approx(float(function(pred, *lines)), nan_ok=True), key
        assert image.sides[key] == pytest.approx(
            {"real": float(function(real, *lines)), "source": float(function(he, *lines))}, nan_ok=True
        ), key
    assert image.values["ts"] != image.values["ts-borders"]


def test_psnr_by_numpy(folders: Path):
    report = run(folders, metrics=("psnr",))
    values = []
    for i in range(4):
        files = folders / f"pred/field{i}.png", folders / f"real/field{i}.{'tif' if i % 2 else 'png'}"
        pred, real = (np.asarray(Image.open(file), float) / 255 for file in files)
        values.append(10 * np.log10(1 / np.mean((pred - real) ** 2)))
    assert report.column("psnr") == pytest.approx(values, rel=1e-5)
    result = report.result("psnr")
    assert result is not None
    assert (result.value, result.std) == (
        pytest.approx(np.mean(values)),
        pytest.approx(np.std(values, ddof=1), rel=1e-4),
    )


def test_p90_correlates_over_images(folders: Path):
    report = run(folders, metrics=("dab-p90-r",))
    pred = report.column("dab-p90")
    real = [image.sides["dab-p90"]["real"] for image in report.images]
    result = report.result("dab-p90-r")
    assert result is not None and result.value == pytest.approx(np.corrcoef(pred, real)[0, 1])


# --- the same numbers however they were had --------------------------------------------------------------------------


def in_batches(patch: pytest.MonkeyPatch) -> None:
    """As with networks: decoded by threads, measured by one."""
    patch.setattr(Suite, "light", False)


def test_batch_and_threads_change_nothing(folders: Path, monkeypatch: pytest.MonkeyPatch):
    one = run(folders, "one", source=True, workers=1)
    others = [run(folders, "threads", source=True, workers=4)]
    in_batches(monkeypatch)
    for batch, workers in ((1, 1), (3, 1), (2, 4)):
        others.append(run(folders, f"{batch}-{workers}", source=True, batch=batch, workers=workers))
    for other in others:
        assert [image.name for image in other.images] == [image.name for image in one.images]
        for a, b in zip(one.images, other.images, strict=True):
            assert b.values == pytest.approx(a.values, rel=1e-6, abs=1e-9, nan_ok=True)


def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that the suite measures from now on."""
    names: list[str] = []
    original = Suite.measure

    def measure(self: Suite, sides: Any, items: Any) -> Any:
        names.extend(item.name for item in items)
        return original(self, sides, items)

    monkeypatch.setattr(Suite, "measure", measure)
    return names


def test_a_stopped_run_goes_on_and_ends_the_same(folders: Path, monkeypatch: pytest.MonkeyPatch):
    whole = run(folders, "whole").to_text()
    listing = list_items(folders / "pred", folders / "real")
    original = Suite.measure

    def killed(self: Suite, sides: Any, items: Any) -> Any:
        if any(item.name == "field2" for item in items):
            raise KeyboardInterrupt
        return original(self, sides, items)

    with monkeypatch.context() as patch:
        patch.setattr(Suite, "measure", killed)
        with pytest.raises(KeyboardInterrupt):
            run(folders, "parts", listing=listing)
    log = folders / "parts" / LOG
    _, *rows = map(json.loads, log.read_text().splitlines())  # the first line is the protocol
    kept = [row["name"] for row in rows]
    assert kept == ["field0", "field1"], "images are handed over in order, whichever thread measures first"
    with log.open("a") as file:
        file.write('{"key": ["half a li')
    names = measured(monkeypatch)
    assert run(folders, "parts").to_text() == whole
    assert sorted(names) == ["field2", "field3"]
    assert run(folders, "parts").to_text() == whole
    assert len(names) == 2, "nothing is measured twice"


def test_a_changed_file_is_measured_again_and_a_renamed_one_is_not(folders: Path, monkeypatch: pytest.MonkeyPatch):
    before = run(folders)
    save(folders / "pred/field2.png", tissue(99))
    for side, suffix in (("pred", "png"), ("real", "tif")):
        (folders / side / f"field3.{suffix}").rename(folders / side / f"moved.{suffix}")
    names = measured(monkeypatch)
    after = run(folders)
    assert names == ["field2"]
    assert after.images[3].values == before.images[3].values
    assert after.images[2].values["psnr"] != before.images[2].values["psnr"]


def test_another_protocol_is_not_mixed_in(folders: Path):
    run(folders, metrics=("psnr",))
    with pytest.raises(SheafStainError, match=r"images\.jsonl: measured under another protocol .*ssim.*choose another"):
        run(folders, metrics=("psnr", "ssim"))
    (folders / "other").mkdir()
    (folders / "other" / LOG).write_text("not json\n")
    with pytest.raises(SheafStainError, match="not the log of a score"):
        run(folders, "other")


def test_differences_are_said_in_words():
    one = {"metrics": {"psnr": {"library": "a 1", "resizer": "none"}}, "borders": None}
    other = {"metrics": {"psnr": {"library": "a 2", "resizer": "none"}}, "borders": "lattice-192"}
    assert differences(one, other) == [
        "library of psnr of metrics was a 1, now a 2",
        "borders was absent, now lattice-192",
    ]
    assert differences(one, one) == []


@pytest.mark.parametrize("light", [True, False])
def test_memory_is_a_few_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, light: bool):
    if not light:
        in_batches(monkeypatch)
    for i in range(24):
        for side in ("pred", "real"):
            save(tmp_path / side / f"{i}.png", tissue(i, Size(64, 64)))
    alive, most = 0, 0
    lock = threading.Lock()
    original = ImageSet.read

    def gone() -> None:
        nonlocal alive
        with lock:
            alive -= 1

    def read(self: ImageSet) -> dict[str, np.ndarray]:
        nonlocal alive, most
        pixels = original(self)
        with lock:
            alive += 1
            most = max(most, alive)
        weakref.finalize(pixels["pred"], gone)
        return pixels

    monkeypatch.setattr(ImageSet, "read", read)
    run(tmp_path, metrics=("psnr",), batch=2, workers=2)
    assert 0 < most <= 12, "of 24: two batches, what is decoded ahead and what is being decoded"
    assert alive == 0


# --- what is not as it should be -------------------------------------------------------------------------------------


def test_a_stem_without_partner_is_refused_or_named(folders: Path):
    lonely = save(folders / "pred" / "lonely.png", tissue(1))
    with pytest.raises(SheafStainError, match=r"1 image \(.*lonely\.png\) without a partner.*--allow-unpaired"):
        run(folders)
    report = run(folders, options={"allow_unpaired": True})
    assert len(report.images) == 4 and report.unpaired == (str(lonely),)


def test_the_maps_beside_translated_images_are_no_images(folders: Path):
    names = sorted(path.stem for path in (folders / "pred").iterdir())
    with open_writer(folders / "pred" / "tmp.ome.tif", Size(288, 304), Resolution(0.5), description={}) as writer:
        writer.rows(read_image(folders / "pred" / f"{names[3]}.png"))
    (folders / "pred" / "tmp.ome.tif").rename(folders / "pred" / f"{names[3]}.ome.tif")
    (folders / "pred" / f"{names[3]}.png").rename(folders / "pred" / f"{names[3]}.defect.ome.tif")
    for kind in ("defect", "spread"):
        save(folders / "pred" / f"{names[0]}.{kind}.png", tissue(9))
    save(folders / "pred" / "lonely.defect.png", tissue(9))  # beside no image: one of its own
    report = run(folders, options={"allow_unpaired": True})
    assert [image.name for image in report.images] == names
    assert [Path(path).name for path in report.unpaired] == ["lonely.defect.png"]


def test_two_files_of_one_stem_are_refused(folders: Path):
    save(folders / "pred" / "field1.tif", tissue(1))
    with pytest.raises(SheafStainError, match=r"field1\.tif: has the same name as field1\.png"):
        run(folders)


def test_nothing_to_pair(folders: Path, tmp_path: Path):
    (folders / "empty").mkdir()
    for pred, said in (
        ("empty", "holds no PNG"),
        ("missing", "no such file or folder"),
        ("pred/field1.png", "folders, or files"),
    ):
        with pytest.raises(SheafStainError, match=said):
            run(folders, pred=pred)
    save(folders / "strange" / "a.png", tissue(1))
    with pytest.raises(SheafStainError, match="no image has a partner"):
        run(folders, pred="strange")


def test_other_sizes_are_refused_or_resized_and_recorded(folders: Path):
    half = tissue(12)[::2, ::2]
    save(folders / "pred" / "field2.png", half)
    with pytest.raises(SheafStainError, match=r"field2: pred 152×144, real 304×288.*--resize"):
        run(folders)
    report = run(folders, "resized", ("psnr",), options={"resize": True})
    assert report.resized == ("field2",)
    assert "Pillow bicubic" in report.protocol["resize"]
    large = np.asarray(Image.fromarray(half).resize((304, 288), Image.Resampling.BICUBIC), float) / 255
    real = np.asarray(Image.open(folders / "real/field2.png"), float) / 255
    assert report.images[2].values["psnr"] == pytest.approx(-10 * np.log10(np.mean((large - real) ** 2)), rel=1e-5)
    assert run(folders, "even", ("psnr",), pred="real", options={"resize": True}).protocol["resize"] is None


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[: len(data) // 2]], ids=["empty", "cut"])
def test_unreadable_files_are_listed_and_strict_fails(folders: Path, damage: Callable[[bytes], bytes]):
    file = folders / "pred" / "field1.png"
    file.write_bytes(damage(file.read_bytes()))
    report = run(folders)
    assert [image.name for image in report.images] == ["field0", "field2", "field3"]
    (fault,) = report.unreadable
    assert fault.name == "field1" and "field1.png" in fault.reason
    with pytest.raises(SheafStainError, match=r"field1\.png"):
        run(folders, "strict", strict=True)


def test_what_is_no_plain_rgb_is_converted_and_named(folders: Path):
    with Image.open(folders / "pred/field1.png") as image:
        image.convert("L").save(folders / "pred/field1.png")
    with Image.open(folders / "real/field2.png") as image:
        image.convert("RGBA").save(folders / "real/field2.png")
    report = run(folders, metrics=("psnr",))
    assert [(Path(fault.name).name, fault.reason) for fault in report.converted] == [
        ("field1.png", "grey to RGB"),
        ("field2.png", "transparency composited on white"),
    ]
    assert any("1 file was converted (grey to RGB): " in line for line in tables.remarks(report))
    assert Report.from_json(json.loads(report.to_text())).converted == report.converted


def test_nothing_readable(folders: Path):
    for file in (folders / "pred").iterdir():
        file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(SheafStainError, match="none of 4 images could be read"):
        run(folders)


# --- the edges of the definitions ------------------------------------------------------------------------------------


def finite(report: Report) -> Iterator[str]:
    for result in report.results:
        if result.value is not None and math.isnan(result.value):
            yield result.key
        if result.interval is not None and not all(map(math.isfinite, result.interval)):
            yield result.key


def test_a_folder_against_itself(folders: Path):
    report = run(folders, pred="real")
    exact = {
        "psnr": math.inf,
        "ssim": 1,
        "dab-r": 1,
        "dab-kl": 0,
        "dab-jsd": 0,
        "dab-dice": 1,
        "dab-iou": 1,
        "miod": 0,
        "fod": 0,
    }
    for key, value in exact.items():
        result = report.result(key)
        assert result is not None and result.value == pytest.approx(value, abs=1e-6), key
    psnr = report.result("psnr")
    assert psnr is not None and psnr.infinite == tuple(f"field{i}" for i in range(4))
    assert not list(finite(report))
    for result in report.results:
        if "real" in result.sides and "pred" not in result.sides:
            assert result.sides["real"] == pytest.approx(result.value)


@pytest.mark.parametrize("grey", [255, 0, 128])
def test_constant_images(tmp_path: Path, grey: int):
    """White holds no DAB at all, so that masks, histograms and correlations meet their edge."""
    for i in range(3):
        save(tmp_path / "pred" / f"{i}.png", np.full((288, 304, 3), grey, np.uint8))
        save(tmp_path / "real" / f"{i}.png", tissue(i))
    report = run(tmp_path)
    assert not list(finite(report))
    for result in report.results:
        named = len(result.undefined) + len(result.infinite)
        assert result.n + named == 3, result.key
        assert result.value is not None or named == 3 or result.flags, result.key
        assert not named or result.undefined_reason, result.key
    assert report.result("dab-r").value == pytest.approx(0, abs=1e-6)  # type: ignore[union-attr]
    assert report.result("ts").value == 0  # type: ignore[union-attr]
    assert "NaN" not in report.to_text()


def test_neither_side_has_dab(tmp_path: Path):
    for side in ("pred", "real"):
        for i in range(3):
            save(tmp_path / side / f"{i}.png", np.full((288, 304, 3), 250 + i, np.uint8))
    report = run(tmp_path)
    assert not list(finite(report))
    for key in ("iod", "miod", "fod"):
        assert report.result(key).value == 0  # type: ignore[union-attr]
    for key in ("dab-dice", "dab-iou", "dab-p90-r"):
        result = report.result(key)
        assert result is not None
        assert result.value is not None or result.notes, f"{key} is neither defined nor explained"


def test_one_image_and_one_too_small_for_seams(tmp_path: Path):
    for side in ("pred", "real"):
        save(tmp_path / side / "a.png", tissue(1, Size(64, 64)))
    report = run(tmp_path)
    ts = report.result("ts")
    assert ts is not None and (ts.value, ts.n, ts.undefined) == (None, 0, ("a",))
    assert "no such line" in ts.undefined_reason
    ssim = report.result("ssim")
    assert ssim is not None and (ssim.std, ssim.interval, ssim.no_interval) == (None, None, "one image has none")
    r = report.result("dab-p90-r")
    assert r is not None and r.value is None and "fewer than three images" in r.flags[0]


# --- features --------------------------------------------------------------------------------------------------------


class Means:
    """An extractor with features that a hand can follow: the mean of each channel, and its square."""

    calls = 0

    def __init__(self, folder: Path | None, resizer: str) -> None:
        self.resizer = resizer

    def to(self, device: torch.device) -> Means:
        return self

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        type(self).calls += len(images)
        means = images.mean(dim=(2, 3))
        return torch.cat([means, means.square()], dim=1)


@pytest.fixture
def means(monkeypatch: pytest.MonkeyPatch) -> type[Means]:
    monkeypatch.setattr(distribution, "Inception", Means)
    monkeypatch.setattr(Means, "calls", 0)
    return Means


def test_distances_of_the_features_in_order(folders: Path, means: type[Means]):
    report = run(folders, metrics=("distribution",))
    sides = []
    for side in ("pred", "real"):
        features = distribution.Features()
        for i in range(4):
            path = folders / side / f"field{i}.{'tif' if side == 'real' and i % 2 else 'png'}"
            features.add(means(None, "x")(tensor(path)))
        sides.append(features)
    fid, kid = report.result("fid"), report.result("kid")
    assert fid is not None and fid.value == pytest.approx(float(distribution.fid(*sides)), rel=1e-4, abs=1e-8)
    assert kid is not None and kid.value == pytest.approx(1000 * float(distribution.kid(*sides)), rel=1e-4, abs=1e-6)
    assert fid.interval is None and "biases" in fid.no_interval
    assert "N is not above the 6 features" in fid.flags[0]
    subsets = report.result("kid-subsets")
    assert subsets is not None and subsets.std_of == "subsets"
    assert (subsets.details["subsets"], subsets.details["subset size"]) == (100, 2)


def test_features_are_kept_by_content_and_shared(folders: Path, means: type[Means]):
    first = run(folders, "first", ("fid",), features=folders / "shared")
    assert means.calls == 8
    assert run(folders, "first", ("fid",), features=folders / "shared").to_text() == first.to_text()
    assert means.calls == 8
    save(folders / "better" / "field0.png", tissue(20, Size(320, 272)))  # the pixels, and so the file, of real/field0
    for i in range(1, 4):
        save(folders / "better" / f"field{i}.png", tissue(40 + i))
    run(folders, "second", ("fid",), pred="better", features=folders / "shared")
    assert means.calls == 8 + 3, "the real images and the equal one were known"


def test_a_damaged_feature_file_is_named(folders: Path, means: type[Means]):
    run(folders, metrics=("fid",))
    file = next((folders / "out" / "features").rglob("*.npy"))
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(SheafStainError, match=rf"{file.name}: damaged"):
        run(folders, metrics=("fid",))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_sets_too_small_for_a_distance(tmp_path: Path, means: type[Means], n: int):
    for side, offset in (("pred", 0), ("real", 5)):
        for i in range(n):
            save(tmp_path / side / f"{i}.png", tissue(i + offset))
    report = run(tmp_path, metrics=("fid", "kid", "kid-subsets"))
    fid, subsets = report.result("fid"), report.result("kid-subsets")
    assert fid is not None and (fid.value is None) == (n < 2)
    assert subsets is not None and subsets.value is None and "needs 4 images" in subsets.flags[0]


def test_what_has_no_weights_is_left_out_with_the_reason(
    folders: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("SHEAFSTAIN_WEIGHTS", str(tmp_path / "nothing"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "nothing"))
    report = run(folders, metrics=("fid", "lpips", "dists", "psnr"))
    assert [result.key for result in report.results] == ["psnr"]
    assert [fault.name for fault in report.left_out] == ["FID", "LPIPS", "DISTS"]
    assert all(
        str(tmp_path / "nothing") in fault.reason or "sheafstain[score]" in fault.reason for fault in report.left_out
    )
    assert issubclass(MissingWeights, SheafStainError)


def test_real_backbones(tmp_path: Path, backbones: Path):
    for side, offset in (("pred", 0), ("real", 5)):
        for i in range(2):
            save(tmp_path / side / f"{i}.png", tissue(i + offset, Size(64, 80)))
    report = run(tmp_path, metrics=("lpips", "dists"), suite={"folder": backbones})
    assert not report.left_out
    pred, real = tensor(tmp_path / "pred/1.png"), tensor(tmp_path / "real/1.png")
    assert report.column("lpips")[1] == pytest.approx(float(fidelity.Lpips("alex", backbones)(pred, real)), rel=1e-4)
    assert report.column("dists")[1] == pytest.approx(float(fidelity.Dists(backbones)(pred, real)), rel=1e-4)
    lpips = report.result("lpips")
    assert lpips is not None and set(lpips.details["weights"]) == {"alexnet", "lpips-alex"}
    again = run(tmp_path, "again", ("lpips", "dists"), pred="real", suite={"folder": backbones})
    assert [result.value for result in again.results] == [pytest.approx(0, abs=1e-5)] * 2


# --- borders and slides ----------------------------------------------------------------------------------------------


def test_borders():
    size = Size(1024, 700)
    assert Borders.parse("multiples-of-256").of(size) == ((256, 512, 768), (256, 512))
    rows, _ = Borders.parse("lattice-192").of(size)
    assert rows == (192, 256, 384, 448, 576, 640, 768, 832)
    assert Borders.parse("384, 192,900").of(size) == ((192, 384, 900), (192, 384))
    for text in ("lattice-0", "lattice-300", "nonsense", "1,-2", "", "multiples-of-x"):
        with pytest.raises(UsageError, match="--borders is"):
            Borders.parse(text)


def write_slide(path: Path, pixels: np.ndarray, mpp: float = 0.5) -> Path:
    with open_writer(path, Size(*pixels.shape[:2]), Resolution(mpp), description={"stain": "HER2"}) as slide:
        slide.rows(pixels)
    return path


@pytest.fixture(scope="module")
def slides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1100×3100: three windows, of which the middle one is glass; 76 and 28 px are left over."""
    root = tmp_path_factory.mktemp("slides")
    for side, seed in (("pred", 1), ("real", 2)):
        pixels = np.full((1100, 3100, 3), 246, np.uint8)
        for x in (0, 2048):
            pixels[:1024, x : x + 1024] = tissue(seed + x, Size(1024, 1024))
        write_slide(root / f"{side}.tif", pixels)
    return root


def test_slides_are_scored_as_their_windows(slides: Path, tmp_path: Path):
    import tifffile

    listing = list_items(slides / "pred.tif", slides / "real.tif")
    report = run(tmp_path, metrics=("psnr", "ts", "miod"), listing=listing)
    assert [image.name for image in report.images] == ["y000000_x000000", "y000000_x002048"]
    assert "10%" in report.protocol["windows"]
    for side in ("pred", "real"):
        pixels = tifffile.imread(slides / f"{side}.tif")
        for image, x in zip(report.images, (0, 2048), strict=True):
            save(tmp_path / side / f"{image.name}.tif", pixels[:1024, x : x + 1024])
    folders = run(tmp_path, "folders", metrics=("psnr", "ts", "miod"))
    for a, b in zip(report.images, folders.images, strict=True):
        # Two libraries decode the JPEG tiles, which may round a value up or down.
        assert a.values == pytest.approx(b.values, rel=2e-3, abs=1e-4)


def test_borders_of_a_slide_run_through_its_windows(slides: Path):
    listing = list_items(slides / "pred.tif", slides / "real.tif")
    inside = Size(1024, 1024)
    lattice = Borders.parse("lattice-192")
    rows, columns = (seam.lattice_borders(length, window=256, stride=192) for length in (1100, 3100))
    found = lattice.lines(inside, listing.items[-1])
    assert found == (tuple(y for y in rows if 0 < y < 1024), tuple(x - 2048 for x in columns if 2048 < x < 3072))
    assert found != lattice.of(inside), "2048 is no multiple of 192"
    own = Borders.parse("multiples-of-256").lines(inside, listing.items[-1])
    assert own == ((256, 512, 768), (256, 512, 768))


def test_slides_that_do_not_match(slides: Path, tmp_path: Path):
    small = write_slide(tmp_path / "small.tif", np.full((1024, 1024, 3), 100, np.uint8))
    fine = write_slide(tmp_path / "fine.tif", np.full((1100, 3100, 3), 100, np.uint8), mpp=0.25)
    glass = write_slide(tmp_path / "glass.tif", np.full((1100, 3100, 3), 246, np.uint8))
    pred, real = slides / "pred.tif", slides / "real.tif"
    for one, other, said in (
        (small, real, "1024×1024 pixels, but"),
        (fine, real, "0.25 µm/px, but"),
        (pred, glass, "nothing to score"),
    ):
        with pytest.raises(SheafStainError, match=said):
            list_items(one, other)
    with pytest.raises(UsageError, match="--resize is for folders"):
        list_items(pred, real, resize=True)


def test_two_plain_images_are_one_window(folders: Path):
    listing = list_items(folders / "pred/field2.png", folders / "real/field2.png")
    (image,) = run(folders, metrics=("psnr",), listing=listing).images
    assert image.size == (288, 304)
    whole = run(folders, "folders", ("psnr",)).images[2]
    assert image.values == whole.values


def test_a_real_slide(real: Path, tmp_path: Path):
    slide = real / "slides" / "CMU-1-Small-Region.svs"
    report = run(tmp_path, metrics=("dab-r", "dab-p90"), listing=list_items(slide, slide))
    assert {image.size for image in report.images} == {(1024, 1024)}
    assert 1 <= len(report.images) <= 4
    assert report.result("dab-r").value == pytest.approx(1)  # type: ignore[union-attr]


def test_real_images_against_the_h_and_e(real: Path, tmp_path: Path):
    """BCI: the H&E scored as if it were the translation is far from the IHC, and the IHC is not far from itself."""
    bci = real / "bci"
    listing = list_items(bci / "HE" / "test", bci / "IHC" / "test")
    report = run(tmp_path, metrics=("dab-r", "ts", "fod"), listing=listing)
    rows = list(csv.DictReader(io.StringIO(report.to_csv())))
    assert len(rows) == 4 and all(row["ts"] and row["dab-r"] for row in rows)
    r = report.result("dab-r")
    assert r is not None and r.value is not None and -0.5 < r.value < 0.5
