"""Whole or damaged: held against libjxl, which parses a JPEG stream strictly to the last bit."""

from __future__ import annotations

import io

import imagecodecs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sheafstain.slides.jpeg import decode_jpeg


def tissue(h: int, w: int, seed: int) -> np.ndarray:
    y, x = np.mgrid[:h, :w]
    base = np.stack([np.sin(y / 9 + seed), np.cos(x / 11), np.sin((x + 2 * y) / 23)], -1) * 50 + 150
    return np.clip(base + np.random.default_rng(seed).normal(0, 5, (h, w, 1)), 0, 255).astype(np.uint8)


def encoded(image: np.ndarray, quality: int, subsampling: int, optimize: bool) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality, subsampling=subsampling, optimize=optimize)
    return buffer.getvalue()


def decode(data: bytes) -> np.ndarray:
    return decode_jpeg(data, tables=None, colours=None, output="RGB")


def accepted(data: bytes) -> bool:
    try:
        decode(data)
    except (ValueError, RuntimeError):
        return False
    return True


def strictly_valid(data: bytes) -> bool:
    try:
        imagecodecs.jpegxl_encode_jpeg(data)
    except imagecodecs.JpegxlError:
        return False
    return True


@settings(max_examples=60)
@given(
    h=st.integers(1, 70),
    w=st.integers(40, 90),
    kind=st.sampled_from(["tissue", "glass", "grey", "black", "half"]),
    quality=st.sampled_from([20, 75, 90, 99]),
    subsampling=st.integers(0, 2),
    optimize=st.booleans(),
)
def test_whole_tiles_are_decoded_as_pillow_does(h, w, kind, quality, subsampling, optimize):
    image = tissue(h, w, h)
    if kind != "tissue":
        image[h // 2 if kind == "half" else 0 :] = {"glass": 243, "grey": 128, "black": 0, "half": 128}[kind]
    if kind == "half":
        image[-16:, -16:] = 200  # a tile whose last block is 128 on average cannot be told from one cut short
    data = encoded(image, quality, subsampling, optimize)
    assert np.array_equal(decode(data), np.asarray(Image.open(io.BytesIO(data))))


def test_grey_and_restart_markers_and_progressive():
    image = tissue(64, 96, 0)
    for options in ({"restart_marker_rows": 1}, {"progressive": True}):
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "JPEG", **options)
        assert np.array_equal(decode(buffer.getvalue()), np.asarray(Image.open(buffer)))
    buffer = io.BytesIO()
    Image.fromarray(image[..., 0]).save(buffer, "JPEG")
    grey = decode_jpeg(buffer.getvalue(), tables=None, colours=None, output=None)
    assert np.array_equal(grey[..., 0], np.asarray(Image.open(buffer)))


def damaged(data: bytes, kind: str, draw: np.random.Generator) -> bytes:
    start = data.index(b"\xff\xda") + 14
    at = int(draw.integers(start, len(data) - 40))
    length = {"sector of zeros": 512, "sector of noise": 512, "page of zeros": 4096, "rest": len(data)}[kind]
    length = min(length, len(data) - at)
    return data[:at] + (draw.bytes(length) if kind == "sector of noise" else bytes(length)) + data[at + length :]


@pytest.mark.parametrize(
    ("kind", "least"), [("sector of zeros", 0.85), ("sector of noise", 0.9), ("page of zeros", 0.95), ("rest", 0.98)]
)
def test_damage_is_found_where_a_strict_parser_finds_it(kind: str, least: float):
    draw = np.random.default_rng(1)
    found = lost = 0
    for seed in range(12):
        for quality in (40, 90):
            for subsampling in (0, 2):
                data = encoded(tissue(256, 256, seed), quality, subsampling, seed % 2 == 0)
                for _ in range(4):
                    broken = damaged(data, kind, draw)
                    if broken != data and not strictly_valid(broken):
                        lost += 1
                        found += not accepted(broken)
    assert lost > 30
    assert found / lost >= least, f"{found} of {lost}"
