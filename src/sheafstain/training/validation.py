"""A look at held-out images on the way: each translated whole, glued, and measured (paper, Eq. 15 for the energy).

Every method is looked at over the same cover, windows that overlap by a quarter, so that energies can be compared and
every method has a defect; figures to be quoted come from ``translate`` and ``score``, which use a method's own tiling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sheafstain.bridge.noise import CanvasNoise
from sheafstain.methods.method import Method
from sheafstain.metrics.chromogen import dab_r
from sheafstain.metrics.fidelity import psnr, ssim
from sheafstain.sheaf.cover import Lattice, cut
from sheafstain.sheaf.defect import DirichletEnergy
from sheafstain.sheaf.glue import glue
from sheafstain.training.conditioning import Conditioning
from sheafstain.training.data import HeldOut
from sheafstain.training.sampling import Place
from sheafstain.training.store import unit
from sheafstain.window import CELL, Size, Window

AT_ONCE = 16  # windows in one batch
BETTER = {"dab_r": max, "psnr": max, "ssim": max, "energy": min}


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """One held-out image: ``he``, ``output`` and ``target`` uint8 [h, w, 3], ``defect`` float32 [h, w]."""

    name: str
    he: np.ndarray
    output: np.ndarray
    target: np.ndarray
    defect: np.ndarray
    figures: dict[str, float]


def look(method: Method, held_out: HeldOut, side: int, device: torch.device) -> list[Look]:
    """Translate every held-out image in windows of ``side`` px, always with the same noise, and measure it."""
    looks: list[Look] = []
    for k, (name, he, ihc) in enumerate(zip(held_out.names, held_out.he, held_out.ihc, strict=True)):
        size = Size(*he.shape[:2])
        windows = list(Lattice.over(size, side, side * 3 // 4 // CELL * CELL))
        energy = DirichletEnergy(size)
        pieces: list[tuple[Window, np.ndarray, str]] = []
        for some in (windows[start : start + AT_ONCE] for start in range(0, len(windows), AT_ONCE)):
            output = _translate(method, he, k, some, held_out.conditioning, device)
            for window, pixels in zip(some, output, strict=True):
                energy.add(window, pixels)
                pieces.append((window, pixels, "lattice"))
        glued = glue(pieces, size)  # type: ignore[arg-type]
        assert glued.defect is not None
        figures = _figures(glued.pixels, ihc) | {"energy": energy.energy}
        looks.append(Look(name, he, glued.pixels, ihc, glued.defect, figures))
    return looks


def mean_figures(looks: Sequence[Look]) -> dict[str, float]:
    """Means over the images where a figure is defined."""
    means: dict[str, float] = {}
    for name in looks[0].figures:
        values = [look.figures[name] for look in looks if math.isfinite(look.figures[name])]
        means[name] = math.fsum(values) / len(values) if values else math.nan
    return means


def is_better(name: str, value: float, than: float | None) -> bool:
    return math.isfinite(value) and (than is None or (value != than and BETTER[name](value, than) == value))


def _translate(
    method: Method,
    he: np.ndarray,
    image: int,
    windows: Sequence[Window],
    conditioning: Conditioning | None,
    device: torch.device,
) -> np.ndarray:
    """float32 [n, h, w, 3] on the scale of [0, 1]."""
    pixels = unit(torch.from_numpy(np.stack([cut(he, window) for window in windows])).to(device))
    seeds = torch.full((len(windows),), image, dtype=torch.int64, device=device)
    noise = CanvasNoise(seeds, windows, getattr(method.generator, "latent_width", 0))
    M: Tensor | None = None
    c_n: Tensor | None = None
    if conditioning is not None:
        M, c_n = (t.float() for t in conditioning.cut([[Place(image, window, 0, image)] for window in windows]))
    output = method.translate(pixels, noise, M, c_n)
    return ((output + 1) / 2).clamp(0, 1).permute(0, 2, 3, 1).contiguous().cpu().numpy()


def _figures(output: np.ndarray, target: np.ndarray) -> dict[str, float]:
    pred, real = (torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255 for image in (output, target))
    return {"psnr": float(psnr(pred, real)), "ssim": float(ssim(pred, real)), "dab_r": float(dab_r(pred, real))}
