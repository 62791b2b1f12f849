from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from cost_nets import board, residual, scheduled

from cuvil.cost import model, uncertainty
from cuvil.cost.estimate import machine_of


@pytest.fixture(scope="module")
def network() -> tuple[np.ndarray, model.Parameters]:
    here = machine_of(board().slice("partition"), "socket0")
    found = model.features(scheduled(residual(), tuned=True), here)
    sure = replace(here.parameters, covariance=here.parameters.covariance / 4, p=2.0)
    return np.array([f.nominal for f in found]), sure


def test_jacobian_against_a_thousand_samples(network: tuple[np.ndarray, model.Parameters]) -> None:
    nominal, parameters = network
    samples = uncertainty.simulate(nominal, parameters)
    assert len(samples) == 1000
    deviation = uncertainty.log_deviation(nominal, parameters)
    assert np.log(samples).std() == pytest.approx(deviation, rel=0.1)
    low, high = uncertainty.interval(
        float(model.times(nominal, parameters).sum()), uncertainty.half_width(deviation, None)
    )
    assert ((low <= samples) & (samples <= high)).mean() == pytest.approx(0.9, abs=0.03)


def test_parameters_that_matter_widen_the_interval(network: tuple[np.ndarray, model.Parameters]) -> None:
    nominal, parameters = network
    base = uncertainty.log_deviation(nominal, parameters)
    index = {n: k for k, n in enumerate(model.NAMES)}
    for name, grows in (("eta.conv", True), ("eta.scan", False)):
        wide = parameters.covariance.copy()
        wide[index[name], index[name]] += 1.0
        found = uncertainty.log_deviation(nominal, replace(parameters, covariance=wide))
        assert (found > 1.2 * base) == grows, name
    assert uncertainty.log_deviation(np.zeros((1, len(model.NAMES))), parameters) == parameters.sigma


@pytest.mark.parametrize(
    ("scores", "coverage", "expected"),
    [
        (range(1, 10), 0.9, 9),  # ceil(10 * 0.9)
        (range(1, 9), 0.9, math.inf),
        (range(1, 20), 0.9, 18),
        ([3, 1, 2], 0.5, 2),
        ([], 0.5, math.inf),
    ],
)
def test_conformal_quantile(scores: list[float], coverage: float, expected: float) -> None:
    assert uncertainty.conformal_quantile(list(scores), coverage) == expected


def test_each_family_is_covered_by_its_own_residuals() -> None:
    """Two families of very different errors: pooled residuals would fail the harder one."""
    generator = np.random.default_rng(5)
    scale = {"easy": 0.02, "hard": 0.5}
    families = ["easy", "hard"] * 200
    errors = [float(generator.laplace(0, scale[f])) for f in families]
    found = uncertainty.calibrate(families, errors)
    fresh = {f: np.abs(generator.laplace(0, s, 20000)) for f, s in scale.items()}
    for family, spread in found.items():
        assert (fresh[family] <= spread).mean() == pytest.approx(0.9, abs=0.03), family
    pooled = uncertainty.conformal_quantile([abs(e) for e in errors])
    assert (fresh["hard"] <= pooled).mean() < 0.87
    assert (fresh["easy"] <= pooled).mean() > 0.99


def test_small_families_are_not_calibrated() -> None:
    assert uncertainty.calibrate(["conv"] * 8 + ["map"] * 9, [0.1] * 17) == {"map": 0.1}


def test_intervals_and_quantiles() -> None:
    assert uncertainty.half_width(0.2, None) == pytest.approx(0.2 * 1.645, rel=1e-3)
    assert uncertainty.half_width(0.2, 0.7) == 0.7
    assert uncertainty.interval(10.0, math.log(2)) == pytest.approx((5.0, 20.0))
    assert uncertainty.quantile_factor(0.3, 0.5) == pytest.approx(1.0)
    assert uncertainty.quantile_factor(0.3, 0.95) == pytest.approx(math.exp(0.3 * 1.645), rel=1e-3)
