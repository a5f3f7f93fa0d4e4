"""How fast is the suite against torchmetrics, called one image at a time for the same metrics, and at what memory?

    python benchmarks/score.py --weights FOLDER      # AlexNet, VGG16 and heads; without it only what needs no network
    python benchmarks/score.py --long 1000           # many images: memory, and a run that is killed half-way

Each case runs in a process of its own, from phantom pairs on disk (1024², PNG) to means: decoding is part of it, and
building networks is not. The rival loop reads a pair with Pillow, updates torchmetrics' modular metrics with it, and
goes on to the next; its networks carry the same weights, in files laid out as torchvision would have fetched them.
The two take turns, and of each the fastest of its runs counts. ``core_s`` is processor time for an image, which other
work on the machine changes less than the clock. Rows without a rival are metrics that torchmetrics does not have.

The long run is that of the command itself, without networks: a tenth of the images, all of them, and all of them again
with a SIGKILL in the middle and the same command once more. Its images are a few phantoms, rolled and flipped (JPEG).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import cores, record

CASES = {  # case: metrics, images, turns, has torchmetrics got them?
    "PSNR, SSIM": (("psnr", "ssim"), 16, 3, True),
    "PSNR, SSIM, LPIPS": (("psnr", "ssim", "lpips"), 8, 2, True),
    "PSNR, SSIM, LPIPS, DISTS": (("psnr", "ssim", "lpips", "dists"), 2, 1, True),
    "seams and DAB": (("seam", "chromogen"), 8, 3, False),
}
NETWORKS = {"lpips", "dists"}


def draw(folder: Path, count: int) -> None:
    """Phantom pairs: H&E in HE/train, IHC in IHC/train, which stand for translated and real images here."""
    from sheafstain.datasets.phantom.dataset import write_dataset
    from sheafstain.datasets.phantom.plan import Plan
    from sheafstain.window import Resolution, Size

    write_dataset(folder, Plan("pairs", 3, count, 0, ("HER2",), Size(1024, 1024), Resolution(0.5), 4, False))


def as_torchvision_would(weights: Path, home: Path) -> None:
    """The files that torchvision fetches; of the classifiers, which no metric uses, only the shapes are right."""
    import torch
    from safetensors.torch import load_file
    from torchvision import models

    for file, name, build in (
        ("alexnet_features_imagenet_torchvision.safetensors", "alexnet-owt-7be5be79.pth", models.alexnet),
        ("vgg16_features_imagenet_torchvision.safetensors", "vgg16-397923af.pth", models.vgg16),
    ):
        with torch.device("meta"):
            shapes = build(weights=None).state_dict()
        state = {key: torch.zeros(value.shape) for key, value in shapes.items()} | load_file(weights / file)
        target = home / "hub" / "checkpoints" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, target)


def suite(data: Path, metrics: tuple[str, ...], count: int, weights: Path | None) -> dict[str, float]:
    from dataclasses import replace

    import torch

    from sheafstain.metrics.protocol import choose
    from sheafstain.metrics.scoring import score
    from sheafstain.metrics.sources import list_items
    from sheafstain.metrics.suite import Suite

    listing = list_items(data / "HE" / "train", data / "IHC" / "train")
    measures = Suite(choose(metrics, ()), folder=weights)
    if measures.light:
        torch.set_num_threads(1)  # as the command does
    if measures.left_out:
        raise RuntimeError(f"{measures.left_out[0].name}: {measures.left_out[0].reason}")
    with tempfile.TemporaryDirectory() as out:
        score(replace(listing, items=listing.items[-1:]), measures, Path(out) / "first", name="first")
        start, cpu = time.perf_counter(), time.process_time()
        some = replace(listing, items=listing.items[:count])
        report = score(some, measures, Path(out) / "timed", name="timed", batch=1, workers=cores())
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {"seconds": seconds, "cpu": cpu} | {result.key: result.value or 0.0 for result in report.results}


def one_by_one(data: Path, metrics: tuple[str, ...], count: int) -> dict[str, float]:
    import numpy as np
    import torch
    from PIL import Image
    from torchmetrics import image as rival

    makers = {
        "psnr": lambda: rival.PeakSignalNoiseRatio(data_range=1.0, reduction="elementwise_mean", dim=(1, 2, 3)),
        "ssim": lambda: rival.StructuralSimilarityIndexMeasure(data_range=1.0),
        "lpips": lambda: rival.LearnedPerceptualImagePatchSimilarity("alex", normalize=True),
        "dists": lambda: rival.DeepImageStructureAndTextureSimilarity(reduction="mean"),
    }
    measures = {key: makers[key]() for key in metrics}
    names = sorted(path.name for path in (data / "IHC" / "train").iterdir())

    def update(name: str) -> None:
        pred, real = (
            torch.from_numpy(np.array(Image.open(data / side / "train" / name))).permute(2, 0, 1)[None].float() / 255
            for side in ("HE", "IHC")
        )
        for measure in measures.values():
            measure.update(pred, real)

    with torch.no_grad():
        update(names[-1])
        for measure in measures.values():
            measure.reset()
        start, cpu = time.perf_counter(), time.process_time()
        for name in names[:count]:
            update(name)
        values = {key: float(measure.compute()) for key, measure in measures.items()}
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {"seconds": seconds, "cpu": cpu} | values


def run(
    how: str, data: Path, metrics: tuple[str, ...], count: int, weights: Path | None, home: Path
) -> dict[str, float]:
    """In a process of its own, so that memory is its own."""
    command = [sys.executable, __file__, "--child", how, str(data), ",".join(metrics), str(count), str(weights or "")]
    done = subprocess.run(command, env=os.environ | {"TORCH_HOME": str(home)}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def child(how: str, data: str, metrics: str, count: str, weights: str) -> None:
    chosen = tuple(metrics.split(","))
    folder = Path(weights) if weights else None
    if how == "suite":
        found = suite(Path(data), chosen, int(count), folder)
    else:
        found = one_by_one(Path(data), chosen, int(count))
    import torch

    print(json.dumps(found | {"peak_mb": peak_mb(), "threads": torch.get_num_threads()}))


def peak_mb() -> float:
    """Of this process alone: ``ru_maxrss`` starts, on Linux, with what the parent had when it forked."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) / 1024  # type: ignore[index]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


# --- many images -----------------------------------------------------------------------------------------------------


def write_many(folder: Path, count: int, drawn: int = 16) -> None:
    """``count`` pairs of JPEG files from a few phantoms: drawn once, then rolled, turned and mirrored alike."""
    import numpy as np
    from PIL import Image

    draw(folder / "drawn", drawn)
    pairs = [
        [np.asarray(Image.open(file)) for file in files]
        for files in zip(
            *(sorted((folder / "drawn" / side / "train").iterdir()) for side in ("HE", "IHC")), strict=True
        )
    ]
    for i in range(count):
        for side, pixels in zip(("pred", "real"), pairs[i % drawn], strict=True):
            changed = np.roll(np.rot90(pixels, i % 4), (37 * i, 53 * i), (0, 1))[:: 1 - 2 * (i % 2)]
            target = folder / side / f"{i:05}.jpg"
            target.parent.mkdir(exist_ok=True)
            Image.fromarray(changed).save(target, quality=90)


def score_many(data: Path, out: Path, count: int, kill_at: int = 0) -> dict[str, float]:
    """The command on the first ``count`` images; killed when so many are measured, where that is not 0."""
    command = [sys.executable, __file__, "--command", str(data), str(out), str(count)]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        log = out / "images.jsonl"
        while kill_at and process.poll() is None:
            time.sleep(0.05)
            if log.exists() and log.read_bytes().count(b"\n") > kill_at:  # the first line is the protocol
                process.send_signal(signal.SIGKILL)
                break
        said, _ = process.communicate()
    found = {"seconds": time.perf_counter() - start, "measured": log.read_bytes().count(b"\n") - 1}
    return found if kill_at else found | json.loads(said.splitlines()[-1])


def command(data: str, out: str, count: str) -> None:
    from sheafstain.cli.score import score

    folder, start = Path(data), time.process_time()
    limit = int(count) if int(count) < len(list((folder / "real").iterdir())) else None
    score(
        folder / "pred", folder / "real", output=Path(out), metrics=("psnr", "ssim", "seam", "chromogen"), limit=limit
    )
    print(json.dumps({"peak_mb": peak_mb(), "cpu": time.process_time() - start}))


def long(count: int) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch)
        write_many(data, count)
        runs = {"a tenth": score_many(data, data / "few", count // 10), "all": score_many(data, data / "all", count)}
        killed = score_many(data, data / "killed", count, kill_at=count // 2)
        again = score_many(data, data / "killed", count)
        again["measured"] -= killed["measured"]
        runs |= {"killed": killed, "the same again": again}
        if (data / "all" / "report.csv").read_bytes() != (data / "killed" / "report.csv").read_bytes():
            raise RuntimeError("the killed run ended with other values than the one that was left alone")
    return [
        {
            "case": case,
            "measured": int(run["measured"]),
            "per_s": run["measured"] / run["seconds"],
            "core_s": run["cpu"] / run["measured"] if "cpu" in run else "",
            "peak_mb": run.get("peak_mb", ""),
        }
        for case, run in runs.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, help="folder with the published weights of AlexNet, VGG16 and heads")
    parser.add_argument("--long", type=int, help="how many images the long run has, instead of the comparison")
    arguments = parser.parse_args()
    if arguments.long is not None:
        record("score_long", long(arguments.long))
        return
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as scratch:
        data, home = Path(scratch) / "data", Path(scratch) / "torch"
        draw(data, max(count for _, count, _, _ in CASES.values()))
        if arguments.weights is not None:
            as_torchvision_would(arguments.weights, home)
        for case, (metrics, count, turns, has_rival) in CASES.items():
            if NETWORKS & set(metrics) and arguments.weights is None:
                continue
            print(f"{case} …", flush=True)
            hows = ("suite", "one by one") if has_rival else ("suite",)
            runs = [
                {how: run(how, data, metrics, count, arguments.weights, home) for how in hows} for _ in range(turns)
            ]
            best = {how: {key: min(turn[how][key] for turn in runs) for key in runs[0][how]} for how in hows}
            ours, rival = best["suite"], best.get("one by one")
            row: dict[str, object] = {"case": case, "images": count, "threads": ours["threads"]}
            row |= {"per_s": count / ours["seconds"], "core_s": ours["cpu"] / count, "peak_mb": ours["peak_mb"]}
            row |= dict.fromkeys(("torchmetrics_per_s", "torchmetrics_core_s", "torchmetrics_peak_mb", "times"), "")
            row["largest_difference"] = ""
            if rival is not None:
                row["torchmetrics_per_s"], row["torchmetrics_core_s"] = count / rival["seconds"], rival["cpu"] / count
                row["torchmetrics_peak_mb"], row["times"] = rival["peak_mb"], rival["seconds"] / ours["seconds"]
                row["largest_difference"] = max(abs(ours[key] - rival[key]) for key in metrics)
            rows.append(row)
    record("score", rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    elif sys.argv[1:2] == ["--command"]:
        command(*sys.argv[2:])
    else:
        main()
