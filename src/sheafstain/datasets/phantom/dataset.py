"""Draw a planned data set to disk in the layout of BCI, of MIST, or as two plain folders.

Each file appears whole or not at all, and one that is there is not drawn again, so an interrupted run is finished by
running it again. Pairs are drawn by worker processes; what they draw depends on the plan alone.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sheafstain.datasets.phantom.phantom import Layer, Phantom
from sheafstain.datasets.phantom.plan import Item, LayoutName, Plan
from sheafstain.device import cores
from sheafstain.errors import SheafStainError
from sheafstain.slides.image import write_image
from sheafstain.whole import whole

MANIFEST = "manifest.json"
DEPTH = 3  # of the deepest layout: HER2/TrainValAB/trainA

Advance = Callable[[int], None]


def write_dataset(root: Path, plan: Plan, *, workers: int | None = None, advance: Advance | None = None) -> int:
    """Draw what is missing of the plan under ``root``; returns how many pairs were drawn now."""
    root = Path(root)
    _claim(root, plan)
    missing = []
    for item in plan.items():
        if all(path.is_file() for path in _paths(root, plan, item).values()):
            if advance:
                advance(1)
        else:
            missing.append(item)
    for folder in {path.parent for item in missing for path in _paths(root, plan, item).values()}:
        folder.mkdir(parents=True, exist_ok=True)
    with pool(workers, len(missing)) as submit:
        waiting = [submit(partial(_draw, root, plan, item)) for item in missing]
        for done in as_completed(waiting):
            done.result()
            if advance:
                advance(1)
    return len(missing)


def is_drawn(folder: Path) -> bool:
    """Whether a folder of images belongs to a phantom data set, by the manifest of the set around it."""
    for around in (folder, *folder.resolve().parents[:DEPTH]):
        try:
            content = json.loads((around / MANIFEST).read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(content, dict) and {"drawing", "items"} <= content.keys():
            return True
    return False


@contextmanager
def pool(workers: int | None, tasks: int) -> Iterator[Callable[[Callable[[], Any]], Future]]:
    """Yields ``submit``: a pool of fresh processes, or this one when a single worker is enough."""
    workers = min(workers or cores(), tasks)
    if workers <= 1:
        yield _here
        return
    # Fresh interpreters, not forks: a fork of a process with threads (a progress bar is one) may hang.
    with _one_blas_thread():
        executor = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_follow_parent)
        # Ctrl-C reaches every process of a terminal. Workers start, all at the first task, with it held back for good,
        # so that it is the parent's alone from their first moment on.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            executor.submit(int)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            yield executor.submit
        except BrokenProcessPool as error:
            text = "a drawing process was killed, which happens when memory runs out; use fewer --workers"
            raise SheafStainError(text) from error
        except BaseException:
            executor.shutdown(cancel_futures=True)  # what is being drawn is finished, what waits is not begun
            raise
        executor.shutdown()


def _follow_parent() -> None:
    """A worker does not outlive its parent, however that ends."""
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """A worker is one core: BLAS threads of several workers would fight. BLAS reads this when a worker starts."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _here(task: Callable[[], Any]) -> Future:
    future: Future = Future()
    future.set_result(task())
    return future


def _claim(root: Path, plan: Plan) -> None:
    """Write the manifest, or see that the one that is there says the same."""
    manifest = json.loads(json.dumps(plan.manifest()))
    file = root / MANIFEST
    if file.is_file():
        try:
            same = json.loads(file.read_text(encoding="utf-8")) == manifest
        except ValueError:
            same = False
        if not same:
            raise SheafStainError(
                f"{file}: is of another data set; choose an empty folder, or ask for the same set to finish it"
            )
        return
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise SheafStainError(f"{root}: {'is not empty' if root.is_dir() else 'is a file'}; choose a new folder")
    root.mkdir(parents=True, exist_ok=True)
    with whole(file) as part:
        part.write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _paths(root: Path, plan: Plan, item: Item) -> dict[Layer, Path]:
    """Where each layer of a pair goes."""
    he, ihc = _folders(plan.layout, item)
    name = item.name(plan.layout)
    suffix = ".jpg" if plan.layout == "mist" else ".png"
    paths: dict[Layer, Path] = {"he": root / he / (name + suffix), "ihc": root / ihc / (name + suffix)}
    if plan.truth:
        truth = root / "truth" / item.marker / item.split
        layers: tuple[tuple[Layer, str], ...] = (
            ("truth", ".png"),
            ("nuclei", ".png"),
            ("classes", ".png"),
            ("tissue", ".png"),
            ("dab", ".npy"),
            ("displacement", ".npy"),
        )
        paths |= {layer: truth / ("ihc" if layer == "truth" else layer) / (name + end) for layer, end in layers}
    return paths


def _folders(layout: LayoutName, item: Item) -> tuple[Path, Path]:
    if layout == "mist":
        base = Path(item.marker) / "TrainValAB"
        return base / f"{item.split}A", base / f"{item.split}B"
    split = "test" if layout == "bci" and item.split == "val" else item.split
    return Path("HE") / split, Path("IHC") / split


def _draw(root: Path, plan: Plan, item: Item) -> None:
    paths = _paths(root, plan, item)
    phantom = Phantom(item.specimen, item.marker, plan.resolution, ihc_variation=plan.ihc_variation)
    for layer, pixels in phantom.draw(item.window, tuple(paths)).items():
        _write(paths[layer], layer, pixels)


def _write(path: Path, layer: Layer, pixels: NDArray[Any]) -> None:
    if layer == "nuclei":
        # 1 … n in order of appearance: 16 bits are enough for an image, and every viewer shows them.
        _, inverse = np.unique(pixels, return_inverse=True)
        _write_labels(path, inverse.reshape(pixels.shape))
    elif path.suffix == ".npy":
        with whole(path) as part, part.open("wb") as file:
            np.save(file, pixels.astype(np.float16))
    else:
        write_image(path, pixels)


def _write_labels(path: Path, labels: NDArray[np.integer]) -> None:
    """A 16-bit grey PNG; 0 lies between nuclei (and is the smallest value, since it is in every field)."""
    from PIL import Image

    if labels.max() >= 2**16:
        raise SheafStainError(f"{path}: more than 65,535 nuclei in one image; draw smaller fields")
    with whole(path) as part:
        Image.fromarray(labels.astype(np.uint16)).save(part, "PNG")
