"""All training pixels as one flat uint8 array, on the GPU where they fit, else mapped from a file (D17).

A batch is cut with one gather: 120 windows of any images, turned, cost one kernel and no copy from the host.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sheafstain.errors import SheafStainError
from sheafstain.slides.image import image_size, read_image
from sheafstain.training.turns import grids
from sheafstain.whole import whole
from sheafstain.window import Size, Window

Advance = Callable[[int], None]
SHARE = 0.35  # of the free memory of a GPU that the pixels of one stain may take


class PixelStore:
    """Images of any sizes: ``pixels`` [all pixels, 3] uint8, one image after the other."""

    def __init__(self, pixels: Tensor, sizes: Sequence[Size], device: torch.device) -> None:
        self.pixels, self.sizes, self.device = pixels, tuple(sizes), device
        starts = np.concatenate([[0], np.cumsum([size.area for size in sizes])])[:-1]
        self._starts = torch.tensor(starts, dtype=torch.int64, device=pixels.device)
        self._widths = torch.tensor([size.w for size in sizes], dtype=torch.int64, device=pixels.device)

    @classmethod
    def of(cls, images: Sequence[np.ndarray], device: torch.device) -> PixelStore:
        """Of images [h, w, 3] uint8 that are in memory."""
        flat = torch.cat([torch.from_numpy(np.ascontiguousarray(image)).reshape(-1, 3) for image in images])
        return cls(flat.to(device), [Size(*image.shape[:2]) for image in images], device)

    @classmethod
    def read(
        cls,
        files: Sequence[Path],
        device: torch.device,
        spill: Path,
        *,
        workers: int | None = None,
        advance: Advance | None = None,
    ) -> PixelStore:
        """Of image files, decoded in threads; what does not fit on a GPU goes into a file under ``spill``, once."""
        sizes = [image_size(file) for file in files]
        total = sum(size.area for size in sizes)
        if device.type != "cuda" or total * 3 < SHARE * torch.cuda.mem_get_info(device)[0]:
            pixels = torch.empty((total, 3), dtype=torch.uint8, device=device)
            _fill(pixels, files, sizes, workers, advance)
        else:
            pixels = _mapped(files, sizes, spill, workers, advance)
        return cls(pixels, sizes, device)

    def __len__(self) -> int:
        return len(self.sizes)

    def image(self, k: int) -> Tensor:
        """Image k, uint8 [h, w, 3]; a view."""
        start, size = int(self._starts[k]), self.sizes[k]
        return self.pixels[start : start + size.area].view(size.h, size.w, 3)

    def cut(self, images: Tensor, windows: Sequence[Window], turns: Tensor) -> Tensor:
        """Square windows of one side, window k of image ``images[k]`` turned by ``turns[k]``: uint8 [n, side, side, 3].

        ``images`` and ``turns`` [n] are int64 on the CPU. Windows lie inside their images.
        """
        side, place = windows[0].h, self.pixels.device
        corners = torch.tensor([(window.y, window.x) for window in windows], dtype=torch.int64)
        image, y, x, g = (over(t, place) for t in (images, corners[:, 0], corners[:, 1], turns))
        grid = grids(side, place)[:, g]  # [2, n, side, side]
        rows, columns = grid[0] + y[:, None, None], grid[1] + x[:, None, None]
        at = self._starts[image][:, None, None] + rows * self._widths[image][:, None, None] + columns
        cut = self.pixels[at]
        return cut if place == self.device else over(cut, self.device)


def unit(cut: Tensor) -> Tensor:
    """uint8 [n, h, w, 3] → float32 [n, 3, h, w] in [−1, 1]; the memory stays as it lies, channels last."""
    return cut.permute(0, 3, 1, 2).float().div_(127.5).sub_(1)


def over(tensor: Tensor, device: torch.device) -> Tensor:
    """To the device, without waiting for it."""
    pinned = tensor.pin_memory() if device.type == "cuda" and tensor.device.type == "cpu" else tensor
    return pinned.to(device, non_blocking=True)


def _decoded(files: Sequence[Path], workers: int | None) -> Iterator[np.ndarray]:
    with ThreadPoolExecutor(workers, "decode") as pool:
        ahead = 64  # images at once in memory, whatever the number of files
        for start in range(0, len(files), ahead):
            yield from pool.map(read_image, files[start : start + ahead])


def _fill(
    pixels: Tensor, files: Sequence[Path], sizes: Sequence[Size], workers: int | None, advance: Advance | None
) -> None:
    start = 0
    for file, size, image in zip(files, sizes, _decoded(files, workers), strict=True):
        if image.shape[:2] != (size.h, size.w):
            raise SheafStainError(f"{file}: its header says {size} pixels and there are others; copy it again")
        pixels[start : start + size.area] = torch.from_numpy(image).reshape(-1, 3)
        start += size.area
        if advance:
            advance(1)


def _mapped(
    files: Sequence[Path], sizes: Sequence[Size], spill: Path, workers: int | None, advance: Advance | None
) -> Tensor:
    """The pixels in a file that is named by the images it was made from, made if it is not there."""
    stamps = [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    path = spill / f"pixels-{hashlib.sha256(json.dumps(stamps).encode()).hexdigest()[:16]}.bin"
    shape = (sum(size.area for size in sizes), 3)
    if not path.is_file():
        spill.mkdir(parents=True, exist_ok=True)
        with whole(path) as part:
            made = np.memmap(part, np.uint8, "w+", shape=shape)
            _fill(torch.from_numpy(made), files, sizes, workers, advance)
            made.flush()
    elif advance:
        advance(len(files))
    return torch.from_numpy(np.memmap(path, np.uint8, "c", shape=shape))  # "c": torch has no read-only tensors
