"""What does each metric reward, and what fools it? The suite on outputs whose worth is known.

    python benchmarks/fool.py WORK [--weights FOLDER] [--count 40]

draws phantom fields, makes every output of ``outputs.py`` from each, and scores them against the next section, as real
outputs are scored. Into WORK go the images and the reports (a run that was stopped goes on); docs/metrics.csv gets a
row for each output and metric, with p, the chance of a difference from the truth as large as that where there is none.

LPIPS and DISTS need the published weights. The Fréchet and kernel distances are taken, by the suite's own functions, of
the encoder that ships with the package, and of AlexNet features of images shrunk as for FID: the weights of
FID-Inception cannot be had everywhere, and what is shown of the distances holds for any network. They are called FD and
KD, because they are not FID and KID.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from outputs import OUTPUTS, REAL, Field, specimens
from torch import Tensor, nn
from torch.nn import functional

from sheafstain.device import cores
from sheafstain.metrics.distribution import EncoderFeatures, Features, fid, kid
from sheafstain.metrics.inception import shrink
from sheafstain.metrics.protocol import choose
from sheafstain.metrics.report import Report
from sheafstain.metrics.scoring import score
from sheafstain.metrics.sources import list_items
from sheafstain.metrics.statistics import paired, pearson
from sheafstain.metrics.suite import Suite
from sheafstain.metrics.tables import shown
from sheafstain.metrics.texts import csv_text
from sheafstain.metrics.weights import by_id, load
from sheafstain.sheaf.encoders import load_encoder
from sheafstain.slides.image import write_image
from sheafstain.whole import write_whole

DOCS = Path(__file__).parents[1] / "docs"
LIGHT = ("psnr", "ssim", "seam", "chromogen")
DISTS_OF = 4  # images: a pair of 512² takes a core six seconds
SWAPS = 999
HEAD = ("output", "metric", "better", "value", "std", "low", "high", "n", "preferred_to_truth", "p")
ENCODER = "phantom-small"  # ships with the package, trained on phantoms
Row = list[object]
Rows = NDArray[Any]
Network = Callable[[Tensor], Tensor]  # images [b, 3, h, w] to features [b, d]


def write_images(work: Path, fields: Sequence[Field]) -> None:
    for output in (REAL, *OUTPUTS):
        for i, field in enumerate(fields):
            path = work / "images" / output.key / f"{field.name}.png"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_image(path, output.make(fields, i))


def scored(work: Path, weights: Path | None) -> Iterator[Row]:
    """A row for each output and metric of the suite."""
    real = work / "images" / REAL.key
    suites = [(Suite(choose(LIGHT, ())), 1)]
    if weights is not None:
        every = max(len(list(real.iterdir())) // DISTS_OF, 1)
        suites += [
            (Suite(choose(("lpips",), ()), folder=weights), 1),
            (Suite(choose(("dists",), ()), folder=weights), every),
        ]
    for number, (suite, every) in enumerate(suites):
        if suite.left_out:
            raise SystemExit(f"{suite.left_out[0].name}: {suite.left_out[0].reason}")
        truth: Report | None = None
        for output in OUTPUTS:
            listing = list_items(work / "images" / output.key, real)
            listing = replace(listing, items=listing.items[every // 2 :: every])
            report = score(listing, suite, work / "scores" / f"{output.key}-{number}", name=output.key, workers=cores())
            truth = truth or report
            print(f"{output.title}: {', '.join(f'{r.key} {shown(r.value)}' for r in report.results)}", flush=True)
            yield from _rows(report, truth)


def _rows(report: Report, truth: Report) -> Iterator[Row]:
    for result in report.results:
        preferred = p = None
        if result.key == "dab-p90-r" and result.value is not None:
            real = np.array([image.sides["dab-p90"]["real"] for image in report.images])
            columns = (np.array(each.column("dab-p90")) for each in (report, truth))
            alike = ((column - column.mean()) / column.std() for column in columns)  # r does not see scale: nor may p
            p = swapped(lambda rows, real=real: float(pearson(rows, real)), *alike)
        elif result.key in report.images[0].values and result.better != "none":
            against = paired(truth.column(result.key), report.column(result.key), result.better)
            preferred = (against.wins + against.ties / 2) / max(against.n, 1)
            p = against.p if against.n > 5 else None  # of five images no difference has a p below 0.05
        low, high = result.interval or (None, None)
        numbers = (result.value, result.std, low, high, result.n, preferred, p)
        yield [report.name, result.key, result.better, *("" if number is None else number for number in numbers)]


def swapped(statistic: Callable[[Rows], float], pred: Rows, truth: Rows) -> float:
    """Permutation test of a number of a whole set: pred and truth of each image change places by chance."""
    found = abs(statistic(pred) - statistic(truth))
    if np.array_equal(pred, truth):
        return 1.0
    rng = np.random.default_rng(0)
    larger = 0
    for _ in range(SWAPS):
        swap = (rng.random(len(pred)) < 0.5).reshape(-1, *(1,) * (pred.ndim - 1))
        difference = statistic(np.where(swap, truth, pred)) - statistic(np.where(swap, pred, truth))
        larger += abs(difference) >= found
    return (1 + larger) / (1 + SWAPS)


def distances(fields: Sequence[Field], network: Network, suffix: str = "") -> Iterator[Row]:
    """A row for each output and distance of sets."""
    real = collected(features(network, (field.ihc for field in fields)))
    of = {o.key: features(network, (o.make(fields, i) for i in range(len(fields)))).numpy() for o in OUTPUTS}
    for key, distance, scale in (("fd", fid, 1), ("kd", kid, 1000)):
        for output, rows in of.items():

            def statistic(rows: Rows, distance: Callable = distance, scale: float = scale) -> float:
                return scale * distance(collected(torch.from_numpy(rows)), real)

            value, p = statistic(rows), swapped(statistic, rows, of["truth"])
            print(f"{output}: {key}{suffix} {shown(value)}, p {p:.3f}", flush=True)
            yield [output, f"{key}{suffix}", "lower", value, "", "", "", len(fields), "", p]


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


def features(network: Network, images: Iterable[np.ndarray]) -> Tensor:
    return torch.cat([network(tensor(image)) for image in images])


def collected(rows: Tensor) -> Features:
    found = Features()
    found.add(rows)
    return found


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
    rows = list(scored(arguments.work, arguments.weights))
    rows += distances(fields, EncoderFeatures(load_encoder(ENCODER, device="cpu")), "-encoder")
    if arguments.weights is not None:
        rows += distances(fields, Alexnet(arguments.weights))
    write_whole(DOCS / "metrics.csv", csv_text(HEAD, rows).encode())


if __name__ == "__main__":
    main()
