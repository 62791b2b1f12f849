"""Numbers and tables for people, in a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_DECIMAL = ("", "k", "M", "G", "T", "P")


def digits(value: float) -> str:
    """Three significant digits without an exponent: ``0.0123``, ``1.23``, ``123``, ``1234``."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    decimals = 2 - math.floor(math.log10(abs(value)))
    text = f"{value:.{max(decimals, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def size(count: float) -> str:
    """Bytes: ``640 B``, ``1.5 KiB``, ``166 KiB``."""
    step = 0
    while count >= 1024 and step < len(_BINARY) - 1:
        count, step = count / 1024, step + 1
    return f"{digits(count)} {_BINARY[step]}"


def amount(count: float) -> str:
    """A large number: ``950``, ``16.4 M``."""
    step = 0
    while count >= 1000 and step < len(_DECIMAL) - 1:
        count, step = count / 1000, step + 1
    return f"{digits(count)} {_DECIMAL[step]}".rstrip()


def duration(nanoseconds: float) -> str:
    """A time: ``850 ns``, ``12.3 us``, ``4.56 ms``, ``1.2 s``."""
    for unit, scale in (("ns", 1.0), ("us", 1e3), ("ms", 1e6)):
        if abs(nanoseconds) < 1000 * scale:
            return f"{digits(nanoseconds / scale)} {unit}"
    return f"{digits(nanoseconds / 1e9)} s"


def error(value: float) -> str:
    """A numerical error: ``0``, ``1.2e-07``."""
    return "0" if value == 0 else f"{value:.1e}"


def table(rows: Sequence[Sequence[str]], header: Sequence[str] = (), right: str = "") -> str:
    """Columns two blanks apart, one row a line.

    Args:
        rows: as many cells each as `header`, if that is given.
        header: titles of the columns.
        right: a letter per column, ``>`` for one that is aligned on the right.
    """
    lines = [list(header), *map(list, rows)] if header else [list(row) for row in rows]
    if not lines:
        return ""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    sides = right.ljust(len(widths))

    def aligned(line: Sequence[str]) -> str:
        cells = (c.rjust(w) if s == ">" else c.ljust(w) for c, w, s in zip(line, widths, sides))
        return "  ".join(cells).rstrip()

    return "\n".join(map(aligned, lines))


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """Names and what they are, one a line; rows without a value are left out."""
    return table([row for row in rows if row[1]])
