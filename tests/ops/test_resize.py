"""Resize against onnxruntime, over what ONNX's suite does not cover."""

from __future__ import annotations

from typing import Any

import native
import numpy as np
import onnx
import pytest
from single import Array, model, node, reference

from cuvil.errors import ModelError
from cuvil.ops.resize import TRANSFORMATIONS

Case = tuple[onnx.ModelProto, dict[str, Array]]


def resize(
    shape: tuple[int, ...], scales: tuple[float, ...] = (), sizes: tuple[int, ...] = (), *,
    symbolic: bool = False, dtype: str = "float32", **attributes: Any,
) -> Case:  # fmt: skip
    rng = np.random.default_rng(4)
    x = rng.standard_normal(shape)
    feeds = {"x": x.astype(dtype) if dtype != "uint8" else (x * 40 + 128).astype(np.uint8)}
    constants: dict[str, Array] = {"roi": np.zeros(0, np.float32)}
    if scales:
        constants["scales"] = np.array(scales, np.float32)
        inputs = "x roi scales"
    else:
        constants["sizes"] = np.array(sizes, np.int64)
        inputs = "x roi - sizes"
    dims = {"x": ["n", *shape[1:-2], "h", "w"]} if symbolic else None
    return model([node("Resize", inputs, **attributes)], feeds, ["y"], constants, dims), feeds


def doubled() -> Case:
    """Sizes computed from the input's own symbolic shape."""
    feeds = {"x": np.random.default_rng(5).standard_normal((1, 2, 5, 7)).astype(np.float32)}
    nodes = [
        node("Shape", "x", "s", start=2),
        node("Mul", "s two", "d"),
        node("Shape", "x", "front", name="front", end=2),
        node("Concat", "front d", "sizes", axis=0),
        node("Resize", "x - - sizes", mode="linear"),
    ]
    constants = {"two": np.array([2, 3], np.int64)}
    return model(nodes, feeds, ["y"], constants, {"x": [1, 2, "h", "w"]}), feeds


def cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    up, down, odd = (1.0, 1.0, 2.0, 3.0), (1.0, 1.0, 0.5, 0.6), (1.0, 1.0, 1.4, 0.75)
    for transformation in TRANSFORMATIONS:
        if transformation in ("tf_crop_and_resize", "align_corners"):
            continue
        for name, scales in (("up", up), ("down", down), ("odd", odd)):
            key = f"{transformation} {name}"
            common = {"coordinate_transformation_mode": transformation}
            found[f"linear {key}"] = resize((2, 3, 5, 10), scales, mode="linear", **common)
            found[f"cubic {key}"] = resize((1, 2, 5, 10), scales, mode="cubic", **common)
            found[f"nearest {key}"] = resize((2, 3, 5, 10), scales, **common)
    for rounding in ("round_prefer_ceil", "floor", "ceil"):
        for transformation in ("asymmetric", "half_pixel", "align_corners"):
            common = {"nearest_mode": rounding, "coordinate_transformation_mode": transformation}
            found[f"nearest {rounding} {transformation}"] = resize((1, 2, 4, 6), sizes=(1, 2, 7, 9), **common)
    for mode in ("linear", "cubic"):
        corners = {"mode": mode, "coordinate_transformation_mode": "align_corners"}
        found[f"{mode} corners"] = resize((1, 2, 4, 6), sizes=(1, 2, 7, 3), **corners)
        found[f"{mode} corners, symbolic"] = resize(
            (1, 2, 4, 6), sizes=(1, 2, 7, 3), symbolic=True, **corners
        )
        found[f"{mode} symbolic"] = resize((2, 2, 5, 6), up, symbolic=True, mode=mode)
    for mode in ("linear", "cubic"):
        found[f"{mode} antialias"] = resize((1, 1, 9, 9), sizes=(1, 1, 4, 3), mode=mode, antialias=1)
        found[f"{mode} antialias symbolic"] = resize(
            (1, 1, 9, 9), sizes=(1, 1, 4, 3), symbolic=True, mode=mode, antialias=1
        )
    found["outside excluded"] = resize((1, 1, 5, 6), odd, mode="cubic", exclude_outside=1)
    found["nearest symbolic"] = resize((2, 2, 5, 6), up, symbolic=True)
    found["nearest symbolic down"] = resize((2, 2, 5, 6), down, symbolic=True)
    found["nearest symbolic asymmetric"] = resize(
        (2, 2, 5, 6), up, symbolic=True, nearest_mode="floor", coordinate_transformation_mode="asymmetric"
    )
    found["nearest uint8"] = resize((1, 2, 5, 6), up, dtype="uint8")
    found["linear 1d"] = resize((2, 3, 8), (1.0, 1.0, 2.5), mode="linear")
    found["linear 3d"] = resize((1, 2, 3, 4, 5), (1.0, 1.0, 2.0, 2.0, 1.5), mode="linear")
    found["to one"] = resize((1, 2, 5, 6), sizes=(1, 2, 1, 1), mode="linear")
    found["from one"] = resize((1, 2, 1, 1), sizes=(1, 2, 4, 5), mode="linear")
    found["unchanged"] = resize((1, 2, 3, 4), sizes=(1, 2, 3, 4), mode="cubic")
    found["sizes from the shape"] = doubled()
    return found


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    return native.outputs(cases())


@pytest.mark.parametrize("name", cases())
def test_agrees_with_onnxruntime(name: str, results: dict[str, list[Array]]) -> None:
    (wanted,) = reference(*cases()[name])
    np.testing.assert_allclose(results[name][0], wanted, rtol=1e-4, atol=1e-5)


def test_antialiasing_keeps_a_constant(results: dict[str, list[Array]]) -> None:
    """Weights of a filter sum to one, whatever the scale."""
    m, _ = resize((1, 1, 9, 9), sizes=(1, 1, 4, 3), mode="cubic", antialias=1)
    feeds = {"x": np.full((1, 1, 9, 9), 2.5, np.float32)}
    (y,) = native.outputs({"y": (m, feeds)})["y"]
    np.testing.assert_allclose(y, np.full((1, 1, 4, 3), 2.5), rtol=1e-6)


def test_scales_of_the_wrong_number() -> None:
    with pytest.raises(ModelError):
        native.prepare(resize((1, 1, 4, 4), (2.0, 2.0))[0])
