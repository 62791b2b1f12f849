"""The C renderer: kernels as C99 functions.

A kernel becomes ``static void name(pointers, sizes, lo, hi)``, which runs points [lo, hi) of its
parallel loops.  This file knows expressions, statements and types; it knows no operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cuvil.codegen import cmath, cnumeric, staging
from cuvil.codegen.cnumeric import SMALL
from cuvil.codegen.functions import Function
from cuvil.codegen.names import comment, size_symbol
from cuvil.errors import UnsupportedError
from cuvil.ir import expr as E
from cuvil.ir.expr import Expr
from cuvil.ir.loops import (
    Accumulate,
    Declare,
    For,
    If,
    Kernel,
    Let,
    Micro,
    Stmt,
    Store,
    While,
    expressions,
    walk,
)  # fmt: skip
from cuvil.ir.primitives import Value, combine, elements, static
from cuvil.schedule.storage import Storage, row_major

C_TYPES = {
    "float32": "float", "float64": "double", "int8": "int8_t", "uint8": "uint8_t", "int16": "int16_t",
    "uint16": "uint16_t", "int32": "int32_t", "uint32": "uint32_t", "int64": "int64_t",
    "uint64": "uint64_t", "bool": "uint8_t", "float16": "_Float16",
}  # fmt: skip

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "eq": "==", "and": "&&",
    "or": "||", "band": "&", "bor": "|", "bxor": "^", "shl": "<<", "shr": ">>",
}  # fmt: skip

PRELUDE = """#include <stddef.h>
#include <stdint.h>

typedef ptrdiff_t cv_idx;
#define CV_ALIGN64 __attribute__((aligned(64)))
#define CV_NOINLINE __attribute__((noinline))
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed" /* a loop that stays scalar is no mistake */
#define CV_SIMD _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define CV_SIMD _Pragma("GCC ivdep")
#else
#define CV_SIMD
#endif
#ifdef CUVIL_PROFILE /* called after each kernel, with its name */
extern void cuvil_tick(const char *kernel);
#define CV_TICK(kernel) cuvil_tick(kernel)
#else
#define CV_TICK(kernel) (void)0
#endif
"""

_OPAQUE = frozenset((*E.LEAVES, "load"))
"""Operations whose arguments are no values that a statement computes."""

_LEVEL = frozenset(("erf", "tanh"))
"""Functions that do not magnify the relative error of their argument; theirs is some ulp anyway."""


def c_type(dtype: str) -> str:
    """The C type of an element type.

    Raises:
        UnsupportedError: there is none in the generated code.
    """
    try:
        return SMALL[dtype].storage if dtype in SMALL else C_TYPES[dtype]
    except KeyError:
        raise UnsupportedError(f"element type {dtype} is not supported in generated C") from None


def literal(value: float | int | bool, dtype: str) -> str:
    """A constant in C, exact."""
    if dtype == "bool":
        return "1" if value else "0"
    if dtype in SMALL:
        return str(cnumeric.code(value, dtype))
    if E.is_float(dtype):
        suffix = "" if dtype == "float64" else "f"
        if value != value:
            return f'__builtin_nan{suffix}("")'
        if value in (float("inf"), float("-inf")):
            return f"{'-' if value < 0 else ''}__builtin_inf{suffix}()"
        number = float(value)
        plain = repr(number) if number == int(number) and abs(number) < 1e6 else number.hex()
        return f"{plain}{suffix}" if value >= 0 and not plain.startswith("-") else f"({plain}{suffix})"
    if dtype in ("int64", "uint64"):
        if value == -(1 << 63):
            return "INT64_MIN"
        return f"INT64_C({value})" if dtype == "int64" else f"UINT64_C({value})"
    if dtype == "uint32":
        return f"UINT32_C({value})"
    return f"({value})" if value < 0 else str(value)


@dataclass
class Scope:
    """Names within one function."""

    pointers: dict[Value, str] = field(default_factory=dict)
    locals: dict[Value, str] = field(default_factory=dict)
    variables: dict[Expr, str] = field(default_factory=dict)
    temporaries: int = 0
    loops: int = 0


class CRenderer:
    """Prints kernels over a storage map.

    Attributes:
        storage: where the values of the kernels being printed live.
        math: float32 functions that the printed kernels use.
        libm: some function of the C library is called.
        half: float16 values are compared.
        small: types that C lacks whose values are read or written.
        bits: text of the functions that reinterpret bits, by name.
        micros: text of the micro-kernels used, by name.
        staged: loops over bytes are taken apart (`staging`).
        bytes: the types that such loops read and write.
    """

    def __init__(self, storage: Storage | None = None) -> None:
        self.storage = storage or Storage()
        self.math: set[str] = set()
        self.libm = False
        self.half = False
        self.small: set[str] = set()
        self.bits: dict[str, str] = {}
        self.micros: dict[str, str] = {}
        self.staged, self.bytes = False, set[str]()
        self.scope = Scope()

    # --- functions ---

    def kernel(self, kernel: Kernel, name: str, aliased: Iterable[Value] = ()) -> Function:
        """One kernel as a C function; pointers to `aliased` roots share memory with another."""
        self.scope = Scope()
        roots, written = self._roots(kernel)
        shared = set(aliased)
        symbols = sorted(
            {e.attr for s in self._all_expressions(kernel) for e in self._with_extents(s) if e.op == "sym"}
        )
        parameters: list[str] = []
        fields: list[tuple[str, str]] = []
        for n, root in enumerate(roots):
            pointer = f"b{n}"
            self.scope.pointers[root] = pointer
            qualifier = "" if root in shared else "restrict "
            constant = "" if root in written else "const "
            parameters.append(f"{constant}{c_type(root.dtype)} *{qualifier}{pointer}")
            fields.append((f"{constant}{c_type(root.dtype)} *", pointer))
        parameters += [f"cv_idx {size_symbol(s)}" for s in symbols]
        fields += [("cv_idx", size_symbol(s)) for s in symbols]
        if kernel.slot is not None:
            self.scope.variables[kernel.slot] = "slot"
            parameters.append("cv_idx slot")
        lines = [f"/* {comment(', '.join(kernel.origin) or kernel.name)} */"]
        # not inlined into the function that runs all kernels: compilers need far too long for a huge one
        lines.append(f"static CV_NOINLINE void {name}({', '.join([*parameters, 'cv_idx lo, cv_idx hi'])}) {{")
        first, each, after = self._decode(kernel.parallel)
        loop = "for (cv_idx point = lo; point < hi; point++)" if kernel.parallel else "if (lo < hi)"
        lines += [*first, f"    {loop} {{", *each]
        body = self._block(kernel.body, 2)
        unused = {self.scope.variables[v] for v in kernel.parallel} - {*re.findall(r"\w+", " ".join(body))}
        lines += [*(f"        (void){n};" for n in sorted(unused)), *body, *after, "    }", "}"]
        points = E.product(v.args[0] for v in kernel.parallel)
        return Function(kernel, name, "\n".join(lines) + "\n", roots, symbols, points, fields)

    def _decode(self, parallel: Sequence[Expr]) -> tuple[list[str], list[str], list[str]]:
        """The loop variables of a point, the last one fastest: lines before the loop, and at the start and
        the end of its body.  Where extents are symbolic they are counted on: dividing by these is slow."""
        counts = any(not v.args[0].is_const for v in parallel[1:])
        pad, kind, rest = ("    ", "cv_idx", "lo") if counts else ("        ", "const cv_idx", "point")
        lines = ["    if (lo >= hi) return;"] if counts else []
        step = ""
        for position in range(len(parallel) - 1, -1, -1):
            name, extent = self._declare_variable(parallel[position]), self.index(parallel[position].args[0])
            lines.append(f"{pad}{kind} {name} = {rest}{f' % {extent}' if position else ''};")
            step += f"if (++{name} == {extent}) {{ {name} = 0; " if position else f"{name}++;"
            if position > 1:
                lines.append(f"{pad}const cv_idx point{position} = {rest} / {extent};")
            rest = f"point{position}" if position > 1 else f"{rest} / {extent}"
        if counts:
            return lines, [], [f"        {step}{' }' * (len(parallel) - 1)}"]
        return [], lines, []

    def _roots(self, kernel: Kernel) -> tuple[list[Value], set[Value]]:
        """The roots that a kernel touches, written ones first, and the set of those."""
        local = {s.target for s in walk(kernel.body) if isinstance(s, Declare)}
        written: dict[Value, None] = {}
        read: dict[Value, None] = {}
        for s in walk(kernel.body):
            if isinstance(s, (Store, Accumulate)) and s.target not in local:
                written[self.storage.root(s.target)] = None
            if isinstance(s, Micro):
                for value, _ in s.reads:
                    if value not in local:
                        read[self.storage.root(value)] = None
                if s.writes[0] not in local:
                    written[self.storage.root(s.writes[0])] = None
            for e in expressions(s):
                for node in E.loads(e):
                    if node.attr not in local:
                        read[self.storage.root(node.attr)] = None
        return list(dict.fromkeys([*written, *read])), set(written)

    def _all_expressions(self, kernel: Kernel) -> Iterable[Expr]:
        yield from kernel.parallel
        for s in walk(kernel.body):
            if isinstance(s, For):
                yield s.var
            for e in expressions(s):
                yield e
                for node in E.loads(e):
                    if self.storage.root(node.attr) in self.scope.pointers or node.attr not in self._locals(
                        kernel
                    ):
                        yield self.storage.address(node.attr, node.args)[1]
            if isinstance(s, (Store, Accumulate)) and s.target not in self._locals(kernel):
                yield self.storage.address(s.target, s.indices)[1]
            if isinstance(s, Micro):
                for value, at in (*s.reads, s.writes):
                    if value not in self._locals(kernel):
                        yield self.storage.address(value, at)[1]

    def _locals(self, kernel: Kernel) -> set[Value]:
        return {s.target for s in walk(kernel.body) if isinstance(s, Declare)}

    def _with_extents(self, e: Expr) -> Iterable[Expr]:
        for node in E.walk(e):
            yield node
            if node.op == "var":
                yield from E.walk(node.args[0])

    # --- statements ---

    def _block(self, body: Sequence[Stmt], depth: int) -> list[str]:
        lines: list[str] = []
        for s in body:
            lines += self._statement(s, depth)
        return lines

    def _statement(self, s: Stmt, depth: int) -> list[str]:
        pad = "    " * depth
        if isinstance(s, For):
            return self._for(s, depth)
        if isinstance(s, Declare):
            return [pad + self._declare(s.target)]
        if isinstance(s, Store):
            lines, value = self._hoist(s.value, pad)
            return [*lines, f"{pad}{self._place(s.target, s.indices)} = {value};"]
        if isinstance(s, Accumulate):
            lines, value = self._hoist(s.value, pad)
            place = self._place(s.target, s.indices)
            return [*lines, f"{pad}{place} = {self._combine(s, place, value)};"]
        if isinstance(s, If):
            lines, condition = self._hoist(s.condition, pad)
            lines.append(f"{pad}if ({condition}) {{")
            lines += self._block(s.then, depth + 1)
            if s.otherwise:
                lines.append(f"{pad}}} else {{")
                lines += self._block(s.otherwise, depth + 1)
            return [*lines, f"{pad}}}"]
        if isinstance(s, While):
            return [
                f"{pad}while ({self.expression(s.condition)}) {{",
                *self._block(s.body, depth + 1),
                f"{pad}}}",
            ]
        if isinstance(s, Let):
            lines, value = self._hoist(s.value, pad)
            return [*lines, f"{pad}const cv_idx {self._declare_variable(s.var)} = {value};"]
        return self._micro(s, pad)

    def _for(self, s: For, depth: int) -> list[str]:
        parts = staging.pieces(s, self._offset) if self.staged else None
        return self._loop(s, depth) if parts is None else self._pieces(parts, depth)

    def _loop(self, s: For, depth: int) -> list[str]:
        pad = "    " * depth
        name = self._declare_variable(s.var)
        lines: list[str] = []
        if s.kind == "simd":
            op, target = s.reduction[0] if s.reduction else ("", None)
            if target is None:
                lines.append(f"{pad}CV_SIMD")
            elif E.is_float(target.dtype) and target.dtype not in SMALL and op not in ("any", "all"):
                clause = {"sum": "+", "prod": "*"}.get(op, op)
                lines.append(f"{pad}#pragma omp simd reduction({clause}:{self.scope.locals[target]})")
        head = f"for (cv_idx {name} = {self.index(s.start)}; {name} < {self.index(s.stop)}; {name}++) {{"
        return [*lines, pad + head, *self._block(s.body, depth + 1), f"{pad}}}"]

    def _pieces(self, parts: staging.Pieces, depth: int) -> list[str]:
        pad = "    " * depth
        head = "{"
        if parts.number.op == "var":
            name = self._declare_variable(parts.number)
            head = f"for (cv_idx {name} = 0; {name} < {self.index(parts.number.args[0])}; {name}++) {{"
        lines = [pad + head, *self._staged(parts.staged, depth + 1), f"{pad}}}"]
        return lines + (self._for(parts.rest, depth) if parts.rest is not None else [])

    def _staged(self, s: staging.Staged, depth: int) -> list[str]:
        pad = "    " * depth
        lines = [pad + self._declare(v) for v, _, _ in (*s.reads, *s.writes)]
        for to, value, at in s.reads:
            lines.append(f"{pad}cv_widen_{value.dtype}({self.scope.locals[to]}, &{self._place(value, at)});")
        lines += self._loop(s.loop, depth)
        for source, target, at in s.writes:
            place = self._place(target, at)
            lines.append(f"{pad}cv_narrow_{target.dtype}(&{place}, {self.scope.locals[source]});")
        self.bytes |= {v.dtype for _, v, _ in (*s.reads, *s.writes)}
        return lines

    def _offset(self, value: Value, indices: Sequence[Expr]) -> Expr:
        if value in self.scope.locals:
            return row_major(value.rank).offset(indices, value.shape)
        return self.storage.address(value, indices)[1]

    def _declare(self, target: Value) -> str:
        name = f"u{len(self.scope.locals)}"
        self.scope.locals[target] = name
        if not target.shape:
            return f"{c_type(target.dtype)} {name};"
        count = static(elements(target.shape))
        assert count is not None
        return f"{c_type(target.dtype)} {name}[{max(count, 1)}] CV_ALIGN64;"

    def _declare_variable(self, v: Expr) -> str:
        name = f"{v.attr}{self.scope.loops}"
        self.scope.loops += 1
        self.scope.variables[v] = name
        return name

    def _combine(self, s: Accumulate, place: str, value: str) -> str:
        dtype = s.target.dtype
        current, new = Value("", dtype, ()), Value("", dtype, ())
        self.scope.locals[current], self.scope.locals[new] = place, value
        text = self.expression(combine(s.op, E.load(current, ()), E.load(new, ())))
        del self.scope.locals[current], self.scope.locals[new]
        return text

    def _micro(self, s: Micro, pad: str) -> list[str]:
        self.micros.setdefault(s.kernel.name, s.kernel.render())
        arguments = [f"&{self._place(v, at)}" for v, at in (*s.reads, s.writes)]
        arguments += [self.index(a) for a in s.arguments]
        return [f"{pad}{s.kernel.name}({', '.join(arguments)});"]

    def _place(self, target: Value, indices: Sequence[Expr]) -> str:
        if target in self.scope.locals:
            name = self.scope.locals[target]
            if not target.shape:
                return name
            return f"{name}[{self.index(row_major(target.rank).offset(indices, target.shape))}]"
        root, offset = self.storage.address(target, indices)
        return f"{self.scope.pointers[root]}[{self.index(offset)}]"

    # --- expressions ---

    def _hoist(self, e: Expr, pad: str) -> tuple[list[str], str]:
        """The expression, with what it uses more than once in temporaries before it."""
        uses: dict[Expr, int] = {}
        nodes = self._computed(e)
        for node in nodes:
            for a in node.args if node.op not in _OPAQUE else ():
                uses[a] = uses.get(a, 0) + 1
        safe = self._unconditional(e)
        lines: list[str] = []
        added: list[Expr] = []
        for node in nodes:
            worth = uses.get(node, 0) > 1 and node.args and node.op not in ("var", "sym", "cast")
            if worth and node.dtype == E.INDEX and node.op in ("affine",) and len(node.args) == 1:
                worth = False
            if worth and (node in safe or not self._may_fault(node)):
                name = f"h{self.scope.temporaries}"
                self.scope.temporaries += 1
                kind = "cv_idx" if node.dtype == E.INDEX and not E.loads(node) else c_type(node.dtype)
                lines.append(f"{pad}const {kind} {name} = {self.expression(node)};")
                self.scope.variables[node] = name
                added.append(node)
        text = self.expression(e)
        for node in added:
            del self.scope.variables[node]
        return lines, text

    def _computed(self, e: Expr) -> list[Expr]:
        """The nodes below `e`, arguments first, without the addresses of loads."""
        result: list[Expr] = []
        seen: set[Expr] = set()
        stack = [(e, False)]
        while stack:
            node, done = stack.pop()
            if done:
                result.append(node)
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                if node.op not in _OPAQUE:
                    stack.extend((a, False) for a in reversed(node.args))
        return result

    def _may_fault(self, e: Expr) -> bool:
        return any(n.op == "load" for n in E.walk(e))

    def _unconditional(self, e: Expr) -> set[Expr]:
        """The nodes that are evaluated whatever the conditions."""
        seen: set[Expr] = set()
        stack = [e]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if node.op in ("select", "and", "or"):
                stack.append(node.args[0])
            elif node.op not in E.LEAVES:
                stack.extend(node.args)
        return seen

    def index(self, e: Expr) -> str:
        """An index expression."""
        return self.expression(e)

    def expression(self, e: Expr) -> str:
        """An expression as C text."""
        if e in self.scope.variables:
            return self.scope.variables[e]
        op = e.op
        if op == "const":
            if e.dtype == E.INDEX and abs(e.attr) < 1 << 31:
                return str(e.attr) if e.attr >= 0 else f"({e.attr})"
            return literal(e.attr, e.dtype)
        if op == "sym":
            return size_symbol(e.attr)
        if op == "affine":
            return self._affine(e)
        if op == "load":
            return self._place(e.attr, e.args)
        if op not in ("select", "cast", "bitcast") and any(x.dtype in SMALL for x in (e, *e.args)):
            return self.expression(self._carried(e))
        args = [self.expression(self._multiplied(a) if op in _LEVEL else a) for a in e.args]
        if op == "mul" and e.dtype == E.INDEX:
            return "(" + " * ".join(args) + ")"
        if op in ("floordiv", "mod") or (op == "div" and not E.is_float(e.dtype)):
            return self._division(e, args)
        if op in ("min", "max"):
            return self._extreme(op, e, args)
        if op == "shl" and e.dtype.startswith("int"):
            wide = "uint64_t" if e.dtype == "int64" else "uint32_t"
            return f"({c_type(e.dtype)})(({wide}){args[0]} << {args[1]})"
        if op in ("shl", "shr", "add", "sub", "mul") and e.dtype in ("int8", "int16", "uint8", "uint16"):
            return f"({c_type(e.dtype)})({args[0]} {_INFIX[op]} {args[1]})"
        if op in ("add", "sub", "mul") and e.dtype == "int32":
            return f"(int32_t)((uint32_t){args[0]} {_INFIX[op]} (uint32_t){args[1]})"
        if op in _INFIX:
            return f"({args[0]} {_INFIX[op]} {args[1]})"
        if op == "select":
            return f"({args[0]} ? {args[1]} : {args[2]})"
        if op == "cast":
            return self._cast(e.args[0].dtype, e.dtype, args[0])
        if op == "neg":
            return f"(-{args[0]})"
        if op == "not":
            return f"(!{args[0]})"
        if op == "bnot":
            return f"({c_type(e.dtype)})(~{args[0]})"
        if op == "isnan":
            return f"({args[0]} != {args[0]})"
        if op == "isinf":
            largest = "1.7976931348623157e308" if e.args[0].dtype == "float64" else "3.4028235e38"
            return f"(__builtin_fabs({args[0]}) > {largest})"
        if op == "bitcast":
            return self._bits(e.args[0].dtype, e.dtype, args[0])
        return self._call(e, args)

    def _multiplied(self, e: Expr) -> Expr:
        """A quotient by a constant as a product, one rounding more."""
        if e in self.scope.variables or e.op != "div" or not e.args[1].is_const or e.dtype != "float32":
            return e
        return e.args[0] * E.const(1 / e.args[1].attr, e.dtype) if e.args[1].attr else e

    def _carried(self, e: Expr) -> Expr:
        """An operation on a type that C lacks, done in its carrier and rounded back."""
        kind = next(x.dtype for x in (e, *e.args) if x.dtype in SMALL)
        if not SMALL[kind].arithmetic:
            raise UnsupportedError(f"arithmetic on element type {kind} is not supported")
        wide = E.rebuild(e, [E.cast(a, SMALL[kind].carrier) if a.dtype == kind else a for a in e.args])
        return E.cast(wide, e.dtype)

    def _cast(self, source: str, target: str, value: str) -> str:
        """A value as another type."""
        self.small |= {source, target} & SMALL.keys()
        if source in SMALL:
            return self._cast(SMALL[source].carrier, target, f"cv_from_{source}({value})")
        if target in SMALL:
            return f"cv_to_{target}({self._cast(source, SMALL[target].carrier, value)})"
        kind = "cv_idx" if target == E.INDEX else c_type(target)
        return f"({value} != 0)" if target == "bool" else f"({kind}){value}"

    def _bits(self, source: str, target: str, value: str) -> str:
        """The bits of a value as another type of the same width."""
        if (source, target) in (("float32", "int32"), ("int32", "float32")):
            self.math.add("bits")
            return f"cv_bits({value})" if target == "int32" else f"cv_float({value})"
        if not any(E.is_float(t) and t not in SMALL for t in (source, target)):
            return f"({c_type(target)})({value})"
        name = f"cv_{source}_as_{target}"
        self.bits[name] = (
            f"static inline {c_type(target)} {name}({c_type(source)} x) {{ "
            f"union {{ {c_type(source)} from; {c_type(target)} to; }} u; u.from = x; return u.to; }}"
        )
        return f"{name}({value})"

    def _affine(self, e: Expr) -> str:
        constant, coefficients = e.attr
        parts = []
        for term, c in zip(e.args, coefficients):
            text = self.expression(term)
            parts.append(
                text if c == 1 else f"(-{text})" if c == -1 else f"{text} * {c if c > 0 else f'({c})'}"
            )
        if constant:
            parts.append(str(constant) if constant > 0 else f"({constant})")
        return "(" + " + ".join(parts) + ")"

    def _division(self, e: Expr, args: list[str]) -> str:
        a, b = e.args
        sign = "/" if e.op in ("floordiv", "div") else "%"
        unsigned = e.dtype.startswith("uint")
        if (a.lo >= 0 or unsigned or e.op == "div") and b.is_const and b.attr > 0:
            return f"({args[0]} {sign} {args[1]})"
        if e.dtype == E.INDEX and a.lo >= 0 and b.lo >= 0 and not E.loads(b):
            return f"({args[0]} {sign} {args[1]})"
        names = {"floordiv": "cv_floordiv", "mod": "cv_mod", "div": "cv_div"}
        unsigned_names = {"floordiv": "cv_udiv", "mod": "cv_umod", "div": "cv_udiv"}
        name = (unsigned_names if unsigned else names)[e.op]
        kind = "cv_idx" if e.dtype == E.INDEX else c_type(e.dtype)
        return f"({kind}){name}({args[0]}, {args[1]})"

    def _extreme(self, op: str, e: Expr, args: list[str]) -> str:
        """The larger or smaller of two; a NaN on the left stays."""
        if e.dtype == E.INDEX and not E.loads(e):
            return f"cv_{op}_idx({args[0]}, {args[1]})"
        self.half = self.half or e.dtype == "float16"
        return f"cv_{op}_{e.dtype}({args[0]}, {args[1]})"

    def _call(self, e: Expr, args: list[str]) -> str:
        op, dtype = e.op, e.dtype
        if op == "abs" and not E.is_float(dtype):
            return f"({args[0]} < 0 ? -{args[0]} : {args[0]})"
        if op in ("floor", "ceil", "round", "trunc") and not E.is_float(dtype):
            return args[0]
        if dtype in ("float32", "float16") and cmath.has(op):
            self.math.add(op)
            return f"cv_{op}_f32({', '.join(args)})"
        self.libm = True
        if op == "sigmoid":
            return f"(1.0 / (1.0 + __builtin_exp(-{args[0]})))"
        name = {"abs": "fabs", "round": "rint"}.get(op, op)
        if not E.is_float(dtype):
            return f"({c_type(dtype)})__builtin_{name}({', '.join(args)})"
        return f"__builtin_{name}{'' if dtype == 'float64' else 'f'}({', '.join(args)})"

    # --- the file ---

    def prelude(self) -> str:
        """What the printed functions need before them."""
        lines = [PRELUDE, cmath.INTEGERS]
        for name, kind in (*C_TYPES.items(), ("idx", "cv_idx")):
            if name == "bool" or (name == "float16" and not self.half):
                continue
            lines.append(
                f"static inline {kind} cv_min_{name}({kind} a, {kind} b) {{ return b < a ? b : a; }}"
            )
            lines.append(
                f"static inline {kind} cv_max_{name}({kind} a, {kind} b) {{ return a < b ? b : a; }}"
            )
        lines.append("#define cv_min_bool(a, b) ((a) && (b))\n#define cv_max_bool(a, b) ((a) || (b))")
        lines += self.bits.values()
        lines.append(staging.functions({t: C_TYPES[t] for t in sorted(self.bytes)}))
        functions = cmath.text(self.math | ({"bits"} if self.small else set())) + cnumeric.text(self.small)
        return "\n".join(lines) + "\n" + functions + "\n" + "\n".join(self.micros.values())
