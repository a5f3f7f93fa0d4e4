"""What a run has measured so far, on disk: so that a killed run goes on where it was and features are computed once.

``images.jsonl`` holds the protocol in its first line and then one line for each set of images, keyed by the content of
its files: a renamed file is not measured again, a changed one is. ``features/EXTRACTOR/HASH.npy`` holds the features of
one image; several runs may share that folder, also at the same time.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sheafstain.errors import SheafStainError
from sheafstain.whole import write_whole

FORMAT = 1
LOG = "images.jsonl"

Number = float | str | None  # a float, "inf", "-inf", or None for undefined: JSON knows no such floats


def to_json(value: float) -> Number:
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")


def from_json(value: Number) -> float:
    return math.nan if value is None else float(value)


class Log:
    """The lines measured under one protocol; one under another protocol is refused, not mixed in."""

    def __init__(self, folder: Path, protocol: Mapping[str, Any]) -> None:
        self.path = folder / LOG
        self._rows: dict[tuple[str, ...], dict[str, Any]] = {}
        header = {"format": FORMAT, "protocol": protocol}
        folder.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self._read(header)
        else:
            write_whole(self.path, (json.dumps(header, ensure_ascii=False) + "\n").encode())

    def _read(self, header: Mapping[str, Any]) -> None:
        content = self.path.read_bytes()
        lines = content[: content.rfind(b"\n") + 1]
        if len(lines) < len(content):  # half a last line, left by a killed run
            write_whole(self.path, lines)
        try:
            first, *rest = lines.splitlines()
            before = json.loads(first)
            if before["format"] != FORMAT:
                raise ValueError(before["format"])
            said = differences(before["protocol"], header["protocol"])
            rows = [json.loads(line) for line in rest]
            self._rows = {tuple(row["key"]): row for row in rows}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SheafStainError(f"{self.path}: not the log of a score; choose another output with -o") from error
        if said:
            raise SheafStainError(
                f"{self.path}: measured under another protocol ({'; '.join(said)}); choose another output with -o"
            )

    def get(self, key: tuple[str, ...]) -> dict[str, Any] | None:
        return self._rows.get(key)

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, key: tuple[str, ...], row: Mapping[str, Any]) -> None:
        full = {"key": list(key), **row}
        line = json.dumps(full, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._rows[key] = full


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """What two protocols do not agree on, in words: ``library of psnr was …, now …``."""
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        return [] if one == other else [f"{where} was {_brief(one)}, now {_brief(other)}"]
    said = []
    for key in dict.fromkeys([*one, *other]):
        name = f"{key} of {where}" if where else str(key)
        said += differences(one.get(key), other.get(key), name)
    return said


def _brief(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(map(str, value)) or "none"
    return "absent" if value is None else str(value)


class FeatureCache:
    """Features of single images by extractor and content."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _file(self, extractor: str, image: str) -> Path:
        return self.folder / extractor / f"{image}.npy"

    def has(self, extractor: str, image: str) -> bool:
        return self._file(extractor, image).is_file()

    def put(self, extractor: str, image: str, features: NDArray[np.float32]) -> None:
        """``features`` [k, d]: one row for an image seen whole, k rows for one seen in k crops."""
        buffer = io.BytesIO()
        np.save(buffer, features.astype(np.float32), allow_pickle=False)
        file = self._file(extractor, image)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, buffer.getvalue())

    def get(self, extractor: str, image: str) -> NDArray[np.float32]:
        file = self._file(extractor, image)
        try:
            features = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise SheafStainError(f"{file}: damaged; remove it and start again") from error
        if features.ndim != 2 or features.dtype != np.float32 or not np.isfinite(features).all():
            raise SheafStainError(f"{file}: does not hold features; remove it and start again")
        return features


def key_of(hashes: Mapping[str, str], sides: Sequence[str]) -> tuple[str, ...]:
    return tuple(hashes[side] for side in sides)
