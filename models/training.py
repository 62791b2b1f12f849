"""What the training scripts share: fixed seeds, data out of installed packages, plain ONNX export, the score.

The networks are written node by node with `onnx.helper` instead of through an exporter: the graph is then
exactly the one in the script, and its bytes hold no path, time stamp or exporter version.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

OPSET = 17
IR_VERSION = 8  # the one that came with opset 17


def make_deterministic(seed: int) -> None:
    """One thread, deterministic kernels and a fixed seed: two runs on one machine give the same bits."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)


def read_package_file(package: str, file: str, sha256: str) -> bytes:
    """The bytes of a data `file` of an installed `package`; raises ValueError if the digest differs."""
    content = Path(str(distribution(package).locate_file(file))).read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(f"{file} of {package}: sha256 is {found}, expected {sha256}")
    return content


class GraphWriter:
    """Collects nodes and initializers and saves them as a checked ONNX model of one input and one output."""

    def __init__(self, name: str, input_name: str, input_shape: list[int | str]) -> None:
        self.name = name
        self.input = helper.make_tensor_value_info(input_name, TensorProto.FLOAT, input_shape)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def node(self, op: str, name: str, *inputs: str, **attributes: object) -> str:
        """Append a node called `name`; its output has that name too and is returned."""
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, name: str, value: torch.Tensor) -> str:
        """Add a float initializer and return its name."""
        self.initializers.append(numpy_helper.from_array(value.detach().numpy().astype(np.float32), name))
        return name

    def conv(self, name: str, x: str, layer: nn.Conv2d) -> str:
        """Conv with the layer's weight [out, in / groups, kh, kw] and, where it has one, bias [out]."""
        inputs = [x, self.constant(f"{name}.weight", layer.weight)]
        if layer.bias is not None:
            inputs.append(self.constant(f"{name}.bias", layer.bias))
        return self.node(
            "Conv",
            name,
            *inputs,
            kernel_shape=list(layer.kernel_size),
            strides=list(layer.stride),
            pads=[*layer.padding, *layer.padding],
            group=layer.groups,
        )

    def batch_norm(self, name: str, x: str, layer: nn.BatchNorm2d) -> str:
        """BatchNormalization in inference form; scale, bias, running mean and variance are [channels]."""
        scale = self.constant(f"{name}.scale", layer.weight)
        bias = self.constant(f"{name}.bias", layer.bias)
        mean = self.constant(f"{name}.mean", layer.running_mean)
        variance = self.constant(f"{name}.variance", layer.running_var)
        return self.node("BatchNormalization", name, x, scale, bias, mean, variance, epsilon=layer.eps)

    def linear(self, name: str, x: str, layer: nn.Linear) -> str:
        """Gemm with the layer's weight [out, in], transposed by attribute, and bias [out]."""
        weight = self.constant(f"{name}.weight", layer.weight)
        bias = self.constant(f"{name}.bias", layer.bias)
        return self.node("Gemm", name, x, weight, bias, transB=1)

    def save(self, path: Path, output_shape: list[int | str]) -> None:
        """Declare the last node's output as the model's, check the model and write it."""
        output = helper.make_tensor_value_info(self.nodes[-1].output[0], TensorProto.FLOAT, output_shape)
        graph = helper.make_graph(self.nodes, self.name, [self.input], [output], self.initializers)
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(
            graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="cuvil-models"
        )
        onnx.checker.check_model(model, full_check=True)
        path.write_bytes(model.SerializeToString(deterministic=True))


def print_score(model: Path, test: Path) -> None:
    """Print the share of samples in `test` (model input and `label`) that onnxruntime classifies right."""
    with np.load(test) as arrays:
        labels = arrays["label"]
        inputs = {name: arrays[name] for name in arrays.files if name != "label"}
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    right = int((session.run(None, inputs)[0].argmax(axis=1) == labels).sum())
    share = f"{right / len(labels):.4f} ({right} of {len(labels)})"
    print(f"{model.name}: {model.stat().st_size} bytes, f32 test accuracy {share}")
