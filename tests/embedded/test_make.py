"""The making of the embedded generators: fair runs, in steps that stop and go on."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sheafstain.training.config import read_config
from sheafstain.training.settings import as_flat

RECIPE = Path(__file__).parents[2] / "embedded"
SLEEPER = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(75)); print(1, flush=True); time.sleep(60)"


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(RECIPE))
    return import_module("make")


def sleeping(making: Any) -> Any:
    """A command that waits for SIGTERM, started as ``one``."""
    making.start("one", "-c", SLEEPER)
    while not (making.work / "logs" / "one.txt").read_text():
        time.sleep(0.05)
    return making.running["one"]


def test_all_runs_see_the_same_windows_with_networks_of_one_size(make: ModuleType) -> None:
    """But for the marker, the method and its conditioning nothing differs between those that are compared."""
    flat = {run.name: as_flat(read_config(RECIPE / run.file, run.words)) for run in make.RUNS}
    assert set(make.COMPARED.values()) | set(make.SHIPPED) == set(flat)
    shared = flat["unsb"].keys() & flat["her2"].keys() - {"method", "output", "data.stain"}
    assert {"batch", "schedule.constant", "schedule.decay", "data.window", "settings.ngf", "seed"} <= shared
    for name, settings in flat.items():
        differ = {key for key in shared if settings[key] != flat["her2"][key]}
        differ -= {"encoder.name", "encoder.sections", "encoder.stride"}  # nothing to a method without conditioning
        assert differ <= {"settings.conditioning", "settings.as_released"}, name
    assert {flat[name]["data.stain"] for name in make.COMPARED.values()} == {"HER2"}
    assert {flat[name]["data.stain"] for name in make.SHIPPED} == {"HER2", "ER", "PR", "Ki67"}


def test_when_the_time_is_over_runs_are_asked_to_save_and_end(make: ModuleType, tmp_path: Path) -> None:
    making = make.Making(tmp_path, time.monotonic() + 2.0)
    process = sleeping(making)
    with pytest.raises(SystemExit, match="the same command goes on"):
        making.wait()
    assert process.returncode == 75


def test_a_run_that_fails_ends_the_others_and_its_log_is_named(make: ModuleType, tmp_path: Path) -> None:
    making = make.Making(tmp_path, time.monotonic() + 60)
    other = sleeping(making)
    making.start("two", "-c", "raise SystemExit('no pairs')")
    with pytest.raises(SystemExit, match=r"two failed: .*two\.txt says why"):
        making.wait(1)
    assert other.returncode == 75 and "no pairs" in (tmp_path / "logs" / "two.txt").read_text()


def test_what_is_trained_is_not_trained_again(
    make: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(make.Making, "start", lambda self, name, *words: started.append(name))
    for name in ("her2", "er"):
        (tmp_path / name / "model").mkdir(parents=True)
        (tmp_path / name / "model" / "config.json").touch()
    make.Making(tmp_path, float("inf")).train([])
    assert started == [run.name for run in make.RUNS if run.name not in ("her2", "er")]
