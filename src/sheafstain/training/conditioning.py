"""M and c_n of the windows of a batch: from cached sections, or from the encoder while training (D1, D16).

The three sources answer the same question, ``cut(places)``: the section of each place's image restricted to its window
and turned with it, M [n, d, side/16, side/16] and c_n [n, d] on the training device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from sheafstain.sheaf import crops as crops_of
from sheafstain.sheaf.cover import Lattice
from sheafstain.sheaf.encoders import Encoder
from sheafstain.sheaf.section import Section
from sheafstain.training.sampling import Place
from sheafstain.training.store import PixelStore, over
from sheafstain.training.turns import grids, turn
from sheafstain.window import CELL, Size, Window

SHARE = 0.45  # of the free memory of a GPU that sections may take
Advance = Callable[[int], None]


class Conditioning(Protocol):
    width: int

    def cut(self, groups: Sequence[Sequence[Place]]) -> tuple[Tensor, Tensor]:
        """Places of one group lie around its first one, the reference, and share its section."""
        ...


class ResidentSections:
    """Whole sections on the training device: cutting them is a gather, as with pixels."""

    def __init__(
        self, sections: Iterator[Section], count: int, device: torch.device, advance: Advance | None = None
    ) -> None:
        sums, counts, corners, cls = [], [], [], []
        self._frames: list[Window] = []
        for section in sections:
            self._frames.append(section.window.cells())
            sums.append(section.sum.to(device, torch.float16).flatten(0, 1))
            counts.append(section.count.to(device, torch.float16).flatten())
            corners.append(section.corners)
            cls.append(section.cls.to(device, torch.float16))
            self._crop = section.crop
            if advance:
                advance(1)
        if len(self._frames) != count:
            raise ValueError(f"{count} images need as many sections, not {len(self._frames)}")
        self.device, self.width = device, sums[0].shape[1]
        self._mean = torch.cat(sums).div_(torch.cat(counts).clamp_(min=1)[:, None])
        self._starts = _starts([frame.area for frame in self._frames], device)
        self._widths = torch.tensor([frame.w for frame in self._frames], device=device)
        self._origins = torch.tensor([(frame.y, frame.x) for frame in self._frames], device=device)
        most = max(len(c) for c in corners)
        far = torch.full((most, 2), -(2**30))
        self._corners = torch.stack([torch.cat((c, far[len(c) :])) for c in corners]).to(
            device
        )  # far: overlaps nothing
        self._cls = torch.cat(cls)
        self._cls_starts = _starts([len(c) for c in corners], device)

    @staticmethod
    def fit(size: Size, images: int, width: int, device: torch.device) -> bool:
        """Whether the sections of so many images of that size go onto the device."""
        need = images * (size.area // CELL**2) * width * 2 * 1.1
        return device.type != "cuda" or need < SHARE * torch.cuda.mem_get_info(device)[0]

    def cut(self, groups: Sequence[Sequence[Place]]) -> tuple[Tensor, Tensor]:
        places = [place for group in groups for place in group]
        side = places[0].window.h // CELL
        table = torch.tensor([(p.image, p.window.y, p.window.x, p.turn) for p in places])
        image, y, x, g = (over(table, self.device)[:, k] for k in range(4))
        grid = grids(side, self.device)[:, g]
        rows = grid[0] + (y // CELL - self._origins[image, 0])[:, None, None]
        columns = grid[1] + (x // CELL - self._origins[image, 1])[:, None, None]
        at = self._starts[image][:, None, None] + rows * self._widths[image][:, None, None] + columns
        return self._mean[at].permute(0, 3, 1, 2), self._class_tokens(image, y, x, side * CELL)

    def _class_tokens(self, image: Tensor, y: Tensor, x: Tensor, side: int) -> Tensor:
        """Mean CLS of the crops that overlap each window [n, d] (D1)."""
        corners = self._corners[image]  # [n, most, 2]
        down, right = corners[..., 0] - y[:, None], corners[..., 1] - x[:, None]
        near = (down < side) & (down > -self._crop) & (right < side) & (right > -self._crop)
        at = (self._cls_starts[image][:, None] + torch.arange(near.shape[1], device=image.device)) * near
        total = torch.einsum("nk,nkd->nd", near.float(), self._cls[at].float())
        return total / near.sum(1, keepdim=True).clamp(min=1)


class MappedSections:
    """Sections that stay on disk, memory-mapped: what does not fit on the device is cut there and carried over."""

    def __init__(self, open_section: Callable[[int], Section], width: int, device: torch.device) -> None:
        self._open, self.width, self.device = open_section, width, device

    def cut(self, groups: Sequence[Sequence[Place]]) -> tuple[Tensor, Tensor]:
        cuts = [(self._open(place.image).restrict(place.window), place.turn) for group in groups for place in group]
        M, c_n = _stacked(cuts)
        return over(M, self.device), over(c_n, self.device)


class LiveSections:
    """The encoder in every step: ``neighborhood`` crops around each reference, or those of the ``lattice`` near it."""

    def __init__(self, pixels: PixelStore, encoder: Encoder, kind: str, stride: int) -> None:
        self._pixels, self._encoder, self._kind, self._stride = pixels, encoder, kind, stride
        self.width = encoder.width

    def cut(self, groups: Sequence[Sequence[Place]]) -> tuple[Tensor, Tensor]:
        around = [self._crops(group) for group in groups]
        images = torch.tensor([group[0].image for group, crops in zip(groups, around, strict=True) for _ in crops])
        windows = [window for crops in around for window in crops]
        pixels = self._pixels.cut(images, windows, torch.zeros_like(images))
        tokens = self._encoder.encode(pixels.split([len(crops) for crops in around]))
        cuts: list[tuple[Section, int]] = []
        for group, crops, own in zip(groups, around, tokens, strict=True):
            section = Section.of(crops, own.patch, own.cls, self._encoder.pitch)
            cuts += [(section.restrict(place.window), place.turn) for place in group]
        return _stacked(cuts)

    def _crops(self, group: Sequence[Place]) -> list[Window]:
        size = self._pixels.sizes[group[0].image]
        whole = Size(size.h // CELL * CELL, size.w // CELL * CELL)  # windows and crops alike lie inside it
        if self._kind == "neighborhood":
            return crops_of.neighborhood(group[0].window, whole, group[0].canvas, stride=self._stride)
        lattice: Lattice = crops_of.lattice(whole, self._stride)
        return [crop for crop in lattice if any(crop.meets(place.window) for place in group)]


def _stacked(cuts: Sequence[tuple[Section, int]]) -> tuple[Tensor, Tensor]:
    return torch.stack([turn(section.M, g) for section, g in cuts]), torch.stack([section.c_n for section, _ in cuts])


def _starts(lengths: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor([0, *lengths[:-1]], dtype=torch.int64, device=device).cumsum(0)
