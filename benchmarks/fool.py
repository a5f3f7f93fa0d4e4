"""What does each metric reward, and what fools it? The suite on outputs whose worth is known.

    python benchmarks/fool.py WORK [--weights FOLDER] [--count 40]
    python benchmarks/fool_figures.py WORK

draws phantom fields, makes every output of ``outputs.py`` from each, and scores them against the next section, as real
outputs are scored. Into WORK go the images and reports (a run that was stopped goes on), beside docs/metrics.md the
numbers: ``metrics.csv``, a row for each output and metric, and ``metrics_curves.csv``, what the page says of blur and
displacement, of the number of images, of the threshold of DAB, and of windows before gluing.

LPIPS and DISTS need the published weights. The Fréchet and kernel distances are taken, by the suite's own functions, of
AlexNet features of images shrunk as for FID: the weights of FID-Inception cannot be had everywhere, and what is shown
of the distances holds for any network. They are called FD and KD, because they are not FID and KID.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from outputs import OUTPUTS, REAL, SIDE, Field, blurred, specimens
from torch import Tensor, nn
from torch.nn import functional

from sheafstain.device import cores
from sheafstain.metrics import chromogen, fidelity
from sheafstain.metrics.distribution import Features, fid, kid
from sheafstain.metrics.inception import shrink
from sheafstain.metrics.protocol import choose
from sheafstain.metrics.report import Report
from sheafstain.metrics.scoring import score
from sheafstain.metrics.sources import list_items
from sheafstain.metrics.statistics import Paired, paired
from sheafstain.metrics.suite import Suite
from sheafstain.metrics.tables import shown
from sheafstain.metrics.texts import csv_text
from sheafstain.metrics.weights import by_id, load
from sheafstain.sheaf.cover import Lattice
from sheafstain.sheaf.defect import DirichletEnergy
from sheafstain.slides.image import write_image
from sheafstain.whole import write_whole
from sheafstain.window import Size

DOCS = Path(__file__).parents[1] / "docs"
LIGHT = ("psnr", "ssim", "seam", "chromogen")
DISTS_OF = 4  # images: a pair of 512² takes a core six seconds
SIGMAS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
MOVES = {"same place, 1 px off": (1, 0), "2 px": (1, 2), "4 px": (3, -3), "8 px": (-5, 6), "16 px": (11, 12)}
THRESHOLDS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
Row = list[object]


# --- outputs by metrics ----------------------------------------------------------------------------------------------


def write_images(work: Path, fields: Sequence[Field]) -> None:
    for output in (REAL, *OUTPUTS):
        for i, field in enumerate(fields):
            path = work / "images" / output.key / f"{field.name}.png"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_image(path, output.make(fields, i))


def scored(work: Path, weights: Path | None) -> Iterator[Row]:
    """A row for each output and metric of the suite."""
    suites = [(Suite(choose(LIGHT, ())), 1)]
    if weights is not None:
        every = max(len(list((work / "images" / "real").iterdir())) // DISTS_OF, 1)
        suites += [
            (Suite(choose(("lpips",), ()), folder=weights), 1),
            (Suite(choose(("dists",), ()), folder=weights), every),
        ]
    for number, (suite, every) in enumerate(suites):
        if suite.left_out:
            raise SystemExit(f"{suite.left_out[0].name}: {suite.left_out[0].reason}")
        truth: Report | None = None
        for output in OUTPUTS:
            listing = list_items(work / "images" / output.key, work / "images" / "real")
            listing = replace(listing, items=listing.items[every // 2 :: every])
            report = score(listing, suite, work / "scores" / f"{output.key}-{number}", name=output.key, workers=cores())
            truth = truth or report
            print(f"{output.title}: {', '.join(f'{r.key} {shown(r.value)}' for r in report.results)}", flush=True)
            for result in report.results:
                against = None
                if result.key in report.images[0].values and result.better != "none":
                    against = paired(truth.column(result.key), report.column(result.key), result.better)
                yield _row(
                    output.key, result.key, result.better, result.value, result.std, result.interval, result.n, against
                )


def _row(
    output: str,
    metric: str,
    better: str,
    value: float | None,
    std: float | None = None,
    interval: tuple[float, float] | None = None,
    n: int = 0,
    against: Paired | None = None,
) -> Row:
    preferred = "" if against is None else (against.wins + against.ties / 2) / max(against.n, 1)
    return [
        output,
        metric,
        better,
        *("" if v is None else v for v in (value, std, *(interval or (None, None)))),
        n,
        preferred,
    ]


HEAD = ("output", "metric", "better", "value", "std", "low", "high", "n", "preferred_to_truth")


# --- distances of sets -----------------------------------------------------------------------------------------------


class Alexnet(nn.Module):
    """Images [b, 3, h, w] in [0, 1], shrunk as for FID → the means of the last 256 feature maps, [b, 256]."""

    def __init__(self, weights: Path | None) -> None:
        from torchvision import models

        super().__init__()
        self.features = models.alexnet(weights=None).features
        wanted = {f"features.{name}": tuple(value.shape) for name, value in self.features.state_dict().items()}
        state = load(by_id("alexnet"), wanted, weights)
        self.features.load_state_dict({name.removeprefix("features."): value for name, value in state.items()})

    @torch.inference_mode()
    def forward(self, images: Tensor) -> Tensor:
        x = shrink(images, "pytorch-fid") * 0.5 + 0.5
        mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
        return functional.relu(self.features((x - mean) / std)).mean((2, 3))


def features(network: nn.Module, images: Iterable[np.ndarray]) -> Tensor:
    return torch.cat([network(tensor(image)) for image in images])


def collected(rows: Tensor) -> Features:
    found = Features()
    found.add(rows)
    return found


def distances(fields: Sequence[Field], network: nn.Module) -> Iterator[Row]:
    real = collected(features(network, (field.ihc for field in fields)))
    for output in OUTPUTS:
        pred = collected(features(network, (output.make(fields, i) for i in range(len(fields)))))
        yield _row(output.key, "fd", "lower", fid(pred, real), n=len(fields))
        yield _row(output.key, "kd", "lower", kid(pred, real) * 1000, n=len(fields))


# --- curves ----------------------------------------------------------------------------------------------------------


def by_blur(fields: Sequence[Field]) -> Iterator[Row]:
    """The truth, ever more blurred, against references that are ever less registered."""
    measures: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "psnr": fidelity.psnr,
        "ssim": fidelity.ssim,
        "dab-r": chromogen.dab_r,
    }
    references = {name: [field.moved(*by) for field in fields] for name, by in MOVES.items()}
    references["next section"] = [field.ihc for field in fields]
    for sigma in SIGMAS:
        outputs = [tensor(blurred(sigma)(field.truth) if sigma else field.truth) for field in fields]
        for (name, images), (key, measure) in product(references.items(), measures.items()):
            values = [float(measure(pred, tensor(real))) for pred, real in zip(outputs, images, strict=True)]
            yield [f"{key} by blur", name, sigma, float(np.mean(values))]


def by_count(fields: Sequence[Field], network: nn.Module, side: int = 128, draws: int = 40) -> Iterator[Row]:
    """Distances between two halves of one pile of crops: nothing differs but the chance of the draw."""
    crops = [
        field.ihc[y : y + side, x : x + side]
        for field in fields
        for y, x in product(range(0, SIDE, side), range(0, SIDE, side))
    ]
    softer = features(network, (blurred(1)(crop) for crop in crops))
    pile = features(network, crops)
    rng = np.random.default_rng(0)
    for n in (4, 8, 16, 32, 64, 128, 256, len(crops) // 2):
        for name, others in (("two draws of the same images", pile), ("the second draw blurred, σ 1", softer)):
            found = []
            for _ in range(draws):
                order = rng.permutation(len(crops))
                a, b = collected(pile[order[:n]]), collected(others[order[n : 2 * n]])
                found.append((fid(a, b), kid(a, b) * 1000))
            for key, values in zip(("fd by count", "kd by count"), np.transpose(found), strict=True):
                yield [key, name, n, float(values.mean())]
                yield [f"{key}, std", name, n, float(values.std(ddof=1))]


def by_threshold(fields: Sequence[Field]) -> Iterator[Row]:
    """What counts as positive decides what Dice can tell apart."""
    keys = ("truth", "dab-elsewhere", "he", "brown")
    outputs = [output for output in OUTPUTS if output.key in keys]
    maps = [chromogen.dab(tensor(field.ihc)) for field in fields]
    others = {o.title: [chromogen.dab(tensor(o.make(fields, i))) for i in range(len(fields))] for o in outputs}
    for threshold in THRESHOLDS:
        for title, preds in others.items():
            dice = [float(chromogen.dab_dice(p, r, threshold)) for p, r in zip(preds, maps, strict=True)]
            yield ["dice by threshold", title, threshold, float(np.nanmean(dice))]
        for grade in sorted({field.grade for field in fields}):
            shares = [
                float(chromogen.fod(m, threshold))
                for m, field in zip(maps, fields, strict=True)
                if field.grade == grade
            ]
            yield ["fod by threshold", grade, threshold, float(np.mean(shares))]


def by_windows(fields: Sequence[Field]) -> Iterator[Row]:
    """The Dirichlet energy of windows that were drawn each by itself, and of ways to have less of it."""

    def tone(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return 255 - (255 - pixels) * rng.uniform(0.8, 1.2, 3)

    def noise(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return pixels + rng.normal(0, 12, pixels.shape)

    def keep(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return pixels

    def pale(pixels: np.ndarray) -> np.ndarray:
        return 255 - (255 - pixels) / 2

    def white(pixels: np.ndarray) -> np.ndarray:
        return np.full_like(pixels, 255)

    soft = blurred(4)
    ways: tuple[tuple[str, Callable, Callable], ...] = (
        ("cut from the aligned truth", keep, lambda pixels: pixels),
        ("white", keep, white),
        ("a tone of its own in each window", tone, lambda pixels: pixels),
        ("the same, blurred σ 4", tone, soft),
        ("the same, at half the contrast", tone, pale),
        ("noise of its own in each window", noise, lambda pixels: pixels),
        ("the same noise, blurred σ 4", noise, soft),
    )
    cover = list(Lattice.over(Size(SIDE, SIDE)))
    for name, own, then in ways:
        energies = []
        for i, field in enumerate(fields):
            rng = np.random.default_rng(i)
            energy = DirichletEnergy(Size(SIDE, SIDE))
            for window in cover:
                made = then(own(field.truth[window.slices].astype(np.float64), rng)).clip(0, 255) / 255
                energy.add(window, made.astype(np.float32))
            energies.append(energy.energy)
        yield ["dirichlet of windows", name, 0, float(np.mean(energies))]


def tensor(pixels: np.ndarray) -> Tensor:
    """uint8 [h, w, 3] → [1, 3, h, w] in [0, 1]."""
    return torch.from_numpy(pixels.astype(np.float32) / 255).permute(2, 0, 1)[None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="folder for images and reports")
    parser.add_argument("--weights", type=Path, help="folder with the published weights of AlexNet, VGG16 and heads")
    parser.add_argument("--count", type=int, default=40, help="phantom fields, as many of each HER2 grade")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    fields = [Field.draw(specimen) for specimen in specimens(arguments.count)]
    write_images(arguments.work, fields)
    moved = [field.displacement for field in fields]
    curves: list[Row] = [["displacement of the next section, px", "median", 0, float(np.median(moved))]]
    rows: list[Row] = []
    if arguments.weights is not None:
        network = Alexnet(arguments.weights)
        rows += distances(fields, network)
        curves += by_count(fields, network)
    curves += [*by_threshold(fields), *by_windows(fields), *by_blur(fields)]
    write_whole(DOCS / "metrics_curves.csv", csv_text(("curve", "series", "x", "value"), curves).encode())
    rows += scored(arguments.work, arguments.weights)
    write_whole(DOCS / "metrics.csv", csv_text(HEAD, rows).encode())


if __name__ == "__main__":
    main()
