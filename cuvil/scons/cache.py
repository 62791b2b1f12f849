"""A build cache that checks what it returns.

SCons' own retrieves a damaged entry without a word, writes into place so that a killed build leaves half a
file, and says nothing of a full disk.  Here the SHA-256 of each entry is kept beside it, a bad entry is
dropped with a warning and made anew, and files are moved into place whole.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from typing import Any

import SCons.CacheDir
import SCons.Errors
import SCons.Warnings

from cuvil import digest, fsio
from cuvil.errors import CuvilError

_SUFFIX = ".sha256"


class CheckedCacheDir(SCons.CacheDir.CacheDir):  # type: ignore[misc]
    """A `CacheDir` for ``env.CacheDir(path, custom_class=CheckedCacheDir)``."""

    def retrieve(self, node: Any) -> bool:
        """Fetch the file of `node`; False where there is no entry or a bad one."""
        entry = self.cachepath(node)[1]
        if entry is not None and os.path.exists(entry) and not _sound(entry):
            _warn(f"the cache entry of {node} is damaged and is made anew")
            for path in (entry, entry + _SUFFIX) if not self.is_readonly() else ():
                with contextlib.suppress(OSError):
                    os.unlink(path)
            return False
        return bool(super().retrieve(node))

    def push(self, node: Any) -> None:
        """Keep the file of `node`, with its digest; a cache that cannot be written never fails the build."""
        folder, entry = self.cachepath(node)
        if entry is None or self.is_readonly() or os.path.exists(entry):
            return
        try:
            os.makedirs(folder, exist_ok=True)
            fsio.write_text(entry + _SUFFIX, digest.of_file(node.get_internal_path()) + "\n")
            super().push(node)
        except OSError as error:
            _warn(f"{node} cannot be kept in the cache: {error.strerror}")

    @classmethod
    def copy_from_cache(cls, env: Any, src: str, dst: str) -> str:
        """Copy an entry to its place in the build folder, whole or not at all."""
        with tempfile.TemporaryDirectory(dir=os.path.dirname(dst) or ".", prefix=".cache-") as folder:
            copy = os.path.join(folder, os.path.basename(dst))
            super().copy_from_cache(env, src, copy)
            os.replace(copy, dst)
        return dst


def use(env: Any, folder: str) -> None:
    """Keep what `env` builds in `folder`, and warn where that fails.

    Raises:
        CuvilError: the folder cannot be made or read.
    """
    SCons.Warnings.enableWarningClass(SCons.Warnings.CacheWriteErrorWarning)
    try:
        env.CacheDir(folder, custom_class=CheckedCacheDir)
    except (OSError, SCons.Errors.SConsEnvironmentError) as error:
        raise CuvilError(f"cannot be used: {error}", f"cache_dir {folder}") from error


def _sound(entry: str) -> bool:
    """Whether an entry is what its digest says."""
    try:
        with open(entry + _SUFFIX, encoding="ascii") as file:
            return file.read().strip() == digest.of_file(entry)
    except (OSError, UnicodeDecodeError):
        return False


def _warn(message: str) -> None:
    print(f"cuvil: warning: {message}", file=sys.stderr, flush=True)
