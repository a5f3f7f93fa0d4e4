"""One run of the suite, from a listing of images to the report."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sheafstain.errors import SheafStainError
from sheafstain.metrics import distribution
from sheafstain.metrics.catalogue import SUBSET, SUBSETS, Metric
from sheafstain.metrics.protocol import versions
from sheafstain.metrics.report import Image, Report, Result, floats
from sheafstain.metrics.sources import Fault, Item, Listing, Pixels
from sheafstain.metrics.state import FeatureCache, Log
from sheafstain.metrics.statistics import LEVEL, RESAMPLES, correlation, summarise
from sheafstain.metrics.suite import Measured, Suite
from sheafstain.window import Size

Advance = Callable[[int], None]

_COMPARED = ("pred", "real")  # the sides whose features are compared
_NO_INTERVAL_FRECHET = "drawing images with replacement biases a Fréchet distance upwards"
_NO_INTERVAL_KERNEL = "drawing images with replacement biases a kernel distance upwards"
_NO_INTERVAL_SUBSETS = "the spread over subsets stands in its place"


@dataclass(frozen=True, slots=True)
class _Work:
    """One item on its way: what of it is still to be computed, and its pixels if anything is."""

    item: Item
    hashes: Mapping[str, str]
    values: bool  # are the per-image values missing?
    features: Sequence[tuple[str, str]]  # (extractor, side) of the features that are missing
    pixels: Mapping[str, Pixels] | None
    from_windows: float | None
    measured: Measured | None = None

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(self.hashes.values())

    @property
    def size(self) -> Size:
        assert self.pixels is not None
        return Size(*self.pixels["real"].shape[:2])


def score(
    listing: Listing,
    suite: Suite,
    folder: Path,
    *,
    name: str,
    features: Path | None = None,
    batch: int = 1,
    workers: int = 2,
    seed: int = 0,
    strict: bool = False,
    sample: Mapping[str, Any] | None = None,
    advance: Advance | None = None,
) -> Report:
    """Measure what is not measured yet and report on all of it.

    Parameters
    ----------
    listing
        What to score.
    suite
        By what.
    folder
        Where the run keeps what it has measured; the same folder goes on with a run that was stopped.
    name
        Of the method, for tables.
    features
        Where features of images are kept; a folder that several runs share saves them the real images.
    batch
        Images measured at once.
    workers
        Threads that decode, and that measure what needs no network.
    seed
        Of the bootstrap and of the KID subsets.
    strict
        An unreadable file ends the run, instead of being listed.
    sample
        How the items were drawn from a larger set, for the protocol.
    advance
        Called with the number of items just done.
    """
    protocol = suite.protocol(listing)
    log = Log(folder, _per_image(protocol, suite))
    cache = FeatureCache(features or folder / "features")
    unreadable = list(listing.unreadable)
    if strict and unreadable:
        raise SheafStainError(unreadable[0].reason)
    done: dict[str, Mapping[str, str]] = {}  # hashes by name
    for item, hashes in _measured(listing.items, suite, log, cache, batch, workers):
        if isinstance(hashes, Fault):
            if strict:
                raise SheafStainError(hashes.reason)
            unreadable.append(hashes)
        else:
            done[item.name] = hashes
        if advance is not None:
            advance(1)
    if not done:
        raise SheafStainError(
            f"none of {len(listing.items) or len(unreadable)} images could be read: {unreadable[0].reason}"
        )
    images = tuple(_image(item.name, done[item.name], log) for item in listing.items if item.name in done)
    return Report(
        name=name,
        protocol=protocol
        | {
            "bootstrap": {
                "method": f"{LEVEL:.0%} percentile bootstrap over images",
                "resamples": RESAMPLES,
                "seed": seed,
            },
            "sample": dict(sample) if sample else None,
        },
        versions=versions(),
        results=tuple(_results(suite, images, cache, protocol, seed)),
        images=images,
        left_out=tuple(suite.left_out),
        unreadable=tuple(sorted(unreadable, key=lambda fault: fault.name)),
        unpaired=tuple(listing.unpaired),
        resized=tuple(name for name in listing.resized if name in done),
        converted=tuple(fault for fault in listing.converted if Path(fault.name).stem in done),
    )


def _per_image(protocol: Mapping[str, Any], suite: Suite) -> dict[str, Any]:
    """The part of the protocol that values of single images depend on; a resized image has a name of its own."""
    sets = {metric.key for metric in suite.metrics if metric.kind == "set"}
    return {
        "metrics": {key: value for key, value in protocol["metrics"].items() if key not in sets},
        "borders": protocol["borders"],
        "windows": protocol["windows"],
    }


def _image(name: str, hashes: Mapping[str, str], log: Log) -> Image:
    row = log.get(tuple(hashes.values()))
    assert row is not None
    h, w = row["size"]
    sides = {key: floats(values) for key, values in row["sides"].items()}
    return Image(name, dict(hashes), (h, w), floats(row["values"]), sides)


# --- measuring ------------------------------------------------------------------------------------------------------


def _measured(
    items: Sequence[Item], suite: Suite, log: Log, cache: FeatureCache, batch: int, workers: int
) -> Iterator[tuple[Item, Mapping[str, str] | Fault]]:
    """Every item once, when all that is wanted of it is on disk, with its hashes or with why it could not be read."""

    def prepare(item: Item) -> _Work | Fault:
        try:
            hashes = dict(item.hashes())
            if suite.windows is not None:
                hashes["windows"] = suite.windows.hash(item.name)
            values = log.get(tuple(hashes.values())) is None
            missing = [
                (extractor, side)
                for extractor in suite.extractors
                for side in _COMPARED
                if not cache.has(extractor, hashes[side])
            ]
            if not values and not missing:
                return _Work(item, hashes, False, (), None, None)
            energy = suite.windows.value(item.name) if values and suite.windows is not None else None
            work = _Work(item, hashes, values, missing, item.read(), energy)
            return replace(work, measured=_measure([work], suite)[0]) if suite.light else work
        except SheafStainError as error:
            return Fault(item.name, str(error))

    waiting: dict[Size, list[_Work]] = {}  # images of one size make a batch
    for item, work in _ahead(items, prepare, workers, 2 * batch + workers):
        if isinstance(work, Fault):
            yield item, work
        elif work.pixels is None:
            yield item, work.hashes
        elif work.measured is not None:
            _keep(log, work, work.measured)
            yield item, work.hashes
        else:
            waiting.setdefault(work.size, []).append(work)
            full = max(waiting, key=lambda size: len(waiting[size]))
            if len(waiting[full]) >= batch or sum(map(len, waiting.values())) >= 4 * batch:
                yield from _finish(waiting.pop(full), suite, log, cache)
    for works in waiting.values():
        yield from _finish(works, suite, log, cache)


def _ahead(
    items: Iterable[Item], prepare: Callable[[Item], _Work | Fault], workers: int, ahead: int
) -> Iterator[tuple[Item, _Work | Fault]]:
    """``prepare`` of every item in order, at most ``ahead`` of them finished or under way before they are taken."""
    with ThreadPoolExecutor(workers) as threads:
        coming: deque[tuple[Item, Future[_Work | Fault]]] = deque()
        try:
            for item in items:
                coming.append((item, threads.submit(prepare, item)))
                if len(coming) > ahead:
                    first, future = coming.popleft()
                    yield first, future.result()
            while coming:
                first, future = coming.popleft()
                yield first, future.result()
        finally:
            for _, future in coming:
                future.cancel()


def _finish(
    works: Sequence[_Work], suite: Suite, log: Log, cache: FeatureCache
) -> Iterator[tuple[Item, Mapping[str, str]]]:
    for extractor in suite.extractors:
        for side in _COMPARED:
            needy = [work for work in works if (extractor, side) in work.features]
            if needy:
                rows = suite.features(extractor, _batch(needy, side, suite.device))
                for work, row in zip(needy, rows, strict=True):
                    cache.put(extractor, work.hashes[side], np.atleast_2d(row))
    fresh = [work for work in works if work.values]
    if fresh:
        for work, measured in zip(fresh, _measure(fresh, suite), strict=True):
            _keep(log, work, measured)
    for work in works:
        yield work.item, work.hashes


def _measure(works: Sequence[_Work], suite: Suite) -> list[Measured]:
    assert works[0].pixels is not None
    sides = {side: _batch(works, side, suite.device) for side in works[0].pixels}
    found = suite.measure(sides, [work.item for work in works])
    for work, measured in zip(works, found, strict=True):
        if work.from_windows is not None:
            measured.values["dirichlet"] = work.from_windows
    return found


def _keep(log: Log, work: _Work, measured: Measured) -> None:
    log.add(work.key, {"name": work.item.name, "size": [work.size.h, work.size.w], **measured.as_json()})


def _batch(works: Sequence[_Work], side: str, device: torch.device) -> Tensor:
    """float32 [b, 3, h, w] in [0, 1]; the bytes are what travels to the device."""
    stacked = torch.from_numpy(np.stack([work.pixels[side] for work in works if work.pixels is not None]))
    return stacked.to(device).permute(0, 3, 1, 2).contiguous().float().div_(255)


# --- summing up -----------------------------------------------------------------------------------------------------


def _results(
    suite: Suite, images: Sequence[Image], cache: FeatureCache, protocol: Mapping[str, Any], seed: int
) -> Iterator[Result]:
    sets: dict[str, tuple[distribution.Features, distribution.Features]] = {}
    for metric in suite.metrics:
        common = {
            "key": metric.key,
            "label": suite.label(metric),
            "better": metric.better,
            "latex": suite.latex(metric),
            "details": protocol["metrics"][metric.key],
        }
        if metric.group == "distribution":
            extractor = suite.extractor_of[metric.key]
            if extractor not in sets:
                sets[extractor] = _collected(extractor, images, cache)
            yield _distance(metric, sets[extractor], len(images), seed, common)
        elif metric.kind == "set":
            yield _correlation(metric, images, seed, common)
        else:
            values = [image.values[metric.key] for image in images]
            yield Result.from_summary(
                summarise(values, seed),
                [image.name for image in images],
                values,
                undefined_reason=metric.undefined,
                sides=_side_means(metric.key, images),
                **common,
            )


def _side_means(key: str, images: Sequence[Image]) -> dict[str, float]:
    """The mean of the quantity itself on each side, over the images where it is defined."""
    means = {}
    for side in images[0].sides.get(key, {}):
        values = [image.sides[key][side] for image in images]
        finite = [value for value in values if math.isfinite(value)]
        if finite:
            means[side] = math.fsum(finite) / len(finite)
    return means


def _collected(
    extractor: str, images: Sequence[Image], cache: FeatureCache
) -> tuple[distribution.Features, distribution.Features]:
    """The features of pred and of real, in the order of the images."""
    found = distribution.Features(), distribution.Features()
    for features, side in zip(found, _COMPARED, strict=True):
        for image in images:
            features.add(torch.from_numpy(cache.get(extractor, image.hashes[side])))
    return found


def _distance(
    metric: Metric,
    features: tuple[distribution.Features, distribution.Features],
    n: int,
    seed: int,
    common: Mapping[str, Any],
) -> Result:
    pred, real = features
    kernel, subsets = metric.key.startswith(("kid", "kd")), metric.key == "kid-subsets"
    size = min(SUBSET, n // 2)
    std, why = None, _NO_INTERVAL_KERNEL if kernel else _NO_INTERVAL_FRECHET
    value, flags, details = math.nan, [], dict(common["details"])
    needs = 4 if subsets else 2
    if n < needs:
        flags.append(f"undefined: needs {needs} images")
    elif subsets:
        value, std = distribution.kid_subsets(pred, real, SUBSETS, size, seed)
        why = _NO_INTERVAL_SUBSETS
        details |= {"subsets": SUBSETS, "subset size": size, "seed": seed}
    else:
        value = distribution.kid(pred, real) if kernel else distribution.fid(pred, real)
    if not kernel and needs <= n and pred.singular:
        flags.append(f"N is not above the {pred.width} features: singular covariance, compare at equal N only")
    return Result(
        **{**common, "details": details},
        value=None if math.isnan(value) else value * metric.scale,
        std=None if std is None else std * metric.scale,
        std_of="subsets" if subsets else "images",
        interval=None,
        no_interval=why,
        n=n,
        flags=tuple(flags),
    )


def _correlation(metric: Metric, images: Sequence[Image], seed: int, common: Mapping[str, Any]) -> Result:
    """Over the images of the set, between the DAB p90 of pred and of real."""
    pred = [image.values["dab-p90"] for image in images]
    real = [image.sides["dab-p90"]["real"] for image in images]
    summary = correlation(pred, real, seed)
    undefined = summary.mean is None
    return Result(
        **common,
        value=summary.mean,
        std=None,
        std_of="images",
        interval=summary.interval,
        no_interval="" if summary.interval else f"undefined for {metric.undefined}",
        n=summary.n,
        flags=(f"undefined: {metric.undefined}",) if undefined else (),
    )
