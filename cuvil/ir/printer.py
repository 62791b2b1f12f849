"""Text of the intermediate forms, for error messages, traces and tests."""

from __future__ import annotations

from collections.abc import Iterable

from cuvil.ir.expr import Expr

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "lt": "<", "le": "<=",
    "eq": "==", "and": "&&", "or": "||", "band": "&", "bor": "|", "bxor": "^", "shl": "<<", "shr": ">>",
}  # fmt: skip


def show(e: Expr) -> str:
    """One expression in a C-like notation."""
    if e.op == "const":
        return str(e.attr)
    if e.op == "var":
        return f"{e.attr}{e.serial}"
    if e.op == "sym":
        return str(e.attr)
    if e.op == "affine":
        constant, coefficients = e.attr
        parts = [show(t) if c == 1 else f"{c}*{show(t)}" for t, c in zip(e.args, coefficients)]
        return "(" + " + ".join(parts + ([str(constant)] if constant else [])) + ")"
    if e.op == "load":
        return f"{e.attr.name}[{', '.join(map(show, e.args))}]"
    if e.op == "cast":
        return f"{e.dtype}({show(e.args[0])})"
    if e.op in _INFIX:
        return "(" + f" {_INFIX[e.op]} ".join(map(show, e.args)) + ")"
    return f"{e.op}({', '.join(map(show, e.args))})"


def show_shape(shape: Iterable[Expr]) -> str:
    """A shape as ``[1, N, 64]``."""
    return "[" + ", ".join(map(show, shape)) + "]"
