"""How fast is an image translated with real networks, and how far is that from what the chip could do?

    python benchmarks/stain.py                            # on a GPU: the paper's networks, one 1024² image
    python benchmarks/stain.py --slide 20000 --rows 6000  # and a phantom slide, of which so many rows are translated
    python benchmarks/stain.py --size embedded            # networks of the embedded size, also on a CPU

Weights are random and do not change speed. Each row is ``Stainer.stain`` from an array to an array: the paper's
protocol (a neighbourhood of crops around each of 34 windows), the lattice (one walk of the encoder), and no
conditioning, which is what the generator costs alone; the median of ``--repeat`` calls after two to warm up. Beside the
whole stand its two networks by themselves, on as many crops and windows in as large batches, and the floor: all their
floating-point operations (a multiply-add is two) over the chip's measured rate for bfloat16 products.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import record
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from sheafstain.bridge.noise import CanvasNoise
from sheafstain.datasets.phantom.phantom import Phantom
from sheafstain.datasets.phantom.slide import write_slide
from sheafstain.datasets.phantom.specimen import Specimen
from sheafstain.device import choose_device
from sheafstain.methods.engine import Engine
from sheafstain.methods.model import Model, ModelConfig
from sheafstain.methods.registry import find_method
from sheafstain.sheaf.backbone import random_network
from sheafstain.sheaf.encoders import Encoder
from sheafstain.sheaf.registry import find_encoder
from sheafstain.translate.stainer import GPU_CROPS, Stainer
from sheafstain.window import CELL, Resolution, Size, Window

PEAK = 790.0  # TFLOP/s of an 8192³ bfloat16 product on one H200
SIDE = 256
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "paper": ("prov-gigapath", {}),
    "embedded": ("phantom-small", {"ngf": 16, "ndf": 32, "blocks": 6}),
}
CASES = {"paper protocol": "neighborhood", "lattice": "lattice", "no conditioning": "none"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(NETWORKS), default="paper")
    parser.add_argument("--side", type=int, default=1024, help="of the image")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--slide", type=int, help="side of a phantom slide, in px at 0.5 µm")
    parser.add_argument("--rows", type=int, help="translate this many rows from the middle of the slide; else all")
    parser.add_argument("--keep", type=Path, help="the slide's file, drawn if it is not there")
    parser.add_argument("--device")
    arguments = parser.parse_args()
    stainer = make(arguments.size, choose_device(arguments.device))
    he = Phantom(Specimen.draw(0)).draw(Window(0, 0, arguments.side, arguments.side), ("he",))["he"]
    rows: list[dict[str, object]] = []
    for case, conditioning in CASES.items():
        rows.append(image(stainer, he, f"{arguments.side}², {case}", conditioning, arguments, rows))
    if arguments.slide:
        rows.append(slide(stainer, arguments, rows))
    record("stain", rows)


def make(size: str, device: torch.device) -> Stainer:
    name, settings = NETWORKS[size]
    entry, method = find_encoder(name), find_method("sheafstain")
    engine = Engine.on(device)
    torch.manual_seed(0)
    config = ModelConfig("random", "sheafstain", "HER2", 0.5, settings, entry.width, name)
    generator = method.build_generator(method.settings(**settings), entry.width)
    on_gpu = device.type == "cuda"
    encoder = Encoder(
        random_network(entry, device=str(device), seed=0), entry, weights_hash="random", device=device,
        dtype=engine.dtype, compile=engine.compile, batch=GPU_CROPS if on_gpu else 16,
    )  # fmt: skip
    return Stainer(Model(config, generator, engine, "random"), encoder)


def image(
    stainer: Stainer,
    he: np.ndarray,
    case: str,
    conditioning: Any,
    arguments: argparse.Namespace,
    rows: list[dict[str, object]],
) -> dict[str, object]:
    print(f"{case} …", flush=True)
    encoder, device = encoder_of(stainer), stainer.model.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    crops: list[int] = []
    run, encoder._run = encoder._run, lambda batch: (crops.append(len(batch)), run(batch))[1]  # type: ignore[method-assign]
    began = time.perf_counter()
    stained = stainer.stain(he, conditioning=conditioning)
    first = time.perf_counter() - began
    encoder._run = run  # type: ignore[method-assign]
    seconds = median(lambda: stainer.stain(he, conditioning=conditioning), arguments.repeat, device)
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else ""
    windows = stained.report["windows"]["translated_by_this_run"]
    tflop = (sum(crops) * (encoder.entry.gflop or 0) + windows * of_window(stainer, conditioning)) / 1e3
    alone = (
        median(lambda: encode(encoder, sum(crops)), arguments.repeat, device) if crops else 0.0,
        median(lambda: generate(stainer, windows, conditioning), arguments.repeat, device),
    )
    return {
        "networks": arguments.size,
        "case": case,
        "windows": windows,
        "crops": sum(crops),
        "seconds": seconds,
        "encoder_s": alone[0],
        "generator_s": alone[1],
        "tflop": tflop,
        "times_floor": seconds * PEAK / tflop if device.type == "cuda" else "",
        "mm2_per_s": (he.shape[0] * 0.5e-3) * (he.shape[1] * 0.5e-3) / seconds,
        "times_the_first": float(str(rows[0]["seconds"])) / seconds if rows else 1.0,
        "first_run_s": first,
        "peak_gib": peak,
        "stages": " ".join(f"{name} {value}" for name, value in stained.report["seconds"].items()),
    }


def slide(stainer: Stainer, arguments: argparse.Namespace, rows: list[dict[str, object]]) -> dict[str, object]:
    """The slide through files, as ``sheafstain stain`` does it: tissue alone. Its mm² are of all, glass included."""
    side = arguments.slide
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.keep or Path(folder) / "slide.tif"
        if not path.exists():
            write_slide(path, 1, Size(side, side), Resolution(0.5))
        height = min(arguments.rows or side, side)
        region = Window((side - height) // 2 // CELL * CELL, 0, height, side)
        print(f"{side}², {height} rows …", flush=True)
        began = time.perf_counter()
        written = stainer.stain_file(path, Path(folder) / "out.tif", region=region)
        seconds = time.perf_counter() - began
    report = written.report
    mm2 = region.area * 0.5e-3**2
    return {
        **dict.fromkeys(rows[0], ""),
        "networks": arguments.size,
        "case": f"{side}² slide, {height} rows of it, lattice",
        "windows": report["windows"]["translated_by_this_run"],
        "seconds": seconds,
        "mm2_per_s": mm2 / seconds,
        "stages": " ".join(f"{name} {value}" for name, value in report["seconds"].items()),
    }


def encoder_of(stainer: Stainer) -> Encoder:
    assert isinstance(stainer.encoder, Encoder)
    return stainer.encoder


def encode(encoder: Encoder, count: int) -> None:
    crops = torch.full((count, encoder.crop, encoder.crop, 3), 127, dtype=torch.uint8, device=encoder.device)
    for _ in encoder.encode([crops]):
        pass


def generate(stainer: Stainer, windows: int, conditioning: str) -> None:
    for _ in range(-(-windows // stainer.batch)):
        stainer.model.translate(*inputs(stainer, stainer.batch, conditioning))


def inputs(stainer: Stainer, count: int, conditioning: str) -> tuple[Tensor, CanvasNoise, Tensor | None, Tensor | None]:
    model, width = stainer.model, encoder_of(stainer).width
    he = torch.zeros(count, SIDE, SIDE, 3, device=model.device).permute(0, 3, 1, 2)
    place = [Window(0, 0, SIDE, SIDE)] * count
    noise = CanvasNoise(torch.zeros(count, dtype=torch.int64, device=model.device), place, model.latent_width)
    if conditioning == "none":
        return he, noise, None, None
    cells = SIDE // CELL
    M = torch.zeros(count, width, cells, cells, device=model.device)
    return he, noise, M, torch.zeros(count, width, device=model.device)


def of_window(stainer: Stainer, conditioning: str) -> float:
    """GFLOP of all evaluations for one window, counted by torch in the network as it is, not compiled."""
    model = stainer.model
    assert isinstance(model, Model)
    predict, model._predict = model._predict, model._generator
    with FlopCounterMode(display=False) as counter:
        model.translate(*inputs(stainer, 1, conditioning))
    model._predict = predict
    return counter.get_total_flops() / 1e9


def median(work: Callable[[], object], repeat: int, device: torch.device) -> float:
    def run() -> float:
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    run()
    return statistics.median(run() for _ in range(repeat))


if __name__ == "__main__":
    main()
