"""The pictures of docs/metrics.md, from what ``fool.py`` and ``fool_curves.py`` measured.

    python benchmarks/fool_figures.py WORK [--field f0016]

Every picture shows phantoms. The table and the strips show means over all fields, the small pictures one field.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt
from fool import DOCS
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from outputs import BY_KEY, OUTPUTS, REAL
from PIL import Image

METRICS = {  # key: name in figures, digits
    "psnr": ("PSNR ↑", 2),
    "ssim": ("SSIM ↑", 3),
    "lpips": ("LPIPS ↓", 3),
    "dists": ("DISTS ↓", 3),
    "fd": ("FD ↓", 2),
    "kd": ("KD×10³ ↓", 1),
    "fd-encoder": ("FD enc. ↓", 2),
    "kd-encoder": ("KD enc. ↓", 1),
    "ts": ("TS ↓", 4),
    "seam-excess": ("excess →0", 4),
    "dab-r": ("DAB-r ↑", 3),
    "dab-kl": ("DAB-KL ↓", 3),
    "dab-kl-reverse": ("reverse ↓", 3),
    "dab-jsd": ("DAB-JSD ↓", 4),
    "iod": ("IOD ↓", 0),
    "miod": ("mIOD ↓", 4),
    "fod": ("FOD ↓", 4),
    "dab-dice": ("Dice ↑", 3),
    "dab-iou": ("IoU ↑", 3),
    "dab-p90-r": ("p90-r ↑", 4),
}
GROUPS = {
    "likeness": ("psnr", "ssim", "lpips", "dists"),
    "sets": ("fd", "kd", "fd-encoder", "kd-encoder"),
    "seams": ("ts", "seam-excess"),
    "chromogen": tuple(key for key in METRICS if key.startswith("dab") or key in ("iod", "miod", "fod")),
}
STRIPS = {  # picture: the metrics in it, one strip each
    "psnr": ("psnr", "ssim"),
    "perceptual": ("lpips", "dists"),
    "sets": ("fd", "fd-encoder"),
    "seams": ("ts", "seam-excess"),
    "dab_r": ("dab-r",),
    "histograms": ("dab-kl", "dab-jsd"),
    "amounts": ("iod", "miod", "fod"),
    "masks": ("dab-dice",),
    "p90": ("dab-p90-r",),
}
SHOWN = 6  # outputs in a strip
COUNTS = (4, 8, 16, 32, 64, 128, 256)  # images, marked on an axis
SURE = 0.05  # p from which a metric has not told two outputs apart
RED, AMBER, GREEN, GREY, INK = "#c0392b", "#c98a12", "#2e7d4f", "#8a8f98", "#20242b"


@dataclass(frozen=True, slots=True)
class Cell:
    """One output by one metric."""

    output: str
    better: str
    value: float
    preferred: float  # share of the images in which it beats the truth; NaN where single images have no value
    p: float  # of its difference from the truth

    @property
    def rank(self) -> float:
        """Smaller is better."""
        if math.isnan(self.value):
            return math.inf
        return {"lower": self.value, "higher": -self.value, "zero": abs(self.value)}[self.better]


Table = dict[str, dict[str, Cell]]  # by metric, then by output


def read_table() -> Table:
    table: Table = {}
    names = ("value", "preferred_to_truth", "p")
    with (DOCS / "metrics.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["better"] != "none":
                cell = Cell(row["output"], row["better"], *(float(row[name] or "nan") for name in names))
                table.setdefault(row["metric"], {})[row["output"]] = cell
    return table


def verdict(table: Table, metric: str, output: str) -> str:
    """ "fooled" where the metric prefers the output to the truth, "blind" where it cannot tell the two apart, or ""."""
    cell, truth = table[metric][output], table[metric]["truth"]
    if output == "truth" or math.isnan(cell.value):
        return ""
    unsure = 0 < cell.preferred < 1 if math.isnan(cell.p) else cell.p >= SURE  # without p there were too few images
    return "blind" if unsure else "fooled" if cell.rank < truth.rank else ""


def read_curves() -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
    points: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with (DOCS / "metrics_curves.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            points.setdefault(row["curve"], {}).setdefault(row["series"], []).append(
                (float(row["x"]), float(row["value"]))
            )
    return {
        curve: {name: (np.array(found)[:, 0], np.array(found)[:, 1]) for name, found in series.items()}
        for curve, series in points.items()
    }


class Pictures:
    """Small pictures of one field: the middle of it, where tiles meet."""

    def __init__(self, work: Path, field: str, side: int = 256) -> None:
        self._work, self._field, self._side = work, field, side

    def __getitem__(self, output: str) -> np.ndarray:
        if output == "H&E":
            output = "he"
        with Image.open(self._work / "images" / output / f"{self._field}.png") as image:
            left, top = ((length - self._side) // 2 for length in image.size)
            return np.asarray(image.crop((left, top, left + self._side, top + self._side)))


def framed(ax: Axes, pixels: np.ndarray, colour: str, width: float = 2.2) -> None:
    ax.imshow(pixels, interpolation="lanczos")
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set(color=colour, linewidth=width)


def draw_gallery(pictures: Pictures, path: Path) -> None:
    """Every output of one field."""
    shown = [("he", "H&E (the input)", GREY), ("real", "next section (the reference)", GREY)]
    shown += [(o.key, o.title, GREEN if o.key == "truth" else "#d0d3d8") for o in OUTPUTS if o.key != "he"]
    columns = 7
    rows = -(-len(shown) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(columns * 1.72, rows * 1.92))
    for ax in axes.flat:
        ax.axis("off")
    for ax, (key, title, colour) in zip(axes.flat, shown, strict=False):
        ax.axis("on")
        framed(ax, pictures[key], colour, 2.4 if colour in (GREEN, GREY) else 0.8)
        ax.set_title(title, fontsize=8, color=GREEN if colour == GREEN else INK, pad=3)
    figure.subplots_adjust(0.005, 0.005, 0.995, 0.965, wspace=0.05, hspace=0.17)
    save(figure, path)


def draw_table(table: Table, pictures: Pictures, path: Path) -> None:
    """Metric by output; red where the metric prefers the output to the truth, amber where it cannot tell them apart."""
    metrics = [metric for metric in METRICS if metric in table]
    verdicts = {o.key: [verdict(table, metric, o.key) for metric in metrics] for o in OUTPUTS}
    worst = sorted(verdicts, key=lambda key: (-verdicts[key].count("fooled"), -verdicts[key].count("blind")))
    order = ["truth", *(key for key in worst if key != "truth")]
    wide, high, left, top = 0.66, 0.30, 2.25, 0.78
    figure = plt.figure(figsize=(left + wide * len(metrics) + 0.8, top + high * len(order) + 0.35))
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, figure.get_figwidth()), ylim=(figure.get_figheight(), 0))
    ax.axis("off")
    write = partial(ax.text, va="center", color=INK)
    x = left
    for name, members in GROUPS.items():
        width = wide * sum(metric in table for metric in members)
        if width:
            write(x + width / 2, 0.2, name, ha="center", fontsize=9, color=GREY)
            ax.plot((x + 0.06, x + width - 0.06), (0.34, 0.34), color="#c9cdd3", lw=1)
        x += width
    for c, metric in enumerate(metrics):
        write(left + wide * (c + 0.5), 0.55, METRICS[metric][0], ha="center", fontsize=8.4)
    last = left + wide * len(metrics) + 0.4
    write(last, 0.55, "fools", ha="center", fontsize=8.4, color=RED)
    for r, key in enumerate(order):
        y = top + high * r
        thumb = ax.inset_axes((0.05, y + 0.015, high - 0.03, high - 0.03), transform=ax.transData)
        thumb.imshow(pictures[key][64:192, 64:192], interpolation="antialiased")
        thumb.set(xticks=[], yticks=[])
        for spine in thumb.spines.values():
            spine.set(color="#d0d3d8", linewidth=0.5)
        truth = key == "truth"
        weight = "bold" if truth else "normal"
        write(0.42, y + high / 2, BY_KEY[key].title, fontsize=8.8, color=GREEN if truth else INK, weight=weight)
        for c, (metric, found) in enumerate(zip(metrics, verdicts[key], strict=True)):
            cell = table[metric][key]
            colour = "#e3f1e8" if truth else {"fooled": _red(cell), "blind": "#fbe7b9"}.get(found, "#f4f5f7")
            place = (left + wide * c + 0.015, y + 0.015)
            ax.add_patch(Rectangle(place, wide - 0.03, high - 0.03, fc=colour, ec="none"))
            write(
                left + wide * (c + 0.5),
                y + high / 2,
                number(cell.value, METRICS[metric][1]),
                ha="center",
                fontsize=7.6,
                color="white" if found == "fooled" else INK,
                weight="bold" if truth or found == "fooled" else "normal",
            )
        if not truth:
            count = verdicts[key].count("fooled")
            write(
                last, y + high / 2, f"{count} of {len(metrics)}", ha="center", fontsize=8, color=RED if count else GREY
            )
    y = top + high * len(order) + 0.17
    legend = (
        ("#c73028", "preferred to the truth"),
        ("#fbe7b9", f"not told from the truth (p ≥ {SURE})"),
        ("#f4f5f7", "found worse"),
    )
    x = left
    for colour, text in legend:
        ax.add_patch(Rectangle((x, y - 0.08), 0.3, 0.16, fc=colour, ec="none"))
        write(x + 0.38, y, text, fontsize=8.4)
        x += 2.9
    save(figure, path)


def _red(cell: Cell) -> tuple[float, float, float]:
    """The deeper, the more of the images it beats the truth in; full where images cannot be counted."""
    share = 1.0 if math.isnan(cell.preferred) else cell.preferred
    pale, full = np.array((0.88, 0.47, 0.40)), np.array((0.74, 0.16, 0.13))
    return tuple(pale + (full - pale) * min(max((share - 0.5) / 0.5, 0), 1))  # type: ignore[return-value]


def number(value: float, digits: int) -> str:
    if math.isnan(value):
        return "–"
    text = f"{value:.{digits}f}".replace("-", "−")
    text = text.removeprefix("−") if float(f"{value:.{digits}f}") == 0 else text
    return text if len(text) <= 7 else f"{value:.3g}"


def draw_strips(table: Table, metrics: Iterable[str], pictures: Pictures, path: Path) -> None:
    """For each metric the reference, the truth, and what the metric puts highest, one of each kind."""
    metrics = [metric for metric in metrics if metric in table]
    columns = 2 + SHOWN
    figure, axes = plt.subplots(len(metrics), columns, figsize=(columns * 1.5, len(metrics) * 1.93), squeeze=False)
    for line, metric in zip(axes, metrics, strict=True):
        label, digits = METRICS[metric]
        framed(line[0], pictures["real"], GREY)
        line[0].set_title(REAL.title, fontsize=8, color=INK, pad=3)
        line[0].set_ylabel(label, fontsize=11, weight="bold", color=INK)
        line[0].set_xlabel("the reference", fontsize=8.5, color=GREY)
        cells = sorted(
            (cell for cell in table[metric].values() if not math.isnan(cell.value)), key=lambda cell: cell.rank
        )
        kinds = {kind(cell.output): cell for cell in reversed(cells) if cell.output != "truth"}
        best = sorted(kinds.values(), key=lambda cell: cell.rank)[:SHOWN]
        for ax, cell in zip(line[1:], [table[metric]["truth"], *best], strict=True):
            colour = {"fooled": RED, "blind": AMBER}.get(verdict(table, metric, cell.output), "#c9cdd3")
            colour = GREEN if cell.output == "truth" else colour
            framed(ax, pictures[cell.output], colour)
            ax.set_title(BY_KEY[cell.output].title, fontsize=8, color=INK, pad=3)
            ax.set_xlabel(number(cell.value, digits), fontsize=9, color=GREY if colour == "#c9cdd3" else colour)
    edge = 0.22 / figure.get_figheight()
    figure.subplots_adjust(0.022, edge, 0.998, 1 - edge, wspace=0.04, hspace=0.30)
    save(figure, path)


def kind(output: str) -> str:
    """What outputs are told apart by in a strip, which has no room for every blur."""
    if output in ("empty", "mean", "brown", "white"):
        return "plain"
    return output if output.startswith("dab") else output.split("-")[0]


def draw_curves(path: Path) -> None:
    curves = read_curves()
    figure, axes = plt.subplots(1, 5, figsize=(16.5, 3.5), layout="constrained")
    for ax, key, label in ((axes[0], "psnr", "PSNR, dB"), (axes[1], "dab-r", "DAB-r")):
        for i, (name, (x, y)) in enumerate(curves[f"{key} by blur"].items()):
            last = name == "next section"
            colour = RED if last else mpl.colormaps["Blues"](0.35 + 0.13 * i)
            best = int(np.argmax(y))
            ax.plot(x, y, color=colour, lw=2.4 if last else 1.6, label=name)
            ax.plot(x[best], y[best], "o", color=colour, ms=7, mec="white", mew=1)
        ax.set(xscale="symlog", xlabel="blur of the perfect output, σ in px", title=f"{label}: dots at the best blur")
        ax.set_xticks((0, 1, 2, 4, 8, 16), ("0", "1", "2", "4", "8", "16"))
    axes[0].set_ylim(top=36)
    axes[0].legend(fontsize=7.5, frameon=False, title="reference", title_fontsize=8, ncols=2, loc="upper right")
    for ax, key, label in ((axes[2], "fd", "FD, biased"), (axes[3], "kd", "KD×10³, unbiased")):
        for colour, (name, (x, y)) in zip((INK, RED), curves.get(f"{key} by count", {}).items(), strict=False):
            _, std = curves[f"{key} by count, std"][name]
            ax.plot(x, y, color=colour, lw=2, label=name)
            ax.fill_between(x, y - std, y + std, color=colour, alpha=0.13, lw=0)
        ax.axhline(0, color=GREY, lw=0.8)
        ax.set_xscale("log", base=2)
        ax.set_xticks(COUNTS, [str(count) for count in COUNTS])
        ax.set(xlabel="images in each set", title=f"{label} (± std of 40 draws)")
        ax.legend(fontsize=7.5, frameon=False)
    colours = {"aligned truth": GREEN, "the H&E itself": "#7a4b94", "plain brown": "#a5682a", "DAB elsewhere": RED}
    for name, (x, y) in curves["dice by threshold"].items():
        axes[4].plot(x, y, color=colours[name], lw=2, label=name)
    axes[4].axvline(0.1, color=GREY, lw=0.9, ls=":")
    axes[4].set(ylim=(0, 1), xlabel="DAB above which a pixel is positive", title="Dice: 0.1 tells little apart")
    axes[4].legend(fontsize=7.5, frameon=False)
    for ax in axes:
        ax.minorticks_off()
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
        ax.title.set_size(9.5)
        ax.xaxis.label.set_size(8.5)
    save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """JPEG for what is mostly pictures; PNG, in 256 colours, for the rest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(
        path, dpi=100 if path.suffix == ".jpg" else 110, pil_kwargs={"quality": 84} if path.suffix == ".jpg" else {}
    )
    plt.close(figure)
    if path.suffix == ".png":
        with Image.open(path) as image:
            small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        small.save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="what fool.py wrote")
    parser.add_argument("--field", default="f0016", help="the field that is shown")
    given = parser.parse_args(arguments)
    table, pictures, images = read_table(), Pictures(given.work, given.field), DOCS / "images"
    draw_gallery(pictures, images / "metrics_outputs.jpg")
    draw_table(table, pictures, images / "metrics_table.png")
    draw_curves(images / "metrics_curves.png")
    for name, metrics in STRIPS.items():
        if any(metric in table for metric in metrics):
            draw_strips(table, metrics, pictures, images / f"metrics_{name}.jpg")


if __name__ == "__main__":
    main()
