"""The making of the embedded generators: fair runs, in steps that stop and go on."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from sheafstain.training.config import read_config
from sheafstain.training.settings import as_flat

RECIPE = Path(__file__).parents[2] / "embedded"
SLEEPER = "import signal, time; signal.signal(15, lambda *_: path.touch() or exit(75)); time.sleep(60)"


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(RECIPE))
    return import_module("make")


def test_all_runs_see_the_same_windows_with_networks_of_one_size(make: ModuleType) -> None:
    """But for the marker, the method and its conditioning nothing differs between those that are compared."""
    flat = {
        run.name: as_flat(read_config(RECIPE / run.file, ("--data.stain", run.marker, *run.words))) for run in make.RUNS
    }
    assert set(make.COMPARED.values()) | set(make.SHIPPED) == set(flat)
    shared = flat["unsb"].keys() & flat["her2"].keys() - {"method", "output", "data.stain"}
    assert {"batch", "schedule.constant", "schedule.decay", "data.window", "settings.ngf", "seed"} <= shared
    for name, settings in flat.items():
        differ = {key for key in shared if settings[key] != flat["her2"][key]}
        differ -= {"encoder.name", "encoder.sections", "encoder.stride"}  # nothing to a method without conditioning
        assert differ <= {"settings.conditioning", "settings.as_released"}, name
    assert {flat[name]["data.stain"] for name in make.COMPARED.values()} == {"HER2"}
    assert {flat[name]["data.stain"] for name in make.SHIPPED} == {"HER2", "ER", "PR", "Ki67"}


def test_every_task_comes_after_what_it_needs(make: ModuleType, tmp_path: Path) -> None:
    before: set[str] = set()
    for task in make.tasks(tmp_path, 8, 2, 512, []):
        assert before.issuperset(task.after) and task.name not in before, task.name
        before.add(task.name)
    assert task.name == "table" and before >= {run.name for run in make.RUNS}


def test_when_the_time_is_over_what_runs_is_asked_to_save_and_end(make: ModuleType, tmp_path: Path) -> None:
    saves = f"import pathlib; path = pathlib.Path({str(tmp_path / 'saved')!r}); {SLEEPER}"
    todo = [make.Task("one", ("-c", saves)), make.Task("two", ("-c", ""), ("one",))]
    with pytest.raises(SystemExit, match="the same command goes on"):
        make.perform(todo, tmp_path, time.monotonic() + 2.0)
    assert (tmp_path / "saved").exists() and not (tmp_path / "logs" / "two.txt").exists()


def test_what_fails_is_named_and_only_what_needs_it_is_left_out(make: ModuleType, tmp_path: Path) -> None:
    todo = [
        make.Task("draw", ("-c", "")),
        make.Task("wrong", ("-c", "raise SystemExit('no pairs')"), ("draw",)),
        make.Task("after", ("-c", ""), ("wrong",)),
        make.Task("right", ("-c", "print('made')"), ("draw",)),
    ]
    with pytest.raises(SystemExit, match=r"what failed says why: \S*wrong\.txt$"):
        make.perform(todo, tmp_path, time.monotonic() + 60)
    logs = {path.stem: path.read_text().strip() for path in (tmp_path / "logs").iterdir()}
    assert logs == {"draw": "", "wrong": "no pairs", "right": "made"}


def test_what_ships_says_where_it_comes_from(make: ModuleType, tmp_path: Path) -> None:
    model = tmp_path / "run" / "model"
    model.mkdir(parents=True)
    for name in ("README.md", "config.json", "model.safetensors", "model.safetensors.sha256.json"):
        (model / name).write_text(f"{name}\n")
    for _ in range(2):
        make.collect(model, tmp_path / "weights")
    assert {path.name for path in (tmp_path / "weights").iterdir()} == {
        *("README.md", "config.json", "model.safetensors"),
    }
    assert (tmp_path / "weights" / "README.md").read_text() == "README.md\n" + make.MADE
