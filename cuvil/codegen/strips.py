"""Chains of kernels that run strip by strip (`cuvil.schedule.strips`), as C functions."""

from __future__ import annotations

from collections.abc import Sequence

from cuvil.codegen.functions import Function
from cuvil.schedule.strips import Stage, Strips


def function(
    chain: Strips,
    kernels: Sequence[Function],
    name: str,
    parameters: Sequence[str],
    calls: Sequence[Sequence[str]],
    batch: str,
    profiled: bool,
) -> str:
    """``static void name(parameters, slot, lo, hi)``: pieces [lo, hi) of a chain's strips, in thread `slot`.

    Args:
        parameters: of the segment's function, declared; the first is the workspace.
        calls: of each kernel the arguments before its points.
        batch: the number of samples.
        profiled: only one thread runs it, which may say when a kernel is through.
    """
    lines = [
        f"static void {name}({', '.join(parameters)}, cv_idx slot, cv_idx lo, cv_idx hi) {{",
        "    unsigned char *const base = (unsigned char *)workspace;",
        "    (void)slot;",
        f"    for (cv_idx n = 0; n < {batch}; n++) {{",
        "        for (cv_idx piece = lo; piece < hi; piece++) {",
        f"            const cv_idx start = {chain.count} * piece / {chain.pieces} * {chain.height};",
        f"            const cv_idx end = {chain.count} * (piece + 1) / {chain.pieces} * {chain.height};",
        f"            const cv_idx stop = cv_min_idx(end, {chain.rows});",
    ]
    done = ", ".join(f"d{i} = 0" for i in range(len(kernels)))
    lines += [
        f"            cv_idx {done}; /* rows done by each kernel */",
        f"            for (cv_idx y = start; y < stop; y += {chain.height}) {{",
        f"                const cv_idx z = cv_min_idx(y + {chain.height}, stop);",
    ]
    for i, (stage, f, arguments) in enumerate(zip(chain.stages, kernels, calls)):
        low, high = _row(stage, "y", stage.span.low), _row(stage, "z", stage.span.high)
        before = ["n"] * (not stage.each)
        if stage.outer > 1:
            before = [f"n * {stage.outer} + o"] if before else ["o"]
        start = "".join(f"({b}) * {stage.rows} + " for b in before)
        points = f"({start}f{i}) * {stage.points}, ({start}d{i}) * {stage.points}"
        slot = ["slot"] if f.kernel.slot is not None else []
        loop = f"for (cv_idx o = 0; o < {stage.outer}; o++) " if stage.outer > 1 else ""
        lines += [
            f"                const cv_idx f{i} = cv_max_idx(d{i}, {low});",
            f"                d{i} = cv_max_idx(f{i}, {high});",
            f"                {loop}{f.callee}({', '.join([*arguments, *slot, points])});",
        ]
        lines += [f'                CV_TICK("{f.name}");'] if profiled else []
    return "\n".join([*lines, "            }", "        }", "    }", "}"]) + "\n"


def _row(stage: Stage, y: str, offset: int) -> str:
    """The row of a stage that belongs to row `y` of the result, kept among those that it has."""
    scaled = y if stage.span.scale == 1 else f"{stage.span.scale} * {y}"
    return f"cv_max_idx(cv_min_idx({scaled} + {offset}, {stage.rows}), 0)"
