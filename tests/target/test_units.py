from __future__ import annotations

import re

import pytest

from cuvil.target import units


@pytest.mark.parametrize(
    ("dimension", "text", "value"),
    [
        ("frequency", "1.43 GHz", 1.43e9),
        ("frequency", "600MHz", 6e8),
        ("bandwidth", "25.6 GB/s", 25.6e9),
        ("bandwidth", "1 GiB/s", 2**30),
        ("bandwidth", "10 Gbit/s", 1.25e9),
        ("bytes", "4 GiB", 2**32),
        ("bytes", "1.5 KiB", 1536),
        ("bytes", "32 kB", 32000),
        ("time", "85 ns", 85e-9),
        ("time", "2.5 µs", 2.5e-6),
        ("time", "1e-3 s", 1e-3),
        ("time", "0 ns", 0.0),
        ("rate", "512 GFLOP/s", 512e9),
        ("rate", "4 TOP/s", 4e12),
    ],
)
def test_parse(dimension: str, text: str, value: float) -> None:
    assert units.parse(dimension, text) == value  # exactly: 85 ns is the double nearest to 85e-9
    assert re.search(units.pattern(dimension), text)


@pytest.mark.parametrize(
    ("dimension", "text", "message"),
    [
        ("frequency", "1.43 ghz", "unknown unit 'ghz'; a frequency is a number and one of Hz, kHz, MHz, GHz"),
        ("frequency", "85 ns", "unknown unit 'ns'; a frequency is"),
        (
            "bytes",
            "4",
            "'4' has no unit; a size is a number and one of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB",
        ),
        ("bytes", "0.3 B", "'0.3 B' is not a whole number of bytes"),
        ("bytes", "4 KB", "unknown unit 'KB'"),
        ("time", "-85 ns", "'-85 ns' is negative"),
        ("time", "nan ns", "'nan ns' is not a quantity"),
        ("time", "inf s", "'inf s' is not a quantity"),
        ("time", "1e999 s", "unknown unit '9 s'"),
        ("time", "", "'' is not a quantity"),
        ("rate", "GFLOP/s", "'GFLOP/s' is not a quantity"),
        ("rate", "1\n2 GFLOP/s", "'1\\n2 GFLOP/s' is not a quantity"),
    ],
)
def test_refused(dimension: str, text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        units.parse(dimension, text)
    assert str(caught.value).startswith(message)
    assert text == "0.3 B" or not re.search(units.pattern(dimension), text)


@pytest.mark.parametrize(
    ("dimension", "value", "text"),
    [
        ("frequency", 1.43e9, "1.43 GHz"),
        ("bandwidth", 25.6e9, "25.6 GB/s"),
        ("bytes", 48 << 10, "48 KiB"),
        ("bytes", (1 << 30) + 1, "1073741825 B"),
        ("time", 8.5e-8, "85 ns"),
        ("time", 0.0, "0 ps"),
        ("rate", 166.44444e9, "166.4 GFLOP/s"),
    ],
)
def test_show(dimension: str, value: float, text: str) -> None:
    assert units.show(dimension, value) == text
    assert units.parse(dimension, text) == pytest.approx(value, rel=5e-4)
