"""Frozen foundation models that turn 224-px crops into tokens (paper: the VFM Φ).

One call encodes a long, ragged stream of crops: groups of any size go in, the tokens of the same groups come out, and
in between every batch but the last is full, whatever the groups (D17). Crops enter as uint8 and are normalised on the
device. On a GPU the matrix products run in bfloat16 under autocast, with fused attention, channels last and compiled
at one fixed shape; on a CPU everything is float32, which is what the tests compare with.
"""

from __future__ import annotations

import importlib.util
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from sheafstain import hub
from sheafstain.device import choose_device
from sheafstain.errors import SheafStainError, UsageError
from sheafstain.sheaf.backbone import find_weights, load_network, random_network
from sheafstain.sheaf.registry import CROP, EncoderEntry

Crops = np.ndarray | Tensor  # uint8 [n, 224, 224, 3], or [224, 224, 3] for one


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """The tokens of n crops, float32, on the encoder's device."""

    patch: Tensor  # [n, grid², d], row by row
    cls: Tensor  # [n, d]

    def __len__(self) -> int:
        return len(self.cls)


class Encoder:
    """A frozen encoder on one device.

    Parameters
    ----------
    model
        The network; frozen here.
    entry
        What it is: pitch, grid, normalisation.
    weights_hash
        Names the weights by their content (``hub.content_hash``).
    dtype
        Type of the matrix products. Norms, residuals and the returned tokens are float32 in any case.
    compile
        Compile the forward pass for batches of exactly ``batch`` crops; the last batch is then padded.
    batch
        Crops per forward pass.
    """

    def __init__(
        self,
        model: nn.Module,
        entry: EncoderEntry,
        *,
        weights_hash: str,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        compile: bool = False,  # noqa: A002  torch's own word for it
        batch: int = 16,
    ) -> None:
        if batch < 1:
            raise UsageError(f"a batch holds at least one crop, not {batch}")
        self.entry = entry
        self.weights_hash = weights_hash
        self.device, self.dtype, self.batch, self.compiled = device, dtype, batch, compile
        self.prefix = int(model.num_prefix_tokens)  # type: ignore[arg-type]
        if self.prefix < 1:
            raise SheafStainError(f"{entry.id}: has no CLS token, which the conditioning needs; use another encoder")
        self.model = _freeze(model, device, dtype)
        mean, std = (torch.tensor(values, device=device).view(1, 3, 1, 1) for values in entry.normalisation)
        self._mean, self._std = mean, std
        self._forward: Callable[[Tensor], Tensor] = self._from_bytes
        if compile:
            self._forward = torch.compile(self._from_bytes, dynamic=False)

    @property
    def id(self) -> str:
        return self.entry.id

    @property
    def width(self) -> int:
        return self.entry.width

    @property
    def pitch(self) -> int:
        return self.entry.pitch

    @property
    def grid(self) -> int:
        return self.entry.grid

    @property
    def crop(self) -> int:
        return self.entry.crop

    def encode(self, crops: Iterable[Crops]) -> Iterator[Tokens]:
        """Yields the tokens of each group in turn; reads ahead only as far as it takes to fill a batch.

        A group is uint8 [n, 224, 224, 3] or one crop [224, 224, 3], an array or a tensor on any device, and may be
        empty.
        """
        groups: deque[_Group] = deque()
        waiting: deque[tuple[_Group, Tensor]] = deque()  # crops not yet encoded, with the group they belong to
        count = 0
        for item in crops:
            tensor = _as_crops(item)
            group = _Group(len(tensor), [])
            groups.append(group)
            if len(tensor):
                waiting.append((group, tensor))
                count += len(tensor)
            while count >= self.batch:
                self._encode_batch(waiting, self.batch)
                count -= self.batch
            yield from self._finished(groups)
        if count:
            self._encode_batch(waiting, count)
        yield from self._finished(groups)

    def _finished(self, groups: deque[_Group]) -> Iterator[Tokens]:
        while groups and groups[0].missing == 0:
            parts = groups.popleft().parts or [
                torch.empty(0, self.prefix + self.grid**2, self.width, device=self.device)
            ]
            yield self._split(torch.cat(parts) if len(parts) > 1 else parts[0])

    def _encode_batch(self, waiting: deque[tuple[_Group, Tensor]], size: int) -> None:
        """Encode the next ``size`` crops and hand the tokens to their groups."""
        taken: list[tuple[_Group, Tensor]] = []
        room = size
        while room:
            group, tensor = waiting.popleft()
            if len(tensor) > room:
                waiting.appendleft((group, tensor[room:]))
                tensor = tensor[:room]
            taken.append((group, tensor))
            room -= len(tensor)
        out = self._run(self._upload([tensor for _, tensor in taken]))
        for group, tensor in taken:
            group.parts.append(out[: len(tensor)])
            group.missing -= len(tensor)
            out = out[len(tensor) :]

    def _upload(self, pieces: list[Tensor]) -> Tensor:
        """The pieces as one uint8 batch [n, 224, 224, 3] on the device."""
        if self.device.type == "cuda" and all(piece.device.type == "cpu" for piece in pieces):
            count = sum(len(piece) for piece in pieces)
            pinned = torch.empty((count, CROP, CROP, 3), dtype=torch.uint8, pin_memory=True)
            return torch.cat(pieces, out=pinned).to(self.device, non_blocking=True)
        return torch.cat([piece.to(self.device) for piece in pieces])

    @torch.no_grad()  # not inference_mode: its tensors may not enter a training graph later
    def _run(self, crops: Tensor) -> Tensor:
        """uint8 [n, 224, 224, 3] to all tokens [n, prefix + grid², d], float32."""
        count = len(crops)
        if self.compiled and count < self.batch:  # another shape would compile again
            crops = torch.cat([crops, crops.new_zeros(self.batch - count, *crops.shape[1:])])
        return self._forward(crops)[:count]

    def _from_bytes(self, crops: Tensor) -> Tensor:
        # Rows, columns, channels seen as channels, rows, columns: that is what "channels last" means, without a copy.
        return self._tokens(crops.permute(0, 3, 1, 2).float() / 255)

    def _tokens(self, images: Tensor) -> Tensor:
        """Images [n, 3, 224, 224] in [0, 1] to all tokens."""
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            tokens: Tensor = self.model.forward_features((images - self._mean) / self._std)  # type: ignore[operator]
        return tokens.float()

    def _split(self, tokens: Tensor) -> Tokens:
        # The first token is CLS; registers, where there are any, lie between it and the patch tokens (D3).
        return Tokens(patch=tokens[:, self.prefix :], cls=tokens[:, 0])

    def differentiable(self, images: Tensor) -> Tokens:
        """Tokens of images [n, 3, 224, 224] in [0, 1], with a gradient to the images: what a loss on tokens needs."""
        return self._split(self._tokens(images.to(self.device)))


@dataclass(slots=True, eq=False)
class _Group:
    missing: int
    parts: list[Tensor]


def _as_crops(item: Crops) -> Tensor:
    if isinstance(item, np.ndarray):
        # A view of a read-only array (a memory map) is copied: torch has no read-only tensors and would warn.
        item = torch.from_numpy(np.ascontiguousarray(item) if item.flags.writeable else item.copy())
    crops = item[None] if item.ndim == 3 else item
    if crops.dtype != torch.uint8 or crops.ndim != 4 or crops.shape[1:] != (CROP, CROP, 3):
        raise ValueError(f"crops are uint8 [n, {CROP}, {CROP}, 3], not {crops.dtype} {list(crops.shape)}")
    return crops


def _freeze(model: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    model = model.eval().requires_grad_(False).to(device=device, dtype=torch.float32)
    if dtype != torch.float32:
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.to(dtype)  # autocast would cast these weights in every forward pass: the same numbers, cast once
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def load_encoder(
    name_or_path: str | Path,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    compile: bool | None = None,  # noqa: A002
    batch: int | None = None,
    download: bool = False,
) -> Encoder:
    """A frozen encoder, ready to encode.

    Parameters
    ----------
    name_or_path
        A registered name (``prov-gigapath``) or its Hugging Face id; a safetensors file or a folder in the Hub's
        layout; or ``name=path`` where the file alone does not tell which encoder it belongs to.
    device
        Default: the first GPU, else the CPU.
    dtype
        Default: bfloat16 on a GPU, else float32.
    compile
        Default: on a GPU where Triton is installed.
    batch
        Crops per forward pass; default 128 on a GPU, else 16.
    download
        Fetch missing weights from the Hugging Face Hub. Without it the network is never used.
    """
    place = choose_device(device)
    entry, path = find_weights(name_or_path, download=download)
    on_gpu = place.type == "cuda"
    model = random_network(entry) if path is None else load_network(entry, path)
    return Encoder(
        model,
        entry,
        weights_hash=hub.hash_of(model.state_dict()) if path is None else hub.content_hash(path),
        device=place,
        dtype=dtype or (torch.bfloat16 if on_gpu else torch.float32),
        compile=compile if compile is not None else on_gpu and importlib.util.find_spec("triton") is not None,
        batch=batch or (128 if on_gpu else 16),
    )
