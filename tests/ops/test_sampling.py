"""GridSample and RoiAlign against onnxruntime, and positions far outside."""

from __future__ import annotations

import native
import numpy as np
import pytest
from single import Array, model, node, reference

RNG = np.random.default_rng(14)
X = RNG.standard_normal((2, 3, 6, 7)).astype(np.float32)
GRID = RNG.uniform(-1.6, 1.6, (2, 4, 5, 2)).astype(np.float32)
WILD = np.float32([np.nan, np.inf, -np.inf, 1e30, -1e30, 3e9, -7.3, 0]).reshape(1, 1, 4, 2).repeat(2, 0)
ROIS = np.float32([[0, 0, 4, 5], [1.5, 0.7, 6.9, 5.2], [-2, -1, 9, 9]])


def grid(
    mode: str, padding: str, aligned: int, positions: Array = GRID, symbolic: bool = False
) -> native.Case:
    feeds = {"x": X, "g": positions}
    dims = {"x": ["n", 3, "h", "w"], "g": ["n", "p", "q", 2]} if symbolic else None
    n = node("GridSample", "x g", mode=mode, padding_mode=padding, align_corners=aligned)
    return model([n], feeds, ["y"], {}, dims, 22 if positions is WILD else 21), feeds


def rois(mode: str, transformation: str) -> native.Case:
    feeds = {"x": X, "r": ROIS, "b": np.array([1, 0, 1])}
    n = node(
        "RoiAlign", "x r b", mode=mode, coordinate_transformation_mode=transformation,
        output_height=3, output_width=2, sampling_ratio=2, spatial_scale=0.8,
    )  # fmt: skip
    return model([n], feeds, ["y"], {}, {"x": ["n", "c", "h", "w"], "r": ["k", 4], "b": ["k"]}), feeds


CASES = {
    f"{mode} {padding} {aligned}": grid(mode, padding, aligned)
    for mode in ("nearest", "linear", "cubic")
    for padding in ("zeros", "border", "reflection")
    for aligned in (0, 1)
}
CASES["symbolic"] = grid("linear", "reflection", 0, symbolic=True)
CASES |= {f"{m} {t}": rois(m, t) for m in ("avg", "max") for t in ("half_pixel", "output_half_pixel")}
FAR = {
    f"far {mode} {padding}": grid(mode, padding, 0, WILD)
    for mode in ("nearest", "linear", "cubic")
    for padding in ("zeros", "border", "reflection")
}


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    return native.outputs({**CASES, **FAR})


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_onnxruntime(name: str, results: dict[str, list[Array]]) -> None:
    np.testing.assert_allclose(results[name][0], reference(*CASES[name])[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FAR)
def test_positions_far_outside_read_nothing_outside(name: str, results: dict[str, list[Array]]) -> None:
    """No value comes out that the image could not give; zeros around it give 0."""
    (y,) = results[name]
    if "zeros" in name:
        np.testing.assert_array_equal(y[:, :, 0, :3], np.zeros((2, 3, 3)))
    else:
        assert np.isfinite(y[:, :, 0, 1:]).all() and np.abs(y[:, :, 0, 1:]).max() <= 2 * np.abs(X).max()
