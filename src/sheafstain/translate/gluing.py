"""The gluing stage: translated windows become rows of the output, and the disagreement of the windows is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sheafstain.sheaf.defect import DefectTally, DirichletEnergy
from sheafstain.sheaf.glue import Glued, Gluer, Kind
from sheafstain.translate import maps
from sheafstain.translate.plan import Plan
from sheafstain.translate.progress import Progress
from sheafstain.translate.stages import Stopped
from sheafstain.translate.windows import Translated
from sheafstain.window import Window

BACKGROUND = 0.96  # grey level of glass, which is not translated


@dataclass(frozen=True, eq=False, slots=True)
class Finished:
    """Rows of the output that nothing will change any more, ``window`` in the coordinates of the target.

    ``pixels`` uint8 [h, w, 3], ``defect`` float32 [h, w], NaN where undefined, and ``map`` uint8 [h, w] the same for
    people. With more than one sample these are means over them, and ``spread`` float32 [h, w] is the variance between
    them, on the [0, 1] scale as the defect is.
    """

    window: Window
    pixels: np.ndarray
    defect: np.ndarray
    map: np.ndarray
    spread: np.ndarray | None


class Sink(Protocol):
    """Where finished rows go."""

    def rows(self, rows: Finished) -> None: ...

    def settled(self, progress: Callable[[], Progress], *, stopped: bool) -> None:
        """All rows so far have come, and ``progress`` says what is known of them; ``stopped``: no more will come."""
        ...


class Gluing:
    """Glues a region, or what an earlier run left of it, and keeps count of the disagreement.

    Coordinates of the output are those of the ``region``; the plan's target is the part of it that is still to be made.
    """

    def __init__(self, plan: Plan, region: Window, sink: Sink, before: Progress | None = None) -> None:
        self.plan, self.region, self.sink = plan, region, sink
        self._first = plan.target.y - region.y
        self._row = self._first if before is None else before.row
        self._gluers = [Gluer(plan.target.size, background=BACKGROUND) for _ in plan.protocol.seeds]
        self.energy = DirichletEnergy(region.size)
        self.tally = DefectTally()
        self.areas = maps.Areas(region.size)
        self.windows: dict[Kind, int] = {"lattice": 0, "extra": 0}  # whose rows are all finished
        self._open: list[tuple[int, Kind]] = []  # last row and kind of the others
        if before is not None:
            self.energy.go_on(before.energies, before.worst, before.row)
            self.tally.go_on(before.histogram, before.total, before.pixels)
            self.areas.sums, self.areas.defined = before.areas
            self.windows = dict(before.windows)

    def run(self, translated: Iterable[Translated]) -> None:
        try:
            for item in translated:
                self._add(item)
                self._finish(self._rows_done(item.floor))
                self.sink.settled(self.progress, stopped=False)
        except Stopped:
            self.sink.settled(self.progress, stopped=True)
            raise
        self._finish([g.finish() for g in self._gluers])
        self.energy.rows_done(self.region.h)

    def progress(self) -> Progress:
        histogram, total, pixels = self.tally.counts()
        energies, worst = self.energy.settled()
        areas = self.areas.sums.copy(), self.areas.defined.copy()
        return Progress(self._row, energies, worst, histogram, total, pixels, areas, dict(self.windows))

    def _add(self, item: Translated) -> None:
        target = self.plan.target
        self._open.extend((piece.keep.bottom - self.region.y, piece.kind) for piece in item.pieces)
        for k, (gluer, pixels) in enumerate(zip(self._gluers, item.pixels(), strict=True)):
            for piece, made in zip(item.pieces, pixels, strict=True):
                made = made if piece.keep == piece.read else made[piece.keep.within(piece.read).slices]
                gluer.add(piece.keep.within(target), made, piece.kind)
                if k == 0:  # of several samples the first one is measured
                    self.energy.add(piece.keep.within(self.region), made)

    def _rows_done(self, floor: int) -> list[Iterator[Glued]]:
        self.energy.rows_done(max(floor - self.region.y, 0))
        return [g.rows_done(max(floor - self.plan.target.y, 0)) for g in self._gluers]

    def _finish(self, bands: list[Iterator[Glued]]) -> None:
        for glued in zip(*bands, strict=True):
            rows = self._merged(glued)
            self.tally.add(rows.defect)
            self.areas.add(rows.window.y, rows.map)
            self.sink.rows(rows)
            self._row = rows.window.bottom
        for _, kind in (window for window in self._open if self._ended(window)):
            self.windows[kind] += 1
        self._open = [window for window in self._open if not self._ended(window)]

    def _ended(self, window: tuple[int, Kind]) -> bool:
        return min(window[0], self.region.h) <= self._row

    def _merged(self, glued: tuple[Glued, ...]) -> Finished:
        """One band of all samples."""
        window = glued[0].window.shift(self._first, 0)
        assert glued[0].defect is not None
        if len(glued) == 1:
            return Finished(window, glued[0].pixels, glued[0].defect, maps.encode(glued[0].defect), None)
        mean = np.zeros(glued[0].pixels.shape, np.float32)
        square = np.zeros_like(mean)
        defect = np.zeros(glued[0].defect.shape, np.float32)
        for g in glued:  # sums of at most 256 bytes and of their squares: exact in float32
            values = g.pixels.astype(np.float32)
            mean += values
            square += values * values
            defect += g.defect if g.defect is not None else np.nan
        n = len(glued)
        variance = (square - mean * mean / n) / (n * 255**2)
        mean /= n
        defect /= n
        return Finished(window, np.rint(mean).astype(np.uint8), defect, maps.encode(defect), variance.mean(2).clip(0))
