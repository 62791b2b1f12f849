"""Encoders of ``ai.onnx.ml`` against onnxruntime, and the specification elsewhere."""

from __future__ import annotations

from typing import Any

import native
import numpy as np
import pytest
from classic import Case, case, same
from onnx import numpy_helper
from single import Array

from cuvil.errors import ModelError, UnsupportedError

NAN = float("nan")
INTS = np.array([[1, 2, 7], [-5, 900, 3], [2, 2, 0]])
SPARSE = [70000, -5, 2, 900, 2, 12345678901]
FLOATS = np.float32([[0.5, -1.5, np.nan], [2.25, 0, -0.0], [np.inf, 0.1, 7]])
WORDS = np.array(["b", "", "zebra", "a", "b ", "äpfel"], object)


def encoder(x: Array, version: int = 2, **attributes: Any) -> Case:
    return case("LabelEncoder", {"x": x}, version=version, **attributes)


def tensor(values: Any, dtype: Any) -> Any:
    return numpy_helper.from_array(np.array(values, dtype), "t")


def cases() -> dict[str, Case]:
    numbers = [0.5, -1.5, 7.0, 0.0]
    return {
        "range": encoder(INTS, keys_int64s=[3, 1, 2, 7], values_int64s=[30, 10, 20, 70]),
        "range to floats": encoder(
            INTS, keys_int64s=[0, 1, 2], values_floats=[0.5, 0.25, 8.0], default_float=9.5
        ),
        "negative range": encoder(INTS, keys_int64s=[-5, -4, 0], values_int64s=[1, 2, 3], default_int64=77),
        "far apart": encoder(INTS, keys_int64s=SPARSE, values_int64s=[1, 2, 3, 4, 5, 6]),
        "one key": encoder(INTS, keys_int64s=[900], values_floats=[1.5]),
        "floats": encoder(FLOATS, keys_floats=numbers, values_int64s=[1, 2, 3, 4], default_int64=-7),
        "floats to floats": encoder(FLOATS, keys_floats=numbers, values_floats=[1.0, 2.0, 3.0, 4.0]),
        "NaN": encoder(FLOATS, 4, keys_floats=[0.5, NAN], values_floats=[1.0, 2.0], default_float=3.0),
        "doubles": encoder(
            FLOATS.astype(np.float64) + 1e-12, 4, keys_tensor=tensor([0.5 + 1e-12, 7], np.float64),
            values_tensor=tensor([1.5, 2.5], np.float64), default_tensor=tensor([0.125], np.float64),
        ),
        "words": encoder(WORDS, keys_strings=["zebra", "b", "äpfel"], values_int64s=[1, 2, 3]),
        "words to floats": encoder(
            WORDS, keys_strings=["zebra", "b", ""], values_floats=[1.0, 2.0, 3.0], default_float=0.5
        ),
        "words to shorts": encoder(
            WORDS, 4, keys_tensor=tensor(["a", "b"], object), values_tensor=tensor([4, 5], np.int16),
            default_tensor=tensor([9], np.int16),
        ),
        "words to words": encoder(
            WORDS, keys_strings=["zebra", "b"], values_strings=["ape", "öl"], default_string="?"
        ),
        "numbers to words": encoder(INTS, keys_int64s=[1, 2, 7], values_strings=["one", "two", "seven"]),
        "far numbers to words": encoder(INTS, keys_int64s=[1, 90000], values_strings=["one", "many"]),
        "category to number": case(
            "CategoryMapper", {"x": WORDS}, cats_strings=["a", "b"], cats_int64s=[5, 6], default_int64=-3
        ),
        "category to word": case(
            "CategoryMapper", {"x": INTS}, cats_strings=["a", "b"], cats_int64s=[1, 7], default_string="none"
        ),
        "one hot": case("OneHotEncoder", {"x": INTS}, cats_int64s=[2, 900, 1]),
        "one hot of floats": case("OneHotEncoder", {"x": np.float32([1.9, 2, -0.5])}, cats_int64s=[0, 1, 2]),
        "one hot of doubles": case("OneHotEncoder", {"x": np.array([[1.0, 2]])}, cats_int64s=[2, 5]),
        "one hot of words": case("OneHotEncoder", {"x": WORDS}, cats_strings=["b", "", "zebra"]),
        "picked words": case("ArrayFeatureExtractor", {"x": WORDS.reshape(2, 3), "i": np.array([2, 0])}),
        "words by model": case(
            "LinearClassifier", {"x": np.float32([[1, 2], [-1, 5], [3, 0]])}, "label scores",
            coefficients=[1.0, 0, 0, 1], intercepts=[0.0, 0.5], classlabels_strings=["first", "no. 2"],
        ),
    }  # fmt: skip


CASES = cases()


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    old = {
        "old to number": encoder(WORDS, 1, classes_strings=["a", "b"]),
        "old to word": encoder(INTS, 1, classes_strings=["zero", "one", "two"], default_string="more"),
    }
    return native.outputs({**CASES, **old})


def text(array: Array) -> list[str]:
    """Strings as they come out of generated code, or of onnxruntime."""
    if array.dtype == object:
        return [str(s) for s in array.reshape(-1)]
    return [s.decode() for s in array.reshape(-1).astype("S").tolist()]


@pytest.mark.parametrize("name", CASES)
def test_as_onnxruntime(name: str, results: dict[str, list[Array]]) -> None:
    from single import reference

    if results[name][0].dtype.kind in "SO":
        want = reference(*CASES[name])[0]
        assert text(results[name][0]) == text(want) and results[name][0].shape == want.shape
    else:
        same(CASES, name, results[name])


def test_first_version(results: dict[str, list[Array]]) -> None:
    np.testing.assert_array_equal(results["old to number"][0], [1, -1, -1, 0, -1, -1])
    words = ["one", "two", "more", "more", "more", "more", "two", "two", "zero"]
    assert text(results["old to word"][0]) == words


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (encoder(INTS, keys_int64s=[1, 2], values_int64s=[1]), "number of keys 2"),
        (encoder(INTS, keys_strings=["a"], values_int64s=[1]), "input type was 7 and the key type 8"),
        (case("CategoryMapper", {"x": INTS}, cats_strings=["a"], cats_int64s=[1, 2]), "the same length"),
        (case("OneHotEncoder", {"x": INTS}, cats_int64s=[1, 1]), "each category once"),
        (case("OneHotEncoder", {"x": INTS}, cats_strings=["a"]), "cats_int64s must be given"),
    ],
)
def test_refusals(made: Case, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        native.prepare(made[0])


def test_maps_are_refused() -> None:
    m, _ = case("ZipMap", {"x": FLOATS}, classlabels_int64s=[0, 1, 2])
    with pytest.raises(UnsupportedError, match="ZipMap"):
        native.prepare(m)
