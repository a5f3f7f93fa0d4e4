"""The shipped configurations hold the paper's numbers, and the ablation adds one component at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sheafstain.errors import UsageError
from sheafstain.methods.sheafstain import SheafStainSettings
from sheafstain.training.config import read_config, what_differs
from sheafstain.training.settings import as_flat, as_yaml

CONFIGS = Path(__file__).parents[2] / "configs"
ABLATION = sorted((CONFIGS / "ablation").glob("*.yaml"))
WEIGHTS = ("sheaf", "cocycle", "fourier", "dab", "stain_align")


def flat(name: str) -> dict[str, Any]:
    return as_flat(read_config(CONFIGS / name))


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_file_is_read(path: Path):
    assert read_config(path).output.startswith("out/")


@pytest.mark.parametrize("name", ["bci_her2", "mist_her2", "mist_er", "mist_pr", "mist_ki67"])
def test_the_papers_numbers(name: str):
    """Appendix "Training Procedure": λ and α, 200 + 200 epochs, 351–400; "Training and evaluation": lr, β, batch."""
    expected = {
        "method": "sheafstain",
        "settings.sb": 1,
        "settings.nce": 1,
        "settings.sheaf": 1,
        "settings.cocycle": 0.1,
        "settings.fourier": 0.5,
        "settings.dab": 0.1,
        "settings.stain_align": 1,
        "settings.alpha": 1,
        "settings.stain_align_from": 351,
        "schedule.constant": 200,
        "schedule.decay": 200,
        "optimiser.lr": 2e-4,
        "optimiser.betas": [0.5, 0.999],
        "batch": 192,
        "encoder.name": "prov-gigapath",
        "encoder.stride": 80,
        "data.window": 256,
    }
    found = flat(f"paper/{name}.yaml")
    assert {key: found[key] for key in expected} == expected
    assert read_config(CONFIGS / "paper" / f"{name}.yaml").settings == SheafStainSettings()


def test_the_papers_data_sets():
    stains = {name: (flat(f"paper/{name}.yaml")["data.layout"], flat(f"paper/{name}.yaml")["data.stain"])
              for name in ("bci_her2", "mist_her2", "mist_er", "mist_pr", "mist_ki67")}  # fmt: skip
    assert stains == {
        "bci_her2": ("bci", "HER2"),
        "mist_her2": ("mist", "HER2"),
        "mist_er": ("mist", "ER"),
        "mist_pr": ("mist", "PR"),
        "mist_ki67": ("mist", "Ki67"),
    }


def test_each_row_of_the_ablation_adds_one_component():
    assert len(ABLATION) == 7
    rows = [as_flat(read_config(path)) for path in ABLATION]
    active = [[name for name in WEIGHTS if row.get(f"settings.{name}", 0)] for row in rows]
    assert active == [[], [], *(list(WEIGHTS[:k]) for k in range(1, 6))]
    assert rows[0]["method"] == "unsb" and not rows[0]["settings.as_released"]
    assert all(row["settings.conditioning"] == "lattice" for row in rows[1:])
    shared = [key for key in rows[0] if not key.startswith("settings.") and key not in ("output", "method")]
    assert all(row[key] == rows[0][key] for row in rows for key in shared)


def test_the_last_row_is_the_method():
    differ = [
        key for key, value in flat("paper/bci_her2.yaml").items() if value != as_flat(read_config(ABLATION[-1]))[key]
    ]
    assert differ == ["output"]


def test_settings_belong_to_the_method():
    tiny = CONFIGS / "tiny.yaml"
    assert read_config(tiny, ["--settings.sheaf", "0.3"]).settings.sheaf == 0.3
    with pytest.raises(UsageError, match=r"settings.cycle"):
        read_config(tiny, ["--settings.cycle", "1"])
    with pytest.raises(UsageError, match="no method 'cut'; there are sheafstain"):
        read_config(tiny, ["--method", "cut"])


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (["--batch", "0"], "a batch holds one sample or more"),
        (["--data.window", "100"], "multiple of 16"),
        (["--data.mpp", "0"], "pixel size"),
        (["--optimiser.lr", "0"], "lr > 0"),
        (["--schedule.constant", "0", "--schedule.decay", "0"], "one epoch or more"),
        (["--watch.save", "0"], "at least 1"),
        (["--steps", "0"], "steps is 1 or more"),
        (["--seed", "-1"], "seed is from 0"),
    ],
)
def test_values_without_sense(argument: list[str], message: str):
    with pytest.raises(UsageError, match=message):
        read_config(CONFIGS / "tiny.yaml", argument)


def test_the_folder_of_a_run_is_a_configuration(tmp_path: Path):
    config = read_config(CONFIGS / "tiny.yaml", ["--batch", "6"])
    (tmp_path / "config.yaml").write_text(as_yaml(config))
    assert read_config(tmp_path) == config
    with pytest.raises(UsageError, match="not the folder of a run"):
        read_config(tmp_path.parent)


def test_what_may_change_between_two_starts():
    before = flat("tiny.yaml")
    free = ["--batch", "8", "--steps", "3", "-o", "elsewhere", "--engine.precision", "float32", "--watch.keep", "9"]
    assert what_differs(before, read_config(CONFIGS / "tiny.yaml", free)) == []
    changed = read_config(CONFIGS / "tiny.yaml", ["--settings.ngf", "16", "--optimiser.lr", "0.1"])
    assert what_differs(before, changed) == ["settings.ngf was 8, now 16", "optimiser.lr was 0.0002, now 0.1"]
