"""How fast is a slide written, and in how much memory?

    python benchmarks/write.py [--repeat 3]

Bands of 256 rows go to the writer, which makes every level: each kind of file, with and without a checkpoint every 64
bands (16,384 rows; that is every 10 s at 50 Mpx/s on a slide 30,000 px wide), a map of one channel, and a slide eight
times as high. In the same run two others write the same pyramid from a picture that is all in memory: tifffile, one
level after the other, halved by Pillow, and libvips (``pip install "pyvips[binary]"``; named as absent otherwise). The
picture is phantom tissue, 2048² of it again and again. Each case runs in a process of its own, so the peak of memory is
its own; the interpreter and, for the others, the picture are in it. The best of ``--repeat`` runs counts. On a machine
that does other work as well the processor seconds, of all threads together, tell more than the wall clock.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from machine import record

from sheafstain.slides.write import open_writer
from sheafstain.window import Resolution, Size, Window

SIZE = Size(8192, 8192)
TALL = Size(65536, 8192)
BAND, TILE, EVERY = 256, 256, 64
TISSUE = 2048


def tissue(folder: Path) -> np.ndarray:
    """uint8 [2048, 2048, 3], drawn once for all cases."""
    path = folder / "tissue.npy"
    if not path.exists():
        from sheafstain.datasets.phantom.phantom import Phantom
        from sheafstain.datasets.phantom.specimen import Specimen

        size = Size(TISSUE, TISSUE)
        phantom = Phantom(Specimen.draw(5), "HER2", Resolution(0.5), size)
        np.save(path, phantom.draw(Window.of(size), ("ihc",))["ihc"])
    return np.load(path)


def wide(size: Size, pattern: np.ndarray) -> np.ndarray:
    """[2048, w, …]: a row of tissue."""
    return np.tile(pattern, (1, -(-size.w // TISSUE)) + (1,) * (pattern.ndim - 2))[:, : size.w]


def ours(path: Path, size: Size, pattern: np.ndarray, checkpoints: bool, lossless: bool) -> None:
    row = wide(size, pattern)
    state = path.with_suffix(".state") if checkpoints else None
    channels = 3 if pattern.ndim == 3 else 1
    with open_writer(
        path, size, Resolution(0.5), description={}, channels=channels, lossless=lossless, state=state, workers=2
    ) as slide:
        for k, y in enumerate(range(0, size.h, BAND)):
            slide.rows(row[y % TISSUE : y % TISSUE + BAND])
            if checkpoints and k % EVERY == EVERY - 1:
                slide.checkpoint()


def with_tifffile(path: Path, size: Size, pattern: np.ndarray) -> None:
    import tifffile
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    level = np.tile(pattern, (-(-size.h // TISSUE), -(-size.w // TISSUE), 1))[: size.h, : size.w]
    begin()
    with tifffile.TiffWriter(path) as tif:
        k = 0
        while True:
            tif.write(
                level,
                tile=(TILE, TILE),
                photometric="rgb",
                compression="jpeg",
                compressionargs={"level": 90},
                subsampling=(1, 1),
                subfiletype=1 if k else 0,
                maxworkers=2,
                metadata=None,
            )
            if max(level.shape) <= TILE:
                return
            k, level = k + 1, np.asarray(Image.fromarray(level).reduce(2))


def with_vips(path: Path, size: Size, pattern: np.ndarray) -> None:
    import pyvips

    image = np.tile(pattern, (-(-size.h // TISSUE), -(-size.w // TISSUE), 1))[: size.h, : size.w]
    vips = pyvips.Image.new_from_array(image)
    begin()
    vips.tiffsave(  # full chroma from quality 90 on
        str(path), tile=True, pyramid=True, compression="jpeg", Q=90, tile_width=TILE, tile_height=TILE
    )


_began = (0.0, 0.0)


def begin() -> None:
    """The clock starts here: making the picture is not writing it."""
    global _began
    _began = time.perf_counter(), time.process_time()


def measure(case: dict, folder: Path) -> dict:
    pattern, size = tissue(folder), Size(*case["size"])
    if case["channels"] == 1:
        pattern = np.ascontiguousarray(pattern[..., 0])
    path = folder / f"out{case['name']}"
    walls, cpus = [], []
    for _ in range(case["repeat"]):
        begin()
        if case["method"] == "tifffile":
            with_tifffile(path, size, pattern)
        elif case["method"] == "libvips":
            with_vips(path, size, pattern)
        else:
            ours(path, size, pattern, case["checkpoints"] == "yes", case["lossless"] == "yes")
        walls.append(time.perf_counter() - _began[0])
        cpus.append(time.process_time() - _began[1])
    written = sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    megapixels = size.area / 1e6
    return {
        "mpx_per_s": megapixels / min(walls),
        "mpx_per_cpu_s": megapixels / min(cpus),
        "peak_mb": peak / 1e6,
        "file_mb": written / 1e6,
    }


def cases(repeat: int) -> Iterator[dict]:
    def case(method: str, name: str, size: Size = SIZE, channels: int = 3, lossless: str = "no", points: str = "no"):
        return {
            "method": method,
            "name": name,
            "channels": channels,
            "lossless": lossless,
            "checkpoints": points,
            "size": (size.h, size.w),
            "repeat": repeat,
        }

    yield case("sheafstain", ".tif")
    yield case("tifffile", ".tif")
    if importlib.util.find_spec("pyvips") is None:
        print('libvips is absent: pip install "pyvips[binary]" to compare with it')
    else:
        yield case("libvips", ".tif")
    yield case("sheafstain", ".tif", points="yes")
    yield case("sheafstain", ".tif", lossless="yes")
    yield case("sheafstain", ".tif", channels=1, lossless="yes")
    yield case("sheafstain", ".ome.tif")
    yield case("sheafstain", ".zarr", lossless="yes")
    yield case("sheafstain", ".zarr", lossless="yes", points="yes")
    yield case("sheafstain", ".tif", TALL)
    yield case("sheafstain", ".tif", TALL, points="yes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(json.loads(arguments.case[0]), Path(arguments.case[1]))))
        return
    found = []
    with tempfile.TemporaryDirectory() as folder:
        tissue(Path(folder))
        for case in cases(arguments.repeat):
            command = [sys.executable, __file__, "--case", json.dumps(case), folder]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr)
            named = {key: value for key, value in case.items() if key != "repeat"}
            found.append({**named, "size": str(Size(*case["size"])), **json.loads(done.stdout.splitlines()[-1])})
            print(found[-1], flush=True)
    record("write", found)
    base = found[0]
    for row in found:
        if row["method"] != "sheafstain":
            speed, cpu = (base[key] / row[key] for key in ("mpx_per_s", "mpx_per_cpu_s"))
            memory = row["peak_mb"] / base["peak_mb"]
            print(f"{speed:.1f} × as fast as {row['method']} ({cpu:.1f} × by processor time), memory 1/{memory:.1f}")


if __name__ == "__main__":
    main()
