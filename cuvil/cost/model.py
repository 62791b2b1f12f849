"""From a kernel's work and traffic to its time on a device.

``t = t_launch + LSE_p(F / (eta P), Q_llc / BW_llc, Q_dram / BW_dram)`` with the smooth maximum
``LSE_p(x) = (sum x ** p) ** (1 / p)``: p = 1 adds the three up, a large p is the roofline.  F are the
operations as the device feels them (`cuvil.cost.flops.Work.slots`), whose vectors may be partly
filled; eta depends on the class of the kernel.  A time never beats the roofline: the peak at the clock
that the efficiencies imply, and the bandwidth of the memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuvil.cost import dram, flops
from cuvil.cost.nests import Sizes
from cuvil.cost.parameters import GROUPS, NAMES, PRIOR_DEVIATION, TAGS, Floats, Parameters, of_device
from cuvil.ir.expr import is_float
from cuvil.ir.loops import Kernel, Micro, walk
from cuvil.schedule.plan import Schedule

LLC_BYTES_PER_CYCLE = 16
"""Nominal bandwidth of the last-level cache for one core."""

_INDEX = {name: k for k, name in enumerate(NAMES)}


@dataclass(frozen=True, eq=False)
class Machine:
    """A device in numbers.

    Attributes:
        peak, peak_i8: operations a second of one core.
        threads: cores that a library uses.
        lanes: f32 lanes of a vector.
        clock: cycles a second; derived from the peak where the profile gives none.
        bandwidth: B/s of its memory.
        inner, outer: bytes of the last-level cache's next inner cache, and of the last-level cache.
        line: cache line, bytes.
        parameters: of the cost model.
    """

    name: str
    peak: float
    peak_i8: float
    threads: int
    lanes: int
    clock: float
    bandwidth: float
    inner: int
    outer: int
    line: int
    parameters: Parameters


def machine(device: Mapping[str, Any], bandwidth: float) -> Machine:
    """The device of a ``partition`` slice; `bandwidth` is that of its memory, B/s.

    Raises:
        TargetError: an unknown parameter in the device's ``cost``.
    """
    caches = device["caches"]
    levels = [n for n in (caches["l1d"], caches["l2"], caches["l3"]) if n]
    lanes = max(int(device.get("vector_bits", 32)) // 32, 1)
    peak = float(device["peak_f32"])
    clock = float(device["frequency"]) or peak / (2 * lanes * max(int(device.get("fma_units", 1)), 1))
    return Machine(
        device["name"],
        peak,
        float(device["peak_i8"]) or peak,
        int(device["threads"]),
        lanes,
        clock,
        bandwidth,
        levels[-2] if len(levels) > 1 else 0,
        levels[-1] if levels else 0,
        int(caches["line"]),
        of_device(device),
    )


@dataclass(frozen=True, eq=False)
class Features:
    """A kernel as the model sees it.

    Attributes:
        kernel: name, tag and origin are those of the kernel.
        work: its operations.
        dram: bytes to and from DRAM.
        nominal: [F] nominal times that `Parameters.factors` scale.
        floor: the roofline: no prediction is below it, s.
    """

    kernel: Kernel
    work: flops.Work
    dram: float
    nominal: Floats
    floor: float

    @property
    def tag(self) -> str:
        return tag_of(self.kernel)


def tag_of(kernel: Kernel) -> str:
    """The class of a kernel for the model."""
    if any(v.scan is not None for v in kernel.values):
        return "scan"
    tiles = [s for s in walk(kernel.body) if isinstance(s, Micro)]
    if any(not is_float(v.dtype) for s in tiles for v, _ in s.reads[:1]):
        dot = all(getattr(s.kernel, "dot", False) for s in tiles)
        return f"{kernel.tag}_i8" if dot and f"{kernel.tag}_i8" in TAGS else "tuned"
    if kernel.tag in TAGS:
        return kernel.tag
    return "tuned" if tiles else "map"


def family(kernels: Sequence[Features], seconds: Sequence[float]) -> str:
    """The family of a model, for its interval: the class of the kernel that takes more than half of the
    time, or ``network`` where none does."""
    total = sum(seconds)
    return next((f.tag for f, t in zip(kernels, seconds) if t > total / 2), "network" if kernels else "")


def features(
    schedule: Schedule, device: Machine, bindings: Mapping[str, int] | None = None
) -> list[Features]:
    """The kernels of a schedule as the model sees them on a device.

    Args:
        bindings: symbolic sizes; those it does not name count as 1.
    """
    sizes = Sizes(bindings)
    alpha = device.parameters.alpha
    outer = dram.traffic(schedule, sizes, device.outer, alpha, device.line)
    inner = dram.traffic(schedule, sizes, device.inner, alpha, device.line)
    result = []
    for kernel, far, near in zip(schedule.kernels, outer, inner):
        work = flops.count(kernel, schedule.storage, sizes, device.lanes)
        points = 1.0
        for v in kernel.parallel:
            points *= sizes(v.args[0])
        cores = max(min(device.threads, points), 1.0)
        nominal = np.zeros(len(NAMES))
        nominal[_INDEX["launch"]] = 1.0
        nominal[_INDEX["entry"]] = work.entries / cores
        nominal[_INDEX["tile"]] = work.tiles / cores
        nominal[_INDEX["scatter"]] = work.scattered / cores
        nominal[_INDEX["scalar"]] = work.scalar_slots / device.clock / cores
        nominal[_INDEX["llc"]] = near.total / (LLC_BYTES_PER_CYCLE * device.clock * cores)
        nominal[_INDEX["dram"]] = far.total / device.bandwidth
        plain = (work.slots - work.dot_slots) / device.peak
        nominal[_INDEX[f"eta.{tag_of(kernel)}"]] = (plain + work.dot_slots / device.peak_i8) / cores
        counted = work.flops + work.epilogue_flops
        rate = device.peak * cores * device.parameters.boost
        floor = max(counted / rate, far.total / device.bandwidth)
        result.append(Features(kernel, work, far.total, nominal, floor))
    return result


def times(nominal: Floats, parameters: Parameters) -> Floats:
    """[K] seconds of kernels with nominal times [K, F]; without the roofline."""
    parts = _parts(nominal * parameters.factors)
    return np.asarray(parts[:, 0] + _norm(parts[:, 1:], parameters.p))


def predict(kernels: Sequence[Features], parameters: Parameters) -> Floats:
    """[K] seconds of kernels, none below its roofline."""
    if not kernels:
        return np.zeros(0)
    raw = times(np.array([k.nominal for k in kernels]), parameters)
    return np.maximum(raw, [k.floor for k in kernels])


def gradients(nominal: Floats, parameters: Parameters) -> Floats:
    """[K, F] derivatives of `times` by the logarithms of the factors."""
    scaled = nominal * parameters.factors
    parts = _parts(scaled)
    norm = _norm(parts[:, 1:], parameters.p)
    with np.errstate(divide="ignore", invalid="ignore"):
        weight = np.where(parts > 0, (parts / norm[:, None]) ** (parameters.p - 1), 0.0)
    weight[:, 0] = 1.0
    return np.asarray(scaled * weight[:, GROUPS])


def _parts(scaled: Floats) -> Floats:
    """[K, 4] launch, compute, LLC and DRAM times."""
    return np.stack([scaled[:, g == GROUPS].sum(axis=1) for g in range(4)], axis=1)


def _norm(x: Floats, p: float) -> Floats:
    top = x.max(axis=1, keepdims=True)
    safe = np.where(top > 0, top, 1.0)
    return np.asarray(top[:, 0] * ((x / safe) ** p).sum(axis=1) ** (1 / p))


@dataclass(frozen=True, eq=False)
class Measurement:
    """A measured run of a whole library.

    Attributes:
        nominal: [K, F] of its kernels.
        seconds: what it took.
        family: of kernels, for the calibration of intervals.
    """

    nominal: Floats
    seconds: float
    family: str = ""


def fit(
    measurements: Sequence[Measurement], start: Parameters, exponents: Sequence[float] = (1, 2, 4, 8)
) -> Parameters:
    """Parameters that minimise the squared relative error, with `start` as a weak prior.

    The smooth maximum is homogeneous of degree one, so its linearisation at the current factors is
    exact there and linear without a constant: each step of Gauss-Newton is a least-squares problem
    with bounds.  Factors that no measurement depends on stay as they are.  The covariance is that of
    the logarithms, from the residuals and the prior.

    Raises:
        ValueError: no measurements.
    """
    if not measurements:
        raise ValueError("nothing was measured")
    best: Parameters | None = None
    best_error = np.inf
    for p in exponents:
        found = _fit(
            measurements, Parameters(start.factors, float(p), start.alpha, start.sigma, start.covariance)
        )
        error = float(np.abs(residuals(measurements, found)).mean())
        if error < best_error:
            best, best_error = found, error
    assert best is not None
    return best


def residuals(measurements: Sequence[Measurement], parameters: Parameters) -> Floats:
    """``log(measured / predicted)`` of each measurement."""
    predicted = [times(m.nominal, parameters).sum() for m in measurements]
    return np.asarray(np.log(np.array([m.seconds for m in measurements]) / np.array(predicted)))


def _fit(measurements: Sequence[Measurement], start: Parameters) -> Parameters:
    prior = np.diag(1 / (start.factors * PRIOR_DEVIATION)) * start.sigma
    seconds = np.array([m.seconds for m in measurements])
    factors = start.factors
    current = start
    for _ in range(60):
        rows = np.array([gradients(m.nominal, current).sum(axis=0) for m in measurements]) / factors
        weight = 1 / np.sqrt(seconds * (rows @ factors))  # between relative to measured and to predicted
        system = np.vstack([rows * weight[:, None], prior])
        wanted = np.concatenate([seconds * weight, prior @ start.factors])
        new = bounded_least_squares(system, wanted, start.factors * 1e-2)
        new = np.exp((np.log(new) + np.log(factors)) / 2)
        change = float(np.abs(np.log(new / factors)).max())
        factors = new
        current = Parameters(factors, start.p, start.alpha, start.sigma, start.covariance)
        if change < 1e-4:
            break
    errors = residuals(measurements, current)
    jacobian = np.array([gradients(m.nominal, current).sum(axis=0) for m in measurements])
    jacobian /= jacobian.sum(axis=1, keepdims=True)
    sigma = float(np.sqrt((errors**2).sum() / max(len(errors) - 1, 1)))
    precision = jacobian.T @ jacobian / sigma**2 + np.eye(len(NAMES)) / PRIOR_DEVIATION**2
    return Parameters(factors, start.p, start.alpha, sigma, np.linalg.inv(precision))


def bounded_least_squares(a: Floats, b: Floats, lower: Floats, sweeps: int = 2000) -> Floats:
    """``x >= lower`` that minimises ``|a x - b|``, by coordinate descent.

    With `lower` 0 this is non-negative least squares.  Columns of zeros give `lower`.
    """
    scale = np.sqrt((a**2).sum(axis=0))
    scale[scale == 0] = 1.0
    gram = (a / scale).T @ (a / scale)
    right = (a / scale).T @ b
    bound = lower * scale
    x = bound.copy()
    for _ in range(sweeps):
        largest = 0.0
        for j in range(len(x)):
            if gram[j, j] == 0:
                continue
            new = max(bound[j], x[j] + (right[j] - gram[j] @ x) / gram[j, j])
            largest = max(largest, abs(new - x[j]))
            x[j] = new
        if largest <= 1e-12 * max(float(np.abs(x).max()), 1e-300):
            break
    return np.asarray(x / scale)
