"""How an image is to be translated: everything that its pixels depend on besides the input and the weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from sheafstain.bridge.noise import CanvasNoise
from sheafstain.errors import UsageError
from sheafstain.methods.method import Tiling
from sheafstain.methods.model import ModelConfig
from sheafstain.sheaf import crops
from sheafstain.sheaf.cover import DENSE, STRIDE
from sheafstain.window import CELL

Conditioning = Literal["lattice", "neighborhood", "none"]
Cover = Literal["refined", "lattice", "dense", "whole"]
LARGEST_SEED = 2**63 - 2**16  # samples count up from it


class Translator(Protocol):
    """What is needed of a model; ``methods.model.Model`` is one."""

    @property
    def hash(self) -> str: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def conditioning(self) -> str: ...
    @property
    def tiling(self) -> Tiling: ...
    @property
    def config(self) -> ModelConfig: ...
    @property
    def latent_width(self) -> int: ...
    @property
    def evaluations(self) -> int: ...

    def translate(
        self,
        he: Tensor,
        noise: CanvasNoise,
        M: Tensor | None = None,
        c_n: Tensor | None = None,
        *,
        nfe: int | None = None,
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class StainProtocol:
    """Resolved: nothing in it is left to a default.

    Parameters
    ----------
    conditioning
        Where M and c_n come from (D1).
    cover
        ``refined``: windows on a lattice and extra ones at extremes of detail (D7). ``lattice``: without the extra
        ones. ``dense``: every 128 px, for a defect everywhere (D8). ``whole``: as few and as large pieces as there can
        be, each translated at once, which is the native field of view of fully convolutional methods (D24).
    side, stride
        Of the windows, in pixels.
    crop_stride
        Of the crops that the encoder sees on a lattice.
    nfe
        Evaluations of the generator (D15).
    seed
        Names z and the canvas noise; sample k is what the seed ``seed`` + k alone gives.
    samples
        How many pictures are drawn; the output is their mean, and their spread is written beside it.
    glass
        Whether windows without tissue are translated too.
    """

    conditioning: Conditioning = "none"
    cover: Cover = "refined"
    side: int = 256
    stride: int = STRIDE
    multiple: int = CELL
    crop_stride: int = crops.STRIDE
    nfe: int = 1
    seed: int = 0
    samples: int = 1
    glass: bool = False

    @classmethod
    def of(
        cls,
        model: Translator,
        *,
        conditioning: Conditioning | None = None,
        cover: Cover | None = None,
        nfe: int | None = None,
        seed: int = 0,
        samples: int = 1,
        glass: bool = False,
        crop_stride: int = crops.STRIDE,
    ) -> StainProtocol:
        """The model's own way where nothing is said."""
        tiling = model.tiling
        cover = cover or ("refined" if tiling.refine else "lattice")
        _among("cover", cover, get_args(Cover))
        if cover == "whole" and not tiling.free:
            raise UsageError(f"this model takes windows of {tiling.side} px and no others; --cover whole is not for it")
        given = _among("conditioning", conditioning or model.conditioning, get_args(Conditioning))
        if given != "none" and model.conditioning == "none":
            raise UsageError(f"this model was trained without conditioning; --conditioning {given} is not for it")
        if cover == "whole" and given == "neighborhood":
            raise UsageError("a neighborhood is that of one window; with --cover whole take --conditioning lattice")
        evaluations = model.evaluations if nfe is None else nfe
        if not 1 <= evaluations <= model.evaluations:
            raise UsageError(f"--nfe is 1 to {model.evaluations} for this model, not {evaluations}")
        if not 0 <= seed <= LARGEST_SEED:
            raise UsageError(f"a seed is a number from 0 to {LARGEST_SEED}, not {seed}")
        if not 1 <= samples <= 256:
            raise UsageError(f"samples are 1 to 256, not {samples}")
        return cls(
            conditioning=given,  # type: ignore[arg-type]
            cover=cover,
            side=tiling.side,
            stride=DENSE if cover == "dense" else tiling.stride,
            multiple=max(CELL, tiling.multiple),
            crop_stride=crop_stride,
            nfe=evaluations,
            seed=seed,
            samples=samples,
            glass=glass,
        )

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(self.seed + k for k in range(self.samples))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _among(what: str, given: str, known: tuple[str, ...]) -> str:
    if given not in known:
        raise UsageError(f"there is no {what} {given!r}; there are {', '.join(known)}")
    return given
