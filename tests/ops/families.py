"""Models that are compiled once and run on several values, compared with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import native
import numpy as np
import onnx
from single import Array, model, reference

RNG = np.random.default_rng(7)


def i64(*values: int) -> Array:
    return np.array(values, np.int64)


def f32(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class Family:
    """One model and the inputs that it is run on.

    Attributes:
        runs: the run-time values, each joined to `fixed`.
        wrong: values for which the run must end with an error code.
    """

    nodes: Sequence[onnx.NodeProto]
    fixed: Mapping[str, Array]
    runs: Sequence[Mapping[str, Array]]
    wrong: Sequence[Mapping[str, Array]] = ()
    outputs: Sequence[str] = ("y",)
    constants: Mapping[str, Array] = field(default_factory=dict)
    dims: Mapping[str, Sequence[int | str]] = field(default_factory=dict)
    opset: int = 21
    declared: Mapping[str, Sequence[int | str]] = field(default_factory=dict)
    tolerance: float = 1e-5

    def feeds(self, values: Mapping[str, Array]) -> dict[str, Array]:
        return {**self.fixed, **values}

    @property
    def model(self) -> onnx.ModelProto:
        made = model(
            self.nodes, self.feeds(self.runs[0]), self.outputs, self.constants, self.dims, self.opset
        )
        for number, n in enumerate(made.graph.node):
            n.name = f"{n.op_type}{number}"
        for output in made.graph.output:
            if output.name in self.declared:
                kind = onnx.TensorProto.FLOAT
                output.CopyFrom(
                    onnx.helper.make_tensor_value_info(output.name, kind, self.declared[output.name])
                )
        return made


BAD_VALUE = "returned error code 5"

Outcome = list[Array] | str


def outcomes(
    families: Mapping[str, Family], device: Mapping[str, Any] | None = None
) -> dict[str, tuple[list[Outcome], list[Outcome]]]:
    """What generated code makes of the runs of each family, and of the wrong values."""
    schedules = {name: native.prepare(f.model, device) for name, f in families.items()}
    libraries = native.build(schedules)
    tasks = [
        native.call(f"{name}/{kind}/{k}", schedules[name], libraries[name], f.feeds(values))
        for name, f in families.items()
        for kind, side in (("right", f.runs), ("wrong", f.wrong))
        for k, values in enumerate(side)
    ]
    found = native.run(tasks)
    return {
        name: (
            [found[f"{name}/right/{k}"] for k in range(len(f.runs))],
            [found[f"{name}/wrong/{k}"] for k in range(len(f.wrong))],
        )
        for name, f in families.items()
    }


def assert_agrees(family: Family, found: Sequence[Outcome]) -> None:
    """Sizes and values are onnxruntime's."""
    for values, results in zip(family.runs, found, strict=True):
        assert not isinstance(results, str), (values, results)
        for got, want in zip(results, reference(family.model, family.feeds(values)), strict=True):
            assert got.shape == want.shape, values
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=family.tolerance, err_msg=str(values))
