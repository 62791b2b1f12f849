"""NonZero, Compress, Unique and NonMaxSuppression against numpy and onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import native
import numpy as np
import onnx
import pytest
from single import Array, model, node, reference

import cuvil
from cuvil.errors import ModelError

Case = tuple[onnx.ModelProto, dict[str, Array]]

RNG = np.random.default_rng(11)
SPARSE = (RNG.standard_normal((3, 4, 5)) * (RNG.random((3, 4, 5)) < 0.4)).astype(np.float32)
ROWS = RNG.integers(0, 3, (12, 3)).astype(np.float32)
NAN = np.float32([np.nan, 1, -np.inf, np.nan, -0.0, 0.0, 1])
WORDS = np.array(["pear", "", "fig", "apple", "fig", "é", "", "figs"], object)


def symbolic(feeds: dict[str, Array]) -> dict[str, list[int | str]]:
    """Names for all sizes but those of scalars."""
    return {name: [f"{name}{n}" for n in range(a.ndim)] for name, a in feeds.items() if a.size != 1}


# --- NonZero ------------------------------------------------------------------------------------------

NON_ZERO: dict[str, Array] = {
    "sparse": SPARSE,
    "all": np.ones((2, 3), np.int64),
    "none": np.zeros((2, 3), np.int32),
    "empty": np.zeros((0, 3), np.float32),
    "bool": SPARSE[0] > 0,
    "not a number": NAN,
    "half": SPARSE.astype(np.float16),
    "bfloat16": SPARSE.astype(ml_dtypes.bfloat16),
    "words": WORDS.reshape(2, 4),
}


@pytest.mark.parametrize("name", NON_ZERO)
def test_non_zero(name: str, results: dict[str, list[Array]]) -> None:
    x = NON_ZERO[name]
    want = np.stack(np.nonzero(x != "" if x.dtype == object else x))
    for run in (name, f"{name}, symbolic"):
        np.testing.assert_array_equal(results[f"NonZero {run}"][0], want)


@pytest.mark.parametrize("x", [0, 7])
def test_non_zero_of_a_scalar_has_no_rows(x: int, results: dict[str, list[Array]]) -> None:
    assert results[f"NonZero of {x}"][0].shape == (0, int(x != 0))


# --- Compress -----------------------------------------------------------------------------------------

CONDITION = np.array([1, 0, 1, 1, 0], bool)
COMPRESS: dict[str, tuple[Array, Array, dict[str, Any]]] = {
    "flat": (SPARSE, RNG.random(60) < 0.5, {}),
    "flat, short": (SPARSE, CONDITION, {}),
    "axis": (SPARSE, CONDITION[:4], {"axis": 1}),
    "negative axis": (SPARSE, CONDITION, {"axis": -1}),
    "short": (SPARSE, CONDITION[:2], {"axis": 0}),
    "nothing": (SPARSE, np.zeros(3, bool), {"axis": 0}),
    "everything": (SPARSE, np.ones(3, bool), {"axis": 0}),
    "no condition": (SPARSE, np.zeros(0, bool), {"axis": 0}),
    "bfloat16": (SPARSE.astype(ml_dtypes.bfloat16), CONDITION, {"axis": 2}),
    "words": (WORDS, CONDITION, {}),
}


@pytest.mark.parametrize("name", COMPRESS)
def test_compress(name: str, results: dict[str, list[Array]]) -> None:
    x, condition, attributes = COMPRESS[name]
    want = np.compress(condition, x, attributes.get("axis"))
    for run in (name, f"{name}, constant", f"{name}, symbolic"):
        np.testing.assert_array_equal(results[f"Compress {run}"][0], want)


# --- Unique -------------------------------------------------------------------------------------------

UNIQUE: dict[str, tuple[Array, dict[str, Any]]] = {
    "flat": (RNG.integers(-40, 40, (9, 11)), {}),
    "one": (np.int8([5]), {}),
    "same": (np.full((2, 7), 3, np.float64), {}),
    "different": (RNG.permutation(33).astype(np.int64), {}),
    "empty": (np.zeros((0, 2), np.int64), {}),
    "rows": (ROWS, {"axis": 0}),
    "columns": (ROWS[:, [0, 1, 0, 2, 1]], {"axis": -1}),
    "middle": (np.stack([ROWS, ROWS]), {"axis": 1}),
    "empty slices": (np.zeros((4, 0), np.int64), {"axis": 0}),
    "not a number": (NAN, {}),
    "half": (ROWS.astype(np.float16), {}),
    "bool": (ROWS > 1, {"axis": 0}),
}


def expected_unique(x: Array, axis: int | None = None, ascending: bool = True) -> list[Array]:
    """numpy's answer, in the order of the first occurrences where `ascending` is not set."""
    y, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    order = np.argsort(first if not ascending else np.arange(first.size), kind="stable")
    rank = np.argsort(order, kind="stable")
    return [np.take(y, order, axis or 0), first[order], rank[inverse.reshape(-1)], counts[order]]


@pytest.mark.parametrize("ascending", [1, 0])
@pytest.mark.parametrize("name", UNIQUE)
def test_unique(name: str, ascending: int, results: dict[str, list[Array]]) -> None:
    x, attributes = UNIQUE[name]
    want = expected_unique(x, attributes.get("axis"), bool(ascending))
    for run in (name, f"{name}, symbolic")[: 1 + ascending]:
        for got, array in zip(results[f"Unique {ascending} {run}"], want, strict=True):
            np.testing.assert_array_equal(got, array)
            assert got.dtype == array.dtype


@pytest.mark.parametrize("ascending", [1, 0])
def test_unique_words(ascending: int, results: dict[str, list[Array]]) -> None:
    order = ["", "apple", "fig", "figs", "pear", "é"] if ascending else list(dict.fromkeys(WORDS))
    y, first, inverse, counts = results[f"Unique {ascending} words"]
    assert y.tolist() == order
    assert first.tolist() == [WORDS.tolist().index(word) for word in order]
    assert y[inverse].tolist() == WORDS.tolist()
    assert counts.tolist() == [WORDS.tolist().count(word) for word in order]


def test_not_a_number_is_equal_to_itself_in_slices(results: dict[str, list[Array]]) -> None:
    y, _, inverse, _ = results["Unique slices"]
    np.testing.assert_array_equal(y, [[0, np.nan], [np.nan, 1], [np.nan, np.nan]])
    assert inverse.tolist() == [1, 0, 2, 1]


def test_unique_gives_the_outputs_asked_for(results: dict[str, list[Array]]) -> None:
    want = expected_unique(ROWS, 0)
    np.testing.assert_array_equal(results["Unique counts"][0], want[3])


# --- NonMaxSuppression ----------------------------------------------------------------------------------


def boxes(batches: int, count: int, grid: int = 0) -> Array:
    """Random boxes of [y, x, y, x] in any order of their corners, on a grid of `grid` lines a unit."""
    centre, half = RNG.random((batches, count, 2)), RNG.random((batches, count, 2)) * 0.4 - 0.2
    found = np.concatenate([centre - half, centre + half], -1)
    return (np.round(found * grid) / grid if grid else found).astype(np.float32)


def suppression(
    batches: int, classes: int, count: int, numbers: tuple[Any, ...] = (), run_time: bool = True, **more: Any
) -> Case:
    """A model with the limit, the overlap and the score in `numbers`, None for an omitted one."""
    scores = RNG.integers(0, 9, (batches, classes, count)) / np.float32(8)
    feeds: dict[str, Array] = {"b": boxes(batches, count, more.pop("grid", 0)), "s": scores}
    feeds = {name: a.astype(np.float32) for name, a in feeds.items()}
    names = [name if n is not None else "-" for name, n in zip("mot", numbers)]
    given = {
        name: np.array([n], np.int64 if name == "m" else np.float32)
        for name, n in zip("mot", numbers)
        if n is not None
    }
    dims = symbolic(feeds) if more.pop("symbolic", False) else None
    n = node("NonMaxSuppression", " ".join(["b s", *names]), **more)
    data = {**feeds, **given} if run_time else feeds
    return model([n], data, ["y"], None if run_time else given, dims), data


SUPPRESSION: dict[str, Case] = {
    "run-time numbers": suppression(2, 3, 40, (5, 0.3, 0.2)),
    "constants": suppression(2, 3, 40, (5, 0.3, 0.2), run_time=False),
    "symbolic": suppression(2, 3, 40, (50, 0.3, 0.2), symbolic=True),
    "symbolic, constants": suppression(2, 3, 40, (5, 0.3, 0.2), run_time=False, symbolic=True),
    "no limit": suppression(1, 2, 30, (1 << 62, 0.5, 0.5), run_time=False),
    "centre and size": suppression(2, 2, 30, (9, 0.3, 0.1), center_point_box=1),
    "any overlap": suppression(1, 1, 40, (40, None, 0.1), grid=8),
    "any score": suppression(1, 2, 40, (40, 0.4)),
    "one number": suppression(1, 2, 40, (40,)),
    "no number": suppression(1, 2, 5),
    "none allowed": suppression(1, 2, 5, (0, 0.5)),
    "negative limit": suppression(1, 2, 5, (-1, 0.5)),
    "score of 1": suppression(1, 2, 5, (5, 0.5, 1)),
    "on a grid": suppression(1, 2, 60, (60, 1 / 3, 0.25), grid=6),
    "one box": suppression(1, 1, 1, (3, 0.5, -1)),
}


@pytest.mark.parametrize("name", SUPPRESSION)
def test_non_max_suppression(name: str, results: dict[str, list[Array]]) -> None:
    (want,) = reference(*SUPPRESSION[name])
    np.testing.assert_array_equal(results[f"NonMaxSuppression {name}"][0], want.reshape(-1, 3))


def test_some_boxes_are_suppressed(results: dict[str, list[Array]]) -> None:
    counts = {name: len(results[f"NonMaxSuppression {name}"][0]) for name in SUPPRESSION}
    assert counts["no number"] == counts["none allowed"] == counts["negative limit"] == 0
    assert counts["run-time numbers"] == counts["constants"] == 30
    assert 0 < counts["any overlap"] < 40


def test_an_overlap_equal_to_the_threshold_is_allowed(results: dict[str, list[Array]]) -> None:
    """Also of equal boxes whose area is no float: their overlap is 1."""
    assert results["equal boxes"][0].tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 2]]


def test_batches_and_boxes_must_fit() -> None:
    for shape, what in (((2, 5, 4), "2 batches"), ((1, 6, 4), "6 boxes"), ((1, 5, 3), "3 numbers")):
        feeds = {"b": np.zeros(shape, np.float32), "s": np.zeros((1, 1, 5), np.float32)}
        limit = {"m": np.array([3])}
        with pytest.raises(ModelError, match=what):
            native.prepare(model([node("NonMaxSuppression", "b s m")], feeds, ["y"], limit))


# --- all models, and networks that go on from there -----------------------------------------------------


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    cases: dict[str, Case] = {}

    def add(name: str, n: onnx.NodeProto, feeds: dict[str, Array], outputs: str = "y", **more: Any) -> None:
        newest = any(a.dtype == ml_dtypes.bfloat16 for a in feeds.values())
        cases[name] = model([n], feeds, outputs.split(), opset=28 if newest else 21, **more), feeds

    def both(name: str, n: onnx.NodeProto, feeds: dict[str, Array], outputs: str = "y") -> None:
        add(name, n, feeds, outputs)
        add(f"{name}, symbolic", n, feeds, outputs, dims=symbolic(feeds))

    for name, x in NON_ZERO.items():
        both(f"NonZero {name}", node("NonZero", "x"), {"x": x})
    for number in (0, 7):
        add(f"NonZero of {number}", node("NonZero", "x"), {"x": np.array(number)})
    for name, (x, condition, attributes) in COMPRESS.items():
        n = node("Compress", "x c", **attributes)
        both(f"Compress {name}", n, {"x": x, "c": condition})
        add(f"Compress {name}, constant", n, {"x": x}, constants={"c": condition})
    every = "y first inverse counts"
    for ascending in (1, 0):
        for name, (x, attributes) in UNIQUE.items():
            n = node("Unique", "x", every, sorted=ascending, **attributes)
            (both if ascending else add)(f"Unique {ascending} {name}", n, {"x": x}, every)
        n = node("Unique", "x", every, sorted=ascending)
        add(f"Unique {ascending} words", n, {"x": WORDS}, every)
    slices = np.float32([[np.nan, 1], [0, np.nan], [np.nan, np.nan], [np.nan, 1]])
    add("Unique slices", node("Unique", "x", every, axis=0), {"x": slices}, every)
    add("Unique counts", node("Unique", "x", "y - - counts", axis=0), {"x": ROWS}, "counts")
    cases.update({f"NonMaxSuppression {name}": case for name, case in SUPPRESSION.items()})
    equal = np.float32([[[0.1, 0.1, 0.8, 0.7]] * 3])
    numbers = {"m": np.array([9]), "o": np.float32([1])}
    scores = np.float32([[[0.5, 0.9, 0.5]]])
    add("equal boxes", node("NonMaxSuppression", "b s m o"), {"b": equal, "s": scores}, constants=numbers)
    return native.outputs(cases)


def check(
    path: Path, nodes: list[onnx.NodeProto], outputs: str, *runs: dict[str, Array], **more: Any
) -> None:
    """Compile, and compare with onnxruntime on each of `runs`."""
    for number, n in enumerate(nodes):
        n.name = f"n{number}"
    m = model(nodes, runs[0], outputs.split(), **more)
    onnx.save(m, path / "net.onnx")
    session = cuvil.compile(path / "net.onnx")
    for feeds in runs:
        for got, want in zip(session.run(None, feeds), reference(m, feeds), strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_elements_that_are_not_0(tmp_path: Path) -> None:
    """More of them than `limits.DATA_SIZE`, none, and in between."""
    nodes = [
        node("NonZero", "x", "places"),
        node("Transpose", "places", "at", perm=[1, 0]),
        node("GatherND", "x at", "found"),
        node("ReduceSum", "found", "sum", keepdims=0),
        node("Softmax", "found", "soft", axis=0),
    ]
    x = RNG.standard_normal((40, 50)).astype(np.float32)
    runs = [{"x": a} for a in (x, x[:2, :3], np.zeros((3, 4), np.float32), np.zeros((0, 4), np.float32))]
    check(tmp_path, nodes, "sum soft at", *runs, dims={"x": ["h", "w"]})


def test_detections(tmp_path: Path) -> None:
    """Suppression among the boxes that a score lets in, whose number the data decide themselves."""
    nodes = [
        node("Greater", "s least", "keep"),
        node("NonZero", "keep", "places"),
        node("Squeeze", "places axis0", "at"),
        node("Gather", "b at", "kept", axis=0),
        node("Compress", "s keep", "points"),
        node("Unsqueeze", "kept axis0", "boxes"),
        node("Unsqueeze", "points axes01", "scores"),
        node("NonMaxSuppression", "boxes scores limit overlap", "rows"),
        node("Gather", "rows two", "chosen", axis=1),
        node("Slice", "chosen axis0 ten axis0", "best"),
        node("Gather", "kept best", "y", axis=0),
        node("Gather", "points best", "z", axis=0),
    ]
    constants = {
        "least": np.float32(0.4), "axis0": np.array([0]), "axes01": np.array([0, 1]), "limit": np.array([30]),
        "overlap": np.float32([0.4]), "two": np.array(2), "ten": np.array([10]),
    }  # fmt: skip
    places, scores = boxes(1, 90)[0], RNG.random(90).astype(np.float32)
    runs = [
        {"b": places[:n], "s": scores[:n] * scale} for n, scale in ((90, 1), (7, 1), (50, np.float32(0.3)))
    ]
    check(tmp_path, nodes, "y z", *runs, constants=constants, dims={"b": ["n", 4], "s": ["n"]})


def test_means_of_groups(tmp_path: Path) -> None:
    """The groups' number is the depth of OneHot."""
    nodes = [
        node("Unique", "group", "names - which counts"),
        node("Size", "names", "count"),
        node("OneHot", "which count values", "member", axis=0),
        node("MatMul", "member x", "sums"),
        node("Cast", "counts", "n", to=onnx.TensorProto.FLOAT),
        node("Unsqueeze", "n one", "column"),
        node("Div", "sums column", "means"),
    ]
    constants = {"values": np.float32([0, 1]), "one": np.array([1])}
    runs = [
        {"group": RNG.integers(0, k, n), "x": RNG.standard_normal((n, 6)).astype(np.float32)}
        for k, n in ((7, 50), (1, 3))
    ]
    check(tmp_path, nodes, "means names", *runs, constants=constants, dims={"group": ["n"], "x": ["n", 6]})
