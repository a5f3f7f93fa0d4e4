"""Which nucleus or cell carries the marker, and how strongly.

The chance follows what H&E shows (the traits of the specimen, the size and chromatin of the nucleus, its place in the
nest) and the rest is chance, so no model can be certain. Nothing here knows how the DAB will look.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from sheafstain.datasets.phantom.field import uniform
from sheafstain.datasets.phantom.nuclei import Nuclei, Nucleus
from sheafstain.datasets.phantom.specimen import Marker, Specimen

# By HER2 grade (0, 1+, 2+, 3+), after the guideline's words: share of cells stained, intensity, completeness.
_HER2_SHARE = (0.04, 0.45, 0.85, 0.98)
_HER2_STRENGTH = (0.22, 0.34, 0.72, 1.75)
_HER2_COMPLETE = (0.15, 0.35, 0.72, 0.97)


def nuclear_status(s: Specimen, marker: Marker, nuclei: Nuclei, patch: NDArray[np.floating]) -> NDArray[np.float32]:
    """DAB amount of every nucleus, [n], for ER, PR and Ki-67. ``patch``: slow variation at each nucleus, [n]."""
    chance, strength = (_hormone if marker in ("ER", "PR") else _proliferation)(s, marker, nuclei, patch)
    positive = _coin(nuclei, marker) < chance
    spread = 0.55 + 0.9 * _coin(nuclei, marker + " strength")
    return np.where(positive, strength * spread, 0).astype(np.float32)


def _hormone(s: Specimen, marker: Marker, n: Nuclei, patch) -> tuple[NDArray, NDArray]:
    share = s.er if marker == "ER" else s.pr
    # Small regular nuclei express, large open ones have lost it; expression varies over a few hundred µm.
    logit = _logit(share) + 1.1 * patch - 2.2 * (n.size - 1) - 0.8 * (n.vesicular - s.vesicular)
    chance = np.where(n.kind == Nucleus.TUMOUR, _logistic(1.3 * logit), 0.0)
    chance = np.where(n.kind == Nucleus.EPITHELIUM, 0.35, chance)  # normal ducts express in a scatter of cells
    return chance, (0.5 + 0.9 * share) * np.exp(0.2 * patch)


def _proliferation(s: Specimen, marker: Marker, n: Nuclei, patch) -> tuple[NDArray, NDArray]:
    # Dark, large nuclei near the invasive edge divide; so do some lymphocytes.
    logit = _logit(s.ki67) + 0.7 * patch + 2.5 * (n.size - 1) + 1.4 * (n.dark - 0.8) + 0.9 * np.exp(-n.front / 25) - 0.4
    chance = np.where(n.kind == Nucleus.TUMOUR, _logistic(logit), 0.0)
    for kind, share in (
        (Nucleus.MITOSIS, 1.0),
        (Nucleus.LYMPHOCYTE, 0.05),
        (Nucleus.EPITHELIUM, 0.03),
        (Nucleus.FIBROBLAST, 0.01),
    ):
        chance = np.where(n.kind == kind, share, chance)
    return chance, np.full(len(n), 1.35)


def membrane_status(s: Specimen, nuclei: Nuclei, patch: NDArray[np.floating]) -> tuple[NDArray[np.float32], float]:
    """HER2: the DAB amount of every cell's membrane [n], and the share of each membrane's length that is stained."""
    share, strength, complete = (values[s.her2] for values in (_HER2_SHARE, _HER2_STRENGTH, _HER2_COMPLETE))
    chance = _logistic(_logit(share) + 0.9 * patch + 1.2 * (nuclei.size - 1))
    stained = (_coin(nuclei, "HER2") < chance) & np.isin(nuclei.kind, (Nucleus.TUMOUR, Nucleus.MITOSIS))
    amount = strength * np.exp(0.22 * patch) * (0.6 + 0.8 * _coin(nuclei, "HER2 strength"))
    faint = 0.1 * (nuclei.kind == Nucleus.EPITHELIUM)  # normal epithelium is the test's inner control: at most 1+
    return np.where(stained, amount, faint).astype(np.float32), complete


def _coin(n: Nuclei, name: str) -> NDArray[np.floating]:
    return uniform(zlib.crc32(name.encode()), 500, n.key.view(np.int64))


def _logit(p: float) -> float:
    p = min(max(p, 0.004), 0.996)
    return float(np.log(p / (1 - p)))


def _logistic(x: NDArray[np.floating]) -> NDArray[np.floating]:
    return 1 / (1 + np.exp(-x))
