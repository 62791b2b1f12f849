"""The runtimes that the benchmarks compare; a rival is one class and one line in `RUNNERS`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from zoo.entry import Feeds


@dataclass(frozen=True)
class Settings:
    """What a comparison fixes beside model and threads.

    Attributes:
        target: profile that Cuvil compiles for.
        quantization: mode that Cuvil is given.
        calibration: .npz file of calibration data that Cuvil is given.
        fixed: symbolic dimensions are fixed to the inputs' sizes, for every runtime alike.
    """

    target: str = "host"
    quantization: str = "none"
    calibration: str | None = None
    fixed: bool = True


@dataclass(frozen=True)
class Prepared:
    """A model ready to run on given inputs.

    Attributes:
        run: one inference through the call that a user makes; returns the outputs.
        bare: times that many inferences without the call's overhead, in seconds each; None where
            the runtime has no such thing.
    """

    run: Callable[[], list[npt.NDArray[Any]]]
    bare: Callable[[int], npt.NDArray[np.float64]] | None = None


class Runner(ABC):
    """A runtime with its default settings, but for the number of threads."""

    name: str

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @property
    @abstractmethod
    def version(self) -> str:
        """The runtime's version."""

    @abstractmethod
    def prepare(
        self, model: Path, threads: int, feeds: Feeds, values: Mapping[str, Any] | None = None
    ) -> Prepared:
        """Load or compile `model` for `threads` threads and the inputs `feeds`; those in `values` never
        change, and may be made constants."""


class Cuvil(Runner):
    """Cuvil's session."""

    name = "cuvil"

    @property
    def version(self) -> str:
        import cuvil

        return str(cuvil.__version__)

    def prepare(
        self, model: Path, threads: int, feeds: Feeds, values: Mapping[str, Any] | None = None
    ) -> Prepared:
        import cuvil

        options: dict[str, Any] = {"values": values}
        feeds = {name: array for name, array in feeds.items() if name not in (values or {})}
        if self.settings.fixed:
            options["shapes"] = {name: list(array.shape) for name, array in feeds.items()}
        if self.settings.calibration:
            options["calibration"] = self.settings.calibration
        session = cuvil.compile(
            str(model),
            target=self.settings.target,
            threads=threads,
            quantization=self.settings.quantization,
            **options,
        )
        benchmark = getattr(session, "benchmark", None)
        return Prepared(lambda: session.run(None, feeds), partial(benchmark, feeds) if benchmark else None)


class OnnxRuntime(Runner):
    """onnxruntime's CPU provider; `threads` within an operator, one between operators."""

    name = "onnxruntime"

    @property
    def version(self) -> str:
        import onnxruntime

        return str(onnxruntime.__version__)

    def prepare(
        self, model: Path, threads: int, feeds: Feeds, values: Mapping[str, Any] | None = None
    ) -> Prepared:
        import onnx
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        if self.settings.fixed:
            for value in onnx.load(model, load_external_data=False).graph.input:
                sizes = feeds[value.name].shape if value.name in feeds else ()
                for dim, size in zip(value.type.tensor_type.shape.dim, sizes):
                    if dim.dim_param:
                        options.add_free_dimension_override_by_name(dim.dim_param, size)
        session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        return Prepared(lambda: session.run(None, feeds))


class OpenVino(Runner):
    """OpenVINO's CPU plugin in its latency mode, in float32 (its default may round to bfloat16)."""

    name = "openvino"

    @property
    def version(self) -> str:
        import openvino

        return str(openvino.__version__)

    def prepare(
        self, model: Path, threads: int, feeds: Feeds, values: Mapping[str, Any] | None = None
    ) -> Prepared:
        import openvino

        core = openvino.Core()
        network = core.read_model(str(model))
        if self.settings.fixed:
            shapes = {}
            for port in network.inputs:
                name = next(n for n in port.get_names() if n in feeds)
                shapes[port] = openvino.PartialShape(list(feeds[name].shape))
            network.reshape(shapes)
        options = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        request = core.compile_model(network, "CPU", options).create_infer_request()

        def run() -> list[npt.NDArray[Any]]:
            found = request.infer(dict(feeds))
            return [found[i] for i in range(len(found))]

        return Prepared(run)


class PyTorch(Runner):
    """PyTorch in eager mode: the model's operators as modules (`onnx2torch`)."""

    name = "pytorch"

    @property
    def version(self) -> str:
        import torch

        return str(torch.__version__)

    def prepare(
        self, model: Path, threads: int, feeds: Feeds, values: Mapping[str, Any] | None = None
    ) -> Prepared:
        import onnx
        import onnx2torch
        import torch

        torch.set_num_threads(threads)
        module = onnx2torch.convert(onnx.load(model)).eval()
        names = [v.name for v in onnx.load(model, load_external_data=False).graph.input if v.name in feeds]
        tensors = [torch.from_numpy(feeds[n]) for n in names]

        def run() -> list[npt.NDArray[Any]]:
            with torch.inference_mode():
                found = module(*tensors)
            return [t.numpy() for t in (found if isinstance(found, (tuple, list)) else (found,))]

        return Prepared(run)


RUNNERS: dict[str, type[Runner]] = {r.name: r for r in (Cuvil, OnnxRuntime, OpenVino, PyTorch)}
