"""SheafStain: UNSB whose windows are conditioned on one section and held together where they overlap (paper, Eq. 3–15).

To a step of UNSB come two perpendicular neighbours of every reference window: their chains and their graded predictions
join the same two batches, they see the same canvas noise and the same z (D12) and their own cut of the section (D4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from sheafstain.bridge.chain import Predictor, translate_chain
from sheafstain.bridge.losses import Form
from sheafstain.bridge.noise import CanvasNoise
from sheafstain.bridge.schedule import TimeGrid
from sheafstain.methods.batch import Batch, Needs
from sheafstain.methods.engine import Engine
from sheafstain.methods.method import Tiling
from sheafstain.methods.unsb import BridgeState, Unsb, UnsbSettings
from sheafstain.nets.generator import BridgeGenerator
from sheafstain.sheaf.losses import cocycle_loss, dab_loss, fourier_loss, sheaf_loss, stain_align_loss

Conditioning = Literal["lattice", "neighborhood", "none"]
Tokens = Callable[[Tensor], Tensor]  # images [n, 3, 224, 224] in [0, 1] → patch tokens [n, t, d], with a gradient

TILING = Tiling(side=256, stride=192, refine=True, free=True)


@dataclass(frozen=True, slots=True)
class SheafStainSettings:
    """Network, bridge and losses; the defaults are the paper's (appendix Training Procedure, "Loss weights").

    Parameters
    ----------
    ngf, ndf, blocks, T, tau, gan, sb, nce, form, per_sample, positions
        As for UNSB.
    conditioning
        Where M and c_n come from (D1), or ``none``.
    sheaf, cocycle, fourier, dab, stain_align
        Weights of the losses of Eq. 4, 5, 13, 12 and 14; 0 leaves a loss out.
    alpha
        Balance of structure against tone in the sheaf loss (Eq. 4).
    stain_align_from
        First epoch, counted from 1, in which stain-align is active: the last 50 of 400.
    """

    ngf: int = 64
    ndf: int = 64
    blocks: int = 9
    T: int = 5
    tau: float = 0.01
    conditioning: Conditioning = "lattice"
    gan: float = 1.0
    sb: float = 1.0
    nce: float = 1.0
    sheaf: float = 1.0
    cocycle: float = 0.1
    fourier: float = 0.5
    dab: float = 0.1
    stain_align: float = 1.0
    alpha: float = 1.0
    stain_align_from: int = 351
    form: Form = "released"
    per_sample: bool = False
    positions: int = 256

    @property
    def grid(self) -> TimeGrid:
        return TimeGrid(self.T, self.tau)

    @property
    def unsb(self) -> UnsbSettings:
        """The part that UNSB shares."""
        shared = ("ngf", "ndf", "blocks", "T", "tau", "gan", "sb", "nce", "form", "per_sample", "positions")
        return UnsbSettings(**{name: getattr(self, name) for name in shared})


def build_generator(settings: SheafStainSettings, width: int) -> BridgeGenerator:
    return BridgeGenerator(settings.ngf, settings.blocks, 0 if settings.conditioning == "none" else width)


def translate(
    predict: Predictor,
    settings: SheafStainSettings,
    he: Tensor,
    noise: CanvasNoise,
    M: Tensor | None,
    c_n: Tensor | None,
    nfe: int | None,
) -> Tensor:
    """Every window cuts its part of one field of noise and shares one z with its image (D12)."""
    return translate_chain(predict, he, noise, settings.grid, M, c_n, nfe=nfe)


class SheafStain(Unsb):
    """SheafStain in training.

    ``width`` is that of the encoder's tokens. ``tokens`` is the encoder itself for stain-align, which alone needs it in
    every step; without it that loss must be off.
    """

    def __init__(
        self, settings: SheafStainSettings, engine: Engine, width: int = 0, tokens: Tokens | None = None
    ) -> None:
        conditioned = settings.conditioning != "none"
        if conditioned and not width:
            raise ValueError(f"conditioning {settings.conditioning} needs the width of an encoder")
        if settings.stain_align and tokens is None:
            raise ValueError("stain-align compares tokens of the encoder, and there is none: set its weight to 0")
        super().__init__(settings.unsb, engine, width if conditioned else 0)
        self.own, self.tokens = settings, tokens
        self.needs = Needs(adjacent=bool(settings.sheaf or settings.cocycle), second=True, sections=conditioned)

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
            return translate(self._generator, self.own, he, noise, M, c_n, nfe)

    def _generator_turn(self, state: BridgeState) -> dict[str, Tensor]:
        own, batch = self.own, state.batch
        terms = super()._generator_turn(state)
        if state.fake_adjacent is not None and batch.adjacent is not None:
            terms |= self._overlaps(state.fake, state.fake_adjacent, batch)
        fake, real = (state.fake + 1) / 2, (batch.ihc + 1) / 2
        if own.fourier:
            terms["fourier"] = own.fourier * fourier_loss(fake, real)
        if own.dab:
            terms["dab"] = own.dab * dab_loss(fake, real)
        if own.stain_align and self.tokens is not None and state.draw.epoch >= own.stain_align_from:
            terms["stain_align"] = own.stain_align * stain_align_loss(fake, real, self.tokens)
        return terms

    def _overlaps(self, ref: Tensor, adjacent: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The sheaf and cocycle losses between the reference and its neighbours (paper, Eq. 4 and 5; D5)."""
        assert batch.adjacent is not None
        b, windows = len(batch), batch.adjacent.windows
        adj1, adj2 = adjacent.chunk(2)
        at, at1, at2 = batch.ref.windows, windows[:b], windows[b:]
        terms: dict[str, Tensor] = {}
        if self.own.sheaf:
            terms["sheaf"] = self.own.sheaf * sheaf_loss(ref, adj1, at, at1, self.own.alpha)
        if self.own.cocycle:
            loss = cocycle_loss((ref, adj1, adj2), (at, at1, at2), self.own.alpha)
            terms["cocycle"] = self.own.cocycle * loss
        return terms


def without_stain_align(settings: SheafStainSettings) -> SheafStainSettings:
    """The same without the one loss that needs the encoder in every step."""
    return replace(settings, stain_align=0.0)
