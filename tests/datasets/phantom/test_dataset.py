"""Phantom data sets on disk: reproducible, resumable, in layouts that our own readers and checks accept."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sheafstain.datasets.check import check_dataset
from sheafstain.datasets.layouts import open_dataset
from sheafstain.datasets.phantom.dataset import is_drawn, pool, write_dataset
from sheafstain.datasets.phantom.phantom import Phantom
from sheafstain.datasets.phantom.plan import Plan
from sheafstain.errors import SheafStainError, UsageError
from sheafstain.slides.image import read_image
from sheafstain.window import Resolution, Size


def plan(layout="pairs", seed=1, train=2, val=1, markers=("HER2",), side=256, fields=2, truth=False) -> Plan:
    return Plan(layout, seed, train, val, markers, Size(side, side), Resolution(0.5), fields, truth)


def digest(root: Path) -> dict[str, str]:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_same_bytes_whatever_the_workers_and_an_interruption(tmp_path: Path) -> None:
    write_dataset(tmp_path / "one", plan(), workers=1)
    write_dataset(tmp_path / "two", plan(), workers=2)
    expected = digest(tmp_path / "one")
    assert digest(tmp_path / "two") == expected
    lost = next((tmp_path / "two" / "IHC" / "train").iterdir())
    lost.unlink()
    steps: list[int] = []
    assert write_dataset(tmp_path / "two", plan(), workers=1, advance=steps.append) == 1
    assert sum(steps) == 3
    assert digest(tmp_path / "two") == expected


def test_another_seed_draws_other_pairs(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_dataset(tmp_path / str(seed), plan(seed=seed, train=1, val=0), workers=1)
    one, two = (set(digest(tmp_path / str(seed)).values()) for seed in (1, 2))
    assert not one & two


@pytest.mark.parametrize(
    ("layout", "markers", "counts"),
    [
        ("pairs", ("ER",), {("IHC", "train"): 2, ("IHC", "val"): 1}),
        ("bci", ("HER2",), {("HER2", "train"): 2, ("HER2", "test"): 1}),
        (
            "mist",
            ("HER2", "Ki67"),
            {("HER2", "train"): 2, ("HER2", "val"): 1, ("Ki67", "train"): 2, ("Ki67", "val"): 1},
        ),
    ],
)
def test_layouts_are_read_and_found_whole(tmp_path: Path, layout, markers, counts) -> None:
    root = tmp_path / "set"
    write_dataset(root, plan(layout, markers=markers), workers=1)
    dataset = open_dataset(root)
    assert dataset.layout == layout
    assert {key: n for key, n in dataset.counts.items() if n} == counts
    report = check_dataset(dataset)
    assert [p for p in report.problems if p.severity != "note"] == []
    if layout == "bci":
        assert all(record.grade in ("0", "1+", "2+", "3+") for record in dataset.records)
    else:
        slides = {split: {r.slide for r in dataset.records if r.split == split} for split in ("train", "val")}
        assert all(slides.values()) and not slides["train"] & slides["val"]  # no specimen in two splits


@pytest.mark.parametrize("layout", ["pairs", "bci", "mist"])
def test_a_folder_of_images_is_known_to_be_drawn(tmp_path: Path, layout) -> None:
    write_dataset(tmp_path / "set", plan(layout, train=1, val=0), workers=1)
    (record,) = open_dataset(tmp_path / "set").records
    assert is_drawn(record.he.parent)
    (tmp_path / "real" / "HE" / "train").mkdir(parents=True)
    assert not is_drawn(tmp_path / "real" / "HE" / "train")
    (tmp_path / "real" / "manifest.json").write_text('{"items": ["somebody else\'s"]}')
    assert not is_drawn(tmp_path / "real" / "HE" / "train")


def test_the_files_hold_what_the_manifest_says(tmp_path: Path) -> None:
    the_plan = plan(truth=True, train=1, val=0)
    write_dataset(tmp_path / "set", the_plan, workers=1)
    manifest = json.loads((tmp_path / "set" / "manifest.json").read_text())
    (item,) = the_plan.items()
    (entry,) = manifest["items"]
    assert entry["id"] == item.name("pairs") and entry["slide"] == item.slide
    truth = tmp_path / "set" / "truth" / "HER2" / "train"
    drawn = Phantom(item.specimen).draw(item.window, ("he", "truth", "nuclei", "classes", "tissue", "dab"))
    np.testing.assert_array_equal(read_image(tmp_path / "set" / "HE" / "train" / f"{entry['id']}.png"), drawn["he"])
    np.testing.assert_array_equal(read_image(truth / "ihc" / f"{entry['id']}.png"), drawn["truth"])
    from PIL import Image

    labels = np.asarray(Image.open(truth / "nuclei" / f"{entry['id']}.png"))
    assert labels.dtype == np.uint16
    assert labels.max() == len(np.unique(drawn["nuclei"])) - 1
    np.testing.assert_array_equal(labels > 0, drawn["nuclei"] > 0)
    np.testing.assert_array_equal(np.asarray(Image.open(truth / "tissue" / f"{entry['id']}.png")), drawn["tissue"])
    np.testing.assert_allclose(np.load(truth / "dab" / f"{entry['id']}.npy"), drawn["dab"], rtol=2e-3, atol=1e-3)
    assert np.load(truth / "displacement" / f"{entry['id']}.npy").shape == (256, 256, 2)


def test_fields_hold_tissue_and_do_not_touch(tmp_path: Path) -> None:
    items = plan(train=6, val=0, fields=6).items()
    windows = [item.window for item in items]
    assert len(set(windows)) == 6
    assert not any(a.meets(b) for i, a in enumerate(windows) for b in windows[:i])
    for item in items[:2]:
        assert (Phantom(item.specimen).draw(item.window, ("tissue",))["tissue"] > 0).mean() > 0.4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": 0, "val": 0}, "at least one pair"),
        ({"side": 32}, "cannot be drawn"),
        ({"fields": 0}, "specimen has 1 to"),
        ({"markers": ("HER2", "ER")}, "holds one marker"),
        ({"layout": "bci", "markers": ("ER",)}, "bci is a HER2 set"),
    ],
)
def test_impossible_plans_are_refused(change, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan(**change)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(SheafStainError, match="not empty"):
        write_dataset(tmp_path / "mine", plan(), workers=1)
    write_dataset(tmp_path / "set", plan(train=1, val=0), workers=1)
    before = digest(tmp_path / "set")
    with pytest.raises(SheafStainError, match="another data set"):
        write_dataset(tmp_path / "set", plan(seed=2), workers=1)
    assert digest(tmp_path / "set") == before
    (tmp_path / "file").write_text("")
    with pytest.raises(SheafStainError, match="is a file"):
        write_dataset(tmp_path / "file", plan(), workers=1)


def test_a_killed_worker_is_told_in_a_sentence() -> None:
    with pytest.raises(SheafStainError, match="memory runs out"), pool(2, 2) as submit:
        submit(partial(os.kill, os.getpid(), 0)).result()  # a worker works
        submit(partial(os._exit, 9)).result()


@pytest.mark.parametrize("killer", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_when_the_command_is_stopped(tmp_path: Path, killer: int) -> None:
    """Ctrl-C on a terminal goes to every process of the group, a kill only to the command. Both end all of them."""
    # What runs in the background of a shell ignores SIGINT; a terminal's foreground, as here, does not.
    start = "import signal; signal.signal(2, signal.default_int_handler); from sheafstain.cli import main; main()"
    command = [sys.executable, "-c", start, "data", "phantom", str(tmp_path / "set"), "--train", "60"]
    with subprocess.Popen(
        [*command, "--size", "512x512", "--workers", "2"], start_new_session=True, stderr=subprocess.PIPE, text=True
    ) as running:
        deadline = time.monotonic() + 60
        while not list((tmp_path / "set").rglob("*.png")) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert list((tmp_path / "set").rglob("*.png")), "nothing was drawn"
        if killer == signal.SIGINT:
            os.killpg(running.pid, killer)
        else:
            running.kill()
        error = running.communicate(timeout=60)[1]
        assert running.returncode == (130 if killer == signal.SIGINT else -signal.SIGKILL)
        if killer == signal.SIGINT:
            assert error.splitlines()[-1] == "sheafstain: interrupted"
            assert "Traceback" not in error
        while time.monotonic() < deadline + 60:
            try:
                os.killpg(running.pid, 0)
            except ProcessLookupError:
                break
            time.sleep(0.1)
        else:
            pytest.fail("workers outlive the command")
    assert len(list((tmp_path / "set").rglob("*.png"))) < 120
