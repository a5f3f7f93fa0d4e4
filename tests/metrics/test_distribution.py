"""Fréchet and kernel distances against torch-fidelity, SciPy and NumPy; the laws they keep; features of an encoder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import combinations, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import sqrtm
from torch import Tensor

from sheafstain.errors import UsageError
from sheafstain.metrics.distribution import EncoderFeatures, Features, fid, kid, kid_subsets


def of(rows: Tensor | np.ndarray, batch: int | None = None) -> Features:
    features = Features()
    for part in torch.as_tensor(rows).split(batch or max(len(rows), 1)):
        features.add(part)
    return features


def drawn(n: int, d: int, seed: int, shift: float = 0.0) -> Tensor:
    """Rectified and correlated, as pooled features are."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(d, d, generator=torch.Generator().manual_seed(d)) / math.sqrt(d)
    return (torch.randn(n, d, generator=generator) @ mixing + shift).relu()


def frechet_in_scipy(a: Tensor, b: Tensor) -> float:
    x, y = a.double().numpy(), b.double().numpy()
    cx, cy = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    return float(((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(cx + cy - 2 * np.real(sqrtm(cx @ cy))))


def kernel_in_numpy(a: Tensor, b: Tensor) -> float:
    x, y = a.double().numpy(), b.double().numpy()

    def k(u: np.ndarray, v: np.ndarray) -> float:
        return (u @ v / len(u) + 1) ** 3

    own = [np.mean([k(u, v) for (i, u), (j, v) in product(enumerate(z), repeat=2) if i != j]) for z in (x, y)]
    return float(sum(own) - 2 * np.mean([k(u, v) for u, v in product(x, y)]))


# --- the Fréchet distance -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "m", "d"), [(200, 150, 16), (64, 300, 40)])
def test_frechet_distance_is_that_of_scipy(n: int, m: int, d: int):
    a, b = drawn(n, d, 1), drawn(m, d, 2, shift=0.3)
    assert fid(of(a), of(b)) == pytest.approx(frechet_in_scipy(a, b), rel=1e-9)
    assert not of(a).singular


@pytest.mark.parametrize(("n", "m", "d"), [(300, 200, 32), (30, 40, 64), (40, 300, 64), (65, 64, 64)])
def test_frechet_distance_is_that_of_torch_fidelity(n: int, m: int, d: int):
    oracle = pytest.importorskip("torch_fidelity.metric_fid")
    a, b = drawn(n, d, 3), drawn(m, d, 4, shift=0.2)
    moments = [oracle.fid_features_to_statistics(rows.double()) for rows in (a, b)]
    expected = oracle.fid_statistics_to_metric(*moments, verbose=False)["frechet_inception_distance"]
    # Where a covariance is singular, torch-fidelity takes roots of eigenvalues that are rounding errors.
    assert fid(of(a), of(b)) == pytest.approx(expected, rel=1e-9 if min(n, m) > d else 1e-5)


def test_frechet_distance_by_hand():
    a = drawn(50, 8, 1).double()
    moved = torch.arange(8.0)
    assert fid(of(a), of(a + moved)) == pytest.approx(float(moved.square().sum()), rel=1e-6)
    # Of two normal distributions in one dimension: (μ₁ − μ₂)² + (σ₁ − σ₂)².
    x, y = torch.tensor([[0.0], [2.0]]), torch.tensor([[0.0], [6.0]])
    assert fid(of(x), of(y)) == pytest.approx((1 - 3) ** 2 + (math.sqrt(2) - math.sqrt(18)) ** 2, rel=1e-12)


def test_frechet_distance_survives_what_breaks_a_matrix_root():
    """Few images, a dead feature, all images alike, a large common offset."""
    rows = drawn(20, 100, 5)
    rows[:, :30] = 0
    assert fid(of(rows), of(rows)) == pytest.approx(0, abs=1e-10)
    alike = torch.ones(10, 100)
    assert fid(of(alike), of(alike)) == 0
    variance = float(rows.double().var(0).sum())
    expected = variance + float((rows.double().mean(0) - 1).square().sum())
    assert fid(of(rows), of(alike)) == pytest.approx(expected, rel=1e-12)
    a, b = drawn(60, 8, 6), drawn(70, 8, 7)
    a, b = (torch.round(x * 64) / 64 for x in (a, b))  # so that float32 holds the offset exactly
    assert fid(of(a + 1024), of(b + 1024)) == pytest.approx(fid(of(a), of(b)), rel=1e-8)


# --- the kernel distance --------------------------------------------------------------------------------------------


def test_kernel_distance_is_the_definition():
    a, b = drawn(9, 5, 1), drawn(13, 5, 2, shift=0.4)
    assert kid(of(a), of(b)) == pytest.approx(kernel_in_numpy(a, b), rel=1e-12)


def test_kernel_distance_is_that_of_torch_fidelity():
    oracle = pytest.importorskip("torch_fidelity.metric_kid")
    a, b = drawn(120, 32, 1), drawn(120, 32, 2, shift=0.1)
    polynomial = {"degree": 3, "gamma": None, "coef0": 1}
    known = {"kid_kernel": "poly"} | {f"kid_kernel_poly_{name}": value for name, value in polynomial.items()}
    expected = oracle.kid_features_to_metric(
        a.double(), b.double(), kid_subsets=1, kid_subset_size=120, rng_seed=1, verbose=False, **known
    )
    assert kid(of(a), of(b)) == pytest.approx(expected["kernel_inception_distance_mean"], rel=1e-9)


def test_kernel_distance_in_blocks(monkeypatch: pytest.MonkeyPatch):
    a, b = of(drawn(50, 6, 1)), of(drawn(70, 6, 2))
    whole = kid(a, b), kid_subsets(a, b, 5, 20, seed=1)
    monkeypatch.setattr("sheafstain.metrics.distribution._ROWS", 7)
    assert kid(a, b) == pytest.approx(whole[0], rel=1e-9)
    assert kid_subsets(a, b, 5, 20, seed=1) == pytest.approx(whole[1], rel=1e-9)


def test_subsets_are_subsets():
    """Of 4 and 5 images there are 40 pairs of subsets of 3: every draw is one of them."""
    a, b = drawn(4, 6, 1), drawn(5, 6, 2)
    possible = [
        kernel_in_numpy(a[list(i)], b[list(j)])
        for i, j in product(combinations(range(4), 3), combinations(range(5), 3))
    ]
    found = set()
    for seed in range(60):
        value, spread = kid_subsets(of(a), of(b), 1, 3, seed)
        assert spread == 0
        nearest = int(np.argmin(np.abs(np.array(possible) - value)))
        assert value == pytest.approx(possible[nearest], rel=1e-9)
        found.add(nearest)
    assert len(found) > 20, "the draws hardly differ"


def test_many_subsets_estimate_the_whole():
    a, b = drawn(60, 8, 1), drawn(60, 8, 2, shift=0.5)
    mean, spread = kid_subsets(of(a), of(b), 400, 20, seed=0)
    assert abs(mean - kid(of(a), of(b))) < 4 * spread / 20
    assert kid_subsets(of(a), of(b), 400, 20, seed=0) == (mean, spread)
    assert kid_subsets(of(a), of(b), 400, 20, seed=1) != (mean, spread)
    whole, none = kid_subsets(of(a), of(b), 3, 60, seed=0)
    assert whole == pytest.approx(kid(of(a), of(b)), rel=1e-9) and none == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("size", [1, 978, 1000])
def test_impossible_subsets_are_refused(size: int):
    features = of(drawn(977, 4, 1))
    with pytest.raises(UsageError, match=rf"subsets of {size} from 977 and 977 images: .* at most 977"):
        kid_subsets(features, features, 100, size, seed=0)
    with pytest.raises(UsageError, match="0 subsets"):
        kid_subsets(features, features, 0, 100, seed=0)


# --- laws of both ---------------------------------------------------------------------------------------------------


@given(st.integers(2, 12), st.integers(2, 12), st.integers(1, 8), st.integers(1, 12), st.integers(0, 10**6))
def test_order_and_batches_leave_no_trace(n: int, m: int, d: int, batch: int, seed: int):
    a, b = drawn(n, d, seed), drawn(m, d, seed + 1, shift=0.2)
    shuffled = a[torch.randperm(n, generator=torch.Generator().manual_seed(seed))]
    for distance in (fid, kid):
        value = distance(of(a), of(b))
        assert distance(of(a, batch), of(b, batch)) == value, "the batches"
        assert distance(of(shuffled), of(b)) == pytest.approx(value, rel=1e-9, abs=1e-12), "the order"
        assert distance(of(b), of(a)) == pytest.approx(value, rel=1e-9, abs=1e-12), "which set comes first"
    assert fid(of(a), of(b)) >= 0
    assert fid(of(a), of(shuffled)) == pytest.approx(0, abs=1e-10)
    assert kid(of(a), of(shuffled)) <= 1e-12


def test_one_image_or_none_is_undefined():
    many, one = of(drawn(5, 3, 1)), of(drawn(1, 3, 2))
    for distance, few in product((fid, kid), (one, Features())):
        assert math.isnan(distance(many, few)) and math.isnan(distance(few, many))


def test_what_is_kept():
    features = Features()
    assert (len(features), features.width) == (0, 0)
    source = drawn(3, 4, 1)
    features.add(source)
    features.add(source[:0])
    features.add(source[:1].half())
    source.zero_()
    assert (len(features), features.width, features.singular) == (4, 4, True)
    assert features.rows.shape == (4, 4) and features.rows.dtype == torch.float32 and features.rows.any()
    features.add(drawn(1, 4, 2))
    assert (len(features), features.singular) == (5, False)


def test_what_is_no_feature_is_refused():
    features = of(drawn(3, 4, 1))
    with pytest.raises(ValueError, match=r"\[n, 4\], not \[2, 5\]"):
        features.add(torch.zeros(2, 5))
    with pytest.raises(ValueError, match="not finite"):
        features.add(torch.full((1, 4), math.nan))
    with pytest.raises(ValueError, match="not of one network"):
        fid(features, of(drawn(3, 5, 1)))
    assert len(features) == 3


# --- features of an encoder -----------------------------------------------------------------------------------------


class Ruler:
    """An encoder whose CLS token is the mean colour and the corner pixel of a crop."""

    crop = 224

    def __init__(self) -> None:
        self.groups: list[Tensor] = []

    def encode(self, crops: Iterable[Tensor]) -> Iterator[SimpleNamespace]:
        for group in crops:
            assert group.dtype == torch.uint8 and group.shape[1:] == (224, 224, 3)
            self.groups.append(group)
            yield SimpleNamespace(cls=torch.cat([group.float().mean((1, 2)), group[:, 0, 0].float()], dim=1))


def test_encoder_features_cover_the_image_with_crops_snapped_to_its_border():
    encoder = Ruler()
    image = torch.randint(0, 256, (2, 3, 500, 300), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    features = EncoderFeatures(encoder)(image)
    assert features.shape == (2, 6) and features.dtype == torch.float32
    corners = list(product((0, 224, 276), (0, 76)))
    for pixels, group, feature in zip(image.permute(0, 2, 3, 1), encoder.groups, features, strict=True):
        crops = [pixels[y : y + 224, x : x + 224] for y, x in corners]
        assert torch.equal(group, torch.stack(crops))
        expected = torch.cat([torch.stack(crops).float().mean((0, 1, 2)), torch.stack(crops)[:, 0, 0].float().mean(0)])
        assert torch.allclose(feature, expected)
    assert torch.equal(EncoderFeatures(Ruler())(image.float() / 255), features), "bytes and floats are one image"


@pytest.mark.parametrize(("h", "w", "crops"), [(224, 224, 1), (448, 672, 6), (225, 224, 2), (1024, 1024, 25)])
def test_number_of_crops(h: int, w: int, crops: int):
    encoder = Ruler()
    EncoderFeatures(encoder)(torch.zeros(1, 3, h, w))
    assert [len(group) for group in encoder.groups] == [crops]


def test_a_small_image_is_mirrored():
    encoder = Ruler()
    image = torch.arange(100, dtype=torch.uint8).view(1, 1, 1, 100).expand(1, 3, 300, 100)
    EncoderFeatures(encoder)(image)
    expected = np.pad(np.arange(100), (0, 124), mode="symmetric")
    assert encoder.groups[0].shape == (2, 224, 224, 3)
    assert np.array_equal(encoder.groups[0][0, 17, :, 1].numpy(), expected)


def test_a_real_encoder_gives_the_mean_of_its_cls_tokens():
    from sheafstain.sheaf.encoders import load_encoder
    from sheafstain.sheaf.registry import list_encoders

    name = next(entry.id for entry in list_encoders() if entry.random)
    encoder = load_encoder(name, device="cpu")
    image = torch.rand(1, 3, 224, 300, generator=torch.Generator().manual_seed(1))
    crops = (image * 255).round().byte().permute(0, 2, 3, 1)
    (tokens,) = encoder.encode([torch.cat([crops[:, :, :224], crops[:, :, 76:]])])
    features = EncoderFeatures(encoder)(image)
    assert features.shape == (1, encoder.width)
    assert torch.allclose(features[0], tokens.cls.mean(0), atol=1e-5)
