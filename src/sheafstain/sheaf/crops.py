"""Which 224-px crops the encoder sees: a lattice over the image or a neighbourhood of each reference (D1, D2).

Crops lie inside the frame: the image mirrored up to the next multiple of 16, and at least one crop large. So the
lattice reaches every cell of every window, whatever the size of the image.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sheafstain.sheaf.cover import Lattice
from sheafstain.window import Size, Window

CROP = 224  # px: the input of the encoders
STRIDE = 80  # px: between crops of the lattice, and between a reference and its neighbourhood
DIAGONAL = 56  # px along each axis: the diagonal crops are 80 px away as well (D2, facts on the paper's geometry)
JITTER = 32  # px: lateral, either way
FEWEST, MOST = 5, 16  # crops around one reference (paper, appendix Implementation Details)


def lattice(size: Size, stride: int = STRIDE, crop: int = CROP) -> Lattice:
    """The crops of the ``lattice`` conditioning: every token of the image comes from these."""
    return Lattice.over(size, crop, stride)


def neighborhood(
    reference: Window,
    size: Size,
    seed: int,
    *,
    crop: int = CROP,
    stride: int = STRIDE,
    diagonal: int = DIAGONAL,
    jitter: int = JITTER,
    jittered: int = 2,
    tissue: Callable[[Window], bool] | None = None,
    most: int = MOST,
) -> list[Window]:
    """Up to 16 crops around a reference window (paper, appendix Implementation Details, "Neighborhood construction").

    In order: the four cardinal crops, the four diagonal ones, then ``jittered`` more per cardinal direction, displaced
    sideways by integers uniform in [−jitter, jitter]. Crops that leave the frame are dropped, those for which
    ``tissue`` is false as well, and of the rest the first ``most`` are kept. The draw depends on the seed and on where
    the reference lies, and on nothing else: not on the order of calls, the batch or the machine.

    An image so small that no displaced crop fits gets the one crop that is nearest to the centre of the reference.
    """
    y, x = (start + (side - crop) // 2 for start, side in ((reference.y, reference.h), (reference.x, reference.w)))
    ways = ((-1, 0), (1, 0), (0, -1), (0, 1))
    offsets = [(stride * dy, stride * dx) for dy, dx in ways]
    offsets += [(diagonal * dy, diagonal * dx) for dy in (-1, 1) for dx in (-1, 1)]
    lateral = _rng(seed, reference).integers(-jitter, jitter, (jittered, 4), endpoint=True).tolist()
    offsets += [
        (stride * dy + j * dx, stride * dx + j * dy) for row in lateral for (dy, dx), j in zip(ways, row, strict=True)
    ]
    frame = Lattice.over(size, crop, crop).frame
    crops = [Window(y + dy, x + dx, crop, crop) for dy, dx in offsets]
    crops = [c for c in crops if frame.contains(c)]
    if not crops:
        crops = [Window(min(max(y, 0), frame.h - crop), min(max(x, 0), frame.w - crop), crop, crop)]
    if tissue is not None:
        crops = [c for c in crops if tissue(c)]
    return crops[:most]


def _rng(seed: int, reference: Window) -> np.random.Generator:
    return np.random.default_rng([seed, reference.y % 2**32, reference.x % 2**32])  # no negative number is accepted


def coupled_count(energy: float, low: float, high: float) -> int:
    """K of a reference from its mid-band energy: 5 at the image's 25th percentile or below, 16 at the 75th or above.

    An option (paper, appendix Inference-Time Sheafification, "Per-patch conditioning"); the default keeps all crops.
    """
    if high <= low:
        return MOST
    return round(FEWEST + (MOST - FEWEST) * min(max((energy - low) / (high - low), 0.0), 1.0))
