"""Which translators are here: shipped with the package, kept in the weights folder, or in the Hugging Face Hub's cache.

Encoders lie in the same places. A folder is a translator's if its ``config.json`` names a method.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sheafstain import hub
from sheafstain.errors import SheafStainError
from sheafstain.methods.model import CARD, CONFIG, ModelConfig, find_model, read_config
from sheafstain.methods.registry import METHODS

_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")  # of batch norm: counted by nobody as parameters


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One translator. ``name`` is what ``--model`` takes."""

    name: str
    where: hub.Place
    path: Path  # of the weights file
    config: ModelConfig
    conditioning: str
    evaluations: int
    parameters: int
    size: int  # bytes
    hash: str

    @property
    def card(self) -> str:
        """The model card without the Hub's header; empty where there is none."""
        try:
            text = self.path.with_name(CARD).read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""
        if text.startswith("---\n") and "\n---\n" in text[4:]:
            text = text[4:].partition("\n---\n")[2]
        return text.strip()


@dataclass(frozen=True, slots=True)
class Damaged:
    """What should be a translator and cannot be read."""

    name: str
    reason: str


def list_models() -> list[ModelEntry | Damaged]:
    """All that can be used by name, in the order in which names are looked up; a name stands for the first of it."""
    found: dict[str, ModelEntry | Damaged] = {}
    for name, folder in _folders():
        if name in found or not _is_model(folder / CONFIG):
            continue
        try:
            found[name] = _entry(name, find_model(folder))
        except SheafStainError as error:
            found[name] = Damaged(name, str(error))
    return list(found.values())


def describe(name_or_path: str) -> ModelEntry:
    """One translator by its name, its folder or its Hub id."""
    return _entry(name_or_path, find_model(name_or_path))


def _entry(name: str, path: Path) -> ModelEntry:
    config = read_config(path.with_name(CONFIG))
    try:
        settings = METHODS[config.method].settings(**config.settings)
    except TypeError as error:
        raise SheafStainError(f"{path.with_name(CONFIG)}: describes no {config.method} network ({error})") from error
    tensors = hub.read_header(path)
    return ModelEntry(
        name=name,
        where=hub.place(path),
        path=path,
        config=config,
        conditioning=settings.conditioning,
        evaluations=getattr(settings, "T", 1),
        parameters=sum(math.prod(info.shape) for name, info in tensors.items() if not name.endswith(_BUFFERS)),
        size=path.stat().st_size,
        hash=hub.content_hash(path),
    )


def _folders() -> Iterator[tuple[str, Path]]:
    """Every folder that may be a model's, with the name by which ``find_model`` finds it."""
    for root in (hub.weights_folder(), hub.shipped_folder()):
        if root.is_dir():
            yield from ((folder.name, folder) for folder in sorted(root.iterdir()) if folder.is_dir())
    from huggingface_hub import constants, try_to_load_from_cache

    cache = Path(constants.HF_HUB_CACHE)
    for folder in sorted(cache.glob("models--*--*")) if cache.is_dir() else ():
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        if isinstance(config := try_to_load_from_cache(repo, CONFIG, cache_dir=cache), str):
            yield repo, Path(config).parent


def _is_model(config: Path) -> bool:
    """Whether this is, or may have been, a translator's description; an encoder's names an architecture instead."""
    try:
        content = json.loads(config.read_bytes())
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
    return isinstance(content, dict) and "method" in content
