"""The pyramid as other readers see it, and what is left on disk when writing goes wrong."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import openslide
import pytest
import tifffile

from sheafstain import __version__
from sheafstain.errors import SheafStainError, UsageError
from sheafstain.slides.write import open_writer
from sheafstain.window import Resolution, Size


def picture(size: Size, seed: int = 0) -> np.ndarray:
    """Smooth colours with a texture on them, as JPEG meets them in tissue: uint8 [h, w, 3]."""
    y, x = np.mgrid[: size.h, : size.w]
    base = np.stack([np.sin(y / 40), np.cos(x / 50), np.sin((x + y) / 70)], -1) * 60 + 150
    noise = np.random.default_rng(seed).normal(0, 2, (size.h, size.w, 1))
    return np.clip(base + noise, 0, 255).astype(np.uint8)


def write(path: Path, image: np.ndarray, chunks: int = 100, mpp: float = 0.4661, **options) -> None:
    with open_writer(path, Size(*image.shape[:2]), Resolution(mpp), description={"stain": "HER2"}, **options) as slide:
        for y in range(0, len(image), chunks):
            slide.rows(image[y : y + chunks])


def halved(image: np.ndarray) -> np.ndarray:
    """2×2 means without the writer's library, half rounded up; an odd border counts its pixels twice: their mean."""
    image = np.pad(image, ((0, image.shape[0] % 2), (0, image.shape[1] % 2), (0, 0)), "edge").astype(int)
    return (image.reshape(image.shape[0] // 2, 2, image.shape[1] // 2, 2, 3).sum((1, 3)) + 2) // 4


@pytest.mark.parametrize(
    ("size", "chunks", "levels"),
    [
        (Size(1500, 2100), 100, [(2100, 1500), (1050, 750), (525, 375), (263, 188), (132, 94)]),
        (Size(1025, 641), 1025, [(641, 1025), (321, 513), (161, 257), (81, 129)]),
        (Size(257, 33), 3, [(33, 257), (17, 129)]),
        (Size(256, 256), 7, [(256, 256)]),
    ],
)
def test_every_reader_sees_every_level(tmp_path: Path, size: Size, chunks: int, levels: list[tuple[int, int]]):
    image = picture(size)
    write(tmp_path / "a.tif", image, chunks, tile=256)
    with openslide.OpenSlide(tmp_path / "a.tif") as slide:
        assert list(slide.level_dimensions) == levels
        assert float(slide.properties["openslide.mpp-x"]) == pytest.approx(0.4661, rel=1e-6)
        assert float(slide.properties["openslide.mpp-y"]) == pytest.approx(0.4661, rel=1e-6)
        seen = [np.asarray(slide.read_region((0, 0), k, d).convert("RGB")) for k, d in enumerate(levels)]
    with tifffile.TiffFile(tmp_path / "a.tif") as tif:
        assert len(tif.series) == 1, "one picture, its other pages are levels of it"
        for k, (page, expected) in enumerate(zip(tif.series[0].levels, seen, strict=True)):
            assert np.array_equal(page.asarray(), expected)
            resolution = page.keyframe.tags["XResolution"].value
            assert 1e4 * resolution[1] / resolution[0] == pytest.approx(0.4661 * 2**k, rel=1e-6)
    exact = image.astype(int)
    for level in seen:
        assert np.abs(level - exact).mean() < 2.0, "no more than JPEG takes"
        assert abs(level.mean() - exact.mean()) < 0.2
        exact = halved(exact)


def test_full_chroma_and_no_ringing_at_the_border(tmp_path: Path):
    """Brown and blue stripes of one pixel survive, also in the last tile, most of which lies outside the image."""
    image = np.empty((48, 300, 3), np.uint8)
    image[:, 0::2], image[:, 1::2] = (120, 80, 50), (90, 90, 140)
    write(tmp_path / "a.tif", image, tile=256)
    seen = tifffile.imread(tmp_path / "a.tif").astype(int)
    assert np.abs(seen - image).max() < 12
    assert np.abs(seen[:, 288:] - image[:, 288:]).max() < 12


def test_the_file_says_what_it_is(tmp_path: Path):
    write(tmp_path / "a.tif", picture(Size(64, 64)))
    with tifffile.TiffFile(tmp_path / "a.tif") as tif:
        said = json.loads(tif.pages[0].description)
    assert said["stain"] == "HER2"
    assert said["mpp"] == 0.4661
    assert said["software"] == f"SheafStain {__version__}"
    assert "research use only" in said["notice"]


def test_the_same_rows_give_the_same_bytes(tmp_path: Path):
    image = picture(Size(700, 500))
    write(tmp_path / "a.tif", image, chunks=700, workers=1)
    write(tmp_path / "b.tif", image, chunks=13, workers=4)
    assert (tmp_path / "a.tif").read_bytes() == (tmp_path / "b.tif").read_bytes()


def test_rows_may_be_reused_by_the_caller(tmp_path: Path):
    image = picture(Size(300, 300))
    with open_writer(tmp_path / "a.tif", Size(300, 300), Resolution(1), description={}, tile=64) as slide:
        buffer = np.empty((60, 300, 3), np.uint8)
        for y in range(0, 300, 60):
            buffer[:] = image[y : y + 60]
            slide.rows(buffer)
            buffer[:] = 0
    assert np.abs(tifffile.imread(tmp_path / "a.tif").astype(int) - image).mean() < 2


def test_more_than_a_classic_tiff_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sheafstain.slides.tiff_file._CLASSIC_LIMIT", 1000)
    image = picture(Size(300, 300))
    write(tmp_path / "a.tif", image)
    with tifffile.TiffFile(tmp_path / "a.tif") as tif:
        assert tif.is_bigtiff
    with openslide.OpenSlide(tmp_path / "a.tif") as slide:
        assert slide.dimensions == (300, 300)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_failure_leaves_nothing(tmp_path: Path):
    image = picture(Size(900, 600))
    with (
        pytest.raises(RuntimeError, match="out of luck"),
        open_writer(tmp_path / "a.tif", Size(900, 600), Resolution(1), description={}, tile=128) as slide,
    ):
        slide.rows(image[:700])
        raise RuntimeError("out of luck")
    assert left(tmp_path) == []
    with (
        pytest.raises(ValueError, match="only 700 of 900 rows"),
        open_writer(tmp_path / "a.tif", Size(900, 600), Resolution(1), description={}, tile=128) as slide,
    ):
        slide.rows(image[:700])
    assert left(tmp_path) == []


def test_an_older_file_stays_until_the_new_one_is_whole(tmp_path: Path):
    (tmp_path / "a.tif").write_bytes(b"older")
    image = picture(Size(200, 64))
    with (
        pytest.raises(KeyboardInterrupt),
        open_writer(tmp_path / "a.tif", Size(200, 64), Resolution(1), description={}, tile=64) as slide,
    ):
        slide.rows(image)
        raise KeyboardInterrupt
    assert (tmp_path / "a.tif").read_bytes() == b"older"
    write(tmp_path / "a.tif", image)
    assert left(tmp_path) == ["a.tif"]
    assert tifffile.imread(tmp_path / "a.tif").shape == image.shape


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path):
    """A file-size limit stands in for the full disk: the same failed write, and no need to be root to mount one."""
    script = textwrap.dedent(f"""
        import resource, signal, sys
        import numpy as np
        from sheafstain.slides.write import open_writer
        from sheafstain.window import Resolution, Size
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        noise = np.random.default_rng(0).integers(0, 256, (1024, 1024, 3), dtype=np.uint8)
        try:
            with open_writer({str(tmp_path / "a.tif")!r}, Size(1024, 1024), Resolution(1), description={{}}) as slide:
                slide.rows(noise)
        except OSError as error:
            print(error.errno, error.filename)
        """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(errno.EFBIG), str(tmp_path / "a.tif")]
    assert left(tmp_path) == []


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a spool file has a name until it is closed")
def test_a_killed_writer_leaves_nothing(tmp_path: Path):
    script = textwrap.dedent(f"""
        import os, signal
        from pathlib import Path
        import numpy as np
        from sheafstain.slides.write import open_writer
        from sheafstain.window import Resolution, Size
        path = Path({str(tmp_path / "a.tif")!r})
        with open_writer(path, Size(512, 512), Resolution(1), description={{}}, tile=64) as to:
            to.rows(np.zeros((400, 512, 3), np.uint8))
            os.kill(os.getpid(), signal.SIGKILL)
        """)
    assert subprocess.run([sys.executable, "-c", script]).returncode == -9
    assert left(tmp_path) == []


def test_memory_does_not_grow_with_the_height(tmp_path: Path):
    """Sixteen times the rows, the same peak: two rows of tiles a level are all that is held."""
    script = textwrap.dedent("""
        import resource, sys
        import numpy as np
        from pathlib import Path
        from sheafstain.slides.write import open_writer
        from sheafstain.window import Resolution, Size
        height, path = int(sys.argv[1]), Path(sys.argv[2])
        band = np.random.default_rng(0).normal(180, 6, (256, 2048, 3)).clip(0, 255).astype(np.uint8)
        with open_writer(path, Size(height, 2048), Resolution(0.5), description={}, tile=256, workers=2) as slide:
            for _ in range(height // 256):
                slide.rows(band)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
        """)

    def peak(height: int) -> int:
        command = [sys.executable, "-c", script, str(height), str(tmp_path / "tall.tif")]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    short, tall = peak(1024), peak(16 * 1024)
    picture_bytes = 16 * 1024 * 2048 * 3
    assert tall - short < 0.2 * picture_bytes, f"{short / 1e6:.0f} MB → {tall / 1e6:.0f} MB"


def test_wrong_use_is_named(tmp_path: Path):
    size, mpp = Size(64, 64), Resolution(1)
    with pytest.raises(ValueError, match="no pixels"):
        open_writer(tmp_path / "a.tif", Size(0, 5), mpp, description={})
    with pytest.raises(ValueError, match="multiple of 16"):
        open_writer(tmp_path / "a.tif", size, mpp, description={}, tile=100)
    with (
        pytest.raises(FileNotFoundError, match="nowhere"),
        open_writer(tmp_path / "nowhere" / "a.tif", size, mpp, description={}),
    ):
        pass
    with pytest.raises(UsageError, match=r"end its name in \.tif"):
        open_writer(tmp_path / "a.svs", size, mpp, description={})
    (tmp_path / "folder.tif").mkdir()
    with (
        pytest.raises(SheafStainError, match="is a folder"),
        open_writer(tmp_path / "folder.tif", size, mpp, description={}),
    ):
        pass
    (tmp_path / "folder.tif").rmdir()
    for rows, what in (
        (np.zeros((1, 64, 3), np.float32), "float32"),
        (np.zeros((1, 63, 3), np.uint8), r"\[1, 63, 3\]"),
        (np.zeros((65, 64, 3), np.uint8), "row 65 of a slide with 64"),
    ):
        with (
            pytest.raises(ValueError, match=what),
            open_writer(tmp_path / "a.tif", size, mpp, description={}) as slide,
        ):
            slide.rows(rows)
    assert left(tmp_path) == []
