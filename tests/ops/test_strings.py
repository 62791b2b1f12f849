"""Strings in generated code, against onnxruntime and Python."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import native
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from single import Array, model, node, reference

import cuvil
from cuvil.errors import CuvilError, ModelError, UnsupportedError
from cuvil.ops.characters import changed

Case = tuple[onnx.ModelProto, dict[str, Array]]


def words(*strings: str) -> Array:
    return np.array(strings, object)


def case(
    nodes: onnx.NodeProto | list[onnx.NodeProto],
    x: Array,
    outputs: str = "y",
    **more: Array,
) -> Case:
    """A model of `nodes` whose inputs have symbolic sizes; arrays besides `x` are constants where their
    names are capital."""
    constants = {name: a for name, a in more.items() if name.isupper()}
    feeds = {"x": x, **{name: a for name, a in more.items() if name not in constants}}
    dims = {name: [f"{name}{axis}" for axis in range(a.ndim)] for name, a in feeds.items()}
    given = nodes if isinstance(nodes, list) else [nodes]
    return model(given, feeds, outputs.split(), constants, dims), feeds


def cast(kind: int, *strings: str) -> Case:
    return case(node("Cast", "x", to=kind), words(*strings))


SENTENCES = words("ab cd  ef", "", "  x ", "日本\t語\n", "a", " ")
SPACED = words("a b c  ", " q", "")
DASHES = words("a--b---c", "--", "x", "----")
NAMES = words("foo", "Foo", "BÄr ÿ ß é", "é", "ſtrange ᾀ İ", "x", "", "ⱥȺ")
GRID = words("a", "bb", "日本", "", "e" * 64, "f").reshape(2, 3)
TOKENS = words("a", "b", "c", "b", "y", "z", "q", "a", "b", "a").reshape(2, 5)


def normalizer(x: Array = NAMES, **attributes: Any) -> Case:
    return case(node("StringNormalizer", "x", locale="C.utf8", **attributes), x)


def fixed(symbolic: Case) -> Case:
    """The case with the sizes of its arrays."""
    m, feeds = symbolic
    for value in m.graph.input:
        for d, size in zip(value.type.tensor_type.shape.dim, feeds[value.name].shape):
            d.dim_value = size
    return m, feeds


def grams(mode: str, x: Array, **attributes: Any) -> Case:
    pool = ["a", "b", "c", "a", "b", "b", "c", "z", "y", "a", "b", "a"]
    given = {"ngram_counts": [0, 3, 9], "ngram_indexes": [2, 0, 1, 5, 3, 4, 7], "max_skip_count": 2}
    given |= {"min_gram_length": 1, "max_gram_length": 3, "pool_strings": pool, **attributes}
    return case(node("TfIdfVectorizer", "x", mode=mode, **given), x)


WEIGHTS = [0.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
FLOATS = (
    "1", "-2.5e3", "+.5", "5.", "0.1", " 7", "inf", "-INF", "NaN", "1e-45", "3.4028235e38", "1e39", "-0",
    "0e99", "123456789.123456789", "1E+2", "100000000000000000000000", "0.00000000000000000000000012",
)  # fmt: skip
HARD = (
    "5e-324", "2.4703282292062327e-324", "2.4703282292062328e-324", "2.2250738585072011e-308", "4.35e-310",
    "1.7976931348623158e308", "1.7976931348623159e308", "1e400", "1e-400", "1e23", "8.5e22",
    "9007199254740993", "9007199254740995e0", "0.1e-300", "18014398509481988e-1",
)  # fmt: skip
"""Subnormal numbers, the largest ones, ties between two doubles and what is close to one."""

SINGLE_TIES = {
    "16777217": 16777216.0, "16777219": 16777220.0, "3.4028235677973366e38": 3.4028234663852886e38,
    "3.40282356779733662e38": np.inf, "7.0064923216240853e-46": 0.0,
    "7.0064923216240862e-46": 1.401298464324817e-45, "1.1754943e-38": 1.1754943508222875e-38,
}  # fmt: skip
"""Floats that are the nearest, where two are nearly as near."""

LETTERS = [
    chr(c) for c in (*range(1, 0x590), *range(0x1E00, 0x2000), *range(0x10400, 0x10450), 0x2C65, 0xA7AE)
]

AGAINST_RUNTIME: dict[str, Case] = {
    "equal": case(node("Equal", "x C"), GRID, C=words("a", "日本", "日")),
    "concat": case(node("StringConcat", "x C"), GRID, C=words("é", "", "-longer")),
    "concat of inputs": case(node("StringConcat", "x z"), GRID, z=words("p", "q").reshape(2, 1)),
    "concat twice": case([node("StringConcat", "x x", "t", name="first"), node("StringConcat", "t x")], GRID),
    "split at spaces": case(node("StringSplit", "x", "y n"), words("ab cd  ef", "", "  x ", " "), "y n"),
    "split once at spaces": case(node("StringSplit", "x", "y n", maxsplit=1), SPACED, "y n"),
    "split at dashes": case(node("StringSplit", "x", "y n", delimiter="--"), DASHES, "y n"),
    "split once at dashes": case(node("StringSplit", "x", "y n", delimiter="--", maxsplit=1), DASHES, "y n"),
    "split a grid": case(node("StringSplit", "x", "y n", delimiter="e"), GRID[:, 1:], "y n"),
    "pieces joined": case([node("StringSplit", "x", "t n"), node("StringConcat", "t t")], SENTENCES[:1]),
    "upper": normalizer(case_change_action="UPPER"),
    "lower": normalizer(case_change_action="LOWER"),
    "without stop words in any case": normalizer(stopwords=["FOO", "É", "nothing"]),
    "without stop words": normalizer(stopwords=["Foo", "É"], is_case_sensitive=1),
    "upper without stop words": normalizer(stopwords=["foo", "ÿ"], case_change_action="UPPER"),
    "lower without exact stop words": normalizer(
        stopwords=["Foo", "x"], case_change_action="LOWER", is_case_sensitive=1
    ),
    "ASCII": case(node("StringNormalizer", "x", locale="C", case_change_action="UPPER"), NAMES),
    "ASCII stop words": case(node("StringNormalizer", "x", locale="C", stopwords=["FOO", "É"]), NAMES),
    "nothing left": normalizer(words("a", "A"), stopwords=["a"]),
    "a row": fixed(normalizer(NAMES[:3].reshape(1, 3), stopwords=["foo"])),
    "regex": case(node("RegexFullMatch", "x", pattern=r"(?i)\pL*b?[é-本]?|e{64}"), GRID),
    "regex without a class for NUL": case(node("RegexFullMatch", "x", pattern=r"[\x01-\x{10ffff}]+"), GRID),
    "regex on words": case(node("RegexFullMatch", "x", pattern=r"\bab\b.*|\s*x\s*|"), SENTENCES),
    "n-grams": grams("TF", TOKENS),
    "n-grams of one row": grams("TF", TOKENS[0]),
    "n-grams found": grams("IDF", TOKENS),
    "n-grams found, weighted": grams("IDF", TOKENS, weights=WEIGHTS),
    "n-grams weighted": grams("TFIDF", TOKENS, weights=WEIGHTS),
    "n-grams without skips": grams("TFIDF", TOKENS, max_skip_count=0, min_gram_length=2),
    "integers": case(
        node("TfIdfVectorizer", "x", mode="TF", ngram_counts=[0, 4], max_skip_count=5, min_gram_length=1,
             max_gram_length=2, pool_int64s=[2, 3, 5, 4, 5, 6, 7, 8, 6, 7], ngram_indexes=[*range(7)]),
        np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]], np.int32),
    ),
    "to float": cast(TensorProto.FLOAT, *FLOATS),
    "to double": cast(TensorProto.DOUBLE, *FLOATS),
    "to int64": cast(TensorProto.INT64, "9223372036854775807", "-9223372036854775808", "+12", "0"),
    "to uint64": cast(TensorProto.UINT64, "18446744073709551615", "7"),
    "to int8": cast(TensorProto.INT8, "-128", "127"),
    "rows put together": case(node("Concat", "x C", axis=0), GRID, C=words("i", "j" * 70, "k").reshape(1, 3)),
    "looked up": case(node("Gather", "C x"), np.array([[2, -1], [0, 2]]), C=words("a", "bb", "ccc")),
    "chosen": case(node("Where", "b x C"), GRID, C=words("other"), b=np.array([[True, False, True]])),
    "turned": case([node("Transpose", "x", "t"), node("Reshape", "t S")], GRID, S=np.array([6])),
    "cut": case(node("Slice", "x A B C"), GRID, A=np.array([1]), B=np.array([3]), C=np.array([1])),
    "replaced": case(node("ScatterElements", "x i C", axis=1), GRID, C=GRID[:, 1:2], i=np.array([[2], [0]])),
    "unchanged": case(node("Identity", "x"), GRID),
    "its shape": case(node("Shape", "x"), GRID),
}  # fmt: skip


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    rng = random.Random(2)
    scientific = [f"{rng.randint(-(10**18), 10**18)}e{rng.randint(-345, 300)}" for _ in range(1000)]
    scientific += HARD
    extra = {
        "empty string at a delimiter": case(node("StringSplit", "x", "y n", delimiter="-"), words(""), "y n"),
        "white space": case(
            node("StringSplit", "x", "y n"), words("a\u2003b\xa0c\u3000\td\x1e", "\u1680"), "y n"
        ),
        "exact": cast(TensorProto.DOUBLE, *scientific),
        "ties": cast(TensorProto.FLOAT, *SINGLE_TIES),
        "half": cast(TensorProto.FLOAT16, "1.5", "-7e4", "nan"),
        "letters": normalizer(words(*LETTERS), case_change_action="UPPER"),
        "small letters": normalizer(words(*LETTERS), case_change_action="LOWER"),
        "no rows": case(node("StringSplit", "x", "y n"), np.zeros((0, 2), object), "y n"),
    }
    made = native.outputs(AGAINST_RUNTIME | extra)
    made["scientific"] = [np.array([float(s) for s in scientific])]
    return made


@pytest.mark.parametrize("name", AGAINST_RUNTIME)
def test_as_onnxruntime(name: str, results: dict[str, list[Array]]) -> None:
    m, feeds = AGAINST_RUNTIME[name]
    for got, want in zip(results[name], reference(m, feeds), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def test_an_empty_string_is_one_piece(results: dict[str, list[Array]]) -> None:
    """As in Python and the reference evaluator; onnxruntime says none."""
    pieces, counts = results["empty string at a delimiter"]
    assert pieces.tolist() == [[""]] and counts.tolist() == [1]


def test_unicodes_white_space_divides(results: dict[str, list[Array]]) -> None:
    pieces, counts = results["white space"]
    assert pieces.tolist() == [["a", "b", "c", "d\x1e"], ["", "", "", ""]] and counts.tolist() == [4, 0]


def test_no_strings_have_no_pieces(results: dict[str, list[Array]]) -> None:
    pieces, counts = results["no rows"]
    assert pieces.shape == (0, 2, 0) and counts.shape == (0, 2)


@pytest.mark.parametrize(("name", "upper"), [("letters", True), ("small letters", False)])
def test_letters(name: str, upper: bool, results: dict[str, list[Array]]) -> None:
    other = [c.upper() if upper else c.lower() for c in LETTERS]
    simple = [o if len(o) == 1 else changed(c, upper) for c, o in zip(LETTERS, other)]
    assert results[name][0].tolist() == simple
    assert sum(len(o) > 1 for o in other) < 100


def test_doubles_are_the_nearest(results: dict[str, list[Array]]) -> None:
    np.testing.assert_array_equal(results["exact"][0], results["scientific"][0])


def test_floats_are_the_nearest(results: dict[str, list[Array]]) -> None:
    np.testing.assert_array_equal(results["ties"][0], np.float32([*SINGLE_TIES.values()]))


def test_small_floats(results: dict[str, list[Array]]) -> None:
    np.testing.assert_array_equal(results["half"][0], np.float16([1.5, -np.inf, np.nan]))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (case(node("Trilu", "x"), GRID), "Trilu is not supported on strings"),
        (case(node("Cast", "x", to=8), np.float32([1])), "Cast is not supported on strings"),
        (case(node("Cast", "x", to=9), GRID), "not to bool"),
        (case(node("StringNormalizer", "x", locale="tr_TR"), words("i")), "locale 'tr_TR'"),
        (case(node("RegexFullMatch", "x", pattern="(?=a)"), GRID), "which is not supported"),
    ],
)
def test_unsupported(wrong: Case, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        native.prepare(wrong[0])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (fixed(normalizer(GRID)), r"\[C\] or \[1, ?C\]"),
        (normalizer(case_change_action="TITLE"), "'TITLE'"),
        (grams("TF", TOKENS, ngram_counts=[0, 3, 8]), "2-grams items 3 to 8"),
        (grams("TF", TOKENS, ngram_indexes=[0, 1]), "fewer than the n-grams"),
        (grams("IDF", TOKENS, weights=[1.0]), "1 weights do not fit 7"),
        (case(node("StringConcat", "x C"), GRID, C=words("a\0b")), "NUL"),
    ],
)
def test_malformed(wrong: Case, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        native.prepare(wrong[0])


def test_session(tmp_path: Path) -> None:
    """Arrays of objects in and out, as with onnxruntime; what is too long names the input."""
    nodes = [node("StringConcat", "x x", "t"), node("StringSplit", "t", "y n", delimiter="-")]
    path = tmp_path / "doubled.onnx"
    m, _ = case(nodes, words("a"), "t y n")
    for value in m.graph.output:
        kind = TensorProto.INT64 if value.name == "n" else TensorProto.STRING
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, ["x0"] + [None] * (value.name == "y")))
    onnx.save(m, path)
    session = cuvil.compile(path)
    assert [t.type for t in session.get_outputs()] == ["tensor(string)", "tensor(string)", "tensor(int64)"]
    feeds = {"x": np.array(["é-", "", "日" * 21])}
    for got, want in zip(session.run(None, feeds), reference(m, {"x": feeds["x"].astype(object)})):
        if want.dtype == object:
            assert got.tolist() == want.tolist()
    with pytest.raises(CuvilError, match=r"input 'x': a string has 66 bytes, at most 64"):
        session.run(None, {"x": words("日" * 22)})
    with pytest.raises(CuvilError, match=r"input 'x': has shape \[1, 1\]"):
        session.run(None, {"x": words("a").reshape(1, 1)})
    with pytest.raises(CuvilError, match=r"input 'x': has type float64, string"):
        session.run(None, {"x": np.zeros(3)})
