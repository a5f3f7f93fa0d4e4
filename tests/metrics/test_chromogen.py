"""The DAB metrics against NumPy and SciPy, on real tiles, on noise and where they degenerate."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy, pearsonr
from torch import Tensor

from sheafstain.metrics import chromogen
from sheafstain.metrics.chromogen import (
    dab,
    dab_dice,
    dab_iou,
    dab_jsd,
    dab_kl,
    dab_kl_reverse,
    dab_p90,
    dab_r,
    fod,
    iod,
    miod,
)

PAIRWISE = (dab_r, dab_kl, dab_kl_reverse, dab_jsd, dab_dice, dab_iou)
ALONE = (iod, miod, fod, dab_p90)


def dab_in_numpy(image: np.ndarray) -> np.ndarray:
    """uint8 [h, w, 3] → [h, w], by the inverse of the matrix of normalised stains."""
    stains = np.array([(0.650, 0.704, 0.286), (0.268, 0.570, 0.776), (0.7110, 0.4245, 0.5609)])
    stains /= np.linalg.norm(stains, axis=1, keepdims=True)
    density = -np.log((image.astype(float) + 1) / 256)
    return np.maximum((density @ np.linalg.inv(stains))[..., 1], 0)


def batch(*images: np.ndarray) -> Tensor:
    """uint8 [h, w, 3] → [b, 3, h, w]."""
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255


def plain(*rgb: int) -> Tensor:
    return batch(np.broadcast_to(np.array(rgb, np.uint8), (8, 8, 3)).copy())


@pytest.fixture(scope="module")
def tiles(real: Path) -> list[np.ndarray]:
    """Crops of four real IHC images, from HER2 0 to 3+."""
    files = sorted((real / "bci/IHC/test").glob("*.png"))
    return [np.asarray(Image.open(file).convert("RGB"))[200:456, 300:556] for file in files]


@pytest.fixture(scope="module")
def pairs(tiles: list[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    noise = np.random.default_rng(5).integers(0, 256, (2, 256, 256, 3), dtype=np.uint8)
    return [*tiles, noise[0]], [*tiles[1:], tiles[0], noise[1]]


@pytest.mark.parametrize(
    ("rgb", "expected"),
    [((255, 255, 255), 0), ((240, 240, 240), 0.035), ((120, 80, 50), 1.777), ((90, 90, 140), 0.093)],
)
def test_published_colours(rgb: tuple[int, int, int], expected: float):
    assert dab(plain(*rgb)).mean() == pytest.approx(expected, abs=6e-4)


def test_the_map_is_that_of_numpy(pairs: tuple[list[np.ndarray], list[np.ndarray]]):
    for image in pairs[0]:
        assert np.allclose(dab(batch(image))[0].numpy(), dab_in_numpy(image), atol=2e-6)


def test_correlation_is_that_of_scipy(pairs: tuple[list[np.ndarray], list[np.ndarray]]):
    expected = [
        pearsonr(dab_in_numpy(p).ravel(), dab_in_numpy(r).ravel()).statistic for p, r in zip(*pairs, strict=True)
    ]
    assert dab_r(batch(*pairs[0]), batch(*pairs[1])).tolist() == pytest.approx(expected, abs=1e-6)


def test_divergences_are_those_of_numpy_and_scipy(pairs: tuple[list[np.ndarray], list[np.ndarray]]):
    pred, real = batch(*pairs[0]), batch(*pairs[1])
    for i, (p, r) in enumerate(zip(dab(pred).numpy(), dab(real).numpy(), strict=True)):
        ends = (0.0, float(max(p.max(), r.max())))
        p, r = (np.histogram(values.astype(float), 256, ends, density=True)[0] + 1e-10 for values in (p, r))
        # One pixel on the edge of a bin may fall to either side of it.
        assert float(dab_kl(pred, real)[i]) == pytest.approx(entropy(p, r), rel=1e-3)
        assert float(dab_kl_reverse(pred, real)[i]) == pytest.approx(entropy(r, p), rel=1e-3)
        assert float(dab_jsd(pred, real)[i]) == pytest.approx(jensenshannon(p, r) ** 2, rel=1e-3)


def test_densities_are_those_of_numpy(tiles: list[np.ndarray]):
    maps = [dab_in_numpy(tile) for tile in tiles]
    images = batch(*tiles)
    assert iod(images).tolist() == pytest.approx([m[m > 0.1].sum() for m in maps], rel=1e-6)
    assert miod(images).tolist() == pytest.approx([m[m > 0.1].mean() for m in maps], rel=1e-6)
    assert fod(images).tolist() == pytest.approx([(m > 0.1).mean() for m in maps], rel=1e-6)
    assert fod(images, threshold=0.4).tolist() == pytest.approx([(m > 0.4).mean() for m in maps], rel=1e-6)
    assert torch.allclose(iod(images), miod(images) * fod(images) * 256**2)


def test_overlap_of_masks_is_that_of_numpy(tiles: list[np.ndarray]):
    pred, real = batch(*tiles), batch(*tiles[::-1])
    for threshold in (0.1, 0.5):
        masks = [dab_in_numpy(tile) > threshold for tile in tiles]
        inter = np.array([(a & b).sum() for a, b in zip(masks, masks[::-1], strict=True)])
        union = np.array([(a | b).sum() for a, b in zip(masks, masks[::-1], strict=True)])
        sizes = np.array([a.sum() + b.sum() for a, b in zip(masks, masks[::-1], strict=True)])
        assert dab_iou(pred, real, threshold).tolist() == pytest.approx((inter / union).tolist(), rel=1e-6)
        assert dab_dice(pred, real, threshold).tolist() == pytest.approx((2 * inter / sizes).tolist(), rel=1e-6)


def test_p90_is_that_of_numpy(tiles: list[np.ndarray]):
    for tile in tiles:
        values = dab_in_numpy(tile).ravel()
        p90, p99 = np.percentile(values, (90, 99))
        # 8-bit colours repeat: a group of pixels at the percentile itself is in or out by a rounding error.
        assert float(dab_p90(batch(tile))) == pytest.approx(np.minimum(values, p99)[values >= p90].mean(), rel=1e-3)


def test_half_stained_by_hand():
    brown, white = plain(120, 80, 50), plain(255, 255, 255)
    half = torch.cat([brown[..., :4], white[..., :4]], dim=-1)
    strength = float(dab(brown).mean())
    assert fod(half).tolist() == [0.5]
    assert float(miod(half)) == pytest.approx(strength, rel=1e-6)
    assert float(iod(half)) == pytest.approx(32 * strength, rel=1e-6)
    assert (float(dab_dice(half, brown)), float(dab_iou(half, brown))) == pytest.approx((2 / 3, 1 / 2))
    assert float(dab_r(half, half)) == pytest.approx(1)
    assert float(dab_r(half, half.flip(-1))) == pytest.approx(-1)
    # Half of pred in the first bin and half in the last, all of real in the last.
    assert float(dab_kl_reverse(half, brown)) == pytest.approx(math.log(2), rel=1e-6)
    assert float(dab_kl(half, brown)) > 5, "a bin that is empty in real"
    expected = ((math.log(2) + math.log(2 / 3)) / 2 + math.log(4 / 3)) / 2  # of (½, ½) and (0, 1)
    assert float(dab_jsd(half, brown)) == pytest.approx(expected, rel=1e-6)


def test_equal_images(tiles: list[np.ndarray]):
    images = batch(*tiles)
    for divergence in (dab_kl, dab_kl_reverse, dab_jsd):
        assert divergence(images, images).tolist() == [0.0] * 4
    for likeness in (dab_r, dab_dice, dab_iou):
        assert likeness(images, images).tolist() == pytest.approx([1.0] * 4)


def test_images_without_chromogen():
    white, brown = plain(255, 255, 255), plain(120, 80, 50)
    for score in ALONE:
        assert score(white).tolist() == [0.0]
    for pair in ((white, white), (white, brown), (brown, white), (brown, brown)):
        assert dab_r(*pair).tolist() == [0.0], "a constant map correlates with nothing"
    for divergence in (dab_kl, dab_kl_reverse, dab_jsd):
        assert divergence(white, white).tolist() == [0.0]
    assert float(dab_jsd(white, brown)) == pytest.approx(math.log(2), abs=1e-6)
    for overlap in (dab_dice, dab_iou):
        assert overlap(white, white).isnan().all(), "0/0"
        assert overlap(white, brown).tolist() == [0.0]
        assert overlap(brown, brown).tolist() == [1.0]


colours = st.lists(st.tuples(*[st.integers(0, 255)] * 3), min_size=16, max_size=16)


@settings(max_examples=40)
@given(colours, colours)
def test_laws(pred_colours: list[tuple[int, ...]], real_colours: list[tuple[int, ...]]):
    pred, real = (batch(np.array(c, np.uint8).reshape(4, 4, 3)) for c in (pred_colours, real_colours))
    for measure in PAIRWISE:
        value = measure(pred, real)
        assert value.dtype == torch.float64 and value.shape == (1,)
        assert torch.equal(value, measure(dab(pred), dab(real))) or value.isnan().all(), "maps in the place of images"
    assert abs(float(dab_r(pred, real))) <= 1 + 1e-12
    assert torch.allclose(dab_r(pred, real), dab_r(real, pred))
    assert torch.equal(dab_kl(pred, real), dab_kl_reverse(real, pred)) and float(dab_kl(pred, real)) >= 0
    assert 0 <= float(dab_jsd(pred, real)) <= math.log(2) + 1e-12
    assert torch.allclose(dab_jsd(pred, real), dab_jsd(real, pred))
    dice, iou = dab_dice(pred, real), dab_iou(pred, real)
    assert torch.allclose(dice, 2 * iou / (1 + iou), equal_nan=True)
    # Pixels have no order, but in a pair.
    turned = (images.flatten(2).flip(2).view(1, 3, 4, 4) for images in (pred, real))
    first, second = turned
    for measure in PAIRWISE:
        assert torch.allclose(measure(first, second), measure(pred, real), equal_nan=True)
    for score in ALONE:
        assert torch.allclose(score(first), score(pred)) and float(score(pred)) >= 0


def test_a_batch_is_its_images(pairs: tuple[list[np.ndarray], list[np.ndarray]]):
    pred, real = batch(*pairs[0]), batch(*pairs[1])
    for measure in PAIRWISE:
        apart = torch.cat([measure(pred[i : i + 1], real[i : i + 1]) for i in range(len(pred))])
        assert torch.allclose(measure(pred, real), apart, rtol=1e-12)


def test_what_is_no_pair_is_refused():
    with pytest.raises(ValueError, match="differ in size"):
        dab_r(torch.rand(1, 3, 8, 8), torch.rand(1, 3, 8, 9))
    with pytest.raises(ValueError, match="b, 3, h, w"):
        dab(torch.rand(3, 8, 8))
    assert chromogen.POSITIVE == 0.1, "the definition that reports print"
