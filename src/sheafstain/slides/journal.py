"""What an unfinished file needs to be continued after its process was killed: one folder, one checkpoint in it.

The checkpoint is one file, a line of JSON and the partial rows of tiles of all levels as raw pixels (tiles lose a
little in JPEG, so they are never read back), replaced in one rename: whenever the process dies, the former or the new
one is there. Only one process at a time may hold the folder.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from sheafstain.errors import SheafStainError
from sheafstain.slides.pyramid import Rows


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a writer stood, level by level."""

    done: int  # rows of the full picture
    positions: Sequence[int]  # of the stores
    bands: Sequence[Rows]  # rows that do not fill a row of tiles yet


class Journal:
    """Holds ``folder`` inside a ``with`` block. ``identity`` is what tells one file from another."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self._identity = json.loads(json.dumps(identity))
        self._path, self._lock_path = folder / "checkpoint", folder / "lock"
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = self._lock_path.open("wb")
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            self._lock.close()
            raise SheafStainError(f"{folder}: another process is writing this file; wait for it or end it") from None
        except OSError:
            pass  # a file system without locks

    def load(self) -> Checkpoint | None:
        """The last checkpoint, if there is one; one of another file is an error that says what differs."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return None
        with file:
            try:
                said = json.loads(file.readline())
                identity, done, positions = said["identity"], said["done"], said["positions"]
                bands = [_read(file, shape) for shape in said["bands"]]
                if file.read(1):
                    raise ValueError("more bytes than it says")
            except (ValueError, KeyError, TypeError) as error:
                raise SheafStainError(
                    f"{self._path}: is damaged ({error}); delete the folder {self.folder} to start again"
                ) from error
        if differing := _differences(identity, self._identity):
            raise SheafStainError(
                f"{self.folder}: holds an unfinished file with {differing}; "
                "use the same settings to go on, or delete the folder to start again"
            )
        return Checkpoint(done, positions, bands)

    def save(self, checkpoint: Checkpoint) -> None:
        said = {
            "identity": self._identity,
            "done": checkpoint.done,
            "positions": list(checkpoint.positions),
            "bands": [band.shape for band in checkpoint.bands],
        }
        part = self._path.with_suffix(".part")
        try:
            with part.open("wb") as file:
                file.write(json.dumps(said).encode() + b"\n")
                for band in checkpoint.bands:
                    file.write(band.data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
        sync(self.folder)

    @property
    def resumable(self) -> bool:
        return self._path.exists()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the folder. One without a checkpoint is of no use to anybody and goes."""
        if self.resumable:
            self._lock.close()
        else:
            self.remove()

    def remove(self) -> None:
        """The checkpoint first: without it the rest is nothing."""
        for path in (self._path, *self.folder.glob("level-*.tiles"), self._lock_path):
            path.unlink(missing_ok=True)
        self._lock.close()
        with suppress(OSError):  # not empty: the rest is the caller's
            self.folder.rmdir()

    def spool(self, level: int) -> Path:
        return self.folder / f"level-{level}.tiles"


def sync(path: Path) -> None:
    """Have the bytes of a file, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(file: IO[bytes], shape: Sequence[int]) -> Rows:
    raw = file.read(math.prod(shape))
    return np.frombuffer(raw, np.uint8).reshape(shape)  # raises ValueError where bytes are missing


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    keys = [key for key in {**there, **here} if there.get(key) != here.get(key)]
    return ", ".join(f"{key} {there.get(key, 'not given')} (not {here.get(key, 'given')})" for key in keys)
