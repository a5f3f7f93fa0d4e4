"""A file of any size to files: opened at the model's µm/px, resumable, with its report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sheafstain.errors import SheafStainError, UsageError
from sheafstain.slides.read import Slide, View, open_slide
from sheafstain.slides.tissue import TissueMask
from sheafstain.translate import report as reports
from sheafstain.translate.files import WORTH_KEEPING, FileSink, Outputs, State, differences
from sheafstain.translate.measuring import Measuring
from sheafstain.translate.pipeline import Timing, run
from sheafstain.translate.plan import Plan
from sheafstain.translate.protocol import StainProtocol
from sheafstain.whole import write_whole
from sheafstain.window import Resolution, Size, Window

if TYPE_CHECKING:
    from sheafstain.translate.stainer import Stainer

GLASS_FROM = 4096**2  # px: smaller images are translated whole, larger ones where there is tissue


@dataclass(frozen=True, eq=False, slots=True)
class SlideSource:
    """The whole of a slide at one resolution."""

    view: View

    @property
    def size(self) -> Size:
        return self.view.size

    def rows(self, window: Window, band: int) -> Iterator[np.ndarray]:
        return replace(self.view, window=window).rows(band=band)


@dataclass(frozen=True, slots=True)
class Written:
    """What a translation left: its files, its report, and whether all of it was there before."""

    outputs: Outputs
    report: Mapping[str, Any]
    present: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Opened:
    """A slide as it will be translated: the whole at the right resolution, and which part of it is asked for."""

    slide: Slide
    view: View
    region: Window
    assumed: bool  # whether the µm/px of the file are unknown and taken to be the model's

    @classmethod
    def of(cls, slide: Slide, mpp: float | None, level: int | None, region: Window | None) -> Opened:
        """``mpp`` of the model; ``level`` is taken as it is; ``region`` in pixels of the slide's level 0."""
        assumed = slide.resolution is None and level is None and mpp is not None
        if assumed and slide.size.area > WORTH_KEEPING:
            raise SheafStainError(
                f"{slide.path}: does not say its µm/px; give it with --mpp (0.25 at 40×, 0.5 at 20×), or --level 0 to "
                "take its pixels as they are"
            )
        asked = None if mpp is None or level is not None or assumed else Resolution(mpp)
        view = slide.view(asked, level=level)
        part = view.window if region is None else slide.view(asked, level=level, region=region).window
        return cls(slide, view, part, assumed)

    def resolution(self, mpp: float | None) -> Resolution:
        """What is written into the output."""
        if self.view.resolution is not None:
            return self.view.resolution
        if mpp is None:
            raise UsageError(f"{self.slide.path}: neither it nor the model says its µm/px; give it with --mpp")
        return Resolution(mpp)

    def about(self, mpp: float | None) -> dict[str, Any]:
        """What the report says of the input; ``mpp`` of the view where nothing else tells."""
        slide, view = self.slide, self.view
        return {
            "path": slide.path.name,
            "format": slide.format,
            "size": [slide.size.w, slide.size.h],
            "mpp": None if slide.resolution is None else slide.resolution.mpp,
            "mpp_assumed": self.assumed,
            "view": [view.size.w, view.size.h],
            "view_mpp": mpp if view.resolution is None else view.resolution.mpp,
            "fingerprint": slide.fingerprint,
        }


def stain_file(
    stainer: Stainer,
    path: Path,
    output: Path,
    protocol: StainProtocol,
    *,
    mpp: float | None = None,
    level: int | None = None,
    region: Window | None = None,
    strict: bool = False,
    overwrite: bool = False,
    workers: int | None = None,
    start: Callable[[int, Size], Callable[[int], None]] | None = None,
) -> Written:
    """Translate a file into files beside ``output``, or go on where an earlier call was stopped.

    Parameters
    ----------
    mpp
        µm/px of the input, where the file does not say or is wrong.
    level
        Take this stored level as it is, whatever its µm/px.
    region
        In pixels of level 0.
    strict
        Fail at a damaged tile; otherwise it comes out white and is listed.
    overwrite
        Replace an output that is there, and start anew where there is something to go on with.
    workers
        Threads that encode.
    start
        Called with the number of lattice windows and the size of the output when both are known; what it returns is
        called with the number of them just done.
    """
    outputs = Outputs(output)
    model = stainer.model
    with open_slide(path, mpp=mpp, strict=strict) as slide:
        opened = Opened.of(slide, model.config.mpp, level, region)
        size = opened.region.size
        identity = _identity(opened, stainer, protocol, level)
        if overwrite:
            State(outputs.state, identity).remove()
        elif (found := _present(outputs, identity)) is not None:
            return found
        state = State(outputs.state, identity) if size.area > WORTH_KEEPING else None
        resolution = opened.resolution(model.config.mpp)
        about = opened.about(resolution.mpp)
        with FileSink(
            outputs,
            size,
            resolution,
            _description(stainer, protocol, about),
            samples=protocol.samples,
            state=state,
            workers=workers,
            damaged=lambda: _within(opened.view.damaged, opened.region),
        ) as sink:
            measuring, timing = _translate(stainer, opened, protocol, sink, start)
            sink.checkpoint(measuring.progress())
        report = reports.report(
            measuring,
            timing,
            model,
            stainer.encoder,
            about,
            damaged=sink.damaged,
            seconds=sink.seconds,
        )
        report = {**report, "identity": identity}
        write_whole(outputs.report, (json.dumps(report, indent=2, ensure_ascii=False) + "\n").encode())
        if state is not None:
            state.remove()
    return Written(outputs, report)


def _translate(
    stainer: Stainer,
    opened: Opened,
    protocol: StainProtocol,
    sink: FileSink,
    start: Callable[[int, Size], Callable[[int], None]] | None,
) -> tuple[Measuring, Timing]:
    region, view = opened.region, opened.view
    tissue = None if protocol.glass or view.size.area < GLASS_FROM else TissueMask.of(view)
    row = sink.before.row if sink.before else 0
    target = Window(region.y + row, region.x, region.h - row, region.w)
    left = Window(min(target.y, region.bottom - 1), region.x, max(target.h, 1), region.w)
    plan = Plan(protocol, view.size, left, tissue)
    measuring = Measuring(plan, region, sink, sink.before)
    if target.empty:  # stopped between its last row and its files' appearance
        return measuring, Timing(0, 0, 0, 0, 0, 0)
    advance = None
    if start is not None:
        advance = start(sum(len(group.lattice) for group in plan.groups()), region.size)
    encoder = stainer.encoder if protocol.conditioning != "none" else None
    timing = run(SlideSource(view), stainer.model, encoder, measuring, batch=stainer.batch, advance=advance)
    return measuring, timing


def _present(outputs: Outputs, identity: Mapping[str, Any]) -> Written | None:
    """The same translation, made before; another one at the same place, or another file, is an error."""
    stained, reported = outputs.stain.exists(), outputs.report.exists()
    if outputs.state.exists() or not (stained or reported):
        return None
    try:
        report = json.loads(outputs.report.read_bytes())
        different = differences(report["identity"], json.loads(json.dumps(identity)))
    except (OSError, ValueError, KeyError, TypeError):
        different = "no report beside it" if stained else "something else in it"
    if different:
        there = outputs.stain if stained else outputs.report
        raise SheafStainError(f"{there}: is there, with {different}; --overwrite replaces it")
    return Written(outputs, report, present=True) if stained else None  # the same was written in another format


def _identity(opened: Opened, stainer: Stainer, protocol: StainProtocol, level: int | None) -> dict[str, Any]:
    """All that the pixels depend on."""
    region, mpp = opened.region, opened.view.resolution
    encoder = reports.about_encoder(protocol, stainer.encoder)
    return {
        "input": opened.slide.fingerprint,
        "region": [region.x, region.y, region.w, region.h],
        "resolution": None if mpp is None else mpp.mpp,
        "level": level,
        "model": stainer.model.hash,
        "encoder": None if encoder is None else encoder["hash"],
        **protocol.as_dict(),
    }


def _description(stainer: Stainer, protocol: StainProtocol, about: Mapping[str, Any]) -> dict[str, Any]:
    """What is written into the files themselves."""
    config = stainer.model.config
    encoder = reports.about_encoder(protocol, stainer.encoder)
    return {
        "stain": config.stain,
        "model": config.name,
        "model_hash": stainer.model.hash,
        "encoder": None if encoder is None else encoder["id"],
        "encoder_hash": None if encoder is None else encoder["hash"],
        "seed": protocol.seed,
        "samples": protocol.samples,
        "source": about["path"],
    }


def _within(windows: list[Window], region: Window) -> list[Window]:
    shared = (window.overlap(region) for window in windows)
    return [window.within(region) for window in shared if not window.empty]
