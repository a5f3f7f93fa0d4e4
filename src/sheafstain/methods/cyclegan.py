"""CycleGAN: there and back again without pairs (Zhu et al. 2017)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from sheafstain.bridge.losses import critic_loss, fooling_loss
from sheafstain.bridge.noise import CanvasNoise
from sheafstain.methods.batch import Batch, Draw, Needs
from sheafstain.methods.engine import Engine
from sheafstain.methods.method import Tiling, Turn
from sheafstain.nets.critics import PatchCritic
from sheafstain.nets.generator import ResnetGenerator


@dataclass(frozen=True, slots=True)
class CycleganSettings:
    """``cycle`` and ``identity`` weigh the L1 losses of both ways; ``pool`` is how many old fakes a critic is shown."""

    ngf: int = 64
    ndf: int = 64
    blocks: int = 9
    gan: float = 1.0
    cycle: float = 10.0
    identity: float = 5.0
    pool: int = 50

    @property
    def conditioning(self) -> Literal["none"]:
        return "none"


TILING = Tiling(side=256, stride=256, free=True)


def build_generator(settings: CycleganSettings, width: int) -> ResnetGenerator:
    return ResnetGenerator(settings.ngf, settings.blocks)


def translate(
    predict: nn.Module,
    settings: CycleganSettings,
    he: Tensor,
    noise: CanvasNoise,
    M: Tensor | None,
    c_n: Tensor | None,
    nfe: int | None,
) -> Tensor:
    """One pass; there is no noise in it."""
    with torch.no_grad():
        return predict(he)


class FakePool(nn.Module):
    """Old fakes for a critic: each new one is, half of the time, swapped with one from the pool.

    A network without parameters, so that a checkpoint holds it and a resumed run sees the same fakes. Every process
    keeps its own pool; a checkpoint holds the first one's.
    """

    fakes: Tensor
    filled: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("fakes", torch.empty(0))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def swapped(self, fakes: Tensor, generator: torch.Generator) -> Tensor:
        """[b, 3, h, w] → [b, 3, h, w]."""
        if not self.size:
            return fakes
        if not self.fakes.numel():
            self.fakes = fakes.new_zeros((self.size, *fakes.shape[1:]))
        shown, filled = fakes.clone(), int(self.filled)
        chances = torch.rand(len(fakes), generator=generator).tolist()
        places = torch.randint(self.size, (len(fakes),), generator=generator).tolist()
        for k, (chance, place) in enumerate(zip(chances, places, strict=True)):
            if filled < self.size:
                self.fakes[filled] = fakes[k]
                filled += 1
            elif chance < 0.5:
                shown[k] = self.fakes[place]
                self.fakes[place] = fakes[k]
        self.filled.fill_(filled)
        return shown

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: object) -> None:
        # The shape of the pool is that of the windows, which the first step tells: take the saved one as it is.
        self.fakes = torch.empty_like(state_dict[f"{prefix}fakes"], device=self.filled.device)
        super()._load_from_state_dict(state_dict, prefix, *rest)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, eq=False)
class CycleState:
    """Images of both stains and their translations, all [b, 3, h, w]."""

    he: Tensor
    ihc: Tensor
    fake_ihc: Tensor
    fake_he: Tensor
    draw: Draw


class Cyclegan:
    """CycleGAN in training; the generators' turn comes first."""

    turns: Sequence[Turn] = (Turn("G", ("G", "back")), Turn("D", ("D", "D_back")))
    needs = Needs()

    def __init__(self, settings: CycleganSettings, engine: Engine) -> None:
        self.settings, self.engine = settings, engine
        self._generator = engine.place(build_generator(settings, 0))
        back = engine.place(build_generator(settings, 0))
        critics = [engine.place(PatchCritic(3, settings.ndf)) for _ in range(2)]
        pools = [FakePool(settings.pool).to(engine.device) for _ in range(2)]
        self.parts: Mapping[str, nn.Module] = {
            "G": self._generator, "back": back, "D": critics[0], "D_back": critics[1], "pool": pools[0],
            "pool_back": pools[1],
        }  # fmt: skip
        self._forth, self._back = engine.compiled(self._generator), engine.compiled(back)
        self._critics = [engine.compiled(critic) for critic in critics]
        self._pools = pools

    @property
    def generator(self) -> ResnetGenerator:
        return self._generator

    def begin(self, batch: Batch, draw: Draw) -> CycleState:
        he, ihc = batch.ref.images, batch.ihc
        with self.engine.autocast():
            return CycleState(he, ihc, self._forth(he), self._back(ihc), draw)

    def losses(self, turn: str, state: CycleState) -> dict[str, Tensor]:
        with self.engine.autocast():
            return self._critic_turn(state) if turn == "D" else self._generator_turn(state)

    def _critic_turn(self, state: CycleState) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = {}
        sides = (("critic", state.fake_ihc, state.ihc), ("critic_back", state.fake_he, state.he))
        for (name, fake, real), critic, pool in zip(sides, self._critics, self._pools, strict=True):
            random = state.draw.generator(f"{name} pool from sample {state.draw.first} on")
            shown = pool.swapped(fake.detach(), random)
            judged_fake, judged_real = critic(torch.cat((shown, real))).chunk(2)
            terms[name] = critic_loss(judged_fake, judged_real)
        return terms

    def _generator_turn(self, state: CycleState) -> dict[str, Tensor]:
        settings, terms = self.settings, dict[str, Tensor]()
        if settings.gan:
            fooled = [fooling_loss(c(f)) for c, f in zip(self._critics, (state.fake_ihc, state.fake_he), strict=True)]
            terms["gan"] = settings.gan * sum(fooled[1:], fooled[0])
        if settings.cycle:
            there, here = self._back(state.fake_ihc), self._forth(state.fake_he)
            terms["cycle"] = settings.cycle * _both(there, state.he, here, state.ihc)
        if settings.identity:
            kept, kept_back = self._forth(state.ihc), self._back(state.he)
            terms["identity"] = settings.identity * _both(kept, state.ihc, kept_back, state.he)
        return terms

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


def _both(a: Tensor, a_true: Tensor, b: Tensor, b_true: Tensor) -> Tensor:
    return functional.l1_loss(a, a_true) + functional.l1_loss(b, b_true)
