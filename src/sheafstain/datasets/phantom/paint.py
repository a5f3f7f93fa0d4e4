"""From a canvas to dye amounts: haematoxylin and eosin, or counterstain and DAB.

Amounts are in units of paint; the slide's look turns them into light. Layers are laid over each other in the order of
the tissue truth, each through a cover of 0 … 1 that is one pixel soft.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from sheafstain.datasets.phantom.architecture import Map
from sheafstain.datasets.phantom.canvas import Canvas
from sheafstain.datasets.phantom.field import uniform
from sheafstain.datasets.phantom.look import Look
from sheafstain.datasets.phantom.markers import membrane_status, nuclear_status
from sheafstain.datasets.phantom.specimen import Marker


def haematoxylin_eosin(c: Canvas) -> list[Map]:
    """[haematoxylin, eosin, blood], each [h, w]."""
    s, f = c.specimen, c.fine
    cover = _Covers(c)
    tone = _cell_tone(c)
    edge = np.exp(-((c.cells.border / 0.8) ** 2)) * (c.cells.owner > 0)

    # Stroma: bundles of collagen with gaps between them, more gaps where it is loose.
    eosin = (0.60 + 0.25 * c.fibre + 0.05 * c.grain + 0.03 * c.wave) * (1 - 0.35 * f.loose)
    gap = _gaps(c)
    eosin = np.maximum(eosin, 0.06) * (1 - 0.88 * gap)
    haematoxylin = 0.05 + 0.03 * c.grain + 0.10 * f.lymph
    blood = np.zeros_like(eosin)

    def lay(over: Map, h: Map | float, e: Map | float, b: Map | float = 0.0) -> None:
        nonlocal haematoxylin, eosin, blood
        if over.max() <= 0:
            return
        for amount, new in ((haematoxylin, h), (eosin, e), (blood, b)):
            amount += over * (new - amount)

    lay(cover.fat, 0.0, 0.012)
    lay(cover.vessel, 0.08, 0.62 + 0.15 * c.fibre)
    lay(cover.vessel_lumen, 0.0, 0.03, 0.8 * c.blood)
    lay(cover.cleft, 0.0, 0.012)

    # Epithelium: cytoplasm with the tone of its cell, a little haematoxylin (ribosomes), borders, vacuoles.
    cytoplasm_h = 0.05 + 0.27 * s.amphophilic + 0.05 * tone + 0.06 * c.grain + 0.03 * c.wave
    cytoplasm_e = 0.30 + 0.09 * tone + 0.08 * c.grain + 0.05 * c.wave + (0.16 - 0.3 * s.vacuoles) * edge
    vacuole = np.clip(3 * (c.holes + 0.35 * c.wave - 2.3 + 1.2 * s.vacuoles + 0.3 * edge), 0, 1) * (s.vacuoles > 0)
    lay(cover.nest, cytoplasm_h * (1 - 0.85 * vacuole), np.maximum(cytoplasm_e, 0.03) * (1 - 0.9 * vacuole))
    lay(cover.necrosis, 0.12 + 0.05 * c.grain + 0.04 * c.holes, 0.6 + 0.10 * c.grain + 0.1 * c.wave)
    secretion = np.clip(0.28 * (c.holes - 1.0 + 0.5 * c.wave + 0.25 * c.grain), 0, 0.4)
    lay(cover.lumen, 0.12 * secretion, secretion + 0.008)
    lay(cover.duct, 0.2 + 0.03 * c.grain, 0.42 + 0.05 * c.grain + 0.06 * edge)
    lay(cover.duct_lumen, 0.1 * secretion, 0.8 * secretion + 0.008)

    nuclei = c.stamped.cover
    haematoxylin = haematoxylin * (1 - 0.75 * nuclei) + c.stamped.chromatin
    eosin *= 1 - 0.6 * nuclei
    glass = cover.glass
    return [np.maximum(a, 0) * (1 - glass) for a in (haematoxylin, eosin, blood)]


def immunostain(c: Canvas, marker: Marker, look: Look) -> list[Map]:
    """[counterstain, DAB, pigment], each [h, w]."""
    s = c.specimen
    cover = _Covers(c)
    tone = _cell_tone(c)
    dirt = _background(s.seed, marker)

    gap = _gaps(c)
    counter = look.stroma * (0.11 + 0.05 * c.fibre + 0.025 * c.grain) * (1 - 0.8 * gap)
    dab = dirt * (0.05 + 0.02 * c.fibre + 0.015 * c.grain) * (1 - 0.8 * gap)
    pigment = np.zeros_like(dab)

    def lay(over: Map, h: Map | float, d: Map | float) -> None:
        nonlocal counter, dab
        if over.max() <= 0:
            return
        counter += over * (h - counter)
        dab += over * (d - dab)

    lay(cover.fat, 0.0, 0.0)
    lay(cover.vessel, 0.07, dirt * 0.05)
    lay(cover.vessel_lumen, 0.04 * c.blood, dirt * 0.08 * c.blood)
    lay(cover.cleft, 0.0, 0.0)
    cytoplasm = 0.07 + 0.07 * look.stroma + 0.03 * tone + 0.05 * c.grain + 0.02 * c.wave
    stained = dirt * (0.10 + 0.04 * tone + 0.04 * c.grain + 0.03 * c.wave)
    lay(cover.nest, cytoplasm, np.maximum(stained, 0))
    lay(cover.duct, 0.12, dirt * 0.08)

    patch = c.fine.patch
    at_nuclei = _at(patch, c)
    if marker == "HER2":
        amount, complete = membrane_status(s, c.nuclei, at_nuclei)
        dab += _membranes(c, amount, complete, cover.nest, look.granular)
    lay(cover.necrosis, 0.10 + 0.04 * c.grain, dirt * 0.25 + 0.05 * c.wave.clip(0))
    lay(cover.lumen, 0.004, 0.0)
    lay(cover.duct_lumen, 0.004, 0.0)

    nuclei = c.stamped.cover
    blue = np.minimum(c.stamped.chromatin, 1.4) * 0.66 + (0.12 + 0.05 * c.wave) * nuclei
    counter = counter * (1 - 0.7 * nuclei) + blue
    dab = dab * (1 - 0.75 * nuclei)
    if marker != "HER2":
        status = np.concatenate([[0.0], nuclear_status(s, marker, c.nuclei, at_nuclei)]).astype(np.float32)
        brown = status[c.stamped.label] * nuclei * np.maximum(0.8 + 0.14 * c.grain + 0.12 * c.wave, 0.3)
        dab += brown
        counter *= 1 - 0.55 * np.clip(brown, 0, 1)
    pigment += 2.2 * np.clip(4 * (c.holes * 0.55 + 0.5 * c.wave + 0.4 * c.grain - 3.35), 0, 1)  # specks
    glass = cover.glass
    return [np.maximum(counter, 0) * (1 - glass), np.maximum(dab, 0) * (1 - glass), pigment]


def _gaps(c: Canvas) -> Map:
    """The empty space between bundles of collagen, [h, w] in 0 … 1: none where the stroma is dense."""
    return np.clip(3.4 * (1.35 * c.fine.loose - 1.25 - 0.75 * c.fibre + 0.25 * c.holes), 0, 1)


class _Covers:
    """Each layer's cover, [h, w] in 0 … 1, one pixel soft at its border."""

    def __init__(self, c: Canvas) -> None:
        self._fine, self._step, self._c = c.fine, c.frame.step, c

    def __getattr__(self, name: str) -> Map:
        return self._soft(getattr(self._fine, name))

    def _soft(self, distance: Map) -> Map:
        return np.clip(distance / np.float32(1.3 * self._step) + np.float32(0.5), 0, 1)

    @property
    def cleft(self) -> Map:
        """The empty rim where a nest shrank away from its stroma, wide here and closed there."""
        width = self._c.specimen.cleft * np.clip(0.6 + 0.8 * self._c.holes, 0, 2)
        return self._soft(np.minimum(self._fine.nest + width, width - 0.2))

    @property
    def glass(self) -> Map:
        return self._soft(np.maximum(-self._fine.tissue, self._c.tear))


def _cell_tone(c: Canvas) -> Map:
    """A number in −1 … 1 for each cell, [h, w]: no two cells take up quite the same amount of dye."""
    tones = 2 * uniform(c.specimen.seed, 510, c.nuclei.key.view(np.int64)).astype(np.float32) - 1
    return np.concatenate([[np.float32(0)], tones])[c.cells.owner]


def _at(m: Map, c: Canvas) -> NDArray[np.float32]:
    """A slow map's value at every nucleus, [n]; nuclei beyond the raster take its edge."""
    row = np.clip(np.rint((c.nuclei.y - c.frame.y) / c.frame.step), 0, c.frame.h - 1).astype(int)
    column = np.clip(np.rint((c.nuclei.x - c.frame.x) / c.frame.step), 0, c.frame.w - 1).astype(int)
    return m[row, column]


def _membranes(c: Canvas, amount: NDArray[np.float32], complete: float, inside: Map, granular: float) -> Map:
    """DAB on the borders between cells and along the nest's edge, [h, w]."""
    amount = np.concatenate([[np.float32(0)], amount])
    mine, other = amount[c.cells.owner], amount[c.cells.rival]
    # Two membranes touch: what is seen on a border is both.
    both = 0.5 * (mine + other)
    line = np.exp(-((c.cells.border / 0.75) ** 2))
    present = np.clip(4 * (0.45 * c.holes + 0.5 * c.wave + 2.3 * (complete - 0.5)), 0, 1)
    rim = 0.55 * np.exp(-(((c.fine.nest - 1.0) / 1.0) ** 2)) + 0.5 * np.exp(-(((c.fine.lumen + 1.0) / 1.0) ** 2))
    granules = granular * mine * np.clip(0.6 + 0.4 * c.grain + 0.35 * c.wave, 0, 2)
    return inside * (present * np.maximum(both * line, mine * rim) * (0.9 + 0.16 * c.grain) + granules)


def _background(seed: int, marker: Marker) -> float:
    """How dirty the immunostain is: 0.2 clean … 2.5 brown all over."""
    u = float(uniform(seed, 520 + zlib.crc32(marker.encode()) % 97, np.zeros(1, np.int64))[0])
    return 0.2 + 2.3 * u**2.5
