"""The public interface of a compiled model: its header, and the C file that runs all devices.

``int <model>_run(void *workspace, size_t bytes, sizes..., inputs..., outputs...)`` is re-entrant;
``int infer(sizes..., inputs..., outputs...)`` does the same with a static arena.  Both return 0
or one of the error codes of the header.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cuvil import __version__, limits
from cuvil.codegen.c import PRELUDE, c_type
from cuvil.codegen.names import Namer, comment, size_symbol
from cuvil.errors import CuvilError
from cuvil.ir.expr import numpy_dtype

ERRORS = {
    "CUVIL_OK": (0, "the outputs are written"),
    "CUVIL_MISALIGNED": (1, f"the workspace is not aligned to {limits.WORKSPACE_ALIGNMENT} bytes"),
    "CUVIL_TOO_SMALL": (2, "the workspace is smaller than the model needs for these sizes"),
    "CUVIL_NULL": (3, "a pointer is null"),
    "CUVIL_BAD_SIZE": (4, "a symbolic size is negative or beyond the limit"),
    "CUVIL_BAD_VALUE": (5, "an axis, a size or an index among the inputs is outside its limits"),
    "CUVIL_UNSUPPORTED": (6, "the processor or the operating system lacks what the library was compiled for"),
}
"""Return values of generated functions."""

INFER_ARENA_TARGET = 64 << 20
"""Bytes that `infer`'s static arena may take when sizes are symbolic; the sizes it admits follow."""


@dataclass(frozen=True)
class Interface:
    """The generated interface.

    Attributes:
        source: the orchestrating C file.
        header: the public header.
        metadata: names, types, shapes and sizes for tools that load the library, JSON-like.
    """

    source: str
    header: str
    metadata: dict[str, Any]


def render(
    model: str,
    segments: Sequence[Mapping[str, Any]],
    inputs: Sequence[str],
    outputs: Sequence[str],
    declared: Mapping[str, Mapping[str, Any]],
    affinity: Sequence[Sequence[int]] = (),
    levels: Mapping[str, Sequence[str]] | None = None,
    prepared: int = 0,
) -> Interface:
    """The interface of `model`.

    Args:
        model: its identifier.
        segments: the segments' plans (`program.render`) in order of execution.
        inputs, outputs: names of the model's tensors, in order.
        declared: their types and shapes in the model, for those inputs that no segment reads.
        affinity: per segment, the CPUs that it runs on; empty for any.
        levels: of devices with code for several instruction sets, the function that chooses between them
            (`cuvil.codegen.dispatch`) and their names.
        prepared: bytes of static memory for constants that the first run makes (`cuvil.codegen.prepared`).

    Raises:
        CuvilError: no segment computes an output.
    """
    tensors: dict[str, dict[str, Any]] = {}
    for segment in segments:
        for t in (*segment["inputs"], *segment["outputs"]):
            made = tensors.setdefault(t["name"], dict(t))
            if t["text"] and made["shape"][-1] != t["shape"][-1]:
                raise CuvilError(
                    "strings of another capacity than an input's cannot pass between devices",
                    f"tensor '{t['name']}'",
                )
    for name in inputs:
        dtype, shape = declared[name]["dtype"], declared[name]["shape"]
        text = dtype == "string"
        if text:
            dtype, shape = "uint8", [*shape, limits.STRING_BYTES]
        sizes = [size_symbol(n) if isinstance(n, str) else n for n in shape]
        unread = {"name": name, "dtype": dtype, "shape": sizes, "symbolic_shape": shape, "text": text}
        tensors.setdefault(name, unread)
    for name in outputs:
        if name not in tensors:
            raise CuvilError("no device computes it", f"tensor '{name}'")
    symbols = _symbols(tensors[n] for n in inputs)
    between = [t["name"] for s in segments for t in s["outputs"] if t["name"] not in outputs]
    names = _names(inputs, outputs, symbols, between)
    writer = _Writer(model, segments, tensors, symbols, list(inputs), list(outputs), between, names, affinity)
    chosen = {function: list(names) for function, names in (levels or {}).items()}
    metadata = writer.metadata() | {"prepared_bytes": prepared, "isa_levels": chosen}
    return Interface(writer.source(), writer.header(chosen, prepared), metadata)


def _symbols(inputs: Any) -> list[str]:
    found: dict[str, None] = {}
    for t in inputs:
        for n in t["symbolic_shape"]:
            if isinstance(n, str):
                found[n] = None
    return list(found)


LOCALS = (
    "workspace",
    "workspace_bytes",
    "shape",
    "need",
    "next",
    "most",
    "total",
    "arena",
    "old",
    "set",
    "bound",
    "code",
    "actual",
)
"""Names of the generated functions' own variables, besides ``m<number>``."""


def _names(
    inputs: Sequence[str], outputs: Sequence[str], symbols: Sequence[str], between: Sequence[str]
) -> dict[str, str]:
    namer = Namer()
    for reserved in (*LOCALS, *map(size_symbol, symbols), *(f"m{i}" for i in range(len(between)))):
        namer.unique(reserved)
    result = {n: namer.unique(n, "in") for n in inputs}
    return result | {f">{n}": namer.unique(n, "out") for n in outputs}


class _Writer:
    def __init__(
        self,
        model: str,
        segments: Sequence[Mapping[str, Any]],
        tensors: dict[str, dict[str, Any]],
        symbols: list[str],
        inputs: list[str],
        outputs: list[str],
        between: list[str],
        names: dict[str, str],
        affinity: Sequence[Sequence[int]],
    ) -> None:
        self.model, self.segments, self.tensors, self.symbols = model, segments, tensors, symbols
        self.inputs, self.outputs, self.between, self.names = inputs, outputs, between, names
        self.affinity = list(affinity) or [()] * len(segments)
        self.sized_by_data = any(s["sized_by_data"] for s in segments)

    # --- pieces ---

    def sizes(self, kind: str = "int64_t") -> list[str]:
        return [f"{kind} {size_symbol(n)}" for n in self.symbols]

    def pointers(self) -> list[str]:
        ins = [f"const {c_type(self.tensors[n]['dtype'])} *{self.names[n]}" for n in self.inputs]
        return ins + [f"{c_type(self.tensors[n]['dtype'])} *{self.names['>' + n]}" for n in self.outputs]

    def run_prototype(self) -> str:
        parameters = ["void *workspace", "size_t workspace_bytes", *self.sizes(), *self.pointers()]
        return f"int {self.model}_run({', '.join([*parameters, *self.actual()])})"

    def infer_prototype(self) -> str:
        return f"int infer({', '.join([*self.sizes(), *self.pointers(), *self.actual()])})"

    def actual(self) -> list[str]:
        """The parameter for the outputs' actual sizes where the data decide some of them."""
        return ["int64_t *actual"] if self.sized_by_data else []

    def bytes_prototype(self) -> str:
        return f"size_t {self.model}_workspace_bytes({', '.join(self.sizes()) or 'void'})"

    def shapes_prototype(self) -> str:
        return f"void {self.model}_output_shapes({', '.join([*self.sizes(), 'int64_t *shape'])})"

    def elements(self, name: str) -> str:
        return " * ".join(f"({n})" for n in self.tensors[name]["shape"]) or "1"

    def tensor_bytes(self, name: str) -> str:
        width = _width(self.tensors[name]["dtype"])
        unit = limits.WORKSPACE_ALIGNMENT
        return f"((size_t)({self.elements(name)}) * {width} + {unit - 1}) / {unit} * {unit}"

    @property
    def static_bytes(self) -> int | None:
        """The workspace's size where nothing is symbolic."""
        if self.symbols:
            return None
        total = sum(_aligned_bytes(self.tensors[n]) for n in self.between)
        return total + max((int(s["workspace"]) for s in self.segments), default=0)

    # --- files ---

    def header(self, levels: Mapping[str, Sequence[str]], prepared: int) -> str:
        guard = f"CUVIL_{self.model.upper()}_H"
        lines = [
            f"/* {self.model}: generated by Cuvil {__version__}; do not edit. */",
            f"#ifndef {guard}\n#define {guard}\n#include <stddef.h>\n#include <stdint.h>",
            '#ifdef __cplusplus\nextern "C" {\n#endif\n',
            "#ifndef CUVIL_OK",
        ]
        lines += [f"#define {name} {code} /* {text} */" for name, (code, text) in ERRORS.items()]
        lines.append("#endif\n")
        upper = self.model.upper()
        if self.static_bytes is not None:
            lines.append(f"#define {upper}_WORKSPACE_BYTES {self.static_bytes} /* aligned to 64 */")
        if prepared:
            lines.append(f"#define {upper}_PREPARED_BYTES {prepared} /* static; the first run fills them */")
        for n in self.inputs:
            lines.append(self._describe("input", n, self.names[n]))
        for n in self.outputs:
            lines.append(self._describe("output", n, self.names[f">{n}"]))
        lines += [
            "\n/* Bytes of workspace for the given sizes. */",
            f"{self.bytes_prototype()};",
            "\n/* The sizes of all outputs, one after the other; the largest where the data decide. */",
            f"{self.shapes_prototype()};",
            "\n/* Runs the model in the given workspace; re-entrant."
            + (" The outputs' sizes go to `actual`. */" if self.sized_by_data else " */"),
            f"{self.run_prototype()};",
            "\n/* Runs the model in a static arena; one call at a time. */",
            f"{self.infer_prototype()};",
            *(_choice(function, names) for function, names in levels.items()),
            "\n#ifdef __cplusplus\n}\n#endif\n#endif",
        ]
        return "\n".join(lines) + "\n"

    def _describe(self, role: str, name: str, identifier_: str) -> str:
        t = self.tensors[name]
        shape = ", ".join(comment(str(n)) for n in t["symbolic_shape"])
        text = ("UTF-8, padded with NUL,", ", a string's bytes last")
        kind, note = text if t["text"] else (t["dtype"], "")
        lines = [f"/* {role} {identifier_} ('{comment(name)}'): {kind} [{shape}]{note} */"]
        if all(isinstance(n, int) for n in t["shape"]):
            count = 1
            for n in t["shape"]:
                count *= n
            lines.append(f"#define {self.model.upper()}_{identifier_.upper()}_ELEMENTS {count}")
        return "\n".join(lines)

    def source(self) -> str:
        lines = [f"/* {self.model}: generated by Cuvil {__version__}; do not edit. */"]
        if any(self.affinity):
            lines.append("#ifdef __linux__\n#define _GNU_SOURCE\n#include <sched.h>\n#endif")
        lines += [f'#include "{self.model}.h"', PRELUDE, _HELPERS]
        lines += [f"{s['prototype']};" for s in self.segments]
        lines.append(self._workspace_function())
        lines.append(self._shapes_function())
        lines.append(self._run_function())
        lines.append(self._infer_function())
        return "\n".join(lines)

    def _locals(self) -> list[str]:
        return [f"    (void){size_symbol(n)};" for n in self.symbols]

    def _workspace_function(self) -> str:
        lines = [f"CV_PUBLIC {self.bytes_prototype()} {{", *self._locals(), "    size_t most = 0, total = 0;"]
        for n in self.between:
            lines.append(f"    total += {self.tensor_bytes(n)};")
        for s in self.segments:
            lines.append(f"    {{ size_t need = (size_t)({s['workspace']}); if (need > most) most = need; }}")
        return "\n".join([*lines, "    return total + most;", "}\n"])

    def _shapes_function(self) -> str:
        lines = [f"CV_PUBLIC {self.shapes_prototype()} {{", *self._locals(), "    (void)shape;"]
        position = 0
        for n in self.outputs:
            for size in self.tensors[n]["shape"]:
                lines.append(f"    shape[{position}] = {size};")
                position += 1
        return "\n".join([*lines, "}\n"])

    def _run_function(self) -> str:
        lines = [f"CV_PUBLIC {self.run_prototype()} {{"]
        limit = min((int(s["symbol_limit"]) for s in self.segments), default=limits.MAX_SYMBOL)
        for n in self.symbols:
            name = size_symbol(n)
            lines.append(f"    if ({name} < 0 || {name} > {limit}) return CUVIL_BAD_SIZE;")
        for name in (*self.names.values(), *(["actual"] if self.sized_by_data else [])):
            lines.append(f"    if ({name} == NULL) return CUVIL_NULL;")
        sizes = ", ".join(size_symbol(n) for n in self.symbols)
        lines += [
            f"    const size_t need = {self.model}_workspace_bytes({sizes});",
            "    if (need != 0 && workspace == NULL) return CUVIL_NULL;",
            f"    if ((uintptr_t)workspace % {limits.WORKSPACE_ALIGNMENT} != 0) return CUVIL_MISALIGNED;",
            "    if (workspace_bytes < need) return CUVIL_TOO_SMALL;",
            "    unsigned char *next = (unsigned char *)workspace;",
            "    int code = CUVIL_OK;",
            "    (void)code;",
        ]
        place: dict[str, str] = {n: self.names[n] for n in self.inputs}
        for n in self.outputs:
            if n in self.inputs:
                copy = f"{self.names['>' + n]}[i] = {self.names[n]}[i];"
                lines.append(f"    for (cv_idx i = 0; i < {self.elements(n)}; i++) {copy}")
            else:
                place[n] = self.names[f">{n}"]
        for i, n in enumerate(self.between):
            kind = c_type(self.tensors[n]["dtype"])
            lines += [f"    {kind} *const m{i} = ({kind} *)next;", f"    next += {self.tensor_bytes(n)};"]
            place[n] = f"m{i}"
        for s, cpus in zip(self.segments, self.affinity):
            arguments = ["next", *(size_symbol(n) for n in s["symbols"])]
            arguments += [place[t["name"]] for t in (*s["inputs"], *s["outputs"])]
            arguments += ["actual"] if s["sized_by_data"] else []
            call = f"code = {s['symbol']}({', '.join(arguments)});"
            if cpus:
                mask = " ".join(f"CPU_SET({c}, &set);" for c in cpus)
                lines += [
                    "#ifdef __linux__",
                    "    { cpu_set_t old, set; CPU_ZERO(&set);",
                    f"      {mask}",
                    "      const int bound = sched_getaffinity(0, sizeof old, &old) == 0"
                    " && sched_setaffinity(0, sizeof set, &set) == 0;",
                    f"      {call}",
                    "      if (bound) sched_setaffinity(0, sizeof old, &old); }",
                    "#else",
                    f"    {call}",
                    "#endif",
                ]
            else:
                lines.append(f"    {call}")
            lines.append("    if (code != CUVIL_OK) return code;")
        return "\n".join([*lines, "    return CUVIL_OK;", "}\n"])

    def _infer_function(self) -> str:
        arguments = [size_symbol(n) for n in self.symbols]
        arguments += [*(self.names[n] for n in self.inputs), *(self.names[f">{n}"] for n in self.outputs)]
        arguments += ["actual"] if self.sized_by_data else []
        need = self.static_bytes
        amount = str(max(need, 1)) if need is not None else f"{self.model.upper()}_INFER_ARENA_BYTES"
        lines = []
        if need is None:
            lines += [f"#ifndef {amount}", f"#define {amount} {INFER_ARENA_TARGET}", "#endif"]
        lines += [
            f"CV_PUBLIC {self.infer_prototype()} {{",
            f"    static unsigned char arena[{amount}] CV_ALIGN64;",
            f"    return {self.model}_run({', '.join(['arena', 'sizeof arena', *arguments])});",
            "}\n",
        ]
        return "\n".join(lines)

    def metadata(self) -> dict[str, Any]:
        def tensor(name: str) -> dict[str, Any]:
            t = self.tensors[name]
            if not t["text"]:
                return {"name": name, "dtype": t["dtype"], "shape": t["symbolic_shape"]}
            *shape, capacity = t["symbolic_shape"]
            return {"name": name, "dtype": "string", "shape": shape, "capacity": capacity}

        return {
            "model": self.model,
            "symbols": self.symbols,
            "inputs": [tensor(n) for n in self.inputs],
            "outputs": [tensor(n) for n in self.outputs],
            "workspace_bytes": self.static_bytes,
            "sized_by_data": self.sized_by_data,
        }


def _choice(function: str, names: Sequence[str]) -> str:
    """The declaration of the function that chooses an instruction set."""
    listed = ", ".join(f"{i} {name}" for i, name in enumerate(names))
    text = "Chooses `level` where the CPU has it, the best that it has where -1; returns what is in use"
    return f"\n/* {text}:\n   {listed}. */\nint {function}(int level);"


def _width(dtype: str) -> int:
    return numpy_dtype(dtype).itemsize


def _aligned_bytes(tensor: Mapping[str, Any]) -> int:
    count = 1
    for n in tensor["shape"]:
        count *= int(n)
    unit = limits.WORKSPACE_ALIGNMENT
    return -(-count * _width(tensor["dtype"]) // unit) * unit


_HELPERS = """#define CV_PUBLIC __attribute__((visibility("default")))
static inline cv_idx cv_min_idx(cv_idx a, cv_idx b) { return b < a ? b : a; }
static inline cv_idx cv_max_idx(cv_idx a, cv_idx b) { return a < b ? b : a; }
static inline int64_t cv_floordiv(int64_t a, int64_t b) {
    return b == 0 ? 0 : a / b - ((a % b != 0) & ((a < 0) != (b < 0)));
}
"""
