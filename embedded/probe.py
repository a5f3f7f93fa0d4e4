"""Does an encoder know phantom tissue, and do its tokens depend on what lies around them?

    python embedded/draw.py blocks STORE --count 512 --seed 22     # seeds that nothing was trained on
    python embedded/draw.py pairs SET --val 4 --seed 23
    python embedded/probe.py STORE OUT --encoder phantom-small --audit SET

**Probe**: one linear layer (logistic regression, classes weighted equally) from the token of a 16-px patch to its
tissue class and to its nucleus class, fitted on three quarters of the specimens and tested on the others; in H&E, in
IHC, and fitted in H&E and tested in IHC, which asks whether a token means the same in both. Beside the encoder stand
the same network with random weights, and the mean and standard deviation of the patch's red, green and blue.

**Audit**: that of ``sheafstain audit``, on whole fields.

Writes ``probe.csv``, ``probe.md`` and ``audit/``; with ``--card`` the figures also go into a model card.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sheafstain.datasets.layouts import open_dataset
from sheafstain.datasets.phantom.architecture import Tissue
from sheafstain.datasets.phantom.nuclei import Nucleus
from sheafstain.sheaf.audit import AuditImage, Protocol, audit
from sheafstain.sheaf.audit_figures import draw_all
from sheafstain.sheaf.audit_log import AuditLog
from sheafstain.sheaf.audit_report import H_AND_E, AuditSummary
from sheafstain.sheaf.backbone import random_network
from sheafstain.sheaf.encoders import Encoder, load_encoder
from sheafstain.sheaf.registry import CROP
from sheafstain.slides.image import read_image
from sheafstain.whole import whole, write_whole

CELL = 16  # px: a token of the encoders that can be probed here
STAINS = ("H&E", "IHC")
WAYS = (("H&E", "H&E"), ("IHC", "IHC"), ("H&E", "IHC"))  # fitted in, tested in
TASKS = {"tissue": len(Tissue), "nucleus": 1 + len(Nucleus)}
FIGURES = "## Figures\n"


@dataclass(frozen=True, slots=True)
class Result:
    features: str
    task: str
    fitted: str
    tested: str
    balanced: float  # mean over classes of the share found again: chance is one over the number of classes
    accuracy: float
    classes: int  # with at least 20 tokens to test on
    tokens: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--encoder", default="phantom-small", help="a name, a folder, or NAME=FILE; 16-px patches")
    parser.add_argument("--audit", type=Path, metavar="SET", help="a data set of pairs to audit on")
    parser.add_argument("--card", type=Path, help="a model card that the figures go into")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    encoder = load_encoder(chosen.encoder)
    results = list(probe(chosen.store, encoder))
    with whole(chosen.out / "probe.csv") as part, part.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(results[0])), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(result) for result in results)
    store = json.loads((chosen.store / "store.json").read_text())
    said = table(results, encoder, store["blocks"], store["seed"])
    write_whole(chosen.out / "probe.md", said.encode())
    if chosen.audit:
        said += "\n" + re.sub("^#", "###", audited(chosen.audit, encoder, chosen.out / "audit"), flags=re.MULTILINE)
    if chosen.card:
        card = chosen.card.read_text(encoding="utf-8").partition(FIGURES)[0].rstrip()
        write_whole(chosen.card, f"{card}\n\n{FIGURES}\n{said}".encode())
    print(said, flush=True)


def probe(store: Path, encoder: Encoder) -> Iterator[Result]:
    images, labels = (np.load(store / f"{name}.npy", mmap_mode="r") for name in ("images", "labels"))
    fields = json.loads((store / "store.json").read_text())["fields"]
    fit = len(labels) * 3 // 4 // fields * fields  # blocks before this one are of other specimens than those after
    true = dict(zip(TASKS, token_classes(cut(labels, 2)), strict=True))
    entry = encoder.entry
    blank = Encoder(random_network(entry, seed=0), entry, weights_hash="", device=encoder.device, dtype=encoder.dtype)
    for name, see in (
        (encoder.id, lambda crops: tokens(encoder, crops)),
        ("the same, random weights", lambda crops: tokens(blank, crops)),
        ("colour of the patch", colours),
    ):
        seen = {stain: see(cut(images[:, i], 1)).to(encoder.device) for i, stain in enumerate(STAINS)}
        edge = fit * len(seen[STAINS[0]]) // len(labels)
        for task, classes in TASKS.items():
            for fitted, tested in WAYS:
                guess = classifier(seen[fitted][:edge], true[task][:edge].to(encoder.device), classes)
                scores = score(guess(seen[tested][edge:]).cpu(), true[task][edge:], classes)
                yield Result(name, task, fitted, tested, *scores)


def cut(blocks: np.ndarray, step: int) -> np.ndarray:
    """The four corners of each block [n, …, 512/step, 512/step, …] as crops [4n, …]; ``step`` px an element."""
    side = CROP // step
    rows = 2 if blocks.shape[1] == 2 else 1  # the axis of the rows: labels have two planes before it
    ends = (slice(None, side), slice(-side, None))
    corners = [blocks[(slice(None),) * rows + (y, x)] for y in ends for x in ends]
    return np.stack(corners, axis=1).reshape(-1, *corners[0].shape[1:])


def token_classes(labels: np.ndarray) -> tuple[Tensor, Tensor]:
    """[n, 2, 112, 112] → tissue and nucleus class of each token, [196·n] each: the class that covers most of it, and
    the kind of nucleus that covers most of it where nuclei cover an eighth or more."""
    side, step = CROP // CELL, CELL // 2
    patches = labels.reshape(-1, 2, side, step, side, step)
    tissue, nucleus = (
        np.stack([(patches[:, plane] == c).mean((2, 4), dtype=np.float32) for c in range(classes)], -1)
        for plane, classes in enumerate(TASKS.values())
    )
    kind = np.where(nucleus[..., 0] <= 7 / 8, nucleus[..., 1:].argmax(-1) + 1, 0)
    return torch.from_numpy(tissue.argmax(-1)).flatten(), torch.from_numpy(kind).flatten()


def tokens(encoder: Encoder, crops: np.ndarray) -> Tensor:
    """[n, 224, 224, 3] → [196·n, d]."""
    return torch.cat([each.patch.flatten(0, 1) for each in encoder.encode(np.array_split(crops, len(crops)))])


def colours(crops: np.ndarray) -> Tensor:
    """[n, 224, 224, 3] → [196·n, 6]: mean and standard deviation of red, green and blue in each patch."""
    side = CROP // CELL
    patches = crops.reshape(-1, side, CELL, side, CELL, 3).astype(np.float32)
    return torch.from_numpy(np.concatenate([patches.mean((2, 4)), patches.std((2, 4))], -1)).flatten(0, 2)


def classifier(seen: Tensor, true: Tensor, classes: int) -> Callable[[Tensor], Tensor]:
    """Logistic regression with classes weighted equally, features standardised as in what it is fitted on."""
    mean, std = seen.mean(0), seen.std(0) + 1e-6
    inputs = (seen - mean) / std
    weight = 1 / true.bincount(minlength=classes).clamp(min=1)
    matrix = torch.zeros(classes, seen.shape[1], device=seen.device, requires_grad=True)
    bias = torch.zeros(classes, device=seen.device, requires_grad=True)
    optimiser = torch.optim.LBFGS([matrix, bias], max_iter=100, history_size=10, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = functional.cross_entropy(inputs @ matrix.T + bias, true, weight.float()) + 1e-4 * matrix.square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    return lambda other: (((other - mean) / std) @ matrix.T + bias).detach().argmax(1)


def score(guess: Tensor, true: Tensor, classes: int) -> tuple[float, float, int, int]:
    counts = true.bincount(minlength=classes)
    hits = true[guess == true].bincount(minlength=classes)
    common = counts >= 20
    balanced = float((hits[common] / counts[common]).mean())
    return round(balanced, 4), round(float(hits.sum() / counts.sum()), 4), int(common.sum()), len(true)


def table(results: list[Result], encoder: Encoder, blocks: int, seed: int) -> str:
    """Balanced accuracies as Markdown: a row for each kind of features."""
    heads = [f"{task}, {f}" if f == t else f"{task}, {f} → {t}" for task in TASKS for f, t in WAYS]
    lines = [
        f"Linear probe on held-out phantoms (seed {seed}, {blocks} blocks, a quarter of the specimens to test on) of "
        f"weights `{encoder.weights_hash[:12]}`: mean over classes of the share found again. {TASKS['tissue']} "
        f"tissues, {TASKS['nucleus']} nucleus classes; H&E → IHC: fitted in H&E, tested in IHC.",
        "",
        f"| features | {' | '.join(heads)} |",
        f"| :-- |{' --: |' * len(heads)}",
    ]
    for name in dict.fromkeys(result.features for result in results):
        row = [f"{result.balanced:.3f}" for result in results if result.features == name]
        lines.append(f"| {name} | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def audited(folder: Path, encoder: Encoder, out: Path) -> str:
    """Audit a set of pairs into ``out``; the report with its two tables."""
    images = []
    for record in open_dataset(folder).records:
        key = "/".join((record.split, record.stain, record.id))
        images += [AuditImage(key, H_AND_E, record.he), AuditImage(key, record.stain, record.ihc)]
    log = AuditLog(out, encoder, Protocol())
    drawn = list({image.stain: image for image in reversed(images)}.values())
    for result in audit(images, encoder, Protocol(), heat=drawn.__contains__):
        log.add(result)
    summary = AuditSummary.of(log, images)
    summary.write(out)
    maps = {image.stain: (read_image(image.path), np.load(log.heat_file(image))["heat"]) for image in drawn}
    draw_all(summary, {stain: maps[stain] for stain in summary.stains}, out)
    return summary.as_markdown()


if __name__ == "__main__":
    main()
