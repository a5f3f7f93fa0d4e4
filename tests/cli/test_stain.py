"""``sheafstain stain``: names, formats, what is said, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch

from sheafstain.methods.model import Model, ModelConfig, save_model
from sheafstain.methods.registry import METHODS
from sheafstain.methods.sheafstain import SheafStainSettings
from sheafstain.methods.unsb import UnsbSettings
from sheafstain.nets.generator import BridgeGenerator
from sheafstain.slides.image import read_image, write_image
from sheafstain.slides.read import open_slide
from sheafstain.slides.write import open_writer
from sheafstain.window import Resolution, Size

Call = Callable[..., tuple[int, str, str]]
ENCODER = "random-tiny"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny UNSB that knows nothing."""
    torch.manual_seed(0)
    settings = {"ngf": 4, "blocks": 1, "T": 2}
    generator = METHODS["unsb"].build_generator(UnsbSettings(**settings), 0)
    config = ModelConfig(name="plain", method="unsb", stain="HER2", mpp=0.5, settings=settings)
    return save_model(tmp_path_factory.mktemp("plain"), config, generator, "# plain")


@pytest.fixture(scope="module")
def conditioned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny SheafStain on tokens that know nothing."""
    torch.manual_seed(0)
    settings = {"ngf": 4, "blocks": 1, "T": 2}
    generator = METHODS["sheafstain"].build_generator(SheafStainSettings(**settings), 192)
    assert isinstance(generator, BridgeGenerator)
    for block in generator.blocks:  # as training would: what starts at zero shows nothing
        for name, weight in block.named_parameters():
            if "spatial" in name or "cls" in name:
                torch.nn.init.normal_(weight, std=0.3)
    config = ModelConfig(
        name="conditioned", method="sheafstain", stain="ER", mpp=0.5, settings=settings, width=192, encoder=ENCODER
    )
    return save_model(tmp_path_factory.mktemp("conditioned"), config, generator, "# conditioned")


def image(h: int, w: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(90, 230, (h, w, 3), dtype=np.uint8)


def test_a_folder_becomes_a_folder(tmp_path: Path, plain: Path, call: Call):
    (tmp_path / "in").mkdir()
    write_image(tmp_path / "in" / "a.png", image(260, 270))
    write_image(tmp_path / "in" / "b.jpg", image(256, 256))
    with open_writer(tmp_path / "in" / "c.ome.tif", Size(300, 280), Resolution(0.5), description={}) as writer:
        writer.rows(image(300, 280))
    (tmp_path / "in" / "notes.txt").write_text("not an image")
    code, out, _ = call("stain", tmp_path / "in", "-o", tmp_path / "out", "-m", plain)
    assert code == 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        *("a.defect.png", "a.json", "a.png"),
        *("b.defect.png", "b.json", "b.png"),
        *("c.defect.tif", "c.json", "c.tif"),
    ]
    assert f"{tmp_path / 'out' / 'a.png'}: 4 windows, energy" in out
    report = json.loads((tmp_path / "out" / "c.json").read_text())
    assert report["model"]["stain"] == "HER2" and report["encoder"] is None and "research use only" in report["notice"]
    with open_slide(tmp_path / "out" / "c.tif") as opened:
        assert opened.size == Size(300, 280) and opened.resolution == Resolution(0.5)
    code, out, _ = call("stain", tmp_path / "in", "-o", tmp_path / "out", "-m", plain)
    assert code == 0 and out.count("is there already") == 3
    code, _, err = call("stain", tmp_path / "in", "-o", tmp_path / "out", "-m", plain, "--seed", "1")
    assert code == 1 and "is there, with seed 0 (now 1)" in err and "3 of 3 inputs were not translated" in err


def test_conditionings_differ_and_options_reach_the_pixels(tmp_path: Path, conditioned: Path, call: Call):
    write_image(tmp_path / "in.png", image(300, 256))

    def made(*options: str) -> np.ndarray:
        output = tmp_path / f"{'_'.join(('out', *options))}.png"
        code, _, err = call("stain", tmp_path / "in.png", "-o", output, "-m", conditioned, *options)
        assert code == 0, err
        report = json.loads(output.with_suffix(".json").read_text())
        assert (report["encoder"] is None) == ("none" in options)
        assert report["protocol"]["nfe"] == (1 if "--nfe" in options else 2)
        return read_image(output)

    usual = made()
    others = [
        made("--conditioning", "neighborhood"),
        made("--conditioning", "none"),
        made("--nfe", "1"),
        made("--seed", "7"),
        made("--cover", "whole"),
    ]
    for other in others:
        assert other.shape == usual.shape and not np.array_equal(other, usual)
    assert np.array_equal(made("--protocol", "paper"), others[0])
    assert np.abs(made("--batch", "1").astype(int) - usual).max() <= 1


def test_a_region_samples_and_formats(tmp_path: Path, plain: Path, call: Call):
    with open_writer(tmp_path / "in.tif", Size(600, 520), Resolution(0.25), description={}, lossless=True) as writer:
        writer.rows(image(600, 520))
    common = ("stain", tmp_path / "in.tif", "-m", plain)
    assert call(*common, "-o", tmp_path / "whole.png", "--samples", "2")[0] == 0
    assert (tmp_path / "whole.spread.png").exists()
    assert call(*common, "-o", tmp_path / "out", "--format", "zarr", "--region", "100,200,300,200")[0] == 0
    import zarr

    group = zarr.open_group(tmp_path / "out" / "in.zarr", mode="r")
    assert np.asarray(group["0"]).squeeze().shape == (3, 100, 150)
    assert call(*common, "-o", tmp_path / "full.png", "--level", "0")[0] == 0
    assert read_image(tmp_path / "full.png").shape == (600, 520, 3)
    code, out, _ = call(*common, "-o", tmp_path / "part.ome.tif", "--json")
    assert code == 0
    told = [json.loads(line) for line in out.splitlines()]
    assert told[-1]["event"] == "stained" and told[-1]["windows"]["lattice"] == 4
    assert (tmp_path / "part.defect.ome.tif").exists() and (tmp_path / "part.json").exists()


@pytest.mark.parametrize("suffix", ["tif", "ome.tif", "zarr", "png"])
def test_every_format_by_option_and_by_name(tmp_path: Path, plain: Path, call: Call, suffix: str):
    write_image(tmp_path / "in.png", image(256, 300))
    common = ("stain", tmp_path / "in.png", "-m", plain)
    assert call(*common, "-o", tmp_path / "by option", "--format", suffix)[0] == 0
    assert call(*common, "-o", tmp_path / f"named.{suffix}")[0] == 0
    for folder, stem in ((tmp_path / "by option", "in"), (tmp_path, "named")):
        names = {f"{stem}.{suffix}", f"{stem}.defect.{suffix}", f"{stem}.json"}
        besides = {"in.png", "by option"}
        assert {path.name for path in folder.iterdir()} | besides == names | besides
    same = [(tmp_path / name).is_dir() for name in (f"by option/in.{suffix}", f"named.{suffix}")]
    assert same == [suffix == "zarr"] * 2


def test_the_protocol_of_the_paper(tmp_path: Path, conditioned: Path, call: Call):
    """34 windows on 1024², each with a neighbourhood; a model without conditioning has no such protocol."""
    write_image(tmp_path / "in.png", image(1024, 1024))
    output = tmp_path / "out.png"
    code, out, err = call("stain", tmp_path / "in.png", "-o", output, "-m", conditioned, "--protocol", "paper")
    assert code == 0 and "34 windows" in out, err
    report = json.loads(output.with_suffix(".json").read_text())
    assert report["windows"]["lattice"] == 25 and report["windows"]["extra"] == 9
    told = report["protocol"]
    assert (told["conditioning"], told["cover"], told["stride"]) == ("neighborhood", "refined", 192)
    assert report["energy"]["pairs"] > 72  # those of the lattice and those of the extra windows


def test_damage_is_told_and_strict_fails(tmp_path: Path, plain: Path, call: Call):
    options = {"tile": (256, 256), "photometric": "rgb", "compression": "jpeg"}
    tifffile.imwrite(tmp_path / "in.tif", image(512, 768), **options)  # type: ignore[arg-type]
    with tifffile.TiffFile(tmp_path / "in.tif") as tiff:
        offset = tiff.pages.first.dataoffsets[1]
    with (tmp_path / "in.tif").open("r+b") as file:
        file.seek(offset + 2000)
        file.write(bytes(4096))
    common = ("stain", tmp_path / "in.tif", "-m", plain)
    code, out, err = call(*common, "-o", tmp_path / "out.png")
    assert code == 0 and "out.png: 6 windows" in out
    assert "1 damaged places of the input are white; see the report" in err
    assert json.loads((tmp_path / "out.json").read_text())["damaged"] == [[256, 0, 256, 256]]
    code, _, err = call(*common, "-o", tmp_path / "strict.png", "--strict")
    assert code == 1 and err.count("\n") == 1 and "in.tif: " in err and "of level 0" in err
    assert not (tmp_path / "strict.png").exists()


def test_a_full_disk_is_one_line(tiny_disk: Path, plain: Path, call: Call):
    write_image(tiny_disk.parent / "in.png", image(300, 300))
    code, _, err = call("stain", tiny_disk.parent / "in.png", "-o", tiny_disk / "out.png", "-m", plain)
    assert code == 1
    assert (
        err.splitlines()[-1]
        == f"sheafstain: {tiny_disk / 'out.png'}: the disk is full; make room or choose another output folder"
    )
    assert not any(tiny_disk.iterdir())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--region", "1,2,3"), "--region is X,Y,W,H"),
        (("--region", "5000,0,10,10"), "lies outside the slide"),
        (("--conditioning", "lattice"), "trained without conditioning"),
        (("--nfe", "9"), "--nfe is 1 to 2"),
        (("--batch", "0"), "--batch is at least 1"),
        (("--format", "png"), "does not end in .png"),
        (("--seed", "-1"), "a seed is a number from 0"),
        (("--device", "abacus"), "no device 'abacus'"),
    ],
)
def test_wrong_commands(tmp_path: Path, plain: Path, call: Call, options: tuple[str, ...], said: str):
    write_image(tmp_path / "in.png", image(256, 256))
    code, _, err = call("stain", tmp_path / "in.png", "-o", tmp_path / "out.tif", "-m", plain, *options)
    assert code == 2 and said in err
    assert not (tmp_path / "out.tif").exists()


def test_wrong_inputs(tmp_path: Path, plain: Path, call: Call):
    write_image(tmp_path / "in.png", image(256, 256))
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    write_image(tmp_path / "other" / "in.png", image(256, 256))
    (tmp_path / "broken.png").write_bytes((tmp_path / "in.png").read_bytes()[:5000])
    both = (tmp_path / "in.png", tmp_path / "other")
    kinds = (tmp_path / "kinds" / "a.png", tmp_path / "kinds" / "a.tif")  # of two formats, but of one report
    kinds[0].parent.mkdir()
    for path in kinds:
        write_image(path, image(256, 256))
    for inputs, output, code, said in (
        ((tmp_path / "none.svs",), "out.tif", 1, "none.svs: no such file"),
        ((tmp_path / "empty",), "out", 2, "has no image or slide in it"),
        (both, "out.tif", 2, "is one file, and there are 2 inputs"),
        (both, "out", 2, "would be the output of"),
        (kinds, "out", 2, "would be the output of"),
        ((tmp_path / "in.png",), ".", 2, "is an input"),
        ((tmp_path / "broken.png",), "out.tif", 1, "truncated or damaged"),
    ):
        got, _, err = call("stain", *inputs, "-o", tmp_path / output, "-m", plain)
        assert (got, said in err) == (code, True), err
    code, _, err = call("stain", tmp_path / "broken.png", both[0], "-o", tmp_path / "some", "-m", plain)
    assert code == 1 and "1 of 2 inputs were not translated: broken.png" in err
    assert (tmp_path / "some" / "in.png").exists() and not (tmp_path / "some" / "broken.png").exists()
    code, _, err = call("stain", both[0], tmp_path / "typo.png", "-o", tmp_path / "none", "-m", plain)
    assert code == 1 and "typo.png: no such file" in err and not (tmp_path / "none").exists()
    code, _, err = call("stain", both[0], "-o", tmp_path / "out.tif", "-m", tmp_path / "nowhere")
    assert code == 1 and "no such folder" in err


def test_another_encoder_than_in_training_is_refused(tmp_path: Path, conditioned: Path, call: Call):
    config = json.loads((conditioned / "config.json").read_text()) | {"encoder_hash": "f" * 64}
    for file in ("model.safetensors", "README.md"):
        (tmp_path / file).write_bytes((conditioned / file).read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_image(tmp_path / "in.png", image(256, 256))
    code, _, err = call("stain", tmp_path / "in.png", "-o", tmp_path / "out.png", "-m", tmp_path)
    assert code == 1 and "was trained with the encoder random-tiny of hash ffffffffffff" in err


@pytest.fixture(scope="module")
def high(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A slide above 16 Mpx, glass but for its left edge."""
    path, size = tmp_path_factory.mktemp("high") / "in.tif", Size(20_000, 1024)
    with open_writer(path, size, Resolution(0.5), description={}) as writer:
        band = np.full((500, size.w, 3), 244, np.uint8)
        band[:, :300] = image(500, 300) // 2
        for _ in range(size.h // 500):
            writer.rows(band)
    return path


@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"])
def test_stopped_by_a_signal_it_says_that_it_can_go_on(
    tmp_path: Path, plain: Path, high: Path, call: Call, stop: signal.Signals, code: int
):
    """The signal comes when the first rows are done."""
    arguments = ("stain", high, "-o", tmp_path / "out.tif", "-m", plain)
    command = [sys.executable, "-m", "sheafstain", *arguments, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        parts = [tmp_path / ".out.tif.state" / kind for kind in ("stain", "defect")]
        deadline = time.monotonic() + 60
        while not all(any(part.glob("level-0.tiles")) and tiles(part) for part in parts):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(stop)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == code
    assert "the same command goes on where this one stopped" in out
    assert not (tmp_path / "out.tif").exists() and (tmp_path / ".out.tif.state" / "progress.npz").exists()
    refused, _, err = call(*arguments, "--seed", "1")
    assert refused == 1 and "holds an unfinished translation with seed 0 (now 1)" in err and "--overwrite" in err


def tiles(part: Path) -> int:
    return (part / "level-0.tiles").stat().st_size


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def test_stainer_of_the_package(plain: Path):
    from sheafstain import Stainer

    stainer = Stainer.load(plain)
    assert isinstance(stainer.model, Model)
    stained = stainer.stain(image(300, 300))
    assert stained.pixels.shape == (300, 300, 3) and stained.defect.shape == (300, 300)
    assert 0 < stained.energy < 0.1
