"""Encoded tiles waiting in a file until their slide is put together: each behind its length, in the order they came."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Self

from sheafstain.errors import SheafStainError
from sheafstain.slides.pyramid import Encoded

_LENGTH = 4  # bytes, little-endian


class Spool:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    @classmethod
    def unnamed(cls, folder: Path) -> Self:
        """A file that is gone when it is closed, also when the process is killed."""
        return cls(tempfile.TemporaryFile(dir=folder))

    @classmethod
    def reopened(cls, path: Path, position: int) -> Self:
        """The file as it was at ``position``, a former ``sync()`` (0: from the start); what came later is cut off."""
        length = path.stat().st_size if path.exists() else 0
        if length < position:
            raise SheafStainError(
                f"{path}: is damaged, {length} bytes of {position}; delete the folder {path.parent} to start again"
            )
        file = path.open("r+b" if position else "w+b")
        file.truncate(position)
        file.seek(position)
        return cls(file)

    def append(self, tile: Encoded) -> None:
        self._file.write(len(tile).to_bytes(_LENGTH, "little"))
        self._file.write(tile)

    def sync(self) -> int:
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()

    def __len__(self) -> int:
        """In bytes, which is a little more than those of the tiles."""
        return self._file.seek(0, os.SEEK_END)

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        while length := self._file.read(_LENGTH):
            yield self._file.read(int.from_bytes(length, "little"))
