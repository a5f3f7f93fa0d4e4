from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sheafstain.slides.image import write_image
from sheafstain.training import store as module
from sheafstain.training.store import PixelStore, unit
from sheafstain.training.turns import TURNS, turn
from sheafstain.window import Size, Window

CPU = torch.device("cpu")


def images() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(0, 256, (*size, 3), np.uint8) for size in ((40, 56), (64, 48), (33, 70))]


def test_windows_of_images_of_many_sizes() -> None:
    pictures = images()
    store = PixelStore.of(pictures, CPU)
    windows = [Window(3, 5, 16, 16), Window(48, 32, 16, 16), Window(17, 54, 16, 16), Window(0, 0, 16, 16)]
    which, turns = torch.tensor([0, 1, 2, 2]), torch.tensor([0, 3, 6, 5])
    cut = store.cut(which, windows, turns)
    assert cut.dtype == torch.uint8 and cut.shape == (4, 16, 16, 3)
    for k, (image, window, g) in enumerate(zip(which.tolist(), windows, turns.tolist(), strict=True)):
        there = torch.from_numpy(pictures[image][window.slices]).permute(2, 0, 1)
        assert torch.equal(cut[k].permute(2, 0, 1), turn(there, g))


def test_every_turn_of_one_window() -> None:
    picture = images()[0]
    store = PixelStore.of([picture], CPU)
    cut = store.cut(torch.zeros(TURNS, dtype=torch.int64), [Window(8, 8, 24, 24)] * TURNS, torch.arange(TURNS))
    assert len({bytes(c.numpy().tobytes()) for c in cut}) == TURNS


def test_unit_is_the_usual_scale() -> None:
    cut = torch.tensor([[[[0, 127, 255]]]], dtype=torch.uint8)
    assert torch.allclose(unit(cut).flatten(), torch.tensor([-1.0, 127 / 127.5 - 1, 1.0]))


def test_from_files_resident_and_mapped_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = images()
    files = [tmp_path / f"{k}.png" for k in range(3)]
    for file, picture in zip(files, pictures, strict=True):
        write_image(file, picture)
    done: list[int] = []
    resident = PixelStore.read(files, CPU, tmp_path / "spill", advance=done.append)
    assert sum(done) == 3 and resident.sizes[1] == Size(64, 48)
    assert np.array_equal(resident.image(2).numpy(), pictures[2])
    mapped = module._mapped(files, resident.sizes, tmp_path / "spill", None, None)
    assert torch.equal(mapped, resident.pixels)
    calls: list[int] = []
    monkeypatch.setattr(module, "_fill", lambda *_: calls.append(1))
    assert torch.equal(module._mapped(files, resident.sizes, tmp_path / "spill", None, None), resident.pixels)
    assert not calls  # the second time it is only mapped
    assert [p.suffix for p in (tmp_path / "spill").iterdir()] == [".bin"]
