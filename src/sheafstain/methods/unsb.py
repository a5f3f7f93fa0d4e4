"""UNSB: the unpaired neural Schrödinger bridge that SheafStain is built on, repaired or as released (D10, D13).

One step: draw a point i of the time grid, walk all chains there without a gradient, predict once from there with one,
then let the critic D, the energy network E and the generator G (with the PatchNCE heads F) each take its turn. The
chains of the reference, the identity branch and the second sample are one batch, and so are the graded predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from sheafstain.bridge.chain import NoiseSource, Predictor, forward_chain, translate_chain
from sheafstain.bridge.losses import Form, bridge_loss, critic_loss, energy_loss, fooling_loss, info_nce
from sheafstain.bridge.noise import CanvasNoise, FreshNoise, latent
from sheafstain.bridge.schedule import TimeGrid
from sheafstain.methods.batch import Batch, Draw, Needs, Views
from sheafstain.methods.engine import Engine
from sheafstain.methods.method import Tiling, Turn
from sheafstain.nets.critics import TimedCritic
from sheafstain.nets.generator import BridgeGenerator
from sheafstain.nets.patchnce import PatchHeads, draw_positions


@dataclass(frozen=True, slots=True)
class UnsbSettings:
    """What defines the method beside its training schedule.

    Parameters
    ----------
    ngf, ndf, blocks
        Width of the generator and of the critics, residual blocks of the generator.
    as_released
        The residual block of the released code, with its dead half, and fresh noise for every window and step.
    T, tau
        Predictions of the time grid, diffusion coefficient.
    gan, sb, nce
        Weights of the losses; 0 leaves a loss out.
    form, per_sample
        Of the SB and energy losses (``bridge.losses``). With ``per_sample`` each sample has its own time index too.
    positions
        Of PatchNCE in each feature layer.
    """

    ngf: int = 64
    ndf: int = 64
    blocks: int = 9
    as_released: bool = False
    T: int = 5
    tau: float = 0.01
    gan: float = 1.0
    sb: float = 1.0
    nce: float = 1.0
    form: Form = "released"
    per_sample: bool = False
    positions: int = 256

    @property
    def conditioning(self) -> Literal["none"]:
        return "none"

    @property
    def grid(self) -> TimeGrid:
        return TimeGrid(self.T, self.tau)


NCE_LAYERS = (0, 4, 8, 12, 16)  # of which the last residual one needs five blocks
TILING = Tiling(side=256, stride=256, free=True)


def nce_layers(blocks: int) -> tuple[int, ...]:
    """Those of UNSB, as far as a generator with fewer residual blocks has them."""
    return tuple(layer for layer in NCE_LAYERS if layer < 12 + blocks)


def build_generator(settings: UnsbSettings, width: int) -> BridgeGenerator:
    return BridgeGenerator(settings.ngf, settings.blocks, width, settings.as_released)


def translate(
    predict: Predictor,
    settings: UnsbSettings,
    he: Tensor,
    noise: CanvasNoise,
    M: Tensor | None,
    c_n: Tensor | None,
    nfe: int | None,
) -> Tensor:
    """As UNSB translates: every window by itself, with noise and z of its own."""
    return translate_chain(predict, he, by_window(noise), settings.grid, M, c_n, nfe=nfe)


def by_window(noise: CanvasNoise) -> CanvasNoise:
    """Noise and z that differ from window to window, and still depend on seed and place alone."""
    corners = torch.tensor([(w.y, w.x) for w in noise.windows], dtype=torch.int64, device=noise.seeds.device)
    mixed = noise.seeds * 6364136223846793005 + corners[:, 0] * 0x9E3779B1 + corners[:, 1] * 0x85EBCA77  # wraps
    return CanvasNoise(mixed, noise.windows, noise.latent_width, noise.channels)


@dataclass(frozen=True, slots=True, eq=False)
class BridgeState:
    """One step of a bridge method: b samples at point x_t of their chains and the predictions x̂₁ made there.

    ``index`` of the time step, [] or [b]; ``x`` and ``fake`` [b, 3, h, w] of the reference, ``identity`` of the IHC
    branch, ``x_second`` and ``fake_second`` of the other image, ``fake_adjacent`` [2b, 3, h, w] of the neighbours.
    """

    batch: Batch
    draw: Draw
    index: Tensor
    x: Tensor
    fake: Tensor
    identity: Tensor
    x_second: Tensor
    fake_second: Tensor
    fake_adjacent: Tensor | None


class Unsb:
    """UNSB in training. ``width`` is that of the conditioning, 0 without one."""

    turns: Sequence[Turn] = (Turn("D", ("D",)), Turn("E", ("E",)), Turn("G", ("G", "F")))
    needs = Needs(second=True)

    def __init__(self, settings: UnsbSettings, engine: Engine, width: int = 0) -> None:
        self.settings, self.engine, self.grid = settings, engine, settings.grid
        self.layers = nce_layers(settings.blocks)
        generator = engine.place(build_generator(settings, width))
        critic = engine.place(TimedCritic(3, settings.ndf))
        energy = engine.place(TimedCritic(12, settings.ndf))
        heads = engine.place(PatchHeads(generator.feature_widths(self.layers)))
        self.parts: Mapping[str, nn.Module] = {"G": generator, "D": critic, "E": energy, "F": heads}
        self._generator = generator
        self._predict: Predictor = engine.compiled(generator)
        self._encode: Callable[..., list[Tensor]] = engine.compiled(_encoder_of(generator, self.layers))
        self._critic, self._energy = engine.compiled(critic), engine.compiled(energy)
        self._heads = heads

    @property
    def generator(self) -> BridgeGenerator:
        return self._generator

    def translate(
        self,
        he: Tensor,
        noise: CanvasNoise,
        M: Tensor | None = None,
        c_n: Tensor | None = None,
        *,
        nfe: int | None = None,
    ) -> Tensor:
        with self.engine.autocast():
            return translate(self._generator, self.settings, he, noise, M, c_n, nfe)

    # -- a step ------------------------------------------------------------------------------------------------------

    def begin(self, batch: Batch, draw: Draw) -> BridgeState:
        b = len(batch)
        identity = Views(batch.ihc, batch.ref.windows, self._seeds(draw, "identity", b), batch.ref.M, batch.ref.c_n)
        if batch.second is None:
            raise ValueError("UNSB compares every sample with a second one, and the batch has none")
        walked = [batch.ref, identity, batch.second, *([batch.adjacent] if batch.adjacent is not None else [])]
        views = Views.joined(walked)
        noise = self._noise(draw, views)
        until, index = self._time(draw, len(views), b)
        M, c_n = (None if t is None else t.to(self.engine.dtype) for t in (views.M, views.c_n))
        with self.engine.autocast():
            x = forward_chain(self._predict, views.images, until, noise, self.grid, M, c_n)
            at = index.expand(len(views)) if index.ndim == 0 else index
            fake = self._predict(x, at, noise.latent(int(until.max()) if isinstance(until, Tensor) else until), M, c_n)
        return BridgeState(
            batch, draw, index[:b] if index.ndim else index,
            x[:b], fake[:b], fake[b : 2 * b], x[2 * b : 3 * b], fake[2 * b : 3 * b],
            fake[3 * b :] if batch.adjacent is not None else None,
        )  # fmt: skip

    def losses(self, turn: str, state: BridgeState) -> dict[str, Tensor]:
        with self.engine.autocast():
            match turn:
                case "D":
                    return {"critic": self._critic_turn(state)}
                case "E":
                    joint, crossed = self._energies(state, state.fake.detach(), state.fake_second.detach())
                    return {"energy": energy_loss(joint, crossed, self.settings.form, self.settings.per_sample)}
                case _:
                    return self._generator_turn(state)

    def _critic_turn(self, state: BridgeState) -> Tensor:
        images = torch.cat((state.fake.detach(), state.batch.ihc))
        fake, real = self._critic(_times(state.index, len(images)), images).chunk(2)
        return critic_loss(fake, real)

    def _energies(self, state: BridgeState, fake: Tensor, fake_second: Tensor) -> tuple[Tensor, Tensor]:
        """E of every pair with itself and with that of the second sample: two [b, 1, h', w'], in one pass."""
        x, own = torch.cat((state.x, state.x)), torch.cat((fake, fake))
        x_other, other = torch.cat((state.x, state.x_second)), torch.cat((fake, fake_second))
        joint, crossed = self._energy(_times(state.index, len(x)), x, own, x_other, other).chunk(2)
        return joint, crossed

    def _generator_turn(self, state: BridgeState) -> dict[str, Tensor]:
        settings, terms = self.settings, dict[str, Tensor]()
        if settings.gan:
            terms["gan"] = settings.gan * fooling_loss(self._critic(_times(state.index, len(state.fake)), state.fake))
        if settings.sb:
            joint, crossed = self._energies(state, state.fake, state.fake_second)
            loss = bridge_loss(
                state.x, state.fake, joint, crossed, state.index, self.grid, settings.form, settings.per_sample
            )
            terms["sb"] = settings.sb * loss
        if settings.nce:
            terms["nce"] = settings.nce * self._nce(state)
        return terms

    def _nce(self, state: BridgeState) -> Tensor:
        """Structure is kept: features of H&E and prediction, and of IHC and identity, agree where they lie.

        Both pairs are one batch, so that their mean is the half-and-half of the released code; one z serves a sample
        and its source, and the time is that of the start.
        """
        ref, b = state.batch.ref, len(state.batch)
        z = latent(self._seeds(state.draw, "features", b), self._generator.latent_width).repeat(2, 1)
        M, c_n = (
            None if t is None else t.to(self.engine.dtype).repeat(2, *[1] * (t.ndim - 1)) for t in (ref.M, ref.c_n)
        )
        start = torch.zeros(2 * b, dtype=torch.int64, device=z.device)
        with torch.no_grad():
            keys = self._encode(torch.cat((ref.images, state.batch.ihc)), start, z, M, c_n)
        queries = self._encode(torch.cat((state.fake, state.identity)), start, z, M, c_n)
        at = draw_positions(queries, self.settings.positions, state.draw.generator("positions"))
        with torch.no_grad():
            projected = self._heads(keys, at)
        losses = [info_nce(q, k) for q, k in zip(self._heads(queries, at), projected, strict=True)]
        return torch.stack(losses).mean()

    def _noise(self, draw: Draw, views: Views) -> NoiseSource:
        width = self._generator.latent_width
        if not self.settings.as_released:
            return CanvasNoise(views.canvas, views.windows, width)
        n, c, h, w = views.images.shape
        return FreshNoise(
            draw.generator(f"noise from sample {draw.first} on", views.images.device), (n, c, h, w), width
        )

    def _time(self, draw: Draw, views: int, b: int) -> tuple[int | Tensor, Tensor]:
        """Where the chains stop: one index, or one for each sample that its identity and its neighbours share."""
        device = self.engine.device
        if not self.settings.per_sample:
            i = draw.integer("time", self.grid.T)
            return i, torch.full((), i, device=device)
        until = (draw.seeds("time", b) % self.grid.T).repeat(views // b)
        return until, until.to(device, non_blocking=True)

    def _seeds(self, draw: Draw, name: str, count: int) -> Tensor:
        return draw.seeds(name, count, self.engine.device)


def _times(index: Tensor, count: int) -> Tensor:
    """The time index of each of ``count`` images, which are the samples once or several times over."""
    return index.expand(count) if index.ndim == 0 else index.repeat(count // len(index))


def _encoder_of(generator: BridgeGenerator, layers: tuple[int, ...]) -> Callable[..., list[Tensor]]:
    def encode(x: Tensor, t: Tensor, z: Tensor, M: Tensor | None, c_n: Tensor | None) -> list[Tensor]:
        return generator.encode(x, t, z, M, c_n, layers=layers)

    return encode
