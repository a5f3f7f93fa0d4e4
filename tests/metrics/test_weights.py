"""Where the metrics' weights are looked for, and in which order."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sheafstain.metrics.weights import METRIC_WEIGHTS, MetricWeights, how_to_get, locate


@pytest.fixture(autouse=True)
def _nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SHEAFSTAIN_WEIGHTS", str(tmp_path / "ours"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))


def weights(name: str) -> MetricWeights:
    (found,) = [weights for weights in METRIC_WEIGHTS if weights.id == name]
    return found


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_our_folder_then_torch_hub(tmp_path: Path):
    fid = weights("fid-inception")
    assert locate(fid) is None
    theirs = put(tmp_path / "torch" / "hub" / "checkpoints" / "weights-inception-2015-12-05-6726825d.pth")
    assert locate(fid) == theirs
    ours = put(tmp_path / "ours" / "pt_inception-2015-12-05-6726825d.pth")
    assert locate(fid) == ours


def test_inside_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    carried = MetricWeights("x", "X", ("x.pth",), "MIT", packaged="a_metrics_package/models/x.pth", extra="score")
    assert locate(carried) is None
    put(tmp_path / "site" / "a_metrics_package" / "__init__.py").write_text("raise RuntimeError('imported')")
    file = put(tmp_path / "site" / "a_metrics_package" / "models" / "x.pth")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert locate(carried) == file
    assert "a_metrics_package" not in sys.modules


def test_the_real_backbones(backbones: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SHEAFSTAIN_WEIGHTS", str(backbones))
    for name in ("alexnet", "vgg16", "lpips-alex", "lpips-vgg", "dists"):
        found = locate(weights(name))
        assert found is not None, f"{name} is there under another name"
        assert backbones in found.parents


def test_each_missing_file_has_a_way_to_get_it(tmp_path: Path):
    assert len({weights.id for weights in METRIC_WEIGHTS}) == len(METRIC_WEIGHTS)
    for missing in METRIC_WEIGHTS:
        advice = how_to_get(missing)
        assert str(tmp_path / "ours") in advice or 'pip install "sheafstain[score]"' in advice
