"""Element types that C has not: conversions of generated C against ml_dtypes, bit for bit."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from cuvil.codegen import cmath, cnumeric
from cuvil.codegen.c import PRELUDE, c_type
from cuvil.ir.expr import numpy_dtype
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
