"""``sheafstain sections``: encode the H&E images of a data set once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from sheafstain.cli.console import console
from sheafstain.errors import UsageError

if TYPE_CHECKING:
    import numpy as np


def sections(
    data: Path,
    *,
    encoder: Annotated[str, Parameter(alias="-e")],
    stride: int = 80,
    output: Annotated[Path, Parameter(alias="-o")] = Path("out/sections"),
    layout: Literal["bci", "mist", "pairs"] | None = None,
    split: str | None = None,
    stain: str | None = None,
    batch: int | None = None,
    device: str | None = None,
    precision: Literal["float32", "bfloat16"] | None = None,
    verify: Annotated[bool, Parameter(negative=())] = False,
    download: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Encode the H&E images of a data set once, so that training needs no encoder.

    Writes one file per image, in half precision, into a folder named after the encoder, its weights and the stride.
    A run that was stopped goes on where it was; images that changed since are encoded again.

    Parameters
    ----------
    data
        The folder of a data set.
    encoder
        A name that "sheafstain encoders" lists, a folder with config.json and model.safetensors, or NAME=FILE.
    stride
        Pixels between crops, a multiple of 16: smaller is smoother, dearer and no larger on disk.
    output
        Folder of the cache; several encoders and strides can share it.
    layout
        How the data set's folders are laid out; found out when not given.
    split
        Only this split of the data set.
    stain
        Only the H&E images paired with this stain.
    batch
        Crops per forward pass.
    device
        cpu, cuda, cuda:1, mps; the first GPU when there is one.
    precision
        bfloat16 on a GPU, float32 on a CPU when not given.
    verify
        Read what is already there and encode again what was altered or damaged.
    download
        Fetch the encoder's weights from the Hugging Face Hub if they are not here.
    """
    import torch

    from sheafstain.datasets.layouts import open_dataset
    from sheafstain.sheaf.cache import CacheKey, SectionCache, image_hash, image_id
    from sheafstain.sheaf.crops import CROP
    from sheafstain.sheaf.encoders import load_encoder
    from sheafstain.sheaf.section import encode_sections
    from sheafstain.window import CELL

    if stride % CELL or not 0 < stride <= CROP:
        raise UsageError(f"--stride is a multiple of {CELL} from {CELL} to {CROP}, not {stride}")
    records = open_dataset(data, layout).select_some(split, stain)
    dtype = None if precision is None else getattr(torch, precision)
    loaded = load_encoder(encoder, device=device, dtype=dtype, batch=batch, download=download)
    if loaded.entry.random:
        console.warn(f"{loaded.id} is not trained: its sections carry no knowledge of tissue")
    cache = SectionCache.create(output, CacheKey.of(loaded, stride), verify=verify)
    waiting: list[tuple[tuple[str, str], Path]] = []
    with console.progress("looking for what is there", total=len(records), unit="images") as advance:
        for record in records:
            key = image_id(record), image_hash(record.he)
            if not cache.has(*key):
                waiting.append((key, record.he))
            advance(1)
    written = 0
    with console.progress("encoding", total=len(waiting), unit="images") as advance:
        for key, section in encode_sections(_images(waiting), loaded, stride):
            written += cache.write(*key, section).stat().st_size
            advance(1)
    there = len(records) - len(waiting)
    size = f", {written / len(waiting) / 1e6:.1f} MB each" if waiting else ""
    console.line(f"{cache.folder}: {len(waiting)} sections written{size}; {there} were there")
    console.event("sections", folder=str(cache.folder), written=len(waiting), bytes=written, present=there)


def _images(
    waiting: Sequence[tuple[tuple[str, str], Path]], ahead: int = 2
) -> Iterator[tuple[tuple[str, str], np.ndarray]]:
    """The images under their keys, decoded a little ahead of the encoder by another thread."""
    from collections import deque
    from concurrent.futures import Future, ThreadPoolExecutor

    from sheafstain.slides.image import read_image

    with ThreadPoolExecutor(1) as reader:
        decoding: deque[Future[np.ndarray]] = deque()
        try:
            for i, (key, _) in enumerate(waiting):
                while len(decoding) <= ahead and i + len(decoding) < len(waiting):
                    decoding.append(reader.submit(read_image, waiting[i + len(decoding)][1]))
                yield key, decoding.popleft().result()
        finally:
            for left in decoding:
                left.cancel()
