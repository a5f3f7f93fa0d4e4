"""The report of one run: every number with what it means, what it is of and how sure it is; JSON and CSV, and back.

Markdown and LaTeX are in ``tables.py``, the comparison of reports in ``comparison.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from sheafstain.errors import UsageError
from sheafstain.metrics.sources import Fault
from sheafstain.metrics.state import Number, from_json, to_json
from sheafstain.metrics.statistics import Interval, Summary
from sheafstain.metrics.texts import csv_text, json_text, read_json
from sheafstain.slides.write import NOTICE
from sheafstain.whole import write_whole

FORMAT = 1
NAME = "report.json"
SUFFIXES = (".json", ".csv", ".md", ".tex")  # what reports and comparisons are written as
SIDES = ("pred", "real", "source")
SIDE_TITLES = {"pred": "translated", "real": "real IHC", "source": "H&E"}


@dataclass(frozen=True, slots=True)
class Result:
    """One number of the report. ``sides`` are the means of the quantity itself, where the sides have one each."""

    key: str
    label: str
    better: str
    value: float | None
    std: float | None
    std_of: str  # "images" or "subsets"
    interval: Interval | None
    no_interval: str  # why there is none
    n: int  # images that the number is of
    undefined: tuple[str, ...] = ()  # images left out because they have no value
    undefined_reason: str = ""
    infinite: tuple[str, ...] = ()
    sides: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)  # definition, library, resizer, direction, subsets, …
    flags: tuple[str, ...] = ()
    latex: str = ""

    @classmethod
    def from_summary(cls, summary: Summary, names: Sequence[str], values: Sequence[float], **fields: Any) -> Self:
        """From per-image values, in the order of ``names``."""
        few = "one image has none" if summary.n == 1 else "no image has a value"
        if math.isinf(summary.mean or 0):
            few = "the value is infinite for every image"
        return cls(
            value=summary.mean,
            std=summary.std,
            std_of="images",
            interval=summary.interval,
            no_interval="" if summary.interval else few,
            n=summary.n,
            undefined=tuple(name for name, value in zip(names, values, strict=True) if math.isnan(value)),
            infinite=tuple(name for name, value in zip(names, values, strict=True) if math.isinf(value)),
            **fields,
        )

    @property
    def notes(self) -> list[str]:
        """What a reader has to know beside the number."""
        said = list(self.flags)
        if self.undefined:
            said.append(f"undefined for {_images(self.undefined)}: {self.undefined_reason}")
        if self.infinite:
            said.append(f"infinite for {_images(self.infinite)}: pred equals real")
        return said

    def as_json(self) -> dict[str, Any]:
        said = asdict(self)
        said["value"] = None if self.value is None else to_json(self.value)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in said.items()}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Self:
        lists = {key: tuple(said[key]) for key in ("undefined", "infinite", "flags")}
        value = None if said["value"] is None else from_json(said["value"])
        interval = None if said["interval"] is None else (said["interval"][0], said["interval"][1])
        return cls(**{**said, **lists, "value": value, "interval": interval})


def _images(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return f"{len(names)} image{'s' * (len(names) > 1)} ({shown})"


@dataclass(frozen=True, slots=True)
class Image:
    """The values of one image: ``values`` the scores by metric, ``sides`` the quantity of each side by metric."""

    name: str
    hashes: Mapping[str, str]
    size: tuple[int, int]  # height, width
    values: Mapping[str, float]
    sides: Mapping[str, Mapping[str, float]]

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "hashes": dict(self.hashes),
            "size": list(self.size),
            "values": numbers(self.values),
            "sides": {key: numbers(values) for key, values in self.sides.items()},
        }

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Self:
        h, w = said["size"]
        return cls(
            name=said["name"],
            hashes=said["hashes"],
            size=(h, w),
            values=floats(said["values"]),
            sides={key: floats(values) for key, values in said["sides"].items()},
        )


def numbers(values: Mapping[str, float]) -> dict[str, Number]:
    return {key: to_json(value) for key, value in values.items()}


def floats(values: Mapping[str, Number]) -> dict[str, float]:
    return {key: from_json(value) for key, value in values.items()}


@dataclass(frozen=True, slots=True)
class Report:
    """All that is known of one method on one set of images."""

    name: str  # of the method
    protocol: Mapping[str, Any]
    versions: Mapping[str, str]
    results: tuple[Result, ...]
    images: tuple[Image, ...]
    left_out: tuple[Fault, ...] = ()  # metrics that could not be measured
    unreadable: tuple[Fault, ...] = ()
    unpaired: tuple[str, ...] = ()
    resized: tuple[str, ...] = ()
    converted: tuple[Fault, ...] = ()

    def result(self, key: str) -> Result | None:
        return next((result for result in self.results if result.key == key), None)

    def column(self, key: str) -> list[float]:
        """The per-image scores of a metric, in the order of ``images``."""
        return [image.values[key] for image in self.images]

    def as_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "name": self.name,
            "notice": NOTICE,
            "n": len(self.images),
            "protocol": dict(self.protocol),
            "versions": dict(self.versions),
            "results": [result.as_json() for result in self.results],
            "left_out": [asdict(fault) for fault in self.left_out],
            "unreadable": [asdict(fault) for fault in self.unreadable],
            "unpaired": list(self.unpaired),
            "resized": list(self.resized),
            "converted": [asdict(fault) for fault in self.converted],
            "images": [image.as_json() for image in self.images],
        }

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Self:
        if said["format"] != FORMAT:
            raise ValueError(f"format {said['format']}")
        return cls(
            name=said["name"],
            protocol=said["protocol"],
            versions=said["versions"],
            results=tuple(Result.from_json(result) for result in said["results"]),
            images=tuple(Image.from_json(image) for image in said["images"]),
            left_out=tuple(Fault(**fault) for fault in said["left_out"]),
            unreadable=tuple(Fault(**fault) for fault in said["unreadable"]),
            unpaired=tuple(said["unpaired"]),
            resized=tuple(said["resized"]),
            converted=tuple(Fault(**fault) for fault in said["converted"]),
        )

    def to_text(self) -> str:
        return json_text(self.as_json())

    def to_csv(self) -> str:
        """One row an image: the score under the metric's key, the sides under ``KEY SIDE``; undefined is empty."""
        scores = list(dict.fromkeys(key for image in self.images for key in image.values))
        sides = list(
            dict.fromkeys((key, side) for image in self.images for key, of in image.sides.items() for side in of)
        )
        rows = (
            [
                image.name,
                *image.size,
                *(image.values.get(key, math.nan) for key in scores),
                *(image.sides.get(key, {}).get(side, math.nan) for key, side in sides),
            ]
            for image in self.images
        )
        return csv_text(["image", "height", "width", *scores, *(f"{key} {side}" for key, side in sides)], rows)


def read_report(path: Path) -> Report:
    """From the JSON file or from the folder that holds it."""
    return read_json(path / NAME if path.is_dir() else path, Report.from_json, "report", "score")


def check_target(output: Path, what: str) -> None:
    """Whether ``write_files`` will do with that place, asked before anything is measured."""
    if output.suffix in SUFFIXES:
        if output.is_dir():
            raise UsageError(f"{output}: is a folder; give a folder without an ending, or a file")
    elif output.suffix[1:].isalpha() and not output.is_dir():
        raise UsageError(f"{output}: {what} end in {', '.join(SUFFIXES)}; or name a folder for all of them")


def write_files(output: Path, stem: str, texts: Mapping[str, str]) -> list[Path]:
    """``texts`` by suffix: all of them into the folder ``output``, or the one that the file ``output`` asks for."""
    alone = output.suffix in texts
    files = {output: texts[output.suffix]} if alone else {output / f"{stem}{end}": text for end, text in texts.items()}
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, text.encode())
    return list(files)
