"""PSNR, SSIM, LPIPS and DISTS against scikit-image, SciPy, torchmetrics and the original packages."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from scipy.ndimage import gaussian_filter
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import Tensor

from sheafstain.errors import SheafStainError
from sheafstain.hub import load_tensors
from sheafstain.metrics.fidelity import Dists, Lpips, psnr, ssim
from sheafstain.metrics.weights import MissingWeights


def tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.asarray(image.convert("RGB")).copy()).permute(2, 0, 1).float() / 255


def noisy(h: int = 70, w: int = 90, count: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    real = torch.rand(count, 3, h, w, generator=generator)
    return (real + 0.1 * torch.randn(real.shape, generator=generator)).clamp(0, 1), real


def hwc(image: Tensor) -> np.ndarray:
    return image.permute(1, 2, 0).double().numpy()


@pytest.fixture(scope="module")
def tile(real: Path) -> Image.Image:
    return Image.open(real / "bci/IHC/test/00052_test_3+.png").convert("RGB")


# --- PSNR -----------------------------------------------------------------------------------------------------------


def test_psnr_is_that_of_scikit_image():
    pred, real = noisy()
    expected = [peak_signal_noise_ratio(hwc(r), hwc(p), data_range=1) for p, r in zip(pred, real, strict=True)]
    assert psnr(pred, real).tolist() == pytest.approx(expected, abs=1e-6)


def test_psnr_by_hand():
    real = torch.zeros(3, 3, 8, 8)
    pred = torch.stack([real[0], real[0] + 0.1, real[0] + 1])
    assert psnr(pred, real).tolist() == pytest.approx([math.inf, 20.0, 0.0], abs=1e-5)


# --- SSIM -----------------------------------------------------------------------------------------------------------


def test_ssim_is_that_of_scikit_image_inside_a_plain_frame():
    pred, real = noisy()
    # scikit-image repeats the border pixel where ours does not: in a plain frame that makes no difference.
    pred, real = (torch.nn.functional.pad(images, (12,) * 4, value=0.5) for images in (pred, real))
    for p, r, ours in zip(pred, real, ssim(pred, real), strict=True):
        _, likeness = structural_similarity(
            hwc(r),
            hwc(p),
            data_range=1,
            channel_axis=2,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            full=True,
        )
        assert float(ours) == pytest.approx(likeness.mean(), abs=1e-9)


def test_ssim_is_that_of_scipy_at_the_border():
    pred, real = noisy(h=13, w=29, count=1)
    p, r = pred[0].double().numpy(), real[0].double().numpy()

    def blur(planes: np.ndarray) -> np.ndarray:
        return np.stack([gaussian_filter(plane, 1.5, mode="mirror", radius=5) for plane in planes])

    mp, mr = blur(p), blur(r)
    covariance = blur(p * r) - mp * mr
    variances = blur(p * p) - mp**2 + blur(r * r) - mr**2
    likeness = (2 * mp * mr + 1e-4) * (2 * covariance + 9e-4) / ((mp**2 + mr**2 + 1e-4) * (variances + 9e-4))
    assert float(ssim(pred, real)) == pytest.approx(likeness.mean(), abs=1e-12)


def test_ssim_and_psnr_are_those_of_torchmetrics(tile: Image.Image):
    functional = pytest.importorskip("torchmetrics.functional.image")
    real = torch.stack([tensor(tile.crop(box)) for box in ((0, 0, 300, 200), (500, 600, 800, 800))])
    pred = torch.stack([tensor(tile.crop(box)) for box in ((3, 0, 303, 200), (500, 602, 800, 802))])
    # In float64: its float32 loses 3e-5 to cancellation where a tile is bright and smooth.
    exact = pred.double(), real.double()
    similarity = functional.structural_similarity_index_measure(*exact, data_range=1.0, reduction="none")
    ratio = functional.peak_signal_noise_ratio(*exact, data_range=1.0, reduction="none", dim=(1, 2, 3))
    assert ssim(pred, real).tolist() == pytest.approx(similarity.tolist(), abs=1e-9)
    assert psnr(pred, real).tolist() == pytest.approx(ratio.tolist(), abs=1e-5)  # its ln 10 is a float32


def test_ssim_by_hand():
    black, white = torch.zeros(1, 3, 20, 20), torch.ones(1, 3, 20, 20)
    assert float(ssim(black, black)) == 1
    assert float(ssim(black, white)) == pytest.approx(1e-4 / (1 + 1e-4), abs=1e-12)  # (2·0·1 + C₁)/(0 + 1 + C₁)


def test_ssim_of_an_image_smaller_than_its_window_is_undefined():
    pred, real = noisy(h=10, w=64)
    assert ssim(pred, real).isnan().all() and ssim(pred, real).shape == (2,)
    pred, real = noisy(h=11, w=11)
    assert ssim(pred, real).isfinite().all()


def test_results_are_float64_and_do_not_depend_on_the_batch():
    pred, real = noisy(count=3)
    for measure in (psnr, ssim):
        together = measure(pred, real)
        assert together.dtype == torch.float64 and together.shape == (3,)
        assert torch.equal(together, torch.cat([measure(pred[i : i + 1], real[i : i + 1]) for i in range(3)]))


def test_what_is_no_pair_of_images_is_refused():
    pred, real = noisy()
    for measure in (psnr, ssim):
        with pytest.raises(ValueError, match=r"b, 3, h, w"):
            measure(pred, real[:, :, :-1])
        with pytest.raises(ValueError, match="8-bit"):
            measure((pred * 255).byte(), (real * 255).byte())


# --- LPIPS and DISTS ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pairs(tile: Image.Image) -> tuple[Tensor, Tensor]:
    """Three pairs of 96×80: two of a real tile with a blurred one, and noise."""
    boxes = [(0, 0, 96, 80), (400, 700, 496, 780)]
    crops = [tile.crop(box) for box in boxes]
    pred, real = noisy(h=80, w=96, count=1)
    blurred = torch.stack([tensor(crop.filter(ImageFilter.GaussianBlur(2))) for crop in crops])
    return torch.cat([blurred, pred]), torch.cat([torch.stack([tensor(crop) for crop in crops]), real])


@pytest.fixture
def torchvision_backbones(backbones: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision's constructors as the oracles call them, with the ImageNet weights from local files."""
    from torchvision import models

    def build(name: str):
        with torch.device("meta"):
            network = getattr(models, name)(weights=None)
        state = load_tensors(backbones / f"{name}_features_imagenet_torchvision.safetensors")
        network.features.load_state_dict({k.removeprefix("features."): v for k, v in state.items()}, assign=True)
        return SimpleNamespace(features=network.features)

    built = {name: build(name) for name in ("alexnet", "vgg16")}
    for name in built:
        monkeypatch.setattr(models, name, lambda *_, name=name, **__: built[name])


@pytest.mark.parametrize("net", ["alex", "vgg"])
def test_lpips_is_the_original(
    net: str, backbones: Path, torchvision_backbones: None, pairs: tuple[Tensor, Tensor]
) -> None:
    lpips = pytest.importorskip("lpips")
    original = lpips.LPIPS(net=net, version="0.1", verbose=False)
    with torch.no_grad():
        expected = original(*pairs, normalize=True).flatten().tolist()
    ours = Lpips(net, backbones)(*pairs)
    assert ours.dtype == torch.float64
    assert ours.tolist() == pytest.approx(expected, abs=2e-6)
    assert max(expected) - min(expected) > 0.1, "the pairs tell nothing apart"


@pytest.mark.parametrize("net", ["alex", "vgg"])
def test_lpips_is_that_of_torchmetrics(
    net: str, backbones: Path, torchvision_backbones: None, pairs: tuple[Tensor, Tensor]
) -> None:
    functional = pytest.importorskip("torchmetrics.functional.image")
    expected = functional.learned_perceptual_image_patch_similarity(
        *pairs, net_type=net, normalize=True, reduction="none"
    )
    assert Lpips(net, backbones)(*pairs).tolist() == pytest.approx(expected.flatten().tolist(), abs=1e-4)


def test_dists_is_the_original(
    backbones: Path, torchvision_backbones: None, pairs: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = pytest.importorskip("DISTS_pytorch.DISTS_pt")
    monkeypatch.setattr("sys.prefix", str(backbones / "dists"))  # where it looks for its weights.pt
    expected = original.DISTS()(*pairs).tolist()
    assert Dists(backbones)(*pairs).tolist() == pytest.approx(expected, abs=5e-6)
    assert max(expected) - min(expected) > 0.1, "the pairs tell nothing apart"


def test_the_check_values_of_a_blurred_tile(backbones: Path, tile: Image.Image):
    crop = tile.crop((0, 0, 256, 256))
    pred, real = tensor(crop.filter(ImageFilter.BoxBlur(4)))[None], tensor(crop)[None]
    assert float(Lpips("vgg", backbones)(pred, real)) == pytest.approx(0.44, abs=0.02)
    assert float(Lpips("alex", backbones)(pred, real)) == pytest.approx(0.54, abs=0.03)


def test_equal_images_are_no_distance_apart(backbones: Path, pairs: tuple[Tensor, Tensor]):
    plain = torch.stack([torch.zeros(3, 64, 64), torch.ones(3, 64, 64), torch.full((3, 64, 64), 0.3)])
    for measure in (Lpips("alex", backbones), Lpips("vgg", backbones), Dists(backbones)):
        for images in (pairs[1], plain):
            assert measure(images, images).tolist() == [0.0, 0.0, 0.0]


def test_perceptual_distances_are_symmetric_and_do_not_depend_on_the_batch(
    backbones: Path, pairs: tuple[Tensor, Tensor]
) -> None:
    pred, real = pairs
    for measure in (Lpips("alex", backbones), Dists(backbones)):
        together = measure(pred, real)
        apart = torch.cat([measure(pred[i : i + 1], real[i : i + 1]) for i in range(3)])
        assert together.tolist() == pytest.approx(apart.tolist(), abs=1e-6)
        assert together.tolist() == pytest.approx(measure(real, pred).tolist(), abs=1e-6)


@pytest.mark.parametrize(("net", "least"), [("alex", 31), ("vgg", 16)])
def test_an_image_too_small_for_the_network_is_undefined(net: str, least: int, backbones: Path):
    measure = Lpips(net, backbones)
    assert measure(*noisy(h=least - 1, w=64)).isnan().all()
    assert measure(*noisy(h=least, w=least)).isfinite().all()
    assert Dists(backbones)(*noisy(h=1, w=1)).isfinite().all()


def test_missing_weights_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SHEAFSTAIN_WEIGHTS", str(tmp_path / "ours"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    for build in (lambda: Lpips("alex", tmp_path), lambda: Lpips("vgg", tmp_path), lambda: Dists(tmp_path)):
        with pytest.raises(MissingWeights, match=r"(alexnet|vgg16).*\.pth is not in .*ours.*fetch https://") as caught:
            build()
        assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)
        assert isinstance(caught.value, SheafStainError)
