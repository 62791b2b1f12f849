"""Accuracy of a classifier."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from cuvil.quantize.evaluate import accuracy


@pytest.mark.parametrize("batch", [1, 2, 256])
def test_accuracy_counts_over_all_batches(batch: int) -> None:
    sizes = []

    def run(feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        assert list(feeds) == ["x"]
        sizes.append(len(feeds["x"]))
        return [np.eye(4)[feeds["x"]], np.zeros(1)]

    test = {"x": np.array([0, 1, 2, 3, 0]), "label": np.array([0, 1, 2, 0, 3])}
    assert accuracy(run, test, batch=batch) == pytest.approx(0.6)
    assert sum(sizes) == 5 and max(sizes) == min(batch, 5)
