"""Where is what: tissue architecture as signed distances over physical coordinates.

Each field is evaluated on a coarse grid of 2 µm, since borders are resolved later, at the pixel, by interpolating the
distance and not the class. Positive means inside. Lengths are µm.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from sheafstain.datasets.phantom.field import Field, Floats, uniform
from sheafstain.datasets.phantom.specimen import Specimen

PITCH = 2.0  # µm between nodes of the coarse grid from which pictures are drawn

FAR = 12.0  # µm: beyond this distance a border changes nothing that is seen

Map = NDArray[np.floating]  # float32 wherever a map is as large as the picture


class Tissue(IntEnum):
    """Classes of the tissue truth, as they are written in its image."""

    GLASS = 0
    STROMA = 1
    TUMOUR = 2
    LUMEN = 3
    FAT = 4
    NECROSIS = 5
    VESSEL = 6
    BLOOD = 7
    DUCT = 8


@dataclass(frozen=True, slots=True)
class Extent:
    """The glass of a finite slide, µm."""

    height: float
    width: float


@dataclass(frozen=True)
class Architecture:
    """Fields on one coarse grid, each [n, m] float32; ``ys`` and ``xs`` are the grid's positions in µm."""

    ys: Floats
    xs: Floats
    tissue: Map  # distance into tissue; negative is glass
    nest: Map  # distance into a tumour nest
    lumen: Map  # distance into a gland's lumen
    duct: Map  # distance into a normal duct, lumen included
    duct_lumen: Map
    vessel: Map  # distance into a vessel, wall and lumen
    vessel_lumen: Map
    fat: Map  # distance into a fat cell's droplet
    necrosis: Map
    lymph: Map  # density of lymphocytes, 0 … 1
    loose: Map  # openness of the stroma, 0 … 1
    clone: Map  # > 0: the second tumour clone
    patch: Map  # slow variation of marker expression, mean 0, variance 1
    fold: Map  # section thickness relative to its mean
    along_y: Map  # unit vector along the collagen fibres
    along_x: Map

    def maps(self) -> dict[str, Map]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("ys", "xs")}


class _Channel(IntEnum):
    """Lattice channels: one number for each independent field, never reused."""

    NEST, NEST2, NEST3, CORD, CORD2, KIND, TUMOUR, FAT, LYMPH, LYMPH2 = range(100, 110)
    NECROSIS, LOOSE, CLONE, PATCH, FOLD, FLOW, FLOW2, FLOW3, GLASS, GLASS2 = range(110, 120)
    DUCT, VESSEL, FATCELL, WOBBLE, RAGGED, PUNCH = range(120, 126)


def architecture(specimen: Specimen, ys: Floats, xs: Floats, extent: Extent | None = None) -> Architecture:
    """The fields on ys × xs (µm). ``extent`` is the glass of a finite slide; None is endless."""
    s = specimen

    def noise(channel: int, wavelength: float) -> Map:
        return Field(s.seed, channel, wavelength / 2).grid(ys, xs)

    def distance(level: Map, wavelength: float) -> Map:
        return _distance(level, wavelength, float(ys[1] - ys[0]))

    tissue = _outline(s, noise, ys, xs, extent)
    nests = _nest_field(s, noise)
    # Tumour lives in provinces of about a millimetre; between them the threshold is out of reach.
    threshold = 0.4 - s.tumour - 0.6 * noise(_Channel.TUMOUR, 1400.0)
    nest = distance(nests - threshold, s.nest)
    lumen_rise = 0.8 - 0.35 * s.gland
    gland = np.clip(3 * (noise(_Channel.KIND, 700.0) + 2.4 * (s.gland - 0.38)), -1.5, 1.0)
    # A lumen opens at a peak of the nest field, however low the threshold of a tumour-rich specimen lies.
    lumen = distance(nests - np.maximum(threshold + lumen_rise, 1.0 - 0.2 * s.gland) - (1 - gland), s.nest)
    # Cribriform growth: round lumina punched into wide nests.
    punched = distance(noise(_Channel.PUNCH, 62.0) - 1.25 - 0.9 * (1 - gland), 62.0)
    lumen = np.maximum(lumen, np.minimum(punched, nest - 13))
    necrosis = distance(nests - threshold - 2.5 + 0.6 * (noise(_Channel.NECROSIS, 900.0) + s.necrosis), s.nest)
    necrosis = np.where(gland > 0.6, np.float32(-50), necrosis)

    wobble = noise(_Channel.WOBBLE, 45.0)
    duct, duct_lumen = _rings(s, _Channel.DUCT, ys, xs, wobble, every=620.0, share=0.3, radius=(26, 75), wall=(11, 16))
    vessel, vessel_lumen = _rings(
        s, _Channel.VESSEL, ys, xs, wobble, every=260.0, share=0.4, radius=(7, 34), wall=(2, 6)
    )
    free = -np.maximum(nest + 18, duct + 14)  # vessels lie in stroma
    vessel, vessel_lumen = np.minimum(vessel, free), np.minimum(vessel_lumen, free)
    outside = -(duct + 12)  # a duct displaces the tumour around it
    nest, lumen, necrosis = np.minimum(nest, outside), np.minimum(lumen, outside), np.minimum(necrosis, outside)

    fat_province = 60 * (noise(_Channel.FAT, 1100.0) + s.fat + 0.15 * wobble)
    fat_province = np.minimum(fat_province, -np.maximum(np.maximum(nest, duct), vessel) - 6)
    fat = np.minimum(_droplets(s, ys, xs), fat_province) if fat_province.max() > -FAR else fat_province

    lymph = noise(_Channel.LYMPH, 420.0) + 0.7 * noise(_Channel.LYMPH2, 110.0) + s.lymph
    near = np.exp(-np.abs(nest + 15) / 60)  # lymphocytes gather at the invasive front
    lymph = np.clip(0.6 * lymph + 0.45 * near - 0.55, 0, 1) ** 1.3

    # Collagen runs along the level lines of a slow potential that the nests take part in: bundles wrap around nests.
    # A ramp across the specimen keeps the lines from closing into whorls of their own.
    angle = 2 * np.pi * uniform(s.seed, _Channel.FLOW, np.zeros(1, np.int64))[0]
    flow = (ys[:, None] * np.sin(angle) + xs[None, :] * np.cos(angle)) / 110
    flow = (
        flow
        + 0.9 * noise(_Channel.FLOW, 900.0)
        + 0.13 * noise(_Channel.FLOW2, 190.0)
        + 0.035 * noise(_Channel.FLOW3, 50.0)
    )
    flow += 0.9 * nests * np.exp(-np.abs(nest) / 70) - 0.025 * np.clip(-np.maximum(duct, vessel), 0, 50)
    gy, gx = np.gradient(flow, float(ys[1] - ys[0]), float(xs[1] - xs[0]))
    length = np.hypot(gy, gx) + 1e-6
    fold = _fold(noise(_Channel.FOLD, 2600.0), s)
    loose = np.clip(0.5 + 0.35 * noise(_Channel.LOOSE, 300.0) + 0.9 * (s.loose - 0.5), 0, 1)
    return Architecture(
        ys=ys,
        xs=xs,
        tissue=tissue,
        nest=nest,
        lumen=lumen,
        duct=duct,
        duct_lumen=duct_lumen,
        vessel=vessel,
        vessel_lumen=vessel_lumen,
        fat=fat.astype(np.float32),
        necrosis=necrosis.astype(np.float32),
        lymph=lymph.astype(np.float32),
        loose=loose.astype(np.float32),
        clone=noise(_Channel.CLONE, 900.0) - np.float32(0.5),
        patch=noise(_Channel.PATCH, 330.0),
        fold=fold.astype(np.float32),
        along_y=(-gx / length).astype(np.float32),
        along_x=(gy / length).astype(np.float32),
    )


def _distance(level: Map, wavelength: float, pitch: float) -> Map:
    """A signed field in µm: the level divided by its own slope, first order in the distance to its zero line."""
    gy, gx = np.gradient(level, pitch)
    return (level / np.sqrt(gy**2 + gx**2 + (0.9 / wavelength) ** 2)).astype(np.float32)


def _nest_field(s: Specimen, noise) -> Map:
    """Blobs for solid and glandular growth, ridges for cords, mixed by province."""
    blobs = 0.85 * noise(_Channel.NEST, s.nest * 1.5) + 0.5 * noise(_Channel.NEST2, s.nest * 0.7)
    fine = 0.16 * noise(_Channel.NEST3, s.nest * 0.28)
    ridge = 0.75 - 1.9 * np.abs(noise(_Channel.CORD, s.nest * 1.1) + 0.35 * noise(_Channel.CORD2, s.nest * 0.5))
    kind = np.clip(0.5 + 1.5 * (s.cords - 0.5) + 0.5 * noise(_Channel.KIND, 1000.0), 0, 1)
    return (blobs * (1 - kind) + ridge * kind + fine).astype(np.float32)


def _outline(s: Specimen, noise, ys: Floats, xs: Floats, extent: Extent | None) -> Map:
    """Distance into tissue. On a finite slide a rounded piece in the middle, else here and there an edge."""
    ragged = 9 * noise(_Channel.RAGGED, 60.0) + 3 * noise(_Channel.GLASS2, 22.0)
    if extent is None:
        return (400 * (noise(_Channel.GLASS, 3200.0) + 1.75) + ragged).astype(np.float32)
    v, u = (ys[:, None] / extent.height - 0.5) / 0.44, (xs[None, :] / extent.width - 0.5) / 0.44
    short = min(extent.height, extent.width)
    radius = (np.abs(v) ** 3 + np.abs(u) ** 3) ** (1 / 3) + 0.10 * noise(_Channel.GLASS, 0.35 * short)
    return (0.44 * short * (1 - radius) + ragged).astype(np.float32)


def _fold(field: Map, s: Specimen) -> Map:
    """Relative thickness: about 1, up to 1.9 on a rare narrow fold."""
    ridge = np.exp(-((field - 1.1) ** 2) / (2 * 0.012**2))
    return 1 + 0.9 * ridge * float(uniform(s.seed, _Channel.FOLD, np.zeros(1, np.int64))[0] < 0.25)


def _rings(
    s: Specimen,
    channel: int,
    ys: Floats,
    xs: Floats,
    wobble: Map,
    *,
    every: float,
    share: float,
    radius: tuple[float, float],
    wall: tuple[float, float],
) -> tuple[Map, Map]:
    """Tubes cut across: one at most in each cell of a lattice. Distances into the tube and into its lumen."""
    outer = np.full((len(ys), len(xs)), -1e3, np.float32)
    inner = outer.copy()
    rows = np.arange(int(np.floor(ys[0] / every)) - 1, int(np.floor(ys[-1] / every)) + 2)
    columns = np.arange(int(np.floor(xs[0] / every)) - 1, int(np.floor(xs[-1] / every)) + 2)
    for row in rows:
        for column in columns:
            u = uniform(s.seed, channel, np.asarray(row), np.asarray(column), np.arange(7))
            if u[0] > share:
                continue
            size = radius[0] + (radius[1] - radius[0]) * u[1] ** 2
            stretch, turn = 1 + 1.2 * u[2] ** 2, np.pi * u[3]
            y, x = (ys - (row + 0.2 + 0.6 * u[4]) * every)[:, None], (xs - (column + 0.2 + 0.6 * u[5]) * every)[None, :]
            along, across = y * np.sin(turn) + x * np.cos(turn), y * np.cos(turn) - x * np.sin(turn)
            distance = size * (1 + 0.16 * wobble) - np.hypot(along / stretch, across)
            outer = np.maximum(outer, distance)
            inner = np.maximum(inner, distance - (wall[0] + (wall[1] - wall[0]) * u[6]))
    return outer.astype(np.float32), inner.astype(np.float32)


def _droplets(s: Specimen, ys: Floats, xs: Floats, every: float = 58.0) -> Map:
    """Distance into the nearest fat droplet: half of (second nearest − nearest centre), less the cell's rim."""
    rows = np.arange(int(np.floor(ys[0] / every)) - 2, int(np.floor(ys[-1] / every)) + 3)
    columns = np.arange(int(np.floor(xs[0] / every)) - 2, int(np.floor(xs[-1] / every)) + 3)
    jitter = uniform(s.seed, _Channel.FATCELL, rows[:, None, None], columns[None, :, None], np.arange(2)) * 0.8 + 0.1
    first = np.full((len(ys), len(xs)), 1e4, np.float32)
    second = first.copy()
    for i, row in enumerate(rows):
        near_y = np.abs(ys - (row + 0.5) * every) < 1.3 * every
        if not near_y.any():
            continue
        for j, column in enumerate(columns):
            near_x = np.abs(xs - (column + 0.5) * every) < 1.3 * every
            if not near_x.any():
                continue
            part = np.ix_(near_y, near_x)
            y, x = (row + jitter[i, j, 0]) * every, (column + jitter[i, j, 1]) * every
            distance = np.hypot(ys[near_y][:, None] - y, xs[near_x][None, :] - x).astype(np.float32)
            second[part] = np.minimum(second[part], np.maximum(first[part], distance))
            first[part] = np.minimum(first[part], distance)
    # Rounded at the ridge between two droplets: a kink would alias on the coarse grid.
    return np.sqrt(((second - first) / 2) ** 2 + 1.4**2) - 2.0
