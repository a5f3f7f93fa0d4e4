"""Integer geometry: windows, sizes and resolutions as frozen values, so that no function passes a bare tuple.

A window is a rectangle in pixel coordinates of one image or one slide level, rows first. Windows are half-open: a
window covers the rows ``y … bottom - 1`` and the columns ``x … right - 1``. Coordinates may be negative or beyond an
image; who cuts decides what lies there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

CELL = 16  # px: the pitch of the canvas on which tokens are glued (paper, "Spatial map and neighborhood class token")


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """Height and width in pixels (or cells); both non-negative."""

    h: int
    w: int

    def __post_init__(self) -> None:
        if self.h < 0 or self.w < 0:
            raise ValueError(f"a size cannot be negative: {self.h}×{self.w}")

    @property
    def area(self) -> int:
        return self.h * self.w

    def scale(self, factor: Fraction | float) -> Self:
        """The size of the same field at another pixel size, at least one pixel where there was one."""
        return type(self)(*(max(round(side * factor), min(side, 1)) for side in (self.h, self.w)))

    def __str__(self) -> str:
        return f"{self.w}×{self.h}"  # width first: how people write the size of an image


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """Rectangle (y, x, h, w); a window with no pixels is allowed and is contained everywhere."""

    y: int
    x: int
    h: int
    w: int

    def __post_init__(self) -> None:
        if self.h < 0 or self.w < 0:
            raise ValueError(f"a window cannot have negative sides: {self}")

    @classmethod
    def of(cls, size: Size) -> Self:
        """The window that holds a whole image of that size."""
        return cls(0, 0, size.h, size.w)

    @property
    def bottom(self) -> int:
        return self.y + self.h

    @property
    def right(self) -> int:
        return self.x + self.w

    @property
    def size(self) -> Size:
        return Size(self.h, self.w)

    @property
    def area(self) -> int:
        return self.h * self.w

    @property
    def empty(self) -> bool:
        return self.area == 0

    @property
    def slices(self) -> tuple[slice, slice]:
        """Index of this window in an array whose last or first two axes are rows and columns."""
        if self.y < 0 or self.x < 0:
            raise ValueError(f"{self} starts before the array: a negative slice would count from its end")
        return slice(self.y, self.bottom), slice(self.x, self.right)

    def overlap(self, other: Window) -> Window:
        """U ∩ V; a window of area 0 where they do not meet."""
        y, x = max(self.y, other.y), max(self.x, other.x)
        h = max(min(self.bottom, other.bottom) - y, 0)
        w = max(min(self.right, other.right) - x, 0)
        return Window(y, x, h, w)

    def meets(self, other: Window) -> bool:
        return not self.overlap(other).empty

    def contains(self, other: Window) -> bool:
        """V ⊆ U, the condition for a restriction from U to V."""
        return other.empty or (
            self.y <= other.y and self.x <= other.x and other.bottom <= self.bottom and other.right <= self.right
        )

    def shift(self, dy: int, dx: int) -> Window:
        return Window(self.y + dy, self.x + dx, self.h, self.w)

    def within(self, frame: Window) -> Window:
        """The same pixels in the coordinates of ``frame``, whose top-left corner becomes (0, 0)."""
        return self.shift(-frame.y, -frame.x)

    def grow(self, margin: int) -> Window:
        """Larger by ``margin`` pixels on every side (smaller when negative)."""
        return Window(self.y - margin, self.x - margin, self.h + 2 * margin, self.w + 2 * margin)

    def scale(self, factor: Fraction | float) -> Window:
        """The smallest window at the other pixel size that holds every pixel of this one."""
        y, x = math.floor(self.y * factor), math.floor(self.x * factor)
        return Window(y, x, math.ceil(self.bottom * factor) - y, math.ceil(self.right * factor) - x)

    def snap(self, pitch: int = CELL) -> Window:
        """The smallest window on the lattice of that pitch that holds this one."""
        y, x = self.y // pitch * pitch, self.x // pitch * pitch
        return Window(y, x, -(-self.bottom // pitch) * pitch - y, -(-self.right // pitch) * pitch - x)

    def on_lattice(self, pitch: int = CELL) -> bool:
        return not any(side % pitch for side in (self.y, self.x, self.h, self.w))

    def cells(self, pitch: int = CELL) -> Window:
        """This window counted in token cells; only a window on the lattice has such a count."""
        if not self.on_lattice(pitch):
            raise ValueError(f"{self} does not lie on the {pitch}-px lattice; snap() it first")
        return Window(self.y // pitch, self.x // pitch, self.h // pitch, self.w // pitch)

    def pixels(self, pitch: int = CELL) -> Window:
        """The inverse of ``cells``: a window counted in cells, in pixels."""
        return Window(self.y * pitch, self.x * pitch, self.h * pitch, self.w * pitch)

    def __str__(self) -> str:
        return f"{self.w}×{self.h}+{self.x}+{self.y}"


@dataclass(frozen=True, slots=True, order=True)
class Resolution:
    """Pixel size in micrometres per pixel, the same along both axes."""

    mpp: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mpp) and self.mpp > 0):
            raise ValueError(f"a resolution is a positive number of µm per pixel, not {self.mpp}")

    def factor_to(self, other: Resolution) -> float:
        """Pixels of ``other`` per pixel of this resolution: multiply a length in pixels by it."""
        return self.mpp / other.mpp

    def microns(self, pixels: float) -> float:
        return pixels * self.mpp

    def pixels(self, microns: float) -> float:
        return microns / self.mpp

    def __str__(self) -> str:
        return f"{self.mpp:g} µm/px"
