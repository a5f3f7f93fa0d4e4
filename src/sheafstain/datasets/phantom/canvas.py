"""One section resolved at the pixel: tissue, fibres, nuclei and cells on a raster, before any stain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates

from sheafstain.datasets.phantom.architecture import FAR, PITCH, Architecture, Map, Tissue
from sheafstain.datasets.phantom.bed import REACH, Bed, Frame, enlarge
from sheafstain.datasets.phantom.cells import Cells, divide
from sheafstain.datasets.phantom.cut import FARTHEST, Cut, Section
from sheafstain.datasets.phantom.field import Field
from sheafstain.datasets.phantom.nuclei import Nuclei, Stamped, erythrocytes, populate, stamp
from sheafstain.datasets.phantom.specimen import Specimen

_DISTANCES = {"nest", "lumen", "duct", "duct_lumen", "vessel", "vessel_lumen", "fat", "necrosis"}


class _Channel(IntEnum):
    """Texture channels; a section adds its index × 50, since consecutive sections share no fine texture."""

    GRAIN, WAVE = 400, 401
    HOLES, TEAR, MIST = 404, 405, 406


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


def canvas(specimen: Specimen, cut: Cut, frame: Frame, bed: Bed) -> Canvas:
    """Resolve a section of a bed on a raster."""
    section = Section.over(cut, bed.architecture.ys, bed.architecture.xs)
    here = _in_section(section, frame, bed.architecture)
    seed = specimen.seed + 7919 * cut.index

    def noise(channel: int, pitch: float) -> Map:
        return Field(seed, channel + 50 * cut.index, pitch).grid(frame.ys, frame.xs)

    holes = noise(_Channel.HOLES, 5.0)
    grain, wave = noise(_Channel.GRAIN, 0.8), noise(_Channel.WAVE, 2.6)
    reach = FARTHEST if cut.index else 0.0
    nuclei = populate(specimen, section, here, reach)
    red = erythrocytes(specimen, section, here, reach)
    blood = np.zeros_like(grain)
    if red is not None:
        blood = stamp(red, frame.y, frame.x, frame.step, 0 * grain, wave).chromatin
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
        fibre=_fibres_in_section(section, frame, bed),
        grain=grain,
        wave=wave,
        holes=holes,
        mist=noise(_Channel.MIST, 80.0),
        tear=tear,
        nuclei=nuclei,
        stamped=stamp(nuclei, frame.y, frame.x, frame.step, grain, wave),
        blood=blood,
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
            name: np.full((coarse.h, coarse.w), np.float32(-FAR))  # nothing of it here
            if name in _DISTANCES and name != "lumen" and m.max() < -FAR  # a lumen turns nuclei from farther away
            else map_coordinates(m, at, order=1, mode="nearest", output=np.float32)
            for name, m in wide.maps().items()
        }
    return replace(wide, ys=coarse.ys, xs=coarse.xs, **pulled)


def _resolve(here: Architecture, frame: Frame, wave: Map) -> Architecture:
    """Distances at the pixel, by linear interpolation of the coarse grid, with a slightly rough edge."""
    maps = {name: m for name, m in here.maps().items() if name not in ("along_y", "along_x", "clone")}
    rough = np.float32(0.55) * wave
    for name, coarse in maps.items():
        if name in _DISTANCES and coarse.max() <= -FAR:
            maps[name] = np.full(wave.shape, np.float32(-FAR))  # nothing of it here
            continue
        maps[name] = enlarge(coarse, here.ys, here.xs, frame)
        if name in ("nest", "lumen", "duct", "duct_lumen", "vessel", "necrosis"):
            maps[name] += rough
    return replace(here, ys=frame.ys, xs=frame.xs, **maps)


def _fibres_in_section(section: Section, frame: Frame, bed: Bed) -> Map:
    """The bed's collagen where this section has it: [h, w]."""
    if section.cut.index == 0:
        return enlarge(bed.fibres, bed.raster.ys, bed.raster.xs, frame)
    fine = frame.margin(bed.raster.step, bed.raster.step)
    at = np.stack([enlarge(m, section.ys, section.xs, fine) for m in section.moved])
    at[0] += (fine.ys - bed.raster.y).astype(np.float32)[:, None]
    at[1] += (fine.xs - bed.raster.x).astype(np.float32)
    at /= bed.raster.step
    return enlarge(map_coordinates(bed.fibres, at, order=1, mode="nearest", output=np.float32), fine.ys, fine.xs, frame)
