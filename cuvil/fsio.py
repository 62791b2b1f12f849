"""Files that are never seen half written.

Every artefact is written to a temporary file in the same folder and moved into place with
`os.replace`, so that a process killed at any moment leaves either the old file or the new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cuvil.errors import CuvilError


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to `path` atomically, making parent folders as needed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8 with ``\\n`` line ends to `path` atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON with sorted keys to `path` atomically."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def read_bytes(path: str | os.PathLike[str], what: str, limit: int) -> bytes:
    """Read the file `path`, at most `limit` bytes.

    Raises:
        CuvilError: the file is missing, unreadable, a folder, or larger than `limit`; `what`
            names its role in the message.
    """
    try:
        size = os.stat(path).st_size
        if size > limit:
            raise CuvilError(f"{what} has {size} bytes, at most {limit} are allowed", str(path))
        return Path(path).read_bytes()
    except OSError as error:
        raise CuvilError(f"cannot read {what}: {error.strerror}", str(path)) from error


@contextlib.contextmanager
def build_lock(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the build lock of `folder` for the duration of the block.

    Raises:
        CuvilError: another process holds it.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    with open(Path(folder) / ".cuvil-lock", "a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CuvilError("another build is running in this folder", str(folder)) from error
        yield


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
