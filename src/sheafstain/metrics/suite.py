"""Every metric over a set of images, streamed: decoded in threads, measured in batches, kept on disk as it goes.

Memory is a few batches, whatever the number of images. Which images share a batch, how many threads decode and whether
the run was stopped in between change nothing but the last digits of floating-point sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sheafstain.errors import SheafStainError, UsageError
from sheafstain.metrics import chromogen, distribution, fidelity, seam
from sheafstain.metrics.catalogue import Metric
from sheafstain.metrics.protocol import entry, resizer_of, weights_of
from sheafstain.metrics.report import numbers
from sheafstain.metrics.sources import RESIZED, WINDOWED, Fault, Item, Listing
from sheafstain.metrics.tables import escape
from sheafstain.window import Size

Advance = Callable[[int], None]
PerImage = Callable[[Tensor], Tensor]
PerPair = Callable[[Tensor, Tensor], Tensor]
Lines = tuple[tuple[int, ...], tuple[int, ...]]  # rows and columns of an image at which something ends

_PAIRS: Mapping[str, PerPair] = {
    "psnr": fidelity.psnr,
    "ssim": fidelity.ssim,
    "dab-r": chromogen.dab_r,
    "dab-kl": chromogen.dab_kl,
    "dab-kl-reverse": chromogen.dab_kl_reverse,
    "dab-jsd": chromogen.dab_jsd,
    "dab-dice": chromogen.dab_dice,
    "dab-iou": chromogen.dab_iou,
}
_DIVERGENCES = frozenset({"dab-kl", "dab-kl-reverse", "dab-jsd"})  # of the histograms of a pair
_QUANTITIES: Mapping[str, PerImage] = {
    "iod": chromogen.iod,
    "miod": chromogen.miod,
    "fod": chromogen.fod,
    "dab-p90": chromogen.dab_p90,
}


class PerWindows(Protocol):
    """A value for each image that needs more than its pixels: the Dirichlet energy of its windows."""

    def hash(self, name: str) -> str: ...
    def value(self, name: str) -> float: ...


@dataclass(frozen=True, slots=True)
class Borders:
    """Where a method's patches end: multiples of a number, a lattice, or lines that the user lists."""

    name: str
    of: Callable[[Size], Lines]

    @classmethod
    def parse(cls, text: str) -> Borders:
        """``multiples-of-N``, ``lattice-STRIDE`` (windows of 256) or ``192,256,384`` (rows and columns alike)."""
        kind, _, number = text.rpartition("-")
        if kind == "multiples-of" and number.isdecimal() and int(number):
            return cls(text, lambda size: _along(size, lambda length: seam.multiples(length, of=int(number))))
        if kind == "lattice" and number.isdecimal() and 0 < int(number) <= 256:
            return cls(text, lambda size: _along(size, lambda length: seam.lattice_borders(length, 256, int(number))))
        lines = text.split(",")
        if not all(line.strip().isdecimal() and int(line) for line in lines):
            raise UsageError(f"--borders is multiples-of-256, lattice-192 or a list as 192,256,384, not {text!r}")
        at = tuple(sorted({int(line) for line in lines}))
        name = ",".join(map(str, at))
        return cls(name, lambda size: _along(size, lambda length: [line for line in at if line < length]))

    def lines(self, size: Size, item: Item) -> Lines:
        """The lines inside an image; for a window of a slide, those of the slide that run through it."""
        slide, window = item.place()
        if slide is None or window is None:
            return self.of(size)
        rows, columns = self.of(slide)
        return (
            tuple(y - window.y for y in rows if window.y < y < window.bottom),
            tuple(x - window.x for x in columns if window.x < x < window.right),
        )


def _along(size: Size, lines: Callable[[int], Sequence[int]]) -> Lines:
    return tuple(lines(size.h)), tuple(lines(size.w))


EVERY_256 = Borders.parse("multiples-of-256")


@dataclass(frozen=True, slots=True)
class Measured:
    """The values of one image: ``values`` by metric; ``sides`` by metric and side, where a side has its own."""

    values: dict[str, float]
    sides: dict[str, dict[str, float]]

    def as_json(self) -> dict[str, Any]:
        return {"values": numbers(self.values), "sides": {key: numbers(of) for key, of in self.sides.items()}}


class Suite:
    """The metrics that can be measured here, with their networks; the others are in ``left_out`` with the reason.

    Parameters
    ----------
    metrics
        What is wanted.
    folder
        Looked into for published weights before the usual places.
    device
        Where networks and colour maths run.
    borders
        A method's own borders, for the metrics that need them.
    encoder
        A frozen encoder, for the pathology Fréchet distance (anything that ``distribution.EncoderFeatures`` takes).
    windows
        Values that come with the windows of each image.
    """

    def __init__(
        self,
        metrics: Sequence[Metric],
        *,
        folder: Path | None = None,
        device: str | torch.device = "cpu",
        borders: Borders | None = None,
        encoder: Any = None,
        windows: PerWindows | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.borders, self.windows = borders, windows
        self.left_out: list[Fault] = []
        self.extractors: dict[str, PerImage] = {}  # by what names their features on disk
        self.extractor_of: dict[str, str] = {}  # by metric
        self._folder, self._encoder = folder, encoder
        self._pairs: dict[str, PerPair] = {}
        self.metrics: tuple[Metric, ...] = tuple(metric for metric in metrics if self._bind(metric))

    @property
    def light(self) -> bool:
        """No network and no GPU: an image is measured best by the thread that decoded it, beside others."""
        networks = any(isinstance(measure, torch.nn.Module) for measure in self._pairs.values())
        return self.device.type == "cpu" and not networks and not self.extractors

    def _bind(self, metric: Metric) -> bool:
        try:
            if metric.group == "distribution":
                self._bind_features(metric)
            elif metric.key in _PAIRS:
                self._pairs[metric.key] = _PAIRS[metric.key]
            elif metric.key in ("lpips", "lpips-vgg"):
                net = "vgg" if metric.key == "lpips-vgg" else "alex"
                self._pairs[metric.key] = fidelity.Lpips(net, self._folder).to(self.device)
            elif metric.key == "dists":
                self._pairs[metric.key] = fidelity.Dists(self._folder).to(self.device)
        except (SheafStainError, ImportError) as error:
            self.left_out.append(Fault(metric.label, _reason(error)))
            return False
        return True

    def _bind_features(self, metric: Metric) -> None:
        if metric.needs == "encoder":
            name = f"encoder-{self._encoder.id}-{self._encoder.weights_hash[:12]}"
            if name not in self.extractors:
                self.extractors[name] = distribution.EncoderFeatures(self._encoder)
        else:
            resizer = resizer_of(metric.key)
            name = f"inception-{resizer}-{weights_of('fid-inception', self._folder)}"
            if name not in self.extractors:
                self.extractors[name] = distribution.Inception(self._folder, resizer).to(self.device)
        self.extractor_of[metric.key] = name

    def protocol(self, listing: Listing) -> dict[str, Any]:
        """What every number depends on, but for the set of images and the seed of the intervals."""
        return {
            "metrics": {
                metric.key: entry(
                    metric,
                    encoder="" if self._encoder is None else f"{self._encoder.id} {self._encoder.weights_hash[:16]}",
                    borders="" if self.borders is None else self.borders.name,
                    folder=self._folder,
                )
                for metric in self.metrics
            },
            "borders": None if self.borders is None else self.borders.name,
            "resize": RESIZED if listing.resized else None,
            "windows": WINDOWED if listing.windowed else None,
        }

    def label(self, metric: Metric) -> str:
        return self._filled(metric.label)

    def latex(self, metric: Metric) -> str:
        return escape(self._filled("{encoder}")).join(metric.latex.split("{encoder}"))

    def _filled(self, text: str) -> str:
        encoder = "" if self._encoder is None else self._encoder.id
        borders = "" if self.borders is None else self.borders.name
        return text.replace("{encoder}", encoder).replace("{borders}", borders)

    @torch.inference_mode()
    def measure(self, images: Mapping[str, Tensor], items: Sequence[Item]) -> list[Measured]:
        """All per-image metrics of a batch: [b, 3, h, w] in [0, 1] by side, and the b items that they are of."""
        measured = [Measured({}, {}) for _ in items]
        maps = counts = images  # metrics of DAB take maps or histograms in the place of images: each is made once
        if any(metric.group == "chromogen" for metric in self.metrics):
            maps = {side: chromogen.dab(of_side).double() for side, of_side in images.items()}
        if any(metric.key in _DIVERGENCES for metric in self.metrics):
            counts = dict(zip(("pred", "real"), chromogen.histograms(maps["pred"], maps["real"]), strict=True))
        for metric in self.metrics:
            given = counts if metric.key in _DIVERGENCES else maps if metric.group == "chromogen" else images
            if metric.key in self._pairs:
                column = _floats(self._pairs[metric.key](given["pred"], given["real"]))
                for one, value in zip(measured, column, strict=True):
                    one.values[metric.key] = value
            elif metric.kind in ("side", "error"):
                quantity = self._quantity(metric, items)
                columns = {side: _floats(quantity(of_side)) for side, of_side in given.items()}
                for i, one in enumerate(measured):
                    own = {side: column[i] for side, column in columns.items()}
                    one.values[metric.key] = (
                        abs(own["pred"] - own["real"]) if metric.kind == "error" else own.pop("pred")
                    )
                    one.sides[metric.key] = own
        return measured

    def _quantity(self, metric: Metric, items: Sequence[Item]) -> PerImage:
        if metric.key in _QUANTITIES:
            return _QUANTITIES[metric.key]
        borders = self.borders if metric.needs == "borders" else EVERY_256
        assert borders is not None
        function = seam.tiling_score if metric.key.startswith("ts") else seam.seam_excess

        def along(images: Tensor) -> Tensor:
            size = Size(*images.shape[-2:])
            lines = [borders.lines(size, item) for item in items]
            if len(set(lines)) == 1:
                return function(images, *lines[0])
            return torch.cat([function(images[i : i + 1], *own) for i, own in enumerate(lines)])

        return along

    @torch.inference_mode()
    def features(self, extractor: str, images: Tensor) -> NDArray[np.float32]:
        """[b, 3, h, w] → [b, d]."""
        return self.extractors[extractor](images).float().cpu().numpy()


def _floats(column: Tensor) -> list[float]:
    return column.double().cpu().tolist()


def _reason(error: Exception) -> str:
    if isinstance(error, ImportError):
        return f"needs {error.name or error}, which pip install 'sheafstain[score]' brings"
    return str(error)
