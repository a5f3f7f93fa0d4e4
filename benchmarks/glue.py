"""How fast are windows glued, and in how much memory?

    python benchmarks/glue.py [--repeat 3]

256-px RGB windows at stride 192, the pixels already there: gluing alone, gluing with the defect map, both also with
the extra windows of a refined cover (9 for each 25), against two others in the same run: sums on full NumPy canvases,
and the sliding-window inferer of MONAI with a model that returns what it is given (pip install monai; named as absent
otherwise). Each case runs in a process of its own, so that the peak of its memory is its own; that peak includes the
interpreter and, for MONAI, PyTorch and the whole image that it wants as its input. The clock runs while windows are
added and rows come out; for MONAI it also runs while it cuts the windows from the image, since that cannot be taken
apart. The best of ``--repeat`` runs counts (MONAI: of two). On a machine that does other work as well the processor
seconds, of all threads together, tell more than the wall clock.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
from machine import record

from sheafstain.sheaf.cover import Lattice
from sheafstain.sheaf.glue import Gluer, Kind, kernel
from sheafstain.window import Size, Window

SIZES = (Size(8192, 8192), Size(4096, 32768))
POOL = 96  # different windows, more than any cache holds


def drawn(dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    if dtype == "uint8":
        return [rng.integers(0, 256, (256, 256, 3), dtype=np.uint8) for _ in range(POOL)]
    return [rng.random((256, 256, 3), dtype=np.float32) for _ in range(POOL)]


def rows(size: Size, extras: bool) -> Iterator[tuple[list[tuple[Window, Kind]], int]]:
    """Windows of each lattice row and the row up to which no later window begins."""
    lattice = Lattice.over(size)
    for i, row in enumerate(lattice.rows()):
        windows: list[tuple[Window, Kind]] = [(w, "lattice") for w in row]
        if extras and i + 1 < len(lattice.ys):
            between = [w.shift(96, 96) for j, w in enumerate(row[:-1]) if (i * len(row) + j) % 25 < 9]
            windows += [(w, "extra") for w in between]
        yield windows, lattice.ys[i + 1] if i + 1 < len(lattice.ys) else size.h


class Clock:
    """Wall and processor seconds of what runs inside ``with``."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.wall += time.perf_counter() - self._began[0]
        self.cpu += time.process_time() - self._began[1]


def ours(size: Size, dtype: str, extras: bool, defect: bool) -> Clock:
    pool, clock = drawn(dtype), Clock()
    gluer = Gluer(size, defect=defect)
    for windows, done in rows(size, extras):
        made = [pool[k % POOL].copy() for k in range(len(windows))]  # each has memory of its own, as a model's have
        with clock:
            for (window, kind), pixels in zip(windows, made, strict=True):
                gluer.add(window, pixels, kind)
            del made, pixels
            for _ in gluer.rows_done(done):
                pass
    return clock


def canvases(size: Size, dtype: str, extras: bool, defect: bool) -> Clock:
    """What one writes first: Σws, Σw and, for the defect, Σws² over the whole image, divided at the end."""
    del extras
    pool, clock = drawn(dtype), Clock()
    with clock:
        weight = np.outer(kernel("lattice", 256), kernel("lattice", 256))[..., None]
        scale = np.float32(255 if dtype == "float32" else 1)
        lattice = Lattice.over(size)
        frame = lattice.frame
        total, mean = np.zeros((frame.h, frame.w, 1), np.float32), np.zeros((frame.h, frame.w, 3), np.float32)
        square = np.zeros((frame.h, frame.w, 3), np.float32) if defect else None
        for k, window in enumerate(lattice):
            pixels = pool[k % POOL] * scale
            mean[window.slices] += weight * pixels
            total[window.slices] += weight
            if square is not None:
                square[window.slices] += weight * pixels**2
        mean /= total
        if square is not None:
            (square / total - mean**2).mean(2)
        np.rint(mean).astype(np.uint8)
    return clock


def monai(size: Size, dtype: str, extras: bool, defect: bool) -> Clock:
    import torch
    from monai.inferers.utils import sliding_window_inference  # type: ignore[import-not-found]

    del dtype, extras, defect
    image, clock = torch.rand((1, 3, size.h, size.w)), Clock()
    with clock:
        sliding_window_inference(image, 256, 16, lambda x: x, overlap=0.25, mode="gaussian")
    return clock


METHODS = {"sheafstain": ours, "NumPy canvases": canvases, "MONAI": monai}


def measure(case: dict) -> dict:
    method, size, repeat = METHODS[case["method"]], Size(*case["size"]), case["repeat"]
    clocks = [method(size, case["windows"], case["cover"] != "lattice", case["defect"] == "yes") for _ in range(repeat)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    wall, cpu = min(clock.wall for clock in clocks), min(clock.cpu for clock in clocks)
    return {"mpx_per_s": size.area / 1e6 / wall, "mpx_per_cpu_s": size.area / 1e6 / cpu, "peak_mb": peak / 1e6}


def cases(repeat: int) -> Iterator[dict]:
    for size in SIZES:
        common = {"size": (size.h, size.w), "repeat": repeat}
        for windows in ("uint8", "float32"):
            for cover in ("lattice", "lattice and extras"):
                for defect in ("no", "yes"):
                    yield {"method": "sheafstain", "windows": windows, "cover": cover, "defect": defect, **common}
        for defect in ("no", "yes"):
            yield {"method": "NumPy canvases", "windows": "uint8", "cover": "lattice", "defect": defect, **common}
        if importlib.util.find_spec("monai") is None:
            print("MONAI is absent: pip install monai to compare with it")
        else:
            yield {
                "method": "MONAI",
                "windows": "float32",
                "cover": "lattice",
                "defect": "no",
                **common,
                "repeat": min(repeat, 2),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(json.loads(arguments.case))))
        return
    found = []
    for case in cases(arguments.repeat):
        done = subprocess.run(
            [sys.executable, __file__, "--case", json.dumps(case)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(done.stderr)
        result = json.loads(done.stdout.splitlines()[-1])
        named = {key: value for key, value in case.items() if key != "repeat"}
        found.append({**named, "size": str(Size(*case["size"])), **result})
        print(found[-1], flush=True)
    record("glue", found)
    for size in map(str, SIZES):
        here = [row for row in found if row["size"] == size]
        for defect in ("no", "yes"):
            base = next(r for r in here if r["method"] == "sheafstain" and r["defect"] == defect)
            for row in here:
                if row["method"] != "sheafstain" and row["defect"] == defect:
                    speed, memory = base["mpx_per_s"] / row["mpx_per_s"], row["peak_mb"] / base["peak_mb"]
                    print(f"{size}, defect {defect}: {speed:.1f} × as fast as {row['method']}, memory 1/{memory:.1f}")


if __name__ == "__main__":
    main()
