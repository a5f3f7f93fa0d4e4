"""Two or more reports side by side: marks as in the paper's tables, and each run against the first, image by image.

Only like is compared with like: reports that were not measured by one protocol on the same images are refused, and the
refusal says what differs. Borders alone may differ between reports, since a method's own seams are where it has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sheafstain.errors import SheafStainError, UsageError
from sheafstain.metrics import tables
from sheafstain.metrics.report import FORMAT, Report
from sheafstain.metrics.state import differences, to_json
from sheafstain.metrics.statistics import LEVEL, RESAMPLES, Paired, holm, paired
from sheafstain.metrics.texts import csv_text, json_text, markdown_table
from sheafstain.slides.write import NOTICE

_OWN = frozenset({"ts-borders", "seam-excess-borders"})  # may be measured at other borders, which is told
# Metrics are compared one by one, and images by name and content; seeds of intervals make nothing incomparable.
_APART = frozenset({"metrics", "borders", "bootstrap", "sample"})
TEST = "Wilcoxon signed-rank test, two-sided, zero differences dropped; Holm's correction over all tests shown"


@dataclass(frozen=True, slots=True)
class Pairing:
    """One metric of one report against the first report."""

    key: str
    label: str
    better: str
    first: str
    other: str
    paired: Paired
    p_holm: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    reports: tuple[Report, ...]
    keys: tuple[str, ...]
    marks: tables.Marks
    pairings: tuple[Pairing, ...]
    remarks: tuple[str, ...]
    seed: int


def compare(reports: Sequence[Report], metrics: Sequence[str] = (), seed: int = 0) -> Comparison:
    """Every report against the first; ``metrics`` are keys, all when empty."""
    if len(reports) < 2:
        raise UsageError("compare takes two reports or more")
    names = [report.name for report in reports]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SheafStainError(f"two reports are called {twice}; score with --name to tell them apart")
    measured = list(dict.fromkeys(result.key for report in reports for result in report.results))
    if unknown := [key for key in metrics if key not in measured]:
        raise UsageError(f"--metrics {unknown[0]}: in none of the reports; they have {', '.join(measured)}")
    keys = [key for key in measured if not metrics or key in metrics]
    remarks = [remark for other in reports[1:] for remark in _agree(reports[0], other, keys)]
    remarks += [
        f"{report.name} has no {_label(reports, key)}" for report in reports for key in keys if _lacks(report, key)
    ]
    return Comparison(
        reports=tuple(reports),
        keys=tuple(keys),
        marks={key: _marks(reports, key) for key in keys},
        pairings=tuple(_pairings(reports, keys, seed)),
        remarks=tuple(remarks),
        seed=seed,
    )


def _label(reports: Iterable[Report], key: str) -> str:
    return next(result.label for report in reports if (result := report.result(key)))


def _lacks(report: Report, key: str) -> bool:
    return report.result(key) is None


def _agree(first: Report, other: Report, keys: Sequence[str]) -> list[str]:
    """Raises where the two cannot be compared; returns what else a reader should know."""
    said: list[str] = []
    if len(first.images) != len(other.images):
        said.append(f"N is {len(first.images)} and {len(other.images)}")
    one, two = ({image.name: image.hashes["real"] for image in report.images} for report in (first, other))
    if strangers := sorted(one.keys() ^ two.keys()):
        said.append(f"{len(strangers)} images are in one only ({_few(strangers)})")
    if changed := sorted(name for name in one.keys() & two.keys() if one[name] != two[name]):
        said.append(f"the real images differ for {len(changed)} ({_few(changed)})")
    for key in sorted({*first.protocol, *other.protocol} - _APART):
        said += _two(differences(first.protocol.get(key), other.protocol.get(key), key))
    remarks: list[str] = []
    for key in keys:
        a, b = (report.protocol["metrics"].get(key) for report in (first, other))
        if a is None or b is None or _lacks(first, key) or _lacks(other, key):
            continue
        libraries = {"library": a["library"]}, {"library": b["library"]}
        remarks += _two(differences(*libraries, key), f"{first.name} and {other.name}: ")
        found = _two(differences(a | libraries[0], b | libraries[0], key))
        if key in _OWN:
            remarks += [f"{first.name} and {other.name}: {text}" for text in found]
        else:
            said += found
    if said:
        raise SheafStainError(
            f"{first.name} and {other.name} cannot be compared: {'; '.join(said)}; score both in the same way"
        )
    return remarks


def _two(found: Iterable[str], who: str = "") -> list[str]:
    """``library of fid was A, now B`` said of two reports instead of two times."""
    return [f"{who}{text.replace(' was ', ' is ', 1).replace(', now ', ' and ', 1)}" for text in found]


def _few(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def _rank(value: float, better: str) -> float:
    return {"lower": value, "higher": -value, "zero": abs(value)}[better]


def _marks(reports: Sequence[Report], key: str) -> dict[str, str]:
    """Best, and from three methods on second best; equal values share a mark."""
    values: dict[str, float] = {}
    for report in reports:
        result = report.result(key)
        if result is not None and result.value is not None and result.better != "none":
            values[report.name] = _rank(result.value, result.better)
    if len(values) < 2:
        return {}
    order = sorted(set(values.values()))
    places = dict(zip(order, ("best", "second"), strict=False)) if len(values) > 2 else {order[0]: "best"}
    return {name: places[value] for name, value in values.items() if value in places}


def _pairings(reports: Sequence[Report], keys: Sequence[str], seed: int) -> list[Pairing]:
    first, *others = reports
    rows: dict[str, dict[str, Mapping[str, float]]] = {
        report.name: {image.name: image.values for image in report.images} for report in reports
    }
    order = sorted(rows[first.name])
    found: list[tuple[str, str, str, str, Paired]] = []
    for other in others:
        for key in keys:
            a, b = first.result(key), other.result(key)
            if a is None or b is None or a.better == "none" or not first.images or key not in first.images[0].values:
                continue
            columns = ([rows[report.name][name][key] for name in order] for report in (first, other))
            found.append((key, a.label, a.better, other.name, paired(*columns, better=a.better, seed=seed)))
    corrected = holm([result.p for *_, result in found])
    return [
        Pairing(key, label, better, first.name, other, result, p)
        for (key, label, better, other, result), p in zip(found, corrected, strict=True)
    ]


# --- what is written -------------------------------------------------------------------------------------------------

PAIRED_HEADING = (
    "metric",
    "against",
    "mean difference",
    "95 % interval",
    "Wilcoxon p",
    "p (Holm)",
    "better : worse : equal",
    "N",
)


def heading(comparison: Comparison) -> list[str]:
    return ["metric", *(report.name for report in comparison.reports), "real IHC"]


def rows(comparison: Comparison, style: Mapping[str, str]) -> list[list[str]]:
    """One row a metric, one column a method. ``style`` holds a pattern for "best" and for "second"."""
    found = []
    for key in comparison.keys:
        results = {report.name: report.result(key) for report in comparison.reports}
        some = next(result for result in results.values() if result is not None)
        marks = comparison.marks[key]
        cells = [
            style.get(marks.get(name, ""), "{}").format(tables.with_std(result)) for name, result in results.items()
        ]
        # Beside an error the quantity itself would be no yardstick.
        real = some.sides.get("real") if "pred" not in some.sides else None
        found.append([tables.titled(some), *cells, "" if real is None else tables.shown(real)])
    return found


def paired_rows(comparison: Comparison) -> list[list[str]]:
    return [
        [
            pairing.label + tables.ARROWS[pairing.better],
            f"{pairing.other} − {pairing.first}",
            tables.shown(pairing.paired.difference),
            "–"
            if pairing.paired.interval is None
            else f"[{tables.shown(pairing.paired.interval[0])}, {tables.shown(pairing.paired.interval[1])}]",
            _p(pairing.paired.p),
            _p(pairing.p_holm),
            f"{pairing.paired.wins} : {pairing.paired.losses} : {pairing.paired.ties}",
            str(pairing.paired.n),
        ]
        for pairing in comparison.pairings
    ]


def _p(p: float | None) -> str:
    if p is None:
        return "–"
    return f"{p:.4f}" if p >= 0.0001 else f"{p:.1e}"


def notes(comparison: Comparison) -> list[str]:
    """All that has to be known beside the tables, one line each."""
    said = [
        "Values are mean ± sample standard deviation over images.",
        f"Differences are per image; the interval is a percentile bootstrap ({LEVEL:.0%}, {RESAMPLES} draws, "
        f"seed {comparison.seed}) of their mean. {TEST}. For a metric →0 magnitudes are compared.",
    ]
    if alone := [key for key in comparison.keys if not any(p.key == key for p in comparison.pairings)]:
        labels = ", ".join(_label(comparison.reports, key) for key in alone)
        said.append(f"No test for {labels}: not a score of single images.")
    said += [
        f"{pairing.label}, {pairing.other} − {pairing.first}: {pairing.paired.left_out} images are left out, "
        "because a value is undefined or infinite."
        for pairing in comparison.pairings
        if pairing.paired.left_out
    ]
    told = ((report.name, remark) for report in comparison.reports for remark in tables.remarks(report))
    return [*said, *tables.together(told), *comparison.remarks]


def as_json(comparison: Comparison) -> dict[str, Any]:
    first = comparison.reports[0]
    return {
        "format": FORMAT,
        "notice": NOTICE,
        "n": len(first.images),
        "protocol": dict(first.protocol),
        "test": TEST,
        "bootstrap": {"level": LEVEL, "resamples": RESAMPLES, "seed": comparison.seed},
        "methods": [
            {
                "name": report.name,
                "results": {
                    key: {
                        "value": None if result.value is None else to_json(result.value),
                        "std": result.std,
                        "interval": result.interval,
                        "n": result.n,
                        "mark": comparison.marks[key].get(report.name),
                    }
                    for key in comparison.keys
                    if (result := report.result(key)) is not None
                },
            }
            for report in comparison.reports
        ],
        "pairs": [asdict(pairing) for pairing in comparison.pairings],
        "notes": notes(comparison),
    }


def texts(comparison: Comparison) -> dict[str, str]:
    """The comparison by suffix of the file."""
    return {
        ".json": json_text(as_json(comparison)),
        ".csv": to_csv(comparison),
        ".md": markdown(comparison),
        ".tex": latex(comparison),
    }


def to_csv(comparison: Comparison) -> str:
    """One row an image and metric, one column a method."""
    names = [report.name for report in comparison.reports]
    by_name = [{image.name: image.values for image in report.images} for report in comparison.reports]
    rows = (
        [key, image, *(report[image].get(key, math.nan) for report in by_name)]
        for key in comparison.keys
        for image in sorted(by_name[0])
        if any(key in report[image] for report in by_name)
    )
    return csv_text(["metric", "image", *names], rows)


def markdown(comparison: Comparison) -> str:
    first = comparison.reports[0]
    lines = [
        f"# {', '.join(report.name for report in comparison.reports)}: {len(first.images)} images",
        "",
        f"Best in bold, second best underlined; {NOTICE}.",
        "",
        *markdown_table(heading(comparison), rows(comparison, {"best": "**{}**", "second": "<u>{}</u>"})),
        "",
        "## Image by image",
        "",
        *markdown_table(PAIRED_HEADING, paired_rows(comparison)),
        "",
        *(f"- {note}" for note in notes(comparison)),
        "",
        "## What the numbers are",
        "",
        *markdown_table(["metric", "definition"], _definitions(comparison), ":--"),
        "",
    ]
    return "\n".join(lines)


def _definitions(comparison: Comparison) -> Iterable[list[str]]:
    for key in comparison.keys:
        result = next(result for report in comparison.reports if (result := report.result(key)))
        yield [result.label, tables.facts(result)]


def latex(comparison: Comparison) -> str:
    marks = {key: comparison.marks[key] for key in comparison.keys}
    lines = [*tables.comments(comparison.reports), *tables.paper_tables(comparison.reports, marks, comparison.keys)]
    lines += [
        r"\begin{table}[t]",
        r"  \caption{Paired differences per image: mean, 95\,\% bootstrap interval, Wilcoxon signed-rank $p$ (Holm).}",
        r"  \centering\footnotesize",
        r"  \begin{tabular}{llccccc}",
        r"    \toprule",
        r"    Metric & Against & Difference & 95\,\% interval & $p$ & $p_\mathrm{Holm}$ & Better : worse : equal \\",
        r"    \midrule",
    ]
    for pairing, row in zip(comparison.pairings, paired_rows(comparison), strict=True):
        result = next(result for report in comparison.reports if (result := report.result(pairing.key)))
        cells = [tables.latex_title(result), *map(tables.latex_text, row[1:7])]
        lines.append("    " + " & ".join(cells) + r" \\")
    return "\n".join([*lines, r"    \bottomrule", r"  \end{tabular}", r"\end{table}", ""])
