"""From samples to batches: pixels, section cuts and noise canvases of the windows a method asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from sheafstain.errors import SheafStainError
from sheafstain.methods.batch import Batch, Needs, Views
from sheafstain.training.conditioning import Conditioning
from sheafstain.training.sampling import Place, Sample, Sampler
from sheafstain.training.store import PixelStore, over, unit
from sheafstain.training.turns import displaced
from sheafstain.window import Window


class Batches:
    """Cuts the batches of a run. ``he`` and ``ihc`` hold the same images in the same order."""

    def __init__(
        self, sampler: Sampler, he: PixelStore, ihc: PixelStore, needs: Needs, conditioning: Conditioning | None = None
    ) -> None:
        for k, (one, other) in enumerate(zip(he.sizes, ihc.sizes, strict=True)):
            if one != other:
                raise SheafStainError(
                    f"training pair {k + 1}: H&E of {one} px and IHC of {other} px are not registered"
                )
        if needs.sections != (conditioning is not None):
            raise ValueError("sections are given exactly if the method is conditioned")
        self.sampler, self.he, self.ihc, self.needs, self.conditioning = sampler, he, ihc, needs, conditioning

    def batch(self, seen: int, first: int, count: int) -> Batch:
        """Samples ``first`` … of the step before which ``seen`` samples were drawn, over all processes."""
        samples = self.sampler.samples(seen, first, count)
        groups = [[s.ref, *_neighbours(s)] if self.needs.adjacent else [s.ref] for s in samples]
        windows = [_windows(s, len(groups[0])) for s in samples]
        if self.needs.second:
            groups += [[s.second] for s in samples]
            windows += [[Window(0, 0, s.second.window.h, s.second.window.w)] for s in samples]
        views = self._views(groups, windows)
        per, own = len(groups[0]), len(groups[0]) * count  # windows of a sample, of all samples
        ref, *adjacent = (views.part(slice(k, own, per)) for k in range(per))
        ihc = unit(_cut(self.ihc, [s.ref for s in samples]))
        second = views.part(slice(own, own + count)) if self.needs.second else None
        return Batch(ref, ihc, Views.joined(adjacent) if adjacent else None, second)

    def _views(self, groups: Sequence[Sequence[Place]], windows: Sequence[Sequence[Window]]) -> Views:
        """All windows of the batch, group by group: one gather of pixels, one cut of the sections."""
        places = [place for group in groups for place in group]
        canvas = over(torch.tensor([place.canvas for place in places], dtype=torch.int64), self.he.device)
        M, c_n = self.conditioning.cut(groups) if self.conditioning is not None else (None, None)
        return Views(unit(_cut(self.he, places)), [w for group in windows for w in group], canvas, M, c_n)


def _neighbours(sample: Sample) -> list[Place]:
    return [replace(sample.ref, window=window) for window in sample.neighbours]


def _windows(sample: Sample, count: int) -> list[Window]:
    """The windows of a sample on its turned canvas, whose origin is the corner of the reference."""
    side = sample.ref.window.h
    offsets = ((0, 0), (sample.dy, 0), (0, sample.dx))[:count]
    return [Window(*displaced(sample.ref.turn, dy, dx), side, side) for dy, dx in offsets]


def _cut(store: PixelStore, places: Sequence[Place]) -> torch.Tensor:
    images = torch.tensor([place.image for place in places])
    return store.cut(images, [place.window for place in places], torch.tensor([place.turn for place in places]))
