"""What people reported of other tools that do this job, each with small inputs of our own, end to end.

A test is named after the project and the number of its report.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from frontend.frontend_models import F32, model, one, save
from onnx import TensorProto, helper
from partition.placed_nets import XEON_HERE, profile
from scons.scons_tree import REPOSITORY, Tree, fresh_tree, tiny_model

import cuvil
from cuvil.session import Session
from cuvil.target.schema import Target, load

Array = npt.NDArray[Any]

OK, MISALIGNED = 0, 1


def host() -> Target:
    target = load("host")
    return replace(target, toolchain=replace(target.toolchain, optimization="O1"))


def compiled(
    proto: onnx.ModelProto, folder: Path, target: Target | str | None = None, **more: Any
) -> Session:
    return cuvil.compile(save(folder, proto), target=target or host(), **more)


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


def oracle(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# --- sizes and parts --------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, "N"])
def test_onnx2c_81_sizes_computed_from_a_shape(batch: int | str, tmp_path: Path) -> None:
    """x[1, 4, 3]: Shape -> Gather(0) -> Unsqueeze -> Concat with 12 -> Reshape gives [1, 12]."""
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n axes", "u"),
        node("Concat", "u twelve", "t", axis=0),
        node("Reshape", "x t", "y"),
    ]
    constants = {"zero": np.int64(0), "axes": np.array([0]), "twelve": np.array([12])}
    session = compiled(model(nodes, {"x": (F32, [batch, 4, 3])}, ["y"], constants), tmp_path)
    assert session.get_outputs()[0].shape == [batch, 12]
    x = normal(1, 4, 3)
    (y,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(y, x.reshape(1, 12))


def test_onnx2c_129_split_of_seven_in_three(tmp_path: Path) -> None:
    """Split with num_outputs = 3 of 7 elements gives parts of 3, 3 and 1."""
    split = helper.make_node("Split", ["x"], ["a", "b", "c"], num_outputs=3)
    session = compiled(model([split], {"x": (F32, [7])}, ["a", "b", "c"]), tmp_path)
    assert [o.shape for o in session.get_outputs()] == [[3], [3], [1]]
    parts = session.run(None, {"x": np.arange(7, dtype=np.float32)})
    assert [p.tolist() for p in parts] == [[0, 1, 2], [3, 4, 5], [6]]


# --- weights ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [1, 2])
def test_onnx2c_78_weights_split_over_files(devices: int, tmp_path: Path) -> None:
    """Weights in two files beside the model, and in two objects of the library where two devices run it."""
    first, second = normal(64, 512, seed=1), normal(512, 8, seed=2)
    nodes = [node("MatMul", "x first", "t"), node("Relu", "t", "u"), node("MatMul", "u second", "y")]
    proto = model(nodes, {"x": (F32, [3, 64])}, {"y": (F32, [3, 8])})
    for name, array in (("first", first), ("second", second)):
        array.tofile(tmp_path / f"{name}.bin")
        tensor = TensorProto(name=name, dims=array.shape, data_type=TensorProto.FLOAT)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=f"{name}.bin")
        proto.graph.initializer.append(tensor)
    target = host() if devices == 1 else profile(tmp_path, XEON_HERE)
    session = compiled(proto, tmp_path, target, output=tmp_path / "out")
    weights = [path.stat().st_size for path in (tmp_path / "out" / "codegen").glob("*.bin")]
    assert len(weights) == devices and sum(weights) >= first.nbytes + second.nbytes
    x = normal(3, 64)
    (y,) = session.run(None, {"x": x})
    np.testing.assert_allclose(y, np.maximum(x @ first, 0) @ second, rtol=1e-4, atol=1e-3)


# --- rounding and saturation --------------------------------------------------------------------------


def test_onnx2c_86_scale_of_rank_0_from_a_constant_node(tmp_path: Path) -> None:
    """QuantizeLinear and DequantizeLinear whose scale is a Constant node of rank 0."""
    nodes = [
        helper.make_node("Constant", [], ["s"], value_float=0.5),
        node("QuantizeLinear", "x s", "q"),
        node("DequantizeLinear", "q s", "y"),
    ]
    session = compiled(model(nodes, {"x": (F32, [5])}, ["y"]), tmp_path)
    x = np.array([-3, 0.2, 0.25, 1.1, 200], np.float32)
    assert session.run(None, {"x": x})[0].tolist() == [0, 0, 0, 1, 127.5]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_emx_onnx_cgen_258_round_halves_to_even(dtype: str, tmp_path: Path) -> None:
    session = compiled(one("Round", {"x": (dtype, [9])}, outputs={"y": (dtype, [9])}), tmp_path)
    x = np.array([-3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 2.6, 3.5], dtype)
    (y,) = session.run(None, {"x": x})
    assert y.tolist() == [-4, -2, -2, 0, 0, 2, 2, 3, 4]


def quantized_product(shape: Sequence[int]) -> onnx.ModelProto:
    """QLinearMatMul of int8 matrices, scales 1 and zero points 0."""
    order = ["a", "s", "z", "b", "s", "z", "s", "z"]
    constants = {"s": np.float32(1), "z": np.int8(0)}
    inputs = {"a": ("int8", [shape[0], shape[1]]), "b": ("int8", [shape[1], shape[2]])}
    return one("QLinearMatMul", inputs, constants, order, outputs={"y": ("int8", [shape[0], shape[2]])})


def test_emx_onnx_cgen_735_quantized_product_saturates(tmp_path: Path) -> None:
    """-236 becomes -128; its low eight bits are 20."""
    session = compiled(quantized_product([1, 2, 3]), tmp_path)
    a = np.array([[100, -36]], np.int8)
    b = np.array([[-2, 2, 1], [1, -1, 3]], np.int8)
    assert (a.astype(int) @ b).tolist() == [[-236, 236, -8]] and (-236) & 255 == 20
    assert session.run(None, {"a": a, "b": b})[0].tolist() == [[-128, 127, -8]]


@pytest.mark.parametrize("target", ["host", "x86_64-unknown-linux-gnu"])
def test_onnxruntime_16105_products_do_not_saturate_in_int16(target: str, tmp_path: Path) -> None:
    """[210, 198, 234] . [-81, -80, 127] = -3132; sums of pairs in int16 saturate, which gives -3050.

    Alone, and as every channel of a convolution that is large enough for the dot kernels.
    """
    u8, s8 = np.array([210, 198, 234], np.uint8), np.array([-81, -80, 127], np.int8)
    nodes = [node("MatMulInteger", "a b", "y"), node("ConvInteger", "x w", "z")]
    maps = np.tile(s8.reshape(1, 3, 1, 1), (32, 4, 1, 1))
    inputs: dict[str, Any] = {"a": ("uint8", [1, 3]), "x": ("uint8", [1, 12, 8, 8])}
    typed: dict[str, Any] = {"y": ("int32", [1, 1]), "z": ("int32", [1, 32, 8, 8])}
    proto = model(nodes, inputs, typed, {"b": s8.reshape(3, 1), "w": maps})
    session = compiled(proto, tmp_path, target if target != "host" else None)
    x = np.tile(u8.reshape(1, 3, 1, 1), (1, 4, 8, 8))
    y, z = session.run(None, {"a": u8.reshape(1, 3), "x": x})
    assert y.tolist() == [[-3132]] and np.unique(z).tolist() == [4 * -3132]


def test_onnxruntime_29727_softmax_of_a_dominant_logit(tmp_path: Path) -> None:
    """A probability of 1 in steps of 1/256 from -128 is 128, which int8 holds as 127."""
    constants = {"s": np.float32(0.1), "z": np.int8(3), "t": np.float32(1 / 256), "u": np.int8(-128)}
    softmax = helper.make_node(
        "QLinearSoftmax", ["x", "s", "z", "t", "u"], ["y"], domain="com.microsoft", axis=-1, opset=13
    )
    opsets = [helper.make_opsetid("com.microsoft", 1)]
    typed = {"y": ("int8", [2, 4])}
    proto = model([softmax], {"x": ("int8", [2, 4])}, typed, constants, opsets=opsets)
    session = compiled(proto, tmp_path)
    x = np.array([[127, -128, -128, -100], [3, 3, 3, 3]], np.int8)
    assert session.run(None, {"x": x})[0].tolist() == [[127, -128, -128, -128], [-64] * 4]


@pytest.mark.parametrize("tiny", [0.0, 1e-12])
def test_onnxruntime_11415_bias_of_a_channel_of_nearly_zero_weights(tiny: float, tmp_path: Path) -> None:
    """A depthwise channel of nearly zero weights keeps its bias of 5 under scales by channel."""
    weights, bias = normal(4, 1, 3, 3, seed=3), np.array([5, 0.5, -5, 5], np.float32)
    weights[0] = tiny * np.sign(weights[0])
    constants = {"w": weights, "b": bias}
    proto = one("Conv", {"x": (F32, ["N", 4, 8, 8])}, constants, group=4, pads=[1, 1, 1, 1])
    samples = normal(16, 4, 8, 8, seed=4)
    session = compiled(
        proto, tmp_path, quantization="int8", calibration={"x": samples}, output=tmp_path / "o"
    )
    report = json.loads((tmp_path / "o" / "quantize" / "quantization.json").read_text())
    (y,), (wanted,) = session.run(None, {"x": samples[:3]}), oracle(proto, {"x": samples[:3]})
    assert list(report["layers"]) == ["y"] and not report["float"]
    np.testing.assert_allclose(y[:, 0], 5, rtol=1e-5)
    assert np.abs(y - wanted).max() <= 0.02 * np.abs(wanted).max()


# --- the workspace ------------------------------------------------------------------------------------

GUARD = 256


class Guarded:
    """`size` bytes at a multiple of 64 plus `shift`, between canaries."""

    def __init__(self, size: int, shift: int = 0) -> None:
        self.memory = np.full(size + shift + 2 * GUARD + 64, 0xA5, np.uint8)
        self.start = GUARD + -(self.memory.ctypes.data + GUARD) % 64 + shift
        self.stop = self.start + size

    @property
    def address(self) -> int:
        return int(self.memory.ctypes.data) + self.start

    @property
    def data(self) -> Array:
        return self.memory[self.start : self.stop]

    def is_whole(self) -> bool:
        """Nothing was written outside."""
        return bool((self.memory[: self.start] == 0xA5).all() and (self.memory[self.stop :] == 0xA5).all())


def convolution(quantized: bool) -> onnx.ModelProto:
    """A 3x3 convolution of stride 2 from 128 x 128 to 63 x 63, of floats or of bytes, and a second one
    that reads its result."""
    constants: dict[str, Any] = {"w": normal(8, 3, 3, 3, seed=5), "v": normal(4, 8, 1, 1, seed=6)}
    nodes = [node("Conv", "x w", "t", strides=[2, 2]), node("Conv", "t v", "y")]
    if quantized:
        constants = {
            "w": np.random.default_rng(7).integers(-127, 128, (8, 3, 3, 3), np.int8),
            "v": np.random.default_rng(8).integers(-127, 128, (4, 8, 1, 1), np.int8),
            "s": np.float32(0.02), "r": np.float32(0.4), "u": np.uint8(128), "o": np.int8(0),
        }  # fmt: skip
        nodes = [
            node("QuantizeLinear", "x s u", "q"), node("DequantizeLinear", "q s u", "d"),
            node("DequantizeLinear", "w s o", "wd"), node("DequantizeLinear", "v s o", "vd"),
            node("Conv", "d wd", "t", strides=[2, 2]),
            node("QuantizeLinear", "t r u", "tq"), node("DequantizeLinear", "tq r u", "td"),
            node("Conv", "td vd", "y"),
        ]  # fmt: skip
    return model(nodes, {"x": (F32, [1, 3, 128, 128])}, {"y": (F32, [1, 4, 63, 63])}, constants)


def call(session: Session, x: Array, y: Guarded, workspace: Guarded) -> int:
    """One call of ``<model>_run`` on exactly the promised bytes."""
    run = getattr(ctypes.CDLL(str(session.library)), f"{session.model}_run")
    bases = [ctypes.c_void_p(address) for address in (workspace.address, x.ctypes.data, y.address)]
    return int(run(bases[0], ctypes.c_size_t(session.workspace_bytes()), *bases[1:]))


@pytest.mark.parametrize("quantized", [False, True], ids=["float", "int8"])
def test_stm32ai_modelzoo_30_scratch_of_a_convolution_of_stride_2(quantized: bool, tmp_path: Path) -> None:
    """128 -> 63: one row and column of the input are read by no window; the promised bytes are enough."""
    proto = convolution(quantized)
    session = compiled(proto, tmp_path)
    x = normal(1, 3, 128, 128)
    y, workspace = Guarded(4 * 4 * 63 * 63), Guarded(session.workspace_bytes())
    assert session.workspace_bytes() > 0
    assert call(session, x, y, workspace) == OK
    assert workspace.is_whole() and y.is_whole()
    (wanted,) = oracle(proto, {"x": x})
    error = np.abs(y.data.view(np.float32).reshape(wanted.shape) - wanted).max()
    assert error <= (0.4 * 127 * 0.02 if quantized else 1e-4)  # one step of a byte, or rounding


@pytest.mark.parametrize("shift", [1, 2])
def test_tvm_8474_workspace_that_is_not_aligned(shift: int, tmp_path: Path) -> None:
    """A workspace at base + 1 or + 2 is refused, and nothing is written to it or to the result."""
    session = compiled(convolution(quantized=False), tmp_path)
    y, workspace = Guarded(4 * 4 * 63 * 63), Guarded(session.workspace_bytes(), shift)
    assert call(session, normal(1, 3, 128, 128), y, workspace) == MISALIGNED
    assert (workspace.memory == 0xA5).all() and (y.memory == 0xA5).all()


# --- builds -------------------------------------------------------------------------------------------


def test_platformio_core_5481_stale_object_after_a_branch_switch(tmp_path: Path) -> None:
    """Two branches with another model and other flags, switched to and fro; no time stamp tells."""
    package = tmp_path / "package" / "cuvil"
    shutil.copytree(REPOSITORY / "cuvil", package, ignore=shutil.ignore_patterns("__pycache__"))
    tree, other = (fresh_tree(tmp_path / name, package) for name in ("tree", "other"))
    branches = {"main": (0, "O1"), "feature": (7, "O2")}

    def switch(project: Tree, branch: str) -> dict[str, bytes]:
        seed, level = branches[branch]
        onnx.save(tiny_model(seed), project.model)
        start, _, _ = project.board.read_text(encoding="utf-8").partition("toolchain:")
        project.board.write_text(f"{start}toolchain: {{compiler: auto, optimization: {level}}}\n", "utf-8")
        for path in (project.model, project.board):
            os.utime(path, (978307200, 978307200))
        project.scons()
        return project.artefacts()

    before, wanted = switch(tree, "main"), switch(other, "feature")
    assert switch(tree, "feature") == wanted != before
    assert switch(tree, "main") == before
