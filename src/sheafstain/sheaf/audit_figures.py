"""The audit's figures: cosine against overlap, the profile along the overlap, and the defect on an image."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sheafstain.errors import SheafStainError
from sheafstain.sheaf.audit_report import H_AND_E, HEADINGS, PAPER_COSINE, PAPER_POSITIONS, PROFILED, AuditSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE, _GREY = "#2f5fa7", "#8a8a8a"
_IHC = ("#b3402e", "#c9862b", "#6b8e3a", "#7a4b94")  # one per IHC stain
_CARDINAL, _DIAGONAL = (0, 1), (2, 3)  # indices of DIRECTIONS


def _new(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, np.ndarray]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SheafStainError("figures need matplotlib: pip install 'sheafstain[plots]'") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=9)
    return figure, axes


def _save(figure: Figure, path: Path) -> Path:
    partial = path.with_name(f".{path.stem}.partial.png")
    figure.savefig(partial, dpi=150)
    return partial.replace(path)


def _colours(summary: AuditSummary) -> dict[str, str]:
    others = [stain for stain in summary.stains if stain != H_AND_E]
    return {H_AND_E: _BLUE} | {stain: _IHC[i % len(_IHC)] for i, stain in enumerate(others)}


def draw_strides(summary: AuditSummary, path: Path) -> Path:
    """Mean cosine against stride for cardinal and diagonal pairs, each stain, with the paper's curve in grey."""
    figure, ((ax,),) = _new(7.2, 4.4)
    strides, colours = summary.measured, _colours(summary)
    paper = [stride for stride in summary.strides if stride in PAPER_COSINE]
    if paper:
        for group, style in ((_CARDINAL, "-"), (_DIAGONAL, "--")):
            values = [np.mean([PAPER_COSINE[stride][0][d] for d in group]) for stride in paper]
            ax.plot(
                paper, values, style, color=_GREY, lw=1.4, label=None if style == "--" else "Prov-GigaPath, H&E (paper)"
            )
    for stain, data in summary.stains.items():
        for group, style, marker in ((_CARDINAL, "-", "o"), (_DIAGONAL, "--", "s")):
            mean = data.cosine[:, group].mean(1)
            ax.plot(
                strides, mean, style, marker=marker, ms=4, color=colours[stain], label=stain if style == "-" else None
            )
        ax.axhline(data.unrelated, ls=":", lw=1.2, color=colours[stain])
    ax.plot([], [], "-", color="k", lw=1, label="horizontal, vertical")
    ax.plot([], [], "--", color="k", lw=1, label="diagonal")
    ax.plot([], [], ":", color="k", lw=1, label="two places of one crop")
    ax.axhline(1, color="k", lw=0.8)
    ax.annotate("a sheaf", (min(strides), 1), (0, -10), textcoords="offset points", fontsize=8)
    low = min(float(np.nanmin(data.cosine)) for data in summary.stains.values())
    ax.set_ylim(min(low, 0.48 if paper else low) - 0.03, 1.03)  # 0.48: below the paper's lowest
    ax.set_xticks(strides, [f"{stride}\n{100 * (1 - stride / 224):.0f}%" for stride in strides], fontsize=8)
    ax.set_xlabel("stride in px, overlap below", fontsize=9)
    ax.set_ylabel("mean cosine of the two tokens of one place", fontsize=9)
    ax.set_title(f"Overlap tokens of {summary.header['encoder']}", fontsize=10, loc="left")
    ax.legend(fontsize=8, frameon=False, loc="lower left", ncols=2)
    return _save(figure, path)


def draw_profiles(summary: AuditSummary, path: Path) -> Path | None:
    """Cosine by position along the overlap at strides 80 and 160: an inverted U if context contaminates the edges."""
    shown = [(s, stride) for s, stride in enumerate(summary.strides) if stride in PROFILED]
    if not shown:
        return None
    figure, axes = _new(3.9 * len(shown) + 0.6, 4.0, columns=len(shown), sharey=True)
    colours = _colours(summary)
    for ax, (s, stride) in zip(axes[0], shown, strict=True):
        for stain, data in summary.stains.items():
            for d, style in ((0, "-"), (1, "-."), (2, "--"), (3, ":")):
                profile = data.profile(s, d)
                label = HEADINGS[d] if stain == next(iter(summary.stains)) else None
                ax.plot(
                    range(len(profile)), profile, style, marker="o", ms=3, lw=1.2, color=colours[stain], label=label
                )
            _paper_points(ax, PAPER_POSITIONS[stride][0], len(data.profile(s, 0)))
        measured = summary.measured[s]
        ax.set_title(f"stride {stride}" if measured == stride else f"stride {stride}, measured {measured}", fontsize=9)
        ax.set_xlabel("position along the overlap, in tokens", fontsize=9)
        ax.xaxis.get_major_locator().set_params(integer=True)
    axes[0, 0].set_ylabel("mean cosine", fontsize=9)
    for stain, colour in colours.items():
        if stain in summary.stains:
            axes[0, -1].plot([], [], "-", color=colour, lw=2, label=stain)
    axes[0, -1].plot(
        [], [], "x-", color=_GREY, lw=0.8, ms=5, label="Prov-GigaPath, H&E (paper: both ends and the largest)"
    )
    handles, labels = axes[0, 0].get_legend_handles_labels()
    more = axes[0, -1].get_legend_handles_labels()
    known = dict(zip(labels + more[1], handles + more[0], strict=True))
    figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return _save(figure, path)


def _paper_points(ax: Axes, paper: tuple[tuple[float, float, float], ...], positions: int) -> None:
    """The paper prints three values of each profile: both ends and the largest in between, drawn here in the middle."""
    if positions < 3:
        return
    for values in paper:
        ax.plot([0, (positions - 1) / 2, positions - 1], values, "x-", color=_GREY, lw=0.8, ms=5, zorder=1)


def draw_defect(summary: AuditSummary, maps: Mapping[str, tuple[np.ndarray, np.ndarray]], path: Path) -> Path | None:
    """Where on an image the tokens disagree. ``maps``: stain to (pixels uint8 [h, w, 3], heat [rows, columns])."""
    if not maps:
        return None
    figure, axes = _new(8.4, 3.9 * len(maps), rows=len(maps), columns=2)
    pitch = summary.header["pitch"]
    values = np.concatenate([heat[np.isfinite(heat)] for _, heat in maps.values()])
    low, high = np.quantile(values, [0.01, 0.99]) if len(values) else (0.0, 1.0)
    for (left, right), (stain, (pixels, heat)) in zip(axes, maps.items(), strict=True):
        rows, columns = heat.shape
        shown = pixels[: rows * pitch, : columns * pitch]
        left.imshow(shown)
        left.set_title(stain, fontsize=9, loc="left")
        right.imshow(shown.mean(2), cmap="gray", vmin=0, vmax=255)
        extent = (0, columns * pitch, rows * pitch, 0)
        drawn = right.imshow(
            heat, cmap="inferno", alpha=0.65, vmin=low, vmax=high, extent=extent, interpolation="nearest"
        )
        right.set_title("1 − cosine, mean over the pairs that cover a cell", fontsize=9, loc="left")
        figure.colorbar(drawn, ax=right, shrink=0.85).ax.tick_params(labelsize=8)
        for ax in (left, right):
            ax.set_xticks([])
            ax.set_yticks([])
            ax.spines[:].set_visible(False)
    return _save(figure, path)


def draw_all(summary: AuditSummary, maps: Mapping[str, tuple[np.ndarray, np.ndarray]], folder: Path) -> list[Path]:
    drawn = (
        draw_strides(summary, folder / "cosine_against_stride.png"),
        draw_profiles(summary, folder / "inverted_u.png"),
        draw_defect(summary, maps, folder / "defect.png"),
    )
    return [path for path in drawn if path is not None]
