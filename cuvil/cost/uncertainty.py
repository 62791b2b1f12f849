"""Intervals for predicted times.

Two sources, both of the logarithm of the time.  The parameters' uncertainty is carried through the
model by its Jacobian, ``sigma ** 2 + J Sigma J^T``; it needs no measurements of the model at hand but
trusts the model's form.  Where residuals of a family of kernels were measured, split conformal
prediction takes their quantile instead, which covers whatever the form's errors are as long as new
cases resemble those of the family (Lei et al. 2018).  Families are calibrated apart: pooled residuals
cover easy families too well and hard ones too badly.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import NormalDist

import numpy as np

from cuvil.cost.model import gradients, times
from cuvil.cost.parameters import Floats, Parameters

COVERAGE = 0.9
"""Nominal share of measured times that lie inside their interval."""

SAMPLES = 1000
"""Monte-Carlo samples of `simulate`."""


def log_deviation(nominal: Floats, parameters: Parameters) -> float:
    """Standard deviation of the logarithm of the total time of kernels with nominal times [K, F]:
    ``sqrt(sigma ** 2 + J Sigma J^T)``, ``J = d log t / d log factors``."""
    rows = gradients(nominal, parameters).sum(axis=0)
    total = float(rows.sum())
    if total <= 0:
        return parameters.sigma
    jacobian = rows / total
    return math.sqrt(parameters.sigma**2 + float(jacobian @ parameters.covariance @ jacobian))


def half_width(deviation: float, spread: float | None, coverage: float = COVERAGE) -> float:
    """Half of the interval's width in logarithms: the conformal quantile where there is one, else
    the Gaussian one."""
    return spread if spread is not None else NormalDist().inv_cdf((1 + coverage) / 2) * deviation


def interval(value: float, half: float) -> tuple[float, float]:
    """``value * exp(+-half)``."""
    return value * math.exp(-half), value * math.exp(half)


def quantile_factor(deviation: float, quantile: float) -> float:
    """What a time is multiplied with so that a share `quantile` of cases takes no longer."""
    return math.exp(NormalDist().inv_cdf(quantile) * deviation)


def conformal_quantile(scores: Sequence[float], coverage: float = COVERAGE) -> float:
    """The ``ceil((n + 1) * coverage)``-th smallest of n scores; infinite where n is too small."""
    rank = math.ceil((len(scores) + 1) * coverage - 1e-9)
    return sorted(scores)[rank - 1] if 1 <= rank <= len(scores) else math.inf


def calibrate(
    families: Iterable[str], errors: Iterable[float], coverage: float = COVERAGE
) -> dict[str, float]:
    """Conformal quantile of ``|error|`` by family, for the families with enough residuals.

    Args:
        errors: ``log(measured / predicted)`` of cases that the parameters were not fitted to.
    """
    grouped: dict[str, list[float]] = defaultdict(list)
    for family, error in zip(families, errors):
        grouped[family].append(abs(error))
    found = {family: conformal_quantile(scores, coverage) for family, scores in grouped.items()}
    return {family: q for family, q in sorted(found.items()) if math.isfinite(q)}


def simulate(nominal: Floats, parameters: Parameters, samples: int = SAMPLES, seed: int = 0) -> Floats:
    """[samples] total times under factors drawn from their distribution, with the model's error."""
    generator = np.random.default_rng(seed)
    zero = np.zeros(len(parameters.factors))
    draws = generator.multivariate_normal(zero, parameters.covariance, samples)
    noise = generator.normal(0.0, parameters.sigma, samples)
    result = np.empty(samples)
    for k, draw in enumerate(draws):
        drawn = Parameters(
            parameters.factors * np.exp(draw),
            parameters.p,
            parameters.alpha,
            parameters.sigma,
            parameters.covariance,
        )
        result[k] = times(nominal, drawn).sum() * math.exp(noise[k])
    return result
