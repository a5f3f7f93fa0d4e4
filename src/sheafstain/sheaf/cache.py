"""Sections on disk, so that training cuts its conditioning from a file and needs no encoder (D16).

One folder per encoder, weights and stride; one safetensors file per image, in half precision:

    CACHE/prov-gigapath-0123456789ab-s80/
        cache.json                     which encoder, which weights, which stride
        train/HER2/00001.safetensors   sum [h, w, d], count [h, w], corners [n, 2], cls [n, d]

A file is written whole or not at all, so a run that was killed goes on where it was. Its header carries the hash of the
image it was made from and a hash of its own content, which is checked when it is first opened: a truncated, altered or
foreign file is refused. What is opened is memory-mapped; a cut reads only the rows it needs.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sheafstain.errors import SheafStainError
from sheafstain.sheaf.section import Section
from sheafstain.whole import whole
from sheafstain.window import Window

FORMAT = 1
NOTE = "cache.json"
SETTLED = 10**9  # ns: a younger file could change again and keep its time, so it is not remembered as checked
AGAIN = "run sheafstain sections again"


class EncoderName(Protocol):
    """What names the tokens of an encoder."""

    @property
    def id(self) -> str: ...
    @property
    def weights_hash(self) -> str: ...
    @property
    def width(self) -> int: ...
    @property
    def pitch(self) -> int: ...
    @property
    def crop(self) -> int: ...


class RecordName(Protocol):
    """What names an image of a data set."""

    @property
    def id(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def stain(self) -> str: ...


@dataclass(frozen=True, slots=True)
class CacheKey:
    """What sections of one cache have in common."""

    encoder: str
    weights_hash: str
    stride: int
    width: int
    pitch: int
    crop: int

    @classmethod
    def of(cls, encoder: EncoderName, stride: int) -> CacheKey:
        return cls(encoder.id, encoder.weights_hash, stride, encoder.width, encoder.pitch, encoder.crop)

    @property
    def folder(self) -> str:
        return f"{quote(self.encoder, safe='')}-{self.weights_hash[:12]}-s{self.stride}"


def image_id(record: RecordName) -> str:
    """Name of a record's H&E image in a cache; an id alone is unique within a split and stain only."""
    return "/".join((record.split, record.stain, record.id))


def image_hash(path: Path) -> str:
    """SHA-256 of an image file: a section belongs to these bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class SectionCache:
    """The sections of one encoder at one stride. Cheap to construct and to send to another process.

    With ``verify`` each file is hashed when it is first opened; without, only a truncated one is noticed.
    """

    def __init__(self, folder: Path, *, verify: bool = True) -> None:
        self.folder, self.verify = Path(folder), verify
        self.key = _read_key(self.folder)
        self._verified: dict[Path, tuple[int, int]] = {}  # size and time of what was hashed

    @classmethod
    def create(cls, root: Path, key: CacheKey, *, verify: bool = True) -> SectionCache:
        """The cache of that key under ``root``, made if it is not there."""
        folder = Path(root) / key.folder
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / NOTE).exists():
            with whole(folder / NOTE) as part:
                part.write_text(json.dumps({"format": FORMAT, **asdict(key)}, indent=2) + "\n")
        cache = cls(folder, verify=verify)
        if cache.key != key:
            raise SheafStainError(f"{folder / NOTE}: describes other sections than {key.folder}; choose another output")
        return cache

    @classmethod
    def under(cls, root: Path, key: CacheKey, *, verify: bool = True) -> SectionCache:
        """The cache of that key under ``root``, which must be there."""
        return cls(Path(root) / key.folder, verify=verify)

    def path(self, image: str) -> Path:
        """File of the image of that id; slashes make folders, other characters that no file name has are quoted."""
        parts = [quote(part, safe=" ()+,=@") for part in image.split("/")]
        if any(part in ("", ".", "..") for part in parts):
            raise ValueError(f"{image!r} names no image")
        return self.folder.joinpath(*parts[:-1], f"{parts[-1]}.safetensors")

    def write(self, image: str, hash_of_image: str, section: Section) -> Path:
        """Store a section in half precision."""
        path = self.path(image)
        if section.sum.shape[-1] != self.key.width or section.crop != self.key.crop:
            raise ValueError(f"{image}: the section is not of the encoder {self.key.encoder}")
        tensors = {
            "sum": section.sum.half().cpu().contiguous(),
            "count": section.count.to(torch.int16).cpu().contiguous(),
            "corners": section.corners.to(torch.int32).cpu().contiguous(),
            "cls": section.cls.half().cpu().contiguous(),
        }
        if not all(bool(torch.isfinite(tensors[name]).all()) for name in ("sum", "cls")):
            raise SheafStainError(f"{image}: tokens are not finite in half precision; encode with --precision float32")
        about = self._about(hash_of_image, section.window)
        about["sha256"] = _digest(about, tensors)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as part:
            save_file(tensors, part, metadata=about)
        return path

    def has(self, image: str, hash_of_image: str) -> bool:
        """Whether the section of that very image is there; with ``verify`` also whether its content is intact."""
        try:
            self.open(image, hash_of_image)
        except SheafStainError:
            return False
        return True

    def open(self, image: str, hash_of_image: str | None = None) -> Section:
        """The section of an image, memory-mapped: ``cache.open(image).restrict(window)``.

        With ``hash_of_image`` the section of another version of the image is refused.
        """
        path = self.path(image)
        if not path.is_file():
            raise SheafStainError(f"{path}: there is no section of image {image}; {AGAIN} to make it")
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in ("sum", "count", "corners", "cls")}
        except (SafetensorError, OSError) as error:
            raise SheafStainError(f"{path}: is damaged ({error}); {AGAIN} to replace it") from error
        try:
            window = Window(*(int(side) for side in about["window"].split()))
        except (KeyError, TypeError, ValueError) as error:
            raise SheafStainError(f"{path}: is no section of this project; {AGAIN} to replace it") from error
        if about | self._about(about.get("image", ""), window) != about:
            raise SheafStainError(f"{path}: is of another encoder, weights or stride; {AGAIN} to replace it")
        if hash_of_image not in (None, about.get("image")):
            raise SheafStainError(f"{path}: was made from another version of image {image}; {AGAIN} to replace it")
        self._check(path, about, tensors)
        return Section(
            window, tensors["sum"], tensors["count"], tensors["corners"].long(), tensors["cls"], self.key.crop
        )

    def _check(self, path: Path, about: dict[str, str], tensors: dict[str, Tensor]) -> None:
        stat = path.stat()
        stamp = stat.st_size, stat.st_mtime_ns
        if not self.verify or self._verified.get(path) == stamp:
            return
        if _digest({k: v for k, v in about.items() if k != "sha256"}, tensors) != about.get("sha256"):
            raise SheafStainError(f"{path}: was altered after it was written (its hash differs); {AGAIN} to replace it")
        if time.time_ns() - stat.st_mtime_ns > SETTLED:
            self._verified[path] = stamp

    def _about(self, hash_of_image: str, window: Window) -> dict[str, str]:
        common = {name: str(value) for name, value in asdict(self.key).items()}
        place = " ".join(str(side) for side in (window.y, window.x, window.h, window.w))
        return {"format": str(FORMAT), **common, "image": hash_of_image, "window": place}


def _read_key(folder: Path) -> CacheKey:
    path = folder / NOTE
    if not path.is_file():
        raise SheafStainError(f"{folder}: holds no cached sections; make them with sheafstain sections")
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        if content.pop("format") != FORMAT:
            raise SheafStainError(f"{path}: is of another format; make the sections anew with sheafstain sections")
        return CacheKey(**content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SheafStainError(f"{path}: is damaged; delete it and {AGAIN}") from error


def _digest(about: dict[str, str], tensors: dict[str, Tensor]) -> str:
    """SHA-256 over what a file says about itself and over its tensors."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
