from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cost_nets import board, conv, matmul, scheduled, unary

from cuvil.cost import model
from cuvil.cost.estimate import machine_of
from cuvil.cost.model import Machine, Measurement
from cuvil.cost.parameters import DEFAULT, NAMES, TAGS, Floats, Parameters, of_device
from cuvil.errors import TargetError

INDEX = {name: k for k, name in enumerate(NAMES)}


def nominal(**times: float) -> Floats:
    """One kernel's nominal times, [1, F]; ``eta_conv`` for ``eta.conv``."""
    row = np.zeros((1, len(NAMES)))
    for name, value in times.items():
        row[0, INDEX[name.replace("eta_", "eta.")]] = value
    return row


def parameters(p: float = 2.0, **factors: float) -> Parameters:
    values = np.ones(len(NAMES))
    for name, value in factors.items():
        values[INDEX[name.replace("eta_", "eta.")]] = value
    return Parameters(values, p, 0.85, 0.1, np.zeros((len(NAMES), len(NAMES))))


def device(**changes: object) -> dict[str, object]:
    return {**board().slice("partition")["devices"]["socket0"], **changes}


def machine(**changes: object) -> Machine:
    return model.machine(device(**changes), 200e9)


def test_smooth_maximum() -> None:
    kernel = nominal(launch=1.0, eta_conv=3.0, llc=4.0)
    assert model.times(kernel, parameters(1.0)) == pytest.approx([8.0])  # no overlap
    assert model.times(kernel, parameters(2.0)) == pytest.approx([6.0])
    assert model.times(kernel, parameters(400.0)) == pytest.approx([5.0], rel=1e-3)  # the roofline
    assert model.times(nominal(launch=0.5), parameters()) == pytest.approx([0.5])


def test_compute_terms_add_up_before_the_maximum() -> None:
    kernel = nominal(entry=1.0, tile=1.0, eta_gemm=2.0, dram=3.0)
    assert model.times(kernel, parameters(2.0)) == pytest.approx([5.0])


def test_gradients_are_those_of_the_logarithms() -> None:
    rows = np.vstack([nominal(launch=0.3, eta_conv=3.0, llc=2.0, dram=1.0), nominal(eta_map=1.0, entry=0.2)])
    at = parameters(3.0, eta_conv=1.5, llc=0.7)
    exact = model.gradients(rows, at)
    for k in range(len(NAMES)):
        step = 1e-6
        up = replace(at, factors=at.factors * np.exp(np.eye(len(NAMES))[k] * step))
        numeric = (model.times(rows, up) - model.times(rows, at)) / step
        assert exact[:, k] == pytest.approx(numeric, abs=1e-5)
    assert exact.sum(axis=1) == pytest.approx(model.times(rows, at))  # homogeneous of degree one


def test_a_kernel_never_beats_the_roofline() -> None:
    fast = machine(cost={"eta": dict.fromkeys(TAGS, 1.0), "launch": 1e-12, "entry": 1e-15, "tile": 1e-15})
    s = scheduled(matmul(256, 512, 512), tuned=True)
    found = model.features(s, fast)
    times = model.predict(found, fast.parameters)
    assert times.sum() >= 2 * 256 * 512 * 512 / fast.peak


def test_threads_share_a_kernel_as_far_as_it_has_points() -> None:
    s = scheduled(conv(32, 32, 3, 28), tuned=True)
    one, four = (model.features(s, machine(threads=n))[-1].nominal for n in (1, 4))
    tag = INDEX["eta.conv"]
    assert four[tag] == pytest.approx(one[tag] / 4)
    assert four[INDEX["dram"]] == one[INDEX["dram"]]
    row = scheduled(unary("Softmax", 1, 64, axis=-1))
    alone, many = (model.features(row, machine(threads=n))[0].nominal for n in (1, 4))
    assert many[INDEX["eta.rows"]] == alone[INDEX["eta.rows"]]


def test_classes_of_kernels() -> None:
    at = machine()
    tags = {model.tag_of(k) for k in scheduled(conv(16, 16, 3, 14), tuned=True).kernels}
    assert "conv" in tags
    assert {f.tag for f in model.features(scheduled(matmul(8, 64, 64), tuned=True), at)} == {"gemm"}
    assert {f.tag for f in model.features(scheduled(matmul(8, 64, 64)), at)} == {"contraction"}
    assert model.tag_of(replace(scheduled(unary("Relu", 9)).kernels[0], tag="what")) == "map"


def test_a_slower_clock_and_a_narrower_vector_take_longer() -> None:
    s = scheduled(conv(16, 32, 3, 14), tuned=True)
    here = board().slice("partition")
    usual = machine_of(here, "socket0")
    slow = replace(usual, peak=usual.peak / 2, clock=usual.clock / 2)
    base, halved = (model.predict(model.features(s, m), m.parameters).sum() for m in (usual, slow))
    assert 1.3 * base < halved < 2.01 * base


def test_fit_recovers_the_parameters_that_made_the_measurements() -> None:
    generator = np.random.default_rng(3)
    truth = parameters(
        2.0, launch=2e-6, entry=3e-9, tile=5e-9, scatter=1e-9, scalar=0.2, llc=2.0, dram=1.2,
        eta_conv=1.25, eta_map=5.0, eta_rows=4.0,
    )  # fmt: skip
    measured = []
    for _ in range(120):
        kernels = np.zeros((4, len(NAMES)))
        kernels[:, INDEX["launch"]] = 1.0
        kernels[:, INDEX["entry"]] = generator.integers(0, 1000, 4)
        kernels[:, INDEX["llc"]] = generator.lognormal(-14, 1.5, 4)
        for k, tag in enumerate(generator.choice(["conv", "map", "rows"], 4)):
            kernels[k, INDEX[f"eta.{tag}"]] = generator.lognormal(-14, 1.5)
        seconds = float(model.times(kernels, truth).sum()) * float(np.exp(generator.normal(0, 0.02)))
        measured.append(Measurement(kernels, seconds))
    start = of_device(device())
    found = model.fit(measured, start)
    assert found.p == 2.0
    for name in ("launch", "entry", "llc", "eta.conv", "eta.map", "eta.rows"):
        assert found.factors[INDEX[name]] == pytest.approx(truth.factors[INDEX[name]], rel=0.15), name
    assert found.factors[INDEX["eta.scan"]] == pytest.approx(
        start.factors[INDEX["eta.scan"]]
    )  # never measured
    assert found.sigma == pytest.approx(0.02, rel=0.3)
    deviation = np.sqrt(np.diag(found.covariance))
    assert deviation[INDEX["eta.conv"]] < 0.05 < 0.6 < deviation[INDEX["eta.scan"]]
    assert np.abs(model.residuals(measured, found)).mean() < 0.03


def test_fit_needs_measurements() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        model.fit([], of_device(device()))


def test_a_single_wild_measurement_does_not_lead_the_fit() -> None:
    truth = parameters(1.0, launch=1e-7, eta_conv=2.0)
    measured = []
    for k in range(12):
        kernel = nominal(launch=1.0, eta_conv=1e-6 * (k + 1))
        measured.append(Measurement(kernel, float(model.times(kernel, truth).sum())))
    measured[5] = replace(measured[5], seconds=20 * measured[5].seconds)
    found = model.fit(measured, of_device(device()), (1,))
    assert found.factors[INDEX["eta.conv"]] == pytest.approx(2.0, rel=0.2)
    assert found.sigma > 0.5, "the interval knows of it"


def test_a_profile_overrides_single_parameters() -> None:
    plain, changed = of_device(device()), of_device(device(cost={"eta": {"conv": 0.25}, "p": 3.0}))
    assert 1 / changed.factors[INDEX["eta.conv"]] == pytest.approx(0.25)
    assert changed.factors[INDEX["eta.gemm"]] == plain.factors[INDEX["eta.gemm"]]
    assert changed.p == 3.0
    assert of_device(device(launch_overhead=7e-6)).factors[INDEX["launch"]] == 7e-6


def test_parameters_survive_a_profile() -> None:
    before = of_device(device())
    after = of_device(device(cost=before.to_cost()))
    assert after.factors == pytest.approx(before.factors, rel=5e-3)
    assert np.diag(after.covariance) == pytest.approx(np.diag(before.covariance), rel=2e-2)
    assert after.spread == before.spread


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        ({"lunch": 1e-6}, "devices.socket0.cost: unknown parameter 'lunch'; allowed: call, launch, entry,"),
        (
            {"eta": {"convolution": 0.5}},
            "devices.socket0.cost.eta: unknown parameter 'convolution'; allowed: amx, border,",
        ),
        ({"eta": 0.5}, "devices.socket0.cost.eta: expected a mapping"),
        ({"p": {"conv": 2.0}}, "devices.socket0.cost.p: expected a number"),
        ({"p": 0.5}, "devices.socket0.cost.p: expected a number from 1 to 64"),
        ({"alpha": 1.5}, "devices.socket0.cost.alpha: expected a number from 0 to 1"),
    ],
)
def test_wrong_parameters(cost: dict[str, object], message: str) -> None:
    with pytest.raises(TargetError) as error:
        of_device(device(cost=cost))
    assert str(error.value).startswith(message)


def test_defaults_are_complete() -> None:
    assert set(DEFAULT["eta"]) == set(TAGS)
    assert {n for n in NAMES if "." not in n} < set(DEFAULT)
