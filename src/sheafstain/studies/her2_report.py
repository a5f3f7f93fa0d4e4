"""The result of one classifier as JSON, CSV and Markdown, with all that has to be known beside the numbers."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from sheafstain.metrics.protocol import version_of
from sheafstain.metrics.statistics import LEVEL, RESAMPLES
from sheafstain.metrics.texts import csv_text, json_text, markdown_table, read_json
from sheafstain.slides.write import NOTICE
from sheafstain.studies.her2 import FIXED, Protocol
from sheafstain.studies.her2_cases import CLASS, GRADES, HIGH, LOW, RESIZER, CaseSet
from sheafstain.studies.her2_measures import Confusion, Measure, Roc, Values, constant, measure

FORMAT = 1
TITLES = {
    "accuracy": "accuracy",
    "f1": "F1",
    "auroc": "AUROC",
    "balanced_accuracy": "balanced accuracy",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
}
CAVEATS = (
    "Patients: BCI's names tell neither slide nor patient (51 slides gave its pairs), so images of one patient may be "
    "in training and test, which flatters every classifier. Nor are images of one slide independent: the intervals are "
    "drawn over images and are too narrow for new patients.",
    "The split: 2+ counts as High. It is the equivocal grade, decided by in situ hybridisation, and the split does not "
    "avoid it. Nor is this the clinical HER2-low, which is 1+, or 2+ without amplification.",
    "One training: another seed gives another classifier, and the intervals do not hold that. Train with several "
    "before a small difference is believed.",
    "A constant answer is worth what its column says. F1 and accuracy reward it where classes are uneven; AUROC and "
    "balanced accuracy do not.",
)


@dataclass(frozen=True, slots=True)
class Scored:
    """One test image."""

    name: str
    grade: str
    p_high: float


@dataclass(frozen=True, slots=True)
class Result:
    """All that is known of one classifier."""

    name: str
    trained_on: str  # "translated" or "real IHC"
    positive: str
    protocol: Mapping[str, Any]
    deviations: tuple[str, ...]
    train: Mapping[str, Any]
    test: Mapping[str, Any]
    losses: tuple[float, ...]
    images: tuple[Scored, ...]
    measures: Mapping[str, Measure]
    versions: Mapping[str, str]

    @classmethod
    def of(
        cls,
        name: str,
        trained_on: str,
        positive: str,
        protocol: Protocol,
        weights: str,
        train: CaseSet,
        test: CaseSet,
        losses: Sequence[float],
        p_high: Values,
    ) -> Self:
        images = tuple(Scored(case.name, case.grade, float(p)) for case, p in zip(test.cases, p_high, strict=True))
        bootstrap = {"method": "percentile, over images", "draws": RESAMPLES, "level": LEVEL, "seed": 0}
        return cls(
            name=name,
            trained_on=trained_on,
            positive=positive,
            protocol={**protocol.as_json(), "weights": weights, **FIXED, "bootstrap": bootstrap},
            deviations=tuple(protocol.deviations(train, test)),
            train=_about(train),
            test=_about(test),
            losses=tuple(losses),
            images=images,
            measures=measure(*columns(images, positive)),
            versions={"python": platform.python_version()}
            | {package: version_of(package) for package in ("sheafstain", "torch", "torchvision", "numpy", "scipy")},
        )

    @property
    def columns(self) -> tuple[Values, Values, Values]:
        return columns(self.images, self.positive)

    @property
    def confusion(self) -> Confusion:
        truth, answer, _ = self.columns
        return Confusion.of(truth, answer)

    @property
    def constants(self) -> dict[str, dict[str, Measure]]:
        """What always answering High, and always Low, gives on these images."""
        truth = self.columns[0]
        return {f"always {answer}": constant(truth, answer == self.positive) for answer in (HIGH, LOW)}

    @property
    def roc(self) -> Roc:
        truth, _, score = self.columns
        return Roc.of(truth, score)

    def as_json(self) -> dict[str, Any]:
        roc = self.roc
        return {
            "format": FORMAT,
            "task": "HER2 Low (0, 1+) against High (2+, 3+)",
            "notice": NOTICE,
            "name": self.name,
            "trained_on": self.trained_on,
            "tested_on": "real IHC",
            "positive": self.positive,
            "measures": {key: asdict(value) for key, value in self.measures.items()},
            "confusion": asdict(self.confusion),
            "constant_answers": {
                answer: {key: value.value for key, value in measures.items()}
                for answer, measures in self.constants.items()
            },
            "caveats": list(CAVEATS),
            "departures_from_the_paper": list(self.deviations),
            "protocol": dict(self.protocol),
            "train": dict(self.train),
            "test": dict(self.test),
            "versions": dict(self.versions),
            "losses": list(self.losses),
            "roc": {
                "false_positive": roc.false_positive.tolist(),
                "true_positive": roc.true_positive.tolist(),
                "threshold": [None, *roc.threshold[1:].tolist()],  # the first corner: nothing is positive
            },
            "images": [asdict(image) for image in self.images],
        }

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Self:
        """Confusion, constants and ROC are not read: they are computed from the images."""
        if said["format"] != FORMAT:
            raise ValueError(f"format {said['format']}")
        return cls(
            name=said["name"],
            trained_on=said["trained_on"],
            positive=said["positive"],
            protocol=said["protocol"],
            deviations=tuple(said["departures_from_the_paper"]),
            train=said["train"],
            test=said["test"],
            losses=tuple(said["losses"]),
            images=tuple(Scored(**image) for image in said["images"]),
            measures={
                key: Measure(value["value"], None if value["interval"] is None else tuple(value["interval"]))
                for key, value in said["measures"].items()
            },
            versions=said["versions"],
        )

    def to_text(self) -> str:
        return json_text(self.as_json())

    def to_csv(self) -> str:
        """One row a test image."""
        rows = (
            [image.name, image.grade, CLASS[image.grade], image.p_high, HIGH if image.p_high >= 0.5 else LOW]
            for image in self.images
        )
        return csv_text(["image", "grade", "truth", "p_high", "answer"], rows)

    def rows(self) -> list[list[str]]:
        constants = self.constants.values()
        return [
            [
                TITLES[key],
                f"{value.value:.4f}",
                shown(value),
                *(f"{measures[key].value:.4f}" for measures in constants),
            ]
            for key, value in self.measures.items()
        ]

    @property
    def heading(self) -> list[str]:
        return [f"{self.positive} positive", "value", "95 % interval", *self.constants]

    def to_markdown(self) -> str:
        counts = self.confusion
        other = LOW if self.positive == HIGH else HIGH
        table = (
            [self.positive, str(counts.tp), str(counts.fn)],
            [other, str(counts.fp), str(counts.tn)],
        )
        lines = [
            f"# {self.name}: HER2 Low (0, 1+) against High (2+, 3+)",
            "",
            f"Trained on {self.train['images']} images ({self.trained_on}), tested on {self.test['images']} of real "
            f"IHC. {NOTICE[0].upper()}{NOTICE[1:]}.",
            "",
            *markdown_table(self.heading, self.rows()),
            "",
            *markdown_table(["truth", f"answered {self.positive}", f"answered {other}"], table),
            "",
            "## Before this is quoted",
            "",
            *(f"- {line}" for line in CAVEATS),
            "",
            "## Departures from the paper's protocol",
            "",
            *(f"- {line}" for line in (self.deviations or ("none that can be seen from here",))),
            "",
            "## Protocol",
            "",
            *(f"- {key}: {_said(value)}" for key, value in self.protocol.items()),
            f"- train: {_said(self.train)}",
            f"- test: {_said(self.test)}",
            f"- versions: {_said(self.versions)}",
            "",
        ]
        return "\n".join(lines)


def columns(images: Sequence[Scored], positive: str) -> tuple[Values, Values, Values]:
    """Truth, answer and score [n] for that positive class. An image at exactly 0.5 is answered High either way."""
    high = np.array([CLASS[image.grade] == HIGH for image in images], np.float64)
    p_high = np.array([image.p_high for image in images], np.float64)
    answer = (p_high >= 0.5).astype(np.float64)
    return (high, answer, p_high) if positive == HIGH else (1 - high, 1 - answer, -p_high)


def shown(value: Measure) -> str:
    return "" if value.interval is None else f"[{value.interval[0]:.3f}, {value.interval[1]:.3f}]"


def _said(value: object) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    return ", ".join(f"{key} {f'({_said(v)})' if isinstance(v, Mapping) else v}" for key, v in value.items())


def _about(cases: CaseSet) -> dict[str, Any]:
    counts = cases.counts
    return {
        "images": len(cases.cases),
        **{name: counts[name] for name in (LOW, HIGH)},
        "grades": {grade: counts[grade] for grade in GRADES},
        "folder": str(cases.folder),
        "size": [cases.size.h, cases.size.w],
        "resized": cases.resized,
        "resizer": RESIZER if cases.resized else "none",
        "sha256": cases.sha256,
    }


def read_result(path: Path) -> Result:
    return read_json(path, Result.from_json, "result", "her2")
