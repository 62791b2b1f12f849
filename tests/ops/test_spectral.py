"""Fourier transforms against numpy's, mel filters against onnxruntime's."""

from __future__ import annotations

from typing import Any

import native
import numpy as np
import pytest
from single import Array, model, node, reference

RNG = np.random.default_rng(10)
REAL = RNG.standard_normal((2, 12, 3, 1)).astype(np.float32)
COMPLEX = RNG.standard_normal((2, 12, 3, 2)).astype(np.float32)
SIGNAL = RNG.standard_normal((2, 100, 1)).astype(np.float32)
WINDOW = np.hanning(16).astype(np.float32)


def pairs(x: Array) -> Array:
    return np.stack([x.real, x.imag], -1).astype(np.float32)


def numbers(x: Array) -> Array:
    return x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0]


CASES: dict[str, tuple[Array, int | None, dict[str, Any], Array]] = {
    "real": (REAL, None, {}, pairs(np.fft.fft(REAL[..., 0], axis=1))),
    "complex": (COMPLEX, None, {}, pairs(np.fft.fft(numbers(COMPLEX), axis=1))),
    "one-sided": (REAL, None, {"onesided": 1}, pairs(np.fft.rfft(REAL[..., 0], axis=1))),
    "longer": (REAL, 15, {}, pairs(np.fft.fft(REAL[..., 0], 15, axis=1))),
    "shorter": (REAL, 7, {"onesided": 1}, pairs(np.fft.rfft(REAL[..., 0], 7, axis=1))),
    "inverse": (COMPLEX, None, {"inverse": 1}, pairs(np.fft.ifft(numbers(COMPLEX), axis=1))),
    "inverse, longer": (COMPLEX, 17, {"inverse": 1}, pairs(np.fft.ifft(numbers(COMPLEX), 17, axis=1))),
    "inverse to real, even": (
        COMPLEX,
        None,
        {"inverse": 1, "onesided": 1},
        np.fft.irfft(numbers(COMPLEX), axis=1)[..., None],
    ),
    "inverse to real, odd": (
        COMPLEX,
        21,
        {"inverse": 1, "onesided": 1},
        np.fft.irfft(numbers(COMPLEX), 21, axis=1)[..., None],
    ),
}


def mel(bins: int, length: int, rate: int, low: float, high: float, **attrs: Any) -> native.Case:
    """Sizes are constants; the rest comes with the data."""
    feeds = {"r": np.array(rate), "l": np.float32(low), "h": np.float32(high)}
    sizes = {"n": np.array(bins), "d": np.array(length)}
    feeds = {k: np.asarray(v) for k, v in feeds.items()}
    return model([node("MelWeightMatrix", "n d r l h", **attrs)], feeds, ["y"], sizes), feeds


MEL = {
    "speech": mel(40, 512, 16000, 125.5, 7600.0),
    "more filters than rows": mel(20, 32, 8000, 3.0, 3990.0),
    "odd length": mel(7, 101, 22050, 20.0, 11000.0),
    "double": mel(7, 100, 22050, 20.0, 11000.0, output_datatype=11),
    "integers": mel(7, 100, 22050, 20.0, 11000.0, output_datatype=6),
}


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    models = {}
    for name, (x, length, attributes, _) in CASES.items():
        constants: dict[str, Array] = {"axis": np.array(1)}
        if length is not None:
            constants["n"] = np.array(length)
        n = node("DFT", f"x {'-' if length is None else 'n'} axis", **attributes)
        models[name] = (model([n], {"x": x}, ["y"], constants), {"x": x})
    fixed = {"step": np.array(10), "w": WINDOW}
    for name, inputs in (("frames", "x step w"), ("frames of a symbolic signal", "x step w")):
        dims = {"x": ["n", "length", 1]} if "symbolic" in name else None
        models[name] = (model([node("STFT", inputs)], {"x": SIGNAL}, ["y"], fixed, dims), {"x": SIGNAL})
    return native.outputs({**models, **MEL})


@pytest.mark.parametrize("name", CASES)
def test_dft(name: str, results: dict[str, list[Array]]) -> None:
    np.testing.assert_allclose(results[name][0], CASES[name][3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["frames", "frames of a symbolic signal"])
def test_stft(name: str, results: dict[str, list[Array]]) -> None:
    frames = np.stack([SIGNAL[:, s : s + 16, 0] * WINDOW for s in range(0, 85, 10)], 1)
    np.testing.assert_allclose(results[name][0], pairs(np.fft.rfft(frames)), rtol=1e-4, atol=1e-5)


def test_a_symbolic_length() -> None:
    m = model([node("DFT", "x - axis")], {"x": REAL}, ["y"], {"axis": np.array(1)}, {"x": ["n", "t", 3, 1]})
    (y,) = native.outputs({"y": (m, {"x": REAL})})["y"]
    np.testing.assert_allclose(y, pairs(np.fft.fft(REAL[..., 0], axis=1)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MEL)
def test_mel_filters(name: str, results: dict[str, list[Array]]) -> None:
    (wanted,) = reference(*MEL[name])
    assert wanted.max() == 1 and results[name][0].dtype == wanted.dtype
    np.testing.assert_allclose(results[name][0], wanted, atol=1e-6)
