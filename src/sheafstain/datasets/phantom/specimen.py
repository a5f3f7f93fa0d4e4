"""One imagined patient: the traits that hold for a whole block of tissue, and what they make likely for each marker.

The traits are what a pathologist reads from H&E (nuclear size and pleomorphism, gland formation, mitoses, necrosis,
lymphocytes). Marker status is drawn from them with noise, so that a model can learn it and can never be certain:
that is the situation of real virtual staining.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from sheafstain.datasets.phantom.field import uniform

Marker = Literal["HER2", "ER", "PR", "Ki67"]
MARKERS: tuple[Marker, ...] = ("HER2", "ER", "PR", "Ki67")
GRADES = ("0", "1+", "2+", "3+")


@dataclass(frozen=True)
class Draws:
    """Named draws from one seed: adding a trait later leaves every other trait as it was.

    With a ``spread`` below 1 quantiles come from that share around the median: what is usual, and less of it.
    """

    seed: int
    spread: float = 1.0

    def unit(self, name: str) -> float:
        drawn = float(uniform(self.seed, zlib.crc32(name.encode()), np.zeros(1, np.int64))[0])
        return drawn if self.spread == 1 else 0.5 + (drawn - 0.5) * self.spread

    def between(self, name: str, low: float, high: float) -> float:
        return low + (high - low) * self.unit(name)

    def gauss(self, name: str, sigma: float = 1.0) -> float:
        return sigma * NormalDist().inv_cdf(min(max(self.unit(name), 1e-9), 1 - 1e-9))

    def chance(self, name: str, probability: float) -> bool:
        return self.unit(name) < probability


@dataclass(frozen=True)
class Specimen:
    """Traits of a specimen; lengths in µm, shares and scores in [0, 1] unless said otherwise."""

    seed: int
    # architecture
    tumour: float  # how much of the tissue is tumour, as a threshold shift in units of the nest field
    nest: float  # wavelength of the nests
    gland: float  # share of nests with lumina
    cords: float  # share of trabecular growth
    fat: float  # threshold shift of the fat province
    lymph: float  # threshold shift of the lymphocyte province
    necrosis: float  # threshold shift of the necrosis province
    loose: float  # how open the stroma is
    cleft: float  # width of the retraction cleft around nests
    # cells
    nucleus: float  # mean radius of a tumour nucleus
    crowding: float  # cell diameter in units of nuclear diameter
    pleomorphism: float
    vesicular: float  # 0 hyperchromatic … 1 open chromatin with a rim and nucleoli
    mitotic: float
    amphophilic: float  # how much haematoxylin the cytoplasm of tumour takes
    vacuoles: float
    # status
    her2: int  # index into GRADES
    er: float  # share of positive tumour nuclei
    pr: float
    ki67: float

    @classmethod
    def draw(cls, seed: int) -> Specimen:
        d = Draws(seed)
        pleomorphism = d.unit("pleomorphism")
        gland = min(max(d.between("gland", 0.0, 1.2) - 0.55 * pleomorphism, 0.0), 1.0)
        mitotic = min(max(0.75 * pleomorphism + d.gauss("mitotic", 0.2), 0.0), 1.0)
        necrosis = d.between("necrosis", -0.9, 0.5) + 0.5 * pleomorphism
        er_logit = 3.2 * (0.62 - pleomorphism) + 2.2 * (gland - 0.35) + d.gauss("er", 0.9)
        er = _logistic(1.6 * er_logit)
        return cls(
            seed=seed,
            tumour=d.between("tumour", -0.15, 0.95),
            nest=d.between("nest", 95, 200) - 45 * gland,
            gland=gland,
            cords=d.unit("cords") ** 2,
            fat=d.between("fat", -2.6, -0.1),
            lymph=d.between("lymph", -1.1, 0.5),
            necrosis=necrosis,
            loose=d.unit("loose"),
            cleft=max(d.between("cleft", -3.0, 4.5), 0.0),
            nucleus=2.75 + 1.35 * pleomorphism + d.gauss("nucleus", 0.22),
            crowding=d.between("crowding", 1.16, 1.62),
            pleomorphism=pleomorphism,
            vesicular=min(max(0.15 + 0.6 * pleomorphism + d.gauss("vesicular", 0.22), 0.0), 1.0),
            mitotic=mitotic,
            amphophilic=min(max(0.45 * pleomorphism + d.between("amphophilic", -0.1, 0.65), 0.0), 1.0),
            vacuoles=max(d.between("vacuoles", -0.8, 1.0), 0.0),
            her2=_her2_grade(pleomorphism, gland, necrosis, d),
            er=er,
            pr=er * _logistic(1.5 * (er - 0.45) + d.gauss("pr", 1.4) + 0.5),
            ki67=min(0.02 + 0.62 * mitotic**1.4 * d.between("ki67", 0.55, 1.25), 0.95),
        )


def _her2_grade(pleomorphism: float, gland: float, necrosis: float, d: Draws) -> int:
    """Flatter than life (about 18, 22, 29, 31 % for 0, 1+, 2+, 3+), so that every grade is met often."""
    score = 2.0 * (pleomorphism - 0.5) - 0.9 * (gland - 0.35) + 0.7 * necrosis + d.gauss("her2", 0.55)
    return int(np.searchsorted((-0.85, -0.15, 0.65), score))


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))
