"""The audit against geometry done by hand, against plain NumPy, and against encoders whose answer is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from sheafstain.errors import SheafStainError, UsageError
from sheafstain.sheaf.audit import (
    DIRECTIONS,
    STRIDES,
    AuditImage,
    ImageAudit,
    Protocol,
    _Running,
    audit,
    inside,
    plan,
    restrict,
)
from sheafstain.sheaf.encoders import Encoder, load_encoder
from sheafstain.sheaf.registry import find_encoder
from sheafstain.window import Size, Window

CPU = torch.device("cpu")


class Network(nn.Module):
    """A CLS token of zeros and the patch tokens that ``patches`` makes of the patches' mean colours [n, 3, g, g]."""

    num_prefix_tokens = 1

    def __init__(self, patches: Callable[[Tensor], Tensor] | nn.Module, pitch: int = 16) -> None:
        super().__init__()
        self.patches, self.pitch = patches, pitch

    def forward_features(self, x: Tensor) -> Tensor:
        tokens = self.patches(functional.avg_pool2d(x, self.pitch)).flatten(2).transpose(1, 2)
        return torch.cat([torch.zeros_like(tokens[:, :1]), tokens], 1)


def encoder_of(patches: Callable[[Tensor], Tensor], width: int = 3, pitch: int = 16, batch: int = 16) -> Encoder:
    entry = replace(
        find_encoder("random-tiny"),
        id="test",
        width=width,
        pitch=pitch,
        normalisation=((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
        seed=None,
    )
    return Encoder(Network(patches, pitch), entry, weights_hash="0" * 64, device=CPU, batch=batch)


def local(x: Tensor) -> Tensor:
    return x


def contaminated(x: Tensor) -> Tensor:
    """Each token is its patch minus half of the mean of the crop: the simplest context contamination."""
    return x - 0.5 * x.mean((2, 3), keepdim=True)


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Noise of two scales, so that neither patches nor crops are alike."""
    draw = np.random.default_rng(seed)
    coarse = draw.integers(0, 256, (-(-height // 100), -(-width // 100), 3)).repeat(100, 0).repeat(100, 1)
    fine = draw.integers(0, 256, (-(-height // 8), -(-width // 8), 3)).repeat(8, 0).repeat(8, 1)
    return ((coarse[:height, :width] + fine[:height, :width]) // 2).astype(np.uint8)


def measure(encoder: Encoder, *pictures: np.ndarray, heat: bool = False, **protocol: object) -> list[ImageAudit]:
    images = [AuditImage(str(i), "H&E", Path(f"{i}.png")) for i in range(len(pictures))]
    return list(
        audit(
            images,
            encoder,
            Protocol(**protocol),  # type: ignore[arg-type]
            heat=lambda image: heat,
            read=lambda path: pictures[int(path.stem)],
        )
    )


def cosines(result: ImageAudit) -> np.ndarray:
    return result.cosine / np.maximum(result.tokens, 1)


# -- restriction -------------------------------------------------------------------------------------------------------

windows = st.builds(Window, st.integers(-40, 300), st.integers(-40, 300), st.integers(0, 260), st.integers(0, 260))


@given(window=windows, y=st.integers(-30, 60), x=st.integers(-30, 60), pitch=st.sampled_from([14, 16]))
def test_a_token_is_inside_where_its_centre_is(window: Window, y: int, x: int, pitch: int) -> None:
    crop = Window(y, x, 224, 224)
    rows, columns = inside(crop, window, pitch)
    centres = (np.arange(224 // pitch) + 0.5) * pitch
    assert (
        list(range(rows.start, rows.stop))
        == np.flatnonzero((y + centres >= window.y) & (y + centres < window.bottom)).tolist()
    )
    assert (
        list(range(columns.start, columns.stop))
        == np.flatnonzero((x + centres >= window.x) & (x + centres < window.right)).tolist()
    )


@given(window=windows, inner=windows, pitch=st.sampled_from([14, 16]))
def test_restriction_composes(window: Window, inner: Window, pitch: int) -> None:
    """ρ from U to V is ρ from U to W and then to V, for V ⊂ W (paper, presheaf and locality)."""
    crop, grid = Window(0, 0, 224, 224), 224 // pitch
    inner = inner.overlap(window)
    tokens = torch.arange(float(grid * grid)).reshape(grid, grid, 1)
    direct, tile = restrict(tokens, crop, inner, pitch)
    stepwise, other = restrict(*restrict(tokens, crop, window, pitch), inner, pitch)
    assert torch.equal(direct, stepwise)
    assert tile == other or tile.empty


def test_the_restriction_of_a_whole_overlap_is_the_papers_token_count() -> None:
    crop = Window(0, 0, 224, 224)
    for stride, positions in ((80, 9), (160, 4), (32, 12), (192, 2)):  # "#Pos" of the paper's second table
        rows, columns = inside(crop, crop.overlap(crop.shift(0, stride)), 16)
        assert (rows.stop - rows.start, columns.stop - columns.start) == (14, positions)


# -- which crops and pairs ---------------------------------------------------------------------------------------------


def test_the_crops_and_pairs_of_a_1024_px_image() -> None:
    planned = plan(Size(1024, 1024), STRIDES, Protocol(), "x")
    corners = {(y, x) for s in STRIDES for y in range(0, 801, s) for x in range(0, 801, s)}
    assert {(y, x) for y, xs in planned.rows.items() for x in xs} == corners
    assert len(corners) == 806
    for index, (stride, side) in enumerate(zip(STRIDES, (26, 13, 11, 9, 8, 7, 6, 5), strict=True)):
        counts = [0] * 4
        for pairs in (p for ps in planned.pairs.values() for p in ps if p.stride == index):
            counts[pairs.direction] += len(pairs.ax)
            direction = DIRECTIONS[pairs.direction]
            assert pairs.by - pairs.ay == direction.dy * stride
            assert (pairs.bx - pairs.ax == direction.dx * stride).all()
        assert counts == [side * (side - 1)] * 2 + [(side - 1) ** 2] * 2


def test_drawn_pairs_are_bounded_a_subset_repeatable_and_the_same_for_both_stains() -> None:
    def pairs_of(seed: int, key: str, bound: int | None) -> set[tuple[int, ...]]:
        planned = plan(Size(700, 640), (32, 80), Protocol(pairs=bound, seed=seed), key)
        return {
            (p.stride, p.direction, p.ay, int(a), p.by, int(b))
            for ps in planned.pairs.values()
            for p in ps
            for a, b in zip(p.ax, p.bx, strict=True)
        }

    few = pairs_of(0, "x", 3)
    assert len(few) == 2 * 4 * 3
    assert few < pairs_of(0, "x", None)
    assert few == pairs_of(0, "x", 3)
    assert few != pairs_of(1, "x", 3)
    assert few != pairs_of(0, "y", 3)


@pytest.mark.parametrize(
    ("pitch", "actual"),
    [
        (16, STRIDES),
        (14, (28, 70, 84, 98, 112, 126, 154, 196)),
        (8, STRIDES),
        (32, (32, 64, 96, 96, 128, 128, 160, 192)),
    ],
)
def test_strides_are_measured_at_multiples_of_the_pitch(pitch: int, actual: tuple[int, ...]) -> None:
    if len(set(actual)) < len(actual):
        with pytest.raises(UsageError, match="not distinct multiples of 32 px"):
            Protocol().actual(pitch)
    else:
        assert Protocol().actual(pitch) == actual
    assert Protocol(strides=(223, 1)).actual(14) == (210, 14)


@pytest.mark.parametrize("strides", [(0,), (224,), (-16,)])
def test_strides_without_overlap_are_refused(strides: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="between 1 and 223"):
        Protocol(strides=strides)


@pytest.mark.parametrize("size", [(200, 600), (224, 224), (255, 255)])
def test_an_image_too_small_for_a_pair_is_named(size: tuple[int, int]) -> None:
    with pytest.raises(SheafStainError, match=rf"0\.png: {size[1]}×{size[0]} px hold no two adjacent crops; 256 px"):
        measure(encoder_of(local), picture(*size))


def test_strides_for_which_an_image_is_too_small_are_left_out() -> None:
    (result,) = measure(encoder_of(local), picture(224 + 96, 224 + 64))
    assert (result.tokens > 0).tolist() == [
        [True] * 4,
        [True] * 4,
        [False, True, False, False],
        [False, True, False, False],
        *[[False] * 4] * 4,
    ]


# -- encoders whose answer is known ------------------------------------------------------------------------------------


@pytest.mark.parametrize("pitch", [16, 14])
def test_tokens_without_context_are_a_sheaf(pitch: int) -> None:
    """Every token is a function of its own pixels: any pair that is matched one token off would show."""
    (result,) = measure(encoder_of(local, pitch=pitch), picture(440, 450))
    np.testing.assert_allclose(cosines(result), 1, atol=1e-6)
    np.testing.assert_allclose(result.distance / result.tokens, 0, atol=1e-6)
    assert result.locality == 0
    assert result.unrelated < 0.99


def by_hand(image: np.ndarray, stride: int, dy: int, dx: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and L2 [pairs, rows, columns] of ``contaminated`` by loops over crops and tokens, in NumPy."""
    colours = image.astype(np.float64) / 255

    def tokens(y: int, x: int) -> dict[tuple[int, int], np.ndarray]:
        crop = colours[y : y + 224, x : x + 224]
        context = crop.mean((0, 1)) / 2
        return {
            (y + 16 * r, x + 16 * c): crop[16 * r : 16 * r + 16, 16 * c : 16 * c + 16].mean((0, 1)) - context
            for r in range(14)
            for c in range(14)
        }

    cosine, distance = [], []
    for y in range(0, image.shape[0] - 223, stride):
        for x in range(0, image.shape[1] - 223, stride):
            if not (0 <= y + dy * stride <= image.shape[0] - 224 and x + dx * stride <= image.shape[1] - 224):
                continue
            a, b = tokens(y, x), tokens(y + dy * stride, x + dx * stride)
            places = sorted(a.keys() & b.keys())
            shape = len({p[0] for p in places}), len({p[1] for p in places})
            va, vb = (np.array([t[p] for p in places]) for t in (a, b))
            dots = (va * vb).sum(1) / np.linalg.norm(va, axis=1) / np.linalg.norm(vb, axis=1)
            cosine.append(dots.reshape(shape))
            distance.append(np.linalg.norm(va - vb, axis=1).reshape(shape))
    return np.array(cosine), np.array(distance)


def test_every_number_against_loops_in_numpy() -> None:
    image = picture(400, 416)
    strides = (80, 160)
    (result,) = measure(encoder_of(contaminated, batch=5), image, strides=strides, heat=True)
    heat, count = np.zeros((25, 26)), np.zeros((25, 26))
    for s, stride in enumerate(strides):
        for d, (dy, dx) in enumerate(((0, 1), (1, 0), (1, 1), (-1, 1))):
            cosine, distance = by_hand(image, stride, dy, dx)
            assert result.tokens[s, d] == cosine.size
            assert result.cosine[s, d] == pytest.approx(cosine.sum(), rel=1e-5)
            assert result.squares[s, d] == pytest.approx(((1 - cosine) ** 2).sum(), rel=1e-3)
            assert result.distance[s, d] == pytest.approx(distance.sum(), rel=1e-5)
            along = cosine.sum((0, 2)) if (dy, dx) == (1, 0) else cosine.sum((0, 1))
            np.testing.assert_allclose(result.profile[s, d, : len(along)], along, rtol=1e-5)
            assert (result.profile[s, d, len(along) :] == 0).all()
            np.testing.assert_array_equal(
                result.profile_tokens[s, d], [cosine.size // len(along)] * len(along) + [0] * (14 - len(along))
            )
    for dy, dx in ((0, 1), (1, 0), (1, 1), (-1, 1)):  # the map is drawn at stride 80
        cosine, _ = by_hand(image, 80, dy, dx)
        starts = [
            (max(y, y + dy * 80), x + dx * 80)
            for y in range(0, 177, 80)
            for x in range(0, 193, 80)
            if 0 <= y + dy * 80 <= 176 and x + dx * 80 <= 192
        ]
        for (y, x), values in zip(starts, cosine, strict=True):
            area = slice(y // 16, y // 16 + values.shape[0]), slice(x // 16, x // 16 + values.shape[1])
            heat[area] += 1 - values
            count[area] += 1
    assert result.heat is not None
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(result.heat, heat / count, rtol=1e-3, atol=1e-6)
    assert np.isnan(result.heat).any() and not np.isnan(result.heat).all()


def test_the_other_place_in_the_same_crop() -> None:
    image = picture(224, 224 + 32)
    (result,) = measure(encoder_of(local), image, strides=(32,))
    values = []
    for x in (0, 32):
        tokens = image[:224, x : x + 224].reshape(14, 16, 14, 16, 3).mean((1, 3)).astype(np.float64)
        other = tokens[(np.arange(14) - 7) % 14]
        values.append((tokens * other).sum(-1) / np.linalg.norm(tokens, axis=-1) / np.linalg.norm(other, axis=-1))
    assert result.unrelated == pytest.approx(np.mean(values), rel=1e-5)


def test_a_convolutional_encoder_glues_inside_and_a_global_attention_does_not() -> None:
    """Paper, "Scope of context contamination": local receptive fields satisfy the axiom approximately by construction.

    Three 3×3 convolutions see three tokens far, and zero padding disturbs them near the border of a crop only.
    """
    generator = torch.Generator().manual_seed(0)
    layers: list[nn.Module] = []
    for a, b in ((3, 16), (16, 16), (16, 16)):
        layer = nn.Conv2d(a, b, 3, padding=1)
        nn.init.normal_(layer.weight, 0, (9 * a) ** -0.5, generator=generator)
        layers += [layer, nn.GELU()]
    convolution = nn.Sequential(*layers)
    image = picture(304, 544, 1)
    (conv,) = measure(encoder_of(convolution, width=16), image, strides=(80, 160))
    (vit,) = measure(load_encoder("random-tiny", device="cpu"), image, strides=(80, 160))

    profile = conv.profile[0, 0, :9] / conv.profile_tokens[0, 0, :9]
    np.testing.assert_allclose(profile[3:6], 1, atol=1e-6)  # out of reach of either border
    assert profile[0] < 0.999 and profile[8] < 0.999  # an inverted U from padding alone
    attention = vit.profile[0, 0, :9] / vit.profile_tokens[0, 0, :9]
    assert attention.max() < 0.97  # nowhere in the overlap
    assert (cosines(vit)[0, :2] < cosines(conv)[0, :2]).all()
    assert (cosines(vit)[1] < cosines(vit)[0])[0]  # less overlap, less agreement


def test_neither_the_batch_nor_the_company_changes_an_image() -> None:
    one, two = picture(320, 336, 1), picture(300, 420, 2)
    encoder = encoder_of(contaminated, batch=7)
    together = measure(encoder, one, two, strides=(32, 80))
    alone = [*measure(encoder_of(contaminated, batch=100), one, strides=(32, 80))]
    np.testing.assert_allclose(together[0].cosine, alone[0].cosine, rtol=1e-6)
    assert [result.image.id for result in together] == ["0", "1"]
    assert together[1].size == Size(300, 420)


def test_rows_are_dropped_once_no_pair_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    take = _Running.take

    def watched(self: _Running, y: int, tokens: Tensor) -> None:
        take(self, y, tokens)
        held.append(max(self.rows) - min(self.rows))

    monkeypatch.setattr(_Running, "take", watched)
    measure(encoder_of(local), picture(900, 256), strides=(32, 96))
    assert len(held) == len({y for s in (32, 96) for y in range(0, 677, s)})
    assert max(held) < 96
