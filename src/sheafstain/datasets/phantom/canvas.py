"""One section resolved at the pixel: tissue, fibres, nuclei and cells on a raster, before any stain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates

from sheafstain.datasets.phantom.architecture import FAR, PITCH, Architecture, Map, Tissue
from sheafstain.datasets.phantom.cells import Cells, divide
from sheafstain.datasets.phantom.cut import FARTHEST, Cut, Section
from sheafstain.datasets.phantom.field import Field, Floats
from sheafstain.datasets.phantom.nuclei import Nuclei, Stamped, erythrocytes, populate, stamp
from sheafstain.datasets.phantom.specimen import Specimen

REACH = 16.0  # µm beyond the raster from which something may still touch it: a nucleus, a cell, a fibre


_DISTANCES = {"nest", "lumen", "duct", "duct_lumen", "vessel", "vessel_lumen", "fat", "necrosis"}


class _Channel(IntEnum):
    """Texture channels; a section adds its index × 50, since consecutive sections share no texture."""

    GRAIN, WAVE, FIBRE, BUNDLE, HOLES, TEAR, MIST = range(400, 407)


@dataclass(frozen=True)
class Frame:
    """A raster: pixel (r, c) lies at (y + r·step, x + c·step) µm of the section."""

    y: float
    x: float
    step: float
    h: int
    w: int

    @property
    def ys(self) -> Floats:
        return self.y + np.arange(self.h) * self.step

    @property
    def xs(self) -> Floats:
        return self.x + np.arange(self.w) * self.step

    def margin(self, microns: float, step: float) -> Frame:
        """A raster on the lattice of another pitch that holds this one and ``microns`` more on every side."""
        y, x = np.floor((self.y - microns) / step) * step, np.floor((self.x - microns) / step) * step
        h = int(np.ceil((self.ys[-1] + microns - y) / step)) + 1
        w = int(np.ceil((self.xs[-1] + microns - x) / step)) + 1
        return Frame(float(y), float(x), step, h, w)


@dataclass(frozen=True)
class Canvas:
    """Everything both stains are painted from; maps are [h, w]."""

    frame: Frame
    specimen: Specimen
    cut: Cut
    fine: Architecture  # resolved at the pixel
    fibre: Map  # mean 0, variance about 1, streaked along the collagen
    grain: Map  # fine noise, mean 0, variance 1
    wave: Map  # smooth noise at cell scale
    holes: Map  # smooth noise at the scale of vacuoles and shrinkage gaps
    mist: Map  # slow noise: section thickness
    tear: Map  # distance into a tear, µm
    nuclei: Nuclei
    stamped: Stamped
    blood: Map  # red cells, 0 … 1
    cells: Cells

    def tissue(self) -> NDArray[np.uint8]:
        """Tissue classes, one per pixel: the later in this list covers the earlier."""
        f = self.fine
        truth = np.full(f.nest.shape, Tissue.STROMA, np.uint8)
        for inside, tissue in (
            (f.fat, Tissue.FAT),
            (f.vessel, Tissue.VESSEL),
            (f.vessel_lumen, Tissue.BLOOD),
            (f.nest, Tissue.TUMOUR),
            (f.necrosis, Tissue.NECROSIS),
            (f.lumen, Tissue.LUMEN),
            (f.duct, Tissue.DUCT),
            (f.duct_lumen, Tissue.LUMEN),
            (-f.tissue, Tissue.GLASS),
            (self.tear, Tissue.GLASS),
        ):
            truth[inside > 0] = tissue
        return truth


def canvas(specimen: Specimen, cut: Cut, frame: Frame, wide: Architecture) -> Canvas:
    """Resolve a section on a raster. ``wide``: the architecture in the specimen's frame, with room for displacement."""
    section = Section.over(cut, wide.ys, wide.xs)
    here = _in_section(section, frame, wide)
    seed = specimen.seed + 7919 * cut.index

    def noise(channel: int, pitch: float) -> Map:
        return Field(seed, channel + 50 * cut.index, pitch).grid(frame.ys, frame.xs)

    holes = noise(_Channel.HOLES, 5.0)
    grain, wave = noise(_Channel.GRAIN, 0.8), noise(_Channel.WAVE, 2.6)
    reach = FARTHEST if cut.index else 0.0
    nuclei = populate(specimen, section, here, reach)
    red = stamp(erythrocytes(specimen, section, here, reach), frame.y, frame.x, frame.step, 0 * grain, wave)
    fine = _resolve(here, frame, wave)
    tear = np.full(grain.shape, np.float32(-1e3))
    if cut.torn:
        ridge = Field(seed, _Channel.TEAR, 260.0).grid(frame.ys, frame.xs)
        tear = (60 * (0.10 - np.abs(ridge - 1.0)) + 1.5 * wave).astype(np.float32)
    return Canvas(
        frame=frame,
        specimen=specimen,
        cut=cut,
        fine=fine,
        fibre=_fibres(seed, cut, frame, here),
        grain=grain,
        wave=wave,
        holes=holes,
        mist=noise(_Channel.MIST, 80.0),
        tear=tear,
        nuclei=nuclei,
        stamped=stamp(nuclei, frame.y, frame.x, frame.step, grain, wave),
        blood=red.chromatin,
        cells=divide(nuclei, frame.y, frame.x, frame.step, wave, holes),
    )


def _in_section(section: Section, frame: Frame, wide: Architecture) -> Architecture:
    """The coarse fields where this section has them: pulled through its displacement."""
    coarse = frame.margin(REACH, PITCH)
    r, c = round((coarse.y - wide.ys[0]) / PITCH), round((coarse.x - wide.xs[0]) / PITCH)
    part = (slice(r, r + coarse.h), slice(c, c + coarse.w))
    if section.cut.index == 0:
        pulled = {name: m[part] for name, m in wide.maps().items()}
    else:
        at = np.indices((coarse.h, coarse.w), np.float32) + np.array([[[r]], [[c]]], np.float32)
        at += section.moved[:, *part] / PITCH
        pulled = {
            name: map_coordinates(m, at, order=1, mode="nearest", output=np.float32) for name, m in wide.maps().items()
        }
    return replace(wide, ys=coarse.ys, xs=coarse.xs, **pulled)


def _resolve(here: Architecture, frame: Frame, wave: Map) -> Architecture:
    """Distances at the pixel, by linear interpolation of the coarse grid, with a slightly rough edge."""
    maps = {name: m for name, m in here.maps().items() if name not in ("along_y", "along_x", "clone")}
    rough = np.float32(0.55) * wave
    for name, coarse in maps.items():
        if name in _DISTANCES and coarse.max() < -FAR:
            maps[name] = np.full(wave.shape, np.float32(-FAR))  # nothing of it here
            continue
        maps[name] = enlarge(coarse, here, frame)
        if name in ("nest", "lumen", "duct", "duct_lumen", "vessel", "necrosis"):
            maps[name] += rough
    return replace(here, ys=frame.ys, xs=frame.xs, **maps)


def enlarge(coarse: Map, here: Architecture, frame: Frame) -> Map:
    """Bilinear interpolation of a map on ``here``'s grid to a finer raster inside it: [h, w]."""

    def ends(positions: Floats, grid: Floats) -> tuple[NDArray[np.intp], Map]:
        at = (positions - grid[0]) / (grid[1] - grid[0])
        low = np.minimum(at.astype(np.intp), len(grid) - 2)
        return low, (at - low).astype(np.float32)

    row, v = ends(frame.ys, here.ys)
    column, u = ends(frame.xs, here.xs)
    tall = coarse[row] * (1 - v)[:, None]
    tall += coarse[row + 1] * v[:, None]
    wide = np.take(tall, column, axis=1)
    wide *= 1 - u
    rest = np.take(tall, column + 1, axis=1)
    rest *= u
    wide += rest
    return wide


def _fibres(seed: int, cut: Cut, frame: Frame, here: Architecture) -> Map:
    """Line-integral convolution of noise along the collagen direction, at 1.25 µm, by doubling the averaged length."""
    raster = frame.margin(14.0, 1.25)
    channel = 50 * cut.index
    noise = 1.5 * Field(seed, _Channel.FIBRE + channel, 0.9).grid(raster.ys, raster.xs)
    noise += 0.42 * Field(seed, _Channel.BUNDLE + channel, 3.0).grid(raster.ys, raster.xs)
    vy, vx = enlarge(here.along_y, here, raster), enlarge(here.along_x, here, raster)
    rows, columns = np.arange(raster.h, dtype=np.float32)[:, None], np.arange(raster.w, dtype=np.float32)[None, :]
    at = np.empty((2, raster.h, raster.w), np.float32)
    for step in (0.6, 1.2, 2.4, 4.8):  # pixels of 1.25 µm: 16 samples over 22 µm
        halves = []
        for sign in (step, -step):
            np.add(rows, sign * vy, out=at[0])
            np.add(columns, sign * vx, out=at[1])
            halves.append(map_coordinates(noise, at, order=1, mode="nearest", output=np.float32))
        noise = 0.5 * (halves[0] + halves[1])
    streaks = replace(here, ys=raster.ys, xs=raster.xs)
    return enlarge(noise * np.float32(2.0), streaks, frame)
