"""How far are a foundation model's tokens from a sheaf? (paper, appendix "Empirical Verification of Sheaf Axiom")

Crops of 224 px lie on a grid of some stride over an image. Two adjacent crops overlap, and each pixel of the overlap
has a token in both. **Locality**: cutting tokens to a window directly or by way of a larger window gives the same
tokens; the largest difference must be exactly 0. **Gluing**: the two tokens of one place should be equal; their
cosine says how far they are from it.

Crops are encoded once and serve every stride whose grid they lie on. Rows of crops of all images go through the
encoder as one stream, so that its batches are full, and an image's rows are dropped as soon as no pair needs them:
memory grows with the width of an image, never with its height or with the number of images.

A token of pitch 14 coincides with one of an adjacent crop only where the stride is a multiple of 14. Strides are
therefore rounded to the nearest multiple of the encoder's pitch, and both the nominal and the actual stride are
reported.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sheafstain.errors import SheafStainError, UsageError
from sheafstain.sheaf.encoders import Encoder
from sheafstain.sheaf.registry import CROP
from sheafstain.window import Size, Window

STRIDES = (32, 64, 80, 96, 112, 128, 160, 192)  # px: paper, "Stride selection rationale"
HEAT_STRIDE = 80  # px: the stride at which the defect of an image is drawn


@dataclass(frozen=True, slots=True)
class Direction:
    """Where the second crop of a pair lies from the first, in strides, and the axis that positions count along."""

    name: str
    dy: int
    dx: int
    axis: int  # of the overlap [rows, columns]: 0 counts rows, 1 columns


DIRECTIONS = (
    Direction("horizontal", 0, 1, 1),
    Direction("vertical", 1, 0, 0),
    Direction("diagonal_down", 1, 1, 1),  # ↘: upper left to lower right
    Direction("diagonal_up", -1, 1, 1),  # ↗: lower left to upper right
)


@dataclass(frozen=True, slots=True)
class Protocol:
    """What is measured: all adjacent pairs, or at most ``pairs`` per stride and direction of an image, by ``seed``."""

    strides: tuple[int, ...] = STRIDES
    pairs: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for stride in self.strides:
            if not 0 < stride < CROP:
                raise UsageError(
                    f"a stride lies between 1 and {CROP - 1} px, not {stride}: adjacent crops must overlap"
                )
        if self.pairs is not None and self.pairs < 1:
            raise UsageError(f"--pairs must be at least 1, not {self.pairs}")

    def actual(self, pitch: int) -> tuple[int, ...]:
        """The strides as measured: the nearest multiples of the pitch that leave an overlap."""
        last = (CROP - 1) // pitch
        rounded = tuple(min(max(int(stride / pitch + 0.5), 1), last) * pitch for stride in self.strides)
        if len(set(rounded)) < len(rounded):
            raise UsageError(f"strides {', '.join(map(str, self.strides))} are not distinct multiples of {pitch} px")
        return rounded


@dataclass(frozen=True, slots=True)
class AuditImage:
    id: str
    stain: str
    path: Path


@dataclass(frozen=True, slots=True)
class ImageAudit:
    """What one image says: sums over overlap tokens, so that images add up. S strides, 4 directions, g positions."""

    image: AuditImage
    size: Size
    tokens: np.ndarray  # int64 [S, 4]: token pairs compared
    cosine: np.ndarray  # float64 [S, 4]: sum of their cosines
    squares: np.ndarray  # float64 [S, 4]: sum of (1 − cosine)², from which a spread is computed without cancellation
    distance: np.ndarray  # float64 [S, 4]: sum of their L2 distances
    profile_tokens: np.ndarray  # int64 [S, 4, g]: token pairs at each position along the overlap
    profile: np.ndarray  # float64 [S, 4, g]: sum of their cosines
    unrelated: float  # mean cosine of tokens of different places in one crop: what a cosine is worth here
    locality: float  # largest difference between restricting at once and by way of a window: exactly 0
    heat: np.ndarray | None = None  # float32 [rows, columns] of cells: mean 1 − cosine, NaN where nothing overlaps


def inside(crop: Window, window: Window, pitch: int) -> tuple[slice, slice]:
    """Rows and columns of the tokens of a crop whose centres lie in a window: the restriction from crop to window.

    A token's centre is ``pitch / 2`` from its corner (D3). Twice the coordinates are integers for odd pitches too.
    """

    def span(start: int, length: int, low: int, high: int) -> slice:
        count = length // pitch
        first = -((2 * start + pitch - 2 * low) // (2 * pitch))  # smallest k with start + pitch·k + pitch/2 ≥ low
        last = -((2 * start + pitch - 2 * high) // (2 * pitch))  # smallest k with that ≥ high
        return slice(min(max(first, 0), count), min(max(last, 0), count))

    return span(crop.y, crop.h, window.y, window.bottom), span(crop.x, crop.w, window.x, window.right)


def restrict(tokens: Tensor, crop: Window, window: Window, pitch: int) -> tuple[Tensor, Window]:
    """The tokens [..., rows, columns, d] of ``crop`` that lie in ``window``, and the window that those tokens tile."""
    rows, columns = inside(crop, window, pitch)
    height, width = max(rows.stop - rows.start, 0), max(columns.stop - columns.start, 0)
    tile = Window(crop.y + rows.start * pitch, crop.x + columns.start * pitch, height * pitch, width * pitch)
    return tokens[..., rows, columns, :], tile


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Pairs of one stride and direction whose lower crop lies in one row: crop (ay, ax[i]) beside crop (by, bx[i])."""

    stride: int  # index
    direction: int  # index
    ay: int
    by: int
    ax: np.ndarray
    bx: np.ndarray


@dataclass(frozen=True, slots=True)
class _Plan:
    rows: dict[int, list[int]]  # y of a row of crops: x of its crops, both ascending
    pairs: dict[int, list[_Pairs]]  # y of the lower row: what can be compared once it is there
    reach: int  # px: rows further up than this are no longer needed


def plan(size: Size, strides: tuple[int, ...], protocol: Protocol, key: str) -> _Plan:
    """Every crop and every adjacent pair of every stride on an image; ``key`` names the image in the draw of pairs."""
    needed: dict[int, set[int]] = {}
    pairs: dict[int, list[_Pairs]] = {}
    for index, stride in enumerate(strides):
        ys, xs = (np.arange(0, side - CROP + 1, stride) for side in (size.h, size.w))
        for number, direction in enumerate(DIRECTIONS):
            down, across = direction.dy * stride, direction.dx * stride
            y, x = (grid.ravel() for grid in np.meshgrid(ys, xs, indexing="ij"))
            fits = (y + down >= 0) & (y + down <= size.h - CROP) & (x + across <= size.w - CROP)
            y, x = y[fits], x[fits]
            if protocol.pairs is not None and len(y) > protocol.pairs:
                seed = hashlib.sha256(f"{protocol.seed} {key} {stride} {direction.name}".encode()).digest()
                drawn = np.random.default_rng(list(seed)).choice(len(y), protocol.pairs, replace=False)
                y, x = y[np.sort(drawn)], x[np.sort(drawn)]
            for row in np.unique(y):
                ay, by, ax = int(row), int(row) + down, x[y == row]
                pairs.setdefault(max(ay, by), []).append(_Pairs(index, number, ay, by, ax, ax + across))
                needed.setdefault(ay, set()).update(ax.tolist())
                needed.setdefault(by, set()).update((ax + across).tolist())
    return _Plan({y: sorted(needed[y]) for y in sorted(needed)}, pairs, max(strides, default=0))


def audit(
    images: Iterable[AuditImage],
    encoder: Encoder,
    protocol: Protocol,
    *,
    heat: Callable[[AuditImage], bool] = lambda image: False,
    read: Callable[[Path], np.ndarray] | None = None,
) -> Iterator[ImageAudit]:
    """Measure images one after the other, in the order given.

    Parameters
    ----------
    heat
        Which images also get a map of their defect.
    read
        Path to uint8 [h, w, 3]; default: SheafStain's image reader.
    """
    if read is None:
        from sheafstain.slides.image import read_image as read
    strides = protocol.actual(encoder.pitch)
    jobs: deque[tuple[_Running, int]] = deque()

    def rows_of_crops() -> Iterator[np.ndarray]:
        for image in images:
            pixels = read(image.path)
            running = _Running(image, Size(*pixels.shape[:2]), encoder, strides, protocol, heat(image))
            for y, xs in running.plan.rows.items():
                jobs.append((running, y))
                yield np.stack([pixels[y : y + CROP, x : x + CROP] for x in xs])

    for tokens in encoder.encode(rows_of_crops()):
        running, y = jobs.popleft()
        running.take(y, tokens.patch)
        if running.finished:
            yield running.result()


class _Running:
    """One image under way: the rows of tokens still needed, and the sums so far, kept on the device."""

    def __init__(
        self, image: AuditImage, size: Size, encoder: Encoder, strides: tuple[int, ...], protocol: Protocol, heat: bool
    ) -> None:
        self.image, self.size, self.strides = image, size, strides
        self.pitch, self.grid = encoder.pitch, encoder.grid
        self.plan = plan(size, strides, protocol, image.id)
        if not self.plan.pairs:
            least = CROP + min(strides)
            raise SheafStainError(f"{image.path}: {size} px hold no two adjacent crops; {least} px are the least")
        self.remaining = len(self.plan.rows)
        self.rows: dict[int, Tensor] = {}  # y: [crops, g, g, d]
        wide = torch.float32 if encoder.device.type == "mps" else torch.float64
        self.sums = torch.zeros(len(strides), len(DIRECTIONS), 3, dtype=wide, device=encoder.device)
        self.profile = torch.zeros(len(strides), len(DIRECTIONS), self.grid, dtype=wide, device=encoder.device)
        self.tokens = np.zeros((len(strides), len(DIRECTIONS)), np.int64)
        self.profile_tokens = np.zeros((len(strides), len(DIRECTIONS), self.grid), np.int64)
        self.unrelated = torch.zeros(2, dtype=wide, device=encoder.device)
        self.locality = torch.zeros((), device=encoder.device)
        self.draws = np.random.default_rng(list(hashlib.sha256(f"{protocol.seed} {image.id}".encode()).digest()))
        shape = 2, size.h // self.pitch, size.w // self.pitch
        nearest = min(strides, key=lambda stride: abs(stride - HEAT_STRIDE))
        self.heat = torch.zeros(shape, device=encoder.device) if heat else None  # sum and count per cell
        self.heat_index = strides.index(nearest)

    @property
    def finished(self) -> bool:
        return self.remaining == 0

    def take(self, y: int, tokens: Tensor) -> None:
        """The tokens [crops, g², d] of the row of crops at ``y``: its pairs with the rows above can be compared."""
        tokens = tokens.unflatten(1, (self.grid, self.grid))
        self.rows[y] = tokens
        self.remaining -= 1
        self._check_locality(y, tokens)
        # Half a crop apart: the same tissue, the same crop, another place.
        apart = torch.cosine_similarity(tokens, tokens.roll(self.grid // 2, 1), dim=-1)
        self.unrelated += torch.stack([apart.sum(), apart.new_tensor(apart.numel())])
        for pairs in self.plan.pairs.get(y, ()):
            self._compare(pairs)
        for above in [row for row in self.rows if row <= y - self.plan.reach]:
            del self.rows[above]

    def _compare(self, pairs: _Pairs) -> None:
        first, second = self._crops(pairs.ay, pairs.ax), self._crops(pairs.by, pairs.bx)
        crop_a = Window(pairs.ay, int(pairs.ax[0]), CROP, CROP)
        crop_b = Window(pairs.by, int(pairs.bx[0]), CROP, CROP)
        shared = crop_a.overlap(crop_b)
        a, tile = restrict(first, crop_a, shared, self.pitch)
        b, other = restrict(second, crop_b, shared, self.pitch)
        assert tile == other, "strides are multiples of the pitch"
        cosine = torch.cosine_similarity(a, b, dim=-1)  # [pairs, rows, columns]
        distance = torch.linalg.vector_norm(a - b, dim=-1)
        s, d = pairs.stride, pairs.direction
        self.sums[s, d] += torch.stack([cosine.sum(), (1 - cosine).square().sum(), distance.sum()])
        along = cosine.sum((0, 1)) if DIRECTIONS[d].axis == 1 else cosine.sum((0, 2))
        self.profile[s, d, : len(along)] += along
        self.tokens[s, d] += cosine.numel()
        self.profile_tokens[s, d, : len(along)] += cosine.numel() // len(along)
        if self.heat is not None and s == self.heat_index:
            for x, values in zip(pairs.ax - pairs.ax[0], cosine, strict=True):
                rows, columns = tile.shift(0, int(x)).cells(self.pitch).slices
                self.heat[0, rows, columns] += 1 - values
                self.heat[1, rows, columns] += 1

    def _crops(self, y: int, xs: np.ndarray) -> Tensor:
        index = np.searchsorted(self.plan.rows[y], xs)
        if len(index) == len(self.plan.rows[y]):
            return self.rows[y]
        return self.rows[y][torch.from_numpy(index).to(self.sums.device)]

    def _check_locality(self, y: int, tokens: Tensor) -> None:
        """Restrict from the crop U to a window V at once, and by way of a window W between them (V ⊂ W ⊂ U)."""
        crop = Window(y, self.plan.rows[y][0], CROP, CROP)
        between = self._window_in(crop)
        inner = self._window_in(between)
        direct, tile = restrict(tokens, crop, inner, self.pitch)
        halfway, middle = restrict(tokens, crop, between, self.pitch)
        stepwise, other = restrict(halfway, middle, inner, self.pitch)
        if direct.shape != stepwise.shape or (tile.area and tile != other):
            self.locality.fill_(torch.inf)
        elif direct.numel():
            self.locality = torch.maximum(self.locality, (direct - stepwise).abs().amax())

    def _window_in(self, outer: Window) -> Window:
        """Any window inside, at least half as high and as wide, on no lattice."""
        h, w = (int(self.draws.integers((side + 1) // 2, side + 1)) for side in (outer.h, outer.w))
        y, x = (int(self.draws.integers(0, room + 1)) for room in (outer.h - h, outer.w - w))
        return Window(outer.y + y, outer.x + x, h, w)

    def result(self) -> ImageAudit:
        sums, profile, unrelated = (
            tensor.double().cpu().numpy() for tensor in (self.sums, self.profile, self.unrelated)
        )
        return ImageAudit(
            image=self.image,
            size=self.size,
            tokens=self.tokens,
            cosine=sums[..., 0],
            squares=sums[..., 1],
            distance=sums[..., 2],
            profile_tokens=self.profile_tokens,
            profile=profile,
            unrelated=float(unrelated[0] / unrelated[1]),
            locality=float(self.locality),
            heat=None if self.heat is None else (self.heat[0] / self.heat[1]).cpu().numpy(),
        )
