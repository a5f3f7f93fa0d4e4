"""The section cache: what comes back, what is refused, and what survives a kill."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from sheafstain.errors import SheafStainError
from sheafstain.sheaf import cache as cache_module
from sheafstain.sheaf.cache import CacheKey, SectionCache, image_hash, image_id
from sheafstain.sheaf.cover import Lattice, draw_triple
from sheafstain.sheaf.crops import lattice
from sheafstain.sheaf.section import Section
from sheafstain.window import Size, Window

KEY = CacheKey("some-encoder", "0123456789abcdef" * 4, 80, 6, 16, 224)
SIZE = Size(640, 500)


@pytest.fixture
def section() -> Section:
    crops = list(lattice(SIZE))
    generator = torch.Generator().manual_seed(0)
    patch, cls = (
        torch.randn((len(crops), 196, 6), generator=generator),
        torch.randn((len(crops), 6), generator=generator),
    )
    return Section.of(crops, patch, cls, 16)


@pytest.fixture
def cache(tmp_path: Path, section: Section) -> SectionCache:
    cache = SectionCache.create(tmp_path, KEY)
    cache.write("train/HER2/00001", "a" * 64, section)
    return cache


def test_a_cut_of_the_file_is_the_cut_of_the_section_in_half_precision(cache: SectionCache, section: Section):
    stored = cache.open("train/HER2/00001", "a" * 64)
    assert stored.sum.dtype == torch.float16
    for window in [*Lattice.over(SIZE), Window(-32, 400, 256, 256)]:
        here, there = stored.restrict(window), section.restrict(window)
        assert here.M.dtype == here.sum.dtype == torch.float32
        assert torch.equal(here.sum, there.sum.half().float()) and torch.equal(here.count, there.count)
        assert torch.allclose(here.M, there.M, atol=2e-3) and torch.allclose(here.c_n, there.c_n, atol=2e-3)
        assert here.crops == there.crops


def test_restriction_of_a_cached_section_composes(cache: SectionCache):
    stored = cache.open("train/HER2/00001")
    triple = draw_triple(SIZE, np.random.default_rng(0))
    wide = stored.restrict(triple.ref)
    assert torch.equal(wide.restrict(triple.common).M, stored.restrict(triple.common).M)
    assert torch.equal(wide.restrict(triple.common).c_n, stored.restrict(triple.common).c_n)


def test_opening_maps_the_file_and_reads_nothing_else(tmp_path: Path):
    """A section of 29 MB costs its window, not its size; without the hash check, which reads it all once."""
    big = CacheKey("big", "f" * 64, 224, 1024, 16, 224)
    cells = Size(32, 448)
    whole = Section(
        Window(0, 0, cells.h * 16, cells.w * 16),
        torch.ones((cells.h, cells.w, 1024), dtype=torch.float16),
        torch.ones((cells.h, cells.w), dtype=torch.int16),
        torch.zeros((1, 2), dtype=torch.int64),
        torch.zeros((1, 1024)),
    )
    SectionCache.create(tmp_path, big).write("x", "a", whole)
    del whole
    before = resident()
    cut = SectionCache.under(tmp_path, big, verify=False).open("x").restrict(Window(128, 2048, 256, 256))
    assert (cut.M == 1).all()
    assert resident() - before < 12e6


def resident() -> int:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("memory is read from /proc")
    return int(statm.read_text().split()[1]) * 4096


def test_the_file_holds_half_precision_and_little_else(cache: SectionCache, section: Section):
    cells = section.count.numel()
    expected = cells * (6 * 2 + 2) + len(section.cls) * (6 * 2 + 2 * 4)
    assert expected < cache.path("train/HER2/00001").stat().st_size < expected + 1500


def test_has_tells_images_and_their_versions_apart(cache: SectionCache):
    assert cache.has("train/HER2/00001", "a" * 64)
    assert not cache.has("train/HER2/00001", "b" * 64)
    assert not cache.has("train/ER/00001", "a" * 64)
    with pytest.raises(SheafStainError, match="another version"):
        cache.open("train/HER2/00001", "b" * 64)
    with pytest.raises(SheafStainError, match="there is no section of image val/x; run sheafstain sections"):
        cache.open("val/x")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def tamper(path: Path) -> None:
    """Another image hash in the header, the tensors untouched."""
    with safe_open(path, framework="pt") as file:
        about = file.metadata()
    save_file(load_file(path), path, metadata=about | {"image": "b" * 64})


def foreign(path: Path) -> None:
    save_file({name: torch.zeros(1) for name in ("sum", "count", "corners", "cls")}, path)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (flip, "was altered"),
    (tamper, "was altered"),
    (truncate, "is damaged"),
    (lambda path: path.write_bytes(b""), "is damaged"),
    (lambda path: path.write_text("not a section"), "is damaged"),
    (foreign, "no section of this project"),
    (lambda path: save_file({"sum": torch.zeros(1)}, path), "is damaged"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE)
def test_damaged_files_are_refused_by_name(
    cache: SectionCache, damage: Callable[[Path], object], message: str, section: Section
):
    path = cache.path("train/HER2/00001")
    cache.open("train/HER2/00001")  # intact, and remembered as such
    damage(path)
    with pytest.raises(SheafStainError, match=message) as caught:
        cache.open("train/HER2/00001")
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert not cache.has("train/HER2/00001", "a" * 64)
    cache.write("train/HER2/00001", "a" * 64, section)
    assert cache.has("train/HER2/00001", "a" * 64)


def test_a_file_is_hashed_once_and_again_when_it_changed(cache: SectionCache, monkeypatch: pytest.MonkeyPatch):
    hashed = []
    digest = cache_module._digest
    monkeypatch.setattr(cache_module, "_digest", lambda *about: hashed.append(1) or digest(*about))
    path = cache.path("train/HER2/00001")
    os.utime(path, ns=(0, 10**18))  # long ago
    for _ in range(3):
        cache.open("train/HER2/00001")
    assert len(hashed) == 1
    os.utime(path, ns=(0, 10**18 + 1))
    cache.open("train/HER2/00001")
    assert len(hashed) == 2


def test_without_verification_only_a_truncated_file_is_noticed(cache: SectionCache):
    path = cache.path("train/HER2/00001")
    trusting = SectionCache(cache.folder, verify=False)
    flip(path)
    assert trusting.has("train/HER2/00001", "a" * 64)
    truncate(path)
    assert not trusting.has("train/HER2/00001", "a" * 64)


def test_caches_of_other_encoders_weights_and_strides_do_not_mix(tmp_path: Path, cache: SectionCache):
    others = [replace(KEY, encoder="other"), replace(KEY, weights_hash="e" * 64), replace(KEY, stride=112)]
    folders = {SectionCache.create(tmp_path, key).folder for key in others}
    assert len(folders | {cache.folder}) == 4
    with pytest.raises(SheafStainError, match="holds no cached sections"):
        SectionCache.under(tmp_path, replace(KEY, stride=160))
    foreign_cache = SectionCache.create(tmp_path, others[0])
    foreign_cache.path("x").write_bytes(cache.path("train/HER2/00001").read_bytes())
    with pytest.raises(SheafStainError, match="another encoder"):
        foreign_cache.open("x")
    with pytest.raises(SheafStainError, match="describes other sections"):
        SectionCache.create(tmp_path, replace(KEY, weights_hash=KEY.weights_hash[:12] + "0" * 52))


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", json.dumps({"format": 1, "encoder": "x"})])
def test_a_damaged_note_is_named(cache: SectionCache, content: str):
    (cache.folder / "cache.json").write_text(content)
    with pytest.raises(SheafStainError, match=r"cache\.json"):
        SectionCache(cache.folder)


def test_a_killed_write_leaves_no_section(cache: SectionCache, section: Section, monkeypatch: pytest.MonkeyPatch):
    def killed(tensors: object, path: Path, metadata: object) -> None:
        Path(path).write_bytes(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr("sheafstain.sheaf.cache.save_file", killed)
    with pytest.raises(KeyboardInterrupt):
        cache.write("train/HER2/00002", "c" * 64, section)
    assert not cache.path("train/HER2/00002").exists()
    assert [p.name for p in cache.path("train/HER2/00002").parent.iterdir()] == ["00001.safetensors"]


def test_tokens_beyond_half_precision_are_refused(cache: SectionCache, section: Section):
    huge = replace(section, sum=section.sum * 1e6)
    with pytest.raises(SheafStainError, match="half precision"):
        cache.write("train/HER2/00003", "d" * 64, huge)
    assert not cache.path("train/HER2/00003").exists()


def test_a_section_of_another_encoder_is_refused(cache: SectionCache, section: Section):
    with pytest.raises(ValueError, match="not of the encoder"):
        cache.write("x", "d" * 64, replace(section, crop=448))


def test_names_of_images_become_files_inside_the_cache(cache: SectionCache):
    assert cache.path("test/HER2/a b:c%").relative_to(cache.folder).parts == ("test", "HER2", "a b%3Ac%25.safetensors")
    for name in ("", "a//b", "../x", "/x", "."):
        with pytest.raises(ValueError, match="names no image"):
            cache.path(name)


def test_a_cache_can_be_sent_to_a_worker(cache: SectionCache):
    other: SectionCache = pickle.loads(pickle.dumps(cache))
    assert torch.equal(other.open("train/HER2/00001").sum, cache.open("train/HER2/00001").sum)


def test_ids_and_hashes_of_images(tmp_path: Path):
    @dataclass(frozen=True)
    class Record:
        id: str = "00001_train_1+"
        split: str = "train"
        stain: str = "HER2"

    assert image_id(Record()) == "train/HER2/00001_train_1+"
    (tmp_path / "x").write_bytes(b"abc")
    assert image_hash(tmp_path / "x") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
