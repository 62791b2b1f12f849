"""Einsum: any sum of products over named axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cuvil.ir import expr as E
from cuvil.ir.builder import broadcast_shapes
from cuvil.ir.expr import Expr
from cuvil.ir.primitives import Value, static
from cuvil.ops.contraction import summed
from cuvil.ops.registry import Context, lowering


@dataclass(frozen=True)
class Term:
    """A value whose axes have labels; a label twice means its diagonal."""

    value: Value
    labels: tuple[str, ...]

    def at(self, point: dict[str, Expr]) -> Expr:
        """The element where each label has the index in `point`; sizes of 1 are broadcast."""
        axes = zip(self.labels, self.value.shape)
        return self.value[tuple(E.const(0) if static(size) == 1 else point[n] for n, size in axes)]


@lowering("Einsum")
def einsum(c: Context) -> Value:
    """Sums over the labels that the output lacks, of products of the inputs, two inputs at a time."""
    equation = c.attr("equation")
    text = (equation if isinstance(equation, str) else equation.decode()).replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(c.inputs):
        raise c.error(f"equation '{text}' has {len(parts)} terms for {len(c.inputs)} inputs")
    terms = [_term(c, part, c[i]) for i, part in enumerate(parts)]
    sizes: dict[str, Expr] = {}
    for term in terms:
        for label, size in zip(term.labels, term.value.shape):
            (sizes[label],) = broadcast_shapes([sizes[label]] if label in sizes else [], [size])
    hidden = sorted((n for n in sizes if len(n) > 1), key=lambda n: -int(n[3:]))
    if arrow:
        output = _expand(right, hidden)
    else:
        once = sorted(n for n in sizes if len(n) == 1 and left.count(n) == 1)
        output = (*hidden, *once)
    if unknown := [n for n in output if n not in sizes]:
        raise c.error(f"equation '{text}' has no label '{unknown[0]}' on its left side")
    result = terms[0]
    for position, term in enumerate(terms[1:], 1):
        later = {n for t in terms[position + 1 :] for n in t.labels} | set(output)
        kept = tuple(dict.fromkeys(n for n in (*result.labels, *term.labels) if n in later))
        kept = output if position == len(terms) - 1 else kept
        result = _contract(c, [result, term], kept, sizes)
    return (_contract(c, [result], output, sizes) if len(terms) == 1 else result).value


def _term(c: Context, text: str, value: Value) -> Term:
    named = text.replace("...", "")
    count = value.rank - len(named)
    if count < 0 or (count and "..." not in text) or (named and not named.isalpha()):
        raise c.error(f"term '{text}' does not fit an input of rank {value.rank}")
    return Term(value, _expand(text, [f"...{n}" for n in range(count - 1, -1, -1)]))


def _expand(text: str, hidden: Sequence[str]) -> tuple[str, ...]:
    """The labels of a term; those that an ellipsis stands for are numbered from the right."""
    before, dots, after = text.partition("...")
    return (*before, *(hidden if dots else ()), *after)


def _contract(c: Context, terms: Sequence[Term], kept: tuple[str, ...], sizes: dict[str, Expr]) -> Term:
    """The product of one or two terms, summed over the labels that are not kept."""
    gone = list(dict.fromkeys(n for t in terms for n in t.labels if n not in kept))
    shape = [sizes[n] for n in kept]

    def point(i: Sequence[Expr], r: Sequence[Expr]) -> dict[str, Expr]:
        return {**dict(zip(kept, i)), **dict(zip(gone, r))}

    if len(terms) == 1:
        (term,) = terms
        if gone:
            over = [sizes[n] for n in gone]
            return Term(c.b.reduce("sum", shape, over, lambda i, r: term.at(point(i, r))), kept)
        return Term(c.b.map(shape, lambda *i: term.at(point(i, ()))), kept)
    x, y = terms
    if not gone:
        return Term(c.b.map(shape, lambda *i: x.at(point(i, ())) * y.at(point(i, ()))), kept)
    over = [sizes[n] for n in gone]
    return Term(summed(c.b, shape, over, lambda i, r: (x.at(point(i, r)), y.at(point(i, r)))), kept)
