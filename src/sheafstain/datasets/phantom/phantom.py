"""The phantom: an endless (or finite) slide of which any window can be drawn.

Pictures are made in blocks of 512 px on a fixed lattice, each a function of (seed, block) alone, and a window is put
together from blocks. Two windows that overlap therefore agree to the last bit, in any order, on any machine of a kind.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sheafstain.datasets.phantom.architecture import Extent, Map
from sheafstain.datasets.phantom.bed import Bed, Frame
from sheafstain.datasets.phantom.canvas import Canvas, canvas
from sheafstain.datasets.phantom.cut import Cut
from sheafstain.datasets.phantom.look import Look
from sheafstain.datasets.phantom.paint import haematoxylin_eosin, immunostain
from sheafstain.datasets.phantom.specimen import Marker, Specimen
from sheafstain.window import Resolution, Size, Window

BLOCK = 512  # px
_HALO = 12  # px around a block, so that blur sees its neighbours
_KEPT = 128  # blocks kept in memory for windows to come: 100 MB

Layer = Literal["he", "ihc", "truth", "dab", "nuclei", "classes", "tissue", "displacement"]
#   he            the H&E section                                     uint8 [h, w, 3]
#   ihc           the consecutive section, immunostained              uint8 [h, w, 3]
#   truth         the H&E section itself, immunostained               uint8 [h, w, 3]
#   dab           amount of DAB in the truth, before lens and sensor  float32 [h, w]
#   nuclei        one number for each nucleus of the H&E section      int32 [h, w], 0 between them
#   classes       class of the nucleus (see Nucleus)                  uint8 [h, w], 0 between them
#   tissue        class of the tissue (see Tissue)                    uint8 [h, w]
#   displacement  what is at p of ihc is at p + displacement of he    float32 [h, w, 2], px, rows first

_FIRST: frozenset[Layer] = frozenset({"he", "truth", "dab", "nuclei", "classes", "tissue"})


class Phantom:
    """One specimen, cut twice, one section H&E, the next stained for ``marker``, both scanned at ``resolution``.

    ``size`` (pixels) makes it a slide with tissue in the middle and glass around; without, tissue has no end.
    ``ihc_variation`` is that of ``Look.draw`` for the immunostain: 1 as between laboratories, 0 always the same.
    """

    def __init__(
        self,
        specimen: Specimen,
        marker: Marker = "HER2",
        resolution: Resolution | None = None,
        size: Size | None = None,
        ihc_variation: float = 1.0,
    ) -> None:
        self.specimen = specimen
        self.marker: Marker = marker
        self.resolution = resolution or Resolution(0.5)
        self.size = size
        self.first, self.next = Cut.first(specimen.seed), Cut.next(specimen.seed)
        self.looks = {"he": Look.draw(specimen.seed, "he"), "ihc": Look.draw(specimen.seed, "ihc", ihc_variation)}
        self._blocks: OrderedDict[tuple[Layer, int, int], NDArray[Any]] = OrderedDict()

    def he(self, window: Window) -> NDArray[np.uint8]:
        return self.draw(window, ("he",))["he"]

    def ihc(self, window: Window) -> NDArray[np.uint8]:
        return self.draw(window, ("ihc",))["ihc"]

    def draw(self, window: Window, layers: Iterable[Layer]) -> dict[Layer, NDArray[Any]]:
        """The asked layers of a window, each an array of the window's size."""
        if self.size is not None and not Window.of(self.size).contains(window):
            raise ValueError(f"window {window} is not on the slide of {self.size} px")
        out: dict[Layer, NDArray[Any]] = {}
        for row in range(window.y // BLOCK, -(-window.bottom // BLOCK)):
            for column in range(window.x // BLOCK, -(-window.right // BLOCK)):
                block = Window(row * BLOCK, column * BLOCK, BLOCK, BLOCK)
                part = block.overlap(window)
                for layer, pixels in self._block(row, column, tuple(layers)).items():
                    if layer not in out:
                        out[layer] = np.empty((window.h, window.w, *pixels.shape[2:]), pixels.dtype)
                    out[layer][part.within(window).slices] = pixels[part.within(block).slices]
        return out

    def _block(self, row: int, column: int, layers: tuple[Layer, ...]) -> dict[Layer, NDArray[Any]]:
        missing: tuple[Layer, ...] = tuple(layer for layer in layers if (layer, row, column) not in self._blocks)
        if missing:
            for layer, pixels in self._make(row, column, missing).items():
                self._blocks[layer, row, column] = pixels
            while len(self._blocks) > _KEPT:
                self._blocks.popitem(last=False)
        for layer in layers:
            self._blocks.move_to_end((layer, row, column))
        return {layer: self._blocks[layer, row, column] for layer in layers}

    def _make(self, row: int, column: int, layers: tuple[Layer, ...]) -> dict[Layer, NDArray[Any]]:
        step = self.resolution.mpp
        side = BLOCK + 2 * _HALO
        frame = Frame((row * BLOCK - _HALO) * step, (column * BLOCK - _HALO) * step, step, side, side)
        extent = None if self.size is None else Extent(self.size.h * step, self.size.w * step)
        bed = Bed.under(self.specimen, frame, extent)
        made: dict[Layer, NDArray[Any]] = {}
        if bed is None:
            made = {layer: self._glass(layer, row, column) for layer in layers if layer != "displacement"}
        else:
            if _FIRST.intersection(layers):
                self._make_first(canvas(self.specimen, self.first, frame, bed), row, column, layers, made)
            if "ihc" in layers:
                c = canvas(self.specimen, self.next, frame, bed)
                amounts = immunostain(c, self.marker, self.looks["ihc"])
                made["ihc"] = self._scan("ihc", amounts, c.mist, c.fine.fold, (1, row, column))
        if "displacement" in layers:
            moved = self.next.displacement(frame.ys[_HALO:-_HALO], frame.xs[_HALO:-_HALO])
            made["displacement"] = (np.moveaxis(moved, 0, -1) / step).astype(np.float32)
        return made

    def _make_first(self, c: Canvas, row: int, column: int, layers: tuple[Layer, ...], made: dict) -> None:
        inner = (slice(_HALO, -_HALO), slice(_HALO, -_HALO))
        if "he" in layers:
            made["he"] = self._scan("he", haematoxylin_eosin(c), c.mist, c.fine.fold, (0, row, column))
        if "truth" in layers or "dab" in layers:
            amounts = immunostain(c, self.marker, self.looks["ihc"])
            if "truth" in layers:
                made["truth"] = self._scan("ihc", amounts, c.mist, c.fine.fold, (0, row, column))
            if "dab" in layers:
                made["dab"] = amounts[1][inner].copy()
        label = c.stamped.label[inner]
        if "nuclei" in layers:
            # 31 bits of the key: the same number in every window, and in the consecutive section.
            names = np.concatenate([[0], (c.nuclei.key >> np.uint64(33)).astype(np.int64) | 1])
            made["nuclei"] = names[label].astype(np.int32)
        if "classes" in layers:
            made["classes"] = np.concatenate([[np.uint8(0)], c.nuclei.kind])[label]
        if "tissue" in layers:
            made["tissue"] = c.tissue()[inner].copy()

    def _glass(self, layer: Layer, row: int, column: int) -> NDArray[Any]:
        if layer in ("he", "ihc", "truth"):
            nothing = np.zeros((BLOCK + 2 * _HALO, BLOCK + 2 * _HALO), np.float32)
            stain: Literal["he", "ihc"] = "he" if layer == "he" else "ihc"
            return self._scan(stain, [nothing] * 3, nothing, nothing, (int(layer == "ihc"), row, column))
        dtype = {"dab": np.float32, "nuclei": np.int32}.get(layer, np.uint8)
        return np.zeros((BLOCK, BLOCK), dtype)  # no DAB, no nucleus, Tissue.GLASS

    def _scan(
        self, stain: Literal["he", "ihc"], amounts: list[Map], mist: Map, fold: Map, block: tuple[int, int, int]
    ) -> NDArray[np.uint8]:
        """Light through a block; ``block`` is the section and the place on the lattice."""
        look = self.looks[stain]
        key = (self.specimen.seed, int(stain == "he"), *block)
        picture = look.photograph(amounts, mist, fold, self.resolution.mpp, key)
        return look.file(np.ascontiguousarray(picture[_HALO:-_HALO, _HALO:-_HALO]))
