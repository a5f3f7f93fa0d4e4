"""How fast are slides read, against patches through OpenSlide, and does a slide's size cost memory?

    python benchmarks/read.py

An 8192² slide of phantom tissue (0.25 µm/px, JPEG tiles of 512 px, 4:4:4) is read whole: its stored tiles in order, at
two coarser pixel sizes and at a finer one, in bands through OpenSlide, and as a tiler does it: 256-px patches, 192 px
apart, in random order through OpenSlide, on one thread and on as many as there are cores. Rates are pixels of the slide
(of level 0) that are done with in a second; patches overlap, and what they read twice counts once. Each case runs in a
process of its own; the last is a slide eight times as large. Processor time is given too, since other work on a machine
is not the reader's.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from machine import cores, record

CASES = ("patches, 1 thread", f"patches, {cores()} threads", "bands through OpenSlide", "stored tiles")
CASES += ("to 0.5 µm/px", "to 0.466 µm/px", "to 0.233 µm/px", "tissue mask", "stored tiles, 32768×16384")


def make(path: Path, width: int, height: int) -> None:
    import numpy as np

    from sheafstain.datasets.phantom.phantom import Phantom
    from sheafstain.datasets.phantom.specimen import Specimen
    from sheafstain.slides.write import open_writer
    from sheafstain.window import Resolution, Size, Window

    tissue = Phantom(Specimen.draw(1), resolution=Resolution(0.25)).he(Window(0, 0, 1024, 2048))
    row = np.tile(tissue, (1, width // 2048, 1))
    with open_writer(path, Size(height, width), Resolution(0.25), description={"stain": "H&E"}) as slide:
        for _ in range(height // 1024):
            slide.rows(row)


def patches(path: Path, threads: int) -> None:
    import numpy as np
    import openslide

    slide = openslide.OpenSlide(path)
    width, height = slide.dimensions
    places = [(x, y) for y in range(0, height - 255, 192) for x in range(0, width - 255, 192)]
    random.Random(0).shuffle(places)

    def read(place: tuple[int, int]) -> int:
        return np.asarray(slide.read_region(place, 0, (256, 256)).convert("RGB")).shape[0]

    with ThreadPoolExecutor(threads) as pool:
        assert sum(pool.map(read, places)) == 256 * len(places)


def rows(path: Path, mpp: float | None = None) -> None:
    from sheafstain.slides.read import open_slide
    from sheafstain.window import Resolution

    with open_slide(path) as slide:
        view = slide.view(Resolution(mpp) if mpp else None)
        assert sum(len(band) for band in view.rows()) == view.size.h


def bands(path: Path) -> None:
    from sheafstain.slides.openslide import OpenSlideFile, OpenSlideLevel
    from sheafstain.window import Window

    level = OpenSlideLevel(OpenSlideFile(path), 0, strict=False)
    assert sum(len(piece) for piece in level.pieces(Window.of(level.size))) == level.size.h


def tissue(path: Path) -> None:
    from sheafstain.slides.read import open_slide
    from sheafstain.slides.tissue import TissueMask

    with open_slide(path) as slide:
        assert TissueMask.of(slide.view()).share > 0.9


def measure(case: str, path: Path) -> dict[str, float]:
    import resource

    work: Callable[[Path], None]
    if case.startswith("patches"):
        work = partial(patches, threads=int(case.split()[1]))
    elif case.startswith("to "):
        work = partial(rows, mpp=float(case.split()[1]))
    else:
        work = {"bands through OpenSlide": bands, "tissue mask": tissue}.get(case, rows)
    work(path)  # imports, the file in the cache of the system
    clock, cpu = time.perf_counter(), time.process_time()
    work(path)
    clock, cpu = time.perf_counter() - clock, time.process_time() - cpu
    return {"s": clock, "core_s": cpu, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def main() -> None:
    results = []
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"small": (8192, 8192), "large": (32768, 16384)}
        for name, size in sizes.items():  # not in this process: its children would inherit its peak
            subprocess.run(
                [sys.executable, __file__, "make", str(Path(folder) / f"{name}.tif"), *map(str, size)], check=True
            )
        for case in CASES:
            name = "large" if "×" in case else "small"
            command = [sys.executable, __file__, case, str(Path(folder) / f"{name}.tif")]
            measured = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            mpx = sizes[name][0] * sizes[name][1] / 1e6
            per_s, per_core_s = mpx / measured["s"], mpx / measured["core_s"]
            rates = {"mpx_per_s": per_s, "mpx_per_core_s": per_core_s}
            results.append({"case": case, **rates, "peak_mb": measured["peak_mb"]})
    one = results[0]["mpx_per_core_s"]
    record("read", [{**row, "times_patches": row["mpx_per_core_s"] / one} for row in results])


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    elif sys.argv[1] == "make":
        make(Path(sys.argv[2]), *map(int, sys.argv[3:]))
    else:
        print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]))))
