"""Elementary functions and integer arithmetic of generated C against numpy in double precision."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from codegen.sandbox import Case, isa
from codegen.sandbox import Program as Sandbox

from cuvil.codegen import cmath
from cuvil.codegen.c import C_TYPES, PRELUDE, CRenderer, literal
from cuvil.ir import evaluate
from cuvil.ir import expr as E
from cuvil.ir.builder import Builder
from cuvil.ir.primitives import Program
from cuvil.schedule.plan import schedule
from cuvil.toolchain.compilers import Options, find
from cuvil.toolchain.machine import Machine

Array = npt.NDArray[Any]
Function = Callable[[Array], Array]

REFERENCE: dict[str, tuple[Function, float, float]] = {
    "exp": (np.exp, 1.1, math.inf),
    "log": (np.log, 1.0, math.inf),
    "tanh": (np.tanh, 6.0, math.inf),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 2.5, math.inf),
    "erf": (np.vectorize(math.erf, otypes=[np.float64]), 6.5, math.inf),
    "sin": (np.sin, 2.0, 2.0**30),
    "cos": (np.cos, 2.0, 2.0**30),
    "tan": (np.tan, 4.0, 2.0**30),
    "sqrt": (np.sqrt, 0.5, math.inf),
    "abs": (np.abs, 0.0, math.inf),
    "floor": (np.floor, 0.0, math.inf),
    "ceil": (np.ceil, 0.0, math.inf),
    "trunc": (np.trunc, 0.0, math.inf),
    "round": (np.rint, 0.0, math.inf),
}
"""Per function: the reference, the largest error in ulp as documented, the largest argument it holds for."""


def points() -> Array:
    """Evenly spaced bit patterns over all floats, the usual range densely, and the special values."""
    patterns = (np.arange(1 << 19, dtype=np.uint64) * 8191 + 1).astype(np.uint32).view(np.float32)
    rng = np.random.default_rng(1)
    near = rng.uniform(-20, 20, 1 << 20).astype(np.float32)
    small = (rng.standard_normal(1 << 16) * 1e-3).astype(np.float32)
    halves = np.arange(-40, 40, 0.5, dtype=np.float32)
    edges = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1.0, -1.0, 88.37, 88.38, 88.72, 88.73, 89.5, 1e3,
             -87.3, -88.37, -88.38, -88.72, -103.9, -104.1, -1e3, 87.0, 87.1, 3.9, 3.93, 9.0, 9.02,
             1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, -3.4028235e38, 8388607.5, 8388608.0, 16777215.0,
             -8388607.5]  # fmt: skip
    return np.concatenate([patterns, near, small, halves, np.nextafter(halves, np.inf, dtype=np.float32),
                           np.array(edges, np.float32)])  # fmt: skip


def ulps(got: Array, wanted: Array) -> Array:
    """Error in units in the last place of the float32 nearest to `wanted` (float64)."""
    with np.errstate(over="ignore"):
        nearest = wanted.astype(np.float32)
    unit = np.spacing(np.abs(nearest)).astype(np.float64)
    both = np.isfinite(got) & np.isfinite(nearest)
    error = np.zeros(got.shape)
    error[both] = np.abs(got[both].astype(np.float64) - wanted[both]) / unit[both]
    same = (got == nearest) | (np.isnan(got) & np.isnan(nearest))
    largest = np.abs(np.where(np.isinf(got), nearest, got)) == np.float32(3.4028235e38)
    error[~both & ~same & ~largest] = np.inf
    return error


@pytest.fixture(scope="module", params=["baseline", "native"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Loops over every function, optimised as production code is, for the least CPU (on x86-64 one without
    fused multiply-add) and for this one."""
    folder = tmp_path_factory.mktemp("cmath")
    renderer = CRenderer()
    renderer.math = set(REFERENCE)
    source = renderer.prelude()
    for name in REFERENCE:
        source += (
            f'__attribute__((visibility("default"))) void f_{name}(const float *x, float *y, int64_t n) {{\n'
            f"    CV_SIMD\n    for (int64_t i = 0; i < n; i++) y[i] = cv_{name}_f32(x[i]);\n}}\n"
        )
    return build(source, folder, request.param)


def build(source: str, folder: Path, cpu: str = "native") -> ctypes.CDLL:
    (folder / "f.c").write_text(source, encoding="utf-8")
    tools = find("auto", Machine(cpu=cpu))
    tools.compile(folder / "f.c", folder / "f.o", Options(opt_level="3"))
    tools.link_shared([folder / "f.o"], folder / "f.so", libs=("m",))
    return ctypes.CDLL(str(folder / "f.so"))


@pytest.mark.parametrize("name", REFERENCE)
def test_float32_functions(name: str, library: ctypes.CDLL) -> None:
    function, allowed, limit = REFERENCE[name]
    x = points()
    x = x[~(np.abs(x) > limit) & (np.isfinite(x) | (limit == math.inf))]
    y = np.empty_like(x)
    library[f"f_{name}"](
        ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_int64(x.size)
    )
    with np.errstate(all="ignore"):
        wanted = function(x.astype(np.float64))
    error = ulps(y, wanted)
    if name == "sigmoid":  # 0 stands for all that is smaller
        error[(wanted < 2e-38) & (y == 0)] = 0
    worst = int(error.argmax())
    print(f"{name}: {error[worst]:.2f} ulp at {x[worst]!r}")
    assert error[worst] <= allowed, f"{name}({x[worst]!r}) is {y[worst]!r}"
    if function in (np.floor, np.ceil, np.trunc, np.rint):
        other = (np.signbit(y) != np.signbit(wanted)) & ~np.isnan(x)
        assert not other.any(), f"{name}({x[other][0]!r}) is {y[other][0]!r}"


def test_every_function_is_tested() -> None:
    assert {name for name in cmath._F32 if name not in ("bits", "least", "sincos")} <= set(REFERENCE)


# --- integers, comparisons, conversions ------------------------------------------------------------------

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def interesting(dtype: str) -> tuple[Array, Array]:
    """All pairs of edge values of a type, and random ones."""
    rng = np.random.default_rng(2)
    if dtype.startswith("float"):
        edges = np.array(
            [0, -0.0, 1, -1, 2.5, -2.5, 1e-30, 3e30, np.inf, -np.inf, np.nan, 7, -7, 0.5, 1.5], dtype
        )
        more = rng.standard_normal(20).astype(dtype) * 100
    else:
        info = np.iinfo(dtype)
        signed = [-1, -2, -3, -7, info.min, info.min + 1] if info.min else []
        edges = np.array([0, 1, 2, 3, 7, 8, *signed, info.max, info.max - 1], dtype)
        more = rng.integers(info.min, info.max, 20, dtype=dtype, endpoint=True)
    values = np.concatenate([edges, more])
    a, b = np.meshgrid(values, values, indexing="ij")
    return a.reshape(-1).copy(), b.reshape(-1).copy()


def computed(
    bodies: dict[str, Callable[[E.Expr, E.Expr], E.Expr]], a: Array, b: Array, folder: Path
) -> dict[str, tuple[Array, Array]]:
    """Per body its values from the compiled loop and from `cuvil.ir.evaluate`, for `a` and `b`."""
    program = Program("ints")
    builder = Builder(program)
    size = E.const(a.size)
    left, right = builder.input("a", str(a.dtype), [size]), builder.input("b", str(b.dtype), [size])
    arrays = {left: a, right: b}
    wanted = {}
    for name, body in bodies.items():
        value = builder.map([size], lambda i, body=body: body(left[i], right[i]), name)
        program.outputs.append(value)
        wanted[name] = evaluate.value(value, arrays.__getitem__)
    case = Case("ints", schedule(program), {"a": a, "b": b})
    results = Sandbox([case], folder, isa("plain"), sanitize=()).run(0)
    return {name: (got, wanted[name]) for name, got in zip(bodies, results)}


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_operators(dtype: str, tmp_path: Path) -> None:
    a, b = interesting(dtype)
    if dtype == "int64":  # overflow of int64, of no use as an index, is left to the compiler
        a, b = np.clip(a, -(1 << 31), 1 << 31), np.clip(b, -(1 << 31), 1 << 31)
    unsigned = dtype.startswith("u")
    smallest = a != np.iinfo(dtype).min
    keep = smallest | (b.astype(object) != -1)  # the one quotient that does not fit
    a, b = a[keep], b[keep]
    divide: dict[str, Callable[[E.Expr, E.Expr], E.Expr]] = {
        "floordiv": E.floordiv, "mod": E.mod, "div": lambda x, y: E.binary("div", x, y),
    }  # fmt: skip
    bodies = divide | {
        "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y,
        "min": E.minimum, "max": E.maximum, "lt": E.lt, "le": E.le, "eq": E.eq,
        "band": lambda x, y: E.binary("band", x, y), "bor": lambda x, y: E.binary("bor", x, y),
        "bxor": lambda x, y: E.binary("bxor", x, y), "bnot": lambda x, y: E.unary("bnot", x),
        "third": lambda x, y: E.floordiv(x, 3), "rest": lambda x, y: E.mod(x, 3),
    }  # fmt: skip
    if not unsigned and dtype != "int64":
        bodies["neg"] = lambda x, y: E.unary("neg", x)
        bodies["below"] = lambda x, y: E.floordiv(x, -3)
    found = computed(bodies, a, b, tmp_path)
    for name, (got, wanted) in found.items():
        use = b != 0 if name in divide else np.ones(a.shape, bool)
        wrong = np.flatnonzero((got != wanted) & use)
        assert not wrong.size, (name, a[wrong[0]], b[wrong[0]], got[wrong[0]], wanted[wrong[0]])
    assert all((found[name][0][b == 0] == 0).all() for name in divide)  # no trap
    exact = np.array([x // y if y else 0 for x, y in zip(a.tolist(), b.tolist())], dtype)
    assert np.array_equal(found["floordiv"][0], exact)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_float_operators(dtype: str, tmp_path: Path) -> None:
    a, b = interesting(dtype)
    bodies: dict[str, Callable[[E.Expr, E.Expr], E.Expr]] = {
        "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y,
        "div": lambda x, y: x / y,
        "lt": E.lt, "le": E.le, "eq": E.eq, "isnan": lambda x, y: E.unary("isnan", x),
        "isinf": lambda x, y: E.unary("isinf", x), "neg": lambda x, y: -x,
        "abs": lambda x, y: E.unary("abs", x),
        "select": lambda x, y: E.select(E.lt(x, y), x, y), "fmod": lambda x, y: E.binary("fmod", x, y),
    }  # fmt: skip
    for name, (got, wanted) in computed(bodies, a, b, tmp_path).items():
        assert got.dtype == wanted.dtype
        assert np.array_equal(got, wanted, equal_nan=got.dtype != bool), name


@pytest.mark.parametrize("dtype", [*INTEGERS, "float32", "float64"])
def test_conversions(dtype: str, tmp_path: Path) -> None:
    """Every type to every other; from floats only what fits."""
    a, b = interesting(dtype)
    if dtype.startswith("float"):
        a = np.clip(np.nan_to_num(a), 0, 100)
    targets = [*INTEGERS, "float32", "float64", "bool"]
    bodies: dict[str, Callable[[E.Expr, E.Expr], E.Expr]] = {
        t: lambda x, y, t=t: E.cast(x, t) for t in targets if t != dtype
    }
    for name, (got, wanted) in computed(bodies, a, b, tmp_path).items():
        assert np.array_equal(got, wanted), name


# --- constants --------------------------------------------------------------------------------------------


def test_literals_are_exact(tmp_path: Path) -> None:
    values: dict[str, list[Any]] = {
        "float32": [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1.1754942e-38,
                    3.4028234663852886e38, 0.1,
                    -1 / 3, 1e6, 16777217.0, 123456.789],
        "float64": [0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 2.2250738585072014e-308,
                    1.7976931348623157e308,
                    0.1, -1 / 3, 1e22, 2.0**53 + 1],
        "int8": [-128, 127, 0, -1], "uint8": [0, 255], "int16": [-32768, 32767], "uint16": [65535],
        "int32": [-(2**31), 2**31 - 1, -1], "uint32": [2**32 - 1, 2**31], "bool": [True, False],
        "int64": [-(2**63), 2**63 - 1, 2**31, -(2**31) - 1, -1], "uint64": [2**64 - 1, 2**63, 0],
    }  # fmt: skip
    source = PRELUDE
    for dtype, numbers in values.items():
        texts = ", ".join(literal(E.const(v, dtype).attr, dtype) for v in numbers)
        source += (
            f'__attribute__((visibility("default"))) const {C_TYPES[dtype]} v_{dtype}[] = {{{texts}}};\n'
        )
    library = build(source, tmp_path)
    for dtype, numbers in values.items():
        wanted = np.array(numbers, dtype)
        found = (ctypes.c_char * wanted.nbytes).in_dll(library, f"v_{dtype}")
        got = np.frombuffer(bytes(found), dtype)
        same = (got == wanted) & (np.signbit(got) == np.signbit(wanted)) if dtype != "bool" else got == wanted
        assert (same | ((got != got) & (wanted != wanted))).all(), (dtype, got, wanted)
