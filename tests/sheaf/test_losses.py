"""The paper's losses against NumPy in double precision, and the invariance each of them claims."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from sheafstain.sheaf.encoders import load_encoder
from sheafstain.sheaf.losses import cocycle_loss, dab_loss, fourier_loss, high_pass, sheaf_loss, stain_align_loss
from sheafstain.stain import chromogen_on_white
from sheafstain.window import Window

REF, SOUTH, EAST = Window(64, 64, 32, 32), Window(80, 64, 32, 32), Window(64, 48, 32, 32)


def images(b: int = 2, h: int = 32, w: int = 32, seed: int = 0) -> Tensor:
    return torch.rand(b, 3, h, w, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def gluing(first: np.ndarray, second: np.ndarray, alpha: float) -> float:
    """One pair, already cut to its overlap, [3, h, w]."""
    tone = np.abs(first.mean((1, 2)) - second.mean((1, 2))).mean()
    return float(tone + alpha * np.abs(first - second).mean())


@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_sheaf_loss_by_hand(alpha: float) -> None:
    first, second = images(seed=1), images(seed=2)
    a, b = first.numpy(), second.numpy()
    expected = np.mean([gluing(a[0][:, 16:], b[0][:, :16], alpha), gluing(a[1][:, :, :16], b[1][:, :, 16:], alpha)])
    assert sheaf_loss(first, second, [REF, REF], [SOUTH, EAST], alpha).item() == pytest.approx(expected)
    # The same displacement for the batch takes the other path through the code.
    expected = np.mean([gluing(a[n][:, 16:], b[n][:, :16], alpha) for n in range(2)])
    assert sheaf_loss(first, second, [REF] * 2, [SOUTH] * 2, alpha).item() == pytest.approx(expected)


def test_cocycle_loss_is_the_two_other_pairs() -> None:
    ref, south, east = (images(1, seed=seed) for seed in range(3))
    r, s, e = (value[0].numpy() for value in (ref, south, east))
    # ref and east share columns 0…15 of ref; south and east the rows 16… and columns 48…79 of the canvas.
    expected = gluing(r[:, :, :16], e[:, :, 16:], 1) + gluing(s[:, :16, :16], e[:, 16:, 16:], 1)
    got = cocycle_loss((ref, south, east), ([REF], [SOUTH], [EAST]))
    assert got.item() == pytest.approx(expected)


offsets = st.integers(-31, 31)


@given(offsets, offsets, st.integers(0, 1000))
def test_zero_if_and_only_if_equal_on_the_overlap(dy: int, dx: int, seed: int) -> None:
    """Windows cut from one picture agree; a change outside the overlap does not matter, one inside does."""
    canvas = images(1, 96, 96, seed)
    there = REF.shift(dy, dx)
    frame = Window(32, 32, 96, 96)
    first, second = (canvas[..., *window.within(frame).slices].clone() for window in (REF, there))
    overlap = REF.overlap(there).within(there).slices
    shared = second[..., *overlap].clone()
    second += 1
    second[..., *overlap] = shared
    assert sheaf_loss(first, second, [REF], [there]).item() == 0
    second[0, seed % 3, overlap[0].start, overlap[1].start] += 0.01
    assert sheaf_loss(first, second, [REF], [there]).item() > 0


def test_a_shift_of_tone_counts_in_both_terms() -> None:
    first = images(1)
    assert sheaf_loss(first, first + 0.25, [REF], [REF]).item() == pytest.approx(0.5)
    assert sheaf_loss(first, first + 0.25, [REF], [REF], alpha=0).item() == pytest.approx(0.25)


def test_windows_that_do_not_fit_are_refused() -> None:
    first = images(1)
    with pytest.raises(ValueError, match="no pixel in common"):
        sheaf_loss(first, first, [REF], [REF.shift(32, 0)])
    with pytest.raises(ValueError, match="do not describe"):
        sheaf_loss(first, first, [REF], [Window(64, 64, 16, 32)])
    with pytest.raises(ValueError, match="do not describe"):
        sheaf_loss(first, first, [REF, REF], [REF, REF])


def spectrum(rgb: np.ndarray) -> np.ndarray:
    return np.log1p(np.abs(np.fft.fftshift(np.fft.fft2(rgb.mean(0)))))


@pytest.mark.parametrize(("h", "w"), [(32, 32), (24, 40), (31, 31)])
def test_fourier_loss_on_the_shifted_spectrum(h: int, w: int) -> None:
    generated, target = images(2, h, w, 1), images(2, h, w, 2)
    # Frequencies of the shifted spectrum in cycles per pixel, from the middle outwards.
    y, x = ((np.arange(side) - side // 2) / side for side in (h, w))
    radius = np.sqrt(y[:, None] ** 2 + x[None] ** 2)
    mask = radius > 0.25 * radius.max()
    expected = [
        np.abs(mask * (spectrum(a) - spectrum(b))).mean()
        for a, b in zip(generated.numpy(), target.numpy(), strict=True)
    ]
    assert fourier_loss(generated, target).item() == pytest.approx(np.mean(expected))


def test_the_mask_drops_the_mean_and_keeps_nine_tenths() -> None:
    keep = high_pass(256, 256)
    assert not keep[0, 0]
    assert keep[128, 128] and keep[0, 128]
    assert keep.double().mean().item() == pytest.approx(0.902, abs=1e-3)
    frequency = torch.fft.fftfreq(256)[keep[0]].abs().min()
    assert frequency.item() == pytest.approx(46 / 256)  # the first above 0.25 · √½ = 0.1768 cycles per pixel


def test_fourier_loss_sees_no_shift_no_brightness_and_no_slow_change() -> None:
    generated, target = images(1, seed=1), images(1, seed=2)
    plain = fourier_loss(generated, target).item()
    shifted = fourier_loss(generated.roll((5, 11), (-2, -1)), target.roll((-3, 8), (-2, -1)))
    assert shifted.item() == pytest.approx(plain)
    wave = 0.1 * torch.sin(2 * torch.pi * 3 * torch.arange(32, dtype=torch.float64) / 32)
    assert fourier_loss(generated + 0.2 + wave, target).item() == pytest.approx(plain)
    assert fourier_loss(generated, generated.roll(7, -1)).item() == pytest.approx(0, abs=1e-12)
    faint = fourier_loss(0.5 * generated, generated).item()
    assert faint > 0.1  # less contrast is less edge


def p90(rgb: np.ndarray) -> float:
    """Convention M2: decadic density, two stains by least squares, softplus; the strongest tenth capped at p99."""
    density = -np.log10((np.clip(rgb, 1e-6, 1) + 1e-6) / (1 + 1e-6)).reshape(3, -1)
    stains = np.array([(0.268, 0.570, 0.776), (0.650, 0.704, 0.286)])
    amount = np.linalg.lstsq(stains.T, density, rcond=None)[0][0]
    dab = np.log1p(np.exp(5 * amount)) / 5
    high, top = np.percentile(dab, (90, 99))
    return float(np.minimum(dab, top)[dab >= high].mean())


def test_dab_loss_by_hand() -> None:
    generated, target = images(3, seed=1) ** 2, images(3, seed=2)
    expected = np.mean([abs(p90(a) - p90(b)) for a, b in zip(generated.numpy(), target.numpy(), strict=True)])
    assert dab_loss(generated, target).item() == pytest.approx(expected, rel=1e-6)


def test_dab_loss_sees_no_place_and_has_no_gradient_to_the_target() -> None:
    generated, target = images(2, seed=1), images(2, seed=2)
    plain = dab_loss(generated, target).item()
    assert dab_loss(generated.roll((5, 11), (-2, -1)), target.flip(-1)).item() == pytest.approx(plain)
    generated.requires_grad_()
    target.requires_grad_()
    dab_loss(generated, target).backward()
    assert target.grad is None and generated.grad is not None and generated.grad.any()


def test_unstained_output_is_still_pulled_towards_stain() -> None:
    white = torch.full((1, 3, 16, 16), 0.95, requires_grad=True)
    brown = torch.tensor([0.45, 0.3, 0.2])[:, None, None].expand(1, 3, 16, 16)
    dab_loss(white, brown).backward()
    assert white.grad is not None
    assert (white.grad[:, 2] > 0).any()  # less blue, more brown


def tokens(images: Tensor) -> Tensor:
    """Stands in for an encoder of patch 16: mean and spread of each patch, [b, 196, 6]."""
    assert images.shape[1:] == (3, 224, 224)
    patches = images.unfold(2, 16, 16).unfold(3, 16, 16).flatten(4)
    both = torch.cat((patches.mean(-1), patches.std(-1)), dim=1)
    return both.flatten(2).transpose(1, 2)


def test_stain_align_by_hand() -> None:
    generated, target = images(2, 256, 256, 1), images(2, 256, 256, 2)

    def features(rgb: np.ndarray) -> np.ndarray:
        at = (np.arange(224) + 0.5) * 256 / 224 - 0.5
        low, share = np.floor(at).astype(int), (at - np.floor(at))
        rows = rgb[:, low] * (1 - share)[:, None] + rgb[:, low + 1] * share[:, None]
        small = rows[:, :, low] * (1 - share) + rows[:, :, low + 1] * share
        patches = small.reshape(3, 14, 16, 14, 16).transpose(1, 3, 0, 2, 4).reshape(196, 3, 256)
        return np.concatenate((patches.mean(-1), patches.std(-1, ddof=1)), axis=1)

    pairs = zip(chromogen_on_white(generated).numpy(), chromogen_on_white(target).numpy(), strict=True)
    expected = np.mean([np.abs(features(a) - features(b)).mean() for a, b in pairs])
    assert stain_align_loss(generated, target, tokens).item() == pytest.approx(expected)


def test_stain_align_looks_at_brown_alone_and_has_no_gradient_to_the_target() -> None:
    glass = torch.ones(1, 3, 256, 256)
    blue = torch.tensor([0.35, 0.3, 0.6])[:, None, None].expand_as(glass)  # haematoxylin
    brown = torch.tensor([0.45, 0.3, 0.2])[:, None, None].expand_as(glass).clone().requires_grad_()
    assert stain_align_loss(blue, glass, tokens).item() < 0.05 < stain_align_loss(brown, glass, tokens).item()
    target = images(1, 256, 256).float().requires_grad_()
    stain_align_loss(brown, target, tokens).backward()
    assert target.grad is None and brown.grad is not None and brown.grad.any()


def test_stain_align_through_an_encoder() -> None:
    encoder = load_encoder("random-tiny", device="cpu")
    generated = images(1, 256, 256, 1).float().requires_grad_()
    loss = stain_align_loss(generated, images(1, 256, 256, 2).float(), lambda rgb: encoder.differentiable(rgb).patch)
    loss.backward()
    assert loss > 0 and generated.grad is not None and generated.grad.any()
    assert all(parameter.grad is None for parameter in encoder.model.parameters())
    assert stain_align_loss(generated, generated, lambda rgb: encoder.differentiable(rgb).patch) == 0


def test_gradients() -> None:
    first, second = images(1, 4, 4, 1).requires_grad_(), images(1, 4, 4, 2).requires_grad_()
    small = [Window(0, 0, 4, 4)], [Window(2, 1, 4, 4)]
    assert gradcheck(lambda a, b: sheaf_loss(a, b, *small), (first, second))
    assert gradcheck(partial(fourier_loss, target=second.detach()), (first,))
    assert gradcheck(partial(dab_loss, target=second.detach()), (first,))


def test_autocast_changes_nothing() -> None:
    a, b = images(1, 256, 256, 1).float(), images(1, 256, 256, 2).float()
    here = [Window(0, 0, 256, 256)], [Window(0, 64, 256, 256)]
    losses = [lambda: sheaf_loss(a, b, *here), lambda: fourier_loss(a, b), lambda: dab_loss(a, b)]
    for loss in (*losses, lambda: stain_align_loss(a, b, tokens)):
        with torch.autocast("cpu", torch.bfloat16):
            inside = loss()
        assert torch.equal(inside, loss()) and inside.dtype == torch.float32
    assert sheaf_loss(a.bfloat16(), b.bfloat16(), *here).dtype == torch.float32
