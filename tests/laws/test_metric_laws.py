"""What the page on metrics says that each of them rewards and overlooks, on phantoms and for any image."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.ndimage import gaussian_filter
from torch import Tensor

from sheafstain.datasets.phantom.phantom import Phantom
from sheafstain.datasets.phantom.plan import choose_fields
from sheafstain.datasets.phantom.specimen import Specimen
from sheafstain.metrics import chromogen
from sheafstain.metrics.distribution import Features, fid, kid
from sheafstain.metrics.fidelity import psnr, ssim
from sheafstain.metrics.seam import multiples, seam_excess, tiling_score
from sheafstain.metrics.statistics import correlation
from sheafstain.sheaf.cover import Lattice
from sheafstain.sheaf.defect import DirichletEnergy
from sheafstain.window import Resolution, Size

SIDE = 320  # px, one seam at 256
SEAMS = (multiples(SIDE), multiples(SIDE))


def tensor(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(pixels.astype(np.float32) / 255).permute(2, 0, 1)[None]


def blurred(images: Tensor, sigma: float) -> Tensor:
    return torch.from_numpy(gaussian_filter(images.numpy(), (0, 0, sigma, sigma)))


@pytest.fixture(scope="module")
def layers() -> list[dict[str, Tensor]]:
    """Two weak and two strong HER2 phantoms: the aligned truth, and the next section."""
    drawn = []
    for seed in (8, 10, 0, 16):
        specimen = Specimen.draw(seed)
        window = choose_fields(specimen, Size(SIDE, SIDE), Resolution(0.5), 1)[0]
        drawn.append(Phantom(specimen).draw(window, ("truth", "ihc")))
    return [{name: tensor(pixels) for name, pixels in one.items()} for one in drawn]


def mean(measure: Callable[[Tensor, Tensor], Tensor], preds: list[Tensor], reals: list[Tensor]) -> float:
    return float(np.mean([float(measure(p, r)) for p, r in zip(preds, reals, strict=True)]))


# --- PSNR, SSIM, DAB-r ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("measure", [psnr, ssim, chromogen.dab_r])
def test_against_the_next_section_a_blur_beats_the_truth(layers: list[dict[str, Tensor]], measure: Callable):
    truth, real = ([one[name] for one in layers] for name in ("truth", "ihc"))
    values = [mean(measure, [blurred(image, sigma) for image in truth], real) for sigma in (0, 1, 2, 4)]
    assert values == sorted(values), "the more blurred, the better"


@pytest.mark.parametrize("measure", [psnr, ssim, chromogen.dab_r])
def test_against_the_same_section_it_does_not(layers: list[dict[str, Tensor]], measure: Callable):
    truth = [one["truth"] for one in layers]
    same = [torch.from_numpy(np.random.default_rng(0).normal(one, 0.01).astype(np.float32)) for one in truth]
    values = [mean(measure, [blurred(image, sigma) for image in truth], same) for sigma in (0, 1, 2, 4)]
    assert values == sorted(values, reverse=True)


def test_a_plain_colour_beats_the_truth_in_psnr(layers: list[dict[str, Tensor]]):
    """Of all plain images the mean colour is the best; its error is the variance of the real image."""
    for one in layers:
        plain = one["ihc"].mean((2, 3), keepdim=True).expand_as(one["ihc"])
        variance = float(one["ihc"].double().var((2, 3), correction=0).mean())
        assert float(psnr(plain, one["ihc"])) == pytest.approx(-10 * math.log10(variance), abs=1e-4)
    plains = [one["ihc"].mean((2, 3), keepdim=True).expand_as(one["ihc"]) for one in layers]
    truth, real = ([one[name] for one in layers] for name in ("truth", "ihc"))
    assert mean(psnr, plains, real) > mean(psnr, truth, real)
    assert mean(chromogen.dab_r, plains, real) == 0


# --- the amount of DAB and its place ----------------------------------------------------------------------------------

maps = st.lists(st.integers(0, 300), min_size=2, max_size=60).map(lambda v: torch.tensor([[v]]).double() / 100)


@given(maps, st.randoms(use_true_random=False))
def test_amounts_do_not_see_places(real: Tensor, random):
    """DAB-KL, DAB-JSD, IOD, mIOD, FOD and p90 of any rearrangement of the pixels are those of the image itself."""
    order = list(range(real.shape[2]))
    random.shuffle(order)
    pred = real[:, :, order]
    for divergence in (chromogen.dab_kl, chromogen.dab_kl_reverse, chromogen.dab_jsd):
        assert float(divergence(pred, real)) == pytest.approx(0, abs=1e-12)
    for amount in (chromogen.iod, chromogen.miod, chromogen.fod, chromogen.dab_p90):
        assert float(amount(pred)) == pytest.approx(float(amount(real)), abs=1e-9)


def test_places_are_seen_by_dab_r_and_dice(layers: list[dict[str, Tensor]]):
    for one in layers:
        truth, turned = one["truth"], one["truth"].flip(2, 3)
        assert float(chromogen.dab_kl(turned, truth)) == pytest.approx(0, abs=1e-9)
        assert float(chromogen.dab_r(turned, truth)) < 0.5
        assert float(chromogen.dab_dice(turned, truth, 0.3)) < 0.9


@given(maps, st.floats(0.1, 10))
def test_dab_r_does_not_see_amounts(real: Tensor, factor: float):
    """And so a stain at half its strength has r = 1, and over the images of a set p90-r is 1 as well."""
    if float(real.amax() - real.amin()) > 1e-3:
        assert float(chromogen.dab_r(real * factor, real)) == pytest.approx(1, abs=1e-9)
    strengths = [1.0, 2.0, 5.0]
    assert correlation([factor * s for s in strengths], strengths).mean == pytest.approx(1)


@given(maps)
def test_a_plain_image_of_the_commonest_dab_has_little_dab_kl(real: Tensor):
    """One of 256 bins holds a 256th of the pixels or more, so KL(plain‖real) = −ln(its share) ≤ ln 256 = 5.55."""
    assume(float(real.amax()) > 0)
    _, shares = chromogen.histograms(real, real)
    commonest = (float(shares.argmax()) + 0.5) * float(real.amax()) / 256
    plain = torch.full_like(real, commonest)
    divergence = float(chromogen.dab_kl(plain, real))
    assert divergence == pytest.approx(-math.log(float(shares.max())), abs=1e-3)
    assert divergence <= math.log(256) + 1e-6
    assert float(chromogen.dab_kl_reverse(plain, real)) >= divergence - 1e-6


def test_on_a_slide_whose_glass_is_clean_an_erased_stain_has_little_dab_kl():
    """99 % of the pixels without any DAB: KL(erased‖real) = −ln 0.99, and the reverse sees the other hundredth."""
    real = torch.zeros(1, 10, 100, dtype=torch.float64)
    real[0, 0, :10] = torch.linspace(0.5, 1, 10)
    erased = torch.zeros_like(real)
    assert float(chromogen.dab_kl(erased, real)) == pytest.approx(-math.log(0.99), abs=1e-6)
    assert float(chromogen.dab_kl_reverse(erased, real)) > 0.15
    assert float(chromogen.dab_jsd(erased, real)) < 0.01


def test_plain_brown_has_the_dice_of_the_positive_share(layers: list[dict[str, Tensor]]):
    """Dice of an all-positive image is 2f/(1 + f), so it is high wherever most of the real image counts as positive."""
    for one in layers:
        share = float(chromogen.fod(one["ihc"]))
        brown = torch.tensor([0.69, 0.54, 0.41]).view(1, 3, 1, 1).expand_as(one["ihc"])
        assert float(chromogen.dab_dice(brown, one["ihc"])) == pytest.approx(2 * share / (1 + share), abs=1e-12)


def test_on_real_images_untouched_h_and_e_has_a_high_dice(real: Path):
    """At the threshold of 0.1 most of every real IHC image is positive, and so is most of its H&E."""
    files = sorted((real / "bci/IHC/test").iterdir())
    for file in files:
        he, ihc = (
            tensor(np.asarray(Image.open(path).convert("RGB"))) for path in (real / "bci/HE/test" / file.name, file)
        )
        assert float(chromogen.fod(ihc)) > 0.7
        assert float(chromogen.dab_dice(he, ihc)) > 0.8 > 0.2 > float(chromogen.dab_r(he, ihc))
    assert files


def test_false_and_missed_stain_cancel_in_every_amount():
    real = torch.tensor([[[0.8, 0.8, 0.0, 0.0]]], dtype=torch.float64)
    pred = real.flip(2)
    for amount in (chromogen.iod, chromogen.miod, chromogen.fod):
        assert float(amount(pred) - amount(real)) == 0
    assert float(chromogen.dab_dice(pred, real)) == 0


# --- sets -------------------------------------------------------------------------------------------------------------


def features(rows: Tensor) -> Features:
    found = Features()
    found.add(rows)
    return found


def test_sets_do_not_see_which_image_belongs_to_which():
    rows = torch.randn(50, 20, generator=torch.Generator().manual_seed(0))
    shuffled = rows[torch.randperm(50, generator=torch.Generator().manual_seed(1))]
    assert fid(features(shuffled), features(rows)) == pytest.approx(0, abs=1e-9)
    assert kid(features(shuffled), features(rows)) <= 0


def test_few_images_are_far_apart_by_frechet_and_not_by_kernel():
    """Two draws from one Gaussian: the Fréchet distance falls with their number, the kernel distance is about 0."""
    generator = torch.Generator().manual_seed(0)

    def distances(n: int) -> tuple[float, float]:
        draws = [[features(torch.randn(n, 64, generator=generator)) for _ in range(2)] for _ in range(24)]
        return float(np.mean([fid(*pair) for pair in draws])), float(np.mean([kid(*pair) for pair in draws]))

    few, some, many = (distances(n) for n in (16, 64, 256))
    assert few[0] > 2 * some[0] > 4 * many[0] > 0
    assert max(abs(kernel) for _, kernel in (few, some, many)) < 0.05


# --- seams ------------------------------------------------------------------------------------------------------------


def toned(images: Tensor, feather: float = 0.0) -> Tensor:
    """Darker right of and below the seams."""
    factors = np.ones((SIDE, SIDE), np.float32)
    factors[256:] *= 0.985
    factors[:, 256:] *= 0.985
    return images * torch.from_numpy(gaussian_filter(factors, feather) if feather else factors)


def test_the_tiling_score_prefers_tiles_without_texture_to_the_truth(layers: list[dict[str, Tensor]]):
    truth = torch.cat([one["truth"] for one in layers])
    tiles, soft = toned(truth), toned(blurred(truth, 4))
    score = [float(tiling_score(images, *SEAMS).mean()) for images in (soft, truth, tiles)]
    assert score == sorted(score)
    excess = [float(seam_excess(images, *SEAMS).mean()) for images in (soft, tiles)]
    assert min(excess) > 0.005 > 2 * abs(float(seam_excess(truth, *SEAMS).mean())), "the excess sees both"
    noisy = truth + 0.05 * torch.randn(truth.shape, generator=torch.Generator().manual_seed(0))
    assert float(tiling_score(noisy, *SEAMS).mean()) > score[2], "noise without a seam is worse than seams"


def test_neither_sees_feathered_tiles(layers: list[dict[str, Tensor]]):
    truth = torch.cat([one["truth"] for one in layers])
    feathered = toned(truth, 16)
    assert float((feathered - truth).abs().mean()) > 0.003, "there is a difference of tone"
    for measure in (tiling_score, seam_excess):
        assert float(measure(feathered, *SEAMS).mean()) == pytest.approx(float(measure(truth, *SEAMS).mean()), abs=5e-4)


@settings(max_examples=20)
@given(st.integers(0, 2**31), st.floats(0.1, 1))
def test_the_energy_of_windows_is_quadratic_in_contrast(seed: int, contrast: float):
    """So a paler output scores better, and a plain one is perfect."""
    size, rng = Size(64, 64), np.random.default_rng(seed)
    full, pale, plain = (DirichletEnergy(size) for _ in range(3))
    for window in Lattice.over(size, 32, 16):
        pixels = rng.random((32, 32, 3), np.float32)
        full.add(window, pixels)
        pale.add(window, 1 - (1 - pixels) * np.float32(contrast))
        plain.add(window, np.ones_like(pixels))
    assert pale.energy == pytest.approx(contrast**2 * full.energy, rel=1e-4)
    assert plain.energy == 0
