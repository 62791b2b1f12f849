"""Runs a model's static library in a program of its own: under an emulator, or where a crash must not matter.

For another platform than this machine's the program is linked with the musl C library, so that it needs
nothing of the target's system.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cuvil import artefacts, fsio, stages
from cuvil.errors import CuvilError
from cuvil.ir.expr import numpy_dtype
from cuvil.report.samples import Arrays
from cuvil.target.schema import Target
from cuvil.toolchain import compilers, emulators, profile
from cuvil.toolchain.machine import Machine

TIMEOUT_S = 600.0

_PROGRAM = """#include "{model}.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static void *get(size_t bytes, int fill) {{
    void *p = aligned_alloc(64, (bytes / 64 + 1) * 64);
    if (p == NULL || (fill && fread(p, 1, bytes, stdin) != bytes)) exit(101);
    return p;
}}
int main(void) {{
    int64_t head[{heads}];
    while (fread(head, 8, {heads}, stdin) == {heads}) {{
        int64_t shape[{ranks} + 1];
        {model}_output_shapes({sizes_shape}shape);
{buffers}
        const size_t need = {model}_workspace_bytes({sizes});
        void *const workspace = get(need, 0);
        struct timespec start, end;
        clock_gettime(CLOCK_MONOTONIC, &start);
        const int64_t code = {model}_run({arguments});
        clock_gettime(CLOCK_MONOTONIC, &end);
        const int64_t taken = (end.tv_sec - start.tv_sec) * (int64_t)1000000000 + end.tv_nsec - start.tv_nsec;
        const int64_t result[2] = {{code, taken}};
        fwrite(result, 8, 2, stdout);
        if (code != 0) return 0;
        fwrite(shape, 8, {ranks}, stdout);
{writes}
        free(workspace);
    }}
    return 0;
}}
"""


class ForeignRunner:
    """Runs batches through ``lib<model>.a`` of a target that need not be this machine.

    Args:
        out: the artefacts, built.
        target: what they were built for.
        progress: told when a command takes long.

    Raises:
        CuvilError: there is no way to run the target's programs here.
    """

    def __init__(
        self, out: artefacts.Layout, target: Target, progress: stages.Progress | None = None
    ) -> None:
        base = profile.machine(target.slice("cc"))
        if base.os != "linux":
            raise CuvilError("only programs for Linux can be run here", str(target.triple))
        self.machine: Machine = base if base.is_host else base.musl()
        if not emulators.available(self.machine):
            raise CuvilError(f"qemu-user (qemu-{self.machine.arch}) is not installed", str(target.triple))
        self.emulated = bool(emulators.command(self.machine))
        self._out, self._progress = out, progress
        self._info: dict[str, Any] = json.loads(out.interface["json"].read_text(encoding="utf-8"))
        if any(t["dtype"] == "string" for t in (*self._info["inputs"], *self._info["outputs"])):
            raise CuvilError("models with strings can only be run on this machine itself", out.model)

    def run(self, batches: Sequence[Arrays]) -> tuple[list[list[np.ndarray]], list[float]]:
        """The outputs of each batch, and the seconds that each took.

        Raises:
            CuvilError: the program cannot be linked or run, or the library returned an error.
        """
        data = b"".join(self._request(batch) for batch in batches)
        with tempfile.TemporaryDirectory(prefix="cuvil-") as name:
            program = self._link(Path(name))
            done = emulators.run(program, self.machine, stdin=data, timeout=TIMEOUT_S)
        if done.returncode:
            raise CuvilError(f"the program ended with status {done.returncode}", self._out.model)
        return self._answers(done.stdout, len(batches))

    def _link(self, folder: Path) -> Path:
        source, object_, program = folder / "main.c", folder / "main.o", folder / "main"
        fsio.write_text(source, self._source())
        here = self.machine.is_host
        compiler = compilers.find("auto" if here else "zig", self.machine, self._progress)
        compiler.compile(source, object_, include_dirs=[self._out.interface["h"].parent])
        objects, libs = [object_, self._out.libraries[0]], ["m", "pthread"]
        compiler.link_executable(objects, program, libs=libs, static=not here)
        return program

    def _source(self) -> str:
        info, symbols = self._info, len(self._info["symbols"])
        sizes = [f"head[{i}]" for i in range(symbols)]
        buffers, writes, position = [], [], 0
        for i in range(len(info["inputs"])):
            buffers.append(f"        void *const in{i} = get((size_t)head[{symbols + i}], 1);")
        for i, tensor in enumerate(info["outputs"]):
            factors = [f"(size_t)shape[{position + k}]" for k in range(len(tensor["shape"]))]
            position += len(factors)
            amount = " * ".join([str(numpy_dtype(tensor["dtype"]).itemsize), *factors])
            buffers.append(f"        void *const out{i} = get({amount}, 0);")
            writes.append(f"        fwrite(out{i}, 1, {amount}, stdout); free(out{i});")
        writes += [f"        free(in{i});" for i in range(len(info["inputs"]))]
        pointers = [f"{role}{i}" for role in ("in", "out") for i in range(len(info[f"{role}puts"]))]
        actual = ["shape"] if info["sized_by_data"] else []  # the call puts its sizes for the largest ones
        return _PROGRAM.format(
            model=info["model"],
            heads=symbols + len(info["inputs"]),
            ranks=position,
            sizes=", ".join(sizes),
            sizes_shape="".join(f"{s}, " for s in sizes),
            buffers="\n".join(buffers),
            writes="\n".join(writes),
            arguments=", ".join(["workspace", "need", *sizes, *pointers, *actual]),
        )

    def _request(self, batch: Arrays) -> bytes:
        sizes: dict[str, int] = {}
        arrays = [np.ascontiguousarray(batch[t["name"]]) for t in self._info["inputs"]]
        for tensor, array in zip(self._info["inputs"], arrays):
            sizes |= {d: n for d, n in zip(tensor["shape"], array.shape) if isinstance(d, str)}
        head = [*(sizes[s] for s in self._info["symbols"]), *(a.nbytes for a in arrays)]
        return np.array(head, "<i8").tobytes() + b"".join(a.tobytes() for a in arrays)

    def _answers(self, data: bytes, count: int) -> tuple[list[list[np.ndarray]], list[float]]:
        results, seconds, at = [], [], 0
        for _ in range(count):
            code, nanoseconds = (int(n) for n in np.frombuffer(data, "<i8", 2, at))
            if code:
                raise CuvilError(f"the library returned error {code}", self._out.model)
            at += 16
            shapes = []
            for tensor in self._info["outputs"]:
                rank = len(tensor["shape"])
                shapes.append(tuple(int(n) for n in np.frombuffer(data, "<i8", rank, at)))
                at += 8 * rank
            outputs = []
            for tensor, shape in zip(self._info["outputs"], shapes):
                array = np.frombuffer(data, numpy_dtype(tensor["dtype"]), math.prod(shape), at)
                outputs.append(array.reshape(shape))
                at += array.nbytes
            results.append(outputs)
            seconds.append(nanoseconds / 1e9)
        return results, seconds
