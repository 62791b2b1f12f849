"""ONNX's own backend tests (all groups but its nine networks), compiled to C and run.

``python tests/ops/conformance.py --update`` writes what is the case now to ``expectations.json``;
with names of cases (or beginnings of names) instead it prints how these fare.

A case passes where all outputs agree with the suite's within the suite's tolerances, or for floats
within `ULPS` units in the last place of the output's largest element (what cancels to near 0); types of
8 bits and fewer, which are only moved and converted, must agree exactly.
The number of items of a sequence, their shapes, whether an optional is present, and the shape of an input
of unknown rank are those of the case's data.  Inputs that a lowering must know at compile time (axes, shapes,
trip counts) are inputs of the graph in these cases; such a case does not pass, but is tried once more with
them as constants, which is recorded apart.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

HERE = Path(__file__).resolve().parent

if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import native  # noqa: E402

from cuvil.errors import CuvilError, UnsupportedError  # noqa: E402

EXPECTATIONS = HERE / "expectations.json"

PASS = "pass"

ULPS = 4
"""Error that rounding at each step may add up to."""
_RANDOM = "random numbers, which numpy makes in another way"

BY_DESIGN = {
    "test_resize_downsample_scales_linear_align_corners": "takes the output's real size, as onnxruntime does",
    "test_resize_downsample_scales_cubic_align_corners": "takes the output's real size, as onnxruntime does",
    **dict.fromkeys(
        (f"test_bernoulli{kind}{form}" for kind in ("", "_double", "_seed") for form in ("", "_expanded")),
        _RANDOM,
    ),
    **dict.fromkeys(
        (f"test_training_dropout{kind}" for kind in ("", "_default", "_mask", "_default_mask")), _RANDOM
    ),
}
"""Cases where another answer than the suite's is wanted."""

RUN_TIME = "needs a run-time value at compile time"

CONSTANTS = frozenset((
    "M", "axes", "axis", "block_shape", "cond", "delta", "depth", "dft_length", "diagonal", "ends",
    "frame_length", "frame_step", "image_shape", "K", "k", "limit", "output_shape", "pads", "position",
    "ratio", "repeats", "roi", "scales", "shape", "size", "sizes", "split", "start", "starts", "steps",
    "training_mode",
))  # fmt: skip
"""Formal names of inputs that lowerings need at compile time."""


GROUPS = ("node", "simple", "pytorch-converted", "pytorch-operator")
"""The suite's groups; the networks of ``real`` are in ``test_onnx_backend.py``, one at a time."""


def cases() -> dict[str, Any]:
    """The suite's cases by name; no two groups have a name in common."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [case for group in GROUPS for case in load_model_tests(kind=group)]
    return {case.name: case if case.model_dir is None else _loaded(case) for case in found}


def _loaded(case: Any) -> Any:
    """A case that is files in a folder, with its model and data."""
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    kinds = {"input": [v.type for v in fed(model)], "output": [v.type for v in model.graph.output]}
    data = []
    for path in sorted(folder.glob("test_data_set_*")):
        read = ([_proto(path / f"{k}_{i}.pb", t) for i, t in enumerate(types)] for k, types in kinds.items())
        data.append(tuple(read))
    return replace(case, model=model, data_sets=data)


def _proto(path: Path, kind: onnx.TypeProto) -> Any:
    """The value in `path`: an array, a list of them, or None."""
    data = path.read_bytes()
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def fed(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The inputs that are not initializers."""
    given = {t.name for t in model.graph.initializer}
    return [v for v in model.graph.input if v.name not in given]


def verdicts(
    chosen: Mapping[str, Any], device: Mapping[str, Any] | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """`PASS` or the reason of each case, and the same for those tried with constant shape inputs; with
    the tuned kernels of `device`, or with none."""
    first = _judge({name: (case.model, case) for name, case in chosen.items()}, device)
    again = {
        name: (_with_constants(chosen[name]), chosen[name]) for name, v in first.items() if v == RUN_TIME
    }
    return first, _judge(again, device)


def _judge(
    models: Mapping[str, tuple[onnx.ModelProto, Any]], device: Mapping[str, Any] | None
) -> dict[str, str]:
    found: dict[str, str] = {}
    schedules = {}
    for name, (model, _) in models.items():
        try:
            schedules[name] = native.prepare(model, device, feeds(models[name][1]))
        except CuvilError as error:
            found[name] = reason(error)
        except Exception as error:
            found[name] = f"BUG {type(error).__name__}: {error}"
    libraries = native.build(schedules)
    tasks = []
    for name, s in schedules.items():
        if not libraries[name][0]:
            found[name] = libraries[name][1]
            continue
        try:
            tasks.append(native.call(name, s, libraries[name], native.flat(feeds(models[name][1]))))
        except ValueError as error:
            found[name] = f"BUG {error}"
    for name, result in native.run(tasks).items():
        case = models[name][1]
        found[name] = result if isinstance(result, str) else compare(case, result)
        if found[name] != PASS:
            found[name] = BY_DESIGN.get(name, found[name])
    return {name: found[name] for name in models}


def feeds(case: Any) -> dict[str, Any]:
    """A case's inputs by name."""
    return dict(zip((v.name for v in fed(case.model)), map(as_value, case.data_sets[0][0])))


def as_value(value: Any) -> Any:
    """A value of a case: an array, a list of arrays for a sequence, or None for an absent optional."""
    if value is None:
        return None
    if isinstance(value, list):
        return [np.asarray(item) for item in value]
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def compare(case: Any, results: list[npt.NDArray[Any]]) -> str:
    """`PASS`, or how the results differ from the suite's."""
    wanted = native.flat({v.name: as_value(a) for v, a in zip(case.model.graph.output, case.data_sets[0][1])})
    if len(results) != len(wanted):
        return f"{len(results)} tensors, not {len(wanted)}"
    for number, (got, want) in enumerate(zip(results, wanted.values())):
        if got.dtype != want.dtype or got.shape != want.shape:
            return f"output {number} is {got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
        if got.dtype.kind in "biuO":
            wrong = int((got != want).sum())
        else:
            x, y = got.astype(np.float64), want.astype(np.float64)
            rtol = atol = 0.0
            if got.dtype.itemsize > 1:
                largest = np.abs(y[np.isfinite(y)]).max(initial=0)
                rtol, atol = case.rtol, ULPS * float(ml_dtypes.finfo(got.dtype).eps) * largest
                atol = max(case.atol, atol)
            wrong = int((~np.isclose(x, y, rtol=rtol, atol=atol, equal_nan=True)).sum())
        if wrong:
            return f"output {number}: {wrong} of {got.size} elements are wrong"
    return PASS


def reason(error: CuvilError) -> str:
    """The reason that goes into the record: the message without what differs from case to case."""
    text = error.message
    if isinstance(error, UnsupportedError) and ("known at compile time" in text or "at compile time" in text):
        return RUN_TIME
    return text if isinstance(error, UnsupportedError) else f"refused: {text}"


def _with_constants(case: Any) -> onnx.ModelProto:
    """The case with the inputs in `CONSTANTS` as initializers."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    values = {name: a for name, a in feeds(case).items() if isinstance(a, np.ndarray)}
    fixed: set[str] = set()
    opset = max(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    for node in model.graph.node:
        if node.domain or not onnx.defs.has(node.op_type):
            continue
        formal = onnx.defs.get_schema(node.op_type, opset).inputs
        for position, name in enumerate(node.input):
            parameter = formal[min(position, len(formal) - 1)]
            wanted = parameter.name in CONSTANTS or node.op_type == "ConstantOfShape"
            if wanted and name in values:
                fixed.add(name)
    if case.name.endswith("_expanded"):  # a function's body; its inputs have the operator's formal names
        fixed.update(n for n, a in values.items() if a.dtype.kind == "i" and (n in CONSTANTS or not a.ndim))
    kept = [v for v in model.graph.input if v.name not in fixed]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(numpy_helper.from_array(values[n], n) for n in sorted(fixed))
    return model


def main(arguments: Iterable[str]) -> None:
    """Print the verdicts of the cases named, or with ``--update`` record all."""
    names = list(arguments)
    every = cases()
    if names == ["--update"]:
        first, again = verdicts(every)
        text = json.dumps({"cases": first, "with_constants": again}, indent=1, sort_keys=True)
        EXPECTATIONS.write_text(text + "\n")
        for group in GROUPS:
            own = [name for name, case in every.items() if case.kind == group]
            passed = sum(first[name] == PASS for name in own)
            tried = [again[name] for name in own if name in again]
            more = f", {tried.count(PASS)} of {len(tried)} more with constant shape inputs" if tried else ""
            print(f"{group}: {passed} of {len(own)} pass{more}")
        return
    chosen = {name: case for name, case in every.items() if any(name.startswith(n) for n in names)}
    first, again = verdicts(chosen)
    for name, verdict in first.items():
        print(f"{name}: {verdict}" + (f"; with constants: {again[name]}" if name in again else ""))


if __name__ == "__main__":
    main(sys.argv[1:])
