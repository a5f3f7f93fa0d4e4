"""Markers can be learned from H&E, and never perfectly."""

from __future__ import annotations

from functools import cache

import numpy as np

from sheafstain.datasets.phantom.markers import membrane_status, nuclear_status
from sheafstain.datasets.phantom.nuclei import Nuclei, Nucleus
from sheafstain.datasets.phantom.specimen import Specimen


@cache
def many() -> list[Specimen]:
    return [Specimen.draw(seed) for seed in range(600)]


def tumour_nuclei(n: int = 4000) -> Nuclei:
    rng = np.random.default_rng(0)
    one = np.ones(n)
    return Nuclei(
        kind=np.full(n, Nucleus.TUMOUR, np.uint8),
        key=rng.integers(0, 2**63, n).astype(np.uint64),
        y=one,
        x=one,
        long=4 * one,
        short=4 * one,
        turn=one,
        dark=rng.uniform(0.6, 1.3, n),
        vesicular=rng.uniform(0, 1, n),
        irregular=one,
        seen=one > 0,
        size=np.exp(0.2 * rng.standard_normal(n)),
        front=rng.uniform(0, 80, n),
        cell=10 * one,
    )


def test_every_grade_is_met_often() -> None:
    shares = np.bincount([s.her2 for s in many()], minlength=4) / len(many())
    assert (shares > 0.1).all()


def test_status_follows_morphology_with_noise() -> None:
    """Spearman correlations with what H&E shows: clearly not 0, clearly not ±1."""
    from scipy.stats import spearmanr

    pleomorphism = [s.pleomorphism for s in many()]
    for status, low, high in (("er", -0.9, -0.4), ("pr", -0.85, -0.3), ("ki67", 0.4, 0.95), ("her2", 0.4, 0.9)):
        r = spearmanr(pleomorphism, [getattr(s, status) for s in many()]).statistic
        assert low < r < high, (status, r)


def test_a_grade_is_what_its_guideline_says() -> None:
    """DAB rises with the grade; 0 stains at most a tenth of the cells, 3+ nearly all of them strongly."""
    nuclei, flat = tumour_nuclei(), np.zeros(4000)
    by_grade = [next(s for s in many() if s.her2 == grade) for grade in range(4)]
    amounts, complete = zip(*(membrane_status(s, nuclei, flat) for s in by_grade), strict=True)
    means = [a.mean() for a in amounts]
    assert means == sorted(means) and means[3] > 4 * means[1]
    assert (amounts[0] > 0).mean() <= 0.1
    assert (amounts[3] > 0.5).mean() > 0.9
    assert list(complete) == sorted(complete)


def test_share_of_positive_nuclei_follows_the_specimen() -> None:
    nuclei, flat = tumour_nuclei(), np.zeros(4000)
    for marker in ("ER", "PR", "Ki67"):
        level = [getattr(s, marker.lower()) for s in many()[:80]]
        share = [(nuclear_status(s, marker, nuclei, flat) > 0).mean() for s in many()[:80]]
        assert np.corrcoef(level, share)[0, 1] > 0.95


def test_status_of_a_nucleus_depends_on_the_nucleus() -> None:
    nuclei, flat = tumour_nuclei(), np.zeros(4000)
    s = next(s for s in many() if 0.4 < s.er < 0.6)
    status = nuclear_status(s, "ER", nuclei, flat)
    again = nuclear_status(s, "ER", nuclei.take(np.arange(4000)[::-1]), flat)
    np.testing.assert_array_equal(status, again[::-1])  # of the nucleus, not of its place in a list
    small, large = nuclei.size < 0.85, nuclei.size > 1.2
    assert (status[small] > 0).mean() > (status[large] > 0).mean() + 0.15
    ki67 = nuclear_status(next(s for s in many() if s.ki67 > 0.3), "Ki67", nuclei, flat)
    assert (ki67[large] > 0).mean() > (ki67[small] > 0).mean() + 0.1
