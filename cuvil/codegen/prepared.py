"""Constants that a library computes itself, once, at the start of its first run.

They lie in a zeroed array (``.bss``): they take memory, but no room in the file.  The function of a segment
that reads some begins with a call that returns when they are there.  The first caller computes them; others
that come meanwhile wait in a loop, for a library needs nothing of the operating system.
"""

from __future__ import annotations

from cuvil.codegen.c import c_type
from cuvil.ir.primitives import Prepared, Value
from cuvil.schedule.memory import aligned

_HIDDEN = 'extern __attribute__((visibility("hidden")))'

_DEFINITION = """%(micros)s
unsigned char %(array)s[%(bytes)d] CV_ALIGN64;

void %(function)s(void) {
    static int state; /* 0: nobody began, 1: a caller is at it, 2: done */
    int found = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
    if (found == 0
        && __atomic_compare_exchange_n(&state, &found, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) {
%(calls)s
        __atomic_store_n(&state, found = 2, __ATOMIC_RELEASE);
    }
    while (found != 2) found = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
}
"""


class Preparation:
    """The prepared constants of a device, equal ones kept once.

    Args:
        stem: prefix of the C symbols.

    Attributes:
        function: the C function ``void function(void)`` that returns when they are there.
    """

    def __init__(self, stem: str) -> None:
        self._array, self.function = f"{stem}_prepared", f"{stem}_prepare"
        self._end = 0
        self._offsets: dict[str, int] = {}
        self._micros: dict[str, str] = {}

    def add(self, value: Value, size: int, source: str) -> str:
        """Prepare `value`, of `size` bytes, from what lies at the C address `source`: its own address."""
        d = value.definition
        assert isinstance(d, Prepared)
        self._micros.setdefault(d.kernel.name, d.kernel.render())
        read, made = c_type(d.source.dtype), c_type(value.dtype)
        call = f"{d.kernel.name}((const {read} *)({source}), ({made} *)({self._array} + %d), {d.count});"
        if call not in self._offsets:
            self._offsets[call] = self._end
            self._end += size
        return f"{self._array} + {self._offsets[call]}"

    @property
    def bytes(self) -> int:
        """Bytes of memory, with some at the end that a tile may read beyond them."""
        return self._end + (aligned(1) if self._end else 0)

    @property
    def declaration(self) -> str:
        """The C declarations."""
        return f"{_HIDDEN} unsigned char {self._array}[];\n{_HIDDEN} void {self.function}(void);\n"

    @property
    def definition(self) -> str:
        """The C definitions, which `declaration` and one of the array of constants must precede."""
        calls = "\n".join(" " * 8 + call % at for call, at in self._offsets.items())
        return _DEFINITION % {
            "micros": "\n".join(self._micros.values()), "array": self._array, "bytes": self.bytes,
            "function": self.function, "calls": calls,
        }  # fmt: skip
