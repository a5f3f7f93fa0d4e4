"""Several classifiers on one test set: the paper's table with what it lacks, and all ROC curves in one figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sheafstain.errors import SheafStainError, UsageError
from sheafstain.metrics.texts import markdown_table
from sheafstain.slides.write import NOTICE
from sheafstain.studies.her2 import TEST_OF_PAPER
from sheafstain.studies.her2_cases import HIGH, LOW
from sheafstain.studies.her2_measures import MEASURES, Confusion, Measure, auroc_difference
from sheafstain.studies.her2_report import CAVEATS, TITLES, Result, shown
from sheafstain.whole import whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Accuracy, F1 and AUROC as printed (paper, table "HER2 Low/High classification on BCI"; the ceiling: appendix).
PAPER: dict[str, tuple[float, float, float]] = {
    "pix2pix": (0.660, 0.774, 0.626),
    "CycleGAN": (0.708, 0.826, 0.577),
    "PSPStain": (0.652, 0.776, 0.527),
    "D-VST": (0.658, 0.761, 0.650),
    "UNIStainNet": (0.724, 0.835, 0.737),
    "UNSB": (0.524, 0.640, 0.460),
    "SheafStain": (0.766, 0.844, 0.794),
    "real IHC": (0.974, 0.982, 0.997),
}
_COLOURS = ("#2f5fa7", "#b3402e", "#6b8e3a", "#c9862b", "#7a4b94", "#3a8e8b", "#a33a6f", "#5c5c5c")
_STYLES = ("-", "--", "-.", ":")
_GREY = "#8a8a8a"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Results on the same test images, the first of them the one that the others are held against."""

    results: tuple[Result, ...]
    differences: tuple[Measure | None, ...]  # of AUROC from the first; None for the first itself

    @classmethod
    def of(cls, results: Sequence[Result]) -> Comparison:
        first = results[0]
        for result in results[1:]:
            if result.test["sha256"] != first.test["sha256"] or _names(result) != _names(first):
                raise SheafStainError(
                    f"{result.name}: was tested on other images than {first.name} "
                    f"({result.test['folder']}, {first.test['folder']}); results of one test set can be compared"
                )
            if result.positive != first.positive:
                raise SheafStainError(
                    f"{result.name}: has {result.positive} as positive, {first.name} has {first.positive}; run one of "
                    "the two again with the other --positive, which does not train anew"
                )
        names = [result.name for result in results]
        if twice := {name for name in names if names.count(name) > 1}:
            raise UsageError(f"two of the results are called {', '.join(sorted(twice))}; give each its --name")
        truth, _, score = first.columns
        differences = [auroc_difference(truth, score, result.columns[2]) for result in results[1:]]
        return cls(tuple(results), (None, *differences))

    @property
    def heading(self) -> list[str]:
        return ["trained on", *(TITLES[key] for key in MEASURES), f"AUROC − {self.results[0].name}"]

    def rows(self) -> list[list[str]]:
        """A row for each classifier, for each constant answer and, on BCI's whole test set, for each of the paper's."""
        rows = []
        for result, difference in zip(self.results, self.differences, strict=True):
            cells = [f"{result.measures[key].value:.3f} {shown(result.measures[key])}" for key in MEASURES]
            rows.append([result.name, *cells, "" if difference is None else _signed(difference)])
        first = self.results[0]
        for answer, measures in first.constants.items():
            rows.append([answer, *(f"{measures[key].value:.3f}" for key in MEASURES), ""])
        return rows + (_rows_of_paper() if self.like_the_paper else [])

    @property
    def like_the_paper(self) -> bool:
        """Is this the paper's test set, as far as counts can tell?"""
        first = self.results[0]
        return first.positive == HIGH and {name: first.test[name] for name in TEST_OF_PAPER} == TEST_OF_PAPER

    def notes(self) -> list[str]:
        """What the classifiers do not share besides their training images, and how each departs from the paper."""
        said = []
        first = self.results[0]
        for key in first.protocol:
            values = {str(result.protocol.get(key)) for result in self.results}
            if len(values) > 1:
                each = ", ".join(f"{result.name} {_brief(result.protocol.get(key))}" for result in self.results)
                said.append(f"The protocols differ in {key}: {each}.")
        for departure in dict.fromkeys(line for result in self.results for line in result.deviations):
            of = [result.name for result in self.results if departure in result.deviations]
            who = "all" if len(of) == len(self.results) else ", ".join(of)
            said.append(f"Departs from the paper ({who}): {departure}.")
        return said

    def as_json(self) -> dict[str, Any]:
        return {
            "results": [
                {"name": result.name, **{key: asdict(value) for key, value in result.measures.items()}}
                | ({} if difference is None else {"auroc_difference": asdict(difference)})
                for result, difference in zip(self.results, self.differences, strict=True)
            ],
            "constant_answers": {
                answer: {key: value.value for key, value in measures.items()}
                for answer, measures in self.results[0].constants.items()
            },
            "notes": self.notes(),
        }

    def to_markdown(self) -> str:
        first = self.results[0]
        lines = [
            "# HER2 Low (0, 1+) against High (2+, 3+)",
            "",
            f"{first.test['images']} test images of real IHC, {first.test[LOW]} Low and {first.test[HIGH]} High; "
            f"{first.positive} is positive. In brackets 95 % bootstrap intervals over images. {NOTICE[0].upper()}"
            f"{NOTICE[1:]}.",
            "",
            *markdown_table(self.heading, self.rows()),
            "",
        ]
        if self.like_the_paper:
            lines += [
                "Paper: accuracy, F1 and AUROC as printed; the others are what accuracy and F1 leave possible on 273 "
                "Low and 704 High images.",
                "",
            ]
        return "\n".join([*lines, *(f"- {line}" for line in (*CAVEATS, *self.notes())), ""])


def _names(result: Result) -> list[tuple[str, str]]:
    return [(image.name, image.grade) for image in result.images]


def _signed(difference: Measure) -> str:
    low, high = difference.interval or (float("nan"), float("nan"))
    return f"{difference.value:+.3f} [{low:+.3f}, {high:+.3f}]"


def _brief(value: object) -> str:
    text = str(value)
    return f"{text[:12]}…" if len(text) > 40 else text


def _rows_of_paper() -> list[list[str]]:
    rows = []
    for name, (accuracy, f1, auroc) in PAPER.items():
        counts = Confusion.implied(accuracy, f1, TEST_OF_PAPER[HIGH], TEST_OF_PAPER[LOW])
        implied = (
            counts.balanced_accuracy,
            counts.tp / (counts.tp + counts.fn),
            counts.tn / (counts.tn + counts.fp),
        )
        printed = (f"{value:.3f}" for value in (accuracy, f1, auroc))
        rows.append([f"paper: {name}", *printed, *(f"≈ {value:.2f}" for value in implied), ""])
    return rows


def draw_roc(results: Sequence[Result], path: Path) -> Path:
    """All curves in one figure (paper, appendix "ROC Analysis"); a ring marks the answers at a probability of 0.5.

    Earlier curves are wider, so that one which lies on another still shows.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SheafStainError("the figure needs matplotlib: pip install 'sheafstain[plots]'") from error
    figure = Figure(figsize=(6.2, 6.0), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=9)
    ax.plot((0, 1), (0, 1), color=_GREY, lw=1, ls=":", label="chance, and every constant answer: 0.500")
    for i, result in enumerate(results):
        colour, style = _COLOURS[i % len(_COLOURS)], _STYLES[i // len(_COLOURS) % len(_STYLES)]
        roc, auroc, counts = result.roc, result.measures["auroc"], result.confusion
        label = f"{result.name}: {auroc.value:.3f} {shown(auroc)}"
        wide = 1.6 + 2.0 * (len(results) - 1 - i) / len(results)
        ax.plot(roc.false_positive, roc.true_positive, style, color=colour, lw=wide, label=label)
        at = counts.fp / (counts.fp + counts.tn), counts.tp / (counts.tp + counts.fn)
        ax.plot(*at, "o", color=colour, mfc="white", ms=5 + 1.5 * wide, mew=1.6, clip_on=False, zorder=3)
    ax.plot([], [], "o", color=_GREY, mfc="white", mew=1.6, label="answers at a probability of 0.5")
    first = results[0]
    other = LOW if first.positive == HIGH else HIGH
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1.005)
    ax.set_aspect("equal")
    ax.set_xlabel(f"share of the {first.test[other]} {other} images answered {first.positive}", fontsize=9)
    ax.set_ylabel(f"share of the {first.test[first.positive]} {first.positive} images answered so", fontsize=9)
    ax.set_title("HER2 Low against High, real IHC: AUROC and 95 % interval over images", fontsize=9.5, loc="left")
    ax.legend(fontsize=8, frameon=False, loc="lower right")
    return _save(figure, path)


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as part:
        figure.savefig(part, dpi=150, format="png", metadata={"Description": NOTICE})
    return path
