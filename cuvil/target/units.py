"""Quantities as people write them, ``1.43 GHz`` or ``32 KiB``, and the SI numbers they stand for."""

from __future__ import annotations

import re
from decimal import Decimal

_SI = {"": "1", "k": "1e3", "M": "1e6", "G": "1e9", "T": "1e12"}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def _scaled(unit: str, prefixes: str) -> dict[str, Decimal]:
    return {prefix + unit: Decimal(_SI[prefix]) for prefix in ("", *prefixes)}


def _bytes(suffix: str) -> dict[str, Decimal]:
    return _scaled(f"B{suffix}", "kMGT") | {f"{p}B{suffix}": Decimal(size) for p, size in _BINARY.items()}


UNITS: dict[str, dict[str, Decimal]] = {
    "frequency": _scaled("Hz", "kMG"),
    "bandwidth": _bytes("/s") | {f"{p}bit/s": Decimal(_SI[p]) / 8 for p in "kMGT"},
    "bytes": _bytes(""),
    "time": {
        "ps": Decimal("1e-12"),
        "ns": Decimal("1e-9"),
        "us": Decimal("1e-6"),
        "µs": Decimal("1e-6"),
        "ms": Decimal("1e-3"),
        "s": Decimal(1),
    },
    "rate": _scaled("FLOP/s", "kMGT") | _scaled("OP/s", "kMGT"),
}
"""Dimension -> unit -> factor to Hz, B/s, B, s or operations a second."""

_NUMBER = r"[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,2})?"


def pattern(dimension: str) -> str:
    """A regular expression, in ECMA's dialect, for every quantity that `parse` accepts."""
    return f"^{_NUMBER} *({'|'.join(UNITS[dimension])})$"


def parse(dimension: str, text: str) -> float:
    """The SI value of `text`, a quantity of `dimension` (a key of `UNITS`).

    Raises:
        ValueError: no number, no unit, a unit of another dimension, a negative or not finite
            number, or a fraction of a byte; the text names the units allowed.
    """
    units = UNITS[dimension]
    match = re.fullmatch(rf"(-?)({_NUMBER}) *(?P<unit>.*)", text.strip()[:100])
    allowed = f"a {'size' if dimension == 'bytes' else dimension} is a number and one of {', '.join(units)}"
    if not match:
        raise ValueError(f"{text[:60]!r} is not a quantity; {allowed}")
    if match[1]:
        raise ValueError(f"{text[:60]!r} is negative")
    if not match["unit"]:
        raise ValueError(f"{text[:60]!r} has no unit; {allowed}")
    if match["unit"] not in units:
        raise ValueError(f"unknown unit {match['unit'][:20]!r}; {allowed}")
    value = Decimal(match[2]) * units[match["unit"]]
    if dimension == "bytes" and value != int(value):
        raise ValueError(f"{text[:60]!r} is not a whole number of bytes")
    return float(value)


def show(dimension: str, value: float) -> str:
    """`value` (SI) as a quantity that `parse` reads back, in the largest unit it fills.

    Sizes are exact; everything else keeps four significant digits.
    """
    if dimension == "bytes":
        for prefix, size in reversed(_BINARY.items()):
            if value >= size and value % size == 0:
                return f"{int(value) // size} {prefix}B"
        return f"{int(value)} B"
    units = {u: f for u, f in UNITS[dimension].items() if re.fullmatch(r"[kMGT]?(Hz|B/s|FLOP/s)|[munp]?s", u)}
    unit, factor = max(
        ((u, f) for u, f in units.items() if f <= Decimal(value)),
        key=lambda uf: uf[1],
        default=min(units.items(), key=lambda uf: uf[1]),
    )
    return f"{float(f'{value / float(factor):.4g}'):.12g} {unit}"
