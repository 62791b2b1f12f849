"""Steps of optimizers against the formulas of the specification, in numpy."""

from __future__ import annotations

from typing import Any

import native
import numpy as np
import pytest
from onnx import helper
from single import Array, model, node

from cuvil.errors import ModelError
from cuvil.ops.optimizers import DOMAIN

RNG = np.random.default_rng(8)
Values = dict[str, Array]


def adagrad(r: Any, t: Any, state: list[Array], a: dict[str, Any]) -> list[Array]:
    x, g, h = state
    g = a["norm_coefficient"] * x + g
    h = h + g * g
    return [x - r / (1 + t * a["decay_factor"]) * g / (np.sqrt(h) + a["epsilon"]), h]


def adam(r: Any, t: Any, state: list[Array], a: dict[str, Any]) -> list[Array]:
    x, g, v, h = state
    g = a["norm_coefficient"] * x + g
    v = a["alpha"] * v + (1 - a["alpha"]) * g
    h = a["beta"] * h + (1 - a["beta"]) * g * g
    rate = r * np.sqrt(1 - a["beta"] ** float(t)) / (1 - a["alpha"] ** float(t)) if t > 0 else r
    return [(1 - a["norm_coefficient_post"]) * (x - rate * v / (np.sqrt(h) + a["epsilon"])), v, h]


def momentum(r: Any, t: Any, state: list[Array], a: dict[str, Any]) -> list[Array]:
    x, g, v = state
    g = a["norm_coefficient"] * x + g
    v = a["alpha"] * v + (a["beta"] if t > 0 else 1) * g
    return [x - r * (g + a["alpha"] * v if a["mode"] == "nesterov" else v), v]


STEPS = {"Adagrad": (adagrad, 3), "Adam": (adam, 4), "Momentum": (momentum, 3)}
ADAM = {"alpha": 0.8, "beta": 0.95, "norm_coefficient": 0.1, "norm_coefficient_post": 0.02, "epsilon": 1e-3}
MOMENTUM = {"alpha": 0.9, "beta": 0.6, "norm_coefficient": 0.05}
ADAGRAD = {"decay_factor": 0.1, "norm_coefficient": 0.2, "epsilon": 1e-3}


def case(op: str, t: int, shapes: list[tuple[int, ...]], dtype: type = np.float32, **attrs: Any) -> Any:
    kinds = STEPS[op][1]
    feeds: Values = {"r": np.array(0.3, np.float32), "t": np.array(t)}
    for kind in range(kinds):
        for k, shape in enumerate(shapes):
            v = RNG.standard_normal(shape).astype(dtype)
            feeds[f"v{kind}{k}"] = np.abs(v) if kind == kinds - 1 else v
    outputs = [f"y{n}" for n in range((kinds - 1) * len(shapes))]
    n = node(op, " ".join(feeds), " ".join(outputs), DOMAIN, **attrs)
    dims = {f"v{kind}0": ["n", *shapes[0][1:]] for kind in range(kinds)}
    made = model([n], feeds, outputs, {}, dims)
    made.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return made, feeds


CASES = {
    "adagrad": case("Adagrad", 3, [(2, 3)], **ADAGRAD),
    "adagrad of two": case("Adagrad", 0, [(2, 3), (4,)], np.float64, **ADAGRAD),
    "adam": case("Adam", 5, [(3, 2)], **ADAM),
    "adam, first step": case("Adam", 0, [(3, 2)], **ADAM),
    "adam of three": case("Adam", 2, [(3,), (1, 2), (2, 2)], np.float64, **ADAM),
    "momentum": case("Momentum", 4, [(5,)], mode="standard", **MOMENTUM),
    "momentum, first step": case("Momentum", 0, [(5,)], mode="standard", **MOMENTUM),
    "nesterov": case("Momentum", 1, [(5,), (2, 2)], mode="nesterov", **MOMENTUM),
}


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    return native.outputs(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_step(name: str, results: dict[str, list[Array]]) -> None:
    proto, feeds = CASES[name]
    (n,) = proto.graph.node
    step, kinds = STEPS[n.op_type]
    attributes = {a.name: helper.get_attribute_value(a) for a in n.attribute}
    attributes = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
    r, t, *tensors = feeds.values()
    count = len(tensors) // kinds
    wanted = [step(r, t, tensors[k::count], attributes) for k in range(count)]
    flat = [value for kind in zip(*wanted) for value in kind]
    assert len(results[name]) == len(flat)
    for got, want in zip(results[name], flat):
        assert got.dtype == tensors[0].dtype
        np.testing.assert_allclose(got, want, rtol=2e-6 if got.dtype == np.float32 else 1e-6)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ModelError, match="mode 'other' is neither"):
        native.prepare(case("Momentum", 4, [(5,)], mode="other", **MOMENTUM)[0])


def test_tensors_that_do_not_pair_are_refused() -> None:
    proto, _ = case("Adagrad", 3, [(2,)])
    del proto.graph.node[0].input[4:]
    with pytest.raises(ModelError):
        native.prepare(proto)
