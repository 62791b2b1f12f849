"""From a kernel's work and traffic to its time on a device.

``t = t_call + t_launch + LSE_p(F / (eta P), Q_llc / BW_llc, Q_dram / BW_dram)`` with the smooth maximum
``LSE_p(x) = (sum x ** p) ** (1 / p)``: p = 1 adds the three up, a large p is the roofline.  F are the
operations as the device feels them (`cuvil.cost.flops.Work.slots`), whose vectors may be partly
filled; eta depends on the class of the kernel.  A time never beats the roofline: the peak at the clock
that the efficiencies imply, and the bandwidth of the memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cuvil.cost import dram, flops
from cuvil.cost.nests import Sizes, nest
from cuvil.cost.parameters import GROUPS, NAMES, PRIOR_DEVIATION, TAGS, Floats, Parameters, of_device
from cuvil.ir.expr import is_float
from cuvil.ir.loops import Kernel, Micro, walk
from cuvil.schedule.plan import Schedule

LLC_BYTES_PER_CYCLE = 16
"""Nominal bandwidth of the last-level cache for one core."""

NETWORK = 5
"""Kernels of which a model consists at least to be one of many kernels for its interval."""

HUBER = 1.5
"""Deviations from which on a residual counts linearly in a fit."""

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
    if any(s.cycles is not None for s in tiles):
        return "amx"
    if any(not is_float(v.dtype) for s in tiles for v, _ in s.reads[:1]):
        dot = all(getattr(s.kernel, "dot", False) for s in tiles)
        return f"{kernel.tag}_i8" if dot and f"{kernel.tag}_i8" in TAGS else "tuned"
    if kernel.tag in TAGS:
        return kernel.tag
    return "tuned" if tiles else "map"


def family(kernels: Sequence[Features], seconds: Sequence[float]) -> str:
    """The family of a model, for its interval: ``network`` where it has at least `NETWORK` kernels and
    none takes more than half of the time, else the class of kernels that takes most of it."""
    share: dict[str, float] = {}
    for f, t in zip(kernels, seconds):
        share[f.tag] = share.get(f.tag, 0.0) + t
    if len(kernels) >= NETWORK and max(seconds) <= sum(seconds) / 2:
        return "network"
    return max(share, key=lambda tag: (share[tag], tag), default="")


def features(
    schedule: Schedule, device: Machine, bindings: Mapping[str, int] | None = None
) -> list[Features]:
    """The kernels of a schedule as the model sees them on a device.

    Args:
        bindings: symbolic sizes; those it does not name count as 1.
    """
    sizes = Sizes(bindings)
    alpha = device.parameters.alpha
    nests = [nest(kernel, sizes) for kernel in schedule.kernels]
    moved = dram.Movement(schedule, sizes, nests, device.line)
    outer, inner = moved.traffic(device.outer, alpha), moved.traffic(device.inner, alpha)
    result: list[Features] = []
    for kernel, loops, far, near in zip(schedule.kernels, nests, outer, inner):
        work = flops.count(kernel, schedule.storage, sizes, device.lanes, loops)
        points = 1.0
        for v in kernel.parallel:
            points *= sizes(v.args[0])
        cores = max(min(device.threads, points), 1.0)
        nominal = np.zeros(len(NAMES))
        nominal[_INDEX["call"]] = 0.0 if result else 1.0  # the first kernel's share, for the sum to be right
        nominal[_INDEX["launch"]] = 1.0
        nominal[_INDEX["entry"]] = work.entries / cores
        nominal[_INDEX["tile"]] = work.tiles / cores
        nominal[_INDEX["scatter"]] = work.scattered / cores
        nominal[_INDEX["scalar"]] = work.scalar_slots / device.clock / cores
        nominal[_INDEX["llc"]] = near.total / (LLC_BYTES_PER_CYCLE * device.clock * cores)
        nominal[_INDEX["dram"]] = far.total / device.bandwidth
        plain = (work.slots - work.dot_slots) / device.peak + work.cycles / device.clock
        nominal[_INDEX[f"eta.{tag_of(kernel)}"]] = (plain + work.dot_slots / device.peak_i8) / cores
        done = work.slots + work.scalar_slots + work.cycles * device.peak / device.clock
        # less than what is counted where an algorithm saves some
        counted = min(work.flops + work.epilogue_flops, done)
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


def residuals(measurements: Sequence[Measurement], parameters: Parameters) -> Floats:
    """``log(measured / predicted)`` of each measurement."""
    predicted = [times(m.nominal, parameters).sum() for m in measurements]
    return np.asarray(np.log(np.array([m.seconds for m in measurements]) / np.array(predicted)))


def fit(
    measurements: Sequence[Measurement], start: Parameters, exponents: Sequence[float] = (1, 2, 4, 8)
) -> Parameters:
    """The parameters that most likely made the measurements.

    Least squares on ``log(measured / predicted)``, which is the relative error, over the logarithms of
    the factors, which keeps them positive: Gauss-Newton, with `start` as a prior of `PRIOR_DEVIATION`
    and residuals beyond `HUBER` deviations counting linearly.  A factor that no measurement depends on
    stays as it is.  The exponent of the smooth maximum is the best of `exponents`.

    Raises:
        ValueError: no measurements.
    """
    if not measurements:
        raise ValueError("nothing was measured")
    fitted = [_fit(measurements, replace(start, p=float(p))) for p in exponents]
    return min(fitted, key=lambda found: float(np.abs(residuals(measurements, found)).mean()))


def _fit(measurements: Sequence[Measurement], start: Parameters) -> Parameters:
    prior = np.eye(len(NAMES)) / PRIOR_DEVIATION**2
    current, sigma = start, start.sigma
    for _ in range(200):
        errors, jacobian = residuals(measurements, current), log_jacobian(measurements, current)
        weights = np.minimum(1.0, HUBER * sigma / np.maximum(np.abs(errors), 1e-12)) / sigma**2
        precision = (jacobian.T * weights) @ jacobian + prior
        pull = (jacobian.T * weights) @ errors - prior @ np.log(current.factors / start.factors)
        step = np.clip(np.linalg.solve(precision, pull), -0.5, 0.5)
        current = replace(current, factors=current.factors * np.exp(step))
        sigma = max(float(np.sqrt((weights * sigma**2 * errors**2).mean())), 1e-3)
        if np.abs(step).max() < 1e-6:
            break
    errors, jacobian = residuals(measurements, current), log_jacobian(measurements, current)
    sigma = max(float(np.sqrt((errors**2).mean())), 1e-3)
    covariance = np.asarray(np.linalg.inv(jacobian.T @ jacobian / sigma**2 + prior), np.float64)
    return replace(current, sigma=sigma, covariance=covariance)


def log_jacobian(measurements: Sequence[Measurement], parameters: Parameters) -> Floats:
    """[M, F] derivatives of the logarithms of the total times by those of the factors."""
    rows = np.array([gradients(m.nominal, parameters).sum(axis=0) for m in measurements])
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))
