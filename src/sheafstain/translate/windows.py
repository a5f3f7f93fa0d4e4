"""The computing stage: pieces are cut, translated in full batches of one shape, and sent on as bytes.

The last batch is filled up, so that every batch has the shape that the network is compiled for, and a window's
pixels do not depend on how many others there were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sheafstain.bridge.noise import CanvasNoise
from sheafstain.sheaf.section import Section
from sheafstain.translate.conditioning import Ready
from sheafstain.translate.pixels import Pixels
from sheafstain.translate.plan import Piece
from sheafstain.translate.protocol import StainProtocol, Translator
from sheafstain.translate.stages import Channel


@dataclass(frozen=True, eq=False, slots=True)
class Translated:
    """Pieces that went through the model: ``pixels`` gives uint8 [n, h, w, 3] for each sample once they are there."""

    pieces: list[Piece]
    pixels: Callable[[], list[np.ndarray]]
    floor: int  # no later piece starts above it


def translate(
    model: Translator,
    protocol: StainProtocol,
    ready: Iterator[Ready],
    pixels: Pixels,
    out: Channel[Translated],
    batch: int,
    advance: Callable[[int], None] | None = None,
) -> int:
    """Translate all pieces; returns how many there were. ``advance`` is called with the number of lattice windows."""
    waiting: list[Ready] = []
    he: Tensor | None = None
    scaled: Tensor | None = None  # the same memory for every batch of a shape, as ``he`` is
    count, size = 0, batch if protocol.cover != "whole" else 1  # pieces of the cover "whole" are large

    def send(he: Tensor) -> None:
        nonlocal scaled
        scaled = _from_bytes(he, scaled)
        made = _run(model, protocol, waiting, scaled)
        out.put(Translated([r.piece for r in waiting], _download(made), waiting[-1].floor))
        if advance is not None and (done := sum(r.piece.kind == "lattice" for r in waiting)):
            advance(done)

    for item in ready:
        shape = (item.piece.read.h, item.piece.read.w, 3)
        if he is None or he.shape[1:] != shape:
            if he is not None and waiting:
                send(he)
                waiting.clear()
            he = torch.empty((size, *shape), dtype=torch.uint8, device=pixels.device)
        pixels.cut_into(he[len(waiting) : len(waiting) + 1], [item.piece.read])
        waiting.append(item)
        count += 1
        if len(waiting) == size:
            send(he)
            waiting.clear()
    if he is not None and waiting:
        he[len(waiting) :] = he[len(waiting) - 1]
        send(he)
    out.end()
    return count


def _run(model: Translator, protocol: StainProtocol, ready: list[Ready], scaled: Tensor) -> list[Tensor]:
    """A batch [b, h, w, 3] in [−1, 1], of which the first len(``ready``) count: for each sample uint8 [n, h, w, 3]."""
    n, last = len(ready), ready[-1]
    filled = [*ready, *[last] * (len(scaled) - n)]
    M, c_n = _stack([r.section for r in filled], model.device)
    he = scaled.permute(0, 3, 1, 2)  # seen as channels, rows, columns: "channels last", without a copy
    windows = [r.piece.read for r in filled]
    made = []
    for seed in protocol.seeds:
        noise = CanvasNoise(torch.full((len(he),), seed, device=model.device), windows, model.latent_width)
        ihc = model.translate(he, noise, M, c_n, nfe=protocol.nfe)
        made.append(_to_bytes(ihc[:n].permute(0, 2, 3, 1)))
    return made


def _stack(sections: list[Section | None], device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    given = [section for section in sections if section is not None]
    if not given:
        return None, None
    return (torch.stack([s.M for s in given]).to(device), torch.stack([s.c_n for s in given]).to(device))


def _from_bytes(he: Tensor, scaled: Tensor | None) -> Tensor:
    """0 … 255 to [−1, 1]. On a CPU by NumPy, in this thread (see ``Pixels``), into ``scaled`` if it has the shape."""
    if he.device.type != "cpu":
        return he.float().mul_(1 / 127.5).sub_(1)
    if scaled is None or scaled.shape != he.shape:
        scaled = torch.empty(he.shape)
    for some in _few(len(he)):
        out = scaled[some].numpy()
        np.copyto(out, he[some].numpy())
        out *= np.float32(1 / 127.5)
        out -= 1
    return scaled


def _to_bytes(ihc: Tensor) -> Tensor:
    """[−1, 1] to 0 … 255, rounded to nearest."""
    if ihc.device.type != "cpu":
        scaled = ihc.float().mul(127.5).add_(127.5).round_().clamp_(0, 255)
        return scaled.to(torch.uint8, memory_format=torch.contiguous_format)
    windows = ihc.float().numpy()
    made = np.empty(windows.shape, np.uint8)
    for some in _few(len(made)):
        values = np.multiply(windows[some], np.float32(127.5), order="C")
        values += np.float32(128)  # and cut off: half up, where halves are no more likely than anything else
        np.copyto(made[some], np.clip(values, 0, 255, out=values), casting="unsafe")
    return torch.from_numpy(made)


def _few(windows: int) -> Iterator[slice]:
    """Two by two: one is done before the interpreter has turned to it, more do not fit into the cache."""
    return (slice(start, start + 2) for start in range(0, windows, 2))


def _download(made: list[Tensor]) -> Callable[[], list[np.ndarray]]:
    """The arrays, or from a GPU a copy under way: who glues waits for it, not who computes."""
    if made[0].device.type != "cuda":
        arrays = [tensor.cpu().numpy() for tensor in made]
        return lambda: arrays
    pinned = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in made]
    for here, there in zip(pinned, made, strict=True):
        here.copy_(there, non_blocking=True)
    done = torch.cuda.Event()
    done.record()

    def wait() -> list[np.ndarray]:
        done.synchronize()
        return [tensor.numpy() for tensor in pinned]

    return wait
