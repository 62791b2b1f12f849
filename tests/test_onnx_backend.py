"""ONNX's backend interface: its own runner, single nodes, what is refused."""

from __future__ import annotations

import unittest
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.backend.test import BackendTest

import cuvil.onnx_backend as backend
from cuvil.errors import CuvilError

SELECTION = frozenset((
    "test_add_bcast", "test_concat_2d_axis_1", "test_conv_with_strides_padding", "test_dropout_default",
    "test_flexattention_gqa", "test_gather_elements_0", "test_gemm_all_attributes", "test_if",
    "test_lstm_defaults", "test_maxpool_2d_ceil", "test_quantizelinear_axis", "test_softmax_axis_1",
    "test_tril", "test_where_example",
    "test_shrink", "test_single_relu_model",
    "test_identity_opt", "test_optional_has_element_empty_optional_input", "test_sequence_insert_at_back",
    "test_Conv2d_depthwise", "test_PReLU_2d",
    "test_operator_addmm", "test_operator_permute2",
))  # fmt: skip
"""Some cases of each group; `ops/conformance.py` runs them all."""


def selected() -> dict[str, type[unittest.TestCase]]:
    """The runner's test classes without the thousands of cases that it would skip."""
    runner = BackendTest(backend, __name__)
    for name in SELECTION:
        runner.include(f"^{name}_cpu$")
    suites: dict[str, type[unittest.TestCase]] = runner.test_cases
    for suite in suites.values():
        for name in [n for n in vars(suite) if n.startswith("test_")]:
            if name.removesuffix("_cpu") not in SELECTION:
                delattr(suite, name)
    return suites


SUITES = selected()
globals().update(SUITES)


def test_the_selection_is_in_the_suite() -> None:
    assert {n.removesuffix("_cpu") for s in SUITES.values() for n in vars(s)} >= SELECTION


def relu() -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(n, 1, ["n"]) for n in "xy")
    return helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y]))


def test_a_model_runs_with_inputs_in_order_or_by_name() -> None:
    ready = backend.prepare(relu())
    for inputs in ([np.float32([-1, 2])], {"x": np.float32([-1, 2])}):
        np.testing.assert_array_equal(ready.run(inputs)[0], np.float32([0, 2]))
    with pytest.raises(CuvilError, match=r"^2 inputs are given, the model has 1$"):
        ready.run([np.float32([1]), np.float32([1])])
    with pytest.raises(CuvilError, match=r"^'seed': is no option of this backend$"):
        ready.run([np.float32([1])], seed=1)


def test_run_node_takes_types_and_shapes_from_its_inputs() -> None:
    node = helper.make_node("Clip", ["x", "", "most"], ["y"])
    (y,) = backend.run_node(node, [np.float64([[-1, 5]]), np.float64(3)])
    np.testing.assert_array_equal(y, np.float64([[-1, 3]]))
    square = helper.make_node("Mul", ["x", "x"], ["y"])
    np.testing.assert_array_equal(
        backend.run_node(square, [np.int32([3])], opset_version=7)[0], np.int32([9])
    )


def test_a_model_with_a_sequence_is_compiled_for_what_it_is_given() -> None:
    node = helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)
    s = helper.make_tensor_sequence_value_info("s", 1, None)
    model = helper.make_model(
        helper.make_graph([node], "g", [s], [helper.make_tensor_value_info("y", 1, None)])
    )
    ready = backend.prepare(model)
    for rows in ([1, 2], [3], [0, 1, 1]):
        items = [np.full((n, 2), n, np.float32) for n in rows]
        np.testing.assert_array_equal(ready.run([items])[0], np.concatenate(items))
    with pytest.raises(CuvilError, match=r"^input 's': is missing$"):
        ready.run({})
    count = helper.make_node("SequenceLength", ["s"], ["y"])
    assert backend.run_node(count, [[np.float32([1]), np.float32([])]]) == (2,)


def test_run_node_of_another_domain() -> None:
    node = helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")
    (y,) = backend.run_node(node, [np.float32([0, 1])], outputs_info=[(np.float32, (2,))])
    np.testing.assert_allclose(y, [0, 0.8413447], rtol=1e-6)


def test_devices() -> None:
    assert [d for d in ("CPU", "CPU:0", "CUDA", "TPU", "CPU:x") if backend.supports_device(d)] == [
        "CPU",
        "CPU:0",
    ]
    with pytest.raises(CuvilError, match=r"^'CUDA': is no device of this backend; CPU is$"):
        backend.prepare(relu(), "CUDA")


def test_what_is_compatible() -> None:
    assert backend.is_compatible(relu())
    assert not backend.is_compatible(relu(), "CUDA")
    unknown, broken = relu(), relu()
    unknown.graph.node[0].op_type = "StringNormalizer"
    broken.graph.node[0].input[0] = "nowhere"
    assert not backend.is_compatible(unknown) and not backend.is_compatible(broken)


NETWORKS = ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet",
            "squeezenet", "vgg19", "zfnet512")  # fmt: skip
"""The group ``real``: known networks with the constant weights that come with onnx."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "squeezenet" else pytest.mark.slow) for n in NETWORKS]
)
def test_network_of_the_suite(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_MODELS", str(tmp_path))  # where the runner keeps its inputs
    suite = BackendTest(backend, __name__).test_cases["OnnxBackendRealModelTest"]
    assert {n.removesuffix("_cpu") for n in vars(suite) if n.endswith("_cpu")} == {
        f"test_{n}" for n in NETWORKS
    }
    getattr(suite(f"test_{name}_cpu"), f"test_{name}_cpu")()


def test_a_model_that_is_not_supported_is_refused() -> None:
    """There is no interpreter to fall back to."""
    proto = relu()
    proto.graph.node[0].op_type = "Det"
    with pytest.raises(CuvilError):
        backend.prepare(proto)
