"""Blocks against plain NumPy in double precision: nothing here calls torch for the expected numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import nn

from sheafstain.nets.blocks import (
    BlurPool,
    BlurUpsample,
    BridgeBlock,
    Normalise,
    ResidualBlock,
    StyleMapping,
    TimeEmbedding,
    initialise,
    initialise_embedding,
)

Array = np.ndarray


def conv(x: Array, layer: nn.Conv2d) -> Array:
    """x [c, h, w], no padding, stride 1."""
    weight, bias = array(layer.weight), array(layer.bias)
    patches = sliding_window_view(x, weight.shape[-2:], axis=(1, 2))
    return np.einsum("chwij,ocij->ohw", patches, weight) + bias[:, None, None]


def linear(x: Array, layer: nn.Linear) -> Array:
    return array(layer.weight) @ x + array(layer.bias)


def norm(x: Array) -> Array:
    return (x - x.mean((1, 2), keepdims=True)) / np.sqrt(x.var((1, 2), keepdims=True) + 1e-5)


def reflect(x: Array) -> Array:
    return np.pad(x, ((0, 0), (1, 1), (1, 1)), mode="reflect")


def leaky(x: Array) -> Array:
    return np.where(x > 0, x, 0.2 * x)


def bilinear(x: Array, h: int, w: int) -> Array:
    """Interpolation between cell centres, held at the border, one axis after the other."""
    for axis, size in ((1, h), (2, w)):
        old = x.shape[axis]
        at = np.clip((np.arange(size) + 0.5) * old / size - 0.5, 0, old - 1)
        low = np.floor(at).astype(int)
        high = np.minimum(low + 1, old - 1)
        share = (at - low).reshape((-1, 1) if axis == 1 else (1, -1))
        x = np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share
    return x


def array(tensor: torch.Tensor | None) -> Array:
    assert tensor is not None
    return tensor.detach().numpy()


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(("h", "w"), [(8, 12), (7, 10), (255, 5)])
def test_blur_pool_by_hand(h: int, w: int) -> None:
    x = random(2, 3, h, w)
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (1, 1), (1, 1)), mode="reflect")
    expected = np.zeros((2, 3, (h + 1) // 2, (w + 1) // 2))
    for i, down in enumerate((1, 2, 1)):
        for j, across in enumerate((1, 2, 1)):
            expected += down * across / 16 * padded[:, :, i : i + h : 2, j : j + w : 2]
    np.testing.assert_allclose(BlurPool().double()(x).numpy(), expected, atol=1e-14)


def test_blur_pool_leaves_nothing_in_a_checkpoint() -> None:
    assert not BlurPool().state_dict()


@pytest.mark.parametrize(("h", "w"), [(4, 6), (5, 3), (1, 2)])
def test_blur_upsample_is_the_transposed_convolution(h: int, w: int) -> None:
    x = random(1, 2, h, w)
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    kernel = np.outer((1, 3, 3, 1), (1, 3, 3, 1)) / 64 * 4
    full = np.zeros((1, 2, 2 * (h + 2) + 2, 2 * (w + 2) + 2))  # each pixel stamps the kernel, two apart
    for i in range(h + 2):
        for j in range(w + 2):
            full[:, :, 2 * i : 2 * i + 4, 2 * j : 2 * j + 4] += padded[:, :, i : i + 1, j : j + 1] * kernel
    inside = full[:, :, 2:-2, 2:-2]  # padding 2 of the transposed convolution
    expected = inside[:, :, 1:-1, 1:-1]  # and the crop to twice the size
    np.testing.assert_allclose(BlurUpsample()(x).numpy(), expected, atol=1e-14)


def test_time_embedding_by_hand() -> None:
    embedding = TimeEmbedding(8, 5).double()
    index = 3
    angles = [index * math.exp(-math.log(10000) * k / 3) for k in range(4)]
    sinusoid = np.array([*map(math.sin, angles), *map(math.cos, angles)])
    first, _, second, _ = embedding.layers
    assert isinstance(first, nn.Linear) and isinstance(second, nn.Linear)
    expected = leaky(linear(leaky(linear(sinusoid, first)), second))
    embedding.layers.to(torch.float64)
    got = embedding.layers(torch.tensor(sinusoid)[None])[0]
    np.testing.assert_allclose(array(got), expected, atol=1e-12)
    np.testing.assert_allclose(array(embedding.float()(torch.tensor([index])))[0], expected, atol=1e-6)


def test_a_time_embedding_too_narrow_is_refused() -> None:
    with pytest.raises(ValueError, match="even width"):
        TimeEmbedding(2, 8)


def test_the_mapping_sees_the_direction_of_z_alone() -> None:
    mapping = StyleMapping(16).double()
    z = random(3, 16)
    torch.testing.assert_close(mapping(z), mapping(7 * z), rtol=1e-6, atol=1e-9)
    assert len([layer for layer in mapping.layers if isinstance(layer, nn.Linear)]) == 4


def test_residual_block_by_hand() -> None:
    block, x = ResidualBlock(6).double(), random(1, 6, 7, 9)
    h = np.maximum(norm(conv(reflect(x[0].numpy()), block.first)), 0)
    expected = x[0].numpy() + norm(conv(reflect(h), block.second))
    np.testing.assert_allclose(array(block(x))[0], expected, atol=1e-12)


@pytest.mark.parametrize("as_released", [False, True])
def test_bridge_block_by_hand(as_released: bool) -> None:
    block = BridgeBlock(6, 5, as_released).double()  # the constructor's own weights: nothing is zero
    x, time, style, M, c_n = random(2, 6, 8, 12), random(2, 6), random(2, 6), random(2, 5, 2, 3), random(2, 5)
    got = array(block(x, time, style, M, c_n))
    for n in range(2):
        image = x[n].numpy()
        h = norm(image) if as_released else norm(conv(reflect(image), block.first))
        if not as_released:
            h = h + linear(time[n].numpy(), block.time)[:, None, None]
        # The paper projects the enlarged map (Eq. 3); the block projects first, which is the same.
        h = h + conv(bilinear(M[n].numpy(), 8, 12), block.spatial)
        h = h + linear(c_n[n].numpy(), block.cls)[:, None, None]
        gamma, beta = np.split(linear(style[n].numpy(), block.style), 2)
        h = np.maximum(gamma[:, None, None] * h + beta[:, None, None], 0)
        expected = image + norm(conv(reflect(h), block.second))
        np.testing.assert_allclose(got[n], expected, atol=1e-12)


def test_a_vector_before_instance_norm_would_be_lost() -> None:
    """Why the conditioning enters after it (D10)."""
    block, x = BridgeBlock(6).double(), random(1, 6, 8, 8)
    h, shifted = (block.norm(block.first(x + shift)) for shift in (0, random(1, 6, 1, 1)))
    torch.testing.assert_close(h, shifted)


def test_initialise_draws_xavier_normal_and_clears_biases() -> None:
    net = nn.Sequential(nn.Conv2d(64, 128, 3), nn.Linear(256, 256), nn.ConvTranspose2d(64, 64, 3), nn.BatchNorm2d(4096))
    initialise(net)
    fans = ((64 + 128) * 9, 512, 128 * 9)
    for layer, fan in zip(list(net)[:3], fans, strict=True):
        assert isinstance(layer, nn.Conv2d | nn.Linear | nn.ConvTranspose2d)
        assert layer.weight.std().item() == pytest.approx(0.02 * math.sqrt(2 / fan), rel=0.03)
        assert layer.bias is not None and not layer.bias.any()
    assert (net[3].weight.mean().item(), net[3].weight.std().item()) == pytest.approx((1, 0.02), rel=0.05)
    initialise(net, "normal")
    assert net[0].weight.std().item() == pytest.approx(0.02, rel=0.03)


def test_released_initialisation_silences_the_latent_and_ours_does_not() -> None:
    mapping, z = StyleMapping(256), torch.randn(64, 256)
    initialise(mapping)
    assert mapping(z).std() < 1e-6
    initialise_embedding(mapping.layers)
    assert 0.3 < mapping(z).std() < 3


@pytest.mark.parametrize("size", [(8, 8), (9, 14), (1, 5)])
def test_upsampling_written_out_is_the_interpolation(size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
    module, weight = BlurUpsample(), torch.randn(2, 3, 2 * size[0], 2 * size[1], dtype=torch.float64)
    one, other = module(x), module.written_out(x)
    assert torch.allclose(one, other, atol=1e-12)
    (g1,), (g2,) = (torch.autograd.grad((y * weight).sum(), x) for y in (one, other))
    assert torch.allclose(g1, g2, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_instance_norm_written_out_is_torchs(dtype: torch.dtype) -> None:
    x = (3 * torch.randn(2, 5, 7, 9) + 40).to(dtype).contiguous(memory_format=torch.channels_last)
    out = Normalise.apply(x)
    assert out.dtype == dtype and out.is_contiguous(memory_format=torch.channels_last)
    true = torch.nn.functional.instance_norm(x.double())
    assert torch.allclose(out.double(), true, atol={torch.bfloat16: 2e-2, torch.float32: 1e-4}.get(dtype, 1e-12))


def test_the_gradient_of_the_norm_is_torchs() -> None:
    x = (2 * torch.randn(2, 3, 6, 7, dtype=torch.float64) + 5).requires_grad_()
    weight = torch.randn(2, 3, 6, 7, dtype=torch.float64)
    outs = Normalise.apply(x), torch.nn.functional.instance_norm(x)
    mine, theirs = (torch.autograd.grad((out * weight).sum(), x)[0] for out in outs)
    assert torch.allclose(mine, theirs, atol=1e-10)
    assert torch.autograd.gradcheck(Normalise.apply, (x,))
