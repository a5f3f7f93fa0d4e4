"""Killed at any moment, out of disk space, or opened with another file's state: what a writer with a state folder does.

Everywhere the measure is an undisturbed run: a continued one has to end with the same bytes.
"""

from __future__ import annotations

import errno
import re
import resource
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from sheafstain.errors import SheafStainError
from sheafstain.slides.write import Writer, open_writer
from sheafstain.window import Resolution, Size

SIZE = Size(130, 100)
KINDS = ["a.tif", "a.ome.tif", "a.zarr", "a.png"]


def picture() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (SIZE.h, SIZE.w, 3), dtype=np.uint8)


def writer(path: Path, **changed) -> Writer:
    options = {"description": {"seed": 1}, "state": path.parent / "state", "tile": 64, "workers": 1, **changed}
    return open_writer(path, options.pop("size", SIZE), options.pop("resolution", Resolution(0.5)), **options)


def write(path: Path, **changed) -> None:
    """With a checkpoint every second band, from wherever the state says."""
    image = picture()
    with writer(path, **changed) as slide:
        for y in range(slide.done, SIZE.h, 37):
            slide.rows(image[y : y + 37])
            if y // 37 % 2:
                slide.checkpoint()


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """What an undisturbed run leaves, for every kind: the file and nothing else."""
    left = {}
    for name in KINDS:
        folder = tmp_path_factory.mktemp("calm")
        write(folder / name)
        left[name] = files(folder)
        assert all(path.startswith(name) for path in left[name])
    return left


# A child of this script is killed where the test says and started again until it comes to its end.
KILLS = textwrap.dedent("""
    import os, random, shutil, signal, sys, time
    from pathlib import Path
    sys.path.insert(0, str(Path(sys.argv[1]).parent))
    from test_resume import files, write
    import imagecodecs, tifffile, PIL.PngImagePlugin  # once, not in every child

    folder, name = Path(sys.argv[2]), sys.argv[3]
    final = folder / name

    os.fsync = lambda file: None  # of use in a power cut only, and slow

    def child(before=lambda: None):
        if pid := os.fork():
            return pid
        before()
        write(final)
        os._exit(0)

    def fresh():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()

    fresh()
    write(final)
    calm = files(folder)
    older = {name + "/.zgroup": b"older"} if name == "a.zarr" else {name: b"older"}

    def is_calm():
        assert files(folder) == calm, (sorted(files(folder)), sorted(calm))

    EVENTS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}

    def kill_at(n):
        "Dies before its n-th change of names or n-th fsync."
        steps = 0
        def step():
            nonlocal steps
            steps += 1
            if steps == n:
                os.kill(os.getpid(), signal.SIGKILL)
        def before():
            os.fsync = lambda file: step()
            sys.addaudithook(lambda event, _: step() if event in EVENTS else None)
        return before

    def each_step():
        n = 0
        while True:
            n += 1
            fresh()
            for path, content in older.items():
                (folder / path).parent.mkdir(exist_ok=True)
                (folder / path).write_bytes(content)
            if os.waitpid(child(kill_at(n)), 0)[1] == 0:
                return n - 1
            if final.exists():  # then it is whole, the older or the new one
                assert {k: v for k, v in files(folder).items() if k.startswith(name)} in (older, calm), n
            assert os.waitpid(child(), 0)[1] == 0, n
            is_calm()

    def at_random(files, seed):
        kills, rng = 0, random.Random(seed)
        for _ in range(files):
            fresh()
            for _ in range(10):
                pid = child()
                time.sleep(rng.uniform(0, 0.03))
                os.kill(pid, signal.SIGKILL)
                kills += os.waitpid(pid, 0)[1] != 0
            assert os.waitpid(child(), 0)[1] == 0
            is_calm()
        return kills

    print(each_step() if sys.argv[4] == "each step" else at_random(5, seed=len(name)))
    """)


def kills(folder: Path, name: str, when: str) -> int:
    command = [sys.executable, "-c", KILLS, __file__, str(folder / "work"), name, when]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("name", KINDS)
def test_killed_at_every_step(tmp_path: Path, name: str):
    """SIGKILL before each fsync, opening, renaming and removing of a file, so also inside ``checkpoint()``."""
    assert kills(tmp_path, name, "each step") > 20


@pytest.mark.parametrize("name", ["a.tif", "a.zarr"])
def test_killed_ten_times_at_random_moments(tmp_path: Path, name: str):
    assert kills(tmp_path, name, "at random") > 3


def test_done_says_where_to_go_on(tmp_path: Path):
    image = picture()
    with pytest.raises(KeyboardInterrupt), writer(tmp_path / "a.tif") as slide:
        slide.rows(image[:70])
        slide.checkpoint()
        slide.rows(image[70:90])
        raise KeyboardInterrupt
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state"]
    with writer(tmp_path / "a.tif") as slide:
        assert slide.done == 70
        slide.rows(image[70:])
    assert [path.name for path in tmp_path.iterdir()] == ["a.tif"]


@pytest.mark.parametrize("name", KINDS)
def test_a_failure_before_the_first_checkpoint_leaves_nothing(tmp_path: Path, name: str):
    with pytest.raises(KeyboardInterrupt), writer(tmp_path / name) as slide:
        slide.rows(picture()[:90])
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def unfinished(folder: Path, name: str = "a.tif") -> Path:
    with pytest.raises(KeyboardInterrupt), writer(folder / name) as slide:
        slide.rows(picture()[:90])
        slide.checkpoint()
        raise KeyboardInterrupt
    return folder / name


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"description": {"seed": 2}}, r"with seed 1 \(not 2\);"),
        ({"description": {"seed": 1, "stain": "ER"}}, r"with stain not given \(not ER\);"),
        ({"size": Size(130, 101)}, r"with size 100×130 \(not 101×130\);"),
        ({"resolution": Resolution(0.25)}, r"with mpp 0\.5 \(not 0\.25\);"),
        ({"lossless": True}, r"with kind TIFF, JPEG \(not TIFF, deflate\);"),
        ({"channels": 1, "description": {"seed": 3}}, r"channels 3 \(not 1\), seed 1 \(not 3\);"),
    ],
)
def test_the_state_of_another_file_is_refused(tmp_path: Path, changed: dict, said: str):
    path = unfinished(tmp_path)
    with pytest.raises(SheafStainError, match=said), writer(path, **changed):
        pass
    write(path)  # and was not touched
    assert [path.name for path in tmp_path.iterdir()] == ["a.tif"]


def test_a_state_belongs_to_its_file(tmp_path: Path):
    unfinished(tmp_path)
    with pytest.raises(SheafStainError, match=r"file a\.tif \(not b\.tif\)"), writer(tmp_path / "b.tif"):
        pass


def _shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("a.tif", lambda folder: _shorten(folder / "state" / "checkpoint")),
        ("a.tif", lambda folder: (folder / "state" / "checkpoint").write_bytes(b"\x00\xff")),
        ("a.tif", lambda folder: (folder / "state" / "checkpoint").write_bytes(b"[]\n")),
        ("a.tif", lambda folder: (folder / "state" / "level-0.tiles").unlink()),
        ("a.tif", lambda folder: _shorten(folder / "state" / "level-0.tiles")),
        ("a.zarr", lambda folder: shutil.rmtree(next(folder.glob(".a.zarr.*.part")))),
    ],
)
def test_a_damaged_state_is_named(tmp_path: Path, name: str, harm):
    path = unfinished(tmp_path, name)
    harm(tmp_path)
    with pytest.raises(SheafStainError, match=re.escape(str(tmp_path)) + r".*delete .*state"), writer(path):
        pass
    shutil.rmtree(tmp_path / "state")
    write(path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_one_process_at_a_time(tmp_path: Path):
    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        sys.path.insert(0, str(Path(sys.argv[1]).parent))
        from test_resume import writer
        with writer(Path(sys.argv[2])):
            print("writing", flush=True)
            sys.stdin.read()
        """)
    command = [sys.executable, "-c", script, __file__, str(tmp_path / "a.tif")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "writing\n"
        with pytest.raises(SheafStainError, match="another process"), writer(tmp_path / "a.tif"):
            pass
        other.kill()
    write(tmp_path / "a.tif")


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """No file may grow beyond ``size`` bytes: every write fails like one on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))  # Python ignores the signal, so write() says EFBIG
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", ["a.tif", "a.png"])
def test_no_room_for_a_file_and_then_there_is(tmp_path: Path, calm: dict, name: str, monkeypatch):
    """Limits of all sizes, so that spools, checkpoints and the final file are each what hits them."""
    monkeypatch.setattr("os.fsync", lambda file: None)
    failed = 0
    for size in range(2_000, 50_000, 2_000):
        folder = tmp_path / str(size)
        folder.mkdir()
        try:
            with at_most(size):
                write(folder / name)
        except OSError as error:
            failed += 1
            assert (error.errno, error.filename) == (errno.EFBIG, str(folder / name))
            assert {path.name for path in folder.iterdir()} <= {"state"}
            write(folder / name)
        assert files(folder) == calm[name]
    assert failed > 10


@pytest.mark.parametrize("name", KINDS)
def test_a_full_disk_and_then_room(tmp_path: Path, calm: dict, name: str):
    """A disk of 256 KB in memory, where one may be mounted (as root)."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small disk")
    try:
        (disk / "ballast").write_bytes(bytes(190_000))
        with pytest.raises(OSError, match="No space left") as caught:
            write(disk / name)
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(disk / name))
        assert not (disk / name).exists()
        (disk / "ballast").unlink()
        subprocess.run(["mount", "-o", "remount,size=2m", str(disk)], check=True)
        with writer(disk / name) as slide:
            assert slide.done > 0, "what was checkpointed is not lost"
            slide.rows(picture()[slide.done :])
        assert files(disk) == calm[name]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_checkpoint_needs_a_place(tmp_path: Path):
    with pytest.raises(ValueError, match="without a state"), writer(tmp_path / "a.tif", state=None) as slide:
        slide.rows(picture())
        slide.checkpoint()
