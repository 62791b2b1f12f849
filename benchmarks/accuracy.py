"""Accuracy before and after quantization: ``python -m benchmarks.accuracy --help``.

Each model's held-out test set goes through onnxruntime in float32, Cuvil in float32 and in int8, and
what onnxruntime's static quantizer makes of the same calibration data as its documentation advises
(pre-processed, QDQ, smallest and largest value, weights per channel).
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quant_pre_process, quantize_static

import cuvil
from cuvil import fsio
from cuvil.quantize.evaluate import accuracy
from cuvil.target.schema import Target, load

MODELS = Path(__file__).resolve().parents[1] / "models"
COLUMNS = ("onnxruntime f32", "cuvil f32", "cuvil int8", "onnxruntime int8")

Array = npt.NDArray[Any]
Row = dict[str, Any]


class OneByOne(CalibrationDataReader):  # type: ignore[misc]
    """Calibration samples as onnxruntime's quantizer asks for them."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._rows: Iterator[tuple[Array, ...]] = zip(*arrays.values())
        self._names = list(arrays)

    def get_next(self) -> dict[str, Array] | None:
        row = next(self._rows, None)
        return None if row is None else {name: value[None] for name, value in zip(self._names, row)}


def compare(name: str, target: Target) -> Row:
    """The accuracies of ``models/<name>``, by column."""
    folder = MODELS / name
    model = folder / f"{name}.onnx"
    with np.load(folder / "test.npz") as test, np.load(folder / "calibration.npz") as calibration:
        data, samples = dict(test), dict(calibration)
    plain = cuvil.compile(model, target, quantization="none")
    small = cuvil.compile(model, target, quantization="int8", calibration=samples)
    with tempfile.TemporaryDirectory() as scratch:
        prepared, naive = Path(scratch, "prepared.onnx"), Path(scratch, "naive.onnx")
        quant_pre_process(model, prepared, skip_symbolic_shape=True)
        quantize_static(prepared, naive, OneByOne(samples), quant_format=QuantFormat.QDQ, per_channel=True)
        rival_small = onnxruntime.InferenceSession(naive, providers=["CPUExecutionProvider"])
    rival = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    sessions = zip(COLUMNS, (rival, plain, small, rival_small))
    row: Row = {"model": name, "samples": len(data["label"])}
    return row | {column: accuracy(lambda feeds, s=s: s.run(None, feeds), data) for column, s in sessions}


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table."""
    lines = ["| model | samples | " + " | ".join(COLUMNS) + " |", "|---" * (2 + len(COLUMNS)) + "|"]
    for row in rows:
        cells = " | ".join(f"{row[column]:.4f}" for column in COLUMNS)
        lines.append(f"| {row['model']} | {row['samples']} | {cells} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the exit status is 1 where Cuvil's int8 loses more than the tolerance."""
    parser = argparse.ArgumentParser("python -m benchmarks.accuracy", description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--models", type=lambda text: text.split(","), default=["digits", "vowels"], metavar="A,B")
    add("--target", default="host", help="profile that cuvil compiles for; it must run here (default host)")
    add("--method", choices=("minmax", "percentile", "mse"), help="range finding, instead of the profile's")
    add("--tolerance", type=float, default=0.01, help="accuracy that int8 may lose (default 0.01)")
    add("--output", metavar="FILE.json", help="write all figures there")
    options = parser.parse_args(arguments)
    logging.getLogger().setLevel(logging.ERROR)
    target = load(options.target)
    if options.method:
        ranges = replace(target.quantization.calibration, method=options.method)
        target = replace(target, quantization=replace(target.quantization, calibration=ranges))
    rows = [compare(name, target) for name in options.models]
    print(markdown(rows))
    if options.output:
        fsio.write_json(options.output, {"method": target.quantization.calibration.method, "results": rows})
    return int(any(row["cuvil int8"] < row["cuvil f32"] - options.tolerance for row in rows))


if __name__ == "__main__":
    sys.exit(main())
