"""What is finished is measured and handed to where it is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from sheafstain.sheaf.defect import DefectTally, DirichletEnergy
from sheafstain.sheaf.glue import Kind
from sheafstain.translate import maps
from sheafstain.translate.gluing import Finished
from sheafstain.translate.plan import Plan
from sheafstain.translate.progress import Progress
from sheafstain.translate.stages import Stopped
from sheafstain.translate.windows import Translated
from sheafstain.window import Window


class Sink(Protocol):
    """Where finished rows go."""

    def rows(self, top: int, rows: Finished, coded: np.ndarray) -> None:
        """Rows ``top`` … of the region; ``coded`` uint8 [h, w] is their defect as a map for people."""
        ...

    def settled(self, progress: Callable[[], Progress], *, stopped: bool) -> None:
        """All rows so far have come, and ``progress`` says what is known of them; ``stopped``: no more will come."""
        ...


class Measuring:
    """Measures a region, or goes on ``before``: with what an earlier run left of it, which is the plan's target."""

    def __init__(self, plan: Plan, region: Window, sink: Sink, before: Progress | None = None) -> None:
        self.plan, self.region, self.sink = plan, region, sink
        self._first = plan.target.y - region.y
        self._row = self._first if before is None else before.row
        self.energy = DirichletEnergy(region.size)
        self.tally = DefectTally()
        self.areas = maps.Areas(region.size)
        self.windows: dict[Kind, int] = {"lattice": 0, "extra": 0}  # whose rows are all finished
        self._open: list[tuple[int, Kind]] = []  # last row and kind of the others
        self.seconds = 0.0  # of measuring, and of the sink
        if before is not None:
            self.energy.go_on(before.energies, before.worst, before.row)
            self.tally.go_on(before.histogram, before.total, before.pixels)
            self.areas.sums, self.areas.defined = before.areas
            self.windows = dict(before.windows)

    def run(self, things: Iterable[Translated | Finished]) -> None:
        try:
            for thing in things:
                began = time.perf_counter()
                if isinstance(thing, Translated):
                    self._windows(thing)
                else:
                    self._rows(thing)
                    self.sink.settled(self.progress, stopped=False)
                self.seconds += time.perf_counter() - began
        except Stopped:
            self.sink.settled(self.progress, stopped=True)
            raise

    def progress(self) -> Progress:
        histogram, total, pixels = self.tally.counts()
        energies, worst = self.energy.settled()
        areas = self.areas.sums.copy(), self.areas.defined.copy()
        return Progress(self._row, energies, worst, histogram, total, pixels, areas, dict(self.windows))

    def _windows(self, item: Translated) -> None:
        made = zip(item.pieces, item.pixels()[0], strict=True)  # of several samples the first one
        windows = [(piece.keep.within(self.region), piece.kept(pixels)) for piece, pixels in made]
        self.energy.add_all(windows)
        for (here, _), piece in zip(windows, item.pieces, strict=True):
            self._open.append((min(here.bottom, self.region.h), piece.kind))

    def _rows(self, rows: Finished) -> None:
        top = self._first + rows.window.y
        coded = maps.encode(rows.defect)
        self.tally.add(rows.defect)
        self.areas.add(top, coded)
        self.sink.rows(top, rows, coded)
        self._row = top + rows.window.h
        self.energy.rows_done(self._row)  # every window that starts above has come before these rows
        for bottom, kind in self._open:
            self.windows[kind] += bottom <= self._row
        self._open = [window for window in self._open if window[0] > self._row]
