"""Where the metrics' weights are looked for, and in which order."""

from __future__ import annotations

import hashlib
import pickle
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sheafstain.errors import SheafStainError
from sheafstain.hub import hash_of
from sheafstain.metrics.weights import METRIC_WEIGHTS, MetricWeights, MissingWeights, by_id, how_to_get, load, locate


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
    stated = put(tmp_path / "stated" / "fid-inception.safetensors")
    assert locate(fid, tmp_path / "stated") == stated
    assert locate(fid, tmp_path / "empty") == ours


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


SHAPES = {"alpha": (1, 2), "beta": (3,)}


def entry(**known: str) -> MetricWeights:
    return MetricWeights("x", "X", ("x.safetensors", "x.pth"), "MIT", url="https://example.org/x.pth", **known)


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    return {name: torch.rand(shape) for name, shape in SHAPES.items()}


def test_only_what_is_wanted_is_loaded(tmp_path: Path, tensors: dict[str, torch.Tensor]):
    save_file(tensors | {"classifier": torch.rand(9)}, tmp_path / "x.safetensors")
    loaded = load(entry(content=hash_of(tensors)), SHAPES, tmp_path)
    assert loaded.keys() == SHAPES.keys() and all(torch.equal(loaded[name], tensors[name]) for name in SHAPES)


def test_other_values_under_that_name_are_refused(tmp_path: Path, tensors: dict[str, torch.Tensor]):
    save_file(tensors, tmp_path / "x.safetensors")
    with pytest.raises(SheafStainError, match=r"x\.safetensors: other values than the published x\.pth.*fetch https"):
        load(entry(content="0" * 64), SHAPES, tmp_path)
    with pytest.raises(SheafStainError, match=r"not the weights.*1 misshapen \(beta is 3, expected 4\)"):
        load(entry(), SHAPES | {"beta": (4,)}, tmp_path)
    (tmp_path / "x.safetensors").write_bytes(b"\0" * 5)
    with pytest.raises(SheafStainError, match="not a whole safetensors file"):
        load(entry(), SHAPES, tmp_path)


def test_only_the_published_pickle_is_opened(tmp_path: Path, tensors: dict[str, torch.Tensor]):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    file = tmp_path / "x.pth"
    torch.save(tensors, file)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    assert torch.equal(load(entry(sha256=sha256), SHAPES, tmp_path)["alpha"], tensors["alpha"])
    for published in ({}, {"sha256": "0" * 64}):
        with pytest.raises(SheafStainError, match=rf"begins with {sha256[:8]}\), so it is not opened; fetch"):
            load(entry(**published), SHAPES, tmp_path)
    torch.save(tensors | {"alpha": Trap()}, file)
    with pytest.raises(SheafStainError, match="so it is not opened"):
        load(entry(sha256=sha256), SHAPES, tmp_path)
    with pytest.raises(pickle.UnpicklingError):  # even if its hash were known
        load(entry(sha256=hashlib.sha256(file.read_bytes()).hexdigest()), SHAPES, tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_missing_files_are_named_with_where_they_were_looked_for(tmp_path: Path):
    with pytest.raises(MissingWeights) as caught:
        load(entry(), SHAPES, tmp_path / "stated")
    message = str(caught.value)
    assert message.startswith(f"X: x.pth is not in {tmp_path / 'stated'}, {tmp_path / 'ours'}, {tmp_path / 'torch'}")
    assert message.endswith(f"fetch https://example.org/x.pth into {tmp_path / 'ours'}")


def test_the_real_files_are_the_published_ones(backbones: Path):
    for name in ("lpips-alex", "lpips-vgg", "dists"):
        file = locate(by_id(name), backbones)
        assert file is not None and hashlib.sha256(file.read_bytes()).hexdigest() == by_id(name).sha256
    heads = {"alpha": (1, 1475, 1, 1), "beta": (1, 1475, 1, 1)}
    assert hash_of(load(by_id("dists"), heads, backbones)) == by_id("dists").content
    widths = {"lpips-alex": (64, 192, 384, 256, 256), "lpips-vgg": (64, 128, 256, 512, 512)}
    for name, of_stages in widths.items():
        lines = {f"lin{i}.model.1.weight": (1, width, 1, 1) for i, width in enumerate(of_stages)}
        assert hash_of(load(by_id(name), lines, backbones)) == by_id(name).content
