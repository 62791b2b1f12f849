"""Every network of the zoo by name, and any other ONNX file by its path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from zoo import builders, large, real
from zoo.entry import Feeds, ModelEntry

MODELS: dict[str, ModelEntry] = {**builders.MODELS, **real.MODELS}
"""Those that the tests compile; `zoo.large` has more, which `find` knows too."""


def find(name: str) -> ModelEntry:
    """The entry `name`, or one for the file at the path `name` where that ends in ``.onnx``.

    Raises:
        KeyError: neither.
    """
    known = MODELS | large.MODELS
    if name in known:
        return known[name]
    if name.endswith(".onnx") and Path(name).is_file():
        return from_file(Path(name))
    raise KeyError(f"no model '{name}': it is a path to an .onnx file or one of {', '.join(known)}")


def from_file(path: Path) -> ModelEntry:
    """An entry for an ONNX file: normal numbers for floating-point inputs, 0 or 1 for the others.

    Symbolic dimensions default to 1; nameless ones are 1.
    """
    graph = onnx.load(path, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = {value.name: value.type.tensor_type for value in graph.input if value.name not in constants}
    dims = {dim.dim_param: 1 for kind in inputs.values() for dim in kind.shape.dim if dim.dim_param}

    def feed(rng: np.random.Generator, sizes: Mapping[str, int], seed: int) -> Feeds:
        feeds: Feeds = {}
        for name, kind in inputs.items():
            dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
            shape = [sizes[dim.dim_param] if dim.dim_param else dim.dim_value or 1 for dim in kind.shape.dim]
            if np.issubdtype(dtype, np.floating):
                feeds[name] = np.asarray(rng.standard_normal(shape), dtype)
            else:
                feeds[name] = rng.integers(0, 2, shape).astype(dtype)
        return feeds

    return ModelEntry(path.stem, lambda: path, feed, dims)
