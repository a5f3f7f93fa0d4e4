"""The log of an audit, from which a stopped run goes on.

One JSON object a line: first the protocol, then the sums of each image. An image is measured once, and a run with
another encoder, other weights or another protocol does not mix into it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sheafstain.errors import SheafStainError
from sheafstain.sheaf.audit import AuditImage, ImageAudit, Protocol
from sheafstain.sheaf.encoders import Encoder
from sheafstain.whole import write_whole


class AuditLog:
    """The images measured so far, in a file that survives a killed run."""

    def __init__(self, folder: Path, encoder: Encoder, protocol: Protocol) -> None:
        self.folder, self.path = folder, folder / "images.jsonl"
        self.header: dict[str, Any] = {
            "encoder": encoder.id,
            "weights": encoder.weights_hash,
            "precision": str(encoder.dtype).removeprefix("torch."),
            "pitch": encoder.pitch,
            "strides": list(protocol.strides),
            "measured_strides": list(protocol.actual(encoder.pitch)),
            "pairs": protocol.pairs,
            "seed": protocol.seed,
        }
        folder.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self._check()
        else:
            write_whole(self.path, (json.dumps(self.header) + "\n").encode())

    def _check(self) -> None:
        """The log must be of this encoder and protocol; half a last line, left by a killed run, is dropped."""
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            write_whole(self.path, whole)
        try:
            before = json.loads(whole.split(b"\n", 1)[0])
            differ = [key for key in self.header if before[key] != self.header[key]]
        except (ValueError, KeyError, TypeError) as error:
            raise SheafStainError(f"{self.path}: not the log of an audit; choose another output folder") from error
        if differ:
            said = "; ".join(f"{key} was {_brief(before[key])}, now {_brief(self.header[key])}" for key in differ)
            raise SheafStainError(f"{self.path}: of another audit ({said}); choose another output folder with -o")

    def rows(self) -> Iterator[dict[str, Any]]:
        with self.path.open(encoding="utf-8") as lines:
            next(lines)
            for line in lines:
                yield json.loads(line)

    def heat_file(self, image: AuditImage) -> Path:
        safe = "".join(c if c.isalnum() or c in "-_+" else "_" for c in f"{image.stain}-{image.id}")
        return self.folder / "heat" / f"{safe}.npz"

    def finished(self, images: Iterable[AuditImage], drawn: Iterable[AuditImage] = ()) -> set[AuditImage]:
        """The images that need not be measured again: same file, and a map of the defect where one is drawn."""
        known = {(row["stain"], row["id"]): (row["bytes"], row["mtime_ns"]) for row in self.rows()}
        needs_map = set(drawn)
        return {
            image
            for image in images
            if known.get((image.stain, image.id)) == _stamp(image)
            and (image not in needs_map or self.heat_file(image).is_file())
        }

    def add(self, result: ImageAudit) -> None:
        if result.heat is not None:
            file = self.heat_file(result.image)
            file.parent.mkdir(exist_ok=True)
            buffer = io.BytesIO()
            np.savez_compressed(buffer, heat=result.heat.astype(np.float32))
            write_whole(file, buffer.getvalue())
        size, changed = _stamp(result.image)
        row = {
            "id": result.image.id,
            "stain": result.image.stain,
            "path": str(result.image.path),
            "bytes": size,
            "mtime_ns": changed,
            "pixels": [result.size.h, result.size.w],
            "locality": result.locality,
            "unrelated": result.unrelated,
            "tokens": result.tokens.tolist(),
            "cosine": _short(result.cosine),
            "squares": _short(result.squares),
            "distance": _short(result.distance),
            "profile_tokens": result.profile_tokens.tolist(),
            "profile": _short(result.profile),
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")


def _stamp(image: AuditImage) -> tuple[int, int]:
    stat = image.path.stat()
    return stat.st_size, stat.st_mtime_ns


def _short(sums: np.ndarray) -> Any:
    """Nested lists of nine digits: more than float32 tokens hold, and half the size of all of them."""
    return np.vectorize(lambda value: float(f"{value:.9g}"))(sums).tolist()


def _brief(value: Any) -> str:
    return f"{value[:12]}…" if isinstance(value, str) and len(value) > 40 else str(value)
