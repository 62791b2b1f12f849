"""What string operators are made of: an element's bytes, its letters, its place in a table.

A string tensor's last axis holds the bytes of an element, padded with NUL (`cuvil.ir.text`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from cuvil.ir import expr as E
from cuvil.ir.builder import Builder, broadcast_load
from cuvil.ir.expr import Expr, Operand
from cuvil.ir.loops import Declare, For, If, Stmt, Store, While
from cuvil.ir.primitives import Value, static

NUL = E.const(0, "uint8")


def capacity(x: Value) -> int:
    """The bytes that an element of a string tensor can have."""
    return int(x.shape[-1].attr)


def strings(b: Builder, shape: Sequence[Expr], width: int, body: Callable[..., Expr]) -> Value:
    """The string tensor of `shape` whose bytes are ``body(*indices, position)``."""
    value = b.map([*shape, width], body)
    value.text = True
    return value


def byte(x: Value, at: Sequence[Expr], position: Operand) -> Expr:
    """The byte at `position`, at least 0, of the element of `x` that broadcasting pairs with `at`; NUL
    behind its capacity."""
    place = E.wrap(position, E.INDEX)
    return E.select(E.lt(place, capacity(x)), broadcast_load(x, (*at, place)), NUL)


def length(b: Builder, x: Value) -> Value:
    """The bytes of each element, without the padding; int64."""
    return b.reduce("sum", x.shape[:-1], [x.shape[-1]], lambda i, w: E.cast(E.ne(x[(*i, *w)], NUL), E.INDEX))


def each(sizes: Sequence[Expr], body: Callable[..., Sequence[Stmt]]) -> tuple[Stmt, ...]:
    """Loops over `sizes` around ``body(*indices)``."""
    axes = [E.const(0) if static(s) == 1 else E.var(s) for s in sizes]
    inner = tuple(body(*axes))
    for v in reversed(axes):
        if v.op == "var":
            inner = (For(v, v.args[0], inner),)
    return inner


class Local:
    """A variable of a loop nest, an index or a number of another type."""

    def __init__(self, name: str, dtype: str = E.INDEX) -> None:
        self.value = Value(name, dtype, ())
        self.now = E.load(self.value, ())
        self.declaration = Declare(self.value)

    def set(self, to: Operand) -> Stmt:
        """The statement that gives it the value `to`."""
        return Store(self.value, (), E.wrap(to, self.value.dtype))


# --- tables -----------------------------------------------------------------------------------------

Comparison = Callable[[Expr], tuple[Sequence[Stmt], Expr]]
"""Statements, and a condition that holds after them: the entry at an index is below what is sought."""


def search(count: int, low: Local, below: Comparison) -> tuple[Stmt, ...]:
    """Leave in `low` the number of entries of a sorted table of `count` that are below what is sought."""
    high, middle = Local("high"), Local("middle")
    before, condition = below(middle.now)
    step = (
        middle.set(E.floordiv(low.now + high.now, 2)),
        *before,
        If(condition, (low.set(middle.now + 1),), (high.set(middle.now),)),
    )
    start = (high.declaration, middle.declaration, low.set(0), high.set(count))
    return (*start, While(E.lt(low.now, high.now), step))


def find(b: Builder, x: Value, words: Sequence[str]) -> Value:
    """The index in `words` of each element of the string tensor `x`, the first where it is there twice,
    and -1 where it is not there; int64."""
    first: dict[str, int] = {}
    for number, word in enumerate(words):
        first.setdefault(word, number)
    if not first:
        return b.map(x.shape[:-1], lambda *i: E.const(-1))
    ordered = sorted(first, key=str.encode)
    table = b.constant(np.array(ordered, object))
    places = b.constant(np.array([first[word] for word in ordered]))
    width = max(capacity(x), capacity(table))

    def body(y: Value) -> Sequence[Stmt]:
        low, w = Local("low"), Local("w")

        def element(*at: Expr) -> Sequence[Stmt]:
            def below(entry: Expr) -> tuple[Sequence[Stmt], Expr]:
                theirs, ours = byte(table, (entry,), w.now), byte(x, at, w.now)
                same = E.lt(w.now, width) & E.eq(theirs, ours) & E.ne(ours, NUL)
                return [w.set(0), While(same, (w.set(w.now + 1),))], E.lt(w.now, width) & E.lt(theirs, ours)

            entry = E.minimum(low.now, len(ordered) - 1)
            theirs, ours = byte(table, (entry,), w.now), byte(x, at, w.now)
            return [
                *search(len(ordered), low, below),
                w.set(0),
                While(E.lt(w.now, width) & E.eq(theirs, ours), (w.set(w.now + 1),)),
                Store(y, at, E.select(E.eq(w.now, width), E.load(places, (entry,)), E.const(-1))),
            ]

        return [low.declaration, w.declaration, *each(x.shape[:-1], element)]

    (y,) = b.opaque([x, table, places], [(E.INDEX, x.shape[:-1])], body)
    return y


# --- letters ----------------------------------------------------------------------------------------

PAGE = 256
"""Code points of one page of a table of letters."""

LAST_LETTER = 0x1FFFF
"""No letter with another case comes after it in Unicode."""


def changed(string: str, upper: bool, ascii_only: bool = False) -> str:
    """`string` in upper or lower case; a letter whose other case is several letters stays, and with
    `ascii_only` every letter beyond ASCII."""
    return "".join(c if ascii_only and not c.isascii() else _other(c, upper) for c in string)


def _other(character: str, upper: bool) -> str:
    """Unicode's simple mapping; Python has the full one, which differs where it gives several letters."""
    other = character.upper() if upper else character.lower()[0]
    if len(other) > 1:
        other = character.title()
    return other if len(other) == 1 else character


@functools.cache
def _tables(upper: bool) -> tuple[np.ndarray, np.ndarray]:
    """(row of each page, differences by [row, code point within the page]) between a letter and its other
    case, by Unicode's simple mappings; row 0 changes nothing."""
    letters = ((code, ord(_other(chr(code), upper))) for code in range(LAST_LETTER + 1))
    differences = {code: other - code for code, other in letters if other != code}
    used = sorted({code // PAGE for code in differences})
    pages = np.zeros(used[-1] + 1, np.uint8)
    pages[used] = np.arange(1, len(used) + 1)
    rows = np.zeros((len(used) + 1, PAGE), np.int32)
    for code, difference in differences.items():
        rows[pages[code // PAGE], code % PAGE] = difference
    return pages, rows


def change_case(b: Builder, x: Value, upper: bool, ascii_only: bool = False) -> Value:
    """The string tensor `x` in upper or lower case, with `ascii_only` letters beyond ASCII as they are."""
    return _ascii_case(b, x, upper) if ascii_only else _unicode_case(b, x, upper)


def _ascii_case(b: Builder, x: Value, upper: bool) -> Value:
    first = ord("a") if upper else ord("A")

    def body(*i: Expr) -> Expr:
        code = x[i]
        other = E.binary("bxor", code, E.const(0x20, "uint8"))
        return E.select(E.le(first, code) & E.le(code, first + 25), other, code)

    return strings(b, x.shape[:-1], capacity(x), body)


def _unicode_case(b: Builder, x: Value, upper: bool) -> Value:
    """Elements may be half as long again: some letters of two bytes have another case of three."""
    page_rows, differences = _tables(upper)
    pages, rows = b.constant(page_rows), b.constant(differences)
    width = capacity(x) + capacity(x) // 2

    def body(y: Value) -> Sequence[Stmt]:
        source, target, code = Local("source"), Local("target"), Local("code")
        row = E.cast(E.load(pages, (E.floordiv(code.now, PAGE),)), E.INDEX)
        other = code.now + E.cast(E.load(rows, (row, E.mod(code.now, PAGE))), E.INDEX)

        def element(*at: Expr) -> Sequence[Stmt]:
            count, point = _decode(x, at, source.now)
            step = (
                code.set(point),
                source.set(source.now + count),
                If(E.lt(code.now, len(page_rows) * PAGE), (code.set(other),)),
                *_encode(y, at, target, code.now),
            )
            return [
                *each([E.const(width)], lambda w: [Store(y, (*at, w), NUL)]),
                source.set(0),
                target.set(0),
                While(E.ne(byte(x, at, source.now), NUL), step),
            ]

        return [*(v.declaration for v in (source, target, code)), *each(x.shape[:-1], element)]

    (y,) = b.opaque([x, pages, rows], [("uint8", (*x.shape[:-1], E.const(width)))], body)
    y.text = True
    return y


def _decode(x: Value, at: Sequence[Expr], position: Expr) -> tuple[Expr, Expr]:
    """(bytes, code point) of the UTF-8 character at a position of an element; what is malformed gives
    some number below 2**21."""
    first, *rest = (E.cast(byte(x, at, position + k), E.INDEX) for k in range(4))
    count, point = E.const(4), E.mod(first, 8)
    for tail in rest:
        point = point * 64 + E.mod(tail, 64)
    for size, limit, mask in ((3, 0xF0, 16), (2, 0xE0, 32), (1, 0xC0, 256)):
        shorter = E.mod(first, mask)
        for tail in rest[: size - 1]:
            shorter = shorter * 64 + E.mod(tail, 64)
        count = E.select(E.lt(first, limit), E.const(size), count)
        point = E.select(E.lt(first, limit), shorter, point)
    return count, point


def _encode(y: Value, at: Sequence[Expr], target: Local, point: Expr) -> tuple[Stmt, ...]:
    """Append a code point below 2**21 in UTF-8 to an element of `y` whose bytes so far are `target`."""

    def put(*numbers: Expr) -> tuple[Stmt, ...]:
        stored = [Store(y, (*at, target.now + k), E.cast(n, "uint8")) for k, n in enumerate(numbers)]
        return (
            If(E.le(target.now + len(numbers), capacity(y)), tuple(stored)),
            target.set(target.now + len(numbers)),
        )

    def tail(shift: int) -> Expr:
        return E.mod(E.floordiv(point, 1 << shift), 64) + 0x80

    two = put(E.floordiv(point, 1 << 6) + 0xC0, tail(0))
    three = put(E.floordiv(point, 1 << 12) + 0xE0, tail(6), tail(0))
    four = put(E.floordiv(point, 1 << 18) + 0xF0, tail(12), tail(6), tail(0))
    longer = If(E.lt(point, 0x800), two, (If(E.lt(point, 0x10000), three, four),))
    return (If(E.lt(point, 0x80), put(point), (longer,)),)
