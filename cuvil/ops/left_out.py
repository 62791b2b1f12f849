"""Operators of the standard that stay without a lowering, and why."""

from __future__ import annotations

LEFT_OUT: dict[tuple[str, str], str] = {
    ("", "ImageDecoder"): "an image codec; decode before inference",
    ("ai.onnx.ml", "CastMap"): "its input is a map; inputs must be tensors",
    ("ai.onnx.ml", "DictVectorizer"): "its input is a map; inputs must be tensors",
    ("ai.onnx.ml", "ZipMap"): "it makes a sequence of maps; export with zipmap=False, or use its input",
    ("ai.onnx.preview.training", "Gradient"): "training: it differentiates another part of the graph",
}
"""The reason by domain and operator."""
