"""int8."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cuvil.ir.graph import Graph

Evaluator = Callable[[Graph, Sequence[Mapping[str, np.ndarray]]], list[dict[str, np.ndarray]]]


def quantize(
    graph: Graph,
    placed: dict[str, Graph],
    target: Mapping[str, Any],
    calibration: Path | None,
    run: Evaluator,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Quantize."""
    return {}
