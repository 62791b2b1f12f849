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

from cuvil.codegen import cmath
from cuvil.codegen.c import CRenderer, literal
from cuvil.ir import expr as E
from cuvil.ir.primitives import Value
from cuvil.toolchain.compilers import Options, find
from cuvil.toolchain.machine import Machine

Array = npt.NDArray[Any]
Function = Callable[[Array], Array]

REFERENCE: dict[str, tuple[Function, float, float]] = {
    "exp": (np.exp, 1.0, math.inf),
    "log": (np.log, 1.0, math.inf),
    "tanh": (np.tanh, 2.0, math.inf),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 3.0, math.inf),
    "erf": (np.vectorize(math.erf, otypes=[np.float64]), 1.0, math.inf),
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
    near = rng.uniform(-12, 12, 1 << 18).astype(np.float32)
    small = (rng.standard_normal(1 << 16) * 1e-3).astype(np.float32)
    halves = np.arange(-40, 40, 0.5, dtype=np.float32)
    edges = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 88.72, 88.73, -87.3, -103.9, -104.1, 1e-45, -1e-45,
             1.1754944e-38, 3.4028235e38, -3.4028235e38, 8388607.5, 8388608.0, 16777215.0, -8388607.5]  # fmt: skip
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


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Loops over every function, optimised as production code is."""
    folder = tmp_path_factory.mktemp("cmath")
    renderer = CRenderer()
    renderer.math = set(REFERENCE)
    source = renderer.prelude()
    for name in REFERENCE:
        source += (
            f'__attribute__((visibility("default"))) void f_{name}(const float *x, float *y, int64_t n) {{\n'
            f"    CV_SIMD\n    for (int64_t i = 0; i < n; i++) y[i] = cv_{name}_f32(x[i]);\n}}\n"
        )
    return build(source, folder)


def build(source: str, folder: Path) -> ctypes.CDLL:
    (folder / "f.c").write_text(source, encoding="utf-8")
    tools = find("auto", Machine())
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
        error = ulps(y, function(x.astype(np.float64)))
    worst = int(error.argmax())
    print(f"{name}: {error[worst]:.2f} ulp at {x[worst]!r}")
    assert error[worst] <= allowed, f"{name}({x[worst]!r}) is {y[worst]!r}"


def test_every_function_is_tested() -> None:
    assert {name for name in cmath._F32 if name not in ("bits", "sincos")} <= set(REFERENCE)
