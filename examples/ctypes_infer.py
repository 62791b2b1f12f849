"""Call a compiled model through ctypes.

cuvil compile --model models/digits/digits.onnx --target host --output libinfer.so
python examples/ctypes_infer.py libinfer.so models/digits/test.npz
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np

POINTER = ctypes.POINTER(ctypes.c_float)


def main(library: str, data: str) -> None:
    """Classify every hundredth image of `data`."""
    infer = ctypes.CDLL(library).infer  # int infer(const float *image, float *logits)
    infer.argtypes = [POINTER, POINTER]
    test = np.load(data)
    for image, label in zip(test["image"][::100], test["label"][::100]):
        pixels = np.ascontiguousarray(image, np.float32)
        logits = np.empty(10, np.float32)
        status = infer(pixels.ctypes.data_as(POINTER), logits.ctypes.data_as(POINTER))
        assert status == 0, status
        print(f"label {label}: predicted {logits.argmax()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
