"""Results in files: the stain, its defect map, the spread of several samples, and what a stopped run leaves behind.

Beside ``slide.tif`` lie ``slide.defect.tif``, with several samples ``slide.spread.tif``, and ``slide.json``. While
they are made there is a hidden folder ``.slide.tif.state``: the checkpoints of the files, and the progress, which is
saved after them, so that it never claims a row that a file does not have.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from sheafstain.errors import SheafStainError, UsageError
from sheafstain.slides.write import Writer, open_writer
from sheafstain.translate import maps
from sheafstain.translate.gluing import Finished
from sheafstain.translate.progress import Progress
from sheafstain.whole import write_whole
from sheafstain.window import Resolution, Size, Window

SUFFIXES = (".ome.tif", ".ome.tiff", ".tif", ".tiff", ".zarr", ".png")  # longest first
EVERY = 10.0  # seconds between checkpoints
WORTH_KEEPING = 4096**2  # px: what is smaller is sooner made again than kept


@dataclass(frozen=True, slots=True)
class Outputs:
    """The names of what one input becomes."""

    stain: Path

    def __post_init__(self) -> None:
        if not self.stain.name.lower().endswith(SUFFIXES):
            raise UsageError(f"{self.stain}: cannot write a file of this kind; end its name in {', '.join(SUFFIXES)}")

    def _named(self, infix: str) -> Path:
        suffix = next(s for s in SUFFIXES if self.stain.name.lower().endswith(s))
        stem, ending = self.stain.name[: -len(suffix)], self.stain.name[-len(suffix) :]
        return self.stain.with_name(f"{stem}{infix}{ending if not infix.endswith('.json') else ''}")

    @property
    def defect(self) -> Path:
        return self._named(".defect")

    @property
    def spread(self) -> Path:
        return self._named(".spread")

    @property
    def report(self) -> Path:
        return self._named(".json")

    @property
    def state(self) -> Path:
        return self.stain.with_name(f".{self.stain.name}.state")


class State:
    """The folder of an unfinished translation; ``identity`` is what must be equal for it to be continued."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self.identity = json.loads(json.dumps(identity))
        self._path = folder / "progress.npz"

    def load(self) -> Progress | None:
        """What an earlier run left, if anything; that of another translation is an error that says what differs."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            progress, identity = Progress.of_bytes(content)
        except ValueError as error:
            raise SheafStainError(f"{self._path}: is damaged ({error}); {_ANEW}") from error
        if different := differences(identity, self.identity):
            raise SheafStainError(
                f"{self.folder}: holds an unfinished translation with {different}; give the same to go on, or {_ANEW}"
            )
        return progress

    def save(self, progress: Progress) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, progress.to_bytes(self.identity))

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)  # first: without it the rest is nothing
        shutil.rmtree(self.folder, ignore_errors=True)


_ANEW = "--overwrite starts anew"


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Which entries of two identities differ, in words; empty when none does."""
    keys = [key for key in {**there, **here} if there.get(key) != here.get(key)]
    return ", ".join(f"{key} {_short(there.get(key))} (now {_short(here.get(key))})" for key in keys)


def _short(value: Any) -> str:
    return value[:12] if isinstance(value, str) and len(value) > 24 else str(value)


class FileSink:
    """Writes finished rows to all files of a translation; a context manager, at whose good end they appear.

    With a ``state`` it makes a checkpoint every ten seconds, and goes on from the one that is there.
    """

    def __init__(
        self,
        outputs: Outputs,
        size: Size,
        resolution: Resolution,
        description: Mapping[str, Any],
        *,
        samples: int,
        state: State | None,
        workers: int | None = None,
        damaged: Callable[[], list[Window]] = list,
    ) -> None:
        self._state, self._damaged = state, damaged
        self.before = state.load() if state else None
        kinds: list[tuple[str, Path, Literal[1, 3]]] = [("stain", outputs.stain, 3), ("defect", outputs.defect, 1)]
        if samples > 1:
            kinds.append(("spread", outputs.spread, 1))
        scale = {"scale": f"v > 0: RMS difference (v - 1) / {maps.STEPS}; 0: undefined"}
        self._writers: dict[str, Writer] = {}
        for kind, path, channels in kinds:
            folder = state.folder / kind if state else None
            complete = self.before is not None and self.before.row == size.h and path.exists()
            if complete and folder is not None and not (folder / "checkpoint").exists():
                continue  # killed between the appearance of this file and that of the next
            about = {**description, "kind": kind, **(scale if channels == 1 else {})}
            self._writers[kind] = open_writer(
                path, size, resolution, description=about, channels=channels, state=folder, workers=workers
            )
        self._open = ExitStack()
        self._began = self._saved = time.monotonic()

    @property
    def damaged(self) -> list[Window]:
        """What could not be read, by this run or an earlier one."""
        return sorted({*self._damaged(), *(self.before.damaged if self.before else ())})

    @property
    def seconds(self) -> float:
        """That all runs so far took, as far as their last checkpoints."""
        return time.monotonic() - self._began + (self.before.seconds if self.before else 0)

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            for writer in reversed(self._writers.values()):
                opening.enter_context(writer)  # the stain is left, and appears, first
            row = self.before.row if self.before else 0
            for writer in self._writers.values():
                if writer.done < row:
                    raise SheafStainError(f"{writer.path}: its unfinished state was lost or damaged; {_ANEW}")
            self._open = opening.pop_all()
        return self

    def rows(self, top: int, rows: Finished, coded: np.ndarray) -> None:
        made = {"stain": rows.pixels, "defect": coded}
        if rows.spread is not None:
            made["spread"] = maps.encode(rows.spread)
        for kind, writer in self._writers.items():
            known = min(max(writer.done - top, 0), rows.window.h)  # from before, and the same
            if known < rows.window.h:
                writer.rows(made[kind][known:])

    def settled(self, progress: Callable[[], Progress], *, stopped: bool) -> None:
        if self._state is not None and (stopped or time.monotonic() - self._saved >= EVERY):
            self.checkpoint(progress())

    def checkpoint(self, progress: Progress) -> None:
        """Make all rows so far survive this process."""
        if self._state is None or not progress.row:
            return
        for writer in self._writers.values():
            writer.checkpoint()
        self._state.save(replace(progress, damaged=self.damaged, seconds=self.seconds))
        self._saved = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)
