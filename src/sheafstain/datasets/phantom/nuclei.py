"""Nuclei and cells: where they sit, what shape they have, and how they are stamped on a raster.

A population lives on a jittered lattice in the specimen's frame. A lattice site is a column of cells through the depth
of the block: a section meets each column at one height, so consecutive sections share most nuclei, smaller or larger,
and differ in the rest. All traits of a nucleus are hashes of (population, site, height).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from sheafstain.datasets.phantom.architecture import PITCH, Architecture, Map
from sheafstain.datasets.phantom.cut import Section, bilinear
from sheafstain.datasets.phantom.field import hashed, normal, uniform
from sheafstain.datasets.phantom.specimen import Specimen


class Nucleus(IntEnum):
    """Classes of the nuclei truth."""

    TUMOUR = 1
    MITOSIS = 2
    EPITHELIUM = 3
    FIBROBLAST = 4
    LYMPHOCYTE = 5
    ENDOTHELIUM = 6
    DEBRIS = 7


_RED_CELL = 0  # stamped like a nucleus and none: no class in the truth


@dataclass(frozen=True)
class Nuclei:
    """A struct of arrays, each [n]; positions and half-axes in µm in the section's frame."""

    kind: NDArray[np.uint8]
    key: NDArray[np.uint64]  # the same nucleus in two sections has the same key
    y: NDArray[np.floating]
    x: NDArray[np.floating]
    long: NDArray[np.floating]
    short: NDArray[np.floating]
    turn: NDArray[np.floating]  # angle of the long axis from x, radians
    dark: NDArray[np.floating]  # haematoxylin amount
    vesicular: NDArray[np.floating]
    irregular: NDArray[np.floating]
    seen: NDArray[np.bool_]  # False: the section passed the cell and missed its nucleus
    size: NDArray[np.floating]  # relative to the population's mean: what markers depend on
    front: NDArray[np.floating]  # distance into the nest, µm
    cell: NDArray[np.floating]  # mean diameter of the cell, µm; 0 where cells are not drawn

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, index: NDArray) -> Nuclei:
        return Nuclei(*(getattr(self, f.name)[index] for f in fields(self)))

    @classmethod
    def join(cls, parts: list[Nuclei]) -> Nuclei:
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)))


def populate(specimen: Specimen, section: Section, here: Architecture, reach: float) -> Nuclei:
    """All nuclei of a section whose centres lie on the architecture's grid; ``here`` is in the section's frame.

    ``reach`` (µm) is how far beyond that grid, in the specimen's frame, a site may lie and still be displaced onto it.
    """
    s = specimen
    sample = _Sampler(here)
    parts = []
    second = 0.86 + 0.4 * float(uniform(s.seed, 300, np.zeros(1, np.int64))[0])  # the other clone's nuclei, relative
    for clone, relative in ((0, 1.0), (1, second)):
        if not ((here.nest > 0) & ((here.clone > 0) == bool(clone))).any():
            continue
        radius = s.nucleus * relative
        lot = _Lot(s, section, sample, 310 + clone, 2 * radius * s.crowding, reach)
        lot.keep(lot.nest > 0.45 * radius)
        lot.keep((lot.clone > 0) == bool(clone))
        lot.keep((lot.lumen < -0.45 * radius) & (lot.duct < -2) & (lot.tissue > 2))
        lot.keep((lot.necrosis < 0) | (lot.unit(8) < 0.04))
        parts.append(_tumour(s, lot, radius))
    if here.duct.max() > 0:
        parts.append(_epithelium(s, section, sample, reach))
    parts.append(_fibroblasts(s, section, sample, reach))
    parts.append(_lymphocytes(s, section, sample, reach))
    if here.vessel.max() > 0:
        parts.append(_endothelium(s, section, sample, reach))
    parts.append(_debris(s, section, sample, reach))
    return Nuclei.join(parts)


class _Sampler:
    """Bilinear look-up of the architecture at scattered points."""

    def __init__(self, here: Architecture) -> None:
        self.here = here
        self.maps = here.maps()

    def __call__(self, name: str, y: NDArray, x: NDArray) -> NDArray[np.floating]:
        return bilinear(self.maps[name], self.here.ys, self.here.xs, y, x)


class _Lot:
    """Sites of one population with what lies under them; ``keep`` thins them out."""

    def __init__(
        self, s: Specimen, section: Section, sample: _Sampler, channel: int, pitch: float, reach: float
    ) -> None:
        ys, xs = sample.here.ys, sample.here.xs
        rise = pitch * 0.866  # rows of a triangular lattice
        rows = np.arange(np.floor((ys[0] - reach) / rise), np.ceil((ys[-1] + reach) / rise) + 1).astype(np.int64)
        columns = np.arange(np.floor((xs[0] - reach) / pitch) - 1, np.ceil((xs[-1] + reach) / pitch) + 1).astype(
            np.int64
        )
        i, j = (a.ravel() for a in np.meshgrid(rows, columns, indexing="ij"))
        self.seed, self.channel, self.i, self.j = s.seed, channel, i, j
        period = 1.25 * pitch  # µm of depth for each cell of a column
        height = section.cut.depth / period + uniform(s.seed, channel, i, j, np.asarray(-1))
        self.k = np.floor(height).astype(np.int64)
        self.lift = 2 * (height - self.k) - 1  # −1 … 1: where in the cell's depth the section cuts
        y = (i + 0.5 + 0.25 * self.gauss(0).clip(-1.5, 1.5)) * rise
        x = (j + 0.5 * (i % 2) + 0.5 + 0.22 * self.gauss(1).clip(-1.5, 1.5)) * pitch
        self.y, self.x = section.place(y, x)
        inside = (self.y > ys[1]) & (self.y < ys[-3]) & (self.x > xs[1]) & (self.x < xs[-3])
        self._sample = sample
        self._narrow(inside)

    def _narrow(self, chosen: NDArray[np.bool_]) -> None:
        for name in ("i", "j", "k", "lift", "y", "x"):
            setattr(self, name, getattr(self, name)[chosen])

    def keep(self, chosen: NDArray[np.bool_]) -> None:
        self._narrow(chosen)

    def __getattr__(self, name: str) -> NDArray[np.floating]:
        return self._sample(name, self.y, self.x)

    def __len__(self) -> int:
        return len(self.i)

    def unit(self, trait: int) -> NDArray[np.floating]:
        return uniform(self.seed, self.channel, self.i, self.j, self.k, np.asarray(trait))

    def gauss(self, trait: int) -> NDArray[np.floating]:
        return normal(self.seed, self.channel, self.i, self.j, self.k, np.asarray(trait))

    def key(self) -> NDArray[np.uint64]:
        return hashed(self.seed, self.channel, self.i, self.j, self.k)

    def along(self, name: str) -> NDArray[np.floating]:
        """Direction in which a distance map rises, as an angle."""
        step = 2 * PITCH
        dy = self._sample(name, self.y + step, self.x) - self._sample(name, self.y - step, self.x)
        dx = self._sample(name, self.y, self.x + step) - self._sample(name, self.y, self.x - step)
        return np.arctan2(dy, dx)

    def nuclei(
        self,
        kind: NDArray | int,
        long,
        short,
        turn,
        dark,
        vesicular,
        irregular,
        *,
        size: NDArray | float = 1.0,
        cell: float = 0.0,
    ) -> Nuclei:
        n = len(self)
        slice_ = (
            np.sqrt(np.clip(1 - (0.98 * self.lift) ** 2, 0, 1)) ** 0.7
        )  # a section off the middle cuts a smaller disc

        def full(value) -> NDArray[np.floating]:
            return np.broadcast_to(np.asarray(value, np.float64), (n,))

        return Nuclei(
            kind=np.broadcast_to(np.asarray(kind, np.uint8), (n,)),
            key=self.key(),
            y=self.y,
            x=self.x,
            long=full(long) * slice_,
            short=full(short) * slice_,
            turn=full(turn),
            dark=full(dark) * (0.72 + 0.28 * slice_),
            vesicular=full(vesicular),
            irregular=full(irregular),
            seen=slice_ > 0.42,
            size=full(size),
            front=self.nest,
            cell=full(cell),
        )


def _tumour(s: Specimen, lot: _Lot, radius: float) -> Nuclei:
    size = np.exp((0.07 + 0.2 * s.pleomorphism) * lot.gauss(2).clip(-2.4, 2.4))
    size = np.minimum(size, 0.5 * s.crowding + 0.62)  # a nucleus stays within its cell
    aspect = 1 + 0.12 + 0.22 * lot.unit(3) + 0.25 * s.pleomorphism * lot.unit(4)
    vesicular = np.clip(s.vesicular + 0.18 * lot.gauss(5), 0, 1)
    dark = (1.0 - 0.3 * vesicular) * np.exp(0.16 * lot.gauss(6))
    pyknotic = lot.unit(7) < 0.03 + 0.05 * s.pleomorphism
    dark = np.where(pyknotic, 1.35, dark)
    # Beside a lumen nuclei stand in a row, long axes towards it.
    lined = np.exp(-np.abs(lot.lumen + 8) / 14)
    turn = np.where(lot.unit(9) < lined, lot.along("lumen"), np.pi * lot.unit(10))
    mitosis = lot.unit(11) < 0.022 * s.mitotic
    long, short = radius * size * np.sqrt(aspect), radius * size / np.sqrt(aspect)
    return lot.nuclei(
        kind=np.where(mitosis, int(Nucleus.MITOSIS), int(Nucleus.TUMOUR)),
        long=np.where(mitosis, 4.2, long),
        short=np.where(mitosis, 1.7, short),
        turn=turn,
        dark=np.where(mitosis, 1.7, dark),
        vesicular=np.where(mitosis | pyknotic, 0.0, vesicular),
        irregular=np.where(mitosis, 0.35, 0.06 + 0.16 * s.pleomorphism),
        size=size,
        cell=2 * radius * s.crowding,
    )


def _epithelium(s: Specimen, section: Section, sample: _Sampler, reach: float) -> Nuclei:
    lot = _Lot(s, section, sample, 320, 7.4, reach)
    lot.keep((lot.duct > 2.2) & (lot.duct_lumen < -1.8))
    outer = lot.duct < 6  # the myoepithelial layer: flatter, along the wall
    turn = lot.along("duct") + np.where(outer, np.pi / 2, 0)
    aspect = 1.5 + 0.5 * lot.unit(2)
    radius = 2.9 * np.exp(0.07 * lot.gauss(3))
    return lot.nuclei(
        Nucleus.EPITHELIUM,
        radius * aspect**0.5,
        radius / aspect**0.5,
        turn,
        0.95 + 0.12 * lot.gauss(4),
        0.25,
        0.05,
        cell=7.4,
    )


def _fibroblasts(s: Specimen, section: Section, sample: _Sampler, reach: float) -> Nuclei:
    lot = _Lot(s, section, sample, 330, 12.5, reach)
    lot.keep(lot.unit(2) < 0.65)
    lot.keep(_in_stroma(lot))
    lot.keep(lot.unit(2) < np.where(lot.fat > -6, 0.12, 0.4 + 0.25 * lot.patch.clip(-1, 1)))
    turn = np.arctan2(lot.along_y, lot.along_x) + 0.22 * lot.gauss(3)
    long = 5.2 * np.exp(0.28 * lot.gauss(4))
    short = np.minimum(1.05 + 0.9 * lot.unit(5) ** 2, long / 1.6)
    vesicular = 0.75 * lot.unit(6) ** 2
    return lot.nuclei(
        Nucleus.FIBROBLAST, long, short, turn, 1.02 - 0.3 * vesicular + 0.1 * lot.gauss(7), vesicular, 0.16
    )


def _lymphocytes(s: Specimen, section: Section, sample: _Sampler, reach: float) -> Nuclei:
    lot = _Lot(s, section, sample, 340, 6.9, reach)
    chance = np.where(lot.nest > 0, 0.035 * (1 + 2 * lot.lymph), 0.015 + 0.72 * lot.lymph)
    lot.keep(lot.unit(2) < chance)
    lot.keep(_in_stroma(lot) | ((lot.nest > 3) & (lot.lumen < -3)))
    radius = 2.4 * np.exp(0.12 * lot.gauss(4))
    aspect = 1.05 + 0.25 * lot.unit(5)
    return lot.nuclei(
        Nucleus.LYMPHOCYTE,
        radius * aspect**0.5,
        radius / aspect**0.5,
        np.pi * lot.unit(6),
        1.35 + 0.12 * lot.gauss(7),
        0.05,
        0.08,
    )


def _endothelium(s: Specimen, section: Section, sample: _Sampler, reach: float) -> Nuclei:
    lot = _Lot(s, section, sample, 350, 6.0, reach)
    lot.keep(lot.unit(2) < 0.55)
    lot.keep(np.abs(lot.vessel_lumen + 1.2) < 1.6)
    turn = lot.along("vessel_lumen") + np.pi / 2
    return lot.nuclei(Nucleus.ENDOTHELIUM, 4.2 * np.exp(0.2 * lot.gauss(3)), 1.35, turn, 1.1, 0.0, 0.1)


def _debris(s: Specimen, section: Section, sample: _Sampler, reach: float) -> Nuclei:
    lot = _Lot(s, section, sample, 360, 6.5, reach)
    lot.keep(lot.unit(2) < 0.22)
    dying = (lot.nest > 4) & (lot.lumen < -3) & (lot.unit(3) < 0.02 + 0.055 * s.pleomorphism)
    lot.keep(((lot.necrosis > 1) & (lot.lumen < -1)) | dying)
    radius = 0.7 + 1.5 * lot.unit(4) ** 2
    return lot.nuclei(Nucleus.DEBRIS, radius * 1.2, radius, np.pi * lot.unit(5), 1.2 + 0.2 * lot.gauss(6), 0.0, 0.25)


def erythrocytes(specimen: Specimen, section: Section, here: Architecture, reach: float) -> Nuclei | None:
    """Red cells: packed in some vessels, few in others; None where there is no vessel."""
    if here.vessel_lumen.max() < 1.5:
        return None
    lot = _Lot(specimen, section, _Sampler(here), 370, 5.6, reach)
    lot.keep(lot.vessel_lumen > 1.5)
    lot.keep(lot.unit(2) < np.where(lot.patch > 0.2, 0.92, 0.15))
    radius = 2.9 * np.exp(0.1 * lot.gauss(3))
    squeezed = 1 + 0.5 * lot.unit(4) ** 2
    return lot.nuclei(_RED_CELL, radius * squeezed, radius / squeezed, np.pi * lot.unit(5), 1.0, 0.35, 0.12)


def _in_stroma(lot: _Lot) -> NDArray[np.bool_]:
    return (lot.nest < -2.5) & (lot.duct < -2.5) & (lot.fat < -0.4) & (lot.vessel < -1) & (lot.tissue > 3)


@dataclass(frozen=True)
class Stamped:
    """Nuclei on a raster, each [h, w]."""

    cover: Map  # 0 … 1
    chromatin: Map  # haematoxylin amount, textured
    label: NDArray[np.int32]  # 1 + index into the nuclei, 0 elsewhere


def stamp(nuclei: Nuclei, frame_y: float, frame_x: float, step: float, grain: Map, wave: Map) -> Stamped:
    """Draw nuclei on the raster of ``grain`` and ``wave`` [h, w] (noise of mean 0 and variance 1, fine and smooth).

    Pixel (r, c) lies at (frame_y + r·step, frame_x + c·step) µm. Nuclei are drawn in the order of their keys, so that
    which of two overlapping ones lies on top does not depend on the window.
    """
    shape = grain.shape
    cover, chromatin = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    label = np.zeros(shape, np.int32)
    reach = np.maximum(nuclei.long, nuclei.short) / (1 - nuclei.irregular) + step
    order = np.argsort(nuclei.key, kind="stable")
    order = order[nuclei.seen[order]]
    row, column = (nuclei.y - frame_y) / step, (nuclei.x - frame_x) / step
    half = (np.ceil(reach / step).astype(np.int64) + 1) // 2 * 2  # few sizes: few batches
    order = order[
        (row[order] > -half[order])
        & (row[order] < shape[0] + half[order])
        & (column[order] > -half[order])
        & (column[order] < shape[1] + half[order])
    ]
    if not len(order):
        return Stamped(cover, chromatin, label)
    widest = int(half[order].max())
    pad = 2 * widest + 1
    grain_, wave_ = np.pad(grain, pad), np.pad(wave.clip(-1, 1), pad)
    cover_, chromatin_, label_ = np.pad(cover, pad), np.pad(chromatin, pad), np.pad(label, pad)
    drawn = _profiles(nuclei, order, row, column, half, step, grain_, wave_, pad)
    for index, top, left, edge, amount in drawn:
        part = (slice(top, top + edge.shape[0]), slice(left, left + edge.shape[1]))
        np.maximum(cover_[part], edge, out=cover_[part])
        np.maximum(chromatin_[part], amount, out=chromatin_[part])
        np.copyto(label_[part], index + 1, where=edge > 0.5)
    inner = (slice(pad, pad + shape[0]), slice(pad, pad + shape[1]))
    return Stamped(cover_[inner], chromatin_[inner], label_[inner])


def _profiles(n: Nuclei, order, row, column, half, step, grain, wave, pad):
    """Yields (index, top, left, edge [p, p], chromatin [p, p]) in order; patches of one size are computed together."""
    windows = {}
    for size in np.unique(half[order]):
        chosen = order[half[order] == size]
        offset = np.arange(-size, size + 1, dtype=np.float32)
        top, left = np.round(row[chosen]).astype(int) - size + pad, np.round(column[chosen]).astype(int) - size + pad
        side = 2 * size + 1
        v = offset[None, :, None] - (row[chosen] - np.round(row[chosen])).astype(np.float32)[:, None, None]
        u = offset[None, None, :] - (column[chosen] - np.round(column[chosen])).astype(np.float32)[:, None, None]
        cos, sin = (f(n.turn[chosen]).astype(np.float32)[:, None, None] for f in (np.cos, np.sin))
        long = (n.long[chosen] / step).astype(np.float32)[:, None, None]
        short = (n.short[chosen] / step).astype(np.float32)[:, None, None]
        along, across = (u * cos + v * sin) / long, (v * cos - u * sin) / short
        r = np.sqrt(along * along + across * across)
        texture = np.lib.stride_tricks.sliding_window_view(grain, (side, side))[top, left]
        waves = np.lib.stride_tricks.sliding_window_view(wave, (side, side))[top, left]
        r *= 1 + n.irregular[chosen].astype(np.float32)[:, None, None] * waves
        edge = np.clip((1 - r) * np.sqrt(long * short) / np.float32(max(0.45 / step, 0.7)) + 0.5, 0, 1)
        open_ = n.vesicular[chosen].astype(np.float32)[:, None, None]
        rim = np.clip(1 - np.abs(r - 0.9) * 5, 0, 1)
        body = 1 - open_ * (0.5 - 0.75 * rim) + (0.1 + 0.22 * open_) * texture
        body += _nucleoli(n, chosen, along, across, long, step)
        amount = n.dark[chosen].astype(np.float32)[:, None, None] * np.maximum(body, 0.12) * edge
        for position, index in enumerate(chosen):
            windows[index] = (top[position], left[position], edge[position], amount[position])
    for index in order:
        yield (index, *windows[index])


def _nucleoli(n: Nuclei, chosen, along, across, long, step):
    """One or two dark dots in open nuclei: [len(chosen), p, p] or 0."""
    strength = np.clip(n.vesicular[chosen] - 0.35, 0, 1) * (n.kind[chosen] == Nucleus.TUMOUR)
    if not strength.any():
        return np.float32(0)
    bits = n.key[chosen]
    total = np.float32(0)
    for shift in (0, 20):
        a = ((bits >> np.uint64(shift)) & np.uint64(1023)).astype(np.float32) / 1023 - 0.5
        b = ((bits >> np.uint64(shift + 10)) & np.uint64(1023)).astype(np.float32) / 1023 - 0.5
        present = (a + b > -0.35) if shift else np.ones(len(a), bool)
        width = 0.75 / step / long
        d2 = (along - 0.9 * a[:, None, None]) ** 2 + (across - 0.9 * b[:, None, None]) ** 2
        total = total + (1.5 * strength * present).astype(np.float32)[:, None, None] * np.exp(-d2 / (2 * width**2))
    return total
