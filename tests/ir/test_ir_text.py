"""Strings as padded bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuvil.errors import ModelError
from cuvil.ir import text


def test_bytes_are_padded_to_the_longest() -> None:
    data = text.encode(np.array([["é", ""], ["abc", "z"]], object), "x")
    assert data.dtype == np.uint8 and data.shape == (2, 2, 3)
    assert data[0, 0].tolist() == [0xC3, 0xA9, 0]
    assert data.view("S3")[..., 0].tolist() == [["é".encode(), b""], [b"abc", b"z"]]


@pytest.mark.parametrize("strings", [[], [""], ["日本", "x"], [b"bytes"]])
def test_there_and_back(strings: list[Any]) -> None:
    array = np.array(strings, object)
    wanted = [s.decode() if isinstance(s, bytes) else s for s in strings]
    assert text.decode(text.encode(array, "x", 8)).tolist() == wanted


def test_a_scalar() -> None:
    assert text.encode("ab", "x").shape == (2,)
    back = text.decode(text.encode(np.array("ab", object), "x", 5))
    assert back.shape == () and back.item() == "ab"


def test_what_is_not_utf8_is_replaced() -> None:
    assert text.decode(np.uint8([[0xFF, 0x41, 0]])).tolist() == ["\ufffdA"]


@pytest.mark.parametrize(
    ("strings", "message"),
    [
        (["a" * 9], "has 9 bytes, at most 8"),
        (["é" * 5], "has 10 bytes, at most 8"),
        (["a\0b"], "NUL"),
        (["a", 3], "type int"),
        (["\ud800"], "not UTF-8"),
    ],
)
def test_refused(strings: list[Any], message: str) -> None:
    with pytest.raises(ModelError, match=f"input 'x'.*{message}"):
        text.encode(np.array(strings, object), "input 'x'", 8)


def test_numbers_are_no_strings() -> None:
    with pytest.raises(ModelError, match="float64, string is expected"):
        text.encode(np.zeros(2), "x")
