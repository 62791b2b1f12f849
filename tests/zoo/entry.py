"""What the registries hold: a network, how to feed it, and how exactly it can be expected to agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

Feeds = dict[str, npt.NDArray[Any]]
Dims = Mapping[str, int]
Feeder = Callable[[np.random.Generator, Dims, int], Feeds]


class Unavailable(Exception):
    """A model that cannot be had here; the text is the reason, and a test skips with it."""


@dataclass(frozen=True)
class ModelEntry:
    """A network for tests and benchmarks.

    Attributes:
        name: its key in the registry.
        source: builds the model, or finds its file; raises `Unavailable`.
        feeder: makes inputs from a generator, the sizes of `dims` and the seed, where seed 0 stands
            for the plainest case (recurrent state zero).
        dims: default sizes of the symbolic dimensions, under the model's names for them or, where
            it has none, under ours.
        tolerance: largest allowed absolute error against onnxruntime, relative to the largest
            absolute value of that output, in float32.
        note: what is peculiar about it.
        values: of inputs that are bound when it is compiled, by name.
        fixed: shapes of inputs that are bound even where dimensions are left open.
    """

    name: str
    source: Callable[[], onnx.ModelProto | Path]
    feeder: Feeder
    dims: Dims = field(default_factory=dict)
    tolerance: float = 1e-4
    note: str = ""
    values: Mapping[str, int] = field(default_factory=dict)
    fixed: Mapping[str, Sequence[int | str]] = field(default_factory=dict)

    def path(self, folder: Path) -> Path:
        """The model's file; a built one is written to `folder` unless it is there already."""
        source = self.source()
        if isinstance(source, Path):
            return source
        path = folder / f"{self.name}.onnx"
        if not path.exists():
            onnx.save(source, path)
        return path

    def model(self) -> onnx.ModelProto:
        """The model itself."""
        source = self.source()
        return onnx.load(source) if isinstance(source, Path) else source

    def inputs(self, seed: int = 0, **dims: int) -> Feeds:
        """Realistic inputs by name, the same for the same seed; `dims` overrides the default sizes.

        Raises:
            KeyError: a dimension that the model does not have.
        """
        unknown = dims.keys() - self.dims.keys()
        if unknown:
            raise KeyError(f"{self.name} has dimensions {sorted(self.dims)}, not {sorted(unknown)}")
        return self.feeder(np.random.default_rng([seed, 77]), {**self.dims, **dims}, seed)

    def shapes(self, **dims: int) -> dict[str, list[int]]:
        """The shape of every input, as `cuvil.compile` takes them to fix symbolic dimensions."""
        feeds = self.inputs(0, **dims)
        return {name: list(array.shape) for name, array in feeds.items() if name not in self.values}


def image(rng: np.random.Generator, shape: tuple[int, int, int, int]) -> npt.NDArray[np.float32]:
    """A smooth picture with some noise, in [-1, 1]; `shape` is [N, C, H, W].

    Sums of a few plane waves of random direction and frequency, each with its own colour: like
    photographs, and unlike white noise, their energy is in the low frequencies.
    """
    count, channels, height, width = shape
    y, x = np.meshgrid(np.linspace(0, 1, height), np.linspace(0, 1, width), indexing="ij")
    picture = 0.05 * rng.standard_normal(shape)
    for index in range(count):
        for _ in range(8):
            fy, fx, phase = rng.normal(0, 12), rng.normal(0, 12), rng.uniform(0, 6.28)
            colour = rng.normal(0, 0.3, (channels, 1, 1))
            picture[index] += colour * np.sin(fy * y + fx * x + phase)
    return np.clip(picture, -1, 1).astype(np.float32)


def page(rng: np.random.Generator, shape: tuple[int, int, int, int]) -> npt.NDArray[np.float32]:
    """Lines of dark scribbled characters on a light ground, in [-1, 1]; `shape` is [N, C, H, W].

    A character is four strokes of two pixels' width, most of them upright or level.
    """
    count, _, height, width = shape
    grey = np.ones((count, height, width))
    size = max(8, min(24, height // 2))
    for sheet in grey:
        for top in range(size // 4, height - size, 2 * size):
            left = size
            while left + size < width - size // 2:
                for _ in range(4):
                    start, end = rng.integers(0, size, (2, 2)) + np.array([top, left])
                    if rng.random() < 0.7:
                        axis = rng.integers(2)
                        end[axis] = start[axis]
                    for y, x in np.linspace(start, end, 2 * size).round().astype(int):
                        sheet[y : y + 2, x : x + 2] = -0.8
                left += int(size * rng.choice([0.9, 1.1, 1.6]))
    picture = grey[:, None] + 0.03 * rng.standard_normal(shape)
    return np.clip(picture, -1, 1).astype(np.float32)
