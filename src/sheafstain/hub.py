"""Weights: where they are found, how they are named by their content, and how they are fetched when a user asks for it.

Local first, Hugging Face Hub second, and the network only on request (D20). A name such as ``prov-gigapath`` is
looked for as ``$SHEAFSTAIN_WEIGHTS/prov-gigapath.safetensors``, in ``$SHEAFSTAIN_WEIGHTS/prov-gigapath/``, among the
weights that are part of this package (D21), and in the cache of the Hugging Face Hub.

No pickle is ever loaded. Several encoders are published as a pickled ``pytorch_model.bin``; ``convert`` turns such a
file into safetensors once, at the user's request, through PyTorch's restricted unpickler, which builds tensors and
nothing else.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sheafstain.errors import SheafStainError
from sheafstain.whole import whole, write_whole

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS_VARIABLE = "SHEAFSTAIN_WEIGHTS"
SAFE = "model.safetensors"  # the name every published folder uses
PICKLES = (".bin", ".pth", ".pt", ".ckpt", ".pkl")

Place = Literal["shipped", "weights folder", "Hub cache", "folder"]

_HEADER_LIMIT = 100 * 2**20  # bytes: the limit the safetensors format itself sets


def weights_folder() -> Path:
    """Where SheafStain keeps weights: ``$SHEAFSTAIN_WEIGHTS``, else a folder in the user's cache."""
    if chosen := os.environ.get(WEIGHTS_VARIABLE):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "sheafstain" / "weights"


def shipped_folder() -> Path:
    """The weights that are part of this package: a folder each, laid out as on the Hub (D21)."""
    return Path(__file__).parent / "weights"


def place(path: Path) -> Place:
    """Which of the places that ``locate`` looks in a file lies in, in a word; else it is somebody's folder."""
    from huggingface_hub import constants

    places: dict[Place, Path] = {
        "weights folder": weights_folder(),
        "shipped": shipped_folder(),
        "Hub cache": Path(constants.HF_HUB_CACHE),
    }
    for word, root in places.items():
        if path.is_relative_to(root):
            return word
    return "folder"


def locate(name: str, repo: str | None = None) -> Path | None:
    """The safetensors file of that name on this machine, or None; never the network."""
    if (file := weights_folder() / f"{name}.safetensors").is_file():
        return file
    for folder in (weights_folder(), shipped_folder()):
        if (file := _only(folder / name, (".safetensors",))) is not None:
            return file
    return _in_hub_cache(repo, (SAFE,))


def locate_pickle(name: str, repo: str | None = None) -> Path | None:
    """A file of that name that ``convert`` could turn into one that ``locate`` finds."""
    return _only(weights_folder() / name, PICKLES) or _in_hub_cache(repo, ("pytorch_model.bin",))


def resolve(path: Path) -> Path:
    """The safetensors file that a user's path means: the file itself, or the one in a folder laid out as on the Hub."""
    if path.suffix.lower() in PICKLES:
        raise SheafStainError(f"{path}: a pickle, which is never loaded; {conversion(path)} writes it as safetensors")
    if path.is_dir():
        if (file := _only(path, (".safetensors",))) is not None:
            return file
        if (pickle := _only(path, PICKLES)) is not None:
            raise SheafStainError(f"{path}: holds only a pickle, which is never loaded; run: {conversion(pickle)}")
        many = sorted(path.glob("*.safetensors"))
        found = f"{len(many)} safetensors files and none is called {SAFE}" if many else "no safetensors file in it"
        raise SheafStainError(f"{path}: {found}; name the file itself")
    if not path.is_file():
        raise SheafStainError(f"{path}: no such file or folder")
    return path


def conversion(pickle: Path, name: str | None = None) -> str:
    """The command that turns a pickle into safetensors."""
    return " ".join(["sheafstain encoders", *([name] if name else []), f"--convert {pickle}"])


def _only(folder: Path, suffixes: tuple[str, ...]) -> Path | None:
    """The file called ``model.*`` or ``pytorch_model.*``, else the only file with one of these suffixes."""
    if not folder.is_dir():
        return None
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in suffixes and file.is_file())
    for file in files:
        if file.stem in ("model", "pytorch_model"):
            return file
    return files[0] if len(files) == 1 else None


def _in_hub_cache(repo: str | None, names: tuple[str, ...]) -> Path | None:
    if repo is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    for name in names:
        found = try_to_load_from_cache(repo, name)
        if isinstance(found, str):  # else None, or the mark of a file known not to exist
            return Path(found)
    return None


def download(name: str, repo: str, published: str) -> Path:
    """Fetch the weights file of a Hub repository into the Hub's cache; the only function here that uses the network."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    page = f"https://huggingface.co/{repo}"
    try:
        return Path(hf_hub_download(repo, published))
    except GatedRepoError as error:
        raise SheafStainError(
            f"{name}: {page} is gated; log in there, accept its terms, run `hf auth login` here, and try again"
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, ConnectionError) as error:
        raise SheafStainError(
            f"{name}: the Hugging Face Hub cannot be reached from here; on a machine that reaches it fetch {published} "
            f"from {page} and put it into {weights_folder() / name}"
        ) from error
    except HfHubHTTPError as error:
        raise SheafStainError(f"{name}: {page} did not give {published}: {str(error).splitlines()[0]}") from error


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a safetensors file: its type, its shape, and its bytes as a range of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Names, types and shapes of the tensors of a safetensors file, without reading them; a broken file is named."""
    with path.open("rb") as file:
        return _header(file.read(8), file.read, path.stat().st_size, str(path))


def _header(first: bytes, read: Any, size: int, where: str) -> dict[str, TensorInfo]:
    broken = f"{where}: not a whole safetensors file"
    if len(first) < 8:
        raise SheafStainError(f"{broken} ({size} bytes); fetch it again")
    (length,) = struct.unpack("<Q", first)
    if length > min(_HEADER_LIMIT, size - 8):
        pointer = "; a Git LFS pointer has to be replaced by the file it points to" if first == b"version " else ""
        raise SheafStainError(f"{broken}{pointer}; fetch it again")
    try:
        table: dict[str, dict[str, Any]] = json.loads(read(length))
        tensors = {
            name: TensorInfo(
                dtype=item["dtype"],
                shape=tuple(item["shape"]),
                start=8 + length + item["data_offsets"][0],
                stop=8 + length + item["data_offsets"][1],
            )
            for name, item in table.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SheafStainError(f"{broken}; fetch it again") from error
    end = max((tensor.stop for tensor in tensors.values()), default=8 + length)
    if end > size:
        raise SheafStainError(f"{broken}: {end - size} of its {end} bytes are missing; fetch it again")
    return tensors


def content_hash(path: Path) -> str:
    """SHA-256 over the sorted names, types, shapes and bytes of the tensors: the same for every file that holds the
    same weights, whatever its name, metadata or order. Kept beside the file until its size or time changes, except in
    the package, into which nothing is written and whose files are small."""
    stat = path.stat()
    note = path.with_name(f"{path.name}.sha256.json")
    stamp = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    try:
        known = json.loads(note.read_text())
        if {key: known[key] for key in stamp} == stamp:
            return str(known["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no note, or one that is of no use: compute and write it anew
    tensors = read_header(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        digest = _digest(tensors, data)
    if not path.is_relative_to(shipped_folder()):
        with suppress(OSError):  # a read-only folder: the hash is computed again next time
            write_whole(note, json.dumps(stamp | {"sha256": digest}).encode())
    return digest


def hash_of(tensors: Mapping[str, Tensor]) -> str:
    """The hash a safetensors file of these tensors would have."""
    from safetensors.torch import save

    data = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    length = struct.unpack("<Q", data[:8])[0]
    return _digest(_header(data[:8], lambda count: data[8 : 8 + length][:count], len(data), "memory"), data)


def _digest(tensors: Mapping[str, TensorInfo], data: bytes | mmap.mmap) -> str:
    digest = hashlib.sha256()
    with memoryview(data) as view:
        for name in sorted(tensors):
            tensor = tensors[name]
            digest.update(json.dumps([name, tensor.dtype, list(tensor.shape)]).encode())
            digest.update(view[tensor.start : tensor.stop])
    return digest.hexdigest()


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    read_header(path)  # names what is wrong with a broken file better than the library does
    try:
        return load_file(path)
    except SafetensorError as error:
        raise SheafStainError(f"{path}: not a whole safetensors file ({error}); fetch it again") from error


def convert(source: Path, target: Path) -> Path:
    """Write the tensors of a pickled state dict as safetensors; a pickle that holds anything else is refused."""
    import zipfile

    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    if not source.is_file():
        raise SheafStainError(f"{source}: no such file")
    try:
        # mmap: the model is in memory once, not twice. Files from before PyTorch 1.6 are no archives: not mapped.
        state = torch.load(source, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(source))
    except OSError:
        raise
    except Exception as error:  # whatever the unpickler stumbles over in a damaged file, and what it refuses to build
        raise SheafStainError(
            f"{source}: not a plain file of tensors (damaged, or it holds more than tensors), so it is not read"
        ) from error
    while isinstance(state, Mapping) and len(state) < 10:  # {"state_dict": {…}}, {"teacher": {…}, "epoch": …}
        inner = [item for item in state.values() if isinstance(item, Mapping)]
        if len(inner) != 1:
            break
        state = inner[0]
    tensors = state if isinstance(state, Mapping) else {}
    if not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        raise SheafStainError(f"{source}: holds no single table of tensors; save the state dict alone")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with whole(target) as part:
            # clone(): two names may share one storage in a pickle, which safetensors refuses.
            save_file({str(name): tensor.contiguous().clone() for name, tensor in tensors.items()}, part)
    except SafetensorError as error:  # the library's name for a full disk
        raise SheafStainError(
            f"{target}: could not be written ({error}); make room or choose another folder"
        ) from error
    return target


def check_fit(path: Path, found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise unless the file holds exactly the tensors that the model expects, with their shapes."""
    missing = sorted(expected.keys() - found.keys())
    extra = sorted(found.keys() - expected.keys())
    misshapen = [
        f"{name} is {_shape(found[name])}, expected {_shape(expected[name])}"
        for name in sorted(expected.keys() & found.keys())
        if tuple(found[name]) != tuple(expected[name])
    ]
    complaints = [
        f"{len(items)} {what} ({_first(items)})"
        for items, what in ((missing, "missing"), (misshapen, "misshapen"), (extra, "unknown"))
        if items
    ]
    if complaints:
        raise SheafStainError(
            f"{path}: not the weights of this model: of {len(expected)} tensors {', '.join(complaints)}; "
            f"check that the file belongs to the encoder named"
        )


def _first(items: list[str], count: int = 3) -> str:
    return "; ".join(items[:count]) + ("; …" if len(items) > count else "")


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "a scalar"
