"""Parameters of the cost model: what they mean, their defaults, and what a profile overrides.

Every parameter is a factor of a nominal time, so that the model is linear in them up to the smooth
maximum, and all of them can be fitted by non-negative least squares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cuvil.cost.dram import ALPHA
from cuvil.errors import TargetError

Floats = npt.NDArray[np.float64]

TAGS = (
    "border", "contraction", "conv", "conv_i8", "copy", "gemm", "gemm_i8", "map", "opaque", "reduce", "rows",
    "scan", "tuned",
)  # fmt: skip
"""Classes of kernels with an efficiency of their own: the kernels' tags, with ``_i8`` behind that of a tuned
kernel that multiplies bytes.  Others count as ``map``, or as ``tuned`` where
they hold a tuned micro-kernel."""

NAMES = ("launch", "entry", "tile", "scatter", "scalar", "llc", "dram", *(f"eta.{tag}" for tag in TAGS))
"""The factors, in the order of `Parameters.factors`.

launch: seconds to call a kernel; entry: seconds to enter an innermost loop; tile: seconds to call a
tuned micro-kernel; scatter: seconds to load or store an element of a vector on its own; scalar: cycles of
an operation outside vectorised loops; llc, dram: nominal over achieved bandwidth; eta.<tag>: nominal
over achieved rate of vectorised operations, the inverse of the efficiency of that class."""

GROUPS = np.array([0, 1, 1, 1, 1, 2, 3, *(1 for _ in TAGS)])
"""0: added as it is; 1, 2, 3: the arguments compute, LLC and DRAM of the smooth maximum."""

PRIOR_DEVIATION = 0.7
"""Standard deviation of the logarithm of a factor that was never measured."""


@dataclass(frozen=True, eq=False)
class Parameters:
    """Fitted or assumed parameters of one device.

    Attributes:
        factors: [F] by `NAMES`.
        p: exponent of the smooth maximum ``(sum x ** p) ** (1 / p)``: 1 is no overlap, large values
            are the roofline.
        alpha: hit probability at a reuse distance of the cache's size.
        sigma: standard deviation of the logarithm of measured over predicted time.
        covariance: [F, F] of the logarithms of the factors.
        spread: by family, the conformal quantile of ``|log(measured / predicted)|``.
    """

    factors: Floats
    p: float
    alpha: float
    sigma: float
    covariance: Floats
    spread: Mapping[str, float] = field(default_factory=dict)

    def to_cost(self) -> dict[str, Any]:
        """The parameters as the ``cost`` mapping of a profile; of the covariance the diagonal."""
        named = dict(zip(NAMES, self.factors))
        deviation = dict(zip(NAMES, np.sqrt(np.diag(self.covariance))))
        result: dict[str, Any] = {k: _short(v) for k, v in named.items() if "." not in k}
        result["eta"] = {tag: _short(1 / named[f"eta.{tag}"]) for tag in TAGS}
        result |= {"p": _short(self.p), "alpha": _short(self.alpha), "sigma": _short(self.sigma)}
        result["deviation"] = {k.replace("eta.", ""): _short(v) for k, v in deviation.items()}
        if self.spread:
            result["spread"] = {k: _short(v) for k, v in sorted(self.spread.items())}
        return result


def _short(x: float) -> float:
    return float(f"{x:.3g}")


DEFAULT: dict[str, Any] = {
    "launch": 1e-7, "entry": 2e-9, "tile": 5e-9, "scatter": 1e-9, "scalar": 0.1, "llc": 1.5, "dram": 1.3,
    "eta": {
        "border": 0.1, "contraction": 0.3, "conv": 0.7, "conv_i8": 0.5, "copy": 0.1, "gemm": 0.7,
        "gemm_i8": 0.5, "map": 0.2, "opaque": 0.02, "reduce": 0.2, "rows": 0.2, "scan": 0.3, "tuned": 0.6,
    },
    "p": 2.0, "alpha": ALPHA, "sigma": 0.4, "deviation": {}, "spread": {},
}  # fmt: skip
"""The parameters of a device of which nothing was measured, as a profile's ``cost`` would give them."""

MEASURED: dict[str, dict[str, Any]] = {}
"""Measured parameters by instruction set; the figures of ``benchmarks/fit_cost.py``."""


def of_device(device: Mapping[str, Any]) -> Parameters:
    """The parameters of a device: its ``cost`` mapping over what was measured for its instruction set
    over the defaults.

    Args:
        device: its part of the ``partition`` slice of a target.

    Raises:
        TargetError: an unknown name in ``cost``.
    """
    merged = _merge(_merge(DEFAULT, MEASURED.get(device["isa"], {})), device.get("cost", {}))
    for path, known in (((), DEFAULT), (("eta",), DEFAULT["eta"])):
        given = device.get("cost", {})
        for key in path:
            given = given.get(key, {})
        unknown = [k for k in given if k not in known]
        if unknown:
            where = ".".join(("devices", device["name"], "cost", *path))
            raise TargetError(f"unknown parameter '{unknown[0]}'; allowed: {', '.join(known)}", where)
    values = {
        **{k: merged[k] for k in NAMES if "." not in k},
        **{f"eta.{t}": 1 / merged["eta"][t] for t in TAGS},
    }
    if device.get("launch_overhead"):
        values["launch"] = device["launch_overhead"]
    deviation = [merged["deviation"].get(k.replace("eta.", ""), PRIOR_DEVIATION) for k in NAMES]
    return Parameters(
        np.array([values[k] for k in NAMES]),
        float(merged["p"]),
        min(float(merged["alpha"]), 1.0),
        float(merged["sigma"]),
        np.diag(np.square(deviation)),
        dict(merged["spread"]),
    )


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = _merge(old, value) if isinstance(value, Mapping) and isinstance(old, Mapping) else value
    return result
