"""The backend interface of ONNX (`onnx.backend.base`): models are compiled to native code and run.

``onnx.backend.test.BackendTest(cuvil.onnx_backend, __name__)`` runs ONNX's own test suite with it.
Nothing is interpreted: what the compiler does not support raises the compiler's error.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

import cuvil.ops  # noqa: F401  (fills the registry)
from cuvil.errors import CuvilError
from cuvil.frontend.bundles import binding_of, open_inputs
from cuvil.frontend.importer import canonicalize
from cuvil.frontend.onnx_reader import graph_from_proto
from cuvil.frontend.scope import walk
from cuvil.ops.registry import OPERATORS
from cuvil.session import Session, compile
from cuvil.target.schema import Target, load

OPTIMIZATION = "O1"
"""What the C compiler is asked for: a model is compiled in a second or two and run a few times."""


class CompiledModel(BackendRep):  # type: ignore[misc]
    """A model that is compiled and loaded.

    One whose inputs are sequences, optionals or tensors of unknown rank is compiled when it runs, once for
    each number of items, presence and shapes of these inputs.
    """

    def __init__(self, model: onnx.ModelProto, target: Target) -> None:
        self.model, self.target = model, target
        given = {tensor.name for tensor in model.graph.initializer}
        self.names = [v.name for v in model.graph.input if v.name not in given]
        self.open = open_inputs(model)
        self._sessions: dict[str, Session] = {}
        if not self.open:
            self.session({})

    def session(self, feeds: Mapping[str, Any]) -> Session:
        """What runs on inputs like `feeds`."""
        missing = [name for name in self.open if name not in feeds]
        if missing:
            raise CuvilError("is missing", f"input '{missing[0]}'")
        shapes = {name: binding_of(feeds[name]) for name in self.open}
        if repr(shapes) not in self._sessions:
            with tempfile.TemporaryDirectory(prefix="cuvil-") as folder:
                path = Path(folder) / "model.onnx"
                path.write_bytes(self.model.SerializeToString())
                self._sessions[repr(shapes)] = compile(path, self.target, shapes=shapes)
        return self._sessions[repr(shapes)]

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs in the model's order.

        Args:
            inputs: arrays (lists of them for sequences, None for absent optionals) in the order of the
                model's inputs, or by name.
            kwargs: none is known.

        Raises:
            CuvilError: the inputs do not fit the model, or `kwargs` are given.
        """
        _refuse(kwargs)
        if not isinstance(inputs, Mapping):
            if len(inputs) != len(self.names):
                raise CuvilError(f"{len(inputs)} inputs are given, the model has {len(self.names)}")
            inputs = dict(zip(self.names, inputs))
        return tuple(self.session(inputs).run(None, inputs))


class CuvilBackend(Backend):  # type: ignore[misc]
    """Compiles for this machine, one thread, with the tuned kernels."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether `device` (``CPU``, ``CUDA:1``) is this machine's processor."""
        try:
            return bool(Device(device).type == DeviceType.CPU)
        except (AttributeError, ValueError):
            return False

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model is valid and all of its operators can be compiled, for `device`; forms and
        element types of operators that cannot are found by `prepare` alone, or where inputs are sequences,
        optionals or of unknown rank, when it runs."""
        if open_inputs(model):
            return cls.supports_device(device)
        try:
            graph = graph_from_proto(model)
            canonicalize(graph)
        except CuvilError:
            return False
        known = all((node.domain, node.op) in OPERATORS for inner in walk(graph) for node in inner.nodes)
        return known and cls.supports_device(device)

    @classmethod
    def prepare(
        cls, model: onnx.ModelProto, device: str = "CPU", *, target: str | Target = "host", **kwargs: Any
    ) -> CompiledModel:
        """Compile `model` and load it.

        Args:
            device: ``CPU``.
            target: a profile that runs on this machine; a `Target` is taken as it is, one by name with
                `OPTIMIZATION`.
            kwargs: none is known; the test suite's tolerances (`rtol`, `atol`) are passed over.

        Raises:
            CuvilError: the model is not valid or not supported, or the device is another one.
        """
        _refuse({name: v for name, v in kwargs.items() if name not in ("rtol", "atol")})
        if not cls.supports_device(device):
            raise CuvilError("is no device of this backend; CPU is", repr(device))
        if not isinstance(target, Target):
            profile = load(target)
            target = replace(profile, toolchain=replace(profile.toolchain, optimization=OPTIMIZATION))
        return CompiledModel(model, target)

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Compile `model` and run it once; see `prepare` and `CompiledModel.run`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Compile one operator for the types and shapes of `inputs` and run it.

        Args:
            inputs: arrays, and lists of arrays for sequences, in the order of the node's inputs that are not
                omitted, or by name.
            outputs_info: type and shape of each output, where shape inference does not find them.
            kwargs: `opset_version` of the node's domain (the newest by default), and those of `prepare`.

        Raises:
            CuvilError: see `prepare`.
        """
        version = kwargs.pop("opset_version", None) or defs.onnx_opset_version()
        names = list(dict.fromkeys(name for name in node.input if name))
        feeds = {
            name: [np.asarray(item) for item in value] if isinstance(value, list) else np.asarray(value)
            for name, value in _named(names, inputs).items()
        }
        given = [_value_info(name, value) for name, value in feeds.items()]
        results = [name for name in node.output if name]
        made = [onnx.ValueInfoProto(name=name) for name in results]
        if outputs_info is not None:
            made = [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), shape)
                for name, (kind, shape) in zip(results, outputs_info)
            ]
        opsets = [helper.make_opsetid("", version)]
        if node.domain not in ("", "ai.onnx"):
            opsets = [helper.make_opsetid("", defs.onnx_opset_version()), helper.make_opsetid(node.domain, 1)]
        model = helper.make_model(helper.make_graph([node], "node", given, made), opset_imports=opsets)
        return cls.prepare(model, device, **kwargs).run(feeds)


def _value_info(name: str, value: np.ndarray | list[np.ndarray]) -> onnx.ValueInfoProto:
    """The declaration of an input that takes `value`; a sequence without items is one of float32."""
    if isinstance(value, list):
        dtype = value[0].dtype if value else np.dtype(np.float32)
        return helper.make_tensor_sequence_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), None)
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def _named(names: Sequence[str], inputs: Any) -> Mapping[str, Any]:
    """`inputs` by name."""
    if isinstance(inputs, Mapping):
        return inputs
    if len(inputs) != len(names):
        raise CuvilError(f"{len(inputs)} inputs are given, the node has {len(names)}")
    return dict(zip(names, inputs))


def _refuse(kwargs: Mapping[str, Any]) -> None:
    if kwargs:
        raise CuvilError("is no option of this backend", repr(next(iter(kwargs))))


is_compatible = CuvilBackend.is_compatible
prepare = CuvilBackend.prepare
run_model = CuvilBackend.run_model
run_node = CuvilBackend.run_node
supports_device = CuvilBackend.supports_device
