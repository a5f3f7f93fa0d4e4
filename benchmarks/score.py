"""How fast is the suite against torchmetrics or scikit-image, called one image at a time for the same metrics?

    python benchmarks/score.py --weights FOLDER      # AlexNet, VGG16 and heads; without it only what needs no network
    python benchmarks/score.py --long 1000           # many images: their memory, and a SIGKILL half-way

Each case runs in a process of its own, from phantom pairs on disk (1024², PNG) to means: decoding is part of it, and
building networks is not. The rival loop reads a pair with Pillow, updates torchmetrics' modular metrics with it (or
calls scikit-image's functions), and goes on to the next; the networks of torchmetrics carry the same weights, in files
laid out as torchvision would have fetched them.
The two take turns, and of each the fastest of its runs counts. ``core_s`` is processor time for an image, which other
work on the machine changes less than the clock. Rows without a rival are metrics that torchmetrics does not have.

The long run is that of the command itself, without networks: a tenth of the pairs; then all of them, with a SIGKILL
when half are measured, and the same command once more. The tenth must come out equal in both. Its pairs are no new
tissue: they are 25 phantoms, each rolled, turned and mirrored in other ways (JPEG), so that no two files are equal. The
rivals are called on the first of them. Peak memory is that of one process, from its start to its end.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machine import cores, record

CASES = {  # case: metrics, pairs, turns, who else has got them
    "PSNR, SSIM": (("psnr", "ssim"), 16, 3, ("torchmetrics", "scikit-image")),
    "PSNR, SSIM, LPIPS": (("psnr", "ssim", "lpips"), 8, 2, ("torchmetrics",)),
    "PSNR, SSIM, LPIPS, DISTS": (("psnr", "ssim", "lpips", "dists"), 2, 1, ("torchmetrics",)),
    "seams and DAB": (("seam", "chromogen"), 8, 3, ()),
}
NETWORKS = {"lpips", "dists"}
DRAWN = 25  # phantoms behind the pairs of the long run
SUBSET = 16  # pairs of the long run on which the rivals are called
SIDES = {"pred": "HE/train", "real": "IHC/train"}  # of drawn pairs: the H&E stands for a translated image
LIGHT = ("psnr", "ssim", "seam", "chromogen")  # need no network


def draw(folder: Path, count: int) -> None:
    """Phantom pairs: H&E in HE/train, IHC in IHC/train."""
    from sheafstain.datasets.phantom.dataset import write_dataset
    from sheafstain.datasets.phantom.plan import Plan
    from sheafstain.window import Resolution, Size

    write_dataset(
        folder, Plan("pairs", 3, count, 0, ("HER2",), Size(1024, 1024), Resolution(0.5), 4, False), workers=cores()
    )


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


def pairs_of(data: Path) -> tuple[Path, Path]:
    """The folders of both sides: of drawn pairs, or of the many."""
    drawn = data / SIDES["pred"], data / SIDES["real"]
    return drawn if drawn[0].is_dir() else (data / "pred", data / "real")


def suite(data: Path, metrics: tuple[str, ...], count: int, weights: Path | None) -> dict[str, float]:
    from dataclasses import replace

    import torch

    from sheafstain.metrics.protocol import choose
    from sheafstain.metrics.scoring import score
    from sheafstain.metrics.sources import list_items
    from sheafstain.metrics.suite import Suite

    listing = list_items(*pairs_of(data))
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


def one_by_one(
    data: Path, count: int, build: Callable[[], tuple[Callable[[Any, Any], None], Callable[[], dict[str, float]]]]
) -> dict[str, float]:
    """``build`` gives what takes a pair, uint8 [h, w, 3] each, and what forgets all pairs and tells their means."""
    import numpy as np
    from PIL import Image

    update, means = build()
    files = [sorted(folder.iterdir()) for folder in pairs_of(data)]

    def take(i: int) -> None:
        update(*(np.array(Image.open(of_side[i])) for of_side in files))

    take(-1)
    means()
    start, cpu = time.perf_counter(), time.process_time()
    for i in range(count):
        take(i)
    values = means()
    return {"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu} | values


def torchmetrics(metrics: tuple[str, ...]) -> tuple[Callable[[Any, Any], None], Callable[[], dict[str, float]]]:
    import torch
    from torchmetrics import image as rival

    torch.set_grad_enabled(False)
    makers = {
        "psnr": lambda: rival.PeakSignalNoiseRatio(data_range=1.0, reduction="elementwise_mean", dim=(1, 2, 3)),
        "ssim": lambda: rival.StructuralSimilarityIndexMeasure(data_range=1.0),
        "lpips": lambda: rival.LearnedPerceptualImagePatchSimilarity("alex", normalize=True),
        "dists": lambda: rival.DeepImageStructureAndTextureSimilarity(reduction="mean"),
    }
    measures = {key: makers[key]() for key in metrics}

    def update(pred: Any, real: Any) -> None:
        pair = [torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255 for pixels in (pred, real)]
        for measure in measures.values():
            measure.update(*pair)

    def means() -> dict[str, float]:
        found = {key: float(measure.compute()) for key, measure in measures.items()}
        for measure in measures.values():
            measure.reset()
        return found

    return update, means


def scikit_image(metrics: tuple[str, ...]) -> tuple[Callable[[Any, Any], None], Callable[[], dict[str, float]]]:
    from skimage import metrics as rival

    gaussian = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}  # of the SSIM paper
    makers = {
        "psnr": lambda pred, real: rival.peak_signal_noise_ratio(real, pred),
        "ssim": lambda pred, real: rival.structural_similarity(real, pred, channel_axis=2, **gaussian),
    }
    columns: dict[str, list[float]] = {key: [] for key in metrics}

    def update(pred: Any, real: Any) -> None:
        for key, column in columns.items():
            column.append(float(makers[key](pred, real)))

    def means() -> dict[str, float]:
        found = {key: sum(column) / len(column) for key, column in columns.items()}
        for column in columns.values():
            column.clear()
        return found

    return update, means


RIVALS = {"torchmetrics": torchmetrics, "scikit-image": scikit_image}


def run(
    how: str, data: Path, metrics: tuple[str, ...], count: int, weights: Path | None = None, home: Path | None = None
) -> dict[str, float]:
    """In a process of its own, so that memory is its own."""
    command = [sys.executable, __file__, "--child", how, str(data), ",".join(metrics), str(count), str(weights or "")]
    environment = os.environ | ({"TORCH_HOME": str(home)} if home is not None else {})
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def child(how: str, data: str, metrics: str, count: str, weights: str) -> None:
    chosen = tuple(metrics.split(","))
    folder = Path(weights) if weights else None
    if how == "suite":
        found = suite(Path(data), chosen, int(count), folder)
    else:
        found = one_by_one(Path(data), int(count), lambda: RIVALS[how](chosen))
    torch = sys.modules.get("torch")
    print(json.dumps(found | {"peak_mb": peak_mb(), "threads": torch.get_num_threads() if torch else 1}))


def peak_mb(process: int | str = "self") -> float:
    """Of a process alone: ``ru_maxrss`` starts, on Linux, with what the parent had when it forked."""
    status = Path(f"/proc/{process}/status")
    if status.exists():
        found = re.search(r"VmHWM:\s+(\d+)", status.read_text())
        return int(found[1]) / 1024 if found else math.nan  # a process that is about to end has none
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20 if process == "self" else math.nan


def compared(
    case: str,
    data: Path,
    metrics: tuple[str, ...],
    count: int,
    turns: int,
    rivals: tuple[str, ...],
    weights: Path | None = None,
    home: Path | None = None,
) -> list[dict[str, object]]:
    """A row for each rival, or one without any; the best of as many turns."""
    print(f"{case} …", flush=True)
    hows = ("suite", *rivals)
    runs = [{how: run(how, data, metrics, count, weights, home) for how in hows} for _ in range(turns)]
    best = {how: {key: min(turn[how][key] for turn in runs) for key in runs[0][how]} for how in hows}
    ours = best["suite"]
    rows = []
    for rival in rivals or ("",):
        row = row_of(case, count, ours["seconds"], ours["cpu"], ours["peak_mb"], threads=ours["threads"])
        if rival:
            its = best[rival]
            row |= {"rival": rival, "rival_per_s": count / its["seconds"], "rival_core_s": its["cpu"] / count}
            row |= {"rival_peak_mb": its["peak_mb"], "times": its["seconds"] / ours["seconds"]}
            row["largest_difference"] = max(abs(ours[key] - its[key]) for key in metrics)
        rows.append(row)
    return rows


def row_of(
    case: str, images: int, seconds: float, cpu: float | None, peak: float, threads: float = 1
) -> dict[str, object]:
    row: dict[str, object] = {"case": case, "images": images, "threads": threads, "per_s": images / seconds}
    row |= {"core_s": "" if cpu is None else cpu / images, "peak_mb": peak}
    return row | dict.fromkeys(RIVAL_COLUMNS, "")


RIVAL_COLUMNS = ("rival", "rival_per_s", "rival_core_s", "rival_peak_mb", "times", "largest_difference")


# --- many images -----------------------------------------------------------------------------------------------------


def write_many(folder: Path, count: int, drawn: int = DRAWN) -> None:
    """``count`` pairs of JPEG files from a few phantoms: drawn once, then rolled, turned and mirrored alike."""
    import numpy as np
    from PIL import Image

    draw(folder / "drawn", drawn)
    files = [sorted((folder / "drawn" / side).iterdir()) for side in SIDES.values()]
    for i in range(count):
        for side, of_side in zip(SIDES, files, strict=True):
            pixels = np.asarray(Image.open(of_side[i % drawn]))
            changed = np.roll(np.rot90(pixels, i % 4), (37 * i, 53 * i), (0, 1))[:: 1 - 2 * (i % 2)]
            target = folder / side / f"{i:05}.jpg"
            target.parent.mkdir(exist_ok=True)
            Image.fromarray(changed).save(target, quality=90)
    shutil.rmtree(folder / "drawn")


def score_many(data: Path, out: Path, count: int, kill_at: int = 0) -> dict[str, float]:
    """The command on ``count`` of the images; killed when so many are measured, where that is not 0."""
    command = [sys.executable, __file__, "--command", str(data), str(out), str(count)]
    log, start, peak = out / "images.jsonl", time.perf_counter(), 0.0
    before = measured_in(log)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while kill_at and process.poll() is None:
            time.sleep(0.1)
            peak = max(peak, peak_mb(process.pid))
            if measured_in(log) >= kill_at:
                process.send_signal(signal.SIGKILL)
                break
        said, _ = process.communicate()
    if process.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"the command ended with {process.returncode}")
    found = {"peak_mb": peak} if kill_at else json.loads(said.splitlines()[-1])
    return found | {"seconds": time.perf_counter() - start, "measured": measured_in(log) - before}


def measured_in(log: Path) -> int:
    """Lines but for the first, which is the protocol."""
    return max(log.read_bytes().count(b"\n") - 1, 0) if log.exists() else 0


def command(data: str, out: str, count: str) -> None:
    from sheafstain.cli.score import score

    folder, start = Path(data), time.process_time()
    limit = int(count) if int(count) < len(list((folder / "real").iterdir())) else None
    score(folder / "pred", folder / "real", output=Path(out), metrics=LIGHT, limit=limit)
    print(json.dumps({"peak_mb": peak_mb(), "cpu": time.process_time() - start}))


def long(count: int, data: Path) -> list[dict[str, object]]:
    print(f"writing {count} pairs …", flush=True)
    write_many(data, count)
    rows = compared("PSNR, SSIM, of the long run", data, LIGHT[:2], min(SUBSET, count), 2, tuple(RIVALS))
    print(f"{count // 10} pairs …", flush=True)
    runs = {"a tenth": score_many(data, data / "few", count // 10)}
    print(f"{count} pairs, killed when {count // 2} are measured …", flush=True)
    runs["all, killed half-way"] = killed = score_many(data, data / "all", count, kill_at=count // 2)
    runs["all, the same again"] = again = score_many(data, data / "all", count)
    if killed["measured"] + again["measured"] != count:
        raise RuntimeError(f"{killed['measured']} and {again['measured']} were measured, of {count}")
    few, every = (read_rows(data / name / "report.csv") for name in ("few", "all"))
    if len(every) != count or any(every[name] != row for name, row in few.items()):
        raise RuntimeError("the killed run ended with other values than the one that was left alone")
    return rows + [
        row_of(f"{', '.join(LIGHT)}: {case}", int(r["measured"]), r["seconds"], r.get("cpu"), r["peak_mb"])
        for case, r in runs.items()
    ]


def read_rows(table: Path) -> dict[str, dict[str, str]]:
    with table.open(newline="") as file:
        return {row["image"]: row for row in csv.DictReader(file)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, help="folder with the published weights of AlexNet, VGG16 and heads")
    parser.add_argument("--long", type=int, help="how many pairs the long run has, instead of the comparison")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if arguments.long is not None:
            record("score", long(arguments.long, Path(scratch)))
            return
        rows: list[dict[str, object]] = []
        data, home = Path(scratch) / "data", Path(scratch) / "torch"
        draw(data, max(count for _, count, _, _ in CASES.values()))
        if arguments.weights is not None:
            as_torchvision_would(arguments.weights, home)
        for case, (metrics, count, turns, rivals) in CASES.items():
            if not NETWORKS & set(metrics) or arguments.weights is not None:
                rows += compared(case, data, metrics, count, turns, rivals, arguments.weights, home)
    record("score", rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    elif sys.argv[1:2] == ["--command"]:
        command(*sys.argv[2:])
    else:
        main()
