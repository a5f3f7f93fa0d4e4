"""Tables of reports for people: the terminal, Markdown, and LaTeX in the layout of the paper's metric tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from sheafstain.metrics.report import SIDE_TITLES, Report, Result
from sheafstain.metrics.texts import markdown_table
from sheafstain.slides.write import NOTICE

Marks = Mapping[str, Mapping[str, str]]  # by metric, then by method: "best" or "second"

ARROWS = {"lower": "↓", "higher": "↑", "zero": "→0", "none": ""}
_LATEX_ARROWS = {"lower": r"$\downarrow$", "higher": r"$\uparrow$", "zero": r"$\to$0", "none": ""}
_LATEX_SPECIAL = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)
# The columns of the paper's two appendix tables; what it does not have follows in tables of its own.
PAPER = (
    ("Image quality and stitching", ("fid", "kid", "lpips", "dists", "psnr", "ssim", "ts")),
    ("Biomarker quantification", ("dab-r", "dab-kl", "dab-jsd", "miod", "fod")),
)
_WIDEST = 7


def shown(value: float | None) -> str:
    """Four decimals, as in the paper; one where the number is large (a sum over pixels), two digits where tiny."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if 0 < abs(value) < 0.00005:
        text = f"{abs(value):.1e}"
    else:
        text = f"{abs(value):.4f}" if abs(value) < 1000 else f"{abs(value):.1f}"
    return f"−{text}" if value < 0 else text


def with_std(result: Result | None) -> str:
    if result is None or result.value is None:
        return "–"
    return shown(result.value) + ("" if result.std is None else f" ± {shown(result.std)}")


def interval(result: Result) -> str:
    return "" if result.interval is None else f"[{shown(result.interval[0])}, {shown(result.interval[1])}]"


def titled(result: Result) -> str:
    return result.label + ARROWS[result.better]


def columns_of(report: Report) -> tuple[str, ...]:
    """The sides that any metric has a value of."""
    return tuple(side for side in SIDE_TITLES if any(side in result.sides for result in report.results))


def heading(report: Report) -> list[str]:
    sides = [SIDE_TITLES[side] for side in columns_of(report)]
    return ["metric", "value ± std", "95 % interval", "N", *sides]


def rows(report: Report) -> list[list[str]]:
    return [
        [
            titled(result),
            with_std(result),
            interval(result),
            str(result.n),
            *(shown(result.sides[side]) if side in result.sides else "" for side in columns_of(report)),
        ]
        for result in report.results
    ]


def remarks(report: Report) -> list[str]:
    """All that has to be known beside the table, one line each."""
    said = together((result.label, note) for result in report.results for note in result.notes)
    said += together((fault.name, f"left out, {fault.reason}") for fault in report.left_out)
    said += [f"{fault.name} was not scored: {fault.reason}" for fault in report.unreadable]
    if report.unpaired:
        said.append(f"{len(report.unpaired)} files without a partner were left out: {_list(report.unpaired)}")
    if report.resized:
        said.append(f"{len(report.resized)} images were resized: {report.protocol['resize']}")
    said += [
        f"{len(files)} file{'s were' if len(files) > 1 else ' was'} converted ({how}): {_list(files)}"
        for how, files in _by_text((fault.name, fault.reason) for fault in report.converted).items()
    ]
    if sample := report.protocol["sample"]:
        said.append(f"{sample['limit']} of {sample['of']} images, drawn with seed {sample['seed']}")
    return said


def together(said: Iterable[tuple[str, str]]) -> list[str]:
    """``A, B: text`` for what is said of several in the same words."""
    return [f"{', '.join(who)}: {text}" for text, who in _by_text(said).items()]


def _by_text(said: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for who, text in said:
        found.setdefault(text, []).append(who)
    return found


def _list(names: Sequence[str], most: int = 10) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def facts(result: Result) -> str:
    """Definition, library, resizer and the rest, on one line."""
    parts = []
    for key, value in result.details.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{name} {said}" for name, said in value.items())
        parts.append(str(value) if key in ("definition", "library") else f"{key} {value}")
    return "; ".join(part for part in parts if part)


def intervals_said(report: Report) -> list[str]:
    """How the spread of each kind of number was had; and why some have none."""
    said = ["± is the sample standard deviation over images (over subsets for KID subsets)."]
    if any(result.interval for result in report.results):
        bootstrap = report.protocol["bootstrap"]
        said.append(f"Intervals: {bootstrap['method']}, {bootstrap['resamples']} draws, seed {bootstrap['seed']}.")
    if errors := [result.label for result in report.results if "pred" in result.sides]:
        said.append(f"{', '.join(errors)}: the value is the error, the columns on the right are the quantity itself.")
    none = ((result.label, f"no interval, {result.no_interval}") for result in report.results if result.no_interval)
    return said + together(none)


def markdown(report: Report) -> str:
    lines = [
        f"# {report.name}: {len(report.images)} images",
        "",
        f"{_made_with(report)}; {NOTICE}.",
        "",
        *markdown_table(heading(report), rows(report)),
        "",
        *(f"- {line}" for line in intervals_said(report)),
        *(f"- {line}" for line in remarks(report)),
        "",
        "## What the numbers are",
        "",
        *markdown_table(["metric", "definition"], [[r.label, facts(r)] for r in report.results], ":--"),
        "",
        *(f"- {key}: {value}" for key, value in _set_protocol(report)),
        "",
    ]
    return "\n".join(lines)


def _made_with(report: Report) -> str:
    return ", ".join(f"{name} {version}" for name, version in report.versions.items())


def _set_protocol(report: Report) -> Iterable[tuple[str, str]]:
    for key, value in report.protocol.items():
        if key not in ("metrics", "bootstrap"):
            yield key, "–" if value in (None, "") else str(value)


def escape(text: str) -> str:
    return text.translate(_LATEX_SPECIAL)


def latex(report: Report) -> str:
    """The paper's tables with one row for this method, and a table of intervals; definitions stand in comments."""
    lines = [*comments([report]), *paper_tables([report], {})]
    sides = [SIDE_TITLES[side] for side in columns_of(report)]
    lines += [
        r"\begin{table}[t]",
        rf"  \caption{{{escape(report.name)}: mean$\pm$std over images, 95\,\% bootstrap interval, number of images.}}",
        r"  \centering\footnotesize",
        rf"  \begin{{tabular}}{{l{'c' * (3 + len(sides))}}}",
        r"    \toprule",
        "    " + " & ".join(["Metric", "Value", r"95\,\% interval", "$N$", *map(escape, sides)]) + r" \\",
        r"    \midrule",
    ]
    for result, row in zip(report.results, rows(report), strict=True):
        lines.append(
            "    " + " & ".join([latex_title(result), _latex_value(result), *map(latex_text, row[2:])]) + r" \\"
        )
    lines += [r"    \bottomrule", r"  \end{tabular}", r"\end{table}", ""]
    return "\n".join(lines)


def paper_tables(reports: Sequence[Report], marks: Marks, keys: Sequence[str] = ()) -> list[str]:
    """Methods as rows, metrics as columns, best in bold and second best underlined; the real images as yardstick.

    ``keys`` are the metrics; all when empty.
    """
    first: dict[str, Result] = {}
    for report in reports:
        for result in report.results:
            if not keys or result.key in keys:
                first.setdefault(result.key, result)
    lines = []
    for caption, keys in _tables(first):
        lines += [
            r"\begin{table}[t]",
            rf"  \caption{{{caption}, {len(reports[0].images)} images. Values are mean$\pm$std over images."
            + (" Best in bold, second best underlined.}" if marks else "}"),
            r"  \centering",
            r"  \footnotesize",
            r"  \setlength{\tabcolsep}{3pt}",
            r"  \resizebox{\textwidth}{!}{%",
            rf"  \begin{{tabular}}{{l{'c' * len(keys)}}}",
            r"    \toprule",
            "    Method & " + " & ".join(latex_title(first[key]) for key in keys) + r" \\",
            r"    \midrule",
        ]
        for report in reports:
            cells = [_marked_latex(report.result(key), marks.get(key, {}).get(report.name, "")) for key in keys]
            lines.append(f"    {escape(report.name)} & " + " & ".join(cells) + r" \\")
        lines += _yardsticks(first, keys)
        lines += [r"    \bottomrule", r"  \end{tabular}%", r"  }", r"\end{table}", ""]
    return lines


def _tables(first: Mapping[str, Result]) -> Iterable[tuple[str, tuple[str, ...]]]:
    named = {key for _, keys in PAPER for key in keys}
    rest = [key for key in first if key not in named]
    further = [("Further metrics", tuple(rest[i : i + _WIDEST])) for i in range(0, len(rest), _WIDEST)]
    for caption, keys in (*PAPER, *further):
        if present := tuple(key for key in keys if key in first):
            yield caption, present


def _yardsticks(first: Mapping[str, Result], keys: Sequence[str]) -> list[str]:
    """A row for the real IHC, and one for the H&E, where the score is the quantity itself and not an error."""
    lines = []
    for side in ("real", "source"):
        values = [first[key].sides.get(side) if "pred" not in first[key].sides else None for key in keys]
        if any(value is not None for value in values):
            cells = " & ".join("" if value is None else latex_text(shown(value)) for value in values)
            lines.append(rf"    \textit{{{escape(SIDE_TITLES[side])}}} & {cells} \\")
    return [r"    \midrule", *lines] if lines else []


def latex_title(result: Result) -> str:
    return (result.latex or escape(result.label)) + _LATEX_ARROWS[result.better]


def _latex_value(result: Result | None) -> str:
    if result is None or result.value is None:
        return "--"
    spread = "" if result.std is None else rf"{{\scriptsize$\pm${shown(result.std)}}}"
    return latex_text(shown(result.value)) + spread


def _marked_latex(result: Result | None, mark: str) -> str:
    command = {"best": r"\textbf", "second": r"\underline"}.get(mark)
    text = _latex_value(result)
    return f"{command}{{{text}}}" if command else text


def latex_text(text: str) -> str:
    """Text of a cell, as LaTeX."""
    text = escape(text).replace("−∞", r"$-\infty$").replace("∞", r"$\infty$")
    return text.replace("–", "--").replace("−", "$-$")


def comments(reports: Sequence[Report]) -> list[str]:
    """Definitions for who opens the file; a comment, since a table has no room for them."""
    lines = [f"% {NOTICE}"]
    for report in reports:
        lines.append(f"% {report.name}: {len(report.images)} images; {_made_with(report)}")
        lines += [f"%   {result.label}: {facts(result)}; N {result.n}" for result in report.results]
        lines += [f"%   {line}" for line in (*intervals_said(report), *remarks(report))]
    return [line.replace("\n", " ") for line in lines]
