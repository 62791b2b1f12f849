"""Element types that C has not: conversions of generated C against ml_dtypes, bit for bit."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from codegen.sandbox import Case, Program, isa
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from cuvil.codegen import cmath, cnumeric
from cuvil.codegen.c import PRELUDE, c_type
from cuvil.errors import UnsupportedError
from cuvil.ir import expr as E
from cuvil.ir import primitives
from cuvil.ir.builder import Builder
from cuvil.ir.expr import Expr, numpy_dtype
from cuvil.ops.elementwise import power_of_two, saturated
from cuvil.schedule.plan import schedule
from cuvil.session import compile as compile_model
from cuvil.toolchain.compilers import Options, find
from cuvil.toolchain.machine import Machine

Array = npt.NDArray[Any]

FLOATS = [name for name in cnumeric.SMALL if "float" in name]
INTEGERS = [name for name in cnumeric.SMALL if "int" in name]
CARRIERS = {"float32": "float", "int32": "int32_t"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Loops over every conversion, optimised as production code is."""
    source = PRELUDE + cmath.text({"bits"}) + cnumeric.text(set(cnumeric.SMALL))
    for name, kind in cnumeric.SMALL.items():
        storage, carrier = c_type(name), CARRIERS[kind.carrier]
        for way, a, b in (("from", storage, carrier), ("to", carrier, storage)):
            source += (
                f'__attribute__((visibility("default"))) void {way}_{name}'
                f"(const {a} *x, {b} *y, int64_t n) {{\n"
                f"    CV_SIMD\n    for (int64_t i = 0; i < n; i++) y[i] = cv_{way}_{name}(x[i]);\n}}\n"
            )
    folder = tmp_path_factory.mktemp("small")
    Path(folder, "f.c").write_text(source, encoding="utf-8")
    tools = find("auto", Machine())
    tools.compile(folder / "f.c", folder / "f.o", Options(opt_level="3"))
    tools.link_shared([folder / "f.o"], folder / "f.so")
    return ctypes.CDLL(str(folder / "f.so"))


def call(library: ctypes.CDLL, name: str, x: Array, dtype: str) -> Array:
    y = np.empty(x.shape, dtype)
    library[name](ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_int64(x.size))
    return y


def codes(name: str) -> Array:
    """Every code of a type, in an array of that type."""
    size = {"bfloat16": 1 << 16, "float4_e2m1fn": 16, "int4": 16, "uint4": 16, "int2": 4, "uint2": 4}
    stored = np.uint16 if name == "bfloat16" else np.uint8
    return np.arange(size.get(name, 256), dtype=stored).view(numpy_dtype(name))


def floats(name: str) -> Array:
    """float32 values: bit patterns over the whole range, the type's values, what lies half-way between
    two of them, and the neighbours of all these, with both signs."""
    patterns = (np.arange(1 << 18, dtype=np.uint64) * 16381 + 5).astype(np.uint32).view(np.float32)
    values = codes(name).astype(np.float32)
    values = np.unique(np.abs(values[np.isfinite(values)]))
    with np.errstate(over="ignore"):
        halves = ((values[:-1].astype(np.float64) + values[1:]) / 2).astype(np.float32)
        beyond = (values[-1:] + (values[-1:] - values[-2:-1]) / 2, values[-1:] * 1.5, values[-1:] * 2)
        near = np.concatenate([values, halves, *beyond])
        near = np.concatenate([near, np.nextafter(near, np.inf), np.nextafter(near, -np.inf)])
    edges = np.array([0, 1e-45, 1.1754944e-38, 3.4028235e38, np.inf, np.nan], np.float32)
    return np.concatenate([patterns, near, -near, edges, -edges]).astype(np.float32)


@pytest.mark.parametrize("name", FLOATS)
def test_every_code_is_read_as_its_value(name: str, library: ctypes.CDLL) -> None:
    x = codes(name)
    got, wanted = call(library, f"from_{name}", x, "float32"), x.astype(np.float32)
    same = (got.view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(got) & np.isnan(wanted))
    assert same.all(), x[~same]


@pytest.mark.parametrize("name", FLOATS)
def test_floats_are_rounded_as_ml_dtypes_rounds_them(name: str, library: ctypes.CDLL) -> None:
    x = floats(name)
    stored = "uint16" if name == "bfloat16" else "uint8"
    got = call(library, f"to_{name}", x, stored)
    with np.errstate(all="ignore"):
        wanted = x.astype(numpy_dtype(name)).view(stored)
    wrong = got != wanted
    assert not wrong.any(), [(x[i], got[i], wanted[i]) for i in np.flatnonzero(wrong)[:8]]


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_of_few_bits(name: str, library: ctypes.CDLL) -> None:
    x = codes(name)
    assert (call(library, f"from_{name}", x, "int32") == x.astype(np.int32)).all()
    info = ml_dtypes.iinfo(numpy_dtype(name))
    wide = np.arange(-300, 300, dtype=np.int32)
    got = call(library, f"to_{name}", wide, "uint8")
    assert (got == wide.astype(numpy_dtype(name)).view(np.uint8)).all()
    assert got.view(numpy_dtype(name)).astype(int).min() == info.min
    padded = (x.view(np.uint8) | 0xF0).astype(np.uint8)
    assert (call(library, f"from_{name}", padded, "int32") == x.astype(np.int32)).all()


# --- in programs ------------------------------------------------------------------------------------------

Bodies = Mapping[str, Callable[..., Expr]]


def case(name: str, bodies: Bodies, *arrays: Array) -> Case:
    """The program of `bodies`, each a function of the elements of `arrays` at one place."""
    program = primitives.Program(name)
    builder = Builder(program)
    size = E.const(arrays[0].size)
    feeds = {f"x{n}": a for n, a in enumerate(arrays)}
    read = [builder.input(n, a.dtype.name, [size]) for n, a in feeds.items()]
    for output, body in bodies.items():
        value = builder.map([size], lambda i, body=body: body(*(v[i] for v in read)), output)
        program.outputs.append(value)
    return Case(name, schedule(program), feeds)


def computed(bodies: Bodies, folder: Path, *arrays: Array) -> dict[str, Array]:
    """What generated code makes of `bodies`, under sanitizers."""
    return dict(zip(bodies, Program([case("p", bodies, *arrays)], folder, isa("plain")).run(0)))


def assert_same(got: Array, wanted: Array, x: Array) -> None:
    """Equal bits, where both are not NaN."""
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    unsigned = f"u{got.dtype.itemsize}"
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    wrong = np.flatnonzero((got.view(unsigned) != wanted.view(unsigned)) & ~(np.isnan(a) & np.isnan(b)))
    assert not wrong.size, [(x[i], got[i], wanted[i]) for i in wrong[:8]]


def test_bfloat16_operators_round_each_result(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    edges = [0.0, -0.0, 1, -1, 2.5, 1e-30, 3e38, np.inf, -np.inf, np.nan, 7, -7, 257, 0.0078125, 1e-40]
    values = np.concatenate([edges, rng.standard_normal(40) * 10]).astype(ml_dtypes.bfloat16)
    a, b = (m.reshape(-1) for m in np.meshgrid(values, values))
    third = ml_dtypes.bfloat16(1 / 3)
    with np.errstate(all="ignore"):
        wanted: dict[str, tuple[Callable[..., Expr], Array]] = {
            "sum": (lambda x, y: x + y, a + b),
            "difference": (lambda x, y: x - y, a - b),
            "product": (lambda x, y: x * y, a * b),
            "quotient": (lambda x, y: x / y, a / b),
            "chain": (lambda x, y: (x + y) * y - x * (1 / 3), (a + b) * b - a * third),
            "less": (lambda x, y: x < y, a < b),
            "equal": (lambda x, y: E.eq(x, y), a == b),
            "nan": (lambda x, y: E.unary("isnan", x), np.isnan(a)),
            "infinite": (lambda x, y: E.unary("isinf", x), np.isinf(a)),
            "negative": (lambda x, y: -x, -a),
            "absolute": (lambda x, y: E.unary("abs", x), np.abs(a)),
            "chosen": (lambda x, y: E.select(x < y, x, y), np.where(a < b, a, b)),
            "root": (lambda x, y: E.unary("sqrt", x), np.sqrt(a)),
            "wide": (lambda x, y: E.cast(x, "float32") * E.cast(y, "float32"),
                     a.astype(np.float32) * b.astype(np.float32)),
            "truth": (lambda x, y: E.cast(x, "bool"), a.astype(bool)),
        }  # fmt: skip
    got = computed({name: body for name, (body, _) in wanted.items()}, tmp_path, a, b)
    for name, (_, array) in wanted.items():
        assert_same(got[name], array, a)


def test_every_type_converts_to_every_other(tmp_path: Path) -> None:
    """Of floats to integers only what fits."""
    others = ["float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"]
    small = [*cnumeric.SMALL]
    sources = {name: codes(name) for name in small}
    sources |= {t: np.array([*range(-8, 8)] if t[0] != "u" else [*range(16)]).astype(t) for t in others[3:]}
    sources |= {t: np.linspace(-20, 20, 801).astype(t) for t in others[:3]}
    cases, wanted = [], []
    for source, x in sources.items():
        targets = [t for t in small + others if t != source and (source in small or t in small)]
        if "float" in source:  # bfloat16 has 1 << 16 values
            with np.errstate(invalid="ignore"):
                values = x.astype(np.float64)
            x = x[np.isfinite(values) & (np.abs(values) < 3e4)][:: 7 if source == "bfloat16" else 1]
        bodies: dict[str, Callable[..., Expr]] = {t: lambda v, t=t: E.cast(v, t) for t in targets}
        cases.append(case(source, bodies, x))
        with np.errstate(all="ignore"):
            exact = x.astype(cnumeric.SMALL[source].carrier) if source in small else x
            wanted.append({t: exact.astype(numpy_dtype(t)) for t in targets})
    program = Program(cases, tmp_path, isa("plain"))
    for number, expected in enumerate(wanted):
        fed = cases[number].feeds["x0"]
        for got, (target, array) in zip(program.run(number), expected.items()):
            size = fed.astype(np.float64)
            keep = np.abs(size) < 127 if target.endswith("int8") else np.ones(fed.shape, bool)
            if target == "uint8":
                keep &= size > -1
            assert_same(got[keep], array[keep], fed[keep])


@pytest.mark.parametrize("source", ["float32", "float64", "float16"])
def test_saturation(source: str, tmp_path: Path) -> None:
    """Against ONNX's own conversion; beyond the range comes the largest value, a NaN stays."""
    rng = np.random.default_rng(4)
    edges = [
        0.0,
        -0.0,
        np.nan,
        np.inf,
        -np.inf,
        447,
        448,
        464,
        465,
        5e4,
        57344,
        61439,
        61440,
        6.5e4,
        -6.5e4,
        1e-7,
    ]
    x = np.concatenate([edges, rng.standard_normal(500) * 200]).astype(source)
    targets = [t for t in FLOATS if t.startswith("float8") and t != "float8_e8m0fnu"]
    bodies: dict[str, Callable[..., Expr]] = {t: lambda v, t=t: saturated(v, t) for t in targets}
    for target, got in computed(bodies, tmp_path, x).items():
        assert_same(got, numpy_helper.saturate_cast(x, numpy_dtype(target)), x)
        assert np.isfinite(got[3:5].astype(np.float32)).all()


def test_powers_of_two(tmp_path: Path) -> None:
    """Every rounding of ONNX, against its own conversion."""
    x = np.concatenate(
        [floats("float8_e8m0fnu")[:: 1 << 6], codes("float8_e8m0fnu").astype(np.float32) * 1.5]
    )
    bodies: dict[str, Callable[..., Expr]] = {
        f"{mode} {saturate}": lambda v, m=mode, s=saturate: power_of_two(v, s, m)
        for mode in ("up", "down", "nearest")
        for saturate in (True, False)
    }
    with np.errstate(all="ignore"):
        for name, got in computed(bodies, tmp_path, x).items():
            mode, saturate = name.split()
            assert_same(got, numpy_helper.to_float8e8m0(x, saturate == "True", mode), x)


def test_constants_are_stored_as_codes(tmp_path: Path) -> None:
    values = {"bfloat16": [1.5, -np.inf], "float8_e5m2": [0.375, -np.inf], "int4": [-8, 7], "uint2": [3, 0],
              "float4_e2m1fn": [-6, 0.5], "float8_e8m0fnu": [2.0**-127, 4]}  # fmt: skip
    x = np.array([True, False])
    bodies: dict[str, Callable[..., Expr]] = {
        t: lambda c, t=t, v=v: E.select(c, E.const(v[0], t), E.const(v[1], t)) for t, v in values.items()
    }
    for name, got in computed(bodies, tmp_path, x).items():
        assert_same(got, np.array(values[name]).astype(numpy_dtype(name)), x)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "int4"])
def test_no_arithmetic_where_onnx_has_none(name: str, tmp_path: Path) -> None:
    x = codes(name)
    with pytest.raises(UnsupportedError, match=f"arithmetic on element type {name} is not supported"):
        computed({"y": lambda v: v + v}, tmp_path, x)


# --- in models --------------------------------------------------------------------------------------------


def test_compiled_models_take_and_give_small_types(tmp_path: Path) -> None:
    """4-bit weights in blocks, microscaled 4-bit floats, 8-bit floats out, against ONNX's evaluator."""
    rng = np.random.default_rng(5)
    constants = {
        "w": rng.integers(-8, 8, (64, 12)).astype(ml_dtypes.int4),
        "ws": (rng.random((2, 12)) * 0.25).astype(ml_dtypes.bfloat16),
        "wz": rng.integers(-2, 2, (2, 12)).astype(ml_dtypes.int4),
        "ms": np.array([[1, 2], [4, 0.5]]).astype(ml_dtypes.float8_e8m0fnu),
        "qs": np.float32(0.01),
        "qz": np.array(0).astype(ml_dtypes.float8_e5m2fnuz),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "wd"], ["y"]),
        helper.make_node(
            "DequantizeLinear", ["m", "ms"], ["md"], block_size=32, output_dtype=TensorProto.FLOAT
        ),
        helper.make_node("QuantizeLinear", ["md", "qs", "qz"], ["q"], saturate=0),
        helper.make_node("Transpose", ["m"], ["mt"], perm=[1, 0]),
    ]
    types = {"x": ("BFLOAT16", ["n", 64]), "m": ("FLOAT4E2M1", [2, 64])}
    results = {"y": ("BFLOAT16", ["n", 12]), "q": ("FLOAT8E5M2FNUZ", [2, 64]), "mt": ("FLOAT4E2M1", [64, 2])}
    inputs, outputs = (
        [helper.make_tensor_value_info(n, TensorProto.DataType.Value(t), d) for n, (t, d) in group.items()]
        for group in (types, results)
    )
    initializers = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    onnx.save(model, tmp_path / "small.onnx")
    session = compile_model(tmp_path / "small.onnx")
    assert [t.type for t in session.get_inputs()] == ["tensor(bfloat16)", "tensor(float4e2m1)"]
    assert [t.type for t in session.get_outputs()] == [
        "tensor(bfloat16)", "tensor(float8e5m2fnuz)", "tensor(float4e2m1)",
    ]  # fmt: skip
    feeds = {
        "x": rng.standard_normal((3, 64)).astype(ml_dtypes.bfloat16),
        "m": rng.standard_normal((2, 64)).astype(ml_dtypes.float4_e2m1fn),
    }
    y, q, mt = session.run(None, feeds)
    wanted = ReferenceEvaluator(model).run(None, feeds)
    exact = wanted[0].astype(np.float64)
    assert np.abs(y.astype(np.float64) - exact).max() <= 4 * 2.0**-8 * np.abs(exact).max()
    assert_same(q.reshape(-1), wanted[1].reshape(-1), q.reshape(-1))
    assert_same(mt.reshape(-1), feeds["m"].T.reshape(-1), mt.reshape(-1))
