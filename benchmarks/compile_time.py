"""How long a compile takes and how large its library is: ``python -m benchmarks.compile_time --help``.

Two families of generated networks of any number of nodes - residual convolutions, and transformer layers -
have next to no weights, so what is timed is the compiler's own work and the C compiler's on its code.  The
exponent is the slope of the logarithm of the processor's seconds over that of the number of nodes, fitted by
least squares: 1 is linear growth.  Networks of the zoo follow.  Processor time is that of Cuvil and of the
compilers that it starts, and depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from zoo.entry import Unavailable
from zoo.net import Net, f32, i64
from zoo.registry import find

from benchmarks.latency import machine
from cuvil import artefacts, fsio, stages
from cuvil.codegen.names import identifier
from cuvil.errors import CuvilError
from cuvil.session import configure
from cuvil.target.schema import load
from cuvil.toolchain.profile import compiler

STAGES = ("import", "partition", "quantize", "codegen", "cc")
CHANNELS, SIZE = 16, 16
WIDTH, HEADS, TOKENS = 32, 2, 16
MODELS = ("resnet18", "mobilenet_v2", "bert_mini", "ppocr_cls")

Row = dict[str, Any]


def convolutions(nodes: int) -> onnx.ModelProto:
    """Residual blocks of two 3x3 convolutions, five nodes each, on [1, 16, 16, 16]."""
    net = Net(f"convolutions_{nodes}", 1)
    shape = [1, CHANNELS, SIZE, SIZE]
    x = net.input("x", shape)
    while len(net) + 5 <= nodes:
        y = net.op("Relu", net.conv(x, CHANNELS, CHANNELS, 3, gain=1.0))
        x = net.op("Relu", net.op("Add", x, net.conv(y, CHANNELS, CHANNELS, 3, gain=0.5)))
    _filled(net, x, nodes, shape)
    return net.model()


def transformer(nodes: int) -> onnx.ModelProto:
    """Transformer layers with attention in its parts, 32 nodes each, on [1, 16, 32]."""
    net = Net(f"transformer_{nodes}", 2)
    shape = [1, TOKENS, WIDTH]
    x = net.input("x", shape)
    while len(net) + 32 <= nodes:
        x = net.layer_norm(net.op("Add", x, _attention(net, x)), WIDTH)
        y = net.gelu(net.linear(x, WIDTH, 2 * WIDTH))
        x = net.layer_norm(net.op("Add", x, net.linear(y, 2 * WIDTH, WIDTH)), WIDTH)
    _filled(net, x, nodes, shape)
    return net.model()


def _attention(net: Net, x: str) -> str:
    def heads(perm: Sequence[int]) -> str:
        y = net.op("Reshape", net.linear(x, WIDTH, WIDTH), i64(1, TOKENS, HEADS, WIDTH // HEADS))
        return net.op("Transpose", y, perm=perm)

    query, key, value = heads([0, 2, 1, 3]), heads([0, 2, 3, 1]), heads([0, 2, 1, 3])
    scores = net.op("Div", net.op("MatMul", query, key), f32((WIDTH // HEADS) ** 0.5))
    mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), value)
    mixed = net.op("Transpose", mixed, perm=[0, 2, 1, 3])
    return net.linear(net.op("Reshape", mixed, i64(1, TOKENS, WIDTH)), WIDTH, WIDTH)


def _filled(net: Net, x: str, nodes: int, shape: Sequence[int]) -> None:
    """The rest of the nodes, then the output."""
    while len(net) < nodes:
        x = net.op("Tanh", x)
    net.output(x, "y", shape)


GENERATED: dict[str, Callable[[int], onnx.ModelProto]] = {
    "convolutions": convolutions,
    "transformer": transformer,
}


class Stopwatch:
    """Seconds of each stage, from the lines that `cuvil.stages.run_all` reports as it goes."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._clock = clock
        self._stage, self._begin = "", clock()

    def __call__(self, line: str) -> None:
        """Note that a stage begins where `line` starts with its name; "" ends the last."""
        stage = line.split(" ")[0].rstrip(":")
        if stage in STAGES or not stage:
            now = self._clock()
            if self._stage:
                self.seconds[self._stage] += now - self._begin
            self._stage, self._begin = stage, now


def measure(path: Path, target: str, folder: Path, options: dict[str, Any]) -> Row:
    """Compile the model at `path`: seconds per stage, of the processor, and kB of C and of the library.

    Raises:
        CuvilError: it cannot be compiled.
    """
    profile = configure(load(target), 1, "none")
    out = artefacts.layout(folder, identifier(path.stem, "model"), profile)
    watch, begin = Stopwatch(), sum(os.times()[:4])
    stages.run_all(path, out, profile, progress=watch, **options)
    watch("")
    processor = sum(os.times()[:4]) - begin
    sources = sum(file.stat().st_size for file in (folder / "codegen").glob("*.c"))
    weights = sum(file.stat().st_size for file in (folder / "codegen").glob("*.bin"))
    return {
        "seconds": {stage: round(s, 3) for stage, s in watch.seconds.items()},
        "total": round(sum(watch.seconds.values()), 3),
        "processor": round(processor, 3),
        "c_kb": round(sources / 1e3, 1),
        "weights_kb": round(weights / 1e3, 1),
        "library_kb": round(out.libraries[1].stat().st_size / 1e3, 1),
    }


def exponent(rows: Sequence[Row]) -> float:
    """The slope of log(seconds) over log(nodes): seconds grow with that power of the nodes.

    Raises:
        ValueError: fewer than two different numbers of nodes.
    """
    nodes = np.log([row["nodes"] for row in rows])
    if np.ptp(nodes) == 0:
        raise ValueError("two sizes at least are needed")
    return float(np.polyfit(nodes, np.log([row["processor"] for row in rows]), 1)[0])


def growth(rows: Sequence[Row]) -> dict[str, float]:
    """The exponent of each family of generated networks that has several sizes."""
    found = {}
    for family in GENERATED:
        of = [row for row in rows if row.get("family") == family and "total" in row]
        if len({row["nodes"] for row in of}) > 1:
            found[family] = round(exponent(of), 2)
    return found


def markdown(rows: Sequence[Row], exponents: dict[str, float]) -> str:
    """The results as a Markdown table, one row a network, and the exponents."""
    titles = [
        "model",
        "nodes",
        *(f"{stage} s" for stage in STAGES),
        "total s",
        "processor s",
        "C kB",
        "library kB",
        "of it weights kB",
    ]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for row in rows:
        if "total" not in row:
            reason = " ".join(str(row["skipped"]).replace("|", "/").split())
            lines.append(f"| {row['model']} | | skipped: {reason} |" + " |" * (len(titles) - 3))
            continue
        seconds = [f"{row['seconds'][stage]:.2f}" for stage in STAGES]
        sizes = [f"{row[key]:.0f}" for key in ("c_kb", "library_kb", "weights_kb")]
        cells = [
            row["model"],
            str(row["nodes"]),
            *seconds,
            f"{row['total']:.2f}",
            f"{row['processor']:.2f}",
            *sizes,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    for family, power in exponents.items():
        lines.append(f"\n{family}: seconds grow with the {power:.2f}th power of the number of nodes.")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile what is asked for and print the table."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(arguments)
    rows: list[Row] = []
    report = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": ["python", "-m", "benchmarks.compile_time", *arguments],
        "machine": machine(),
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "onnx": onnx.__version__,
            "compiler": compiler(load(options.target).slice("cc"), None).version,
        },
        "target": options.target,
        "results": rows,
    }
    with tempfile.TemporaryDirectory(prefix="cuvil-") as name:
        folder = Path(name)
        for family in options.families:
            for nodes in options.nodes:
                row: Row = {"model": f"{family} {nodes}", "family": family, "nodes": nodes}
                path = folder / f"{family}_{nodes}.onnx"
                onnx.save(GENERATED[family](nodes), path)
                print(f"{row['model']} ...", file=sys.stderr, flush=True)
                rows.append(row | measure(path, options.target, folder / path.stem, {}))
        for model in options.models:
            entry = find(model)
            row = {"model": entry.name, "nodes": 0}
            print(f"{entry.name} ...", file=sys.stderr, flush=True)
            try:
                row["nodes"] = len(entry.model().graph.node)
                given = {"shapes": entry.shapes(), "values": entry.values}
                row |= measure(entry.path(folder), options.target, folder / entry.name, given)
            except (Unavailable, CuvilError) as reason:
                row["skipped"] = str(reason)
            rows.append(row)
    exponents = growth(rows)
    if options.output:
        fsio.write_json(options.output, report | {"exponents": exponents})
    print(markdown(rows, exponents))
    return 0


def _parser() -> argparse.ArgumentParser:
    about = __doc__.split("\n\n")[0]
    parser = argparse.ArgumentParser("python -m benchmarks.compile_time", description=about)

    def counts(text: str) -> list[int]:
        numbers = [int(n) for n in text.split(",")]
        if min(numbers) < 1:
            raise ValueError
        return numbers

    def names(known: Callable[[str], object]) -> Callable[[str], list[str]]:
        def several(text: str) -> list[str]:
            wanted = [name for name in text.split(",") if name]
            for name in wanted:
                try:
                    known(name)
                except KeyError as error:
                    raise argparse.ArgumentTypeError(str(error.args[0])) from error
            return wanted

        return several

    add = parser.add_argument
    add(
        "--nodes",
        type=counts,
        default=[100, 300, 1000, 3000],
        metavar="N,M",
        help="sizes of the generated networks (default 100,300,1000,3000)",
    )
    add(
        "--families",
        type=names(GENERATED.__getitem__),
        default=list(GENERATED),
        metavar="A,B",
        help=f"of {', '.join(GENERATED)}",
    )
    add(
        "--models",
        type=names(find),
        default=list(MODELS),
        metavar="A,B",
        help=f"names from the zoo or paths to .onnx files (default {','.join(MODELS)})",
    )
    add("--target", default="host", help="profile that is compiled for (default host)")
    add("--output", metavar="FILE.json", help="write all figures there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
