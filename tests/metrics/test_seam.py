"""The Tiling Score and the seam excess: by hand, by a plain loop, and as published for blurred textures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.ndimage import gaussian_filter

from sheafstain.metrics.seam import lattice_borders, multiples, seam_excess, tiling_score
from sheafstain.sheaf.cover import Lattice
from sheafstain.window import Size


def by_loop(image: np.ndarray, rows: list[int], columns: list[int], w: int = 15) -> tuple[float, float]:
    """[3, h, w]: the definition, one line after the other."""
    scores, excesses = [], []
    for lines, plane in ((rows, image), (columns, image.transpose(0, 2, 1))):
        for b in lines:
            g0 = np.abs(plane[:, b - 1] - plane[:, b]).mean()
            g1 = np.abs(plane[:, b - w - 1] - plane[:, b - w]).mean()
            g2 = np.abs(plane[:, b + w] - plane[:, b + w + 1]).mean()
            scores.append(max(g0, g1, g2))
            excesses.append(g0 - (g1 + g2) / 2)
    return float(np.mean(scores)), float(np.mean(excesses))


def test_one_step_by_hand():
    image = torch.full((1, 3, 64, 64), 0.2)
    image[..., 32:] = 0.5
    assert float(tiling_score(image, [], [32])) == pytest.approx(0.3, abs=1e-6)
    assert float(seam_excess(image, [], [32])) == pytest.approx(0.3, abs=1e-6)
    assert float(tiling_score(image, [32], [32])) == pytest.approx(0.15, abs=1e-6)  # no step between the rows
    # The same step at a line's reference, 15 px away, counts for the score and against the excess.
    for line in (17, 31, 33, 46):
        assert float(tiling_score(image, [], [line])) == 0
    for line in (16, 47):
        assert float(tiling_score(image, [], [line])) == pytest.approx(0.3, abs=1e-6)
        assert float(seam_excess(image, [], [line])) == pytest.approx(-0.15, abs=1e-6)


def test_is_the_loop_on_noise_for_every_line_that_fits():
    images = torch.rand(2, 3, 50, 70, generator=torch.Generator().manual_seed(1))
    rows, columns = [16, 25, 33], [16, 40, 53]  # the first and last that have all three steps inside
    for image, score, excess in zip(
        images, tiling_score(images, rows, columns), seam_excess(images, rows, columns), strict=True
    ):
        expected = by_loop(image.double().numpy(), rows, columns)
        assert (float(score), float(excess)) == pytest.approx(expected, abs=1e-12)


def test_lines_without_room_are_left_out():
    images = torch.rand(1, 3, 50, 70, generator=torch.Generator().manual_seed(1))
    crowded = tiling_score(images, [0, 15, 25, 34, 49, 50, 300], [15, 40, 54])
    assert float(crowded) == float(tiling_score(images, [25], [40]))


def test_is_the_loop_on_a_real_image(real: Path):
    image = np.asarray(Image.open(real / "bci/IHC/test/00052_test_3+.png").convert("RGB"), np.float64) / 255
    lines = multiples(1024)
    assert lines == [256, 512, 768]
    batch = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    expected = by_loop(image.transpose(2, 0, 1), lines, lines)
    assert float(tiling_score(batch, lines, lines)) == pytest.approx(expected[0], abs=1e-6)
    assert float(seam_excess(batch, lines, lines)) == pytest.approx(expected[1], abs=1e-6)


@pytest.mark.parametrize(("sigma", "published"), [(0.5, 0.118), (1, 0.065), (2, 0.034), (4, 0.017)])
def test_a_seamless_texture_scores_by_its_sharpness(sigma: float, published: float):
    """Normal noise, blurred, brought to mean 0.5 and standard deviation 0.12: the published series.

    The last depends on the draw in its third digit.
    """
    noise = np.random.default_rng(0).normal(size=(1024, 1024, 3))
    texture = gaussian_filter(noise, (sigma, sigma, 0))
    texture = np.clip(0.5 + 0.12 * (texture - texture.mean()) / texture.std(), 0, 1)
    image = torch.from_numpy(texture).permute(2, 0, 1)[None].float()
    lines = multiples(1024)
    assert float(tiling_score(image, lines, lines)) == pytest.approx(published, abs=7e-4)
    assert abs(float(seam_excess(image, lines, lines))) < 1e-3, "there is no seam"


def test_the_excess_finds_tiles_that_the_score_hides():
    """Tiles that differ by 0.02 in tone, in a texture whose own steps are larger."""
    rng = np.random.default_rng(0)
    texture = gaussian_filter(rng.normal(size=(512, 512)), 3)
    texture = 0.5 + 0.05 * texture / texture.std()
    tones = np.kron(rng.permuted(np.linspace(-0.06, 0.06, 16)).reshape(4, 4), np.ones((128, 128)))
    lines = multiples(512, of=128)
    whole, tiled = (
        torch.from_numpy(image)[None, None].expand(1, 3, -1, -1) for image in (texture, np.clip(texture + tones, 0, 1))
    )
    assert float(seam_excess(tiled, lines, lines)) > 10 * abs(float(seam_excess(whole, lines, lines)))
    halfway = [line + 64 for line in lines[:-1]]
    assert abs(float(seam_excess(tiled, halfway, halfway))) < 1e-3, "there are no borders there"


@given(st.integers(1, 3), st.sets(st.integers(1, 90)), st.sets(st.integers(1, 90)), st.randoms(use_true_random=False))
def test_laws(count: int, rows: set[int], columns: set[int], random):
    images = torch.rand(count, 3, 64, 90, generator=torch.Generator().manual_seed(random.randrange(1000)))
    score, excess = (f(images, sorted(rows), sorted(columns)) for f in (tiling_score, seam_excess))
    assert score.dtype == excess.dtype == torch.float64 and score.shape == excess.shape == (count,)
    for line in (score, excess):
        turned = (tiling_score if line is score else seam_excess)(images.mT, sorted(columns), sorted(rows))
        assert torch.allclose(line, turned, equal_nan=True), "rows and columns are alike"
    assert bool((score >= excess)[score.isfinite()].all())
    none = not any(15 < y < 64 - 16 for y in rows) and not any(15 < x < 90 - 16 for x in columns)
    assert bool(score.isnan().all()) == none == bool(excess.isnan().all())


def test_an_image_too_small_for_a_seam_is_undefined():
    image = torch.rand(2, 3, 256, 256)
    assert multiples(256) == [] == lattice_borders(256)
    assert tiling_score(image, [], []).isnan().all() and seam_excess(image, [], []).isnan().all()
    assert tiling_score(image[..., :31, :31], [16], [16]).isnan().all()
    assert tiling_score(image[..., :33, :33], [16], [16]).isfinite().all()


def test_borders_of_a_stitched_image():
    assert lattice_borders(1024) == [192, 256, 384, 448, 576, 640, 768, 832]
    assert lattice_borders(1000) == [192, 256, 384, 448, 576, 640, 752, 832]  # the last begins at 1008 − 256
    assert lattice_borders(512, window=256, stride=256) == multiples(512) == [256]
    assert multiples(1000, of=500) == [500]


@given(st.integers(1, 3000), st.sampled_from([64, 128, 192, 256]))
def test_borders_are_those_of_the_cover(length: int, stride: int):
    starts = Lattice.over(Size(length, 256), 256, stride).ys
    edges = {edge for start in starts for edge in (start, start + 256)}
    assert lattice_borders(length, 256, stride) == sorted(edge for edge in edges if 0 < edge < length)
