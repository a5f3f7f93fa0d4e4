"""Everything about a data set that would spoil a training or its figures, found before training does.

Every file is decoded in full, once, by a pool of threads (the decoders release the interpreter lock). Of each image
only its size and a hash of its pixels are kept, so memory does not grow with the images.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sheafstain import __version__
from sheafstain.datasets.records import DataSet, Problem, Record, Severity
from sheafstain.device import cores
from sheafstain.errors import SheafStainError
from sheafstain.slides.image import read_header, read_image
from sheafstain.window import Size

MIN_SIDE = 256  # px: one reference patch (paper, appendix "Implementation Details")

ADVICE = {  # kind of problem → what to do about it; also the order in which they are told
    "unreadable": "copy or download these files again, or convert them as the text says",
    "unpaired": "bring the missing partners or remove these files",
    "ambiguous": "keep one of the files that share a name",
    "name": "rename these files as the layout wants it, or use --layout pairs",
    "grade": "find out which grade is right and give both files that name",
    "size": "registered partners have one size, at least 256 px a side: crop both alike or remove the pair",
    "duplicate": "keep one copy; across splits, remove it from training",
    "leak": "write a split by slide with --write-split and train with it, or accept the leak with --allow-leak",
    "converted": "nothing, if the conversion is meant: every reading does it again",
    "suffix": "nothing: the content decides; but JPEG data are lossy whatever the name says",
    "incomplete": "nothing, if a part is meant; figures of a part do not compare with published ones",
    "other": "nothing, if these are not meant to be data",
}

_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF", ".tiff": "TIFF"}
_ORDER = list(ADVICE)


@dataclass(frozen=True)
class Report:
    """What a check found, worst first."""

    dataset: DataSet
    problems: tuple[Problem, ...]
    sizes: dict[Size, int]  # files by size, most frequent first

    def count(self, severity: Severity) -> int:
        return sum(problem.severity == severity for problem in self.problems)

    @property
    def summary(self) -> str:
        """``3 errors (2 unreadable, 1 unpaired), 1 warning``"""
        kinds = Counter(problem.kind for problem in self.problems if problem.severity == Severity.ERROR)
        errors, warnings = self.count(Severity.ERROR), self.count(Severity.WARNING)
        detail = f" ({', '.join(f'{count} {kind}' for kind, count in kinds.items())})" if kinds else ""
        return f"{errors} error{'s' * (errors != 1)}{detail}, {warnings} warning{'s' * (warnings != 1)}"

    def as_json(self) -> dict[str, Any]:
        data = self.dataset
        return {
            "software": f"sheafstain {__version__}",
            "root": str(data.root.resolve()),
            "layout": data.layout,
            "complete": data.complete,
            "counts": list(count_rows(data)),
            "sizes": [{"width": size.w, "height": size.h, "files": files} for size, files in self.sizes.items()],
            "severities": {severity.value: self.count(severity) for severity in Severity},
            "problems": [problem_row(problem, data.root) for problem in self.problems],
        }


def count_rows(dataset: DataSet) -> Iterator[dict[str, Any]]:
    """One row for each stain and split: pairs, published pairs, slides, and pairs by grade where there are grades."""
    for (stain, split), pairs in dataset.counts.items():
        records = dataset.select(split, stain)
        yield {
            "stain": stain,
            "split": split,
            "pairs": pairs,
            "published": dataset.published.get((stain, split)),
            "slides": len({record.slide for record in records if record.slide is not None}) or None,
            "grades": dict(sorted(Counter(record.grade for record in records if record.grade is not None).items())),
        }


def problem_row(problem: Problem, root: Path) -> dict[str, Any]:
    file = None if problem.file is None else problem.file.relative_to(root).as_posix()
    return {
        "severity": problem.severity.value,
        "kind": problem.kind,
        "file": file,
        "slide": problem.slide,
        "text": problem.text,
    }


def check_dataset(
    dataset: DataSet,
    *,
    allow_leak: bool = False,
    workers: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> Report:
    """Read every file of the set, partners or not; ``advance`` counts the ``files_of(dataset)``."""
    facts: dict[Path, _Facts] = {}
    problems = [*dataset.problems, *_leaks(dataset, Severity.WARNING if allow_leak else Severity.ERROR)]
    for file, found in zip(files_of(dataset), _examined(files_of(dataset), workers), strict=True):
        facts[file] = found
        problems.extend(_problems_of_file(file, found))
        if advance is not None:
            advance(1)
    problems += _sizes(dataset, facts)
    problems += _duplicates(dataset, facts)
    sizes = Counter(found.size for found in facts.values() if found.size is not None)
    severities = list(Severity)
    problems.sort(key=lambda p: (severities.index(p.severity), _ORDER.index(p.kind), str(p.file or ""), p.slide or ""))
    return Report(dataset, tuple(problems), dict(sizes.most_common()))


def files_of(dataset: DataSet) -> list[Path]:
    """Every image that the check reads: both of each pair, and those that found no partner."""
    paired = [file for record in dataset.records for file in (record.he, record.ihc)]
    return paired + [p.file for p in dataset.problems if p.kind in ("unpaired", "ambiguous") and p.file is not None]


@dataclass(frozen=True, slots=True)
class _Facts:
    size: Size | None  # None: unreadable
    pixels: bytes  # hash of the decoded image
    format: str = ""
    conversions: tuple[str, ...] = ()
    failure: str = ""


def _examined(files: Iterable[Path], workers: int | None) -> Iterator[_Facts]:
    """In the order of ``files``; only as many images at a time as there are threads, and a few waiting results."""
    workers = workers or min(cores(), 16)
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[_Facts]] = deque()
        try:
            for file in files:
                waiting.append(pool.submit(_examine, file))
                if len(waiting) >= 4 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # interrupted: do not decode what nobody waits for


def _examine(file: Path) -> _Facts:
    try:
        header = read_header(file)
        pixels = read_image(file)
    except SheafStainError as error:
        return _Facts(None, b"", failure=str(error).removeprefix(f"{file}: "))
    digest = hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=16, key=str(pixels.shape).encode()).digest()
    size = Size(pixels.shape[0], pixels.shape[1])
    return _Facts(size, digest, header.format, header.conversions)


def _problems_of_file(file: Path, facts: _Facts) -> Iterator[Problem]:
    if facts.size is None:
        yield Problem("unreadable", Severity.ERROR, facts.failure, file)
        return
    if min(facts.size.h, facts.size.w) < MIN_SIDE:
        yield Problem("size", Severity.ERROR, f"is {facts.size}, smaller than one patch of {MIN_SIDE} px", file)
    if facts.conversions:
        yield Problem("converted", Severity.NOTE, ", ".join(facts.conversions), file)
    if facts.format != _FORMATS.get(file.suffix.lower()):
        yield Problem("suffix", Severity.NOTE, f"holds {facts.format} data", file)


def _sizes(dataset: DataSet, facts: dict[Path, _Facts]) -> Iterator[Problem]:
    """Partners of different size; files of another size than most, unless their partner already says so."""
    told: set[Path] = set()
    for record in dataset.records:
        he, ihc = facts[record.he].size, facts[record.ihc].size
        if he is not None and ihc is not None and he != ihc:
            told |= {record.he, record.ihc}
            yield Problem("size", Severity.ERROR, f"is {ihc}, its H&E partner {record.he.name} {he}", record.ihc)
    sizes = Counter(found.size for found in facts.values() if found.size is not None)
    if not sizes:
        return
    usual, files = sizes.most_common(1)[0]
    if 2 * files <= sizes.total():
        text = f"the images have {len(sizes)} sizes, none of them in more than half of the files"
        yield Problem("size", Severity.WARNING, text)
        return
    for file, found in facts.items():
        if found.size not in (None, usual) and file not in told:
            yield Problem("size", Severity.WARNING, f"is {found.size}, most files are {usual}", file)


def _duplicates(dataset: DataSet, facts: dict[Path, _Facts]) -> Iterator[Problem]:
    """Files with the same pixels. Within a stain: stains may share H&E sections, and are trained one at a time."""
    for stain in dataset.stains:
        first: dict[bytes, tuple[Record, Path]] = {}
        for record in dataset.select(stain=stain):
            for file in (record.he, record.ihc):
                if facts[file].size is None:
                    continue
                other, twin = first.setdefault(facts[file].pixels, (record, file))
                if twin is file:
                    continue
                where = twin.relative_to(dataset.root).as_posix()
                if other is record:
                    text = "has the same pixels as its H&E partner: one of them is a copy"
                    yield Problem("duplicate", Severity.ERROR, text, file)
                elif other.split != record.split:
                    text = f"has the same pixels as {where}, which is in {other.split}, not {record.split}"
                    yield Problem("duplicate", Severity.ERROR, text, file)
                else:
                    yield Problem("duplicate", Severity.WARNING, f"has the same pixels as {where}", file)


def _leaks(dataset: DataSet, severity: Severity) -> Iterator[Problem]:
    """Slides with pairs in more than one split of a stain."""
    official = " (so in the published split)" if dataset.layout == "mist" and dataset.published else ""
    for stain in dataset.stains:
        splits: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for record in dataset.select(stain=stain):
            if record.slide is not None:
                splits[record.slide][record.split] += 1
        for slide, pairs in splits.items():
            if len(pairs) > 1:
                where = " and ".join(f"{split} ({count} pairs)" for split, count in pairs.items())
                text = f"slide {slide} of {stain} is in {where}{official}"
                yield Problem("leak", severity, text, slide=slide)
