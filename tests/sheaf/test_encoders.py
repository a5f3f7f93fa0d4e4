"""The registry against the models, the stream of crops against one crop at a time, files against their layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from sheafstain import hub
from sheafstain.errors import SheafStainError, UsageError
from sheafstain.sheaf import backbone
from sheafstain.sheaf.encoders import Encoder, Tokens, load_encoder
from sheafstain.sheaf.registry import EncoderEntry, find_encoder, list_encoders

CPU = torch.device("cpu")

# Independent of the registry: published parameter counts, prefix tokens, token grids (and GFLOP for the one that is
# argued about: the paper's "223 GFLOPs" are multiply-adds).
PUBLISHED = {
    "prov-gigapath": (1_134_953_984, 1, 14, 1536),
    "uni": (303_350_784, 1, 14, 1024),
    "uni2-h": (681_394_176, 9, 16, 1536),
    "virchow": (631_229_184, 1, 16, 1280),
    "virchow2": (631_239_424, 5, 16, 1280),
    "h-optimus-0": (1_134_774_272, 5, 16, 1536),
    "h-optimus-1": (1_134_774_272, 5, 16, 1536),
}


def noise(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 224, 224, 3), np.uint8)


def only(tokens: Iterator[Tokens]) -> Tokens:
    (one,) = tokens
    return one


# -- registry ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", list_encoders(), ids=lambda entry: entry.id)
def test_an_entry_is_what_its_network_is(entry: EncoderEntry) -> None:
    network = backbone.build(entry)  # checks prefix, width, depth, pitch and grid, and raises
    parameters = sum(parameter.numel() for parameter in network.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        tokens = network.forward_features(torch.empty(1, 3, 224, 224, device="meta"))  # type: ignore[operator]
    assert parameters == entry.parameters
    assert tuple(tokens.shape) == (1, entry.prefix + entry.grid**2, entry.width)
    assert counter.get_total_flops() / 1e9 == pytest.approx(entry.gflop, abs=0.06)
    if entry.id in PUBLISHED:
        assert (entry.parameters, entry.prefix, entry.grid, entry.width) == PUBLISHED[entry.id]


def test_every_published_model_is_there() -> None:
    assert PUBLISHED.keys() <= {entry.id for entry in list_encoders()}
    assert find_encoder("prov-gigapath").gflop == pytest.approx(2 * 223.1 + 2 * 0.23 + 2 * 4.8, rel=0.01)


def test_the_random_ones_say_so_and_nothing_is_both_open_and_random() -> None:
    for entry in list_encoders():
        assert entry.random == entry.id.startswith("random-")
        assert (entry.repo is None) == (entry.random or entry.shipped)
    assert {"phikon-v2", "midnight-12k", "kaiko-vits16", "dinov2-small"} <= {
        entry.id for entry in list_encoders() if entry.gate is None and not entry.random
    }


@pytest.mark.parametrize("name", ["uni2-h", "UNI2-H", "MahmoodLab/UNI2-h", "mahmoodlab/uni2-h"])
def test_an_encoder_is_found_by_its_name_or_hub_id(name: str) -> None:
    assert find_encoder(name).id == "uni2-h"


@pytest.mark.parametrize(
    ("name", "said"), [("gigapth", "did you mean prov-gigapath"), ("qqqqq", "known: prov-gigapath")]
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        find_encoder(name)


def test_another_timm_that_builds_another_network_is_noticed() -> None:
    with pytest.raises(SheafStainError, match="prefix tokens 5, not 1"):
        backbone.build(replace(find_encoder("virchow2"), prefix=1))


# -- the stream --------------------------------------------------------------------------------------------------------


class Echo(nn.Module):
    """A network whose tokens are the mean colours of the patches, without any context; CLS is the mean of all."""

    num_prefix_tokens = 2

    def __init__(self, pitch: int = 16) -> None:
        super().__init__()
        self.pitch = pitch
        self.sizes: list[int] = []

    def forward_features(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        patches = functional.avg_pool2d(x, self.pitch).flatten(2).transpose(1, 2)
        return torch.cat([patches.mean(1, keepdim=True), patches.new_full((len(x), 1, 3), 7.0), patches], 1)


ECHO = replace(find_encoder("random-tiny"), width=3, prefix=2)


def echo(batch: int, **options: object) -> Encoder:
    return Encoder(Echo(), ECHO, weights_hash="", device=CPU, batch=batch, **options)  # type: ignore[arg-type]


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 9), max_size=8), batch=st.integers(1, 7))
def test_groups_come_out_as_they_went_in_and_batches_are_full(sizes: list[int], batch: int) -> None:
    encoder = echo(batch)
    # Crop i is of one colour, i, so that its tokens tell which crop they are of.
    numbers = iter(range(256))
    groups = [[next(numbers) for _ in range(size)] for size in sizes]
    crops = [np.stack([np.full((224, 224, 3), i, np.uint8) for i in g] or [noise(1)[0]])[: len(g)] for g in groups]
    mean, std = (torch.tensor(values) for values in ECHO.normalisation)
    for group, tokens in zip(groups, encoder.encode(iter(crops)), strict=True):
        assert tokens.patch.shape == (len(group), 196, 3) and tokens.cls.shape == (len(group), 3)
        colours = (tokens.cls * std + mean) * 255
        assert colours.round().long()[:, 0].tolist() == group
    ran = encoder.model.sizes
    assert all(size == batch for size in ran[:-1]) and sum(ran) == sum(sizes)  # type: ignore[index, arg-type]


def test_reads_ahead_no_further_than_a_batch_needs() -> None:
    asked = 0

    def crops() -> Iterator[np.ndarray]:
        nonlocal asked
        for i in range(100):
            asked += 1
            yield noise(1, i)[0]

    stream = echo(4).encode(crops())
    next(stream)
    assert asked == 4


def test_one_crop_is_a_group_of_one_and_tensors_serve_as_well_as_arrays() -> None:
    crops = noise(3)
    crops.flags.writeable = False
    as_arrays = list(echo(2).encode([crops[0], crops[1:]]))
    as_tensors = list(echo(2).encode([torch.from_numpy(crops.copy()[0]), torch.from_numpy(crops.copy()[1:])]))
    assert [len(tokens) for tokens in as_arrays] == [1, 2]
    for a, b in zip(as_arrays, as_tensors, strict=True):
        assert torch.equal(a.patch, b.patch) and torch.equal(a.cls, b.cls)


@pytest.mark.parametrize("crops", [noise(1).astype(np.float32), noise(1)[:, :200], noise(1)[..., :2], noise(1)[None]])
def test_other_crops_are_refused(crops: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"crops are uint8 \[n, 224, 224, 3\]"):
        list(echo(2).encode([crops]))


def test_normalisation_is_that_of_the_entry() -> None:
    entry = replace(ECHO, normalisation=((0.1, 0.2, 0.3), (0.5, 0.25, 2.0)))
    encoder = Encoder(Echo(), entry, weights_hash="", device=CPU)
    crops = noise(2)
    expected = (crops.astype(np.float64) / 255 - (0.1, 0.2, 0.3)) / (0.5, 0.25, 2.0)
    expected = expected.reshape(2, 14, 16, 14, 16, 3).mean((2, 4)).reshape(2, 196, 3)
    np.testing.assert_allclose(only(encoder.encode([crops])).patch.numpy(), expected, atol=1e-5)


def test_compiled_it_sees_one_shape_only(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_with: list[dict[str, object]] = []

    def remember(function: Callable[[Tensor], Tensor], **options: object) -> Callable[[Tensor], Tensor]:
        compiled_with.append(options)
        return function

    monkeypatch.setattr(torch, "compile", remember)
    encoder = echo(4, compile=True)
    crops = noise(7)
    padded = only(encoder.encode([crops]))
    assert compiled_with == [{"dynamic": False}]
    assert encoder.model.sizes == [4, 4]
    plain = only(echo(16).encode([crops]))
    assert torch.equal(padded.patch, plain.patch) and len(padded) == 7


@pytest.fixture(scope="module")
def tiny() -> Encoder:
    return load_encoder("random-tiny", device="cpu", batch=3)


def test_the_tokens_do_not_depend_on_the_batch(tiny: Encoder) -> None:
    crops = noise(7)
    together = only(tiny.encode([crops]))
    for i, alone in enumerate(tiny.encode(crops)):
        torch.testing.assert_close(alone.patch[0], together.patch[i], atol=2e-5, rtol=2e-5)
        torch.testing.assert_close(alone.cls[0], together.cls[i], atol=2e-5, rtol=2e-5)


def test_bfloat16_returns_float32_near_the_float32_tokens(tiny: Encoder) -> None:
    half = load_encoder("random-tiny", device="cpu", dtype=torch.bfloat16)
    assert half.weights_hash == tiny.weights_hash
    exact, rough = (only(encoder.encode([noise(2)])) for encoder in (tiny, half))
    assert rough.patch.dtype == rough.cls.dtype == torch.float32
    assert not torch.equal(exact.patch, rough.patch)
    assert torch.cosine_similarity(exact.patch, rough.patch, dim=-1).mean() > 0.98


def test_registers_are_not_cls() -> None:
    entry = replace(
        find_encoder("random-tiny"), arguments={"depth": 1, "reg_tokens": 4, "no_embed_class": True}, prefix=5, depth=1
    )
    network = backbone.random_network(entry)
    encoder = Encoder(network, entry, weights_hash="", device=CPU)
    crops = noise(1)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in entry.normalisation)
    images = (torch.from_numpy(crops).permute(0, 3, 1, 2) / 255 - mean) / std
    with torch.no_grad():
        everything = network.forward_features(images)  # type: ignore[operator]
    tokens = only(encoder.encode([crops]))
    torch.testing.assert_close(tokens.cls, everything[:, 0])
    torch.testing.assert_close(tokens.patch, everything[:, 5:])


def test_a_network_without_cls_is_refused() -> None:
    network = Echo()
    network.num_prefix_tokens = 0
    with pytest.raises(SheafStainError, match="has no CLS token"):
        Encoder(network, ECHO, weights_hash="", device=CPU)


def test_a_loss_on_tokens_reaches_the_image_and_not_the_weights(tiny: Encoder) -> None:
    images = torch.rand(1, 3, 224, 224, requires_grad=True)
    tiny.differentiable(images).patch.abs().mean().backward()
    assert images.grad is not None and images.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in tiny.model.parameters())
    crops = (images.detach()[0].permute(1, 2, 0) * 255).round().to(torch.uint8)
    images8 = (crops / 255).permute(2, 0, 1)[None]
    torch.testing.assert_close(tiny.differentiable(images8).cls, only(tiny.encode([crops])).cls, atol=1e-5, rtol=1e-5)


def test_encoded_tokens_may_condition_something_that_is_trained(tiny: Encoder) -> None:
    layer = nn.Linear(192, 4)
    layer(only(tiny.encode([noise(1)])).patch).sum().backward()
    assert layer.weight.grad is not None


def test_random_weights_are_a_function_of_the_seed_and_the_name(tiny: Encoder) -> None:
    entry = find_encoder("random-tiny")
    torch.manual_seed(99)
    assert hub.hash_of(backbone.random_network(entry).state_dict()) == tiny.weights_hash
    assert hub.hash_of(backbone.random_network(entry, seed=1).state_dict()) != tiny.weights_hash


def test_attention_matters_in_the_random_encoder(tiny: Encoder) -> None:
    """What a token says depends on the far side of the crop: without that an audit of it would measure nothing."""
    first, second = noise(2)
    second[:112, :112] = first[:112, :112]
    tokens = only(tiny.encode([np.stack([first, second])])).patch.unflatten(1, (14, 14))[:, :7, :7]
    assert torch.cosine_similarity(tokens[0], tokens[1], dim=-1).mean() < 0.99


def test_a_batch_of_none_and_an_unknown_device_are_refused() -> None:
    with pytest.raises(UsageError, match="at least one crop"):
        load_encoder("random-tiny", device="cpu", batch=-1)
    with pytest.raises(UsageError, match="no device 'warp'"):
        load_encoder("random-tiny", device="warp")
