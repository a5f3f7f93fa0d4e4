"""What is scored: two folders paired by stem, or two slides read in windows, with the H&E beside them where given.

Sides are called ``pred`` (the translated images), ``real`` (the IHC) and ``source`` (the H&E). Nothing is dropped in
silence: a stem without partner, two files of one stem and partners of different size are refused before any pixel is
decoded, unless the caller says otherwise, and then they are in the report.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sheafstain.errors import SheafStainError, UsageError
from sheafstain.slides.image import SUFFIXES, image_size, read_header, read_image
from sheafstain.window import Resolution, Size, Window

SIDE = 1024  # px: windows of a slide are as large as the images of BCI and MIST
TISSUE = 0.1  # share of a slide's window that tissue has to cover
DENSITY = 0.1  # mean optical density from which a pixel is tissue (intensity 231 of 255); glass is near 0.05
RESIZED = "pred and source resized to the size of real, Pillow bicubic (antialiased)"
WINDOWED = f"windows of {SIDE}² without overlap, in which the real slide has at least {TISSUE:.0%} tissue"

_SLIDES = frozenset({".svs", ".ndpi", ".mrxs", ".scn", ".vms", ".vmu", ".bif", ".tif", ".tiff", ".dcm"})
_MAPS = (".defect", ".spread")  # of an image of the same name, beside it: ``sheafstain stain`` writes them

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is not scored or not scored as it is, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class ImageSet:
    """One image of every side, under one name."""

    name: str
    files: Mapping[str, Path]  # by side
    fit: Mapping[str, Size] = field(default_factory=dict)  # the size that a side is to be brought to (--resize)

    def hashes(self) -> dict[str, str]:
        """Names each side by its content, and by the size it is brought to."""
        found = {side: hash_of_file(path) for side, path in self.files.items()}
        return {
            side: f"{text}-to-{fit.h}-{fit.w}" if (fit := self.fit.get(side)) else text for side, text in found.items()
        }

    def read(self) -> dict[str, Pixels]:
        """uint8 [h, w, 3] by side, all of one size."""
        pixels = {side: read_image(path) for side, path in self.files.items()}
        for side, fit in self.fit.items():
            resized = Image.fromarray(pixels[side]).resize((fit.w, fit.h), Image.Resampling.BICUBIC)
            pixels[side] = np.asarray(resized)
        return pixels

    def place(self) -> tuple[Size | None, Window | None]:
        """The slide that this is a window of, for what is measured at the slide's own positions; none here."""
        return None, None


@dataclass(frozen=True, slots=True)
class SlideWindow:
    """One window of the slides of every side."""

    name: str
    slides: Mapping[str, Slide]
    window: Window

    def hashes(self) -> dict[str, str]:
        w = self.window
        return {side: f"{slide.hash}-{w.y}-{w.x}-{w.h}-{w.w}" for side, slide in self.slides.items()}

    def read(self) -> dict[str, Pixels]:
        return {side: slide.read(self.window) for side, slide in self.slides.items()}

    def place(self) -> tuple[Size | None, Window | None]:
        return self.slides["real"].size, self.window


Item = ImageSet | SlideWindow


@dataclass(frozen=True, slots=True)
class Listing:
    """What there is to score, and what there is beside it."""

    items: Sequence[Item]
    unpaired: Sequence[str] = ()  # files without a partner, left out because the user allowed it
    unreadable: Sequence[Fault] = ()  # whose very header is broken
    resized: Sequence[str] = ()  # names whose sides differ in size
    converted: Sequence[Fault] = ()  # files that are no plain 8-bit RGB, and what reading them changes
    windowed: bool = False  # windows of slides


def list_items(
    pred: Path, real: Path, source: Path | None = None, *, resize: bool = False, allow_unpaired: bool = False
) -> Listing:
    """Folders give one item for each stem, files (slides or single images) one for each window."""
    sides = {"pred": pred, "real": real} | ({"source": source} if source is not None else {})
    for path in sides.values():
        if not path.exists():
            raise SheafStainError(f"{path}: no such file or folder")
    kinds = {path.is_dir() for path in sides.values()}
    if len(kinds) > 1:
        raise UsageError(f"{pred} and {real}: give folders, or files, but not one of each")
    if not kinds.pop():
        return _slides(sides, resize)
    return _folders(sides, resize, allow_unpaired)


def _folders(sides: Mapping[str, Path], resize: bool, allow_unpaired: bool) -> Listing:
    by_stem = {side: _by_stem(folder) for side, folder in sides.items()}
    common = sorted(set.intersection(*(set(files) for files in by_stem.values())))
    lonely = [
        str(path) for files in by_stem.values() for stem, path in sorted(files.items()) if stem not in set(common)
    ]
    if not common:
        raise SheafStainError(
            f"{sides['pred']} and {sides['real']}: no image has a partner of the same name (endings aside); "
            f"for example {lonely[0]}"
        )
    if lonely and not allow_unpaired:
        raise SheafStainError(
            f"{_some(lonely)} without a partner of the same name; complete the folders, "
            "or leave them out by --allow-unpaired, which the report will say"
        )
    items, broken, uneven, converted = [], [], [], []
    for stem in common:
        files = {side: by_stem[side][stem] for side in sides}
        try:
            headers = {side: read_header(path) for side, path in files.items()}
        except SheafStainError as error:
            broken.append(Fault(stem, str(error)))
            continue
        converted += [
            Fault(str(files[side]), ", ".join(header.conversions))
            for side, header in headers.items()
            if header.conversions
        ]
        sizes = {side: header.size for side, header in headers.items()}
        fit = {side: sizes["real"] for side, size in sizes.items() if size != sizes["real"]}
        if fit:
            uneven.append(stem)
        items.append(ImageSet(stem, files, fit))
    if uneven and not resize:
        files = next(item for item in items if item.name == uneven[0]).files
        example = ", ".join(f"{side} {image_size(path)}" for side, path in files.items())
        raise SheafStainError(
            f"{_some(uneven)} whose sides differ in size ({uneven[0]}: {example}); give images of one size, "
            "or --resize to bring them to that of the real ones, which the report will say"
        )
    return Listing(items, lonely, broken, uneven, converted)


def _by_stem(folder: Path) -> dict[str, Path]:
    """The images right inside a folder; hidden files are none (.DS_Store, half-written ones), nor are maps."""
    with os.scandir(folder) as entries:
        paths = sorted(
            Path(entry)
            for entry in entries
            if not entry.name.startswith(".") and Path(entry).suffix.lower() in SUFFIXES and entry.is_file()
        )
    if not paths:
        raise SheafStainError(f"{folder}: holds no PNG, JPEG or TIFF image; name the folder that does")
    found: dict[str, Path] = {}
    for path in paths:
        first = found.setdefault(path.stem.removesuffix(".ome"), path)
        if first is not path:
            raise SheafStainError(f"{path}: has the same name as {first.name} but for its ending; keep one of them")
    return {stem: path for stem, path in found.items() if not (stem.endswith(_MAPS) and Path(stem).stem in found)}


def _some(names: Sequence[str], shown: int = 3) -> str:
    """``3 images (a, b, …)``."""
    rest = ", …" if len(names) > shown else ""
    return f"{len(names)} image{'s' * (len(names) > 1)} ({', '.join(names[:shown])}{rest})"


def _slides(sides: Mapping[str, Path], resize: bool) -> Listing:
    if resize:
        raise UsageError("--resize is for folders of images; write both slides at one pixel size")
    slides = {side: Slide(path) for side, path in sides.items()}
    real = slides["real"]
    for slide in slides.values():
        if slide.size != real.size:
            raise SheafStainError(
                f"{slide.path}: {slide.size} pixels, but {real.path} has {real.size}; score slides of one size"
            )
        if slide.resolution and real.resolution and abs(slide.resolution.mpp / real.resolution.mpp - 1) > 0.01:
            raise SheafStainError(
                f"{slide.path}: {slide.resolution}, but {real.path} has {real.resolution}; bring them to one pixel size"
            )
    items = [SlideWindow(f"y{w.y:06}_x{w.x:06}", slides, w) for w in real.windows()]
    if not items:
        raise SheafStainError(f"{real.path}: no window of {SIDE}² with at least {TISSUE:.0%} tissue; nothing to score")
    return Listing(items, windowed=True)


@dataclass
class Slide:
    """A slide at full resolution, or an image that fits into memory, in windows."""

    path: Path
    size: Size = field(init=False)
    resolution: Resolution | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        import openslide

        self._once = threading.Lock()  # several threads ask for the hash at the same time
        self._open: openslide.OpenSlide | None = None
        if self.path.suffix.lower() in _SLIDES:
            try:
                self._open = openslide.OpenSlide(self.path)
            except openslide.OpenSlideError:
                self._open = None  # an image that is no slide; read_image says what is wrong with it if it is neither
        if self._open is None:
            self.size = image_size(self.path)
            return
        width, height = self._open.dimensions
        self.size = Size(height, width)
        mpp = self._open.properties.get(openslide.PROPERTY_NAME_MPP_X)
        self.resolution = Resolution(float(mpp)) if mpp else None

    @property
    def hash(self) -> str:
        with self._once:
            return self._hash

    @cached_property
    def _hash(self) -> str:
        return hash_of_file(self.path)

    @cached_property
    def _pixels(self) -> Pixels:
        return read_image(self.path)

    def read(self, window: Window) -> Pixels:
        """uint8 [h, w, 3]; glass that was not scanned is white."""
        if self._open is None:
            with self._once:
                return self._pixels[window.slices]
        return self._region(window, 0)

    def _region(self, window: Window, level: int) -> Pixels:
        """A window of the full resolution as one level shows it."""
        import openslide

        assert self._open is not None
        shrink = self._open.level_downsamples[level]
        size = Size(max(round(window.h / shrink), 1), max(round(window.w / shrink), 1))
        try:
            part = self._open.read_region((window.x, window.y), level, (size.w, size.h))
        except openslide.OpenSlideError as error:
            raise SheafStainError(f"{self.path}: {error}; the slide is damaged, copy it again") from error
        white = Image.new("RGB", part.size, "white")
        white.paste(part, mask=part.getchannel("A"))
        return np.asarray(white)

    def windows(self) -> list[Window]:
        """Windows of 1024² from the corner on, where there is tissue; a smaller image is one window.

        What is left at the right and lower border is less than a window and is not scored.
        """
        h, w = (min(SIDE, side) for side in (self.size.h, self.size.w))
        places = [
            Window(y, x, h, w) for y in range(0, self.size.h - h + 1, h) for x in range(0, self.size.w - w + 1, w)
        ]
        return places if len(places) == 1 else [window for window in places if self._tissue(window) >= TISSUE]

    def _tissue(self, window: Window) -> float:
        """Share of the window that is denser than glass, read at the lowest level that has 32 px a window or more."""
        if self._open is None:
            pixels = self.read(window)[::16, ::16]
        else:
            wanted = min(window.h, window.w) / 32
            level = max(i for i, shrink in enumerate(self._open.level_downsamples) if i == 0 or shrink <= wanted)
            pixels = self._region(window, level)
        density = -np.log((pixels.astype(np.float32) + 1) / 256).mean(axis=-1)
        return float((density > DENSITY).mean())


def hash_of_file(path: Path) -> str:
    """Names a file by its content."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:32]
    except OSError as error:
        raise SheafStainError(f"{path}: cannot be read: {error.strerror or error}") from error
