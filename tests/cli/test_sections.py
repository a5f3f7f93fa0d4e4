"""``sheafstain sections`` as a user meets it: what it writes, how it goes on, how it fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from sheafstain.cli import main
from sheafstain.sheaf.cache import CacheKey, SectionCache, image_hash
from sheafstain.sheaf.cover import cut
from sheafstain.sheaf.crops import lattice
from sheafstain.sheaf.encoders import Encoder, load_encoder
from sheafstain.sheaf.section import Section
from sheafstain.slides.image import read_image, write_image
from sheafstain.window import Size, Window

pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked")  # the command line is what is tested


def sheafstain(*arguments: str | Path) -> int:
    """Run the command line in this process; returns the exit code."""
    before, sys.argv = sys.argv, ["sheafstain", *map(str, arguments)]
    try:
        with pytest.raises(SystemExit) as caught:
            main()
    finally:
        sys.argv = before
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three pairs of images that are no multiple of anything."""
    rng = np.random.default_rng(0)
    for k, shape in enumerate([(250, 300), (224, 224), (100, 310)]):
        for side in ("HE", "IHC"):
            (tmp_path / "data" / side).mkdir(parents=True, exist_ok=True)
            write_image(tmp_path / "data" / side / f"{k}.png", rng.integers(0, 256, (*shape, 3), dtype=np.uint8))
    return tmp_path / "data"


@pytest.fixture
def encoder() -> Encoder:
    return load_encoder("random-tiny", device="cpu")


def run(data: Path, out: Path, *more: str) -> int:
    return sheafstain("sections", data, "--encoder", "random-tiny", "--device", "cpu", "-o", out, *more)


def written(capsys: pytest.CaptureFixture[str]) -> tuple[int, int]:
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (last,) = [event for event in events if event["event"] == "sections"]
    return last["written"], last["present"]


def test_what_is_written_is_the_section_of_each_image(data: Path, tmp_path: Path, encoder: Encoder):
    assert run(data, tmp_path / "out", "--stride", "112") == 0
    cache = SectionCache.under(tmp_path / "out", CacheKey.of(encoder, 112))
    for k in range(3):
        path = data / "HE" / f"{k}.png"
        image = read_image(path)
        crops = list(lattice(Size(*image.shape[:2]), 112))
        (tokens,) = encoder.encode([np.stack([cut(image, c) for c in crops])])
        expected = Section.of(crops, tokens.patch, tokens.cls, encoder.pitch)
        stored = cache.open(f"all/IHC/{k}", image_hash(path))
        window = Window(0, 16, 256, 256)
        assert torch.allclose(stored.restrict(window).M, expected.restrict(window).M, atol=5e-3)
        assert torch.allclose(stored.restrict(window).c_n, expected.restrict(window).c_n, atol=5e-3)


def test_a_run_goes_on_where_it_was(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "out"
    assert run(data, out, "--json") == 0
    assert written(capsys) == (3, 0)
    assert run(data, out, "--json") == 0
    assert written(capsys) == (0, 3)
    files = sorted(out.rglob("*.safetensors"))
    assert len(files) == 3
    files[0].unlink()
    write_image(data / "HE" / "1.png", np.zeros((260, 260, 3), np.uint8))  # another image under the old name
    assert run(data, out, "--json") == 0
    assert written(capsys) == (2, 1)
    content = bytearray(files[2].read_bytes())
    content[-9] ^= 1
    files[2].write_bytes(content)
    assert run(data, out, "--json", "--verify") == 0
    assert written(capsys) == (1, 2)


def test_an_interrupted_run_keeps_what_it_had(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    encode = Encoder.encode

    def interrupted(self: Encoder, crops: Iterable[np.ndarray]):
        for i, tokens in enumerate(encode(self, crops)):
            if i == 2:  # lattice rows: the first image has two, the second one
                raise KeyboardInterrupt
            yield tokens

    monkeypatch.setattr(Encoder, "encode", interrupted)
    assert run(data, tmp_path / "out", "--json", "--batch", "1") == 130
    assert len(list((tmp_path / "out").rglob("*.safetensors"))) == 1
    assert not list((tmp_path / "out").rglob("*.part"))
    monkeypatch.undo()
    capsys.readouterr()
    assert run(data, tmp_path / "out", "--json") == 0
    assert written(capsys) == (2, 1)


def test_a_broken_image_is_named_and_the_others_are_kept(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (data / "HE" / "2.png").write_bytes((data / "HE" / "2.png").read_bytes()[:500])
    assert run(data, tmp_path / "out", "--batch", "1") == 1
    assert "2.png" in capsys.readouterr().err.splitlines()[-1]
    assert len(list((tmp_path / "out").rglob("*.safetensors"))) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stride", "100"], "multiple of 16"),
        (["--stride", "240"], "multiple of 16"),
        (["--split", "val"], "no pair of that split"),
        (["--layout", "mist"], "data"),
    ],
)
def test_wrong_use_is_told_in_one_line(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
):
    assert run(data, tmp_path / "out", *arguments) in (1, 2)
    err = capsys.readouterr().err.splitlines()
    assert message in err[-1]
    assert not (tmp_path / "out").exists()
