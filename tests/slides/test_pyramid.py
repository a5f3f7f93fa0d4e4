"""Halving, and that the levels do not depend on how the rows came."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sheafstain.slides.pyramid import Level, Making, mean, mean_of_defined, sizes_down_to
from sheafstain.window import Size

MAPS = arrays(
    np.uint8, st.tuples(st.integers(1, 7), st.integers(1, 7)), elements=st.sampled_from([0, 0, 1, 2, 7, 254, 255])
)


def blocks(values: np.ndarray) -> Iterator[tuple[tuple[int, int], list[int]]]:
    for y in range(0, values.shape[0], 2):
        for x in range(0, values.shape[1], 2):
            yield (y // 2, x // 2), [int(v) for v in values[y : y + 2, x : x + 2].flat]


def half_up(values: list[int]) -> int:
    return int(Fraction(sum(values), len(values)) + Fraction(1, 2)) if values else 0


@given(MAPS)
def test_means_are_of_the_pixels_there_are(values: np.ndarray):
    plain, defined = mean(values), mean_of_defined(values)
    for where, block in blocks(values):
        assert plain[where] == half_up(block)
        assert defined[where] == half_up([v for v in block if v])
        assert (defined[where] == 0) == (not any(block)), "undefined only where nothing is defined"


def test_colours_are_halved_each_for_itself():
    rgb = np.random.default_rng(0).integers(0, 256, (5, 9, 3), dtype=np.uint8)
    assert np.array_equal(mean(rgb), np.stack([mean(np.ascontiguousarray(rgb[..., c])) for c in range(3)], -1))


@pytest.mark.parametrize(("size", "levels"), [(Size(4, 4), 1), (Size(5, 4), 2), (Size(1, 33), 5), (Size(32, 33), 5)])
def test_levels_end_where_one_tile_is_enough(size: Size, levels: int):
    sizes = sizes_down_to(4, size)
    assert len(sizes) == levels
    assert max(sizes[-1].h, sizes[-1].w) <= 4


class Tiles(list):
    def sync(self) -> int:
        return len(self)

    def close(self) -> None: ...


CUTS = st.dictionaries(st.integers(1, 39), st.booleans(), max_size=6)  # after a row; whether all is put away there


@given(CUTS, st.integers(1, 40), st.integers(1, 23))
def test_any_bands_give_the_same_tiles(cuts: dict[int, bool], height: int, width: int):
    """Also when the levels are put away and set up again in between, as at a checkpoint."""
    image = np.random.default_rng(0).integers(0, 256, (height, width), dtype=np.uint8)
    sizes = sizes_down_to(8, Size(height, width))
    with ThreadPoolExecutor(2) as pool:
        making = Making(Size(8, 8), lambda tile: tile.tobytes(), mean_of_defined, pool)

        def levels(bands: list[np.ndarray], stores: list[Tiles]) -> Level:
            level = None
            for size, band, store in reversed(list(zip(sizes, bands, stores, strict=True))):
                level = Level(size, band, store, making, level)
            assert level is not None
            return level

        stores = [Tiles() for _ in sizes]
        level = levels([np.empty((0, size.w), np.uint8) for size in sizes], stores)
        y = 0
        for cut, away in sorted(cuts.items()):
            level.add(image[y:cut])
            y = max(y, cut)
            if away:
                for each in level.and_below():
                    each.settle()
                level = levels([each.band.copy() for each in level.and_below()], stores)
        level.add(image[y:])
        level.finish()
    expected = image
    for store in stores:
        h, w = expected.shape
        assert store == [expected[y : y + 8, x : x + 8].tobytes() for y in range(0, h, 8) for x in range(0, w, 8)]
        expected = mean_of_defined(expected)
