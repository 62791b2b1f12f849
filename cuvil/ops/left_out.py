"""Operators of the standard that stay without a lowering, and why."""

from __future__ import annotations

_MAPS = "a map from keys to numbers is no tensor; generated code has no type for it"

LEFT_OUT: dict[tuple[str, str], str] = {
    ("", "ImageDecoder"): "an image codec; decode before inference",
    ("ai.onnx.ml", "CastMap"): _MAPS,
    ("ai.onnx.ml", "DictVectorizer"): _MAPS,
    ("ai.onnx.ml", "ZipMap"): f"{_MAPS}; the tensor of probabilities is its input",
    ("ai.onnx.preview.training", "Gradient"): "training: it differentiates another part of the graph",
}
"""The reason by domain and operator."""
