"""The log and the summary against NumPy over all tokens, and the paper's tables against the paper's text."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sheafstain.errors import SheafStainError
from sheafstain.sheaf.audit import DIRECTIONS, STRIDES, AuditImage, ImageAudit, Protocol
from sheafstain.sheaf.audit_log import AuditLog
from sheafstain.sheaf.audit_report import HEADINGS, PAPER_COSINE, PAPER_POSITIONS, AuditSummary
from sheafstain.window import Size

FAST = Protocol(strides=(32, 80))
POSITIONS = {16: (12, 9), 14: (14, 10)}  # along the overlap, at the two strides


def encoder(**changes: object) -> SimpleNamespace:
    """What a log asks of an encoder."""
    given = {"id": "test", "weights_hash": "0" * 64, "dtype": torch.float32, "pitch": 16}
    return SimpleNamespace(**(given | changes))


def open_log(folder: Path, protocol: Protocol = FAST, **changes: object) -> AuditLog:
    return AuditLog(folder, encoder(**changes), protocol)  # type: ignore[arg-type]


@pytest.fixture
def images(tmp_path: Path) -> list[AuditImage]:
    """Two pairs, H&E before HER2."""
    found = []
    for i in range(2):
        for stain in ("H&E", "HER2"):
            path = tmp_path / f"{i}-{stain[-1]}.png"
            path.write_bytes(b"stands for an image")
            found.append(AuditImage(f"test/HER2/{i}", stain, path))
    return found


def tokens_of(image: AuditImage, pitch: int = 16) -> list[list[np.ndarray]]:
    """Cosines [pairs, rows, positions] by stride and direction: an inverted U, lower for the longer stride."""
    draw = np.random.default_rng(list(f"{image.stain} {image.id}".encode()))
    made = []
    for s, positions in enumerate(POSITIONS[pitch]):
        shape = 1 - 0.1 * (s + 1) - 0.05 * np.linspace(-1, 1, positions) ** 2 - 0.02 * (image.stain == "HER2")
        made.append([shape - 0.01 * d - draw.random((3 + d, 14, positions)) / 50 for d in range(4)])
    return made


def measured(image: AuditImage, *, heat: bool = False, pitch: int = 16) -> ImageAudit:
    cosines = tokens_of(image, pitch)

    def table(function: object) -> np.ndarray:
        return np.array([[function(values) for values in row] for row in cosines])  # type: ignore[operator]

    profile, counts = np.zeros((2, 4, 224 // pitch)), np.zeros((2, 4, 224 // pitch), np.int64)
    for s, row in enumerate(cosines):
        for d, values in enumerate(row):
            profile[s, d, : values.shape[2]] = values.sum((0, 1))
            counts[s, d, : values.shape[2]] = values.shape[0] * values.shape[1]
    return ImageAudit(
        image=image,
        size=Size(320, 336),
        tokens=table(np.size),
        cosine=table(np.sum),
        squares=table(lambda values: ((1 - values) ** 2).sum()),
        distance=table(lambda values: (20 * (1 - values)).sum()),
        profile_tokens=counts,
        profile=profile,
        unrelated=0.4,
        locality=0.0,
        heat=np.linspace(0, 1, 20 * 21, dtype=np.float32).reshape(20, 21) if heat else None,
    )


def run(log: AuditLog, images: list[AuditImage]) -> list[AuditImage]:
    """Measure what is not finished; the first image also has a map."""
    done = log.finished(images, images[:1])
    waiting = [image for image in images if image not in done]
    for image in waiting:
        log.add(measured(image, heat=image in images[:1]))
    return waiting


# -- the log -----------------------------------------------------------------------------------------------------------


def test_a_stopped_run_goes_on_and_ends_with_the_same_summary(images: list[AuditImage], tmp_path: Path) -> None:
    whole = open_log(tmp_path / "whole")
    assert run(whole, images) == images
    parts = open_log(tmp_path / "parts")
    run(parts, images[:1])
    with parts.path.open("a") as file:
        file.write('{"id":"1","stain":"H&E","toke')  # killed while writing
    again = open_log(tmp_path / "parts")
    assert run(again, images) == images[1:]
    assert run(again, images) == []
    assert AuditSummary.of(again, images).as_json() == AuditSummary.of(whole, images).as_json()
    assert (tmp_path / "parts" / "heat" / "H_E-test_HER2_0.npz").is_file()


def test_a_changed_image_and_a_lost_map_are_measured_again(images: list[AuditImage], tmp_path: Path) -> None:
    log = open_log(tmp_path / "out")
    run(log, images)
    before = AuditSummary.of(log, images).as_json()
    images[3].path.write_bytes(b"another image")
    log.heat_file(images[0]).unlink()
    assert run(log, images) == [images[0], images[3]]
    assert AuditSummary.of(log, images).as_json() == before  # and count once


def test_only_the_images_asked_for_count(images: list[AuditImage], tmp_path: Path) -> None:
    log = open_log(tmp_path / "out")
    run(log, images)
    summary = AuditSummary.of(log, images[:3])
    assert {stain: data.images for stain, data in summary.stains.items()} == {"H&E": 2, "HER2": 1}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"protocol": Protocol(strides=(32, 96))}, r"strides was \[32, 80\], now \[32, 96\]"),
        ({"protocol": Protocol(strides=(32, 80), pairs=3)}, "pairs was None, now 3"),
        ({"id": "other"}, "encoder was test, now other"),
        ({"weights_hash": "f" * 64}, "weights was 000000000000…, now ffffffffffff…"),
        ({"dtype": torch.bfloat16}, "precision was float32, now bfloat16"),
    ],
)
def test_another_audit_does_not_mix_into_the_log(tmp_path: Path, change: dict[str, object], said: str) -> None:
    open_log(tmp_path)
    with pytest.raises(SheafStainError, match=rf"of another audit \({said}.*choose another output folder"):
        open_log(tmp_path, **change)  # type: ignore[arg-type]


def test_a_file_that_is_no_log_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "images.jsonl").write_text("my own notes\n")
    with pytest.raises(SheafStainError, match="not the log of an audit"):
        open_log(tmp_path)
    assert (tmp_path / "images.jsonl").read_text() == "my own notes\n"


@settings(deadline=None)
@given(st.text(min_size=1, max_size=20))
def test_any_id_makes_a_file_name(name: str) -> None:
    log = AuditLog.__new__(AuditLog)
    log.folder = Path("out")
    assert log.heat_file(AuditImage(name, "H&E", Path("x"))).parent == Path("out/heat")


# -- the summary -------------------------------------------------------------------------------------------------------


def test_the_summary_pools_all_tokens(images: list[AuditImage], tmp_path: Path) -> None:
    log = open_log(tmp_path / "out")
    run(log, images)
    summary = AuditSummary.of(log, images)
    assert list(summary.stains) == ["H&E", "HER2"]
    for stain, data in summary.stains.items():
        both = [tokens_of(image) for image in images if image.stain == stain]
        for s in range(2):
            for d in range(4):
                values = np.concatenate([cosines[s][d] for cosines in both])
                assert data.cosine[s, d] == pytest.approx(values.mean(), rel=1e-7)
                assert data.cosine_std[s, d] == pytest.approx(values.std(), rel=1e-5)
                means = [cosines[s][d].mean() for cosines in both]
                assert data.cosine_image_std[s, d] == pytest.approx(np.std(means, ddof=1), rel=1e-3)
                assert data.distance[s, d] == pytest.approx(20 * (1 - values).mean(), rel=1e-6)
                along = values.mean((0, 1))
                np.testing.assert_allclose(data.profile(s, d), along, rtol=1e-7)
                np.testing.assert_allclose(data.edges(s, d), (along[0], along[1:-1].max(), along[-1]), rtol=1e-7)
                assert data.edges(s, d)[1] > max(along[0], along[-1])
    (gap,) = summary.gaps
    difference = np.abs(summary.stains["HER2"].cosine - summary.stains["H&E"].cosine)
    assert (gap.largest, gap.mean) == pytest.approx((difference.max(), difference.mean()))
    s, d = np.argwhere(difference == difference.max())[0]
    assert gap.stride == (32, 80)[s]
    assert gap.direction == ("horizontal", "vertical", "diagonal_down", "diagonal_up")[d]


def test_one_image_has_no_spread_over_images(images: list[AuditImage], tmp_path: Path) -> None:
    log = open_log(tmp_path / "out")
    run(log, images[:1])
    summary = AuditSummary.of(log, images[:1])
    assert np.isnan(summary.stains["H&E"].cosine_image_std).all()
    assert {row["cosine_std_images"] for row in summary.records()} == {None}
    assert summary.gaps == []


def test_the_files_hold_the_same_numbers(images: list[AuditImage], tmp_path: Path) -> None:
    log = open_log(tmp_path / "out")
    run(log, images)
    summary = AuditSummary.of(log, images)
    table, data, text = (path.read_text() for path in summary.write(tmp_path / "out"))
    rows = list(csv.DictReader(table.splitlines()))
    assert len(rows) == 2 * 2 * 4
    assert [float(row["cosine"]) for row in rows[:4]] == pytest.approx(summary.stains["H&E"].cosine[0], abs=1e-6)
    assert rows[8]["paper_gigapath_cosine"] == "0.91"  # IHC, stride 32, horizontal
    parsed = json.loads(data)
    assert parsed["protocol"]["strides"] == [32, 80]
    assert parsed["stains"]["HER2"]["locality"] == 0
    assert [row["cosine"] for row in parsed["overlap"]] == [float(row["cosine"]) for row in rows]
    cell = f"{summary.stains['HER2'].cosine[1, 3]:.3f} (0.702)"  # IHC, stride 80, diagonal up
    line = next(line for line in text.splitlines() if line.startswith("| 80 | 64.3% |"))
    assert line.endswith(f"{cell} |")
    left, middle, right = summary.stains["H&E"].edges(1, 1)
    assert f"| 80 | Vert. | 9 | {left:.3f} (0.747) | {middle:.3f} (0.870) | {right:.3f} (0.743) |" in text


def test_a_model_of_pitch_14_shows_the_stride_it_was_measured_at(images: list[AuditImage], tmp_path: Path) -> None:
    log = open_log(tmp_path / "out", pitch=14)
    log.add(measured(images[0], pitch=14))
    text = AuditSummary.of(log, images).as_markdown()
    assert "| 32 → 28 | 87.5% |" in text and "| 80 → 84 | Horiz. | 10 |" in text


def test_the_papers_tables_say_what_its_text_says() -> None:
    """The text beside the tables gives figures of its own; a slip in copying would break one of them."""
    he, ihc = (np.array([PAPER_COSINE[stride][k] for stride in STRIDES]) for k in (0, 1))
    difference = np.abs(he - ihc)
    # The text: at most 0.017, at stride 112 ↗; mean 0.011. The printed values give 0.016 there, and a mean of 0.012.
    assert difference.max() == pytest.approx(0.017, abs=1.1e-3) and difference.mean() == pytest.approx(0.012, abs=5e-4)
    assert difference[STRIDES.index(112), 3] == difference.max()
    assert max(np.abs(t[:, 0] - t[:, 1]).max() for t in (he, ihc)) <= 0.0081
    assert max(np.abs(t[:, 2] - t[:, 3]).max() for t in (he, ihc)) <= 0.0041
    assert (np.diff(he, axis=0) < 0).all() and (np.diff(ihc, axis=0) < 0).all()
    for stride, rise in ((80, 0.13), (160, 0.08)):
        for stain in PAPER_POSITIONS[stride]:
            assert np.mean([m - (a + b) / 2 for a, m, b in stain[:2]]) == pytest.approx(rise, abs=0.01)
    for stride in (80, 160):
        for k, stain in enumerate(PAPER_POSITIONS[stride]):
            for d, (left, middle, right) in enumerate(stain):
                assert min(left, right) < PAPER_COSINE[stride][k][d] < middle


def test_figures_are_drawn(images: list[AuditImage], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from sheafstain.sheaf.audit_figures import draw_all

    log = open_log(tmp_path / "out")
    run(log, images)
    pixels = np.random.default_rng(0).integers(0, 256, (320, 336, 3), np.uint8)
    maps = {"H&E": (pixels, np.load(log.heat_file(images[0]))["heat"])}
    paths = draw_all(AuditSummary.of(log, images), maps, tmp_path / "out")
    assert [path.name for path in paths] == ["cosine_against_stride.png", "inverted_u.png", "defect.png"]
    for path in paths:
        with Image.open(path) as drawn:
            assert np.asarray(drawn.convert("L")).std() > 5
    assert not list((tmp_path / "out").glob(".*"))


def test_headings_match_directions() -> None:
    assert len(HEADINGS) == len(DIRECTIONS)
