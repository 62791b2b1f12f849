"""The table of real trained networks: ``python -m zoo.table``, run in ``tests``, writes it into its page.

What is known of each network lies in ``real_models.json``; the names of networks as arguments measure these
again, at the sizes of the zoo, with tuned kernels and without.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from cuvil import fsio
from zoo import real
from zoo.entry import ModelEntry
from zoo.packages import PACKAGES, requirement_of

DATA = Path(__file__).with_name("real_models.json")
PAGE = real.REPOSITORY / "docs" / "real-models.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"

Row = dict[str, Any]


def read() -> dict[str, Row]:
    """By network: its size in ``bytes``, its ``nodes`` and ``operators`` (kinds of nodes), the ``options`` of
    ``cuvil compile`` for it, and the largest ``error`` that was measured."""
    rows: dict[str, Row] = json.loads(DATA.read_text(encoding="utf-8"))
    return rows


def describe(entry: ModelEntry) -> Row:
    """What can be said of a network without compiling it."""
    model = entry.model()
    kinds = [node.op_type for node in _nodes(model.graph)]
    return {
        "bytes": model.ByteSize(),
        "nodes": len(kinds),
        "operators": len(set(kinds)),
        "options": options(entry, model),
    }


def options(entry: ModelEntry, model: onnx.ModelProto) -> str:
    """Options of the command line that fix what is open besides the batch, which it binds to 1 itself."""
    words = [f"--value {name}={value}" for name, value in entry.values.items()]
    shapes = entry.shapes()
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name in shapes and any(dim.dim_value <= 0 for dim in dims[1:]):
            words.append(f"--shape {value.name}={','.join(map(str, shapes[value.name]))}")
    return " ".join(words)


def measure(entry: ModelEntry) -> float:
    """The largest error against onnxruntime, relative to the largest value of the output."""
    import cuvil

    oracle = onnxruntime.InferenceSession(
        entry.model().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    worst = 0.0
    for tuned in (True, False):
        path = entry.path(Path())
        session = cuvil.compile(path, shapes=entry.shapes(), values=entry.values, tuned=tuned)
        names = {argument.name for argument in session.get_inputs()}
        for feeds in (entry.inputs(0), entry.inputs(1)):
            got = session.run(None, {name: array for name, array in feeds.items() if name in names})
            for ours, theirs in zip(got, map(np.asarray, oracle.run(None, feeds))):
                difference = np.abs(ours.astype(np.float64) - theirs).max(initial=0.0)
                worst = max(worst, float(difference / max(np.abs(theirs).max(initial=0.0), 1e-30)))
    return worst


def render(rows: dict[str, Row]) -> str:
    """The table in Markdown."""
    lines = [
        "| network | of | licence | MB | nodes (kinds) | largest error | allowed | options |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, entry in real.MODELS.items():
        row, (source, licence) = rows[name], _source(name)
        cells = [name, source, licence, f"{row['bytes'] / 1e6:.2f}", f"{row['nodes']} ({row['operators']})"]
        cells += [f"{row['error']:.0e}" if row["error"] else "0", f"{entry.tolerance:.0e}"]
        cells.append(f"`{row['options']}`" if row["options"] else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def page(text: str, rows: dict[str, Row]) -> str:
    """The documentation's page `text` with the table in its place."""
    head, _, rest = text.partition(BEGIN)
    return head + BEGIN + render(rows) + END + rest.partition(END)[2]


def _source(name: str) -> tuple[str, str]:
    if name in real.FOLDER_FILES:
        return "converted", real.FOLDER_LICENCES[name]
    requirement = requirement_of(name)
    return requirement.replace("==", " "), PACKAGES[requirement].licence


def _nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    found = []
    for node in graph.node:
        found.append(node)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found += _nodes(attribute.g)
    return found


def main() -> None:
    """Measure what is asked for, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*real.MODELS, []], help="networks to measure again")
    rows = read()
    for name in parser.parse_args().names:
        rows[name] = describe(real.MODELS[name]) | {"error": float(f"{measure(real.MODELS[name]):.1e}")}
        print(name, rows[name])
    fsio.write_text(DATA, json.dumps({name: rows[name] for name in real.MODELS}, indent=1) + "\n")
    fsio.write_text(PAGE, page(PAGE.read_text(encoding="utf-8"), rows))


if __name__ == "__main__":
    main()
