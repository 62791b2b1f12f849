from __future__ import annotations

import math

import pytest

from cuvil.report import text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.01234, "0.0123"),
        (1.0, "1"),
        (9.999, "10"),
        (99.96, "100"),
        (1234.4, "1234"),
        (math.inf, "inf"),
    ],
)
def test_digits(value: float, shown: str) -> None:
    assert text.digits(value) == shown


def test_units() -> None:
    assert [text.size(n) for n in (0, 640, 1024, 1536, 169856, 5 << 40)] == [
        "0 B", "640 B", "1 KiB", "1.5 KiB", "166 KiB", "5 TiB",
    ]  # fmt: skip
    assert [text.amount(n) for n in (950, 16_400_000, 2.5e15)] == ["950", "16.4 M", "2.5 P"]
    assert [text.duration(n) for n in (850, 12_340, 4.56e6, 1.2e9)] == [
        "850 ns",
        "12.3 us",
        "4.56 ms",
        "1.2 s",
    ]
    assert (text.error(0.0), text.error(1.23e-7)) == ("0", "1.2e-07")


def test_table() -> None:
    rows = [["a", "1", ""], ["long", "22", "x"]]
    assert text.table(rows, ("name", "n", "note"), "<>") == "name   n  note\na      1\nlong  22  x"
    assert text.table([]) == ""
    assert text.facts([("a", "1"), ("none", ""), ("bc", "2")]) == "a   1\nbc  2"
