"""Samples to run a library on: read from ``.npz``, or random, and put into batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cuvil.errors import CuvilError

LABEL = "label"
"""The array of a file that holds the classes."""

BATCH = 32
"""Samples of a batch where the model leaves its size open."""

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Samples:
    """Arrays by input as the model has them, samples on the first axis.

    Attributes:
        labels: the class of each sample, if known.
        random: the arrays hold no real data.
    """

    arrays: Arrays
    labels: np.ndarray | None = None
    random: bool = False


def read(path: Path, inputs: Sequence[Mapping[str, Any]]) -> Samples:
    """The samples in an ``.npz`` file.

    Args:
        inputs: `name` and `shape` of each input, as the library's metadata have them.

    Raises:
        CuvilError: the file is none, lacks an input, or has different numbers of samples.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # zipfile, zlib and numpy raise many kinds for damaged files
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CuvilError(f"cannot be read as .npz: {reason}", str(path)) from error
    missing = [t["name"] for t in inputs if t["name"] not in arrays]
    if missing:
        raise CuvilError(f"has no array '{missing[0]}', only {', '.join(arrays) or 'nothing'}", str(path))
    chosen = {t["name"]: arrays[t["name"]] for t in inputs}
    counts = {name: len(a) if a.ndim else 0 for name, a in chosen.items()}
    if len({*counts.values()}) > 1 or 0 in counts.values():
        listed = ", ".join(f"'{name}' {count}" for name, count in counts.items())
        raise CuvilError(f"the numbers of samples must agree and be more than 0: {listed}", str(path))
    return Samples(chosen, arrays.get(LABEL))


def random(inputs: Sequence[Mapping[str, Any]]) -> Samples:
    """One sample: normal floats, empty strings, and zeros for other types, which may be indices; open sizes
    are 1."""
    generator = np.random.default_rng(0)
    arrays: Arrays = {}
    for t in inputs:
        shape = tuple(d if isinstance(d, int) else 1 for d in t["shape"])
        if t["dtype"] == "string":
            arrays[t["name"]] = np.full(shape, "", object)
            continue
        floating = t["dtype"].startswith("float")
        values = generator.standard_normal(shape) if floating else np.zeros(shape)
        arrays[t["name"]] = values.astype(t["dtype"])
    return Samples(arrays, random=True)


def batches(
    samples: Samples, inputs: Sequence[Mapping[str, Any]], limit: int | None = None, largest: int = BATCH
) -> list[Arrays]:
    """The samples in batches of the size that the model has, or of `largest` where it is open.

    An array with one axis more than its input has whole inputs on the first. A rest that fills no batch of
    fixed size is left out.

    Args:
        limit: the most samples to use.

    Raises:
        CuvilError: there are fewer samples than one batch has.
    """
    if not inputs:
        return [{}]
    if samples.random:
        return [samples.arrays]
    arrays = samples.arrays
    count = len(next(iter(arrays.values())))
    whole = {t["name"] for t in inputs if arrays[t["name"]].ndim == len(t["shape"]) + 1}
    fixed = {t["shape"][0] for t in inputs if t["name"] not in whole and t["shape"]}
    sizes = sorted(n for n in fixed if isinstance(n, int))
    size = 1 if whole else sizes[0] if sizes else largest
    if count < size and sizes:
        raise CuvilError(f"the model takes batches of {size} samples, there are {count}")
    count = min(count, max(limit or count, size))
    if sizes or whole:
        count -= count % size
    return [
        {name: a[k] if name in whole else a[k : min(k + size, count)] for name, a in arrays.items()}
        for k in range(0, count, size)
    ]
