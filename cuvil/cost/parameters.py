"""Parameters of the cost model: what they mean, their defaults, and what a profile overrides.

Every parameter is a positive factor of a nominal time, so that the model is linear in them up to the
smooth maximum.
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
    "amx", "border", "contraction", "conv", "conv_i8", "copy", "gemm", "gemm_i8", "map", "opaque", "reduce",
    "rows", "scan", "tuned",
)  # fmt: skip
"""Classes of kernels with an efficiency of their own: the kernels' tags, with ``_i8`` behind that of a tuned
kernel made of byte dot products.  Others count as ``map``, or as ``tuned`` where
they hold a tuned micro-kernel."""

NAMES = (
    "call", "launch", "entry", "tile", "scatter", "scalar", "llc", "dram", *(f"eta.{tag}" for tag in TAGS)
)  # fmt: skip
"""The factors, in the order of `Parameters.factors`.

call: seconds to call a library; launch: seconds to call a kernel; entry: seconds to enter an innermost
loop; tile: seconds to call a tuned micro-kernel; scatter: seconds to load or store an element of a vector
on its own; scalar: cycles of an operation outside vectorised loops; llc, dram: nominal over achieved
bandwidth; eta.<tag>: nominal over achieved rate of vectorised operations, or of the cycles that
micro-kernels state, the inverse of the efficiency of that class."""

GROUPS = np.array([0, 0, 1, 1, 1, 1, 2, 3, *(1 for _ in TAGS)])
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

    @property
    def boost(self) -> float:
        """How much faster than the profile's peak the device can be: an efficiency above 1 says that
        its clock is higher."""
        return float(max(1.0, 1 / self.factors[-len(TAGS) :].min()))

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
    "call": 3e-7, "launch": 1e-7, "entry": 2e-9, "tile": 5e-9, "scatter": 1e-9, "scalar": 0.1, "llc": 1.5,
    "dram": 1.3,
    "eta": {
        "amx": 1.0, "border": 0.1, "contraction": 0.3, "conv": 0.7, "conv_i8": 0.5, "copy": 0.1, "gemm": 0.7,
        "gemm_i8": 0.5, "map": 0.2, "opaque": 0.02, "reduce": 0.2, "rows": 0.2, "scan": 0.3, "tuned": 0.1,
    },
    "p": 2.0, "alpha": ALPHA, "sigma": 0.4, "deviation": {}, "spread": {},
}  # fmt: skip
"""The parameters of a device of which nothing was measured, as a profile's ``cost`` would give them."""

_SAPPHIRE_RAPIDS: dict[str, Any] = {
    "launch": 4.6e-07, "entry": 5.11e-10, "tile": 6.03e-09, "scatter": 1.82e-10, "scalar": 0.0694,
    "llc": 1.45, "dram": 1.42, "p": 1.0, "alpha": 0.85, "sigma": 0.313,
    "eta": {
        "border": 0.0992, "contraction": 0.626, "conv": 1.17, "conv_i8": 1.31, "copy": 0.1,
        "gemm": 1.18, "gemm_i8": 1.26, "map": 0.213, "opaque": 0.02, "reduce": 0.532,
        "rows": 0.304, "scan": 0.489, "tuned": 0.11,
    },
    "deviation": {
        "launch": 0.156, "entry": 0.317, "scatter": 0.21, "llc": 0.152, "contraction": 0.219,
        "conv": 0.0686, "conv_i8": 0.34, "gemm": 0.101, "gemm_i8": 0.266, "map": 0.135,
        "reduce": 0.325, "rows": 0.135, "scan": 0.168, "tuned": 0.306,
    },
    "spread": {
        "conv": 0.78, "gemm": 0.582, "map": 0.516, "network": 0.437,
    },
}  # fmt: skip
"""``benchmarks/fit_cost.py`` on a virtual machine of this family, whose profile gives 2.6 GHz; an efficiency
above 1 says that the clock was higher."""

MEASURED: dict[str, dict[str, Any]] = {"x86-64-v4": _SAPPHIRE_RAPIDS, "x86-64-v4-vnni": _SAPPHIRE_RAPIDS}
"""Measured parameters by instruction set."""


def of_device(device: Mapping[str, Any]) -> Parameters:
    """The parameters of a device: its ``cost`` mapping over what was measured for its instruction set
    over the defaults.

    Args:
        device: its part of the ``partition`` slice of a target.

    Raises:
        TargetError: an unknown name in ``cost``, or a number in the place of a mapping.
    """
    given = device.get("cost", {})
    _check(given, DEFAULT, f"devices.{device['name']}.cost")
    merged = _merge(_merge(DEFAULT, MEASURED.get(device["isa"], {})), given)
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
        float(merged["alpha"]),
        float(merged["sigma"]),
        np.diag(np.square(deviation)),
        dict(merged["spread"]),
    )


def _check(given: Mapping[str, Any], known: Mapping[str, Any], where: str) -> None:
    for key, value in given.items():
        if key not in known:
            raise TargetError(f"unknown parameter '{key}'; allowed: {', '.join(known)}", where)
        if isinstance(value, Mapping) != isinstance(known[key], Mapping):
            wanted = "a mapping" if isinstance(known[key], Mapping) else "a number"
            raise TargetError(f"expected {wanted}", f"{where}.{key}")
        if key == "eta":
            _check(value, known[key], f"{where}.{key}")
    for key, least, most in (("p", 1.0, 64.0), ("alpha", 0.0, 1.0)):
        if not least <= given.get(key, least) <= most:
            raise TargetError(f"expected a number from {least:g} to {most:g}", f"{where}.{key}")


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = _merge(old, value) if isinstance(value, Mapping) and isinstance(old, Mapping) else value
    return result
