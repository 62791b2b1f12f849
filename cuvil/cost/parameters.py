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

_AVX512: dict[str, Any] = {
    "alpha": 0.85, "call": 2.04e-07, "dram": 1.42, "entry": 5.07e-10, "launch": 1.86e-07, "llc": 1.63,
    "p": 2.0, "scalar": 0.0585, "scatter": 2.2e-10, "sigma": 0.276, "tile": 9.94e-09,
    "eta": {
        "amx": 1.0, "border": 0.103, "contraction": 0.781, "conv": 1.07, "conv_i8": 1.26, "copy": 0.1,
        "gemm": 1.12, "gemm_i8": 1.12, "map": 0.402, "opaque": 0.02, "reduce": 0.568, "rows": 0.332,
        "scan": 0.502, "tuned": 0.11,
    },
    "deviation": {
        "call": 0.469, "contraction": 0.385, "conv": 0.0534, "conv_i8": 0.186, "entry": 0.284, "gemm":
        0.0679, "gemm_i8": 0.209, "launch": 0.492, "llc": 0.12, "map": 0.133, "reduce": 0.301, "rows":
        0.117, "scan": 0.148, "scatter": 0.117,
    },
    "spread": {"conv": 0.143, "gemm": 0.131, "map": 0.669, "network": 0.212},
}  # fmt: skip

_AMX: dict[str, Any] = {
    "alpha": 0.85, "call": 2.79e-07, "dram": 1.43, "entry": 5.59e-10, "launch": 9.72e-08, "llc": 1.4, "p":
    1.0, "scalar": 0.0791, "scatter": 2.11e-10, "sigma": 0.275, "tile": 5.56e-09,
    "eta": {
        "amx": 1.1, "border": 0.109, "contraction": 0.788, "conv": 1.09, "conv_i8": 1.22, "copy": 0.1,
        "gemm": 1.16, "gemm_i8": 1.06, "map": 0.432, "opaque": 0.02, "reduce": 0.594, "rows": 0.34,
        "scan": 0.465, "tuned": 0.1,
    },
    "deviation": {
        "amx": 0.0631, "call": 0.282, "contraction": 0.385, "conv": 0.0643, "conv_i8": 0.181, "entry":
        0.264, "gemm": 0.131, "gemm_i8": 0.201, "llc": 0.128, "map": 0.14, "reduce": 0.313, "rows": 0.12,
        "scan": 0.141, "scatter": 0.12,
    },
    "spread": {"amx": 0.323, "conv": 0.71, "map": 0.531, "network": 0.201},
}  # fmt: skip
"""What ``benchmarks/fit_cost.py`` found (``benchmarks/results/cost-avx512.json``, ``cost-amx.json``) on a
virtual machine of a Xeon of 2023, whose profile gives 2.6 GHz; an efficiency above 1 says that the clock was
higher."""

MEASURED: dict[str, dict[str, Any]] = {
    "x86-64-v4": _AVX512, "x86-64-v4-vnni": _AVX512, "x86-64-v4-amx": _AMX,
}  # fmt: skip
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
