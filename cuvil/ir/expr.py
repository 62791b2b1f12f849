"""Expressions: the one notation for what an element is and where it lies.

An `Expr` is an interned, immutable node, so structural equality is identity.  Two kinds of
arithmetic share the notation:

* *index arithmetic* on ``int64``: loop variables, symbolic sizes and constants are kept in the
  normal form of a polynomial (`linear`), with ranges known, so that views cancel
  (``(i * 64 + j) // 64`` is ``i``) and bounds can be proved;
* *element arithmetic* on every other type, where only exact simplifications are made.

Longer than other files, because nodes, their normal form and their traversal define each other:
apart they would import each other in a ring.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Union

import ml_dtypes
import numpy as np

from cuvil import limits

if TYPE_CHECKING:
    from cuvil.ir.primitives import Value

INDEX = "int64"
INF = math.inf

Number = Union[int, float, bool]
Operand = Union["Expr", int, float, bool]

UNARY_MATH = frozenset(
    [
        "exp",
        "log",
        "sqrt",
        "tanh",
        "erf",
        "sigmoid",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "asinh",
        "acosh",
        "atanh",
        "floor",
        "ceil",
        "round",
        "trunc",
        "abs",
        "isnan",
        "isinf",
    ]
)
"""Elementary functions of one argument; `round` halves to even."""


class Expr:
    """One node: `op` applied to `args`, of element type `dtype`; `attr` holds what is not an Expr.

    ops: ``const`` (attr: the value), ``var`` (a loop variable; args: its extent), ``sym`` (a
    symbolic size; attr: name; args of one that the data decide: its definition and its bound),
    ``affine`` (attr: (constant, coefficients)), ``mul`` (n-ary on
    indices), ``load`` (attr: the `Value` read; args: one index per axis), ``select``, ``cast``,
    ``bitcast``, arithmetic, comparisons and the names in `UNARY_MATH`.
    """

    __slots__ = ("args", "attr", "dtype", "hi", "lo", "op", "serial")
    op: str
    dtype: str
    args: tuple[Expr, ...]
    attr: Any
    lo: float
    hi: float
    serial: int

    def __repr__(self) -> str:
        from cuvil.ir.printer import show

        return show(self)

    def __add__(self, other: Operand) -> Expr:
        return add(self, other)

    def __radd__(self, other: Operand) -> Expr:
        return add(other, self)

    def __sub__(self, other: Operand) -> Expr:
        return sub(self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return sub(other, self)

    def __mul__(self, other: Operand) -> Expr:
        return mul(self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return mul(other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return binary("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return binary("div", other, self)

    def __floordiv__(self, other: Operand) -> Expr:
        return floordiv(self, other)

    def __mod__(self, other: Operand) -> Expr:
        return mod(self, other)

    def __neg__(self) -> Expr:
        return mul(self, const(-1, INDEX)) if self.dtype == INDEX else unary("neg", self)

    def __lt__(self, other: Operand) -> Expr:
        return lt(self, other)

    def __gt__(self, other: Operand) -> Expr:
        return lt(other, self)

    def __le__(self, other: Operand) -> Expr:
        return le(self, other)

    def __ge__(self, other: Operand) -> Expr:
        return le(other, self)

    def __and__(self, other: Operand) -> Expr:
        return logical("and", self, other)

    def __or__(self, other: Operand) -> Expr:
        return logical("or", self, other)

    @property
    def value(self) -> Any:
        """The value of a constant."""
        assert self.op == "const"
        return self.attr

    @property
    def is_const(self) -> bool:
        return self.op == "const"


LEAVES = frozenset(("var", "sym"))
"""Operations that traversals do not look into: the arguments say what they are, not what they are made of."""

_interned: dict[tuple[Any, ...], Expr] = {}
_serial = 0


def _node(op: str, dtype: str, args: tuple[Expr, ...] = (), attr: Any = None, key: Any = None) -> Expr:
    global _serial
    identity = (op, dtype, tuple(a.serial for a in args), attr if key is None else key)
    found = _interned.get(identity)
    if found is None:
        found = Expr()
        _serial += 1
        found.op, found.dtype, found.args, found.attr, found.serial = op, dtype, args, attr, _serial
        found.lo, found.hi = _range(found)
        if op == "sym" and args:
            found.lo = key[1]
        _interned[identity] = found
    return found


def clear() -> None:
    """Forget all interned nodes; for long-lived processes between two compiles."""
    global _serial
    _interned.clear()
    _serial = 0


_lock = threading.RLock()


@contextmanager
def fresh() -> Iterator[None]:
    """An empty table of nodes for one stage of a compile; also a decorator.  Other threads wait: they
    share the table, and the order of nodes decides what the generated code looks like."""
    with _lock:
        clear()
        yield


@contextmanager
def aside() -> Iterator[None]:
    """A table of nodes for what does not outlive the block; afterwards the table is as it was."""
    global _interned, _serial
    with _lock:
        kept = _interned, _serial
        _interned, _serial = {}, 0
        try:
            yield
        finally:
            _interned, _serial = kept


# --- leaves -------------------------------------------------------------------------------------


@functools.cache
def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy type of a dtype name, the `ml_dtypes` ones included."""
    return np.dtype(getattr(ml_dtypes, dtype)) if hasattr(ml_dtypes, dtype) else np.dtype(dtype)


@functools.cache
def integer_range(dtype: str) -> tuple[int, int]:
    """The least and the largest number of an integer type."""
    info = ml_dtypes.iinfo(numpy_dtype(dtype))
    return int(info.min), int(info.max)


@functools.cache
def is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def const(value: Number, dtype: str = INDEX) -> Expr:
    """A constant, converted to `dtype` (integers wrap)."""
    if dtype == "bool":
        return _node("const", dtype, (), bool(value))
    if is_float(dtype):
        with np.errstate(over="ignore"):
            number = float(numpy_dtype(dtype).type(value))
        return _node("const", dtype, (), number, ("nan",) if number != number else str(number))
    plain = int(value)
    low, high = integer_range(dtype)
    if not low <= plain <= high:
        plain = (plain - low) % (high - low + 1) + low
    return _node("const", dtype, (), plain)


def var(extent: Operand, hint: str = "i") -> Expr:
    """A fresh loop variable that runs over [0, extent)."""
    global _serial
    return _node("var", INDEX, (wrap(extent, INDEX),), hint, (hint, _serial))


def sym(name: str) -> Expr:
    """The symbolic size `name`, at least 0."""
    return _node("sym", INDEX, (), name)


def derived(name: str, definition: Expr, low: int, bound: Expr) -> Expr:
    """A number that is known at run time only: `definition` reads memory.  It is a symbol to everything
    that uses it; generated code checks that it lies within [low, bound]."""
    return _node("sym", INDEX, (definition, bound), name, (name, low))


def wrap(value: Operand, dtype: str) -> Expr:
    """`value` as an Expr; plain numbers become constants of `dtype`."""
    return value if isinstance(value, Expr) else const(value, dtype)


def load(value: Value, indices: Sequence[Operand]) -> Expr:
    """The element of `value` at `indices`, one per axis."""
    args = tuple(wrap(i, INDEX) for i in indices)
    assert len(args) == len(value.shape), f"{value.name}: {len(args)} indices for rank {len(value.shape)}"
    return _node("load", value.dtype, args, value, id(value))


# --- ranges -------------------------------------------------------------------------------------


def _range(e: Expr) -> tuple[float, float]:
    if e.dtype == "bool":
        return (int(e.attr), int(e.attr)) if e.op == "const" else (0, 1)
    if e.dtype != INDEX:
        return -INF, INF
    if e.op == "const":
        return e.attr, e.attr
    if e.op == "var":
        return 0, max(e.args[0].hi - 1, 0)
    if e.op == "sym":
        return 0, e.args[1].hi if e.args else INF
    if e.op == "affine":
        constant, coefficients = e.attr
        lo = hi = float(constant)
        for term, c in zip(e.args, coefficients):
            lo += c * (term.lo if c > 0 else term.hi)
            hi += c * (term.hi if c > 0 else term.lo)
        return lo, hi
    if e.op == "mul":
        if all(a.lo >= 0 for a in e.args):
            return math.prod(a.lo for a in e.args), _prod_hi(e.args)
        return -INF, INF
    if e.op == "floordiv":
        a, b = e.args
        if b.lo > 0 and a.lo >= 0:
            return (a.lo // b.hi if b.hi < INF else 0), (a.hi // b.lo if a.hi < INF else INF)
        if b.is_const and b.attr > 0:
            return (a.lo // b.attr if a.lo > -INF else -INF), (a.hi // b.attr if a.hi < INF else INF)
        return -INF, INF
    if e.op == "mod":
        b = e.args[1]
        return (0, max(b.hi - 1, 0)) if b.lo >= 0 else (-INF, INF)
    if e.op == "min":
        return min(a.lo for a in e.args), min(a.hi for a in e.args)
    if e.op == "max":
        return max(a.lo for a in e.args), max(a.hi for a in e.args)
    if e.op == "cast" and e.args[0].dtype.startswith(("int", "uint")):
        low, high = integer_range(e.args[0].dtype)
        return float(low), float(high)
    if e.op == "select":
        return min(e.args[1].lo, e.args[2].lo), max(e.args[1].hi, e.args[2].hi)
    return -INF, INF


def _prod_hi(args: Iterable[Expr]) -> float:
    result = 1.0
    for a in args:
        if a.hi == 0:
            return 0
        result *= a.hi
    return result


# --- index arithmetic: polynomials ---------------------------------------------------------------

Linear = tuple[int, dict[Expr, int]]


def linear(e: Expr) -> Linear:
    """An index as (constant, {term: coefficient}); terms are not constants nor sums."""
    if e.op == "const":
        return int(e.attr), {}
    if e.op == "affine":
        return e.attr[0], dict(zip(e.args, e.attr[1]))
    return 0, {e: 1}


def from_linear(constant: int, terms: Mapping[Expr, int]) -> Expr:
    """The normal form of ``constant + sum(coefficient * term)``."""
    if any(t.op == "mod" or (t.op == "mul" and any(f.op == "mod" for f in t.args)) for t in terms):
        terms = _rejoin(dict(terms))
    live = sorted(((t, c) for t, c in terms.items() if c), key=lambda item: item[0].serial)
    if not live:
        return const(constant)
    if len(live) == 1 and constant == 0 and live[0][1] == 1:
        return live[0][0]
    coefficients = tuple(c for _, c in live)
    return _node("affine", INDEX, tuple(t for t, _ in live), (constant, coefficients))


def _rejoin(terms: dict[Expr, int]) -> dict[Expr, int]:
    """``c * b * (a // b) + c * (a % b)`` is ``c * a``, where `c` may hold further factors."""
    for t in list(terms):
        rest = list(_factors(t))
        m = next((f for f in rest if f.op == "mod"), None)
        if m is None or t not in terms:
            continue
        rest.remove(m)
        a, b = m.args
        quotient = _node("floordiv", INDEX, (a, b))
        scale = terms[t]
        factors = [*rest, quotient, *(() if b.is_const else _factors(b))]
        partner = (
            factors[0]
            if len(factors) == 1
            else _node("mul", INDEX, tuple(sorted(factors, key=lambda f: f.serial)))
        )
        wanted = scale * b.attr if b.is_const else scale
        if terms.get(partner) != wanted:
            if _widen(terms, t):
                return _rejoin(terms)
            continue
        del terms[t], terms[partner]
        whole = a
        for f in rest:
            whole = whole * f
        constant, more = linear(whole)
        if constant:
            terms[t], terms[partner] = scale, wanted  # no place for a constant here
            continue
        for u, c in more.items():
            terms[u] = terms.get(u, 0) + c * scale
    return terms


def _widen(terms: dict[Expr, int], t: Expr) -> bool:
    """``c * b * ((a % m) // b) + c * (a % b)`` is ``c * (a % m)`` where `b` divides `m`."""
    if t.op != "mod" or not t.args[1].is_const:
        return False
    a, b = t.args
    for u, c in terms.items():
        if u.op == "floordiv" and u.args[1] is b and u.args[0].op == "mod" and u.args[0].args[0] is a:
            m = u.args[0].args[1]
            if m.is_const and m.attr % b.attr == 0 and c == terms[t] * b.attr:
                del terms[u]
                scale = terms.pop(t)
                terms[u.args[0]] = terms.get(u.args[0], 0) + scale
                return True
    return False


def _combine(a: Expr, b: Expr, factor: int) -> Expr:
    constant, terms = linear(a)
    other, others = linear(b)
    for t, c in others.items():
        terms[t] = terms.get(t, 0) + factor * c
    return from_linear(constant + factor * other, terms)


def _index_mul(a: Expr, b: Expr) -> Expr:
    (ca, ta), (cb, tb) = linear(a), linear(b)
    result: dict[Expr, int] = {}

    def put(term: Expr, c: int) -> None:
        result[term] = result.get(term, 0) + c

    for t, c in ta.items():
        if cb:
            put(t, c * cb)
        for u, d in tb.items():
            factors = sorted([*_factors(t), *_factors(u)], key=lambda f: f.serial)
            put(_node("mul", INDEX, tuple(factors)), c * d)
    if ca:
        for u, d in tb.items():
            put(u, ca * d)
    return from_linear(ca * cb, result)


def _factors(term: Expr) -> tuple[Expr, ...]:
    return term.args if term.op == "mul" else (term,)


def upper_bound(e: Expr) -> float:
    """A number that the index `e` never exceeds, using that a variable stays below its extent,
    also where that extent is symbolic."""
    if e.hi < INF:
        return e.hi
    for _ in range(4):
        constant, terms = linear(e)
        replaced = const(constant)
        changed = False
        for term, c in terms.items():
            factors = _factors(term)
            v = next((f for f in factors if f.op == "var"), None)
            if v is not None and c > 0 and all(f.lo >= 0 for f in factors):
                rest = list(factors)
                rest.remove(v)
                new = v.args[0] - 1
                for f in rest:
                    new = new * f
                replaced = replaced + new * c
                changed = True
            elif v is not None and c < 0 and all(f.lo >= 0 for f in factors):
                changed = True  # the term is at most 0
            else:
                replaced = replaced + from_linear(0, {term: c})
        e = replaced
        if e.hi < INF or not changed:
            break
    return e.hi


def floordiv(a: Operand, b: Operand) -> Expr:
    """Integer division rounding down; the divisor is positive for indices."""
    a, b = _pair(a, b)
    if a.dtype != INDEX:
        return _fold("floordiv", a, b) or _node("floordiv", a.dtype, (a, b))
    if b.is_const and b.attr == 1:
        return a
    if a.is_const and b.is_const and b.attr != 0:
        return const(a.attr // b.attr)
    quotient, rest = _split(a, b)
    if rest.lo >= 0 and upper_bound(rest - b) < 0:
        return quotient
    for m, k in _divisors(rest, b):
        coarse, fine = _split(rest, m)
        if fine.lo >= 0 and upper_bound(fine - m) < 0:
            return quotient + floordiv(coarse, k)
    if b.is_const and b.attr > 1:
        constant, terms = linear(rest)
        common = math.gcd(b.attr, *terms.values())
        if common > 1 and terms:
            reduced = from_linear(constant // common, {t: c // common for t, c in terms.items()})
            return quotient + floordiv(reduced, b.attr // common)
        if rest.op == "floordiv" and rest.args[1].is_const:
            return quotient + floordiv(rest.args[0], rest.args[1].attr * b.attr)
    return quotient + _node("floordiv", INDEX, (rest, b))


def mod(a: Operand, b: Operand) -> Expr:
    """Remainder of `floordiv`; has the divisor's sign."""
    a, b = _pair(a, b)
    if a.dtype != INDEX:
        return _fold("mod", a, b) or _node("mod", a.dtype, (a, b))
    if a.is_const and b.is_const and b.attr != 0:
        return const(a.attr % b.attr)
    if b.is_const and b.attr == 1:
        return const(0)
    _, rest = _split(a, b)
    if rest.lo >= 0 and upper_bound(rest - b) < 0:
        return rest
    for m, k in _divisors(rest, b):
        coarse, fine = _split(rest, m)
        if fine.lo >= 0 and upper_bound(fine - m) < 0:
            return mod(coarse, k) * m + fine
    if b.is_const and b.attr > 1:
        constant, terms = linear(rest)
        common = math.gcd(b.attr, constant, *terms.values())
        if common > 1:
            reduced = from_linear(constant // common, {t: c // common for t, c in terms.items()})
            return mod(reduced, b.attr // common) * common
        if rest.op == "mod" and rest.args[1].is_const and rest.args[1].attr % b.attr == 0:
            return mod(rest.args[0], b)
    return _node("mod", INDEX, (rest, b))


def _bounds(e: Expr) -> tuple[float, float]:
    """The range of an index where no symbol is above `limits.MAX_SYMBOL`."""
    symbols = [n for n in walk(e) if n.op == "sym" and n.lo == 0 and n.hi == INF]
    if symbols:
        e = substitute(e, dict.fromkeys(symbols, var(limits.MAX_SYMBOL + 1)))
    return e.lo, e.hi


def _divisors(a: Expr, b: Expr) -> list[tuple[Expr, Expr]]:
    """Pairs (m, k) with ``m * k == b`` where the terms of `a` may be whole multiples of `m` but for a
    small rest: division by b is then division of the multiple by k."""
    if b.is_const:
        found = sorted({math.gcd(b.attr, c) for c in linear(a)[1].values()} - {1, b.attr}, reverse=True)
        return [(const(m), const(b.attr // m)) for m in found if b.attr > 0]
    constant, terms = linear(b)
    if constant or len(terms) != 1:
        return []
    ((monomial, scale),) = terms.items()
    factors = _factors(monomial)
    pairs = [(monomial, const(scale))] if scale > 1 else []
    for n, f in enumerate(factors if len(factors) > 1 else ()):
        pairs.append((product((*factors[:n], *factors[n + 1 :])), f * scale))
    return pairs


def _split(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """(q, r) with ``a == q * b + r``, moving into q the terms that `b` divides."""
    constant, terms = linear(a)
    if b.is_const:
        k = b.attr
        if k <= 0:
            return const(0), a
        inside = {t: c // k for t, c in terms.items() if c % k == 0}
        outside = {t: c for t, c in terms.items() if c % k}
        q0, r0 = divmod(constant, k)
        if not outside or r0 == 0:
            return from_linear(q0, inside), from_linear(r0, outside)
        rest = from_linear(r0, outside)
        if rest.lo >= 0 and rest.hi < k:
            return from_linear(q0, inside), rest
        # prefer the constant that keeps the remainder non-negative and small
        return from_linear(q0, inside), rest
    b_constant, b_terms = linear(b)
    if b_constant != 0 or len(b_terms) != 1:
        quotient, rest = const(0), a
        return quotient, rest
    ((monomial, scale),) = b_terms.items()
    needed = list(_factors(monomial))
    quotient_terms: dict[Expr, int] = {}
    rest_terms: dict[Expr, int] = {}
    for t, c in terms.items():
        factors = list(_factors(t))
        remaining = list(factors)
        try:
            for f in needed:
                remaining.remove(f)
        except ValueError:
            rest_terms[t] = c
            continue
        if c % scale:
            rest_terms[t] = c
            continue
        if not remaining:
            q: Expr = const(1)
        else:
            q = remaining[0] if len(remaining) == 1 else _node("mul", INDEX, tuple(remaining))
        if q.is_const:
            quotient_terms[const(1)] = quotient_terms.get(const(1), 0) + c // scale
        else:
            quotient_terms[q] = quotient_terms.get(q, 0) + c // scale
    unit = quotient_terms.pop(const(1), 0)
    return from_linear(unit, quotient_terms), from_linear(constant, rest_terms)


# --- arithmetic on any type -----------------------------------------------------------------------


def _pair(a: Operand, b: Operand) -> tuple[Expr, Expr]:
    if isinstance(a, Expr):
        return a, wrap(b, a.dtype)
    assert isinstance(b, Expr)
    return wrap(a, b.dtype), b


_NUMPY_BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
    "floordiv": np.floor_divide, "mod": np.mod, "pow": np.power, "band": np.bitwise_and,
    "bor": np.bitwise_or, "bxor": np.bitwise_xor, "lt": np.less, "le": np.less_equal, "eq": np.equal,
}  # fmt: skip


def _fold(op: str, a: Expr, b: Expr) -> Expr | None:
    """The constant result of a binary operator on two constants, or None."""
    if not (a.is_const and b.is_const):
        return None
    if op in ("floordiv", "mod", "div") and b.attr == 0:
        return None
    if op == "div" and not is_float(a.dtype):
        size = abs(a.attr) // abs(b.attr)
        return const(size if (a.attr < 0) == (b.attr < 0) else -size, a.dtype)
    kind = numpy_dtype(a.dtype)
    with np.errstate(all="ignore"):
        left, right = kind.type(a.attr), kind.type(b.attr)
        result = left / right if op == "div" else _NUMPY_BINARY[op](left, right)
    if op in ("lt", "le", "eq"):
        return const(bool(result), "bool")
    return const(result.item(), a.dtype)


def binary(op: str, a: Operand, b: Operand) -> Expr:
    """A binary operator on elements of one type: add sub mul div min max pow band bor bxor shl shr
    fmod (C's remainder)."""
    a, b = _pair(a, b)
    assert a.dtype == b.dtype, f"{op} of {a.dtype} and {b.dtype}"
    if a.dtype == INDEX and op in ("add", "sub", "mul"):
        return _index_mul(a, b) if op == "mul" else _combine(a, b, 1 if op == "add" else -1)
    folded = _fold(op, a, b) if op in _NUMPY_BINARY or op == "div" else None
    if folded is not None:
        return folded
    if op in ("min", "max") and a.dtype == INDEX:
        if a is b:
            return a
        difference = a - b
        if upper_bound(difference) <= 0:
            return a if op == "min" else b
        if upper_bound(b - a) <= 0:
            return b if op == "min" else a
        for low, high in ((a, b), (b, a)):
            if high.op in ("min", "max") and low in high.args:
                return high if high.op == op else low
            if high.is_const and _bounds(low)[1] <= high.attr:
                return low if op == "min" else high
    if op in ("div", "mul") and b.is_const and b.attr == 1:
        return a
    if op == "mul" and a.is_const and a.attr == 1:
        return b
    return _node(op, a.dtype, (a, b))


def add(a: Operand, b: Operand) -> Expr:
    return binary("add", a, b)


def sub(a: Operand, b: Operand) -> Expr:
    return binary("sub", a, b)


def mul(a: Operand, b: Operand) -> Expr:
    return binary("mul", a, b)


def minimum(a: Operand, b: Operand) -> Expr:
    return binary("min", a, b)


def maximum(a: Operand, b: Operand) -> Expr:
    return binary("max", a, b)


def unary(op: str, a: Expr) -> Expr:
    """neg, not, bnot, or one of `UNARY_MATH`."""
    if op == "neg" and a.is_const:
        return const(-a.attr, a.dtype)
    if op == "not":
        if a.is_const:
            return const(not a.attr, "bool")
        if a.op == "not":
            return a.args[0]
    dtype = "bool" if op in ("isnan", "isinf", "not") else a.dtype
    return _node(op, dtype, (a,))


def lt(a: Operand, b: Operand) -> Expr:
    a, b = _pair(a, b)
    if a.dtype == INDEX:
        difference = a - b
        if upper_bound(difference) < 0:
            return const(True, "bool")
        if upper_bound(-difference) <= 0:
            return const(False, "bool")
    return _fold("lt", a, b) or _node("lt", "bool", (a, b))


def le(a: Operand, b: Operand) -> Expr:
    a, b = _pair(a, b)
    if a.dtype == INDEX:
        return lt(a, b + 1)
    return _fold("le", a, b) or _node("le", "bool", (a, b))


def eq(a: Operand, b: Operand) -> Expr:
    a, b = _pair(a, b)
    if a.dtype == INDEX:
        if a is b:
            return const(True, "bool")
        difference = a - b
        if upper_bound(difference) < 0 or upper_bound(-difference) < 0:
            return const(False, "bool")
    return _fold("eq", a, b) or _node("eq", "bool", (a, b))


def ne(a: Operand, b: Operand) -> Expr:
    return unary("not", eq(a, b))


def logical(op: str, a: Operand, b: Operand) -> Expr:
    """``and``, ``or`` on bools."""
    a, b = wrap(a, "bool"), wrap(b, "bool")
    for x, y in ((a, b), (b, a)):
        if x.is_const:
            return y if x.attr == (op == "and") else x
    return a if a is b else _node(op, "bool", (a, b))


def select(condition: Expr, yes: Operand, no: Operand) -> Expr:
    """``condition ? yes : no``; only the chosen side is evaluated."""
    yes, no = _pair(yes, no)
    if condition.is_const:
        return yes if condition.attr else no
    if yes is no:
        return yes
    assert yes.dtype == no.dtype, f"select of {yes.dtype} and {no.dtype}"
    return _node("select", yes.dtype, (condition, yes, no))


def cast(a: Expr, dtype: str) -> Expr:
    """Conversion as C does it (floats truncate towards zero, integers wrap)."""
    if a.dtype == dtype:
        return a
    if dtype == INDEX and a.op == "cast" and a.args[0].dtype == INDEX and a.dtype.startswith(("int", "uint")):
        info, (lo, hi) = ml_dtypes.iinfo(numpy_dtype(a.dtype)), _bounds(a.args[0])
        if info.min <= lo and hi <= info.max:
            return a.args[0]
    if a.is_const and not (is_float(a.dtype) and not is_float(dtype) and not math.isfinite(a.attr)):
        return const(
            a.attr != 0 if dtype == "bool" else int(a.attr) if not is_float(dtype) else a.attr, dtype
        )
    return _node("cast", dtype, (a,))


def bitcast(a: Expr, dtype: str) -> Expr:
    """The same bits as another type of the same width."""
    return a if a.dtype == dtype else _node("bitcast", dtype, (a,))


# --- traversal ------------------------------------------------------------------------------------


def rebuild(e: Expr, args: Sequence[Expr]) -> Expr:
    """`e` with other arguments, simplified anew."""
    op = e.op
    if op == "affine":
        result = const(e.attr[0])
        for a, c in zip(args, e.attr[1]):
            result = result + a * c
        return result
    if op == "mul" and e.dtype == INDEX:
        result = args[0]
        for a in args[1:]:
            result = result * a
        return result
    if op == "load":
        return load(e.attr, args)
    if op == "floordiv":
        return floordiv(args[0], args[1])
    if op == "mod":
        return mod(args[0], args[1])
    if op == "lt":
        return lt(args[0], args[1])
    if op == "le":
        return le(args[0], args[1])
    if op == "eq":
        return eq(args[0], args[1])
    if op in ("and", "or"):
        return logical(op, args[0], args[1])
    if op == "select":
        return select(args[0], args[1], args[2])
    if op == "cast":
        return cast(args[0], e.dtype)
    if op == "bitcast":
        return bitcast(args[0], e.dtype)
    if op in LEAVES:
        return e
    if len(args) == 2:
        return binary(op, args[0], args[1])
    if len(args) == 1:
        return unary(op, args[0])
    return e


def transform(e: Expr, rule: Callable[[Expr], Expr | None], memo: dict[Expr, Expr] | None = None) -> Expr:
    """Rewrite bottom-up: `rule` sees each node with rewritten arguments and returns its
    replacement, or None to keep it.  Extents of variables and definitions of symbols are left alone."""
    memo = {} if memo is None else memo
    stack = [e]
    while stack:
        node = stack[-1]
        if node in memo:
            stack.pop()
            continue
        children = () if node.op in LEAVES else node.args
        pending = [a for a in children if a not in memo]
        if pending:
            stack.extend(pending)
            continue
        args = [memo[a] for a in children]
        new = node if all(x is y for x, y in zip(args, children)) else rebuild(node, args)
        replaced = rule(new)
        memo[node] = new if replaced is None else replaced
        stack.pop()
    return memo[e]


def substitute(e: Expr, mapping: Mapping[Expr, Expr]) -> Expr:
    """`e` with variables (or any nodes) replaced."""
    return transform(e, mapping.get) if mapping else e


def walk(*roots: Expr) -> Iterable[Expr]:
    """Every distinct node below `roots`, each once, arguments first; not the extents of variables nor
    the definitions of symbols."""
    seen: set[Expr] = set()
    stack = [(r, False) for r in reversed(roots)]
    while stack:
        node, done = stack.pop()
        if done:
            yield node
            continue
        if node in seen:
            continue
        seen.add(node)
        stack.append((node, True))
        if node.op not in LEAVES:
            stack.extend((a, False) for a in reversed(node.args))


def loads(*roots: Expr) -> list[Expr]:
    """The distinct loads below `roots`."""
    return [e for e in walk(*roots) if e.op == "load"]


def variables(*roots: Expr) -> set[Expr]:
    """The distinct loop variables below `roots`."""
    return {e for e in walk(*roots) if e.op == "var"}


def size_loads(*roots: Expr) -> list[Expr]:
    """The loads that compute the data-dependent symbols below `roots`, extents of variables included."""
    found: dict[Expr, None] = {}
    stack, seen = list(roots), set(roots)
    while stack:
        for node in walk(stack.pop()):
            below = node.args[:1] if node.op in LEAVES else ()
            if node.op == "sym" and below:
                found.update(dict.fromkeys(loads(*below)))
            stack.extend(a for a in below if a not in seen)
            seen.update(below)
    return list(found)


def capacity(size: Expr) -> Expr:
    """A size that `size` never exceeds, whatever its data-dependent symbols are between their limits.
    Symbols that nothing bounds get `limits.DATA_SIZE`; generated code checks that too."""
    return _extreme(size, True) if depends_on_data(size) else size


def depends_on_data(*roots: Expr) -> bool:
    """Whether an index can be known only when the program runs on its data."""
    return any(e.op == "load" or (e.op == "sym" and e.args) for e in walk(*roots))


def _extreme(e: Expr, up: bool) -> Expr:
    """The largest (or smallest) that an index can be over its data-dependent symbols: interval arithmetic."""
    if not depends_on_data(e):
        return e
    if e.op == "sym":
        return largest(e) if up else const(int(e.lo))
    if e.op == "affine":
        result = const(e.attr[0])
        for term, c in zip(e.args, e.attr[1]):
            result = result + _extreme(term, up == (c > 0)) * c
        return result
    if e.op == "mul":
        if all(a.lo >= 0 for a in e.args):
            return product(_extreme(a, up) for a in e.args)
        size = product(maximum(_extreme(a, True), -_extreme(a, False)) for a in e.args)
        return size if up else -size
    if e.op == "floordiv":
        a, b = e.args
        if not depends_on_data(b):
            return floordiv(_extreme(a, up), b)
        if up:
            return floordiv(maximum(_extreme(a, True), 0), maximum(_extreme(b, False), 1))
        return const(0) if a.lo >= 0 else minimum(_extreme(a, False), 0)
    if e.op == "mod":
        return maximum(_extreme(e.args[1], True) - 1, 0) if up else const(0)
    if e.op in ("min", "max"):
        return binary(e.op, *(_extreme(a, up) for a in e.args))
    if e.op == "select":
        yes, no = (_extreme(a, up) for a in e.args[1:])
        if not depends_on_data(e.args[0]):
            return select(e.args[0], yes, no)
        return maximum(yes, no) if up else minimum(yes, no)
    return const(limits.DATA_SIZE) if up else const(int(e.lo) if e.lo > -INF else -limits.MAX_SYMBOL)


def largest(symbol: Expr) -> Expr:
    """The most that a data-dependent symbol can be as the size of something in memory."""
    bound = symbol.args[1]
    unbounded = bound.is_const and bound.attr >= limits.MAX_SYMBOL
    return const(limits.DATA_SIZE) if unbounded else capacity(bound)


def product(sizes: Iterable[Operand]) -> Expr:
    """The product of sizes, 1 where there are none."""
    result: Expr = const(1)
    for s in sizes:
        result = result * s
    return result


def evaluate(e: Expr, bindings: Mapping[str, int]) -> int:
    """The number an index expression has when its symbols are bound."""
    result = transform(e, lambda n: const(bindings[n.attr]) if n.op == "sym" and n.attr in bindings else None)
    if not result.is_const:
        raise ValueError(f"not a number under {dict(bindings)}: {result}")
    return int(result.attr)
