"""The files beside a model that hold its weights, found without reading the model."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

_KEY = b"\x0a\x08location\x12"
"""How a protobuf writer begins the entry (StringStringEntryProto) whose key is ``location``."""


def data_files(model: Path) -> list[Path]:
    """The existing files that `model` may name as external data, sorted.

    The bytes of the model are searched for entries ``location``; one that is none of external data does no
    harm. Only files below the model's folder count: the import refuses all others.
    """
    found: set[Path] = set()
    if not model.is_file() or not model.stat().st_size:
        return []
    with open(model, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = data.find(_KEY)
        while at >= 0:
            at += len(_KEY)
            length, start = _varint(data, at)
            name = os.path.normpath(data[start : start + length].decode(errors="replace"))
            inside = not os.path.isabs(name) and not name.startswith(os.pardir)
            if inside and 0 < length < 4096 and "\0" not in name:
                found.add(model.parent / name)
            at = data.find(_KEY, at)
    return sorted(path for path in found if path.is_file())


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """The variable-length integer at `at`, of two bytes at most, and the position behind it."""
    head = data[at : at + 2]
    if len(head) == 2 and head[0] >= 0x80:
        return (head[0] & 0x7F) | (head[1] << 7), at + 2
    return (head[0] if head else 0), at + 1
