"""Weights on disk: found where they should be, named by content, refused when broken or pickled."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import resource
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file as load_numpy
from safetensors.torch import save_file

from sheafstain import hub
from sheafstain.errors import SheafStainError
from sheafstain.whole import whole

REPO = "owner/some-model"


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "b.weight": torch.randn(3, 4, generator=generator),
        "a.bias": torch.randn(5, generator=generator, dtype=torch.float64).to(torch.float16),
        "scalar": torch.tensor(7.0),
    }


@pytest.fixture
def file(tensors: dict[str, torch.Tensor], tmp_path: Path) -> Path:
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """An empty weights folder and an empty Hub cache."""
    import huggingface_hub.constants

    own, cache = tmp_path / "weights", tmp_path / "hub"
    own.mkdir()
    cache.mkdir()
    monkeypatch.setattr(hub, "shipped_folder", lambda: tmp_path / "shipped")
    monkeypatch.setenv("SHEAFSTAIN_WEIGHTS", str(own))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    return own, cache


def in_cache(cache: Path, name: str, tensors: dict[str, torch.Tensor] | None = None) -> Path:
    """Lay a file out as the Hub's own client does."""
    folder = cache / f"models--{REPO.replace('/', '--')}"
    snapshot = folder / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True, exist_ok=True)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text("0123abc")
    if tensors is None:
        (snapshot / name).write_bytes(b"pickle")
    else:
        save_file(tensors, snapshot / name)
    return snapshot / name


class TestContentHash:
    def test_is_the_sum_over_names_types_shapes_and_bytes(self, file: Path) -> None:
        expected = hashlib.sha256()
        dtypes = {"float16": "F16", "float32": "F32"}
        for name, array in sorted(load_numpy(file).items()):
            expected.update(json.dumps([name, dtypes[array.dtype.name], list(array.shape)]).encode())
            expected.update(array.tobytes())
        assert hub.content_hash(file) == expected.hexdigest()

    def test_does_not_depend_on_order_or_metadata(self, file: Path, tensors: dict[str, torch.Tensor]) -> None:
        other = file.with_name("other.safetensors")
        save_file(dict(reversed(tensors.items())), other, metadata={"format": "pt", "who": "somebody"})
        assert file.read_bytes() != other.read_bytes()
        assert hub.content_hash(file) == hub.content_hash(other) == hub.hash_of(tensors)

    @pytest.mark.parametrize("change", ["value", "name", "shape", "type"])
    def test_changes_with_any_part_of_the_content(self, tensors: dict[str, torch.Tensor], change: str) -> None:
        before = hub.hash_of(tensors)
        weight = tensors.pop("b.weight")
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0)) if change == "value" else weight[0, 0]
        changed = {"shape": weight.reshape(4, 3), "type": weight.view(torch.int32)}.get(change, weight)
        assert hub.hash_of(tensors | {"c.weight" if change == "name" else "b.weight": changed}) != before

    def test_is_kept_beside_the_file_until_that_changes(self, file: Path, tensors: dict[str, torch.Tensor]) -> None:
        true = hub.content_hash(file)
        note = file.with_name("model.safetensors.sha256.json")
        note.write_text(note.read_text().replace(true, "f" * 64))
        assert hub.content_hash(file) == "f" * 64, "not read from the note"
        save_file(tensors | {"scalar": torch.tensor(8.0)}, file)
        os.utime(file, ns=(1, 1))
        assert hub.content_hash(file) == hub.hash_of(tensors | {"scalar": torch.tensor(8.0)})

    @pytest.mark.parametrize("note", ["", "[]", '{"size": 1}', "not json"])
    def test_a_useless_note_is_replaced(self, file: Path, tensors: dict[str, torch.Tensor], note: str) -> None:
        beside = file.with_name("model.safetensors.sha256.json")
        beside.write_text(note)
        assert hub.content_hash(file) == hub.hash_of(tensors)
        assert json.loads(beside.read_text())["sha256"] == hub.hash_of(tensors)

    def test_works_where_no_note_can_be_written(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(path: Path, content: bytes) -> None:
            raise PermissionError(13, "read-only", str(path))

        monkeypatch.setattr(hub, "write_whole", refuse)
        assert len(hub.content_hash(file)) == 64


class TestBrokenFiles:
    def test_a_whole_file_lists_its_tensors(self, file: Path) -> None:
        header = hub.read_header(file)
        assert {name: (info.dtype, info.shape) for name, info in header.items()} == {
            "a.bias": ("F16", (5,)),
            "b.weight": ("F32", (3, 4)),
            "scalar": ("F32", ()),
        }
        assert sum(info.stop - info.start for info in header.values()) == 3 * 4 * 4 + 5 * 2 + 4

    @pytest.mark.parametrize("cut", [0, 4, 8, 40, -1])
    def test_a_cut_file_is_named(self, file: Path, cut: int) -> None:
        file.write_bytes(file.read_bytes()[:cut])
        for read in (hub.read_header, hub.load_tensors, hub.content_hash):
            with pytest.raises(
                SheafStainError, match=r"model\.safetensors: not a whole safetensors file.*fetch it again"
            ):
                read(file)

    def test_a_git_lfs_pointer_is_recognised(self, file: Path) -> None:
        file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 99\n")
        with pytest.raises(SheafStainError, match="Git LFS pointer"):
            hub.load_tensors(file)

    def test_nonsense_in_the_header_is_no_crash(self, file: Path) -> None:
        for header in (b"[1, 2]", b'{"a": 3}', b'{"a": {"dtype": "F32"}}', b"\xff\xfe\x00"):
            file.write_bytes(len(header).to_bytes(8, "little") + header)
            with pytest.raises(SheafStainError, match="not a whole safetensors file"):
                hub.read_header(file)


class TestWhereWeightsAre:
    def test_nothing_is_there(self, elsewhere: tuple[Path, Path]) -> None:
        assert hub.locate("some", REPO) is None
        assert hub.locate_pickle("some", REPO) is None

    def test_own_folder_first_then_the_hub_cache(
        self, elsewhere: tuple[Path, Path], tensors: dict[str, torch.Tensor]
    ) -> None:
        own, cache = elsewhere
        cached = in_cache(cache, "model.safetensors", tensors)
        assert hub.locate("some", REPO) == cached
        (own / "some").mkdir()
        save_file(tensors, own / "some" / "any-name.safetensors")
        assert hub.locate("some", REPO) == own / "some" / "any-name.safetensors"
        save_file(tensors, own / "some" / "model.safetensors")
        assert hub.locate("some", REPO) == own / "some" / "model.safetensors"
        save_file(tensors, own / "some.safetensors")
        assert hub.locate("some", REPO) == own / "some.safetensors"

    def test_what_ships_with_the_package_comes_after_the_users_own_and_before_the_cache(
        self, elsewhere: tuple[Path, Path], tensors: dict[str, torch.Tensor], tmp_path: Path
    ) -> None:
        in_cache(elsewhere[1], "model.safetensors", tensors)
        shipped = tmp_path / "shipped" / "some" / "model.safetensors"
        shipped.parent.mkdir(parents=True)
        save_file(tensors, shipped)
        assert hub.locate("some", REPO) == shipped
        assert hub.content_hash(shipped) == hub.hash_of(tensors)
        assert [path.name for path in shipped.parent.iterdir()] == ["model.safetensors"], "written into the package"
        save_file(tensors, elsewhere[0] / "some.safetensors")
        assert hub.locate("some", REPO) == elsewhere[0] / "some.safetensors"

    def test_two_files_of_no_known_name_are_not_guessed_at(
        self, elsewhere: tuple[Path, Path], tensors: dict[str, torch.Tensor]
    ) -> None:
        folder = elsewhere[0] / "some"
        folder.mkdir()
        for name in ("one.safetensors", "two.safetensors"):
            save_file(tensors, folder / name)
        assert hub.locate("some") is None
        with pytest.raises(SheafStainError, match=r"2 safetensors files and none is called model\.safetensors"):
            hub.resolve(folder)

    def test_a_pickle_is_found_but_is_not_the_weights(self, elsewhere: tuple[Path, Path]) -> None:
        cached = in_cache(elsewhere[1], "pytorch_model.bin")
        assert hub.locate("some", REPO) is None
        assert hub.locate_pickle("some", REPO) == cached

    def test_a_users_path(self, file: Path) -> None:
        assert hub.resolve(file) == file
        assert hub.resolve(file.parent) == file
        with pytest.raises(SheafStainError, match="no such file or folder"):
            hub.resolve(file.with_name("nothing"))
        (file.parent / "empty").mkdir()
        with pytest.raises(SheafStainError, match="no safetensors file in it"):
            hub.resolve(file.parent / "empty")

    def test_a_users_pickle_is_refused_with_the_command(self, tmp_path: Path) -> None:
        (tmp_path / "pytorch_model.bin").write_bytes(b"whatever")
        for path in (tmp_path / "pytorch_model.bin", tmp_path):
            with pytest.raises(
                SheafStainError, match=r"never loaded.*sheafstain encoders --convert .*pytorch_model\.bin"
            ):
                hub.resolve(path)


class Sentinel:
    """Unpickling this would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


class TestConvert:
    @pytest.mark.parametrize("wrapped", [None, "state_dict", "model"])
    @pytest.mark.parametrize("new_format", [True, False])
    def test_writes_the_same_tensors(
        self, tensors: dict[str, torch.Tensor], tmp_path: Path, wrapped: str | None, new_format: bool
    ) -> None:
        content = {wrapped: tensors, "epoch": 3} if wrapped else tensors
        torch.save(content, tmp_path / "w.bin", _use_new_zipfile_serialization=new_format)
        written = hub.convert(tmp_path / "w.bin", tmp_path / "deep" / "er" / "w.safetensors")
        assert hub.content_hash(written) == hub.hash_of(tensors)
        assert not list(written.parent.glob("*.partial"))

    def test_tensors_that_share_memory(self, tmp_path: Path) -> None:
        base = torch.arange(6.0)
        torch.save({"all": base, "part": base[2:4], "turned": base.view(2, 3).T}, tmp_path / "w.pth")
        loaded = hub.load_tensors(hub.convert(tmp_path / "w.pth", tmp_path / "w.safetensors"))
        assert loaded["part"].tolist() == [2, 3]
        assert loaded["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]

    def test_a_pickle_with_code_is_refused_and_not_run(self, tmp_path: Path) -> None:
        mark = tmp_path / "executed"
        torch.save({"weight": torch.ones(2), "other": Sentinel(mark)}, tmp_path / "torch.bin")
        (tmp_path / "plain.bin").write_bytes(pickle.dumps(Sentinel(mark), protocol=2))
        for name in ("torch.bin", "plain.bin"):
            with pytest.raises(SheafStainError, match=f"{name}: not a plain file of tensors"):
                hub.convert(tmp_path / name, tmp_path / "w.safetensors")
        assert not mark.exists()
        assert not list(tmp_path.glob("*.safetensors"))

    @pytest.mark.parametrize("content", [b"", b"garbage that is no pickle", b"PK\x03\x04 half an archive"])
    def test_garbage_is_refused(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "w.bin").write_bytes(content)
        with pytest.raises(SheafStainError, match=r"w\.bin: not a plain file of tensors"):
            hub.convert(tmp_path / "w.bin", tmp_path / "w.safetensors")

    def test_a_pickle_without_one_table_of_tensors(self, tmp_path: Path) -> None:
        torch.save({"g": {"w": torch.ones(1)}, "d": {"w": torch.ones(1)}}, tmp_path / "w.bin")
        with pytest.raises(SheafStainError, match="no single table of tensors"):
            hub.convert(tmp_path / "w.bin", tmp_path / "w.safetensors")

    def test_a_full_disk_leaves_nothing_behind(self, tmp_path: Path) -> None:
        torch.save({"w": torch.zeros(50_000)}, tmp_path / "w.bin")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        try:
            with pytest.raises((SheafStainError, OSError)):
                hub.convert(tmp_path / "w.bin", tmp_path / "w.safetensors")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert [path.name for path in tmp_path.iterdir()] == ["w.bin"]


class TestDownload:
    def test_offline_says_where_to_put_the_file(
        self, elsewhere: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import huggingface_hub.constants

        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(SheafStainError, match=rf"cannot be reached.*model\.safetensors.*{elsewhere[0] / 'some'}"):
            hub.download("some", REPO, "model.safetensors")

    def test_what_the_cache_holds_is_not_fetched(
        self, elsewhere: tuple[Path, Path], tensors: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import huggingface_hub.constants

        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        cached = in_cache(elsewhere[1], "model.safetensors", tensors)
        assert hub.download("some", REPO, "model.safetensors") == cached

    @pytest.mark.parametrize(
        ("error", "said"),
        [("GatedRepoError", "is gated.*accept its terms.*hf auth login"), ("RepositoryNotFoundError", "did not give")],
    )
    def test_what_the_hub_answers(
        self, elsewhere: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, error: str, said: str
    ) -> None:
        import huggingface_hub
        import huggingface_hub.errors

        kind = getattr(huggingface_hub.errors, error)

        def answer(*_: object) -> str:
            exception = kind.__new__(kind)
            exception.args = ("403 Client Error\nsecond line",)
            raise exception

        monkeypatch.setattr(huggingface_hub, "hf_hub_download", answer)
        with pytest.raises(SheafStainError, match=said) as caught:
            hub.download("some", REPO, "model.safetensors")
        assert "\n" not in str(caught.value)


EXPECTED = {"a": (2, 3), "b": (4,), "c": ()}


class TestFit:
    def test_a_fitting_file_passes(self) -> None:
        hub.check_fit(Path("f"), dict(EXPECTED), EXPECTED)

    def test_everything_wrong_is_named_once_with_counts(self) -> None:
        found = {"a": (3, 2), "c": (), "x1": (1,), "x2": (1,), "x3": (1,), "x4": (1,)}
        with pytest.raises(SheafStainError) as caught:
            hub.check_fit(Path("f.safetensors"), found, EXPECTED)
        said = str(caught.value)
        assert "of 3 tensors 1 missing (b), 1 misshapen (a is 3×2, expected 2×3), 4 unknown (x1; x2; x3; …)" in said
        assert said.startswith("f.safetensors: ")


def test_a_write_is_whole_or_nothing(tmp_path: Path) -> None:
    target = tmp_path / "t"
    hub.write_whole(target, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(OSError):
            hub.write_whole(target, np.zeros(1000, np.uint8).tobytes())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_weights_have_the_rights_of_any_file(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        with whole(tmp_path / "t.safetensors") as part:
            save_file({"a": torch.zeros(2)}, part)
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "t.safetensors").stat().st_mode) == mode
