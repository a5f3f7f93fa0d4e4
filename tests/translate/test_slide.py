"""Files of any size: regions, resampling, glass, damage, resuming after whatever happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from stain_doubles import Identity, MeanEncoder, Wobbling

from sheafstain.errors import SheafStainError, UsageError
from sheafstain.methods.method import Tiling
from sheafstain.slides.image import read_image, write_image
from sheafstain.slides.read import open_slide
from sheafstain.slides.write import open_writer
from sheafstain.translate import files, maps, slide
from sheafstain.translate import stainer as of_stainer
from sheafstain.translate.files import Outputs
from sheafstain.translate.stainer import Stainer
from sheafstain.window import Resolution, Size, Window


def tissue(h: int, w: int, seed: int = 0) -> np.ndarray:
    """Something pink, with glass in its upper right corner."""
    rng = np.random.default_rng(seed)
    image = np.full((h, w, 3), (244, 243, 245), np.uint8)
    coarse = rng.integers(-60, 30, (h // 40 + 1, w // 40 + 1, 3)).repeat(40, 0).repeat(40, 1)[:h, :w]
    pink = np.array([200, 120, 170]) + coarse + rng.integers(-20, 20, (h, w, 3))
    here = np.ones((h, w), bool)
    here[: h // 2, w // 2 :] = False
    image[here] = pink.clip(0, 255)[here]
    return image


def write_slide(path: Path, image: np.ndarray, mpp: float = 0.5) -> Path:
    with open_writer(path, Size(*image.shape[:2]), Resolution(mpp), description={}, lossless=True) as writer:
        writer.rows(image)
    return path


def pixels_of(path: Path) -> np.ndarray:
    with open_slide(path) as opened:
        return opened.view().read()


def map_of(path: Path) -> np.ndarray:
    return tifffile.imread(path)


@pytest.fixture
def resumable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small outputs are kept too, glass is looked for in them, and every batch is a checkpoint."""
    monkeypatch.setattr(files, "EVERY", 0)
    monkeypatch.setattr(slide, "WORTH_KEEPING", 0)
    monkeypatch.setattr(slide, "GLASS_FROM", 0)


def test_a_slide_and_its_region_are_those_of_the_array(tmp_path: Path):
    image = tissue(600, 900)
    source = write_slide(tmp_path / "in.tif", image)
    stainer = Stainer(Wobbling(conditioning="lattice"), MeanEncoder())
    expected = stainer.stain(image)
    written = stainer.stain_file(source, tmp_path / "out.zarr")
    import zarr

    stain = zarr.open_group(tmp_path / "out.zarr", mode="r")["0"]
    assert np.array_equal(np.moveaxis(np.asarray(stain).squeeze(), 0, -1), expected.pixels)
    stainer.stain_file(source, tmp_path / "out.png")
    assert np.array_equal(read_image(tmp_path / "out.png"), expected.pixels)
    coded = read_image(tmp_path / "out.defect.png")[..., 0]
    assert np.array_equal(coded == 0, np.isnan(expected.defect))
    rms = np.sqrt(expected.defect[coded > 0])
    assert np.abs(maps.decode(coded)[coded > 0] - rms).max() <= 0.5 / maps.STEPS + 1e-6
    assert written.report["energy"]["energy"] == expected.energy
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ["in.tif", "out.zarr", "out.defect.zarr", "out.json", "out.png", "out.defect.png"]
    )
    region = Window(100, 333, 250, 400)
    part = stainer.stain_file(source, tmp_path / "part.png", region=region)
    assert np.array_equal(read_image(tmp_path / "part.png"), expected.pixels[region.slices])
    assert part.report["output"] == {"size": [400, 250], "place": [333, 100, 400, 250]}


def test_the_pixel_size_of_the_model_is_met(tmp_path: Path):
    source = write_slide(tmp_path / "in.tif", tissue(700, 640), mpp=0.23)
    stainer = Stainer(Identity())
    written = stainer.stain_file(source, tmp_path / "out.png")
    with open_slide(source) as opened:
        view = opened.view(Resolution(0.5))
        assert np.array_equal(read_image(tmp_path / "out.png"), view.read())
        assert written.report["output"]["size"] == [294, 322] == [view.size.w, view.size.h]
    stainer.stain_file(source, tmp_path / "level.png", level=0)
    assert read_image(tmp_path / "level.png").shape == (700, 640, 3)
    stainer.stain_file(source, tmp_path / "claimed.png", mpp=0.5)
    assert read_image(tmp_path / "claimed.png").shape == (700, 640, 3)
    region = Window(200, 100, 300, 200)
    stainer.stain_file(source, tmp_path / "part.png", region=region)
    with open_slide(source) as opened:
        place = opened.view(Resolution(0.5), region=region).window
    assert np.array_equal(read_image(tmp_path / "part.png"), read_image(tmp_path / "out.png")[place.slices])


def test_a_file_that_fits_into_memory_is_the_array_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = write_slide(tmp_path / "in.tif", tissue(700, 640), mpp=0.23)
    stainer = Stainer(Wobbling())
    stained = stainer.stain(source)
    written = stainer.stain_file(source, tmp_path / "out.png")
    assert np.array_equal(stained.pixels, read_image(tmp_path / "out.png"))
    assert stained.report["input"] == written.report["input"] and stained.report["input"]["view_mpp"] != 0.23
    monkeypatch.setattr(of_stainer, "MAX_PIXELS", 90_000)
    with pytest.raises(UsageError, match=r"in\.tif: is 294×322 px, too large .*; stain_file"):
        stainer.stain(source)


def test_without_a_pixel_size_images_are_taken_as_they_are_and_slides_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_image(tmp_path / "in.png", tissue(300, 310))
    written = Stainer(Identity()).stain_file(tmp_path / "in.png", tmp_path / "out.png")
    assert written.report["input"]["mpp_assumed"] is True
    assert np.array_equal(read_image(tmp_path / "out.png"), tissue(300, 310))
    monkeypatch.setattr(slide, "WORTH_KEEPING", 1000)
    with pytest.raises(SheafStainError, match=r"in.png: does not say its µm/px; give it with --mpp"):
        Stainer(Identity()).stain_file(tmp_path / "in.png", tmp_path / "other.png")


def test_glass_is_left_out_and_grey(tmp_path: Path, resumable: None):
    image = tissue(1024, 1536)
    source = write_slide(tmp_path / "in.tif", image)
    model = Identity()
    written = Stainer(model).stain_file(source, tmp_path / "out.tif")
    out = pixels_of(tmp_path / "out.tif")
    assert (out[:128, 1200:] == 245).all()
    assert np.abs(out[600:, :].astype(int) - image[600:]).mean() < 8  # JPEG of noise
    assert (map_of(tmp_path / "out.defect.tif")[:128, 1200:] == 0).all()
    assert written.report["windows"]["lattice"] < 40
    everything = Stainer(model).stain_file(source, tmp_path / "all.tif", glass=True)
    assert everything.report["windows"]["lattice"] == 40


def test_samples_have_a_spread(tmp_path: Path):
    source = write_slide(tmp_path / "in.tif", tissue(300, 300))
    stainer = Stainer(Wobbling())
    stainer.stain_file(source, tmp_path / "out.png", samples=3, seed=4)
    alone = [stainer.stain(tissue(300, 300), seed=4 + k).pixels for k in range(3)]
    spread = maps.decode(read_image(tmp_path / "out.spread.png")[..., 0])
    expected = np.sqrt((np.stack(alone) / 255).var(0).mean(2))
    assert np.abs(spread - expected).max() <= 0.5 / maps.STEPS + 1e-6
    assert expected.max() > 0.01


KILLS = 10


def test_killed_ten_times_it_ends_with_the_same_bytes(tmp_path: Path, resumable: None):
    source = write_slide(tmp_path / "in.tif", tissue(3000, 460))
    Stainer(Wobbling(conditioning="lattice"), MeanEncoder(), batch=2).stain_file(source, tmp_path / "whole.tif")
    (tmp_path / "killed").mkdir()
    script = Path(__file__).with_name("kill_and_resume.py")
    command = [sys.executable, script, source, tmp_path / "killed" / "whole.tif", str(KILLS), "1"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])
    assert rows == sorted(rows) and len(set(rows)) > 2, f"killed at {rows}"
    for name in ("whole.tif", "whole.defect.tif"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / name).read_bytes()
    told, expected = (json.loads((folder / "whole.json").read_text()) for folder in (tmp_path / "killed", tmp_path))
    assert {key: told["windows"][key] for key in ("lattice", "extra")} == {
        key: expected["windows"][key] for key in ("lattice", "extra")
    }
    for key in ("energy", "defect", "identity"):
        assert told[key] == expected[key]
    assert sorted(p.name for p in (tmp_path / "killed").iterdir()) == ["whole.defect.tif", "whole.json", "whole.tif"]


class Interrupted(Identity):
    """Stopped, as by Ctrl-C, at the n-th batch."""

    def __init__(self, at: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        super().__init__()
        self.at, self.error = at, error

    def translate(self, he: Any, *arguments: Any, **options: Any) -> Any:
        if len(self.shapes) == self.at:
            raise self.error
        return super().translate(he, *arguments, **options)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interruption_leaves_a_state_and_no_thread(
    tmp_path: Path, resumable: None, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
):
    monkeypatch.setattr(files, "EVERY", 1e9)  # the only checkpoint is that of the interruption
    source, output = write_slide(tmp_path / "in.tif", tissue(2500, 300)), tmp_path / "out.tif"
    before = threading.active_count()
    with pytest.raises(error):
        Stainer(Interrupted(5, error), batch=4).stain_file(source, output)
    assert threading.active_count() == before
    assert not output.exists() and Outputs(output).state.is_dir()
    model = Identity()
    Stainer(model, batch=4).stain_file(source, output)
    assert 0 < len(model.shapes) < 9
    assert not Outputs(output).state.exists()
    Stainer(Identity()).stain_file(source, tmp_path / "other.tif")
    assert np.array_equal(pixels_of(output), pixels_of(tmp_path / "other.tif"))


def test_what_differs_is_named(tmp_path: Path, resumable: None):
    source, output = write_slide(tmp_path / "in.tif", tissue(2500, 300)), tmp_path / "out.tif"
    with pytest.raises(KeyboardInterrupt):
        Stainer(Interrupted(9), batch=2).stain_file(source, output)
    with pytest.raises(SheafStainError, match=r"unfinished translation with seed 0 \(now 1\).*--overwrite"):
        Stainer(Identity()).stain_file(source, output, seed=1)
    other = Identity(hash="abc" * 20)
    with pytest.raises(SheafStainError, match=r"with model 000000000000 \(now abcabcabcabc\)"):
        Stainer(other).stain_file(source, output)
    write_slide(source, tissue(1500, 300, seed=1))
    with pytest.raises(SheafStainError, match="with input"):
        Stainer(Identity()).stain_file(source, output)
    Stainer(other).stain_file(source, output, overwrite=True)
    assert not Outputs(output).state.exists()
    again = Stainer(other).stain_file(source, output)
    assert again.present and again.report["model"]["hash"] == other.hash
    with pytest.raises(SheafStainError, match=r"out\.tif: is there, with model .*--overwrite replaces it"):
        Stainer(Identity()).stain_file(source, output)
    (tmp_path / "out.json").write_text("{}")
    with pytest.raises(SheafStainError, match="no report beside it"):
        Stainer(other).stain_file(source, output)


def test_a_report_is_not_written_over_another_file(tmp_path: Path):
    source = write_slide(tmp_path / "in.tif", tissue(300, 300))
    (tmp_path / "out.json").write_text('{"outlines": []}')
    with pytest.raises(SheafStainError, match=r"out\.json: is there, with something else in it; --overwrite"):
        Stainer(Identity()).stain_file(source, tmp_path / "out.tif")
    assert (tmp_path / "out.json").read_text() == '{"outlines": []}'
    Stainer(Identity()).stain_file(source, tmp_path / "out.tif", overwrite=True)
    Stainer(Identity()).stain_file(source, tmp_path / "out.png")  # the same in another format
    with pytest.raises(SheafStainError, match=r"out\.json: is there, with seed 0 \(now 1\)"):
        Stainer(Identity()).stain_file(source, tmp_path / "out.zarr", seed=1)


@pytest.mark.parametrize("missing", ["out.tif", "out.defect.tif", "out.json"])
def test_stopped_while_the_files_appear(tmp_path: Path, resumable: None, missing: str, monkeypatch: pytest.MonkeyPatch):
    """After the last row: the files appear one after the other, then the report, then the state goes."""
    source, output = write_slide(tmp_path / "in.tif", tissue(600, 300)), tmp_path / "out.tif"
    Stainer(Wobbling()).stain_file(source, tmp_path / "other.tif")
    replace, write = Path.replace, slide.write_whole

    def stop(path: Path, target: Any) -> Any:
        if Path(target).name == missing:
            raise KeyboardInterrupt
        return replace(path, target)

    def stop_writing(path: Path, content: bytes) -> None:
        if path.name == missing:
            raise KeyboardInterrupt
        write(path, content)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "replace", stop)
        patched.setattr(slide, "write_whole", stop_writing)
        Stainer(Wobbling()).stain_file(source, output)
    assert not (tmp_path / missing).exists()
    model = Wobbling()
    Stainer(model).stain_file(source, output)
    assert not model.shapes  # every row was there
    for one, other in (("out.tif", "other.tif"), ("out.defect.tif", "other.defect.tif")):
        assert np.array_equal(map_of(tmp_path / one), map_of(tmp_path / other))
    told, expected = (json.loads((tmp_path / name).read_text()) for name in ("out.json", "other.json"))
    assert told["energy"] == expected["energy"] and told["defect"] == expected["defect"]
    assert not Outputs(output).state.exists()


def test_a_full_disk_is_named_and_what_was_done_is_kept(tmp_path: Path, resumable: None, disk: Callable[[int], Path]):
    """A disk of 4 MB, on which something else lies first."""
    folder = disk(4)
    image = np.random.default_rng(0).integers(0, 256, (2600, 700, 3), dtype=np.uint8)
    source = write_slide(tmp_path / "in.tif", image)
    ballast = folder / "ballast"
    ballast.write_bytes(b"\0" * 2_500_000)
    with pytest.raises(OSError, match="No space left") as failed:
        Stainer(Identity(), batch=2).stain_file(source, folder / "out.tif", glass=True)
    assert str(failed.value.filename).startswith(str(folder))
    assert not (folder / "out.tif").exists() and Outputs(folder / "out.tif").state.is_dir()
    ballast.unlink()
    subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)
    model = Identity()
    Stainer(model, batch=2).stain_file(source, folder / "out.tif", glass=True)
    Stainer(Identity(), batch=2).stain_file(source, tmp_path / "out.tif", glass=True)
    assert (folder / "out.tif").read_bytes() == (tmp_path / "out.tif").read_bytes()
    assert len(model.shapes) < 40


@pytest.fixture
def disk(tmp_path: Path) -> Any:
    """Makes a small disk of so many megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = []

    def make(megabytes: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting a small tmpfs is not permitted here")
        mounted.append(folder)
        return folder

    yield make
    for place in mounted:
        subprocess.run(["umount", str(place)], check=True)


def test_a_signal_while_the_stages_wait_ends_them_all(tmp_path: Path):
    """SIGINT reaches the computing thread where it waits for a decoder that never answers."""

    class Stuck(slide.SlideSource):
        def rows(self, window: Window, band: int) -> Any:
            yield from super().rows(Window(0, 0, 256, window.w), band)
            threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            released.wait(5)

    released = threading.Event()
    threading.Timer(1.0, released.set).start()
    source = write_slide(tmp_path / "in.tif", tissue(900, 300))
    with open_slide(source) as opened, pytest.raises(KeyboardInterrupt):
        stainer = Stainer(Identity(tiling=Tiling(side=256, stride=192)))
        stainer.stain_source(Stuck(opened.view()), stainer.protocol())


def test_wrong_names_and_places_are_told_before_any_work(tmp_path: Path):
    source = write_slide(tmp_path / "in.tif", tissue(300, 300))
    stainer = Stainer(Identity())
    with pytest.raises(UsageError, match="lies outside the slide"):
        stainer.stain_file(source, tmp_path / "out.tif", region=Window(0, 400, 10, 10))
    with pytest.raises(UsageError, match="has the levels 0 to 1, not 3"):
        stainer.stain_file(source, tmp_path / "out.tif", level=3)
    with pytest.raises(UsageError, match="end its name in"):
        stainer.stain_file(source, tmp_path / "out.jpg")
    with pytest.raises(FileNotFoundError):
        stainer.stain_file(source, tmp_path / "missing" / "out.tif")
    with pytest.raises(SheafStainError, match="no such file"):
        stainer.stain_file(tmp_path / "none.svs", tmp_path / "out.tif")
    assert [p.name for p in tmp_path.iterdir()] == ["in.tif"]


MEASURED = """
import resource, sys
from pathlib import Path
from stain_doubles import Identity
from sheafstain.translate.stainer import Stainer

Stainer(Identity(), batch=4).stain_file(Path(sys.argv[1]), Path(sys.argv[2]), glass=True, workers=1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_height(tmp_path: Path):
    """Five times as high, 98 MB more of pixels; each in a process of its own."""
    peaks = []
    for height in (4096, 20480):
        source, size = tmp_path / f"{height}.tif", Size(height, 2000)
        band = tissue(512, size.w)
        with open_writer(source, size, Resolution(0.5), description={}) as writer:
            for _ in range(height // 512):
                writer.rows(band)
        command = [sys.executable, "-c", MEASURED, source, tmp_path / f"out-{height}.tif"]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout) / 1024 * (1 / 1024 if sys.platform == "darwin" else 1))
    assert peaks[1] < peaks[0] + 40, f"{peaks} MB"
