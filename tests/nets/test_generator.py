from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sheafstain.nets.generator import BridgeGenerator, ResnetGenerator, UnetGenerator

D = 6  # width of M and c_n in the small generators


def count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def small(width: int = D, **options: bool) -> BridgeGenerator:
    torch.manual_seed(0)
    return BridgeGenerator(8, 3, width, **options)


def inputs(batch: int = 2, h: int = 32, w: int = 48, width: int = D, latent: int = 32) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(1)
    x = torch.rand(batch, 3, h, w, generator=draw) * 2 - 1
    z, c_n = (torch.randn(batch, channels, generator=draw) for channels in (latent, width))
    return x, z, torch.randn(batch, width, h // 16, w // 16, generator=draw), c_n


def at(index: int) -> Tensor:
    return torch.tensor(index)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: BridgeGenerator(as_released=True), 14_684_419),
        (lambda: BridgeGenerator(), 13_500_163),
        (lambda: BridgeGenerator(width=1536), 20_582_659),
        (lambda: BridgeGenerator(width=1536, as_released=True), 21_766_915),
        (lambda: ResnetGenerator(), 11_378_179),
        (lambda: ResnetGenerator(antialias=True), 11_378_179),
        (lambda: ResnetGenerator(blocks=6, antialias=True), 7_837_699),
        (lambda: UnetGenerator(), 54_413_955),
    ],
)
def test_parameters(make: Callable[[], nn.Module], expected: int) -> None:
    with torch.device("meta"):
        assert count(make()) == expected


@pytest.mark.parametrize("as_released", [False, True])
def test_conditioning_starts_as_a_no_op(as_released: bool) -> None:
    generator = small(as_released=as_released)
    x, z, M, c_n = inputs()
    plain = generator(x, at(2), z)
    assert torch.equal(generator(x, at(2), z, M, c_n), plain)
    assert torch.equal(generator(x, at(2), z, M), plain)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(generator(x, at(2), z, M, c_n), generator(x, at(2), z))


def test_after_a_few_steps_everything_matters() -> None:
    generator = small()
    x, z, M, c_n = inputs()
    optimiser = torch.optim.SGD(generator.parameters(), lr=0.1)
    for step in range(5):
        optimiser.zero_grad()
        (generator(x, at(step), z, M, c_n) - x.flip(-1)).square().mean().backward()
        assert all(p.grad is not None and p.grad.any() for p in generator.parameters())
        optimiser.step()
    with torch.no_grad():
        now = generator(x, at(0), z, M, c_n)
        others = {
            "time": generator(x, at(4), z, M, c_n),
            "z": generator(x, at(0), z.flip(0), M, c_n),
            "M": generator(x, at(0), z, M.flip(-1), c_n),
            "c_n": generator(x, at(0), z, M, c_n.flip(0)),
        }
    for name, other in others.items():
        assert (now - other).abs().mean() > 1e-5, name  # a hundred times the rounding of float32


@pytest.mark.parametrize(("as_released", "gamma"), [(False, 1), (True, 0)])
def test_style_starts_around_the_identity_unless_as_released(as_released: bool, gamma: float) -> None:
    for block in small(as_released=as_released).blocks:
        start = block.style.bias.tolist()
        assert start == [gamma] * (len(start) // 2) + [0] * (len(start) // 2)


def test_the_released_generator_ignores_time_bit_for_bit() -> None:
    generator = small(0, as_released=True)
    x, z, *_ = inputs()
    first, *others = (generator(x, at(index), z) for index in range(5))
    assert all(torch.equal(first, other) for other in others)


def test_half_of_the_released_parameters_never_learn() -> None:
    torch.manual_seed(0)
    generator = BridgeGenerator(as_released=True)
    generator(torch.randn(1, 3, 16, 16), at(1), torch.randn(1, 256)).square().mean().backward()
    dead = [parameter for parameter in generator.parameters() if parameter.grad is None]
    assert (len(dead), sum(parameter.numel() for parameter in dead)) == (58, 7_169_536)


def test_one_index_each_is_as_one_index_for_all() -> None:
    generator = small().double()
    x, z, M, c_n = (value.double() for value in inputs())
    both = generator(x, torch.tensor([0, 3]), z, M, c_n)
    for n, index in enumerate((0, 3)):
        alone = generator(x[n : n + 1], at(index), z[n : n + 1], M[n : n + 1], c_n[n : n + 1])
        torch.testing.assert_close(both[n : n + 1], alone)


@pytest.mark.parametrize(("h", "w"), [(64, 32), (100, 36), (16, 272)])
def test_any_sides_that_are_multiples_of_four(h: int, w: int) -> None:
    x, z, M, c_n = inputs(1, h, w)
    y = small()(x, at(0), z, M, c_n)
    assert y.shape == x.shape
    assert y.abs().max() <= 1


def test_channels_last_and_bfloat16_agree_with_float32() -> None:
    generator = small()
    x, z, M, c_n = inputs()
    for block in generator.blocks:
        nn.init.normal_(block.spatial.weight, std=0.1)
    plain = generator(x, at(1), z, M, c_n)
    other = small().to(memory_format=torch.channels_last)
    other.load_state_dict(generator.state_dict())
    rearranged = other(*(v.to(memory_format=torch.channels_last) if v.ndim == 4 else v for v in (x, at(1), z, M, c_n)))
    torch.testing.assert_close(rearranged, plain, atol=1e-5, rtol=0)
    with torch.autocast("cpu", torch.bfloat16):
        half = generator(x, at(1), z, M, c_n)
    assert half.dtype == torch.float32
    assert 0 < (half - plain).abs().mean() < 0.02
    half.mean().backward()


def test_features_are_those_on_the_way_to_the_output_and_nothing_after_is_run() -> None:
    generator = small()
    x, z, M, c_n = inputs()
    run: list[nn.Module] = []
    for module in (*generator.encoder, *generator.blocks, *generator.decoder):
        module.register_forward_hook(lambda module, *_: run.append(module))
    layers = (0, 4, 8, 12, 13)
    features = generator.encode(x, at(0), z, M, c_n, layers=layers)
    assert run == [*generator.encoder, *list(generator.blocks)[:2]]
    assert [tuple(f.shape[1:]) for f in features] == [(3, 38, 54), (16, 32, 48), (32, 16, 24), (32, 8, 12), (32, 8, 12)]
    assert generator.feature_widths(layers) == [3, 16, 32, 32, 32]
    seen: dict[nn.Module, Tensor] = {}
    for module in (*generator.encoder, *generator.blocks):
        module.register_forward_hook(lambda module, _, out: seen.update({module: out}))
    generator(x, at(0), z, M, c_n)
    stages = [*generator.encoder, *generator.blocks]
    assert all(torch.equal(seen[stages[layer]], feature) for layer, feature in zip(layers, features, strict=True))
    run.clear()
    assert [f.shape[1] for f in generator.encode(x, at(0), z, layers=(4, 0))] == [16, 3]
    assert run == list(generator.encoder)[:5]


@pytest.mark.parametrize("layers", [(), (0, 15), (-1,)])
def test_feature_layers_that_are_not_there(layers: tuple[int, ...]) -> None:
    x, z, *_ = inputs()
    with pytest.raises(ValueError, match="feature layers 0 to 14"):
        small().encode(x, at(0), z, layers=layers)


def test_what_does_not_fit_is_named() -> None:
    x, z, M, c_n = inputs()
    with pytest.raises(ValueError, match="M has 6 channels; this generator was built for 0"):
        small(0)(x, at(0), z, M, c_n)
    with pytest.raises(ValueError, match="multiples of 4"):
        small()(x[..., :30], at(0), z)


@pytest.mark.parametrize("antialias", [False, True])
def test_resnet_generator(antialias: bool) -> None:
    torch.manual_seed(0)
    generator = ResnetGenerator(8, 2, antialias)
    x = torch.rand(1, 3, 36, 64) * 2 - 1
    y = generator(x)
    assert y.shape == x.shape
    assert y.abs().max() <= 1
    expected = 0.02 * math.sqrt(2 / ((3 + 8) * 7 * 7)) if antialias else 0.02  # xavier, normal
    assert generator.layers[1].weight.std().item() == pytest.approx(expected, rel=0.1)


def test_unet_is_the_nested_one() -> None:
    """The same weights, called as nested blocks: each gives its input beside what lies deeper."""
    torch.manual_seed(0)
    unet = UnetGenerator(4, 6).eval()
    x = torch.rand(1, 3, 64, 128) * 2 - 1

    def nested(level: int, x: Tensor) -> Tensor:
        deeper = unet.down[level](x)
        inside = deeper if level == 5 else nested(level + 1, deeper)
        return torch.cat((x, unet.up[level](inside)), dim=1)

    inside = nested(1, unet.down[0](x))
    torch.testing.assert_close(unet(x), torch.tanh(unet.up[0](inside.relu())))
    assert sum(isinstance(module, nn.Dropout) for module in UnetGenerator(4, 8).modules()) == 3
    with pytest.raises(ValueError, match="multiples of 64"):
        unet(x[..., :96])
