"""How fast does an encoder turn crops into tokens?

    python benchmarks/encode.py --random-weights prov-gigapath            # on a GPU: the paper's 200 crops of one image
    python benchmarks/encode.py --encoder random-tiny --device cpu --crops 32

Times ``Encoder.encode`` from uint8 crops in host memory to float32 tokens on the device, eager and compiled, in float32
and bfloat16, in one process. Each row has the milliseconds for all crops, crops and TFLOP per second (a multiply-add is
two operations) and the ratio to the first row. Weights do not change speed: ``--random-weights`` builds any registered
architecture with seeded random ones on the device, so that no gated file is needed.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch
from machine import record

from sheafstain.sheaf.backbone import random_network
from sheafstain.sheaf.encoders import Encoder, load_encoder
from sheafstain.sheaf.registry import find_encoder

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--encoder", help="a registered name, a folder, or NAME=FILE")
    which.add_argument("--random-weights", metavar="NAME", help="the architecture of a registered encoder")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--crops", type=int, default=200, help="the paper's forward passes for one 1024² image")
    parser.add_argument("--batch", type=int, help="crops per forward pass; when not given all of them, at most 256")
    parser.add_argument("--repeat", type=int, default=5, help="timed runs of each row, of which the median counts")
    parser.add_argument(
        "--modes",
        nargs="+",
        choices=[f"{mode}-{kind}" for mode in ("eager", "compiled") for kind in TYPES],
        help="when not given all on a GPU, the eager ones on a CPU",
    )
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    batch = arguments.batch or min(arguments.crops, 256)
    ways = ("eager", "compiled") if device.type == "cuda" else ("eager",)
    modes = arguments.modes or [f"{way}-{kind}" for way in ways for kind in TYPES]
    crops = np.random.default_rng(0).integers(0, 256, (arguments.crops, 224, 224, 3), np.uint8)
    rows: list[dict[str, object]] = []
    slowest = 0.0
    for mode in modes:
        print(f"{mode} …", flush=True)
        encoder = make(arguments, device, batch, mode)
        on_gpu = device.type == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(device)
        first, seconds = timed(encoder, crops, arguments.repeat)
        slowest = slowest or seconds
        gflop = encoder.entry.gflop
        rows.append(
            {
                "encoder": encoder.id,
                "weights": encoder.weights_hash[:12],
                "device": str(device),
                "threads": torch.get_num_threads(),
                "mode": mode,
                "crops": arguments.crops,
                "batch": batch,
                "ms": 1e3 * seconds,
                "crops_per_s": arguments.crops / seconds,
                "tflop_per_s": arguments.crops * gflop / 1e3 / seconds if gflop else "",
                "times_the_first": slowest / seconds,
                "first_run_s": first,
                "peak_gib": torch.cuda.max_memory_allocated(device) / 2**30 if on_gpu else "",
            }
        )
        del encoder
    record("encode", rows)


def make(arguments: argparse.Namespace, device: torch.device, batch: int, mode: str) -> Encoder:
    way, kind = mode.split("-")
    if arguments.encoder:
        return load_encoder(arguments.encoder, device=device, dtype=TYPES[kind], compile=way == "compiled", batch=batch)
    entry = find_encoder(arguments.random_weights)
    network = random_network(entry, device=str(device), seed=0)
    return Encoder(
        network,
        entry,
        weights_hash="random",
        device=device,
        dtype=TYPES[kind],
        compile=way == "compiled",
        batch=batch,
    )


def timed(encoder: Encoder, crops: np.ndarray, repeat: int) -> tuple[float, float]:
    """Seconds of the first run, with compilation, and the median of the later ones, each until the device is idle."""

    def run() -> float:
        start = time.perf_counter()
        (tokens,) = encoder.encode([crops])
        if encoder.device.type == "cuda":
            torch.cuda.synchronize(encoder.device)
        seconds = time.perf_counter() - start
        if tokens.patch.shape != (len(crops), encoder.grid**2, encoder.width) or not tokens.patch.isfinite().all():
            raise RuntimeError(f"tokens of shape {tuple(tokens.patch.shape)}, or not finite")
        return seconds

    first = run()
    run()
    return first, statistics.median(run() for _ in range(repeat))


if __name__ == "__main__":
    main()
