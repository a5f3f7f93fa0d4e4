"""Files that appear whole or not at all: written under a hidden name in the same folder, then renamed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sheafstain.errors import SheafStainError


@contextmanager
def whole(path: Path | str) -> Iterator[Path]:
    """Yields a temporary path in the same folder, renamed to ``path`` when the block ends and removed when it fails.

    The temporary name is hidden, so what a killed process leaves is not taken for data. An ``OSError`` (full disk,
    read-only folder) leaves with ``path`` as its file name, which is the name that the user knows.
    """
    path = Path(path)
    target = path.resolve() if path.is_symlink() else path
    if target.exists() and not target.is_file():
        what = "a folder" if target.is_dir() else "not a regular file"  # a rename would replace /dev/null itself
        raise SheafStainError(f"{path}: is {what}; choose another name for the output")
    part = target.with_name(f".{target.name[:40]}.{secrets.token_hex(6)}.part")
    try:
        yield part
        _share(part)
        part.replace(target)
    except BaseException as error:
        # Not missing_ok: it does not cover a "folder" of the path that is a file, which must not hide the error itself.
        with suppress(OSError):
            part.unlink()
        if isinstance(error, OSError) and error.filename in (None, str(part)):
            error.filename, error.filename2 = str(path), None
        raise


def _share(part: Path) -> None:
    """Give a file the rights of any other that the user writes: safetensors makes its own for the owner alone."""
    if part.stat().st_mode & 0o777 == 0o600:
        mask = os.umask(0o077)  # can only be asked by being set; strict meanwhile, for what other threads make
        os.umask(mask)
        part.chmod(0o666 & ~mask)


def write_whole(path: Path, content: bytes) -> None:
    with whole(path) as part:
        part.write_bytes(content)
