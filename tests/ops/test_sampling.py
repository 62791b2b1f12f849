"""GridSample, RoiAlign and MaxRoiPool against onnxruntime, and positions far outside."""

from __future__ import annotations

import native
import numpy as np
import pytest
from single import Array, model, node, reference

RNG = np.random.default_rng(14)
X = RNG.standard_normal((2, 3, 6, 7)).astype(np.float32)
GRID = RNG.uniform(-1.6, 1.6, (2, 4, 5, 2)).astype(np.float32)
WILD = np.float32([np.nan, np.inf, -np.inf, 1e30, -1e30, 3e9, -7.3, 0]).reshape(1, 1, 4, 2).repeat(2, 0)
UNEVEN = np.float32([
    [0.3, 0.2, 5.1, 5.4], [0, 0, 0.4, 0.7], [-2.5, 1, 11, 3.1], [2, -3, 3, 14.5], [4, 4, 5, 5],
    [-9, -9, 30, 40], [20, 20, 30, 30], [3, 3, 3, 5],
])  # fmt: skip
ROIS = np.float32([[0, 0, 4, 5], [1.5, 0.7, 6.9, 5.2], [-2, -1, 9, 9]])


def grid(
    mode: str, padding: str, aligned: int, positions: Array = GRID, symbolic: bool = False
) -> native.Case:
    feeds = {"x": X, "g": positions}
    dims = {"x": ["n", 3, "h", "w"], "g": ["n", "p", "q", 2]} if symbolic else None
    n = node("GridSample", "x g", mode=mode, padding_mode=padding, align_corners=aligned)
    return model([n], feeds, ["y"], {}, dims, 22 if positions is WILD else 21), feeds


def rois(
    mode: str,
    transformation: str,
    ratio: int = 2,
    regions: Array = ROIS,
    scale: float = 0.8,
    dtype: type = np.float32,
) -> native.Case:
    feeds = {"x": X.astype(dtype), "r": regions.astype(dtype), "b": np.arange(len(regions)) % 2}
    n = node(
        "RoiAlign", "x r b", mode=mode, coordinate_transformation_mode=transformation,
        output_height=3, output_width=2, sampling_ratio=ratio, spatial_scale=scale,
    )  # fmt: skip
    return model([n], feeds, ["y"], {}, {"x": ["n", "c", "h", "w"], "r": ["k", 4], "b": ["k"]}), feeds


def pooled(cells: list[int], scale: float, dims: dict[str, list[int | str]] | None = None) -> native.Case:
    regions = np.float32([0, 1, 0, 1, 0])[:, None]
    feeds = {"x": X, "r": np.concatenate([regions, UNEVEN[:5]], 1)}
    n = node("MaxRoiPool", "x r", pooled_shape=cells, spatial_scale=scale)
    return model([n], feeds, ["y"], {}, dims), feeds


CASES = {
    f"{mode} {padding} {aligned}": grid(mode, padding, aligned)
    for mode in ("nearest", "linear", "cubic")
    for padding in ("zeros", "border", "reflection")
    for aligned in (0, 1)
}
CASES["symbolic"] = grid("linear", "reflection", 0, symbolic=True)
CASES |= {f"{m} {t}": rois(m, t) for m in ("avg", "max") for t in ("half_pixel", "output_half_pixel")}
for scale in (0.8, 3.1):
    for m in ("avg", "max"):
        for t in ("half_pixel", "output_half_pixel"):
            CASES[f"adaptive {m} {t} {scale}"] = rois(m, t, 0, UNEVEN, scale)
CASES["adaptive double"] = rois("avg", "half_pixel", 0, UNEVEN, dtype=np.float64)
CASES |= {f"pooled {scale}": pooled([3, 2], scale) for scale in (0.25, 1.0, 2.3)}
CASES["pooled symbolic"] = pooled([7, 1], 1.0, {"x": ["n", "c", "h", "w"], "r": ["k", 5]})
BACKWARDS = np.float32(
    [[5, 5, 1, 1], [1, 5, 5, 1], [np.nan] * 4, [-1e30, -1e30, 1e30, 1e30], [1e20, 0, 1e21, 3]]
)
ODD = {f"odd {m}": rois(m, "half_pixel", 0, BACKWARDS) for m in ("avg", "max")}
HALVES = {m: rois(m, "half_pixel", r, UNEVEN, dtype=np.float16) for m, r in (("avg", 0), ("max", 2))}
FAR = {
    f"far {mode} {padding}": grid(mode, padding, 0, WILD)
    for mode in ("nearest", "linear", "cubic")
    for padding in ("zeros", "border", "reflection")
}


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    return native.outputs({**CASES, **FAR, **ODD, **HALVES})


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


@pytest.mark.parametrize("name", ODD)
def test_regions_without_an_extent_have_no_samples(name: str, results: dict[str, list[Array]]) -> None:
    """A region that ends before it starts, lies outside or is not a number gives 0."""
    (y,) = results[name]
    np.testing.assert_array_equal(y[[0, 1, 2, 4]], np.zeros((4, 3, 3, 2)))
    assert np.isfinite(y[3]).all()


@pytest.mark.parametrize("name", HALVES)
def test_halves_are_summed_in_float32(name: str, results: dict[str, list[Array]]) -> None:
    proto, feeds = rois(name, "half_pixel", 0 if name == "avg" else 2, UNEVEN)
    feeds = {
        k: a.astype(np.float16).astype(np.float32) if a.dtype == np.float32 else a for k, a in feeds.items()
    }
    (wanted,) = reference(proto, feeds)
    np.testing.assert_allclose(results[name][0].astype(np.float32), wanted, rtol=2e-3, atol=1e-3)
