"""Colour maths against scikit-image, against printed values and against derivatives taken numerically."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from skimage import color

from sheafstain.stain import (
    DECADIC,
    H_DAB,
    H_DAB_SOFTPLUS,
    H_E,
    NATURAL,
    Density,
    Stains,
    chromogen,
    chromogen_on_white,
    light,
    mix,
    optical_density,
    top_tenth_mean,
    unmix,
)

# scikit-image's own convention: OD = ln max(I, 1e-6) / ln 1e-6, rows not normalised, clipped at zero.
HED_OF_SKIMAGE = Stains(
    ("haematoxylin", "eosin", "DAB"),
    tuple(tuple(row) for row in color.rgb_from_hed.tolist()),
    Density(base=1e6, floor=1e-6, offset=0.0),
)
CONVENTIONS = pytest.mark.parametrize("stains", [H_E, H_DAB, H_DAB_SOFTPLUS], ids=["H_E", "H_DAB", "H_DAB_SOFTPLUS"])


def pixels(*rgb: tuple[int, int, int], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """8-bit colours as an image [1, 3, 1, n]."""
    return (torch.tensor(rgb, dtype=torch.float64).T[None, :, None] / 255).to(dtype)


def picture(seed: int = 0, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """8-bit noise [b, 3, h, w] that holds black and white pixels too."""
    values = np.random.default_rng(seed).integers(0, 256, (shape or (2, 3, 17, 23)))
    values[..., 0, 0], values[..., 0, 1] = 0, 255
    return torch.tensor(values / 255, dtype=dtype)


def last(image: torch.Tensor) -> np.ndarray:
    return image.movedim(-3, -1).numpy()


def test_agrees_with_scikit_image():
    rgb = picture()
    np.testing.assert_allclose(last(unmix(rgb, HED_OF_SKIMAGE)), color.rgb2hed(last(rgb)), atol=1e-12)
    amounts = torch.tensor(np.random.default_rng(1).uniform(0, 0.4, (2, 3, 5, 7)))
    np.testing.assert_allclose(
        last(mix(amounts, HED_OF_SKIMAGE)), color.combine_stains(last(amounts), color.rgb_from_hed), atol=1e-12
    )


def test_agrees_with_scikit_image_on_the_metric_convention():
    """M1 is skimage's unmixing of (I + 1)/256 by the same matrix; skimage divides its densities by ln 1e6."""
    rgb = picture(3)
    inverse = np.linalg.inv(np.array(H_DAB.rows))
    expected = color.separate_stains((last(rgb) * 255 + 1) / 256, inverse) * math.log(1e6)
    np.testing.assert_allclose(last(unmix(rgb)), expected, atol=1e-12)


def test_printed_values_of_the_metric_convention():
    colours = pixels((255, 255, 255), (240, 240, 240), (120, 80, 50), (90, 90, 140))
    assert chromogen(colours).flatten().tolist() == pytest.approx([0, 0.035, 1.777, 0.093], abs=5e-4)
    # The DAB weights read off by unmixing one unit of density in each channel, before the clip hides the negative one.
    column = [chromogen(light(torch.eye(3, dtype=torch.float64)[:, c].reshape(3, 1, 1))).item() for c in (1, 2)]
    assert column == pytest.approx([0.8353, 1.1637], abs=5e-5)
    red_and_blue = chromogen(light(torch.tensor([0.5, 0.0, 1.0], dtype=torch.float64).reshape(3, 1, 1))).item()
    assert (red_and_blue - column[1]) / 0.5 == pytest.approx(-1.4167, abs=5e-5)


def test_printed_values_of_the_softplus_convention():
    white = chromogen(pixels((255, 255, 255)), H_DAB_SOFTPLUS).item()
    assert white == pytest.approx(math.log(2) / 5, abs=1e-9)
    assert white == pytest.approx(0.1386, abs=5e-5)
    rgb = picture(5)
    density = -np.log10(np.clip(last(rgb), 1e-6, 1) + 1e-6)
    raw = density @ np.array([-0.6898, 0.0236, 1.5095])
    np.testing.assert_allclose(last(chromogen(rgb, H_DAB_SOFTPLUS))[..., 0], np.logaddexp(0, 5 * raw) / 5, atol=1e-3)


@CONVENTIONS
def test_mixing_undoes_unmixing(stains: Stains):
    amounts = torch.tensor(np.random.default_rng(2).uniform(0.3, 1.2, (2, len(stains.names), 6, 5)))
    back = unmix(mix(amounts, stains), stains)
    if stains.softplus:
        back = torch.log(torch.expm1(back * stains.softplus)) / stains.softplus  # the rectifier is part of unmixing
    torch.testing.assert_close(back, amounts, rtol=0, atol=1e-5)


@pytest.mark.parametrize("density", [NATURAL, DECADIC])
def test_light_undoes_optical_density(density: Density):
    rgb = picture(7)
    torch.testing.assert_close(light(optical_density(rgb, density), density), rgb, rtol=0, atol=2e-6)
    assert optical_density(pixels((255, 255, 255)), density).abs().max() == 0


@CONVENTIONS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_black_and_white_have_finite_values_and_gradients(stains: Stains, dtype: torch.dtype):
    rgb = pixels((0, 0, 0), (255, 255, 255), (255, 0, 0), (0, 0, 255), dtype=dtype).requires_grad_()
    amounts = unmix(rgb, stains)
    results = [amounts, mix(amounts, stains), optical_density(rgb)]
    if "DAB" in stains.names:
        results += [chromogen(rgb, stains), chromogen_on_white(rgb), top_tenth_mean(chromogen(rgb, stains))]
    for result in results:
        assert result.dtype == torch.float32
        assert result.isfinite().all()
        (gradient,) = torch.autograd.grad(result.sum(), rgb, retain_graph=True)
        assert gradient.dtype == dtype
        assert gradient.isfinite().all()


def test_values_a_little_outside_the_range_are_finite():
    rgb = torch.tensor([-0.2, 1.3, -1e-3]).reshape(1, 3, 1, 1).requires_grad_()
    total = chromogen(rgb).sum() + chromogen(rgb, H_DAB_SOFTPLUS).sum() + chromogen_on_white(rgb).sum()
    total.backward()
    assert total.isfinite()
    assert rgb.grad is not None
    assert rgb.grad.isfinite().all()


@pytest.mark.parametrize(
    "function",
    [
        optical_density,
        unmix,
        chromogen,
        chromogen_on_white,
        lambda x: unmix(x, H_E),
        lambda x: chromogen(x, H_DAB_SOFTPLUS),
        lambda x: mix(x * 2),
        lambda x: top_tenth_mean(chromogen(x, H_DAB_SOFTPLUS)),
        lambda x: top_tenth_mean(chromogen(x)),
    ],
    ids=["od", "unmix", "dab", "on white", "unmix H&E", "dab softplus", "mix", "top tenth softplus", "top tenth"],
)
def test_gradients(function):
    # Colours from amounts of haematoxylin and DAB well above zero: no pixel sits on the kink of the clip.
    amounts = torch.tensor(np.random.default_rng(4).uniform(0.2, 0.9, (2, 3, 4, 5)))
    rgb = mix(amounts).requires_grad_()
    assert torch.autograd.gradcheck(function, (rgb,), eps=1e-7, atol=1e-4)


def test_autocast_does_not_lose_digits():
    rgb = picture(6, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = chromogen(rgb), chromogen_on_white(rgb), unmix(rgb, H_E)
    outside = chromogen(rgb), chromogen_on_white(rgb), unmix(rgb, H_E)
    for a, b in zip(inside, outside, strict=True):
        assert torch.equal(a, b)


def test_a_batch_is_its_images():
    rgb = picture(8, 3, 3, 9, 8)
    for function in (chromogen, chromogen_on_white, unmix):
        assert torch.equal(function(rgb), torch.stack([function(one) for one in rgb]))
    each = torch.cat([top_tenth_mean(chromogen(one[None])) for one in rgb])
    torch.testing.assert_close(top_tenth_mean(chromogen(rgb)), each)


def test_on_white():
    white, weak, strong, blue = chromogen_on_white(pixels((255,) * 3, (220, 200, 190), (120, 80, 50), (90, 90, 200)))[
        0, :, 0
    ].T
    assert white.tolist() == [1, 1, 1]
    assert (strong < weak).all()
    assert strong[0] > strong[1] > strong[2], "DAB is brown"
    torch.testing.assert_close(blue, white)


@given(st.integers(0, 2**32 - 1), st.floats(1.02, 3.0))
@settings(max_examples=50, deadline=None)
def test_more_dab_is_darker_on_white(seed: int, factor: float):
    amounts = torch.tensor(np.random.default_rng(seed).uniform(0.05, 0.9, (3, 4, 4)))
    more = amounts.clone()
    more[1] *= factor
    assert (chromogen_on_white(mix(more)) < chromogen_on_white(mix(amounts))).all()


def expected_top_tenth(values: np.ndarray) -> float:
    capped = np.minimum(values, np.percentile(values, 99))
    return float(capped[values >= np.percentile(values, 90)].mean())


@given(hnp.arrays(np.float64, st.integers(1, 400), elements=st.floats(0, 5)))
@settings(max_examples=100, deadline=None)
def test_top_tenth_is_numpys(values: np.ndarray):
    result = top_tenth_mean(torch.tensor(values)[None]).item()
    assert result == pytest.approx(expected_top_tenth(values), rel=1e-9, abs=1e-12)


def test_top_tenth_takes_each_image_on_its_own():
    maps = np.random.default_rng(9).gamma(2.0, 0.4, (3, 1, 31, 29))
    expected = [expected_top_tenth(one.ravel()) for one in maps]
    np.testing.assert_allclose(top_tenth_mean(torch.tensor(maps)).numpy(), expected, rtol=1e-12)
    assert top_tenth_mean(torch.full((1, 1, 8, 8), 0.7)).item() == pytest.approx(0.7)


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match="divide 8-bit values by 255"):
        chromogen(torch.zeros(1, 3, 4, 4, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"\[\.\.\., 3, h, w\]"):
        unmix(torch.zeros(4, 4, 3))
    with pytest.raises(ValueError, match="third-last axis"):
        mix(torch.zeros(2, 4, 4))
    with pytest.raises(ValueError, match="no DAB among haematoxylin, eosin"):
        chromogen(torch.zeros(3, 4, 4), H_E)
    with pytest.raises(ValueError, match="linearly independent"):
        Stains(("a", "b"), ((1, 0, 0), (2, 0, 0)))
    with pytest.raises(ValueError, match="without pixels"):
        top_tenth_mean(torch.zeros(1, 0))
