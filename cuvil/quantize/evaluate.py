"""Accuracy of a classifier on labelled data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def accuracy(
    run: Callable[[Mapping[str, Array]], Sequence[Array]],
    test: Mapping[str, Array],
    label: str = "label",
    batch: int = 256,
) -> float:
    """The fraction of samples whose largest score is that of their label.

    Args:
        run: computes the outputs of feeds; the first one is scores, [samples, classes].
        test: an array per input by name, samples on the first axis, and the labels, [samples].
        label: the labels' name.
        batch: samples a run.
    """
    labels = np.asarray(test[label])
    feeds = {name: np.asarray(array) for name, array in test.items() if name != label}
    hits = 0
    for start in range(0, len(labels), batch):
        scores = run({name: array[start : start + batch] for name, array in feeds.items()})[0]
        hits += int((scores.argmax(axis=-1) == labels[start : start + batch]).sum())
    return hits / len(labels)
