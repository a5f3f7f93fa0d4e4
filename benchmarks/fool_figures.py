"""The pictures of docs/metrics.md, from what ``fool.py`` measured.

    python benchmarks/fool_figures.py WORK [--field f0005]

Every picture shows phantoms. The table and the strips show means over all fields, the small pictures one field.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
GROUPS = (("likeness", 4), ("sets", 2), ("seams", 2), ("chromogen", 10))
STRIPS = {  # picture: the metrics in it, one strip each
    "psnr": ("psnr", "ssim"),
    "perceptual": ("lpips", "dists"),
    "sets": ("fd", "kd"),
    "seams": ("ts", "seam-excess"),
    "dab_r": ("dab-r",),
    "histograms": ("dab-kl", "dab-kl-reverse", "dab-jsd"),
    "amounts": ("iod", "miod", "fod"),
    "masks": ("dab-dice", "dab-iou"),
    "p90": ("dab-p90-r",),
}
SHOWN = 6  # outputs in a strip
RED, GREEN, GREY, INK = "#c0392b", "#2e7d4f", "#8a8f98", "#20242b"


@dataclass(frozen=True, slots=True)
class Cell:
    """One output by one metric: the mean, and in which share of the images it beats the truth (NaN where not known)."""

    output: str
    better: str
    value: float
    preferred: float

    @property
    def rank(self) -> float:
        """Smaller is better."""
        if math.isnan(self.value):
            return math.inf
        return {"lower": self.value, "higher": -self.value, "zero": abs(self.value)}[self.better]


Table = dict[str, dict[str, Cell]]  # by metric, then by output


def read_table() -> Table:
    table: Table = {}
    with (DOCS / "metrics.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["better"] != "none":
                numbers = (float(row[key] or "nan") for key in ("value", "preferred_to_truth"))
                cell = Cell(row["output"], row["better"], *numbers)
                table.setdefault(row["metric"], {})[row["output"]] = cell
    return table


def beats(table: Table, metric: str, output: str) -> bool:
    return table[metric][output].rank < table[metric]["truth"].rank


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
    """Metric by output; red where the metric prefers the output to the truth."""
    metrics = [metric for metric in METRICS if metric in table]
    fooled = {o.key: sum(beats(table, metric, o.key) for metric in metrics) for o in OUTPUTS}
    order = ["truth", *sorted((k for k in fooled if k != "truth"), key=lambda k: -fooled[k])]
    wide, high = 0.66, 0.30
    left, top = 2.25, 0.78
    figure = plt.figure(figsize=(left + wide * len(metrics) + 0.8, top + high * len(order) + 0.1))
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set_xlim(0, figure.get_figwidth())
    ax.set_ylim(figure.get_figheight(), 0)
    ax.axis("off")
    x = left
    for name, count in GROUPS:
        present = sum(
            metric in table for metric in list(METRICS)[sum(n for g, n in GROUPS if g in _before(name)) :][:count]
        )
        if present:
            ax.text(x + wide * present / 2, 0.2, name, ha="center", va="center", fontsize=9, color=GREY)
            ax.plot((x + 0.06, x + wide * present - 0.06), (0.34, 0.34), color="#c9cdd3", lw=1)
        x += wide * present
    for c, metric in enumerate(metrics):
        ax.text(left + wide * (c + 0.5), 0.55, METRICS[metric][0], ha="center", va="center", fontsize=8.4, color=INK)
    ax.text(left + wide * len(metrics) + 0.38, 0.55, "fools", ha="center", va="center", fontsize=8.4, color=RED)
    for r, key in enumerate(order):
        y = top + high * r
        truth = key == "truth"
        thumb = ax.inset_axes((0.05, y + 0.015, high - 0.03, high - 0.03), transform=ax.transData)
        thumb.imshow(pictures[key][64:192, 64:192], interpolation="antialiased")
        thumb.axis("off")
        title = BY_KEY[key].title
        ax.text(
            0.42,
            y + high / 2,
            title,
            va="center",
            fontsize=8.8,
            color=GREEN if truth else INK,
            weight="bold" if truth else "normal",
        )
        for c, metric in enumerate(metrics):
            cell = table[metric][key]
            red = beats(table, metric, key)
            colour = "#e9f3ec" if truth else _red(cell.preferred) if red else "#f4f5f7"
            box = Rectangle((left + wide * c + 0.015, y + 0.015), wide - 0.03, high - 0.03, fc=colour, ec="none")
            ax.add_patch(box)
            text = number(cell.value, METRICS[metric][1])
            ink = "white" if red and cell.preferred > 0.85 else INK
            weight = "bold" if red or truth else "normal"
            ax.text(
                left + wide * (c + 0.5),
                y + high / 2,
                text,
                ha="center",
                va="center",
                fontsize=7.6,
                color=ink,
                weight=weight,
            )
        count = "" if truth else f"{fooled[key]} of {len(metrics)}"
        ax.text(
            left + wide * len(metrics) + 0.38,
            y + high / 2,
            count,
            ha="center",
            va="center",
            fontsize=8,
            color=RED if fooled[key] else GREY,
        )
    save(figure, path)


def _before(name: str) -> list[str]:
    names = [group for group, _ in GROUPS]
    return names[: names.index(name)]


def _red(share: float) -> tuple[float, float, float]:
    """Pale where the output beats the truth in few images, full where in all; middle where images cannot be counted."""
    share = 0.75 if math.isnan(share) else share
    pale, full = np.array((0.98, 0.86, 0.82)), np.array((0.78, 0.19, 0.15))
    return tuple(pale + (full - pale) * min(max((share - 0.4) / 0.6, 0), 1))  # type: ignore[return-value]


def number(value: float, digits: int) -> str:
    if math.isnan(value):
        return "–"
    text = f"{value:.{digits}f}".replace("-", "−")
    return text if len(text) <= 7 else f"{value:.3g}"


def draw_strips(table: Table, metrics: Iterable[str], pictures: Pictures, path: Path) -> None:
    """For each metric the reference, the truth, and what the metric prefers to it, best first."""
    metrics = [metric for metric in metrics if metric in table]
    columns = 2 + SHOWN
    figure, axes = plt.subplots(len(metrics), columns, figsize=(columns * 1.5, len(metrics) * 1.93), squeeze=False)
    for line, metric in zip(axes, metrics, strict=True):
        ranked = sorted(
            (cell for cell in table[metric].values() if not math.isnan(cell.value)), key=lambda cell: cell.rank
        )
        place = next(i for i, cell in enumerate(ranked) if cell.output == "truth")
        label, digits = METRICS[metric]
        framed(line[0], pictures["real"], GREY)
        line[0].set_title(REAL.title, fontsize=8, color=INK, pad=3)
        line[0].set_ylabel(label, fontsize=11, weight="bold", color=INK)
        line[0].set_xlabel("the reference", fontsize=8.5, color=GREY)
        others = ranked[:place][:SHOWN] + ranked[place + 1 :][: max(SHOWN - place, 0)]
        for ax, cell, at in zip(
            line[1:], [ranked[place], *others], [place, *(ranked.index(cell) for cell in others)], strict=True
        ):
            colour = GREEN if cell.output == "truth" else RED if at < place else "#c9cdd3"
            framed(ax, pictures[cell.output], colour)
            ax.set_title(BY_KEY[cell.output].title, fontsize=8, color=INK, pad=3)
            text = f"{number(cell.value, digits)}, place {at + 1}"
            ax.set_xlabel(text, fontsize=8.5, color=GREEN if cell.output == "truth" else RED if at < place else GREY)
    top, bottom = 0.22 / figure.get_figheight(), 0.22 / figure.get_figheight()
    figure.subplots_adjust(0.022, bottom, 0.998, 1 - top, wspace=0.04, hspace=0.30)
    save(figure, path)


def draw_curves(path: Path) -> None:
    curves = read_curves()
    figure, axes = plt.subplots(1, 4, figsize=(15, 3.7), layout="constrained")
    for ax, key, label in ((axes[0], "psnr", "PSNR, dB"), (axes[1], "dab-r", "DAB-r")):
        series = curves[f"{key} by blur"]
        for i, (name, (x, y)) in enumerate(series.items()):
            last = name == "next section"
            shade = mpl.colormaps["Blues"](0.35 + 0.13 * i)
            ax.plot(x, y, color=RED if last else shade, lw=2.4 if last else 1.6, label=name)
            best = int(np.argmax(y))
            ax.plot(x[best], y[best], "o", color=RED if last else shade, ms=7, mec="white", mew=1)
        ax.set(xscale="symlog", xlabel="blur of the perfect output, σ in px", title=f"{label}: the best blur is marked")
        ax.set_xticks((0, 1, 2, 4, 8, 16), ("0", "1", "2", "4", "8", "16"))
    axes[0].legend(fontsize=7.5, frameon=False, title="reference", title_fontsize=8)
    if "fd by count" in curves:
        for i, (name, (x, y)) in enumerate(curves["fd by count"].items()):
            axes[2].plot(x, y, color=(INK, RED)[i], lw=2, label=f"FD, {name}")
            _, kernel = curves["kd by count"][name]
            axes[2].plot(x, kernel, "--", color=(INK, RED)[i], lw=1.4, label=f"KD×10³, {name}")
        axes[2].axhline(0, color=GREY, lw=0.8)
        axes[2].set(xscale="log", xlabel="images in each set", title="FD is biased, KD is not (256 features)")
        axes[2].set_xticks(x, [f"{v:g}" for v in x])
        axes[2].minorticks_off()
        axes[2].legend(fontsize=7.5, frameon=False)
    colours = {"aligned truth": GREEN, "the H&E itself": "#7a4b94", "plain brown": "#a5682a", "DAB elsewhere": RED}
    for name, (x, y) in curves["dice by threshold"].items():
        axes[3].plot(x, y, color=colours[name], lw=2, label=name)
    axes[3].axvline(0.1, color=GREY, lw=0.9, ls=":")
    axes[3].set(ylim=(0, 1), xlabel="DAB above which a pixel is positive", title="Dice: 0.1 tells little apart")
    axes[3].legend(fontsize=7.5, frameon=False)
    for ax in axes:
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
    parser.add_argument("--field", default="f0005", help="the field that is shown")
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
