"""What an audit says: the sums of its log as CSV, JSON and the paper's two tables, with the paper's values beside."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sheafstain import __version__
from sheafstain.sheaf.audit import DIRECTIONS, AuditImage
from sheafstain.sheaf.audit_log import AuditLog
from sheafstain.sheaf.registry import CROP
from sheafstain.whole import write_whole

H_AND_E = "H&E"
HEADINGS = ("Horiz.", "Vert.", "Diag ↘", "Diag ↗")
PROFILED = (80, 160)  # px: the strides of the paper's second table

# Paper, table "Mean cosine similarity of overlap tokens": Prov-GigaPath on BCI; stride: H&E, then IHC.
PAPER_COSINE: dict[int, tuple[tuple[float, ...], tuple[float, ...]]] = {
    32: ((0.918, 0.920, 0.856, 0.856), (0.910, 0.913, 0.846, 0.846)),
    64: ((0.849, 0.853, 0.748, 0.748), (0.837, 0.844, 0.736, 0.735)),
    80: ((0.824, 0.829, 0.716, 0.717), (0.810, 0.818, 0.703, 0.702)),
    96: ((0.802, 0.806, 0.690, 0.691), (0.787, 0.794, 0.676, 0.675)),
    112: ((0.781, 0.786, 0.668, 0.669), (0.765, 0.772, 0.653, 0.653)),
    128: ((0.753, 0.757, 0.635, 0.636), (0.738, 0.745, 0.623, 0.622)),
    160: ((0.694, 0.698, 0.569, 0.571), (0.680, 0.687, 0.562, 0.562)),
    192: ((0.626, 0.628, 0.500, 0.504), (0.613, 0.618, 0.494, 0.494)),
}
# Paper, table "Per-position cosine similarity": (edge_L, mid_max, edge_R) per direction; H&E, then IHC.
PAPER_POSITIONS: dict[int, tuple[tuple[tuple[float, float, float], ...], ...]] = {
    80: (
        ((0.735, 0.868, 0.738), (0.747, 0.870, 0.743), (0.648, 0.750, 0.644), (0.647, 0.749, 0.647)),
        ((0.721, 0.854, 0.724), (0.739, 0.856, 0.737), (0.638, 0.734, 0.636), (0.635, 0.731, 0.637)),
    ),
    160: (
        ((0.654, 0.738, 0.651), (0.660, 0.739, 0.655), (0.539, 0.602, 0.534), (0.537, 0.605, 0.537)),
        ((0.641, 0.723, 0.638), (0.651, 0.726, 0.647), (0.532, 0.594, 0.529), (0.529, 0.595, 0.528)),
    ),
}


@dataclass(slots=True)
class StainSummary:
    """Sums over the images of one stain; the properties are what the tables print. S strides, 4 directions."""

    images: int = 0
    locality: float = 0.0
    unrelated_sum: float = 0.0
    sums: dict[str, np.ndarray] = field(default_factory=dict)
    image_means: list[np.ndarray] = field(default_factory=list)  # [S, 4] per image: 32 numbers each

    def add(self, row: dict[str, Any]) -> None:
        self.images += 1
        self.locality = max(self.locality, row["locality"])
        self.unrelated_sum += row["unrelated"]
        for key in ("tokens", "cosine", "squares", "distance", "profile_tokens", "profile"):
            values = np.asarray(row[key], np.float64)
            self.sums[key] = self.sums[key] + values if key in self.sums else values
        self.image_means.append(_ratio(np.asarray(row["cosine"]), np.asarray(row["tokens"])))

    @property
    def unrelated(self) -> float:
        return self.unrelated_sum / self.images

    @property
    def cosine(self) -> np.ndarray:
        return _ratio(self.sums["cosine"], self.sums["tokens"])

    @property
    def cosine_std(self) -> np.ndarray:
        """Spread over tokens."""
        return np.sqrt(np.maximum(_ratio(self.sums["squares"], self.sums["tokens"]) - (1 - self.cosine) ** 2, 0))

    @property
    def cosine_image_std(self) -> np.ndarray:
        """Spread of the images' means; NaN for fewer than two images."""
        if self.images < 2:
            return np.full_like(self.cosine, np.nan)
        return np.std(self.image_means, axis=0, ddof=1)

    @property
    def distance(self) -> np.ndarray:
        return _ratio(self.sums["distance"], self.sums["tokens"])

    def profile(self, stride: int, direction: int) -> np.ndarray:
        """Mean cosine at each position along the overlap."""
        tokens = self.sums["profile_tokens"][stride, direction]
        return (self.sums["profile"][stride, direction] / np.where(tokens, tokens, 1))[tokens > 0]

    def edges(self, stride: int, direction: int) -> tuple[float, float, float]:
        """edge_L, mid_max, edge_R of the paper's second table; no middle where there are fewer than 3 positions."""
        profile = self.profile(stride, direction)
        if not len(profile):
            return np.nan, np.nan, np.nan
        middle = float(profile[1:-1].max()) if len(profile) > 2 else np.nan
        return float(profile[0]), middle, float(profile[-1])


def _ratio(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return np.where(counts > 0, sums / np.where(counts > 0, counts, 1), np.nan)


@dataclass(frozen=True, slots=True)
class Gap:
    """How far apart two stains' overlap cosines are: the paper's cross-stain figures. This compares the two stains'
    gaps; it does not compare tokens of one stain with tokens of the other."""

    stain: str
    largest: float
    mean: float
    stride: int
    direction: str


@dataclass(frozen=True, slots=True)
class AuditSummary:
    header: dict[str, Any]
    stains: dict[str, StainSummary]  # H&E first

    @classmethod
    def of(cls, log: AuditLog, images: Iterable[AuditImage]) -> AuditSummary:
        """Sum the log over these images; where an image was measured twice, the later line counts."""
        wanted = {(image.stain, image.id) for image in images}
        last = {(row["stain"], row["id"]): number for number, row in enumerate(log.rows())}
        stains: dict[str, StainSummary] = {}
        for number, row in enumerate(log.rows()):
            key = row["stain"], row["id"]
            if key in wanted and last[key] == number:
                stains.setdefault(row["stain"], StainSummary()).add(row)
        order = sorted(stains, key=lambda stain: (stain != H_AND_E, stain))
        return cls(log.header, {stain: stains[stain] for stain in order})

    @property
    def strides(self) -> list[int]:
        return self.header["strides"]

    @property
    def measured(self) -> list[int]:
        return self.header["measured_strides"]

    def overlap(self, stride: int) -> float:
        """Share of a crop that two crops at that measured stride have in common."""
        return 1 - self.measured[stride] / CROP

    @property
    def gaps(self) -> list[Gap]:
        if H_AND_E not in self.stains:
            return []
        found = []
        for stain, summary in self.stains.items():
            difference = np.abs(summary.cosine - self.stains[H_AND_E].cosine)
            if stain == H_AND_E or np.isnan(difference).all():
                continue
            stride, direction = np.unravel_index(np.nanargmax(difference), difference.shape)
            largest, mean = float(np.nanmax(difference)), float(np.nanmean(difference))
            found.append(Gap(stain, largest, mean, self.strides[stride], DIRECTIONS[direction].name))
        return found

    def records(self) -> Iterator[dict[str, Any]]:
        """One flat record per stain, stride and direction: the rows of the CSV."""
        for stain, summary in self.stains.items():
            for s, stride in enumerate(self.strides):
                for d, direction in enumerate(DIRECTIONS):
                    left, middle, right = summary.edges(s, d)
                    paper = PAPER_COSINE.get(stride)
                    yield {
                        "stain": stain,
                        "stride": stride,
                        "measured_stride": self.measured[s],
                        "overlap": round(self.overlap(s), 4),
                        "direction": direction.name,
                        "images": summary.images,
                        "tokens": int(summary.sums["tokens"][s, d]),
                        "cosine": _number(summary.cosine[s, d]),
                        "cosine_std_tokens": _number(summary.cosine_std[s, d]),
                        "cosine_std_images": _number(summary.cosine_image_std[s, d]),
                        "l2": _number(summary.distance[s, d], 4),
                        "positions": len(summary.profile(s, d)),
                        "edge_left": _number(left),
                        "mid_max": _number(middle),
                        "edge_right": _number(right),
                        "paper_gigapath_cosine": paper[stain != H_AND_E][d] if paper else None,
                    }

    def write(self, folder: Path) -> list[Path]:
        """audit.csv, audit.json and audit.md."""
        rows = list(self.records())
        table = io.StringIO()
        writer = csv.DictWriter(table, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        files = {
            "audit.csv": table.getvalue(),
            "audit.json": json.dumps(self.as_json(), ensure_ascii=False, indent=1, allow_nan=False) + "\n",
            "audit.md": self.as_markdown(),
        }
        for name, content in files.items():
            write_whole(folder / name, content.encode())
        return [folder / name for name in files]

    def as_json(self) -> dict[str, Any]:
        return {
            "sheafstain": __version__,
            "protocol": self.header,
            "stains": {
                stain: {
                    "images": summary.images,
                    "locality": summary.locality,
                    "cosine_elsewhere_in_crop": _number(summary.unrelated),
                }
                for stain, summary in self.stains.items()
            },
            "cross_stain": [
                {"stain": g.stain, "max": _number(g.largest), "mean": _number(g.mean), "stride": g.stride}
                | {"direction": g.direction}
                for g in self.gaps
            ],
            "overlap": list(self.records()),
            "profiles": [
                {"stain": stain, "stride": stride, "direction": direction.name}
                | {"cosine": [_number(value) for value in summary.profile(s, d)]}
                for stain, summary in self.stains.items()
                for s, stride in enumerate(self.strides)
                for d, direction in enumerate(DIRECTIONS)
            ],
        }

    def as_markdown(self) -> str:
        """The paper's two tables: this encoder's value, and in brackets the paper's, Prov-GigaPath on BCI."""
        h = self.header
        lines = [
            f"# Sheaf audit of {h['encoder']}",
            "",
            f"Weights {h['weights'][:16]}, {h['precision']}, SheafStain {__version__}. "
            + ("All adjacent pairs" if h["pairs"] is None else f"{h['pairs']} pairs per stride, direction and image")
            + ". In brackets: Prov-GigaPath on 4,873 BCI images (paper).",
            "",
            *(
                f"- {stain}: {s.images} images; locality, largest difference {s.locality:g}; "
                f"cosine of another place in the same crop {s.unrelated:.3f}"
                for stain, s in self.stains.items()
            ),
            *(
                f"- {g.stain} against {H_AND_E}: |Δ| at most {g.largest:.3f} (stride {g.stride}, {g.direction}), "
                f"mean {g.mean:.3f} (paper: 0.017, 0.011)"
                for g in self.gaps
            ),
            "",
            "## Mean cosine of overlap tokens",
            "",
            *self._cosine_table(),
            "",
            "## Cosine by position in the overlap",
            "",
            *self._position_table(),
            "",
        ]
        return "\n".join(lines)

    def _cosine_table(self) -> Iterator[str]:
        yield _row("Stride", "Overlap", *(f"{stain} {heading}" for stain in self.stains for heading in HEADINGS))
        yield _row(*["--:"] * (2 + 4 * len(self.stains)))
        for s, stride in enumerate(self.strides):
            measured = self.measured[s]
            paper = PAPER_COSINE.get(stride)
            yield _row(
                str(stride) if measured == stride else f"{stride} → {measured}",
                f"{100 * self.overlap(s):.1f}%",
                *(
                    _beside(summary.cosine[s, d], paper[stain != H_AND_E][d] if paper else None)
                    for stain, summary in self.stains.items()
                    for d in range(len(DIRECTIONS))
                ),
            )

    def _position_table(self) -> Iterator[str]:
        columns = ("edge_L", "mid_max", "edge_R")
        yield _row("Stride", "Direction", "#Pos", *(f"{stain} {column}" for stain in self.stains for column in columns))
        yield _row("--:", ":--", *["--:"] * (1 + 3 * len(self.stains)))
        for s, stride in enumerate(self.strides):
            if stride not in PROFILED:
                continue
            measured = self.measured[s]
            for d, heading in enumerate(HEADINGS):
                cells = [
                    _beside(value, PAPER_POSITIONS[stride][stain != H_AND_E][d][k])
                    for stain, summary in self.stains.items()
                    for k, value in enumerate(summary.edges(s, d))
                ]
                positions = max(len(summary.profile(s, d)) for summary in self.stains.values())
                yield _row(
                    str(stride) if measured == stride else f"{stride} → {measured}", heading, str(positions), *cells
                )


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _beside(value: float, paper: float | None) -> str:
    ours = "–" if np.isnan(value) else f"{value:.3f}"
    return ours if paper is None else f"{ours} ({paper:.3f})"


def _number(value: float, digits: int = 6) -> float | None:
    return None if np.isnan(value) else round(float(value), digits)
