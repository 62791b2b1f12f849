"""Attention in blocks of rows: claimed whatever it is made from, equal to plain loops, without all scores."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from codegen.sandbox import ADDRESS, Array, Case, Isa, Program, isa, relative_error, schedule_of
from onnx import TensorProto, helper
from zoo.net import Net, i64

from cuvil.ir import expr as E
from cuvil.schedule.plan import Schedule

Sizes = tuple[int, int, int, int, int]
"""Batch, heads, queries, keys, size of a head."""


def explicit(sizes: Sizes, symbolic: bool) -> onnx.ModelProto:
    """Scores by MatMul, scaled and masked, softmax, and values by MatMul, heads side by side at both ends."""
    b, h, s, t, d = sizes
    net = Net("explicit", 1)
    batch, queries, keys = ("b", "s", "t") if symbolic else (b, s, t)
    q, k, v = (
        net.input(name, [batch, length, h * d]) for name, length in (("q", queries), ("k", keys), ("v", keys))
    )
    mask = net.input("mask", [batch, 1, 1, keys])
    q, k, v = (
        net.op("Transpose", net.op("Reshape", x, i64(0, 0, h, d)), perm=order)
        for x, order in ((q, [0, 2, 1, 3]), (k, [0, 2, 3, 1]), (v, [0, 2, 1, 3]))
    )
    scores = net.op("Div", net.op("MatMul", q, k), net.const(np.float32(d**0.5)))
    y = net.op("MatMul", net.op("Softmax", net.op("Add", scores, mask), axis=-1), v)
    y = net.op("Reshape", net.op("Transpose", y, perm=[0, 2, 1, 3]), i64(0, 0, h * d))
    net.output(y, "y", [batch, queries, h * d])
    return net.model()


def operator(sizes: Sizes, symbolic: bool) -> onnx.ModelProto:
    """One node, causal."""
    b, h, s, t, d = sizes
    batch, queries, keys = ("b", "s", "t") if symbolic else (b, s, t)
    shapes = {"q": [batch, queries, h * d], "k": [batch, keys, h * d], "v": [batch, keys, h * d]}
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], q_num_heads=h, kv_num_heads=h, is_causal=1)
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in shapes.items()]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, queries, h * d])
    graph = helper.make_graph([node], "attention", inputs, [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])


SMALL, LONG = (2, 3, 21, 37, 24), (1, 2, 30, 600, 16)
MODELS: dict[str, tuple[onnx.ModelProto, list[Sizes]]] = {
    "explicit": (explicit(SMALL, False), [SMALL]),
    "explicit, long": (explicit(LONG, False), [LONG]),
    "explicit, symbolic": (explicit(SMALL, True), [SMALL, (1, 3, 1, 5, 24), (1, 3, 34, 100, 24)]),
    "Attention": (operator(SMALL, False), [SMALL]),
    "Attention, symbolic": (operator(SMALL, True), [SMALL, (1, 3, 16, 16, 24)]),
}


@functools.cache
def scheduled(name: str, chosen: str, threads: int = 1) -> Schedule:
    found = isa(chosen)
    options: dict[str, Any] | None = found.options and {**found.options, "threads": threads}
    return schedule_of(MODELS[name][0], Isa(options, found.cpu, found.features, packing=found.packing))


def feeds(name: str, sizes: Sizes) -> dict[str, Array]:
    b, h, s, t, d = sizes
    shapes = {"q": (b, s, h * d), "k": (b, t, h * d), "v": (b, t, h * d), "mask": (b, 1, 1, t)}
    rng = np.random.default_rng(7)
    arrays = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    arrays["mask"] = np.where(arrays["mask"] > 1, -1e4, 0).astype(np.float32)
    return {v.name: arrays[v.name] for v in MODELS[name][0].graph.input}


@functools.cache
def cases(chosen: str, threads: int = 1) -> list[Case]:
    return [
        Case(name, scheduled(name, chosen, threads), feeds(name, sizes))
        for name, (_, all_sizes) in MODELS.items()
        for sizes in all_sizes
    ]


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> list[Array]:
    """The results of plain loops."""
    program = Program(cases("plain"), tmp_path_factory.mktemp("plain"), isa("plain"), ())
    return [program.run(i)[0] for i in range(len(program.cases))]


@pytest.mark.parametrize("chosen", ["x86-64", "x86-64-v3 in a library for several", "x86-64-v4"])
def test_equal_to_plain_loops(chosen: str, wanted: list[Array], tmp_path: Path) -> None:
    program = Program(cases(chosen), tmp_path, isa(chosen), ADDRESS)
    for number, (case, plain) in enumerate(zip(program.cases, wanted)):
        assert relative_error(program.run(number)[0], plain) < 1e-6, (case.name, case.sizes)


def test_the_same_for_any_number_of_threads(tmp_path: Path) -> None:
    names = ["explicit, long", "explicit, symbolic"]
    results = []
    for threads in (1, 3):
        chosen = [c for c in cases("x86-64-v4", threads) if c.name in names]
        program = Program(chosen, tmp_path / str(threads), isa("x86-64-v4"), (), threads)
        results.append([program.run(i)[0] for i in range(len(chosen))])
    for one, several in itertools.zip_longest(*results):
        assert np.array_equal(one, several)


@pytest.mark.parametrize("name", list(MODELS))
def test_no_kernel_leaves_all_scores_in_memory(name: str) -> None:
    s = scheduled(name, "x86-64-v4")
    b, h, queries, keys, _ = MODELS[name][1][-1]
    sizes = {"b": b, "s": queries, "t": keys}
    bound = {n: sizes[n] for n in s.program.symbols}
    shapes = [[E.evaluate(n, bound) for n in root.shape] for root in s.arena]
    assert [b, h, queries, keys] not in shapes
    assert all(k.tag != "rows" for k in s.kernels)
