"""What a phantom data set will hold, decided from its seed before anything is drawn.

A specimen gives a few fields, as a slide does in MIST, and lies in one split only. Fields are chosen where there is
tissue, and mostly tumour, as people choose them. The plan is the set's manifest: it is written first, and a set that
was interrupted is finished by the same plan.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from sheafstain import __version__
from sheafstain.datasets.phantom.architecture import architecture
from sheafstain.datasets.phantom.field import uniform
from sheafstain.datasets.phantom.phantom import BLOCK
from sheafstain.datasets.phantom.specimen import GRADES, MARKERS, Marker, Specimen
from sheafstain.errors import SheafStainError, UsageError
from sheafstain.window import Resolution, Size, Window

LayoutName = Literal["pairs", "bci", "mist"]
ONE_LABORATORY = 0.3  # the variation of immunostains that one laboratory makes and one scanner sees
DRAWING = 1  # raise it when a seed draws other pixels than before

_REGION = 24  # the fields of a specimen lie on a lattice of so many fields squared
_COARSE = 16.0  # µm: fine enough to tell tissue from glass


@dataclass(frozen=True)
class Plan:
    """Everything that decides the pixels of a data set."""

    layout: LayoutName
    seed: int
    train: int  # pairs
    val: int
    markers: tuple[Marker, ...]
    size: Size
    resolution: Resolution
    fields: int  # per specimen
    truth: bool
    ihc_variation: float = 1.0

    def __post_init__(self) -> None:
        if self.train < 0 or self.val < 0 or self.train + self.val == 0:
            raise UsageError("ask for at least one pair (--train, --val)")
        if min(self.size.h, self.size.w) < 64 or max(self.size.h, self.size.w) > 8192:
            raise UsageError(f"fields of {self.size} px cannot be drawn; choose a side from 64 to 8192 (or --slide)")
        if not 0.1 <= self.resolution.mpp <= 2:
            raise UsageError(f"{self.resolution} is outside of what a phantom can show; choose 0.1 to 2 µm per pixel")
        if not 0 <= self.ihc_variation <= 1:
            raise UsageError(f"the variation of the IHC is from 0 to 1, not {self.ihc_variation:g}")
        if not 1 <= self.fields <= _REGION**2 // 4:
            raise UsageError(f"a specimen has 1 to {_REGION**2 // 4} fields, not {self.fields}")
        if self.layout != "mist" and len(self.markers) != 1:
            raise UsageError(f"layout {self.layout} holds one marker; use --layout mist for {', '.join(self.markers)}")
        if self.layout == "bci" and self.markers != ("HER2",):
            raise UsageError("layout bci is a HER2 set; use --layout mist or pairs for another marker")

    @lru_cache(4)  # noqa: B019  a plan is a small value, and looking for fields takes a while
    def items(self) -> tuple[Item, ...]:
        """All pairs, in order. The markers of a MIST-like set are drawn on specimens of their own, as there."""
        out: list[Item] = []
        for marker in self.markers:
            number = 0
            for split, count in (("train", self.train), ("val", self.val)):
                while count > 0:
                    taken = min(count, self.fields)
                    out += self._fields(marker, split, number, taken)
                    number, count = number + 1, count - taken
        return tuple(out)

    def _fields(self, marker: Marker, split: str, number: int, count: int) -> list[Item]:
        # 20 bits for the specimen's number: seeds of neighbouring data sets do not share specimens.
        seed = (self.seed << 24) | (MARKERS.index(marker) << 20) | number
        specimen = Specimen.draw(seed)
        windows = choose_fields(specimen, self.size, self.resolution, count)
        return [Item(marker, split, number, index, specimen, window) for index, window in enumerate(windows)]

    def manifest(self) -> dict[str, Any]:
        return {
            "what": "SheafStain phantom data set: procedural tissue, no patient, no diagnosis",
            "drawing": DRAWING,
            "version": __version__,
            **asdict(self),
            "resolution": self.resolution.mpp,
            "items": [
                {
                    "id": item.name(self.layout),
                    "split": item.split,
                    "marker": item.marker,
                    "slide": item.slide,
                    "window": asdict(item.window),
                    "her2": GRADES[item.specimen.her2],
                    **{k: round(v, 4) for k, v in asdict(item.specimen).items() if isinstance(v, float)},
                }
                for item in self.items()
            ],
        }


@dataclass(frozen=True)
class Item:
    """One pair to draw."""

    marker: Marker
    split: str
    number: int  # of the specimen in its marker
    index: int  # of the field in its specimen
    specimen: Specimen
    window: Window

    @property
    def slide(self) -> str:
        return f"PH-{self.marker}-{self.number:05d}"

    def name(self, layout: LayoutName) -> str:
        """The stem of both files."""
        if layout == "bci":
            order = self.number * 1000 + self.index
            return f"{order:05d}_{'train' if self.split == 'train' else 'test'}_{GRADES[self.specimen.her2]}"
        return f"{self.slide}_{self.window.y // BLOCK}_{self.window.x // BLOCK}"


def choose_fields(specimen: Specimen, size: Size, resolution: Resolution, count: int) -> list[Window]:
    """Windows that do not touch, at least 60 % tissue; among enough candidates the ones with some tumour come first."""
    step = -(-max(size.h, size.w) // BLOCK) * BLOCK  # on the block lattice: no block is drawn for two fields
    order = np.argsort(uniform(specimen.seed, 700, np.arange(_REGION**2)), kind="stable")
    chosen: list[Window] = []
    spare: list[Window] = []
    for place in order:
        window = Window(int(place) // _REGION * step, int(place) % _REGION * step, size.h, size.w)
        tissue, tumour = _shares(specimen, window, resolution)
        if tissue < 0.6:
            continue
        (chosen if 0.12 < tumour < 0.85 else spare).append(window)
        if len(chosen) == count:
            return chosen
        if len(chosen) + len(spare) >= count + 40:  # a specimen with little tumour: do not search it all
            break
    if len(chosen) + len(spare) < count:
        raise SheafStainError(
            f"specimen {specimen.seed} has no room for {count} fields of {size} px; ask for fewer --fields"
        )
    return (chosen + spare)[:count]


def _shares(specimen: Specimen, window: Window, resolution: Resolution) -> tuple[float, float]:
    """Shares of tissue and of tumour in a window, from a coarse look."""
    ys = np.arange(window.y * resolution.mpp, window.bottom * resolution.mpp + _COARSE, _COARSE)
    xs = np.arange(window.x * resolution.mpp, window.right * resolution.mpp + _COARSE, _COARSE)
    here = architecture(specimen, ys, xs)
    return float((here.tissue > 0).mean()), float(((here.nest > 0) & (here.lumen < 0)).mean())
