"""pix2pix: a U-Net held to the registered IHC pixel by pixel, and a critic that sees both (Isola et al. 2017).

Translation uses the running statistics of batch norm and no dropout, where the released code keeps both in training
mode: with those a window would depend on the batch it is in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from sheafstain.bridge.noise import CanvasNoise
from sheafstain.methods.batch import Batch, Draw, Needs
from sheafstain.methods.engine import Engine
from sheafstain.methods.method import Tiling, Turn
from sheafstain.nets.critics import PatchCritic
from sheafstain.nets.generator import UnetGenerator


@dataclass(frozen=True, slots=True)
class Pix2pixSettings:
    """``depth`` halvings in the U-Net, whose windows are multiples of 2 to that power; weights of the two losses."""

    ngf: int = 64
    ndf: int = 64
    depth: int = 8
    gan: float = 1.0
    l1: float = 100.0

    @property
    def conditioning(self) -> Literal["none"]:
        return "none"


TILING = Tiling(side=256, stride=256, multiple=256)


def build_generator(settings: Pix2pixSettings, width: int) -> UnetGenerator:
    return UnetGenerator(settings.ngf, settings.depth)


def translate(
    predict: nn.Module,
    settings: Pix2pixSettings,
    he: Tensor,
    noise: CanvasNoise,
    M: Tensor | None,
    c_n: Tensor | None,
    nfe: int | None,
) -> Tensor:
    """One pass; there is no noise in it."""
    with torch.no_grad():
        return predict(he)


@dataclass(frozen=True, slots=True, eq=False)
class PairState:
    """``he``, ``ihc`` and ``fake``, all [b, 3, h, w]."""

    he: Tensor
    ihc: Tensor
    fake: Tensor


class Pix2pix:
    """pix2pix in training; the critic's turn comes first."""

    turns: Sequence[Turn] = (Turn("D", ("D",)), Turn("G", ("G",)))
    needs = Needs()

    def __init__(self, settings: Pix2pixSettings, engine: Engine) -> None:
        self.settings, self.engine = settings, engine
        self._generator = engine.place(build_generator(settings, 0))
        critic = engine.place(PatchCritic(6, settings.ndf, "batch"))
        self.parts: Mapping[str, nn.Module] = {"G": self._generator, "D": critic}
        self._predict, self._critic = engine.compiled(self._generator), engine.compiled(critic)

    @property
    def generator(self) -> UnetGenerator:
        return self._generator

    def begin(self, batch: Batch, draw: Draw) -> PairState:
        # Dropout is the method's only noise. Drawn from the step's own generator, so that a resumed run repeats it.
        with torch.random.fork_rng(_devices(self.engine)), self.engine.autocast():
            torch.manual_seed(draw.integer(f"dropout from sample {draw.first} on", 2**63))
            return PairState(batch.ref.images, batch.ihc, self._predict(batch.ref.images))

    def losses(self, turn: str, state: PairState) -> dict[str, Tensor]:
        settings = self.settings
        with self.engine.autocast():
            if turn == "D":
                fake = self._judged(state.he, state.fake.detach(), real=False)
                return {"critic": 0.5 * (fake + self._judged(state.he, state.ihc, real=True))}
            terms: dict[str, Tensor] = {}
            if settings.gan:
                terms["gan"] = settings.gan * self._judged(state.he, state.fake, real=True)
            if settings.l1:
                terms["l1"] = settings.l1 * functional.l1_loss(state.fake, state.ihc)
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
        training = self._generator.training
        self._generator.eval()
        try:
            with self.engine.autocast():
                return translate(self._generator, self.settings, he, noise, M, c_n, nfe)
        finally:
            self._generator.train(training)

    def _judged(self, he: Tensor, ihc: Tensor, *, real: bool) -> Tensor:
        """Binary cross entropy of the logits on a pair; real and fake apart, since batch norm would mix them."""
        logits = self._critic(torch.cat((he, ihc), dim=1)).float()
        return functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))


def _devices(engine: Engine) -> list[torch.device]:
    return [engine.device] if engine.device.type == "cuda" else []
