from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from sheafstain.bridge.losses import bridge_loss, critic_loss, energy_loss, fooling_loss, info_nce
from sheafstain.bridge.noise import CanvasNoise, latent, noise_field
from sheafstain.methods.batch import Batch, Draw, Views
from sheafstain.methods.cyclegan import FakePool
from sheafstain.methods.engine import Engine
from sheafstain.methods.registry import METHODS
from sheafstain.nets.patchnce import draw_positions
from sheafstain.sheaf.losses import cocycle_loss, dab_loss, fourier_loss, sheaf_loss
from sheafstain.window import Window

SIDE, WIDTH, B = 64, 6, 2
SMALL: dict[str, dict[str, Any]] = {
    "sheafstain": {"ngf": 8, "ndf": 8, "blocks": 5, "positions": 16, "stain_align": 0.0},
    "unsb": {"ngf": 8, "ndf": 8, "blocks": 5, "positions": 16},
    "cyclegan": {"ngf": 8, "ndf": 8, "blocks": 2},
    "pix2pix": {"ngf": 8, "ndf": 8, "depth": 6},
}


def method(name: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    entry = METHODS[name]
    return entry.train(entry.settings(**SMALL[name] | changes), Engine(torch.device("cpu")), WIDTH, None)


def views(count: int, seed: int, y: int = 0, x: int = 0, width: int = WIDTH) -> Views:
    draw = torch.Generator().manual_seed(seed)
    images = torch.rand(count, 3, SIDE, SIDE, generator=draw) * 2 - 1
    M = torch.randn(count, width, SIDE // 16, SIDE // 16, generator=draw) if width else None
    c_n = torch.randn(count, width, generator=draw) if width else None
    return Views(images, [Window(y, x, SIDE, SIDE)] * count, torch.arange(count) + 100 * seed, M, c_n)


def batch(width: int = WIDTH, adjacent: bool = True) -> Batch:
    ref, second = views(B, 1, width=width), views(B, 2, width=width)
    near = Views.joined([views(B, 3, 32, 0, width), views(B, 4, 0, -32, width)])
    near = Views(near.images, near.windows, ref.canvas.repeat(2), near.M, near.c_n)
    ihc = torch.rand(B, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(9)) * 2 - 1
    return Batch(ref, ihc, near if adjacent else None, second)


def turns(made: Any, drawn: Batch, draw: Draw) -> Iterator[tuple[str, dict[str, Tensor], Any]]:
    state = made.begin(drawn, draw)
    for turn in made.turns:
        for name, net in made.parts.items():
            net.requires_grad_(name in turn.parts)
        yield turn.name, made.losses(turn.name, state), state


CASES = [("sheafstain", {}), ("unsb", {}), ("unsb", {"as_released": True}), ("cyclegan", {}), ("pix2pix", {})]


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_every_turn_reaches_its_own_networks_and_no_other(name: str, changes: dict[str, Any]) -> None:
    made = method(name, **changes)
    drawn = batch(WIDTH if made.needs.sections else 0, made.needs.adjacent)
    for turn, terms, _ in turns(made, drawn, Draw(1, 3)):
        assert terms and all(term.ndim == 0 and bool(term.isfinite()) for term in terms.values())
        sum(terms.values()).backward()  # type: ignore[union-attr]
        stepped = next(t.parts for t in made.turns if t.name == turn)
        for part, net in made.parts.items():
            reached = [p for p in net.parameters() if p.grad is not None and bool((p.grad != 0).any())]
            assert bool(reached) == (part in stepped), (turn, part)
            net.zero_grad(set_to_none=True)


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_a_step_is_a_pure_function_of_its_draw(name: str, changes: dict[str, Any]) -> None:
    drawn = batch(WIDTH if method(name).needs.sections else 0, method(name).needs.adjacent)

    def losses(draw: Draw) -> list[float]:
        return [
            float(t.detach()) for _, terms, _ in turns(method(name, **changes), drawn, draw) for t in terms.values()
        ]

    first = losses(Draw(1, 3))
    torch.rand(7)  # nobody's business
    assert losses(Draw(1, 3)) == first
    if name != "cyclegan":  # whose first step draws nothing: an empty pool shows every fake
        assert losses(Draw(2, 3)) != first


def test_the_terms_of_unsb_are_those_of_its_equations() -> None:
    made, drawn, draw = method("unsb"), batch(0, adjacent=False), Draw(5, 2)
    G, D, E, F = (made.parts[name] for name in "GDEF")
    found = {}
    for _, terms, state in turns(made, drawn, draw):
        found |= {name: float(term.detach()) for name, term in terms.items()}
        i = state.index.expand(B)
    with torch.no_grad():
        x, fake, x2, fake2 = state.x, state.fake, state.x_second, state.fake_second
        assert found["critic"] == pytest.approx(float(critic_loss(D(i, fake), D(i, drawn.ihc))), rel=1e-5)
        own, across = E(i, x, fake, x, fake), E(i, x, fake, x2, fake2)
        assert found["energy"] == pytest.approx(float(energy_loss(own, across)), rel=1e-5)
        assert found["gan"] == pytest.approx(float(fooling_loss(D(i, fake))), rel=1e-5)
        assert found["sb"] == pytest.approx(float(bridge_loss(x, fake, own, across, state.index, made.grid)), rel=1e-4)
        z, start = latent(draw.seeds("features", B), G.latent_width), torch.zeros((), dtype=torch.int64)
        halves = []
        for source, made_of_it in ((drawn.ref.images, fake), (drawn.ihc, state.identity)):
            keys, queries = (G.encode(image, start, z, layers=made.layers) for image in (source, made_of_it))
            at = draw_positions(queries, 16, draw.generator("positions"))
            halves.append(
                torch.stack([info_nce(q, k) for q, k in zip(F(queries, at), F(keys, at), strict=True)]).mean()
            )
        assert found["nce"] == pytest.approx(float(sum(halves)) / 2, rel=1e-5)


def test_a_chain_of_unsb_walks_the_grid() -> None:
    """Point x_i of the reference by the recurrence, one window at a time."""
    made, drawn = method("unsb"), batch(0, adjacent=False)
    draw = next(d for d in (Draw(1, k) for k in range(50)) if d.integer("time", 5) == 3)
    state = made.begin(drawn, draw)
    G, grid = made.generator, made.grid
    with torch.no_grad():
        for k in range(B):
            x, seed = drawn.ref.images[k : k + 1], drawn.ref.canvas[k : k + 1]
            z = latent(seed, G.latent_width)
            for i in range(1, 4):
                predicted = G(x, torch.tensor(i - 1), z)
                noise = noise_field(seed, [drawn.ref.windows[k]], i)
                x = (1 - grid.share(i)) * x + grid.share(i) * predicted + grid.noise(i) * noise
            assert torch.allclose(state.x[k], x[0], atol=1e-5)
            assert torch.allclose(state.fake[k], G(x, torch.tensor(3), z)[0], atol=1e-5)


def test_sheafstain_adds_the_papers_terms() -> None:
    made, drawn = method("sheafstain", sheaf=1.0, cocycle=0.1, fourier=0.5, dab=0.1, alpha=2.0), batch()
    *_, (_, terms, state) = turns(made, drawn, Draw(1, 1))
    found = {key: float(value.detach()) for key, value in terms.items()}
    assert set(found) == {"gan", "sb", "nce", "sheaf", "cocycle", "fourier", "dab"}
    fake, (adj1, adj2) = state.fake.detach(), state.fake_adjacent.detach().chunk(2)
    at = [drawn.ref.windows, drawn.adjacent.windows[:B], drawn.adjacent.windows[B:]]  # type: ignore[union-attr]
    assert found["sheaf"] == pytest.approx(float(sheaf_loss(fake, adj1, at[0], at[1], 2.0)), rel=1e-5)
    assert found["cocycle"] == pytest.approx(0.1 * float(cocycle_loss((fake, adj1, adj2), at, 2.0)), rel=1e-5)
    unit, real = (fake + 1) / 2, (drawn.ihc + 1) / 2
    assert found["fourier"] == pytest.approx(0.5 * float(fourier_loss(unit, real)), rel=1e-5)
    assert found["dab"] == pytest.approx(0.1 * float(dab_loss(unit, real)), rel=1e-5)


def test_without_its_own_losses_and_conditioning_sheafstain_is_unsb() -> None:
    off = {"sheaf": 0.0, "cocycle": 0.0, "fourier": 0.0, "dab": 0.0, "conditioning": "none"}
    made, plain, drawn = method("sheafstain", **off), method("unsb"), batch(0, adjacent=False)
    assert not made.needs.adjacent and not made.needs.sections
    for (_, mine, _), (_, theirs, _) in zip(
        turns(made, drawn, Draw(1, 1)), turns(plain, drawn, Draw(1, 1)), strict=True
    ):
        assert mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)


@pytest.mark.parametrize("loss", ["gan", "sb", "nce", "sheaf", "cocycle", "fourier", "dab"])
def test_a_weight_of_zero_leaves_a_loss_out(loss: str) -> None:
    made = method("sheafstain", **{loss: 0.0})
    assert all(loss not in terms for _, terms, _ in turns(made, batch(), Draw(1, 0)))


def test_stain_align_comes_with_its_epoch() -> None:
    entry = METHODS["sheafstain"]
    settings = entry.settings(**SMALL["sheafstain"] | {"stain_align": 1.0, "stain_align_from": 351})

    def tokens(images: Tensor) -> Tensor:
        return images.mean(1).flatten(1)[:, None]

    made = entry.train(settings, Engine(torch.device("cpu")), WIDTH, tokens)
    for epoch, there in ((350, False), (351, True)):
        found = {key for _, terms, _ in turns(made, batch(), Draw(1, 0, epoch=epoch)) for key in terms}
        assert ("stain_align" in found) == there
    with pytest.raises(ValueError, match="stain-align"):
        entry.train(settings, Engine(torch.device("cpu")), WIDTH, None)


def test_processes_with_per_sample_losses_add_up_to_one() -> None:
    """Halves of a batch, each on its own, have the mean gradient of the whole (for every turn)."""
    drawn = batch()
    assert drawn.adjacent is not None and drawn.second is not None

    def gradients(part: slice, first: int) -> dict[str, list[Tensor]]:
        near = [drawn.adjacent.part(slice(k, k + B)).part(part) for k in (0, B)]  # type: ignore[union-attr]
        adjacent = Views.joined(near)
        piece = Batch(drawn.ref.part(part), drawn.ihc[part], adjacent, drawn.second.part(part))  # type: ignore[union-attr]
        made, found = method("sheafstain", per_sample=True), dict[str, list[Tensor]]()
        for name, terms, _ in turns(made, piece, Draw(1, 1, first)):
            sum(terms.values()).backward()  # type: ignore[union-attr]
            stepped = next(t.parts for t in made.turns if t.name == name)
            found[name] = [p.grad for part in stepped for p in made.parts[part].parameters() if p.grad is not None]
        return found

    whole, halves = gradients(slice(0, 2), 0), [gradients(slice(0, 1), 0), gradients(slice(1, 2), 1)]
    for name, expected in whole.items():
        one, left, right = (torch.cat([g.flatten() for g in of]) for of in (expected, halves[0][name], halves[1][name]))
        assert float((one - (left + right) / 2).norm()) < 1e-3 * float(one.norm()), name


@pytest.mark.parametrize("name", METHODS)
def test_translation_depends_on_place_and_not_on_the_batch(name: str) -> None:
    made = method(name)
    width = WIDTH if made.needs.sections else 0
    drawn = views(3, 5, width=width)
    windows = [Window(0, 0, SIDE, SIDE), Window(0, 32, SIDE, SIDE), Window(64, 0, SIDE, SIDE)]
    latent_width = getattr(made.generator, "latent_width", 0)
    seeds = torch.full((3,), 77)
    together = made.translate(drawn.images, CanvasNoise(seeds, windows, latent_width), drawn.M, drawn.c_n)
    assert together.shape == drawn.images.shape and together.dtype == torch.float32 and not together.requires_grad
    alone = drawn.part(slice(1, 2))
    single = made.translate(alone.images, CanvasNoise(seeds[:1], windows[1:2], latent_width), alone.M, alone.c_n)
    assert torch.allclose(together[1:2], single, atol=1e-5)


def test_windows_of_sheafstain_share_their_noise_and_windows_of_unsb_do_not() -> None:
    image = views(1, 5, width=0).images.expand(2, -1, -1, -1)
    windows = [Window(0, 0, SIDE, SIDE), Window(0, 640, SIDE, SIDE)]
    for name, same in (("sheafstain", True), ("unsb", False)):
        made = method(name, **({"conditioning": "none"} if name == "sheafstain" else {}))
        noise = CanvasNoise(torch.tensor([7, 7]), windows, made.generator.latent_width)
        first, second = made.translate(image, noise, nfe=1)  # one prediction: only z can differ
        assert torch.allclose(first, second, atol=1e-6) == same


def test_the_pool_of_cyclegan_swaps_and_survives_a_checkpoint() -> None:
    pool, draw = FakePool(4), torch.Generator().manual_seed(0)
    first = torch.rand(4, 3, 2, 2)
    assert torch.equal(pool.swapped(first, draw), first)  # fills
    shown = pool.swapped(first + 1, draw)
    # Some are old, and none is anything that never went in. One may be a new one that went in a moment before.
    known = torch.cat((first, first + 1))
    assert all(any(torch.equal(s, k) for k in known) for s in shown)
    assert 0 < sum(bool((s < 1).all()) for s in shown) < 4
    again = FakePool(4)
    again.load_state_dict(pool.state_dict())
    left, right = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    assert torch.equal(pool.swapped(first + 2, left), again.swapped(first + 2, right))
