"""The image reader and writer: what comes out is compared with NumPy, never with the reader itself."""

from __future__ import annotations

import errno
import io
import os
import stat
import struct
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import numpy as np
import pytest
import tifffile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image, ImageCms, JpegImagePlugin

from sheafstain.errors import SheafStainError, UsageError
from sheafstain.slides.image import MAX_PIXELS, image_size, read_header, read_image, write_image
from sheafstain.whole import whole
from sheafstain.window import Size

RNG = np.random.default_rng(20)
COLOURS = RNG.integers(0, 256, (24, 40, 3), dtype=np.uint8)
SMOOTH = np.kron(RNG.integers(0, 256, (3, 5, 3), dtype=np.uint8), np.ones((8, 8, 1), np.uint8))  # kind to JPEG


def save(path: Path, image: Image.Image, **options: object) -> Path:
    image.save(path, **options)
    return path


def png(width: int, height: int, depth: int, colour_type: int, data: bytes) -> bytes:
    """A PNG file from its parts: Pillow cannot write most of what it must be protected from."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


# --- ordinary files ---------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    array=hnp.arrays(np.uint8, st.tuples(st.integers(1, 40), st.integers(1, 40), st.just(3))),
    suffix=st.sampled_from([".png", ".tif", ".PNG", ".tiff"]),
)
def test_lossless_round_trip(tmp_path: Path, array: np.ndarray, suffix: str) -> None:
    path = tmp_path / f"image{suffix}"
    write_image(path, array)
    again = read_image(path)
    assert again.dtype == np.uint8
    assert again.flags.writeable
    np.testing.assert_array_equal(again, array)
    assert image_size(path) == Size(array.shape[0], array.shape[1])
    assert read_header(path).conversions == ()


def test_an_independent_reader_sees_what_was_written(tmp_path: Path) -> None:
    write_image(tmp_path / "a.tif", COLOURS)
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "a.tif"), COLOURS)


def test_jpeg_keeps_full_chroma(tmp_path: Path) -> None:
    write_image(tmp_path / "a.jpg", SMOOTH)
    with Image.open(tmp_path / "a.jpg") as image:
        assert image.format == "JPEG"
        assert JpegImagePlugin.get_sampling(image) == 0  # 4:4:4
    assert np.abs(read_image(tmp_path / "a.jpg").astype(int) - SMOOTH).mean() < 2


def test_the_content_decides_not_the_name(tmp_path: Path) -> None:
    path = tmp_path / "published.png"
    Image.fromarray(SMOOTH).save(path, "JPEG", quality=95)
    assert read_header(path).format == "JPEG"
    assert read_image(path).shape == SMOOTH.shape


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_adobe_deflate", "packbits", "zstd"])
def test_tiff_needs_no_imagecodecs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str | None) -> None:
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    path = save(tmp_path / "a.tif", Image.fromarray(COLOURS), compression=compression)
    np.testing.assert_array_equal(read_image(path), COLOURS)


def test_tiled_jpeg_tiff_as_slide_tools_export_it(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    options = {"compression": "jpeg", "subsampling": (1, 1), "tile": (32, 32)}
    tifffile.imwrite(path, np.tile(SMOOTH, (4, 3, 1)), photometric="rgb", **options)
    np.testing.assert_allclose(read_image(path), tifffile.imread(path), atol=2)


def test_first_page_of_a_pyramid_is_the_full_resolution(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "p.tif") as tiff:
        tiff.write(COLOURS, photometric="rgb")
        tiff.write(COLOURS[::2, ::2], photometric="rgb", subfiletype=1)
    np.testing.assert_array_equal(read_image(tmp_path / "p.tif"), COLOURS)


def test_size_comes_from_the_header_alone(tmp_path: Path) -> None:
    data = png(700, 500, 8, 2, b"")
    (tmp_path / "a.png").write_bytes(data)
    assert image_size(tmp_path / "a.png") == Size(500, 700)
    with pytest.raises(SheafStainError, match=r"a\.png"):
        read_image(tmp_path / "a.png")


# --- converted --------------------------------------------------------------------------------------------------------


def test_grey_and_bits_become_rgb(tmp_path: Path) -> None:
    grey = COLOURS[..., 0]
    path = save(tmp_path / "grey.png", Image.fromarray(grey))
    np.testing.assert_array_equal(read_image(path), np.repeat(grey[..., None], 3, axis=2))
    assert read_header(path).conversions == ("grey to RGB",)

    bits = RNG.random((9, 13)) < 0.5
    for suffix in ("png", "tif"):
        path = save(tmp_path / f"bits.{suffix}", Image.fromarray(bits))
        np.testing.assert_array_equal(read_image(path), np.repeat(bits[..., None] * np.uint8(255), 3, axis=2))

    # Four levels of grey in two bits: 0, 85, 170, 255.
    rows = b"".join(b"\0" + bytes([0b00011011]) for _ in range(3))
    (tmp_path / "two.png").write_bytes(png(4, 3, 2, 0, zlib.compress(rows)))
    np.testing.assert_array_equal(read_image(tmp_path / "two.png")[0, :, 0], [0, 85, 170, 255])

    # TIFF can store white as 0.
    tifffile.imwrite(tmp_path / "inverse.tif", 255 - grey, photometric="miniswhite")
    np.testing.assert_array_equal(read_image(tmp_path / "inverse.tif")[..., 1], grey)


def on_white(colour: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    share = alpha.astype(float)[..., None] / 255
    return np.round(colour * share + 255 * (1 - share)).astype(np.uint8)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_transparency_shows_white_glass(tmp_path: Path, suffix: str) -> None:
    alpha = RNG.integers(0, 256, COLOURS.shape[:2], dtype=np.uint8)
    alpha[:4], alpha[4:8] = 0, 255
    path = save(tmp_path / f"a.{suffix}", Image.fromarray(np.dstack([COLOURS, alpha])))
    np.testing.assert_array_equal(read_image(path), on_white(COLOURS, alpha))
    assert read_header(path).conversions == ("transparency composited on white",)

    grey = Image.fromarray(COLOURS[..., 0])
    grey.putalpha(Image.fromarray(alpha))
    assert grey.mode == "LA"
    expected = on_white(np.repeat(COLOURS[..., :1], 3, axis=2), alpha)
    np.testing.assert_array_equal(read_image(save(tmp_path / f"la.{suffix}", grey)), expected)


def test_palette_with_and_without_transparency(tmp_path: Path) -> None:
    indices = RNG.integers(0, 4, (12, 10), dtype=np.uint8)
    palette = np.array([[200, 30, 90], [0, 0, 0], [255, 250, 240], [90, 60, 30]], np.uint8)
    alphas = np.array([255, 0, 128, 255], np.uint8)
    image = Image.fromarray(indices)
    image = Image.frombytes("P", image.size, indices.tobytes())
    image.putpalette(palette.tobytes())
    np.testing.assert_array_equal(read_image(save(tmp_path / "p.png", image)), palette[indices])
    np.testing.assert_array_equal(read_image(save(tmp_path / "p.tif", image)), palette[indices])
    path = save(tmp_path / "t.png", image, transparency=alphas.tobytes())
    np.testing.assert_array_equal(read_image(path), on_white(palette[indices], alphas[indices]))
    assert read_header(path).conversions == ("palette to RGB", "transparency composited on white")
    path = save(tmp_path / "one.png", image, transparency=1)
    np.testing.assert_array_equal(read_image(path)[indices == 1], 255)


def test_one_transparent_colour_in_rgb(tmp_path: Path) -> None:
    array = COLOURS.copy()
    array[3:9, 5:11] = 10, 20, 30
    path = save(tmp_path / "a.png", Image.fromarray(array), transparency=(10, 20, 30))
    array[3:9, 5:11] = 255
    np.testing.assert_array_equal(read_image(path), array)


def test_cmyk_without_profile(tmp_path: Path) -> None:
    inks = np.kron(RNG.integers(0, 256, (3, 5, 4), dtype=np.uint8), np.ones((8, 8, 1), np.uint8))
    c, k = inks[..., :3].astype(float), inks[..., 3:].astype(float)
    expected = (255 - c) * (255 - k) / 255
    image = Image.frombytes("CMYK", (inks.shape[1], inks.shape[0]), inks.tobytes())
    np.testing.assert_allclose(read_image(save(tmp_path / "a.tif", image)), expected, atol=1)
    path = save(tmp_path / "a.jpg", image, quality=100)  # Adobe's inverted CMYK, as Photoshop writes it
    np.testing.assert_allclose(read_image(path), expected, atol=6)
    assert read_header(path).conversions == ("CMYK to RGB",)


UPRIGHT = {  # EXIF orientation → how the stored array is turned to stand upright
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize(
    ("suffix", "options"), [("png", {}), ("jpg", {}), ("tif", {}), ("tif", {"compression": "tiff_lzw"})]
)
def test_exif_orientation(tmp_path: Path, orientation: int, suffix: str, options: dict) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    path = save(tmp_path / f"a.{suffix}", Image.fromarray(SMOOTH), exif=exif, **options)
    stored = SMOOTH
    if suffix == "jpg":
        stored = np.asarray(Image.open(save(tmp_path / "plain.jpg", Image.fromarray(SMOOTH))))
    expected = UPRIGHT[orientation](stored)
    np.testing.assert_array_equal(read_image(path), expected)
    assert image_size(path) == Size(*expected.shape[:2])
    assert read_header(path).conversions == (("EXIF orientation applied",) if orientation != 1 else ())


@pytest.mark.parametrize("orientation", [0, 9, 300])
def test_meaningless_orientation(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    path = save(tmp_path / "a.png", Image.fromarray(COLOURS), exif=exif)
    np.testing.assert_array_equal(read_image(path), COLOURS)
    assert image_size(path) == Size(*COLOURS.shape[:2])


@pytest.mark.filterwarnings("ignore:Corrupt EXIF:UserWarning")
@pytest.mark.parametrize("exif", [b"Exif\0\0garbage", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff", b""])
def test_broken_exif_does_not_cost_the_image(tmp_path: Path, exif: bytes) -> None:
    path = save(tmp_path / "a.png", Image.fromarray(COLOURS), exif=exif)
    np.testing.assert_array_equal(read_image(path), COLOURS)


# --- colour profiles --------------------------------------------------------------------------------------------------

XYZ_TO_SRGB = np.array(  # from D50, Bradford-adapted (Lindbloom)
    [[3.1338561, -1.6168667, -0.4906146], [-0.9787684, 1.9161415, 0.0334540], [0.0719453, -0.2289914, 1.4052427]]
)
ADOBE_TO_XYZ = np.array(
    [[0.6097559, 0.2052401, 0.1492240], [0.3111242, 0.6256560, 0.0632197], [0.0194811, 0.0608902, 0.7448387]]
)
D50 = np.array([0.9642, 1.0, 0.8249])


def srgb(xyz: np.ndarray) -> np.ndarray:
    linear = np.clip(xyz @ XYZ_TO_SRGB.T, 0, 1)
    return 255 * np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def icc(space: bytes, connection: bytes, tags: dict[bytes, bytes], kind: bytes = b"scnr") -> bytes:
    """An ICC v2 profile from its tags, after the specification (ICC.1:2001-04).

    The medium is bluish: a conversion that is absolute instead of relative to it would tint the glass.
    """
    tags = {b"desc": b"desc\0\0\0\0" + struct.pack(">I", 5) + b"test\0" + bytes(78)} | tags
    tags[b"wtpt"] = b"XYZ \0\0\0\0" + s15(np.array([0.85, 0.9, 0.9]))
    offset, table, body = 128 + 4 + 12 * len(tags), b"", b""
    for name, data in tags.items():
        table += name + struct.pack(">II", offset + len(body), len(data))
        body += data + bytes(-len(data) % 4)
    rest = struct.pack(">I", len(tags)) + table + body
    header = struct.pack(
        ">I4s4s4s4s4s12s4s", 128 + len(rest), bytes(4), b"\2\x20\0\0", kind, space, connection, bytes(12), b"acsp"
    )
    return header + bytes(68 - len(header)) + s15(D50) + bytes(48) + rest


def s15(values: np.ndarray) -> bytes:
    return struct.pack(f">{len(values)}i", *(round(float(value) * 65536) for value in values))


def gamma_curve(gamma: float) -> bytes:
    return b"curv\0\0\0\0" + struct.pack(">IH", 1, round(gamma * 256)) + bytes(2)


def adobe_rgb() -> bytes:
    columns = {name: b"XYZ \0\0\0\0" + s15(ADOBE_TO_XYZ[:, k]) for k, name in enumerate((b"rXYZ", b"gXYZ", b"bXYZ"))}
    return icc(b"RGB ", b"XYZ ", columns | {name: gamma_curve(563 / 256) for name in (b"rTRC", b"gTRC", b"bTRC")})


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_icc_profile_is_converted_to_srgb(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"a.{suffix}", Image.fromarray(COLOURS), icc_profile=adobe_rgb())
    expected = srgb((COLOURS / 255) ** (563 / 256) @ ADOBE_TO_XYZ.T)
    assert np.abs(expected - COLOURS).max() > 20  # the profile matters
    np.testing.assert_allclose(read_image(path), expected, atol=2)
    assert read_header(path).conversions == ("ICC profile to sRGB",)


def test_icc_profile_in_jpeg(tmp_path: Path) -> None:
    path = save(tmp_path / "a.jpg", Image.fromarray(SMOOTH), icc_profile=adobe_rgb(), quality=95)
    plain = np.asarray(Image.open(path))
    np.testing.assert_allclose(read_image(path), srgb((plain / 255) ** (563 / 256) @ ADOBE_TO_XYZ.T), atol=2)


def test_icc_profile_under_transparency(tmp_path: Path) -> None:
    alpha = RNG.integers(0, 256, COLOURS.shape[:2], dtype=np.uint8)
    path = save(tmp_path / "a.png", Image.fromarray(np.dstack([COLOURS, alpha])), icc_profile=adobe_rgb())
    expected = on_white(srgb((COLOURS / 255) ** (563 / 256) @ ADOBE_TO_XYZ.T), alpha)
    np.testing.assert_allclose(read_image(path).astype(int), expected, atol=2)


def test_grey_icc_profile(tmp_path: Path) -> None:
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    profile = icc(b"GRAY", b"XYZ ", {b"kTRC": gamma_curve(1.5)})
    path = save(tmp_path / "a.png", Image.fromarray(grey), icc_profile=profile)
    expected = srgb((grey[..., None] / 255) ** 1.5 * D50)
    np.testing.assert_allclose(read_image(path), expected, atol=2)


def test_cmyk_icc_profile(tmp_path: Path) -> None:
    """A printing profile: a 2⁴ table of Lab colours; the sixteen corners are solid inks over each other."""
    corners = np.stack(np.meshgrid(*[[0, 1]] * 4, indexing="ij"), -1).reshape(-1, 4)
    lab = np.stack([100 - corners @ [12, 15, 6, 40], corners @ [-20, 30, 0, 1], corners @ [-25, 0, 45, 1]], -1).astype(
        float
    )
    lab[:, 0] = np.clip(lab[:, 0], 0, 100)
    encoded = np.round(np.stack([lab[:, 0] * 2.55, lab[:, 1] + 128, lab[:, 2] + 128], -1)).astype(np.uint8)
    table = b"mft1\0\0\0\0" + bytes([4, 3, 2, 0]) + s15(np.eye(3).ravel()) + bytes(range(256)) * 4
    profile = icc(b"CMYK", b"Lab ", {b"A2B0": table + encoded.tobytes() + bytes(range(256)) * 3}, kind=b"prtr")
    image = Image.frombytes("CMYK", (16, 1), (corners * 255).astype(np.uint8).tobytes())
    path = save(tmp_path / "a.tif", image, icc_profile=profile)

    stored = np.stack([encoded[:, 0] / 2.55, encoded[:, 1] - 128.0, encoded[:, 2] - 128.0], -1)
    fy = (stored[:, 0] + 16) / 116
    f = np.stack([fy + stored[:, 1] / 500, fy, fy - stored[:, 2] / 200], -1)
    xyz = np.where(f > 6 / 29, f**3, 3 * (6 / 29) ** 2 * (f - 4 / 29)) * D50
    expected = srgb(xyz)
    np.testing.assert_allclose(read_image(path)[0], expected, atol=3)
    naive = (255 - corners[:, :3] * 255.0) * (1 - corners[:, 3:])
    assert np.abs(expected - naive).max() > 60


def test_srgb_profile_changes_no_pixel(tmp_path: Path) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    path = save(tmp_path / "a.png", Image.fromarray(COLOURS), icc_profile=profile)
    np.testing.assert_array_equal(read_image(path), COLOURS)
    assert read_header(path).conversions == ()


@pytest.mark.parametrize(
    "profile",
    [
        b"not a profile",
        adobe_rgb()[:140],
        icc(b"GRAY", b"XYZ ", {b"kTRC": gamma_curve(1.5)}),
        icc(b"RGB ", b"XYZ ", {}),
    ],
    ids=["garbage", "truncated", "of another colour space", "without tags"],
)
def test_unusable_profile_is_ignored(tmp_path: Path, profile: bytes) -> None:
    path = save(tmp_path / "a.png", Image.fromarray(COLOURS), icc_profile=profile)
    np.testing.assert_array_equal(read_image(path), COLOURS)


# --- refused ----------------------------------------------------------------------------------------------------------


def refused(path: Path, match: str) -> None:
    for function in (read_image, read_header):
        with pytest.raises(SheafStainError, match=match) as caught:
            function(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("colour_type", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_sixteen_bit_png(tmp_path: Path, colour_type: int, channels: int) -> None:
    values = RNG.integers(0, 65536, (5, 7, channels)).astype(">u2")
    data = zlib.compress(b"".join(b"\0" + row.tobytes() for row in values))
    path = tmp_path / "deep.png"
    path.write_bytes(png(7, 5, 16, colour_type, data))
    Image.open(path).load()  # Pillow takes it: refusing it is ours to do
    refused(path, "16-bit values.*convert")


@pytest.mark.parametrize(
    ("array", "options", "match"),
    [
        (RNG.integers(0, 65536, (5, 7), dtype=np.uint16), {}, "16-bit values"),
        (RNG.integers(0, 65536, (5, 7, 3), dtype=np.uint16), {"photometric": "rgb"}, "16-bit values"),
        (RNG.integers(0, 65536, (5, 7, 3), dtype=np.uint16), {"photometric": "rgb", "compression": "zlib"}, "16-bit"),
        (RNG.integers(0, 256, (5, 7), dtype=np.uint32), {}, "32-bit values"),
        (RNG.integers(-90, 90, (5, 7), dtype=np.int8), {}, "8-bit signed values"),
        (RNG.random((5, 7), dtype=np.float32), {}, "32-bit floating-point values"),
        (RNG.random((5, 7, 3), dtype=np.float32), {"photometric": "rgb"}, "float32"),
        (COLOURS, {"photometric": "cielab"}, "LAB colours"),
        (COLOURS, {"photometric": "rgb", "compression": "jpeg2000"}, "compression JPEG2000"),
    ],
)
def test_tiff_without_one_right_conversion(tmp_path: Path, array: np.ndarray, options: dict, match: str) -> None:
    tifffile.imwrite(tmp_path / "a.tif", array, **options)
    refused(tmp_path / "a.tif", match)


@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        ("png", {}),
        ("jpg", {"quality": 95}),
        ("tif", {}),
        ("tif", {"compression": "tiff_lzw"}),
        ("tif", {"compression": "jpeg"}),
    ],
)
@pytest.mark.filterwarnings("ignore:(Corrupt EXIF|Truncated File):UserWarning")  # Pillow's, beside our error
def test_truncated_anywhere(tmp_path: Path, suffix: str, options: dict) -> None:
    full = save(tmp_path / f"full.{suffix}", Image.fromarray(COLOURS), **options)
    data, pixels = full.read_bytes(), read_image(full)
    path, refusals = tmp_path / f"cut.{suffix}", 0
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        try:
            again = read_image(path)
        except SheafStainError as error:
            refusals += 1
            assert str(error).startswith(f"{path}: ")
        else:  # only what follows the pixels is missing
            np.testing.assert_array_equal(again, pixels)
            assert length > len(data) - 32
    assert refusals > len(data) // 7 - 5


def test_damaged_png_never_gives_other_pixels(tmp_path: Path) -> None:
    write_image(tmp_path / "full.png", COLOURS)
    data = (tmp_path / "full.png").read_bytes()
    path = tmp_path / "bad.png"
    for place in range(8, len(data), 11):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x20]) + data[place + 1 :])
        try:
            again = read_image(path)
        except SheafStainError:
            continue
        np.testing.assert_array_equal(again, COLOURS)


def test_empty_and_foreign_files(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    refused(tmp_path / "empty.png", "is empty")
    (tmp_path / "text.png").write_text("patient,grade\n1,2+\n")
    refused(tmp_path / "text.png", "not a PNG, JPEG or TIFF")
    refused(save(tmp_path / "bitmap.png", Image.fromarray(COLOURS), format="BMP"), "not a PNG, JPEG or TIFF")
    (tmp_path / "signature.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    refused(tmp_path / "signature.png", "truncated or damaged")
    refused(tmp_path, "is a folder")
    refused(tmp_path / "missing.png", "no such file")
    (tmp_path / "dangling.png").symlink_to(tmp_path / "nowhere")
    refused(tmp_path / "dangling.png", "no such file")
    os.mkfifo(tmp_path / "pipe.png")
    refused(tmp_path / "pipe.png", "not a regular file")


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "a.png", Image.fromarray(COLOURS))

    def denied(*_: object, **__: object) -> None:  # root may read everything, so the refusal is played
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", denied)
    refused(path, "no permission")


def test_bombs_are_refused_by_their_header(tmp_path: Path) -> None:
    side = 60_000
    (tmp_path / "claim.png").write_bytes(png(side, side, 8, 2, zlib.compress(b"")))
    refused(tmp_path / "claim.png", "60000×60000.*slide commands")

    packer = zlib.compressobj(1)  # the real thing: 450 MB of white bits in half a megabyte
    row = b"\0" + b"\xff" * (side // 8)
    parts = [packer.compress(row * 100) for _ in range(side // 100)] + [packer.flush()]
    (tmp_path / "real.png").write_bytes(png(side, side, 1, 0, b"".join(parts)))
    assert (tmp_path / "real.png").stat().st_size < 3_000_000
    refused(tmp_path / "real.png", "60000×60000")

    jpeg = io.BytesIO()
    Image.fromarray(SMOOTH).save(jpeg, "JPEG")
    start = jpeg.getvalue().index(b"\xff\xc0") + 5
    (tmp_path / "a.jpg").write_bytes(
        jpeg.getvalue()[:start] + struct.pack(">HH", side, side) + jpeg.getvalue()[start + 4 :]
    )
    refused(tmp_path / "a.jpg", "60000×60000")

    tifffile.imwrite(tmp_path / "a.tif", COLOURS, photometric="rgb")
    data = bytearray((tmp_path / "a.tif").read_bytes())
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        for tag, code in (("ImageWidth", "<I"), ("ImageLength", "<I")):
            struct.pack_into(code, data, tiff.pages.first.tags[tag].valueoffset, side)
    (tmp_path / "a.tif").write_bytes(data)
    refused(tmp_path / "a.tif", "60000×60000|damaged")


@pytest.mark.parametrize("compression", [None, "tiff_lzw"])
def test_large_but_allowed_tiff_is_read_without_complaint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, compression: str | None
) -> None:
    path = save(tmp_path / "a.tif", Image.fromarray(COLOURS), compression=compression)
    monkeypatch.setattr(
        Image, "MAX_IMAGE_PIXELS", COLOURS[..., 0].size - 1
    )  # Pillow warns above, fails above twice that
    np.testing.assert_array_equal(read_image(path), COLOURS)
    assert not recwarn.list


def test_the_limit_is_below_the_one_of_pillow() -> None:
    assert Image.MAX_IMAGE_PIXELS is not None
    assert MAX_PIXELS < 2 * Image.MAX_IMAGE_PIXELS


# --- whole or not at all ----------------------------------------------------------------------------------------------


def test_wrong_arrays_and_names(tmp_path: Path) -> None:
    for array in (COLOURS.astype(float), COLOURS[..., :2], np.zeros((0, 4, 3), np.uint8), np.zeros(5, np.uint8)):
        with pytest.raises(ValueError, match="uint8"):
            write_image(tmp_path / "a.png", array)
    with pytest.raises(UsageError, match=r"a\.bmp.*\.png"):
        write_image(tmp_path / "a.bmp", COLOURS)
    with pytest.raises(SheafStainError, match=r"wide\.jpg.*JPEG"):
        write_image(tmp_path / "wide.jpg", np.zeros((1, 70_000, 3), np.uint8))
    assert not list(tmp_path.iterdir())


def test_written_with_the_rights_of_the_user(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_image(tmp_path / "a.png", COLOURS)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.png").stat().st_mode) == 0o640


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt), whole(path) as part:
        part.write_text("half")
        assert part.parent == path.parent
        assert part.name.startswith(".")
        raise KeyboardInterrupt
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]
    assert path.read_text() == "before"


def test_never_renamed_over_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")  # stands for /dev/null, which root could replace
    with pytest.raises(SheafStainError, match="not a regular file"):
        write_image(tmp_path / "pipe.png", COLOURS)
    assert stat.S_ISFIFO((tmp_path / "pipe.png").stat().st_mode)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(SheafStainError, match="is a folder"):
        write_image(tmp_path / "folder.png", COLOURS)


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "link.png").symlink_to(tmp_path / "store" / "a.png")
    write_image(tmp_path / "link.png", COLOURS)
    assert (tmp_path / "link.png").is_symlink()
    np.testing.assert_array_equal(read_image(tmp_path / "store" / "a.png"), COLOURS)


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "a.png"
    with pytest.raises(NotADirectoryError) as caught:
        write_image(path, COLOURS)
    assert caught.value.filename == str(path)
    with pytest.raises(FileNotFoundError) as caught:
        write_image(tmp_path / "missing" / "a.png", COLOURS)
    assert caught.value.filename == str(tmp_path / "missing" / "a.png")


NOISE = RNG.integers(0, 256, (300, 300, 3), dtype=np.uint8)  # 270 kB that no codec makes smaller


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.jpg"])
def test_full_disk(tiny_disk: Path, name: str) -> None:
    path = tiny_disk / name
    path.write_bytes(b"before")
    with pytest.raises(OSError) as caught:
        write_image(path, NOISE)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(path)
    assert [entry.name for entry in tiny_disk.iterdir()] == [name]
    assert path.read_bytes() == b"before"


def test_read_only_folder(tiny_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    with pytest.raises(OSError) as caught:
        write_image(tiny_disk / "a.png", COLOURS)
    assert caught.value.errno == errno.EROFS
    assert caught.value.filename == str(tiny_disk / "a.png")


def test_file_size_limit_as_a_disk_that_fills_up(tmp_path: Path) -> None:
    pytest.importorskip("resource", reason="file-size limits are POSIX")
    code = """
        import resource, sys, numpy as np
        from sheafstain.slides.image import write_image
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            write_image(sys.argv[1], np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8))
        except OSError as error:
            print(error.errno, error.filename)
    """
    path = tmp_path / "a.png"
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(path)], capture_output=True, text=True, check=True
    )
    assert run.stdout.split(maxsplit=1) == [str(errno.EFBIG), f"{path}\n"]
    assert not list(tmp_path.iterdir())
