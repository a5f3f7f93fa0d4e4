"""One image that fits into memory: PNG, JPEG or TIFF in, 8-bit RGB out, and the way back.

What a file is, its first bytes say, never its name (published sets hold JPEG data in files named ``.png``). What is not
plain 8-bit RGB is converted where one right answer exists: grey and palette images, transparency (composited on white,
as on glass), CMYK, an ICC profile (to sRGB), the EXIF orientation. Where there is none the file is refused: 16-bit and
floating-point images have no agreed range, and Pillow would silently keep the upper byte of some and clip others. A
TIFF with several pages gives its first, which in a pyramid is the full resolution. gAMA chunks of PNG are not applied.
"""

from __future__ import annotations

import io
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms, ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from sheafstain.errors import SheafStainError, UsageError
from sheafstain.whole import whole
from sheafstain.window import Size

MAX_PIXELS = 13_000**2  # about 1.2 GB while being read; just below the limit that Pillow itself sets for TIFF
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".tif", ".tiff"})

_WIDTH, _HEIGHT, _BITS, _ORIENTATION, _SAMPLE_FORMAT = 256, 257, 258, 274, 339  # TIFF and EXIF tags
_READABLE = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr"})  # Pillow's modes
_PLAIN_TIFF = "save it as 8-bit RGB with LZW, deflate or no compression"
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says about itself before any pixel is decoded."""

    size: Size  # as read, that is after the EXIF orientation
    format: str  # "PNG", "JPEG" or "TIFF"
    conversions: tuple[str, ...]  # what reading it will change; empty for plain 8-bit RGB


def read_header(path: Path | str) -> Header:
    with _opened(Path(path)) as image:
        size = _stored_size(image)
        if _orientation(image) >= 5:  # on its side
            size = Size(size.w, size.h)
        return Header(size, image.format or "", _conversions(image))


def image_size(path: Path | str) -> Size:
    """From the header alone, so it does not say whether the pixels can be decoded."""
    return read_header(path).size


def read_image(path: Path | str) -> NDArray[np.uint8]:
    """uint8 [h, w, 3], RGB in sRGB. Every failure is a ``SheafStainError`` that names the file."""
    path = Path(path)
    with _opened(path) as image:
        orientation = _orientation(image)  # before the pixels: loading a TIFF turns it and forgets the tag
        _load(path, image)
        if not isinstance(image, TiffImageFile):
            image = _turned(image, orientation)
        return np.array(_to_rgb(image))


def write_image(path: Path | str, array: NDArray[np.uint8], *, jpeg_quality: int = 95) -> None:
    """Write uint8 [h, w, 3] (RGB) or [h, w] (grey), whole or not at all; the suffix says as what.

    PNG and TIFF are lossless. JPEG is written 4:4:4: halved chroma would smear the brown of DAB.
    """
    path = Path(path)
    if (
        array.dtype != np.uint8
        or array.ndim not in (2, 3)
        or (array.ndim == 3 and array.shape[2] != 3)
        or not array.size
    ):
        raise ValueError(f"write_image takes uint8 [h, w, 3] or [h, w] with pixels, not {array.dtype} {array.shape}")
    options: dict[str, dict[str, object]] = {
        "PNG": {"compress_level": 2},  # on histology 4–11 % larger than 6, Pillow's default, and 2.5–4 times as fast
        "JPEG": {"quality": jpeg_quality, "subsampling": 0},
        "TIFF": {"compression": "tiff_adobe_deflate"},
    }
    names = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF", ".tiff": "TIFF"}
    if (name := names.get(path.suffix.lower())) is None:
        raise UsageError(f"{path}: cannot write an image of this kind; end its name in .png, .jpg or .tif")
    # Encoded in memory first: Pillow reports a full disk as "encoder error -2" and loses the reason.
    encoded = io.BytesIO()
    try:
        Image.fromarray(np.ascontiguousarray(array)).save(encoded, name, **options[name])
    except (OSError, ValueError) as error:  # a JPEG has at most 65,535 pixels a side
        raise SheafStainError(f"{path}: cannot be written as {name} ({error}); choose another format") from error
    with whole(path) as part:
        part.write_bytes(encoded.getvalue())


@contextmanager
def _opened(path: Path) -> Iterator[ImageFile.ImageFile]:
    """The image behind ``path``, its header read and found acceptable, its pixels not decoded."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise SheafStainError(f"{path}: is a folder, not an image")
        if not stat.S_ISREG(status.st_mode):
            raise SheafStainError(f"{path}: is not a regular file")
        if status.st_size == 0:
            raise SheafStainError(f"{path}: is empty (0 bytes); copy or download it again")
        with path.open("rb") as file:
            try:
                yield _parse(path, file)
            except (SheafStainError, MemoryError):
                raise
            except OSError as error:
                if error.errno:  # from the system, not from a decoder
                    raise
                raise SheafStainError(_damaged(path, error)) from error
            # The decoders raise whatever their parsers stumble upon (SyntaxError, struct.error, IndexError, …).
            except Exception as error:
                raise SheafStainError(_damaged(path, error)) from error
    except FileNotFoundError as error:
        raise SheafStainError(f"{path}: no such file") from error
    except PermissionError as error:
        raise SheafStainError(f"{path}: no permission to read it; change its rights") from error
    except OSError as error:
        raise SheafStainError(f"{path}: cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise SheafStainError(f"{path}: does not fit into memory; use the slide commands, which stream") from error


def _damaged(path: Path, error: Exception) -> str:
    return f"{path}: is truncated or damaged ({error or type(error).__name__}); copy or download it again"


def _parse(path: Path, file: io.BufferedReader) -> ImageFile.ImageFile:
    """Read the header. Not ``Image.open``: that swallows why a file is refused and warns about images we accept."""
    head = file.read(26)
    file.seek(0)
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        image = PngImageFile(file)
        deep = head[24] > 8  # bit depth in IHDR; Pillow calls a 16-bit RGB file "RGB"
        depth = f"{head[24]}-bit values"
    elif head.startswith(b"\xff\xd8\xff"):
        image = JpegImageFile(file)
        deep, depth = False, ""
    elif head.startswith(_TIFF):
        try:
            image = TiffImageFile(file)
        except SyntaxError as error:  # Pillow: a layout that it does not know
            raise SheafStainError(_strange_tiff(path, error)) from error
        bits, kinds = image.tag_v2.get(_BITS, (1,)), image.tag_v2.get(_SAMPLE_FORMAT, (1,))
        deep = max(bits) > 8 or set(kinds) != {1}
        depth = f"{max(bits)}-bit {({1: '', 2: 'signed ', 3: 'floating-point '}).get(max(kinds), 'unusual ')}values"
    else:
        raise SheafStainError(f"{path}: is not a PNG, JPEG or TIFF image, whatever its name says")
    if deep:
        raise SheafStainError(
            f"{path}: holds {depth}, SheafStain reads 8-bit RGB; choose the range that holds the tissue and "
            "convert it (scikit-image: img_as_ubyte(rescale_intensity(image)))"
        )
    if image.mode not in _READABLE:
        raise SheafStainError(f"{path}: holds {image.mode} colours; save it as 8-bit RGB")
    if image.width * image.height > MAX_PIXELS:
        raise SheafStainError(
            f"{path}: its header claims {image.width}×{image.height} pixels, too many to hold in memory "
            f"(limit {MAX_PIXELS / 1e6:.0f} Mpx); save it as a pyramidal TIFF and use the slide commands, or cut it"
        )
    return image


def _strange_tiff(path: Path, error: Exception) -> str:
    import tifffile

    try:
        with tifffile.TiffFile(path) as tiff:
            page = tiff.pages.first
            compression = getattr(page.compression, "name", page.compression)
            what = f"{page.samplesperpixel} × {page.dtype} per pixel, compression {compression}"
    except Exception:  # not even tifffile finds an image in it
        return _damaged(path, error)
    return f"{path}: is a TIFF of a kind that is not read ({what}); {_PLAIN_TIFF}"


def _load(path: Path, image: ImageFile.ImageFile) -> None:
    if not isinstance(image, TiffImageFile):
        image.load()
        return
    # Pillow asks once more whether a large TIFF is a bomb; MAX_PIXELS has answered. Filters are shared by all threads,
    # so they are left alone otherwise.
    large = image.width * image.height > (Image.MAX_IMAGE_PIXELS or MAX_PIXELS)
    quiet = warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning)
    try:
        with quiet if large else nullcontext():
            image.load()
    except OSError as error:
        if error.errno:
            raise
        compression = image.info.get("compression", "unknown")  # libtiff does not tell damage from a missing codec
        raise SheafStainError(
            f"{path}: is truncated, damaged or of a compression that is not read ({compression}: {error}); "
            f"copy it again or {_PLAIN_TIFF}"
        ) from error


def _stored_size(image: ImageFile.ImageFile) -> Size:
    if isinstance(image, TiffImageFile):  # its own size may already be the turned one
        return Size(image.tag_v2[_HEIGHT], image.tag_v2[_WIDTH])
    return Size(image.height, image.width)


def _orientation(image: Image.Image) -> int:
    """1–8. Not ``PngImageFile.getexif``, which decodes the whole image in search of a chunk after the pixels."""
    try:
        value = Image.Image.getexif(image).get(_ORIENTATION, 1)
    except Exception:  # a broken EXIF block is no reason to lose the image
        return 1
    return value if value in range(1, 9) else 1


def _turned(image: Image.Image, orientation: int) -> Image.Image:
    flips = Image.Transpose
    turn = {
        2: flips.FLIP_LEFT_RIGHT,
        3: flips.ROTATE_180,
        4: flips.FLIP_TOP_BOTTOM,
        5: flips.TRANSPOSE,
        6: flips.ROTATE_270,
        7: flips.TRANSVERSE,
        8: flips.ROTATE_90,
    }.get(orientation)
    return image if turn is None else image.transpose(turn)


def _conversions(image: ImageFile.ImageFile) -> tuple[str, ...]:
    found = []
    if image.mode in ("1", "L", "LA"):
        found.append("grey to RGB")
    elif image.mode not in ("RGB", "RGBA", "RGBa", "RGBX"):
        found.append(f"{'palette' if image.mode in ('P', 'PA') else image.mode} to RGB")
    if image.has_transparency_data:
        found.append("transparency composited on white")
    if _profile(image) is not None:
        found.append("ICC profile to sRGB")
    if _orientation(image) != 1:
        found.append("EXIF orientation applied")
    return tuple(found)


def _to_rgb(image: Image.Image) -> Image.Image:
    profile = _profile(image)
    alpha = None
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        alpha = rgba.getchannel("A")
        if _base(image.mode) == "RGB":
            image = rgba
    colour = image.convert(_base(image.mode))
    rgb = profile.apply(colour) if profile is not None else colour.convert("RGB")
    return rgb if alpha is None else Image.composite(rgb, Image.new("RGB", rgb.size, "white"), alpha)


def _base(mode: str) -> str:
    """The colour space that an embedded profile of such an image speaks about."""
    return {"1": "L", "L": "L", "LA": "L", "CMYK": "CMYK"}.get(mode, "RGB")


def _profile(image: Image.Image) -> ImageCms.ImageCmsTransform | None:
    icc = image.info.get("icc_profile")
    return _to_srgb(icc, _base(image.mode)) if icc else None


@lru_cache(maxsize=16)  # one scanner, one profile, thousands of files
def _to_srgb(icc: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """None where the profile changes nothing (it is sRGB under one of its many names) or cannot be used.

    A broken profile, or one for another colour space, is ignored: that is what every viewer does, so the colours are
    those that a pathologist saw on the screen, and the pixels are worth more than their tag.
    """
    try:
        profile = ImageCms.ImageCmsProfile(io.BytesIO(icc))
        # Relative colorimetric: the measured colour is kept, white becomes white.
        intent = ImageCms.Intent.RELATIVE_COLORIMETRIC
        transform = ImageCms.buildTransform(profile, ImageCms.createProfile("sRGB"), mode, "RGB", intent)
    except (ImageCms.PyCMSError, OSError):
        return None
    if mode == "CMYK":
        return transform
    levels = np.arange(0, 256, 15, dtype=np.uint8)  # 18 levels, 0 and 255 among them
    lattice = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(1, -1, 3)
    probe = Image.fromarray(lattice).convert(mode)
    change = np.asarray(transform.apply(probe), dtype=int) - np.asarray(probe.convert("RGB"), dtype=int)
    return transform if np.abs(change).max() > 1 else None  # 1: rounding
