"""Results in memory: what ``Stainer.stain`` gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sheafstain.translate.gluing import Finished
from sheafstain.translate.progress import Progress
from sheafstain.window import Size


@dataclass(frozen=True, eq=False, slots=True)
class Stained:
    """A virtual stain and how far to trust it.

    Parameters
    ----------
    pixels
        uint8 [h, w, 3].
    defect
        float32 [h, w]: the weighted variance between the windows on the [0, 1] scale, NaN where fewer than two covered.
    spread
        float32 [h, w]: the variance between samples, when several were asked for.
    energy
        E(G), the mean disagreement of overlapping windows; NaN where none overlap.
    report
        All that is written beside a file.
    """

    pixels: np.ndarray
    defect: np.ndarray
    spread: np.ndarray | None
    energy: float
    report: Mapping[str, Any]


class ArraySink:
    """Gathers finished rows."""

    def __init__(self, size: Size, samples: int) -> None:
        self.pixels = np.empty((size.h, size.w, 3), np.uint8)
        self.defect = np.empty((size.h, size.w), np.float32)
        self.spread = np.empty((size.h, size.w), np.float32) if samples > 1 else None

    def rows(self, top: int, rows: Finished, coded: np.ndarray) -> None:
        here = slice(top, top + rows.window.h)
        self.pixels[here], self.defect[here] = rows.pixels, rows.defect
        if self.spread is not None and rows.spread is not None:
            self.spread[here] = rows.spread

    def settled(self, progress: Callable[[], Progress], *, stopped: bool) -> None:
        """An array in memory is lost with the process: there is nothing to keep."""
