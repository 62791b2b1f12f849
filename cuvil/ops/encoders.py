"""Tables of labels and categories, of the domain ``ai.onnx.ml``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import Stmt, Store
from cuvil.ir.primitives import Value
from cuvil.ops.characters import Local, each, find, search
from cuvil.ops.ml import DOMAIN, Array, picked, table
from cuvil.ops.registry import Context, lowering


@lowering("OneHotEncoder", domain=DOMAIN, strings=True)
@lowering("OneHotEncoder", domain=DOMAIN)
def one_hot_encoder(c: Context) -> Value:
    """A new last axis, 1 at the element's category; all 0 for one that is not listed, also where the
    node says that there is none such (zeros = 0).  Numbers are compared as integers."""
    b, x = c.b, c.x
    name = "cats_strings" if x.text else "cats_int64s"
    categories = c.attr(name) or []
    if not categories or len(set(categories)) < len(categories):
        raise c.error(f"{name} must be given for this type of input, each category once")
    if x.text:
        places = find(b, x, categories)
        return b.map(
            [*places.shape, len(categories)], lambda *i: E.cast(E.eq(places[i[:-1]], i[-1]), "float32")
        )
    known = b.constant(table(c, name, dtype="int64"))
    return b.map(
        [*x.shape, len(categories)],
        lambda *i: E.cast(E.eq(E.cast(x[i[:-1]], "int64"), known[i[-1]]), "float32"),
    )


DEFAULTS: dict[str, tuple[str, Any]] = {
    "strings": ("default_string", "_Unused"),
    "int64s": ("default_int64", -1),
    "floats": ("default_float", -0.0),
}
"""The default for values of each kind: its attribute, and what it is where that is omitted."""


@lowering("LabelEncoder", "CategoryMapper", domain=DOMAIN, strings=True)
@lowering("LabelEncoder", "CategoryMapper", domain=DOMAIN)
def label_encoder(c: Context) -> Value:
    """Each element's value in a table of keys, the first one where a key is listed twice; a default for
    others.  Keys that are a range of integers are looked up directly, others by bisection."""
    keys, values, default = _table(c)
    if keys.size != values.size or not keys.size:
        raise c.error(f"{keys.size} keys and {values.size} values, there must be as many and at least one")
    if (keys.dtype == object) != c.x.text:
        raise c.error(f"the keys are {'numbers' if c.x.text else 'strings'}, the input's elements are not")
    if not c.x.text and values.dtype != object:
        return _looked_up(
            c, keys, values, E.const(np.asarray(default, values.dtype).item(), str(values.dtype))
        )
    places = (
        find(c.b, c.x, keys.tolist()) if c.x.text else _looked_up(c, keys, np.arange(keys.size), E.const(-1))
    )
    known = c.b.constant(np.append(values, np.array([default], values.dtype)))
    behind = E.const(values.size)
    place = c.b.elementwise(lambda p: E.select(E.lt(p, 0), behind, p), places)
    return picked(c.b, known, place)


def _table(c: Context) -> tuple[Array, Array, Any]:
    """Keys, values and the default, strings as arrays of objects: of an encoder, or of the older forms
    that map between strings and integers in the direction that the input's type says."""
    if c.node.op == "LabelEncoder" and "classes_strings" not in c.node.attrs:
        (_, keys), (kind, values) = _listed(c, "keys"), _listed(c, "values")
        if c.attr("default_tensor") is not None:
            return keys, values, np.asarray(c.attr("default_tensor")).reshape(-1)[0]
        if kind == "tensor":
            kind = {"O": "strings", "f": "floats"}.get(values.dtype.kind, "int64s")
        return keys, values, c.attr(*DEFAULTS[kind or "int64s"])
    strings = np.array(c.attr("classes_strings") or c.attr("cats_strings") or [], object)
    numbers = np.array(c.attr("cats_int64s", range(strings.size)), np.int64)
    if c.x.text:
        return strings, numbers, c.attr(*DEFAULTS["int64s"])
    return numbers, strings, c.attr(*DEFAULTS["strings"])


def _listed(c: Context, side: str) -> tuple[str, Array]:
    """The ``keys`` or the ``values``, and the ending of their attribute."""
    for ending, dtype in (("tensor", None), ("int64s", "int64"), ("floats", "float32"), ("strings", object)):
        given = c.attr(f"{side}_{ending}")
        if given is not None and np.size(given):
            return ending, np.asarray(given, dtype).reshape(-1)
    return "", np.zeros(0)


def _looked_up(c: Context, keys: Array, values: Array, other: Expr) -> Value:
    """The values of numbers by numeric keys, `other` where there is no such key."""
    kind = c.x.dtype
    keys, first = np.unique(keys.astype(kind), return_index=True)
    values = values[first]
    span = 0 if E.is_float(kind) else int(keys[-1]) - int(keys[0]) + 1
    if 0 < span <= 4 * keys.size + 64 and abs(int(keys[0])) < 1 << 30:
        return _by_range(c, keys, values, other)
    return _by_bisection(c, keys, values, other)


def _by_range(c: Context, keys: Array, values: Array, other: Expr) -> Value:
    """The values by key less the smallest, with the default in gaps and at both ends."""
    low, high = int(keys[0]) - 1, int(keys[-1]) + 1
    entries = np.full(high - low + 1, other.value, values.dtype)
    entries[keys.astype(np.int64) - low] = values
    known = c.b.constant(entries)

    def value(key: Expr) -> Expr:
        return known[E.minimum(E.maximum(E.cast(key, E.INDEX), low), high) - low]

    return c.b.elementwise(value, c.x)


def _by_bisection(c: Context, keys: Array, values: Array, other: Expr) -> Value:
    """The value of the first of the sorted keys that is not below the element, if it is equal."""
    b, x, odd = c.b, c.x, other
    if keys.dtype.kind == "f" and np.isnan(keys[-1]):
        odd = E.const(values[-1].item(), other.dtype)
        keys, values = keys[:-1], values[:-1]
    if not keys.size:
        return b.elementwise(lambda v: E.select(E.unary("isnan", v), odd, other), x)
    known, found = b.constant(keys), b.constant(values)

    def body(y: Value) -> Sequence[Stmt]:
        low = Local("low")

        def element(*i: Expr) -> Sequence[Stmt]:
            key, entry = E.load(x, i), E.minimum(low.now, keys.size - 1)
            value = E.select(E.eq(known[entry], key), found[entry], other)
            if odd is not other:
                value = E.select(E.unary("isnan", key), odd, value)
            return [*search(keys.size, low, lambda e: ([], E.lt(known[e], key))), Store(y, i, value)]

        return [low.declaration, *each(x.shape, element)]

    return b.opaque([x, known, found], [(other.dtype, x.shape)], body)[0]
