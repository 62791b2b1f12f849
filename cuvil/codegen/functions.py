"""Kernels as C functions: how they are called, and those that are written once for several kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cuvil.ir.expr import Expr
from cuvil.ir.loops import Kernel
from cuvil.ir.primitives import Value


@dataclass(frozen=True)
class Function:
    """A rendered kernel and how it is called.

    Attributes:
        text: the C function; "" where `same` is called instead.
        pointers: the root values whose addresses are passed, in order.
        symbols: names of the symbolic sizes that are passed after them.
        points: the number of parallel points, an index expression.
        fields: the parameters before ``lo`` and ``hi``, as C declarations without qualifiers.
        same: the name of an earlier function with the same parameters and statements.
    """

    kernel: Kernel
    name: str
    text: str
    pointers: list[Value]
    symbols: list[str]
    points: Expr
    fields: list[tuple[str, str]]
    same: str = ""

    @property
    def callee(self) -> str:
        """The C function that computes the kernel."""
        return self.same or self.name

    @property
    def thunk(self) -> str:
        """The kernel as a task of the pool."""
        return task(self.callee, self.fields, self.kernel.slot is not None)


def task(name: str, fields: Sequence[tuple[str, str]], slot: bool) -> str:
    """The function `name` as a task of the pool: its arguments, `fields`, in a struct; `slot`: it takes the
    number of the thread."""
    declared = " ".join(f"{kind} {field};" for kind, field in fields)
    passed = ", ".join([*(f"a->{field}" for _, field in fields), "slot, lo, hi" if slot else "lo, hi"])
    return (
        f"struct {name}_arguments {{ {declared} }};\n"
        f"static void {name}_task(const void *arguments, cv_idx slot, cv_idx lo, cv_idx hi) {{\n"
        f"    const struct {name}_arguments *const a = arguments;\n"
        f"    (void)slot;\n    {name}({passed});\n}}\n"
    )


class Distinct:
    """Finds kernels that need no function of their own: the layers of a network repeat, and the size of the
    code and the C compiler's work follow the number of different ones."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def __call__(self, f: Function) -> Function:
        """`f`, or, after a function that is like it but for name and comment, `f` that calls that one."""
        _, _, code = f.text.partition("*/\n")
        first = self._names.setdefault(code.replace(f.name, "", 1), f.name)
        return f if first == f.name else replace(f, text="", same=first)
