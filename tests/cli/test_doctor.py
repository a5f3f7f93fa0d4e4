"""The doctor finds what is there, says how to get what is not, and fails only on what is essential."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest
import torch

from sheafstain.cli import doctor as module
from sheafstain.cli.console import console
from sheafstain.cli.doctor import doctor
from sheafstain.errors import SheafStainError


@pytest.fixture(autouse=True)
def _an_empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No weights but those a test puts there."""
    for variable, folder in (("SHEAFSTAIN_WEIGHTS", "weights"), ("TORCH_HOME", "torch"), ("HF_HUB_CACHE", "hub")):
        monkeypatch.setenv(variable, str(tmp_path / folder))
    monkeypatch.setattr(console, "json", True)


def findings(capsys: pytest.CaptureFixture[str]) -> dict[str, dict]:
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events[-1]["event"] == "doctor"
    return {event["name"]: event for event in events[:-1]}


def test_what_this_environment_has(capsys: pytest.CaptureFixture[str]):
    doctor()
    found = findings(capsys)
    assert found["Python"]["text"].startswith(platform.python_version())
    assert found["torch"]["text"].startswith(torch.__version__)
    for essential in ("Python", "torch", "JPEG", "LZW", "deflate", "JPEG 2000", "OpenSlide", "tifffile"):
        assert found[essential]["state"] == "ok", found[essential]
    assert found["plots"]["state"] == "ok", "the development environment has matplotlib"
    assert {"plots", "score", "zarr", "view", "cohort", "tensorboard"} <= found.keys()


def test_missing_weights_come_with_the_way_to_get_them(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    file = tmp_path / "torch" / "hub" / "checkpoints" / "vgg16-397923af.pth"
    file.parent.mkdir(parents=True)
    file.touch()
    doctor()
    found = findings(capsys)
    assert found["vgg16"]["state"] == "ok"
    assert str(file) in found["vgg16"]["text"]
    assert found["fid-inception"]["state"] == "missing"
    assert "6726825d.pth" in found["fid-inception"]["advice"]
    assert found["prov-gigapath"]["state"] == "missing"
    assert "huggingface.co/prov-gigapath" in found["prov-gigapath"]["advice"]
    for finding in found.values():
        if finding["state"] == "missing" and finding["name"] != "accelerator":
            assert finding["advice"], f"{finding['name']} is missing: what then?"


def test_something_essential_is_broken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def unloadable() -> str:
        raise OSError("libopenslide.so.1: cannot open shared object file")

    monkeypatch.setattr(module, "_openslide", unloadable)
    with pytest.raises(SheafStainError, match=r"OpenSlide .*cannot open shared object") as caught:
        doctor()
    assert caught.value.exit_code == 1
    assert findings(capsys)["OpenSlide"]["state"] == "broken"


def test_a_codec_that_changes_the_picture_is_found_out(monkeypatch: pytest.MonkeyPatch):
    import imagecodecs

    decode = imagecodecs.lzw_decode
    monkeypatch.setattr(imagecodecs, "lzw_decode", lambda data: bytes([decode(data)[0] ^ 1]) + decode(data)[1:])
    found = {finding.name: finding for finding in module._codecs("Codecs")}
    assert found["LZW"].state == "broken"
    assert "changed by 1" in found["LZW"].text
    assert found["deflate"].state == "ok"


def test_for_people(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(console, "json", False)
    doctor()
    said = capsys.readouterr().out
    assert "✓ OpenSlide" in said
    assert "– fid-inception" in said
    assert said.splitlines()[-1] == "Nothing essential is missing."
