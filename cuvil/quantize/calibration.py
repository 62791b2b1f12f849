"""Calibration data: an ``.npz`` file of arrays by input name, samples on the first axis."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cuvil.errors import CuvilError
from cuvil.ir.expr import numpy_dtype
from cuvil.ir.graph import Graph, TensorType

Array = npt.NDArray[Any]
Feeds = dict[str, Array]

HOW = "give one with --calibration FILE.npz, an array per input by its name, samples on the first axis"


class Samples:
    """Checked calibration data of a graph.

    An array either has the input's own rank, and then its first axis is the input's batch axis, or
    one axis more, and then each entry is a whole input.

    Args:
        graph: says what inputs there are.
        arrays: the data by input name.
        source: the file's name, for messages.

    Attributes:
        count: the number of samples.
        step: samples of one run, None where the model takes any number.

    Raises:
        CuvilError: an input without data or data without an input; a wrong type or shape; arrays
            of different lengths, or empty ones; values that are not finite.
    """

    def __init__(self, graph: Graph, arrays: Mapping[str, Array], source: str = "calibration data") -> None:
        for name in arrays:
            if name not in graph.inputs:
                known = ", ".join(graph.inputs)
                raise CuvilError(f"is no input; the inputs are {known}", f"{source}: '{name}'")
        self.arrays: Feeds = {}
        self._stacked: set[str] = set()
        steps: dict[str, int] = {}
        for name in graph.inputs:
            if name not in arrays:
                raise CuvilError(f"has no array for input '{name}'", source)
            kind = graph.types[name]
            self.arrays[name], stacked = _checked(arrays[name], kind, f"{source}: '{name}'")
            if stacked:
                self._stacked.add(name)
            size = 1 if stacked or not kind.shape else kind.shape[0]
            if isinstance(size, int):
                steps[name] = size
        lengths = {name: len(array) for name, array in self.arrays.items()}
        for what, numbers in (("samples", lengths), ("samples a run", steps)):
            if len(set(numbers.values())) > 1:
                listed = ", ".join(f"'{name}' {n}" for name, n in numbers.items())
                raise CuvilError(f"the arrays must have equally many {what}, they have {listed}", source)
        self.step: int | None = next(iter(steps.values()), None)
        self.count = next(iter(lengths.values()), 0)
        if self.count < (self.step or 1):
            raise CuvilError(f"has {self.count} samples, at least {self.step or 1} are needed", source)

    def batches(self, size: int, at_most: int | None = None) -> Iterator[Feeds]:
        """Feeds of `size` samples each, or of the number that the model fixes.

        Args:
            size: samples a run, where the model takes any number.
            at_most: about how many samples in all, evenly spaced; None takes all (of a fixed number
                of samples a run, the whole runs).
        """
        size = self.step or size
        starts = list(range(0, self.count - (size - 1 if self.step else 0), size))
        if at_most is not None and len(starts) * size > at_most:
            wanted = max(at_most // size, 1)
            starts = [starts[k * len(starts) // wanted] for k in range(wanted)]
        for start in starts:
            part = {name: array[start : start + size] for name, array in self.arrays.items()}
            yield {name: array[0] if name in self._stacked else array for name, array in part.items()}


def load(path: Path, graph: Graph) -> Samples:
    """The calibration data in file `path`.

    Raises:
        CuvilError: a file that is no ``.npz`` of plain arrays, or data that `Samples` refuses.
    """
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise CuvilError(f"holds one array without a name; {HOW}", str(path))
        with file:
            arrays = {name: file[name] for name in file.files}
    except OSError as error:
        raise CuvilError(f"cannot read the calibration data: {error.strerror or error}", str(path)) from error
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise CuvilError(f"is not an .npz file of plain arrays; {HOW}", str(path)) from error
    return Samples(graph, arrays, str(path))


def _checked(array: Array, kind: TensorType, where: str) -> tuple[Array, bool]:
    """`array` in the input's element type, and whether each entry is a whole input."""
    wanted = numpy_dtype(kind.dtype)
    if array.dtype != wanted and not np.can_cast(array.dtype, wanted, "same_kind"):
        raise CuvilError(f"has type {array.dtype}, {kind.dtype} is expected", where)
    if kind.shape is None:
        raise CuvilError("the input has no known rank; give its shape", where)
    shape = list(kind.shape)
    stacked = array.ndim == len(shape) + 1
    own = array.shape[1:]
    expected = shape if stacked else shape[1:]
    fits = stacked or (bool(shape) and array.ndim == len(shape))
    if not fits or any(isinstance(want, int) and want != got for want, got in zip(expected, own)):
        kinds = " or ".join(_show(s) for s in ([shape[1:], shape] if shape else [shape]))
        message = f"has shape {list(array.shape)}; samples of shape {kinds} are expected, on the first axis"
        raise CuvilError(message, where)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise CuvilError("holds values that are not finite", where)
    return np.ascontiguousarray(array, dtype=wanted), stacked


def _show(shape: list[int | str]) -> str:
    return f"[{', '.join(map(str, shape))}]"
