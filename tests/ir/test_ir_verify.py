"""The verifier finds what is planted, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from codegen.sandbox import Isa, schedule_of
from zoo.net import Net

from cuvil.ir import expr as E
from cuvil.ir import verify
from cuvil.ir.builder import Builder
from cuvil.ir.loops import Declare, For, Kernel, Store
from cuvil.ir.primitives import Constant, Map, Prepared, Program, Reduce, Value
from cuvil.ir.verify import InternalError
from cuvil.schedule import verify as schedules
from cuvil.schedule.plan import Schedule
from cuvil.schedule.storage import Layout, Placement

TUNED = Isa({"arch": "x86_64", "vector_bits": 256, "vector_registers": 16, "dot_i8": False})


def small() -> tuple[Program, Value, Value, Value]:
    """x [N, 4] -> exp -> sum over the last axis."""
    p = Program("p", symbols=["N"])
    b = Builder(p)
    x = b.input("x", "float32", [E.sym("N"), E.const(4)])
    y = b.elementwise(lambda e: E.unary("exp", e), x)
    z = b.reduce_axes("sum", y, [1], keepdims=False)
    p.outputs.append(z)
    return p, x, y, z


def test_sound_program_passes() -> None:
    verify.program(small()[0])


def body(v: Value) -> E.Expr:
    assert isinstance(v.definition, (Map, Reduce))
    return v.definition.body


def axes(v: Value) -> tuple[E.Expr, ...]:
    assert isinstance(v.definition, (Map, Reduce))
    return v.definition.axes


def late(p: Program, x: Value, y: Value, z: Value) -> None:
    p.values.remove(y)
    p.values.append(y)


def renamed(p: Program, x: Value, y: Value, z: Value) -> None:
    y.name = x.name


def foreign(p: Program, x: Value, y: Value, z: Value) -> None:
    other = Value("other", "float32", y.shape)
    y.definition = Map(axes(y), E.load(other, axes(y)))


def open_variable(p: Program, x: Value, y: Value, z: Value) -> None:
    y.definition = Map(axes(y), E.load(x, (axes(y)[0], E.var(4))))


def wrong_type(p: Program, x: Value, y: Value, z: Value) -> None:
    y.dtype = "float64"


def wrong_rank(p: Program, x: Value, y: Value, z: Value) -> None:
    y.definition = Map(axes(y)[:1], E.const(0.0, "float32"))


def wrong_extent(p: Program, x: Value, y: Value, z: Value) -> None:
    y.definition = Map((axes(y)[0], E.var(5)), E.const(0.0, "float32"))


def unknown_symbol(p: Program, x: Value, y: Value, z: Value) -> None:
    p.symbols.clear()


def unknown_reduction(p: Program, x: Value, y: Value, z: Value) -> None:
    assert isinstance(z.definition, Reduce)
    z.definition = replace(z.definition, op="median")


def wrong_data(p: Program, x: Value, y: Value, z: Value) -> None:
    p.values.insert(0, Value("c", "float32", (E.const(3),), Constant(np.zeros(2, np.float32))))


def prepared_from_input(p: Program, x: Value, y: Value, z: Value) -> None:
    p.values.append(Value("c", "float32", (E.const(2),), Prepared(np.zeros(2, np.float32), x, None, 1)))


def undefined(p: Program, x: Value, y: Value, z: Value) -> None:
    y.definition = None


def lost_output(p: Program, x: Value, y: Value, z: Value) -> None:
    p.values.remove(z)


def input_as_output(p: Program, x: Value, y: Value, z: Value) -> None:
    p.outputs.append(x)


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (late, "before it is there"), (renamed, "two values have one name"), (foreign, "not in the program"),
        (open_variable, "free variable"), (wrong_type, "computed as float32"),
        (wrong_rank, "1 axes and rank 2"),
        (wrong_extent, "does not run over"), (unknown_symbol, "unknown symbol"),
        (unknown_reduction, "unknown reduction"), (wrong_data, "data of shape"), (undefined, "no definition"),
        (lost_output, "not among the values"), (input_as_output, "memory of its own"),
        (prepared_from_input, "which the library does not hold"),
    ],
    ids=lambda p: getattr(p, "__name__", ""),
)  # fmt: skip
def test_broken_programs_are_found(plant: Callable[..., None], message: str) -> None:
    made = small()
    plant(*made)
    with pytest.raises(InternalError, match=message):
        verify.program(made[0])


def test_recurrences_read_back_only() -> None:
    def build(back: int, inner: int) -> Program:
        p = Program("p")
        b = Builder(p)
        x = b.input("x", "float32", [E.const(5), E.const(2)])
        scan = b.scan(5)
        h, c = (b.member(scan, "float32", [2]) for _ in range(2))
        b.define(h, lambda t, i: E.select(E.lt(t, 1), x[t, i], E.load(c, (t - back, i))))
        b.define(c, lambda t, i: E.load(h, (t - inner, i)) + x[t, i])
        p.outputs.append(b.map([2], lambda i: E.load(c, (E.const(4), i))))
        return p

    verify.program(build(1, 0))
    verify.program(build(2, 1))
    with pytest.raises(InternalError, match="not computed yet"):
        verify.program(build(0, 0))
    with pytest.raises(InternalError, match="not computed yet"):
        verify.program(build(1, -1))


# --- kernels ----------------------------------------------------------------------------------------------


def kernel(**changes: object) -> Kernel:
    x, y = Value("x", "float32", (E.const(4),)), Value("y", "float32", (E.const(4),))
    i = E.var(4)
    loop = For(i, E.const(4), (Store(y, (i,), E.load(x, (i,))),))
    made = Kernel("k", (), (loop,), (x,), (y,))
    return replace(made, **changes)  # type: ignore[arg-type]


def test_sound_kernel_passes() -> None:
    verify.kernel(kernel(), [])


def test_broken_kernels_are_found() -> None:
    k = kernel()
    (loop,) = k.body
    assert isinstance(loop, For)
    (store,) = loop.body
    assert isinstance(store, Store)
    x, y, i = k.reads[0], k.writes[0], loop.var
    local = Value("u", "float32", (E.sym("N"),))
    huge = Value("u", "float32", (E.const(1 << 20),))
    cases: list[tuple[Kernel, str]] = [
        (kernel(body=(store,), reads=(x,), writes=(y,)), "is not declared"),
        (kernel(body=k.body, reads=(), writes=(y,)), "reads .* which is not listed"),
        (kernel(body=k.body, reads=(x,), writes=()), "writes .* which is not listed"),
        (kernel(body=k.body, reads=(x,), writes=(y, x)), "never stores"),
        (
            kernel(body=(For(i, E.const(4), (Store(y, (), E.load(x, (i,))),)),), reads=(x,), writes=(y,)),
            "0 indices",
        ),
        (
            kernel(body=(For(i, E.const(4), (Store(y, (i,), E.const(1)),)),), reads=(x,), writes=(y,)),
            "int64 to",
        ),
        (kernel(body=(For(i, E.const(4), (loop,)),), reads=(x,), writes=(y,)), "declared twice"),
        (kernel(body=(Declare(local), loop), reads=(x,), writes=(y,)), "no known size"),
        (kernel(body=(Declare(huge), loop), reads=(x,), writes=(y,)), "too large for the stack"),
        (kernel(body=(replace(loop, stop=E.sym("N")),), reads=(x,), writes=(y,)), "symbol N is unknown"),
        (kernel(body=(replace(loop, kind="turbo"),), reads=(x,), writes=(y,)), "kind turbo"),
    ]
    for broken, message in cases:
        with pytest.raises(InternalError, match=message):
            verify.kernel(broken, [])


# --- schedules --------------------------------------------------------------------------------------------


def convolutions() -> Schedule:
    """Two convolutions with a skip connection, in blocked layouts."""
    net = Net("n", 1)
    x = net.input("x", [1, 4, 8, 8])
    y = net.op("Relu", net.conv(x, 4, 16, 3))
    z = net.op("Add", net.op("Relu", net.conv(y, 16, 16, 3)), y)
    net.output(net.op("GlobalAveragePool", z), "y", [1, 16, 1, 1])
    return schedule_of(net.model(), TUNED)


def test_sound_schedule_passes() -> None:
    schedules.schedule(convolutions())


def test_overlapping_arena_is_found() -> None:
    s = convolutions()
    s.arena = dict.fromkeys(s.arena, E.const(0))
    with pytest.raises(InternalError, match="shares bytes 0 to"):
        schedules.memory(s)


def test_small_arena_is_found() -> None:
    s = convolutions()
    s.arena_bytes = E.const(64)
    with pytest.raises(InternalError, match="of 64"):
        schedules.memory(s)


def test_kernels_out_of_order_are_found() -> None:
    s = convolutions()
    s.kernels.reverse()
    with pytest.raises(InternalError, match="before it is written"):
        schedules.order(s)


def test_circular_placement_is_found() -> None:
    s = convolutions()
    (value, placement), *_ = s.storage.placements.items()
    s.storage.placements[placement.host] = Placement(value, placement.axes, placement.indices)
    with pytest.raises(InternalError, match="circle"):
        schedules.storage(s.storage, s.program.values)


@pytest.mark.parametrize(
    "dims",
    [((0, 1, 0),), ((0, 16, 0), (1, 1, 0)), ((0, 16, 0), (1, 1, 0), (0, 1, 8)), ((0, 1, 16), (1, 1, 0))],
    ids=["axis missing", "no units", "gap", "bounded"],
)
def test_layouts_with_gaps_are_found(dims: tuple[tuple[int, int, int], ...]) -> None:
    s = convolutions()
    v = Value("v", "float32", (E.const(32), E.const(4)))
    s.storage.layouts[v] = Layout(dims)
    with pytest.raises(InternalError, match=r"axis|part|round"):
        schedules.storage(s.storage, s.program.values)


def test_false_alias_is_found() -> None:
    """The sum of a matrix and its transpose written over the matrix."""
    net = Net("n", 1)
    x = net.input("x", [8, 8])
    a = net.op("CumSum", x, np.array(0, np.int64))
    net.output(net.op("Add", a, net.op("Transpose", a, perm=[1, 0])), "y", [8, 8])
    s = schedule_of(net.model(), Isa(None))
    kernel = s.kernels[-1]
    target, source = (s.storage.root(v[0]) for v in (kernel.writes, kernel.reads))
    with pytest.raises(InternalError, match="after writing"):
        schedules.alias(s, target, source)
