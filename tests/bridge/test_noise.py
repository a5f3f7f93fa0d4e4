"""Philox against its published answers, the field against its law (one canvas), its numbers against a normal."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sheafstain.bridge.noise import CanvasNoise, FreshNoise, latent, noise_field, philox
from sheafstain.window import Window

ONES = 0xFFFFFFFF
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)


def field(window: Window, seed: int = 7, step: int = 1, channels: int = 3) -> torch.Tensor:
    return noise_field(torch.tensor([seed]), [window], step, channels)[0]


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (*PI, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_published_answers(counter: tuple[int, ...], key: tuple[int, ...], answer: tuple[int, ...]) -> None:
    c0, c1, c2, c3 = (torch.tensor(word) for word in counter)
    k0, k1 = (torch.tensor(word) for word in key)
    assert tuple(int(word) for word in philox((c0, c1, c2, c3), (k0, k1))) == answer


def plain_philox(counter: list[int], key: list[int]) -> list[int]:
    """With Python's own integers, one counter at a time."""
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (second >> 32) ^ counter[1] ^ key[0],
            second & ONES,
            (first >> 32) ^ counter[3] ^ key[1],
            first & ONES,
        ]
        key = [(key[0] + 0x9E3779B9) & ONES, (key[1] + 0xBB67AE85) & ONES]
    return counter


@given(st.lists(st.integers(0, ONES), min_size=6, max_size=6))
def test_any_counter_and_key(words: list[int]) -> None:
    c0, c1, c2, c3, k0, k1 = (torch.tensor([word]) for word in words)
    got = [int(word) for word in philox((c0, c1, c2, c3), (k0, k1))]
    assert got == plain_philox(words[:4], words[4:])


@pytest.mark.parametrize(("seed", "y", "x", "step"), [(7, 3, 5, 2), (-1, -3, 900_000, 4), (2**63 - 1, 0, -16, 0)])
def test_one_pixel_by_hand(seed: int, y: int, x: int, step: int) -> None:
    got = noise_field(torch.tensor([seed]), [Window(y, x, 1, 1)], step, channels=6)[0, :, 0, 0]
    normal = []
    for block in range(2):
        key = [seed & ONES, (seed >> 32) & ONES]
        words = plain_philox([x & ONES, y & ONES, step, block], key)
        for first, second in (words[:2], words[2:]):
            radius = np.sqrt(-2 * np.log((first + 0.5) / 2**32))
            normal += [radius * np.cos(2 * np.pi * second / 2**32), radius * np.sin(2 * np.pi * second / 2**32)]
    np.testing.assert_allclose(got.numpy(), normal[:6], rtol=1e-6)


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-300, 300),
    st.integers(-300, 300),
    st.integers(0, 20),
    st.integers(0, 20),
    st.integers(1, 20),
    st.integers(1, 20),
)
def test_every_window_cuts_its_part_of_one_field(seed: int, y: int, x: int, dy: int, dx: int, h: int, w: int) -> None:
    whole, part = Window(y, x, 40, 40), Window(y + dy, x + dx, h, w)
    expected = field(whole, seed)[..., *part.within(whole).slices]
    torch.testing.assert_close(field(part, seed), expected, rtol=0, atol=1e-6)


def test_a_batch_is_its_windows_one_by_one() -> None:
    windows = [Window(16 * i, -16 * i, 24, 40) for i in range(5)]
    seeds = torch.tensor([1, 1, 2, -3, 2**40])
    together = noise_field(seeds, windows, 3)
    alone = [field(window, seed, 3) for window, seed in zip(windows, seeds.tolist(), strict=True)]
    assert torch.equal(together, torch.stack(alone))


def test_seed_step_channel_and_place_all_matter() -> None:
    here = Window(0, 0, 16, 16)
    one = field(here)
    others = [field(here, seed=8), field(here, seed=7 + 2**32), field(here, step=2), field(here.shift(0, 1))]
    others += [one.roll(1, dims=0), one.transpose(1, 2)]
    assert all((one == other).float().mean() < 0.1 for other in others)  # a transposition keeps its diagonal


def test_the_field_is_standard_normal_and_uncorrelated() -> None:
    noise = field(Window(-100, 5000, 512, 512)).double()
    n = noise.numel()
    values = noise.flatten().numpy()
    # Five standard errors of each estimate, for n independent normal numbers.
    assert abs(values.mean()) < 5 / np.sqrt(n)
    assert abs(values.var() - 1) < 5 * np.sqrt(2 / n)
    assert abs(stats.skew(values)) < 5 * np.sqrt(6 / n)
    assert abs(stats.kurtosis(values)) < 5 * np.sqrt(24 / n)
    assert stats.kstest(values, "norm").pvalue > 1e-4
    later = field(Window(-100, 5000, 512, 512), step=2).double()
    neighbours = {
        "right": (noise[..., 1:], noise[..., :-1]),
        "below": (noise[:, 1:], noise[:, :-1]),
        "diagonal": (noise[:, 1:, 1:], noise[:, :-1, :-1]),
        "a cell away": (noise[..., 16:], noise[..., :-16]),
        "channels": (noise[1:], noise[:-1]),
        "steps": (noise, later),
        "squares": (noise[..., 1:].square() - 1, noise[..., :-1].square() - 1),
    }
    for name, (a, b) in neighbours.items():
        assert abs((a * b).mean()) < 5 * (a.std() * b.std()) / np.sqrt(a.numel()), name


def test_the_spectrum_of_the_field_is_flat() -> None:
    power = torch.fft.fft2(field(Window(0, 0, 256, 256)).double()).abs().square().mean(0) / 256**2
    rings = power.reshape(8, 32, 8, 32).mean((1, 3))
    assert (rings - 1).abs().max() < 0.1  # 3 · 1024 exponential numbers each: standard error 0.018


def test_the_latent_is_one_vector_for_each_image() -> None:
    seeds = torch.tensor([5, 6, 5])
    z = latent(seeds, 256)
    assert z.shape == (3, 256)
    assert torch.equal(z[0], z[2])
    assert not torch.equal(z[0], z[1])
    assert not torch.equal(z, latent(seeds, 256, draw=1))
    assert torch.equal(latent(seeds, 30), z[:, :30])
    corner = noise_field(seeds[:1], [Window(0, 0, 1, 64)], 0, channels=4)[0, :, 0].T.flatten()
    assert not (corner == z[0]).any()  # the latent is no part of the field
    many = latent(torch.arange(2000), 64).double()
    assert abs(many.mean()) < 5 / np.sqrt(many.numel())
    assert abs(many.var() - 1) < 5 * np.sqrt(2 / many.numel())
    correlation = np.corrcoef(many.numpy().T) - np.eye(64)
    assert np.abs(correlation).max() < 6 / np.sqrt(2000)


def test_sources_of_noise() -> None:
    windows = [Window(0, 0, 32, 32), Window(0, 16, 32, 32)]
    canvas = CanvasNoise(torch.tensor([3, 3]), windows, 8)
    assert torch.equal(canvas.field(1)[0, :, :, 16:], canvas.field(1)[1, :, :, :16])
    assert torch.equal(canvas.latent(0), canvas.latent(4))
    assert torch.equal(canvas.latent(0)[0], canvas.latent(0)[1])
    fresh = FreshNoise(torch.Generator().manual_seed(0), (2, 3, 32, 32), 8)
    assert fresh.field(1).shape == (2, 3, 32, 32) and fresh.latent(0).shape == (2, 8)
    assert not torch.equal(fresh.field(1), fresh.field(1))
    assert not torch.equal(fresh.latent(0), fresh.latent(0))


def test_windows_of_several_sizes_are_no_batch() -> None:
    with pytest.raises(ValueError, match="as many windows of one size"):
        noise_field(torch.tensor([1, 2]), [Window(0, 0, 8, 8), Window(0, 0, 8, 9)], 0)
    with pytest.raises(ValueError, match="as many windows"):
        noise_field(torch.tensor([1, 2]), [Window(0, 0, 8, 8)], 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_gpu_sees_the_same_field() -> None:
    windows, seeds = [Window(0, 0, 256, 256), Window(-7, 5, 256, 256)], torch.tensor([1, -2])
    torch.testing.assert_close(noise_field(seeds, windows, 2), noise_field(seeds, windows, 2, device="cuda").cpu())
    torch.testing.assert_close(latent(seeds, 256), latent(seeds, 256, device="cuda").cpu())
