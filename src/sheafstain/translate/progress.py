"""What is known about the rows that are finished: enough to report on them without seeing them again."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from sheafstain.sheaf.glue import Kind
from sheafstain.window import Window


@dataclass(frozen=True, eq=False, slots=True)
class Progress:
    """Where a translation stands, ``row`` rows of its region finished.

    ``energies`` of the pairs of windows that overlap above that row, and the ``worst`` of them; ``histogram``,
    ``total`` and ``pixels`` of the defect; the ``areas`` of its map; how many ``windows`` end there; what was
    ``damaged``; and the ``seconds`` that all runs so far took.
    """

    row: int
    energies: np.ndarray
    worst: tuple[float, Window] | None
    histogram: np.ndarray
    total: float
    pixels: int
    areas: tuple[np.ndarray, np.ndarray]
    windows: dict[Kind, int]
    damaged: list[Window] = field(default_factory=list)
    seconds: float = 0.0

    def to_bytes(self, identity: Mapping[str, Any]) -> bytes:
        """One archive of arrays; ``identity`` names the translation."""
        said = {
            "identity": identity,
            "row": self.row,
            "worst": None if self.worst is None else [self.worst[0], _sides(self.worst[1])],
            "total": self.total,
            "pixels": self.pixels,
            "windows": self.windows,
            "damaged": [_sides(window) for window in self.damaged],
            "seconds": self.seconds,
        }
        out = io.BytesIO()
        np.savez(
            out,
            said=np.frombuffer(json.dumps(said).encode(), np.uint8),
            energies=self.energies,
            histogram=self.histogram,
            sums=self.areas[0],
            defined=self.areas[1],
        )
        return out.getvalue()

    @classmethod
    def of_bytes(cls, content: bytes) -> tuple[Self, dict[str, Any]]:
        """What was saved, and its identity; whatever goes wrong with damaged bytes is a ValueError."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                said = json.loads(arrays["said"].tobytes())
                worst = said["worst"]
                progress = cls(
                    row=said["row"],
                    energies=arrays["energies"],
                    worst=None if worst is None else (worst[0], Window(*worst[1])),
                    histogram=arrays["histogram"],
                    total=said["total"],
                    pixels=said["pixels"],
                    areas=(arrays["sums"], arrays["defined"]),
                    windows=said["windows"],
                    damaged=[Window(*sides) for sides in said["damaged"]],
                    seconds=said["seconds"],
                )
                return progress, said["identity"]
        except Exception as error:  # zip, JSON, NumPy and missing keys: each has errors of its own
            raise ValueError(str(error)) from error


def _sides(window: Window) -> list[int]:
    return [window.y, window.x, window.h, window.w]
