"""Seams of stitched images: the Tiling Score and the pure excess of a step over the steps of the texture around it.

At a line before pixel b three steps are taken, each the mean absolute difference of neighbouring pixels over channels
and the length of the line: g₀ across the line (b − 1 to b), g₁ and g₂ the same w pixels before and behind it, where
there is no seam (b − w − 1 to b − w and b + w to b + w + 1). A line so near the border that one of them lies outside
is left out; an image that keeps no line is undefined (NaN, "no seam").

Images are float tensors [b, 3, h, w], RGB in [0, 1]; results are float64 [b].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sheafstain.window import CELL

WIDTH = 15  # px from a line to the steps it is compared with


def tiling_score(images: Tensor, rows: Sequence[int], columns: Sequence[int], width: int = WIDTH) -> Tensor:
    """The mean over all lines of max(g₀, g₁, g₂).

    Being a maximum, it grows with any texture, seam or not, and falls with any blur: it says something only beside the
    score of the real images at the same lines.
    """
    return _over_lines(images, rows, columns, width, lambda steps: steps.amax(0))


def seam_excess(images: Tensor, rows: Sequence[int], columns: Sequence[int], width: int = WIDTH) -> Tensor:
    """The mean over all lines of g₀ − (g₁ + g₂)/2: 0 on average without seams, whatever the texture."""
    return _over_lines(images, rows, columns, width, lambda steps: steps[0] - (steps[1] + steps[2]) / 2)


def multiples(size: int, of: int = 256) -> list[int]:
    """The multiples inside an image of that height or width: the seams of a method that tiles without overlap."""
    return list(range(of, size, of))


def lattice_borders(size: int, window: int = 256, stride: int = 192) -> list[int]:
    """Where windows of a lattice begin and end inside an image of that height or width.

    The last window is snapped to the border on the 16-px lattice, as the covers here are (design D1); one window that
    is as large as the image has no border inside it.
    """
    last = max(-(-size // CELL) * CELL - window, 0)
    starts = (*range(0, last, stride), last)
    return sorted({edge for start in starts for edge in (start, start + window) if 0 < edge < size})


def _over_lines(
    images: Tensor, rows: Sequence[int], columns: Sequence[int], width: int, of_steps: Callable[[Tensor], Tensor]
) -> Tensor:
    if images.ndim != 4 or not images.is_floating_point():
        raise ValueError(f"images are floats [b, 3, h, w], not {images.dtype} {list(images.shape)}")
    values = [
        of_steps(_steps(images, inside, width, axis))
        for lines, axis in ((rows, 2), (columns, 3))
        if (inside := [line for line in lines if width < line < images.shape[axis] - width - 1])
    ]
    if not values:
        return torch.full((len(images),), math.nan, dtype=torch.float64, device=images.device)
    return torch.cat(values, dim=1).mean(1)


def _steps(images: Tensor, lines: Sequence[int], width: int, axis: int) -> Tensor:
    """g₀, g₁ and g₂ at n lines: [3, b, n]."""
    at = torch.tensor(lines, device=images.device)
    behind = torch.stack([at, at - width, at + width + 1])  # the second pixel of each pair
    first, second = (images.index_select(axis, index.flatten()) for index in (behind - 1, behind))
    steps = (second.double() - first.double()).abs().mean((1, 5 - axis))
    return steps.view(len(images), 3, len(lines)).transpose(0, 1)
