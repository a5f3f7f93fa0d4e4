"""How long is a training step, how much memory does it take, and where does the time go?

    python benchmarks/train.py --method unsb --batch 24                   # float32 eager beside bfloat16 compiled
    python benchmarks/train.py --method sheafstain --batch 24 --profile profile.csv
    python benchmarks/train.py --method sheafstain --batch 24 --live prov-gigapath
    python benchmarks/train.py --method unsb --batch 2 --curves curves.csv --seeds 3

Steps are those of ``training.loop`` at the paper's sizes, on random pixels and random sections that are resident on the
device: neither changes the time. Each row is compared with the first one of the run, which is the float32 eager loop
unless ``--modes`` says otherwise. The time index of a step decides how long its chains are, so every row times the same
steps. ``--live`` adds a row with the encoder in every step (random weights; they do not change speed), ``--curves``
trains both precisions on a phantom for 300 steps and writes their losses; several ``--seeds`` tell how far two runs
of one precision are apart.
"""

from __future__ import annotations

import argparse
import csv
import gc
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from machine import record
from torch.utils.flop_counter import FlopCounterMode

from sheafstain.device import choose_device
from sheafstain.methods.engine import Engine
from sheafstain.methods.registry import find_method
from sheafstain.sheaf.backbone import random_network
from sheafstain.sheaf.cover import Lattice
from sheafstain.sheaf.encoders import Encoder
from sheafstain.sheaf.registry import find_encoder
from sheafstain.sheaf.section import Section
from sheafstain.training.batches import Batches
from sheafstain.training.conditioning import Conditioning, LiveSections, ResidentSections
from sheafstain.training.config import DataConfig, TrainConfig
from sheafstain.training.loop import Loop
from sheafstain.training.parallel import World
from sheafstain.training.sampling import Sampler
from sheafstain.training.store import PixelStore
from sheafstain.window import CELL, Size, Window

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
RELEASED_MS = {24: 1045, 8: 421, 1: 152}  # UNSB's released code on one H200, float32 as shipped
IMAGES = 8
PROFILED = 5  # steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="sheafstain")
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--side", type=int, default=1024, help="of the images")
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--width", type=int, default=1536, help="of the sections")
    parser.add_argument("--ngf", type=int, default=64)
    parser.add_argument("--steps", type=int, default=15, help="timed steps of each row")
    parser.add_argument("--modes", nargs="+", default=["eager-float32", "compiled-bfloat16"])
    parser.add_argument("--live", metavar="ENCODER", help="also with this encoder in every step, random weights")
    parser.add_argument("--profile", type=Path, help="write the kernels of the last mode into this CSV")
    parser.add_argument(
        "--curves", type=Path, help="write the losses of 300 steps in every mode here, and time nothing"
    )
    parser.add_argument("--seeds", type=int, default=1, help="curves of each mode; their spread is the noise")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    if arguments.curves:
        curves(arguments)
        return
    rows: list[dict[str, object]] = []
    for mode in arguments.modes:
        rows.append(measured(arguments, mode, "cached" if arguments.method == "sheafstain" else "none", rows))
    if arguments.live:
        rows.append(measured(arguments, arguments.modes[-1], f"live {arguments.live}", rows))
    record("train", rows)


def measured(
    arguments: argparse.Namespace, mode: str, sections: str, rows: list[dict[str, object]]
) -> dict[str, object]:
    print(f"{arguments.method} {mode}, sections {sections} …", flush=True)
    loop = make(arguments, mode, sections)
    device = loop.world.device
    begun = time.perf_counter()
    for _ in range(4):
        loop.take_step()
    wait(device)
    first = time.perf_counter() - begun
    loop.step = loop.seen = 0  # every mode walks the same chains
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = []
    for _ in range(arguments.steps):
        start = time.perf_counter()
        loop.take_step()
        wait(device)
        seconds.append(time.perf_counter() - start)
    ms = 1e3 * float(np.mean(seconds))
    loop.step = loop.seen = 0
    start = time.perf_counter()
    for _ in range(arguments.steps):
        loop.take_step()  # without waiting: what training does
    wait(device)
    flowing = 1e3 * (time.perf_counter() - start) / arguments.steps
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0
    if arguments.profile and mode == arguments.modes[-1] and sections in ("cached", "none"):
        profile(loop, arguments.profile)
    tflop = counted(arguments) if not rows else float(str(rows[0]["tflop"]))
    released = RELEASED_MS.get(arguments.batch, math.nan)
    del loop
    free()
    return {
        "method": arguments.method,
        "mode": mode,
        "sections": sections,
        "batch": arguments.batch,
        "ms": flowing,
        "ms_waiting": ms,
        "images_per_s": 1e3 * arguments.batch / flowing,
        "peak_gib": peak,
        "tflop": tflop,
        "tflop_per_s": tflop / flowing * 1e3,
        "times_the_first": float(str(rows[0]["ms"])) / flowing if rows else 1.0,
        "times_released_unsb": released / flowing,
        "first_steps_s": first,
    }


def make(
    arguments: argparse.Namespace,
    mode: str,
    sections: str,
    he: list[np.ndarray] | None = None,
    ihc: list[np.ndarray] | None = None,
    seed: int = 0,
) -> Loop:
    way, kind = mode.split("-")
    device = choose_device(arguments.device)
    engine = Engine.on(device, TYPES[kind], compile=way == "compiled")
    entry = find_method(arguments.method)
    own = {"ngf": arguments.ngf, "ndf": arguments.ngf} | (
        {"stain_align": 0.0} if arguments.method == "sheafstain" else {}
    )
    own |= {"as_released": True} if arguments.method == "unsb" and mode == "eager-float32" and not ihc else {}
    settings = entry.settings(**own)
    torch.manual_seed(seed)
    width = arguments.width if arguments.method == "sheafstain" else 0
    method = entry.train(settings, engine, width, None)
    random = np.random.default_rng(0)
    images = he or [random.integers(0, 256, (arguments.side, arguments.side, 3), np.uint8) for _ in range(IMAGES)]
    stores = PixelStore.of(images, device), PixelStore.of(ihc or images, device)
    sampler = Sampler(
        [np.ones((i.shape[0] // CELL, i.shape[1] // CELL), bool) for i in images],
        stores[0].sizes, seed, arguments.window, method.needs.adjacent,
    )  # fmt: skip
    conditioning = conditioned(arguments, sections, stores[0], device) if method.needs.sections else None
    batches = Batches(sampler, *stores, method.needs, conditioning)
    config = TrainConfig(
        DataConfig("random", window=arguments.window), settings, arguments.method, batch=arguments.batch, seed=seed
    )
    return Loop(config, method, batches, World(device=device))


def conditioned(arguments: argparse.Namespace, sections: str, pixels: PixelStore, device: torch.device) -> Conditioning:
    if sections.startswith("live "):
        entry = find_encoder(sections.removeprefix("live "))
        network = random_network(entry, device=str(device), seed=0)
        encoder = Encoder(
            network, entry, weights_hash="random", device=device, dtype=torch.bfloat16,
            compile=device.type == "cuda", batch=256,
        )  # fmt: skip
        return LiveSections(pixels, encoder, "neighborhood", 80)
    return ResidentSections(random_sections(arguments, len(pixels)), len(pixels), device)


def random_sections(arguments: argparse.Namespace, count: int) -> Iterator[Section]:
    size = Size(arguments.side, arguments.side)
    cells = arguments.side // CELL
    crops = list(Lattice.over(size, 224, 80))
    corners = torch.tensor([(c.y, c.x) for c in crops])
    for _ in range(count):
        tokens = torch.randn(cells, cells, arguments.width)
        cls = torch.randn(len(crops), arguments.width)
        yield Section(Window.of(size), tokens, torch.ones(cells, cells, dtype=torch.int32), corners, cls)


def counted(arguments: argparse.Namespace) -> float:
    """TFLOP of a mean step: one eager step for each time index, counted by torch (a multiply-add is two).

    A batch of one is counted, and the product taken: nothing in a step grows faster than its batch.
    """
    single = argparse.Namespace(**{**vars(arguments), "batch": 1})
    loop = make(single, "eager-bfloat16" if arguments.device == "cuda" else "eager-float32", "cached")
    T = loop.method.grid.T if hasattr(loop.method, "grid") else 1  # type: ignore[attr-defined]
    total, seen = 0.0, set[int]()
    step = 0
    while len(seen) < T and step < 200:
        loop.step, step = step, step + 1
        i = loop._batch(loop.step, 0)[1].integer("time", T)
        if i in seen:
            continue
        seen.add(i)
        with FlopCounterMode(display=False) as counter:
            loop.take_step()
        total += counter.get_total_flops() / 1e12
    del loop
    free()
    return arguments.batch * total / max(len(seen), 1)


def profile(loop: Loop, path: Path) -> None:
    """Milliseconds and calls of every kernel in a mean step, the longest first."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    loop.step = loop.seen = 0
    with profiled(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(PROFILED):
            loop.take_step()
        wait(loop.world.device)
    kernels = sorted(found.key_averages(), key=lambda kernel: -kernel.self_device_time_total)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["ms", "calls", "kernel"])
        for kernel in kernels:
            ms = kernel.self_device_time_total / 1e3 / PROFILED
            writer.writerow([f"{ms:.4f}", f"{kernel.count / PROFILED:.1f}", kernel.key])


def curves(arguments: argparse.Namespace) -> None:
    """Losses of 300 steps on a phantom in every mode, from the same start on the same batches."""
    from sheafstain.datasets.phantom.phantom import Phantom
    from sheafstain.datasets.phantom.specimen import Specimen

    size = Size(arguments.side, arguments.side)
    he, ihc = [], []
    for seed in range(2):
        layers = Phantom(Specimen.draw(seed)).draw(Window.of(size), ("he", "ihc"))
        he.append(layers["he"])
        ihc.append(layers["ihc"])
    runs = [(mode, seed) for mode in arguments.modes for seed in range(arguments.seeds)]
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for mode, seed in runs:
        print(f"{mode}, seed {seed} …", flush=True)
        loop = make(arguments, mode, "cached", he, ihc, seed)
        found[mode, seed] = []
        for _ in range(30):
            for _ in range(10):
                loop.take_step()
            found[mode, seed].append(loop.report(Path()).losses)
        del loop
        free()
    arguments.curves.parent.mkdir(parents=True, exist_ok=True)
    with arguments.curves.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = list(found[runs[0]][0])
        writer.writerow(["steps", *(f"{mode} {seed} {name}" for mode, seed in runs for name in names)])
        for k in range(30):
            writer.writerow([10 * k + 10, *(f"{found[run][k][name]:.5g}" for run in runs for name in names)])
    for name in names:
        for mode in arguments.modes:
            means = [np.mean([row[name] for row in found[mode, seed][10:]]) for seed in range(arguments.seeds)]
            print(f"{name}, {mode}: {np.mean(means):.4g} ± {np.std(means):.2g} between seeds", flush=True)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
