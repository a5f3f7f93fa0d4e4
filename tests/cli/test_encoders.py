"""``sheafstain encoders`` as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sheafstain import hub
from sheafstain.cli.console import console
from sheafstain.cli.encoders import encoders
from sheafstain.errors import SheafStainError, UsageError
from sheafstain.hub import content_hash, hash_of
from sheafstain.sheaf.registry import list_encoders


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(hub, "shipped_folder", lambda: tmp_path / "shipped")
    monkeypatch.setenv("SHEAFSTAIN_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "json", True)


def test_the_table_has_a_row_for_each(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "weights" / "uni2-h").mkdir(parents=True)
    (tmp_path / "weights" / "uni2-h" / "model.safetensors").write_bytes(b"")
    encoders()
    out = capsys.readouterr().out
    for entry in list_encoders():
        (line,) = [line for line in out.splitlines() if line.split()[:1] == [entry.id]]
        assert f" {entry.width} " in line and entry.licence in line
    (line,) = [line for line in out.splitlines() if "uni2-h" in line and "1536" in line]
    assert line.split()[-2:] == ["weights", "folder"]
    assert sum(line.split()[-1:] == ["no"] for line in out.splitlines()) == len(list_encoders()) - 3
    encoders("uni2-h")
    assert str(tmp_path / "weights" / "uni2-h" / "model.safetensors") in capsys.readouterr().out.replace("\n", "")


def test_machines_get_one_object_each(capsys: pytest.CaptureFixture[str], machine: None) -> None:
    encoders()
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["id"] for row in rows] == [entry.id for entry in list_encoders()]
    by_id = {row["id"]: row for row in rows}
    assert by_id["virchow2"]["prefix"] == 5 and by_id["dinov2-small"]["mpp"] is None
    assert by_id["prov-gigapath"]["here"] is None and "accept the terms" in by_id["prov-gigapath"]["how_to_get"]
    assert by_id["random-tiny"]["here"] == "drawn from a seed"
    assert by_id["phantom-small"]["here"] is None and "install it again" in by_id["phantom-small"]["how_to_get"]


def test_what_ships_with_the_package_is_listed_as_such(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "shipped" / "phantom-small" / "model.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"")
    encoders()
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["phantom-small"]]
    assert line.split()[-2:] == ["open", "shipped"]
    encoders("phantom-small")
    out = capsys.readouterr().out
    assert str(file) in out.replace("\n", "") and "synthetic tissue only" in " ".join(out.split())
    with pytest.raises(UsageError, match="part of SheafStain; there is nothing to download"):
        encoders("phantom-small", download=True)


def test_listing_needs_no_torch() -> None:
    """``sheafstain encoders`` and ``doctor`` answer at once."""
    code = (
        "import sys, sheafstain.hub, sheafstain.cli.encoders as e\n"
        "import importlib.util as u\n"
        # The registry is loaded by itself: its package may import more.
        "s = u.spec_from_file_location('registry', sys.argv[1]); m = u.module_from_spec(s)\n"
        "sys.modules['registry'] = m; s.loader.exec_module(m)\n"
        "[m.weights_of(entry) for entry in m.list_encoders()]\n"
        "print(sorted({'torch', 'timm', 'numpy', 'safetensors'} & set(sys.modules)))\n"
    )
    registry = Path(sys.modules["sheafstain.sheaf.registry"].__file__ or "")
    done = subprocess.run([sys.executable, "-c", code, str(registry)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_one_encoder_says_how_to_get_it(capsys: pytest.CaptureFixture[str]) -> None:
    encoders("h-optimus-1")
    out = " ".join(capsys.readouterr().out.split())
    assert "16×16 of width 1536" in out and "0.707223" in out
    assert "sheafstain encoders h-optimus-1 --download" in out and "huggingface.co/bioptimus/H-optimus-1" in out


def test_a_download_that_cannot_be_says_what_to_do() -> None:
    with pytest.raises(SheafStainError, match=r"cannot be reached.*fetch model\.safetensors from .*phikon-v2"):
        encoders("phikon-v2", download=True)


def test_a_pickle_is_converted_beside_itself(capsys: pytest.CaptureFixture[str], tmp_path: Path, machine: None) -> None:
    state = {"a.weight": torch.arange(6.0).reshape(2, 3)}
    torch.save(state, tmp_path / "some.pth")
    encoders(convert=tmp_path / "some.pth")
    assert content_hash(tmp_path / "some.safetensors") == hash_of(state)
    assert json.loads(capsys.readouterr().out)["target"] == str(tmp_path / "some.safetensors")
    encoders(convert=tmp_path / "some.pth", output=tmp_path / "other.safetensors")
    assert content_hash(tmp_path / "other.safetensors") == hash_of(state)


def test_a_pickle_that_does_not_fit_the_named_encoder_is_refused(tmp_path: Path) -> None:
    torch.save({"a.weight": torch.ones(2)}, tmp_path / "some.pth")
    with pytest.raises(SheafStainError, match=r"some\.pth: not the weights of this model"):
        encoders("dinov2-small", convert=tmp_path / "some.pth")
    assert not list((tmp_path / "weights").rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"download": True}, "needs the name"),
        ({"name": "nonesuch"}, "no encoder is called 'nonesuch'"),
        ({"name": "uni", "download": True, "convert": Path("x")}, "give one of them"),
        ({"output": Path("x")}, "--output says where --convert writes"),
    ],
)
def test_wrong_use(arguments: dict[str, object], said: str) -> None:
    name = arguments.pop("name", None)
    with pytest.raises(UsageError, match=said):
        encoders(name, **arguments)  # type: ignore[arg-type]
