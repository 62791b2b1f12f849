"""RNN, GRU and LSTM against onnxruntime, over what ONNX's suite does not cover."""

from __future__ import annotations

from typing import Any

import native
import numpy as np
import onnx
import pytest
from single import Array, model, node, reference

from cuvil.errors import ModelError

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
HIDDEN, INPUT = 5, 3

CASES: dict[str, dict[str, Any]] = {
    "one step": {"T": 1},
    "one step, no bias, no state": {"T": 1, "optional": ""},
    "batch of one": {"B": 1, "T": 7},
    "state, no bias": {"optional": "h c"},
    "reverse": {"direction": "reverse"},
    "bidirectional": {"direction": "bidirectional"},
    "lengths": {"optional": "bias lengths h c"},
    "lengths, reverse": {"optional": "bias lengths h c", "direction": "reverse"},
    "lengths, bidirectional, no state": {"optional": "bias lengths", "direction": "bidirectional"},
    "clip": {"clip": 0.3},
    "symbolic": {"symbolic": True, "optional": "bias lengths h c", "direction": "bidirectional"},
    "symbolic, one step": {"symbolic": True, "T": 1},
    "constant weights": {"constant": True, "T": 5},
}

ONLY: dict[str, dict[str, Any]] = {
    "RNN relu": {"activations": ["Relu"]},
    "RNN affine": {"activations": ["Affine"], "activation_alpha": [0.3], "activation_beta": [0.1]},
    "RNN two functions": {
        "direction": "bidirectional",
        "activations": ["LeakyRelu", "HardSigmoid"],
        "activation_alpha": [0.2, 0.25],
        "activation_beta": [0.4],
    },
    "GRU linear": {"linear_before_reset": 1},
    "GRU linear, bidirectional": {"linear_before_reset": 1, "direction": "bidirectional"},
    "GRU functions": {
        "activations": ["HardSigmoid", "Softsign"],
        "activation_alpha": [0.3],
        "activation_beta": [0.4],
    },
    "LSTM peepholes": {"optional": "bias h c p"},
    "LSTM peepholes, bidirectional, clip": {
        "optional": "bias h c p",
        "direction": "bidirectional",
        "clip": 0.5,
    },
    "LSTM coupled": {"input_forget": 1},
    "LSTM functions": {"activations": ["Sigmoid", "Softsign", "Elu"], "activation_alpha": [0.7]},
}

BATCH_FIRST = {"forward": {"layout": 1}, "bidirectional": {"layout": 1, "direction": "bidirectional"}}


def layer(
    op: str, *, T: int = 4, B: int = 3, optional: str = "bias h c", symbolic: bool = False,
    constant: bool = False, **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:  # fmt: skip
    """A model of one layer and its feeds."""
    rng = np.random.default_rng(3)
    gates = GATES[op]
    d = 2 if attributes.get("direction") == "bidirectional" else 1

    def normal(*shape: int) -> Array:
        return (rng.standard_normal(shape) * 0.6).astype(np.float32)

    values = {
        "x": normal(T, B, INPUT),
        "w": normal(d, gates * HIDDEN, INPUT),
        "r": normal(d, gates * HIDDEN, HIDDEN),
        "bias": normal(d, 2 * gates * HIDDEN),
        "lengths": np.array([T, 1, max(T - 2, 1)], np.int32),
        "h": normal(d, B, HIDDEN),
        "c": normal(d, B, HIDDEN),
        "p": normal(d, 3 * HIDDEN),
    }
    if attributes.get("layout"):
        for name in "xhc":
            values[name] = values[name].transpose(1, 0, 2)
    names = ["x", "w", "r", "bias", "lengths", "h", *(["c", "p"] if op == "LSTM" else [])]
    used = {"x", "w", "r", *optional.split()} & set(names)
    outputs = ["y", "y_h", "y_c"] if op == "LSTM" else ["y", "y_h"]
    n = node(
        op,
        " ".join(n if n in used else "-" for n in names),
        " ".join(outputs),
        hidden_size=HIDDEN,
        **attributes,
    )
    fixed = {"w", "r", "bias"} & used if constant else set()
    feeds = {k: values[k] for k in names if k in used and k not in fixed}
    dims = {"x": ["T", "B", INPUT], "h": [d, "B", HIDDEN], "c": [d, "B", HIDDEN], "lengths": ["B"]}
    return model([n], feeds, outputs, {k: values[k] for k in fixed}, dims if symbolic else None), feeds


def cases() -> dict[str, tuple[onnx.ModelProto, dict[str, Array]]]:
    every = {f"{op} {name}": layer(op, **case) for op in GATES for name, case in CASES.items()}
    every |= {name: layer(name.split()[0], **case) for name, case in ONLY.items()}
    return every | {
        f"{op} batch first, {n}": layer(op, **case) for op in GATES for n, case in BATCH_FIRST.items()
    }


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    return native.outputs(cases())


@pytest.mark.parametrize("name", [n for n in cases() if "batch first" not in n])
def test_agrees_with_onnxruntime(name: str, results: dict[str, list[Array]]) -> None:
    wanted = reference(*cases()[name])
    for got, want in zip(results[name], wanted):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("direction", BATCH_FIRST)
@pytest.mark.parametrize("op", GATES)
def test_batch_first_is_the_transposed_layer(
    op: str, direction: str, results: dict[str, list[Array]]
) -> None:
    """onnxruntime has no layout 1; the same numbers must come out in the other order."""
    attributes = {k: v for k, v in BATCH_FIRST[direction].items() if k != "layout"}
    wanted = reference(*layer(op, **attributes))
    got = results[f"{op} batch first, {direction}"]
    np.testing.assert_allclose(got[0], wanted[0].transpose(2, 0, 1, 3), rtol=2e-5, atol=2e-6)
    for a, b in zip(got[1:], wanted[1:]):
        np.testing.assert_allclose(a, b.transpose(1, 0, 2), rtol=2e-5, atol=2e-6)


def test_wrong_number_of_activations() -> None:
    with pytest.raises(ModelError, match=r"node 'LSTM' \(LSTM\): 1 activations are given, 3 are needed"):
        native.prepare(layer("LSTM", activations=["Tanh"])[0])


def test_unknown_activation() -> None:
    with pytest.raises(ModelError, match="activation 'Sinus' is none of ONNX's"):
        native.prepare(layer("RNN", activations=["Sinus"])[0])


def quantized_layer(
    *, T: int = 4, channels: bool = False, optional: str = "bias h c", direction: str = "forward"
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A DynamicQuantizeLSTM with weights in int8, scaled by tensor or by channel, of a batch of one."""
    rng = np.random.default_rng(4)
    d, columns = 2 if direction == "bidirectional" else 1, 4 * HIDDEN
    scales = (d, columns) if channels else (d,)
    values: dict[str, Array] = {
        "x": rng.standard_normal((T, 1, INPUT), np.float32),
        "w": rng.integers(-128, 128, (d, INPUT, columns)).astype(np.int8),
        "r": rng.integers(-128, 128, (d, HIDDEN, columns)).astype(np.int8),
        "bias": 0.5 * rng.standard_normal((d, 2 * columns), np.float32),
        "h": 0.5 * rng.standard_normal((d, 1, HIDDEN), np.float32),
        "c": rng.standard_normal((d, 1, HIDDEN), np.float32),
        "ws": rng.uniform(0.005, 0.01, scales).astype(np.float32),
        "wz": rng.integers(-5, 6, scales).astype(np.int8) * (not channels),
        "rs": rng.uniform(0.005, 0.01, scales).astype(np.float32),
        "rz": rng.integers(-5, 6, scales).astype(np.int8) * (not channels),
    }
    used = {"x", "w", "r", "ws", "wz", "rs", "rz", *optional.split()}
    names = ["x", "w", "r", "bias", "-", "h", "c", "-", "ws", "wz", "rs", "rz"]
    inputs = " ".join(name if name in used else "-" for name in names)
    options = {"hidden_size": HIDDEN, "direction": direction}
    n = node("DynamicQuantizeLSTM", inputs, "y y_h y_c", "com.microsoft", **options)
    fixed = ("w", "r", "ws", "wz", "rs", "rz")
    feeds = {name: array for name, array in values.items() if name in used and name not in fixed}
    return model([n], feeds, ["y", "y_h", "y_c"], {name: values[name] for name in fixed}), feeds


QUANTIZED: dict[str, dict[str, Any]] = {
    "by tensor": {},
    "by channel": {"channels": True, "T": 1},
    "bidirectional": {"direction": "bidirectional"},
    "reverse, nothing optional": {"direction": "reverse", "optional": ""},
}


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_weights_agree_with_onnxruntime(name: str) -> None:
    case = quantized_layer(**QUANTIZED[name])
    for got, want in zip(native.outputs({name: case})[name], reference(*case)):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
