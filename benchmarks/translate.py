"""How fast is the whole path from slide to slide, and in how much memory?

    python benchmarks/translate.py

The model is one that returns what it gets: with real networks see ``stain.py``.
The whole path is what ``sheafstain stain`` does: JPEG tiles of a slide are decoded, windows cut, translated and glued,
stain and defect map encoded with all levels of their pyramids. Each case runs in a process of its own, so that the peak
of its memory is its own; it includes Python and PyTorch. A small slide goes first and loads what is loaded when it is
needed (``startup.py`` tells of that). The best of ``--repeat`` runs counts. What MONAI, TIAToolbox and LazySlide need
for the same stitching without a defect map, measured on two such cores, is printed beside it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import record
from torch import Tensor

from sheafstain.bridge.noise import CanvasNoise
from sheafstain.methods.method import Tiling
from sheafstain.methods.model import ModelConfig
from sheafstain.translate.stainer import Stainer
from sheafstain.window import Size

# Mpx/s and GB for 8192², identity model, two cores, blending and encoding included, no defect map.
OTHERS = {"MONAI": (1.5, 3.7), "TIAToolbox": (4.8, 0.5), "LazySlide": (5.3, 1.0)}


class Identity:
    """Returns what it gets."""

    config = ModelConfig(name="identity", method="unsb", stain="none", mpp=0.5, settings={})
    tiling = Tiling(side=256, stride=192, refine=True)
    conditioning, hash, latent_width, evaluations = "none", "0" * 64, 4, 1
    device = torch.device("cpu")

    def translate(
        self,
        he: Tensor,
        noise: CanvasNoise,
        M: Tensor | None = None,
        c_n: Tensor | None = None,
        *,
        nfe: int | None = None,
    ) -> Tensor:
        return he


def texture(side: int = 1024, seed: int = 0) -> np.ndarray:
    """Something that looks to a codec as tissue does: spots of many sizes, pink and blue, uint8 [side, side, 3]."""
    rng = np.random.default_rng(seed)
    density = np.zeros((side, side))
    for octave in (4, 8, 16, 32, 64, 128, 256, 512):
        coarse = torch.from_numpy(rng.standard_normal((1, 1, octave, octave)))
        density += torch.nn.functional.interpolate(coarse, side, mode="bicubic")[0, 0].numpy() / octave**0.6
    density = (density - density.min()) / np.ptp(density)
    blue, pink = np.array([90.0, 60, 140]), np.array([235.0, 190, 215])
    return (pink + (blue - pink) * (density**2)[..., None]).clip(0, 255).astype(np.uint8)


def draw_slide(path: Path, size: Size, glass: float = 0.0) -> Path:
    """A JPEG pyramid of the texture, shifted from row to row; a share of its width is glass."""
    from sheafstain.slides.write import open_writer
    from sheafstain.window import Resolution

    tile = texture()
    wide = np.tile(tile, (1, -(-size.w // 1024) + 1, 1))
    with open_writer(path, size, Resolution(0.5), description={"stain": "H&E"}) as writer:
        for y in range(0, size.h, 1024):
            shift = (y // 1024 * 331) % 1024
            rows = wide[: min(1024, size.h - y), shift : shift + size.w].copy()
            rows[:, round(size.w * (1 - glass)) :] = 244
            writer.rows(rows)
    return path


def identity(case: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=case["folder"]) as folder:
        stainer = Stainer(Identity(), batch=case["batch"])
        small = draw_slide(Path(folder) / "small.tif", Size(1024, 1024))
        stainer.stain_file(small, Path(folder) / "small-out.tif", cover=case["cover"])
        began = time.perf_counter()
        cpu = time.process_time()
        written = stainer.stain_file(case["slide"], Path(folder) / "out.tif", cover=case["cover"])
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    seconds = written.report["seconds"]
    return {"wall": wall, "cpu": cpu, **{key: seconds[key] for key in ("decode", "compute", "glue", "write")}}


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def whole_path(repeat: int, quick: bool) -> None:
    sizes = [(Size(8192, 8192), 0.0), (Size(8192, 8192), 0.6)]
    if not quick:
        sizes.append((Size(16384, 32768), 0.0))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size, glass in sizes:
            slide = draw_slide(Path(folder) / f"{size.w}-{size.h}-{glass}.tif", size, glass)
            for cover in ("lattice", "refined"):
                case = {"slide": str(slide), "cover": cover, "folder": folder, "batch": 16}
                results = [in_process(case) for _ in range(repeat if size.h == 8192 else 1)]
                best = min(results, key=lambda result: result["wall"])
                rows.append(
                    {
                        "case": f"identity, {size}, {round(100 * glass)} % glass",
                        "cover": cover,
                        "mpx_per_s": size.area / 1e6 / best["wall"],
                        "mpx_per_cpu_s": size.area / 1e6 / best["cpu"],
                        "peak_mb": max(result["peak_mb"] for result in results),
                        "decode_s": best["decode"],
                        "compute_s": best["compute"],
                        "glue_s": best["glue"],
                        "write_s": best["write"],
                    }
                )
                print(rows[-1], flush=True)
            slide.unlink()
    record("translate", rows)
    ours = next(row for row in rows if row["cover"] == "lattice")
    for name, (speed, memory) in OTHERS.items():
        print(f"{name}: {speed} Mpx/s, {memory} GB; ours with the defect map {ours['mpx_per_s'] / speed:.1f} × as fast")


def in_process(case: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--case", json.dumps(case)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="without the slide of half a gigapixel")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        result = identity(json.loads(arguments.case))
        print(json.dumps({**result, "peak_mb": peak_mb()}))
    else:
        whole_path(arguments.repeat, arguments.quick)


if __name__ == "__main__":
    main()
