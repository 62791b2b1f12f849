"""Real trained networks on sound and on other signals; `zoo.real` has all real networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from zoo.entry import Feeder, Feeds, ModelEntry
from zoo.packages import from_package
from zoo.signals import Array, brain_waves, log_spectrum, program_bytes, voice, whisper_features

Rng = np.random.Generator
Dims = Mapping[str, int]


def _state(rng: Rng, seed: int, *shape: int) -> Array:
    return (0.3 * rng.standard_normal(shape) * (seed != 0)).astype(np.float32)


# -- silero-vad --------------------------------------------------------------------------------


def _windows(rng: Rng, count: int, rate: int) -> Array:
    """[count, 576] (288 at 8 kHz): successive windows, each with the last samples of the one before."""
    window, context = (512, 64) if rate == 16000 else (256, 32)
    sound = voice(rng, count, window, rate).reshape(-1)
    padded = np.concatenate([np.zeros(context, np.float32), sound])
    return np.stack([padded[k * window : (k + 1) * window + context] for k in range(count)])


def _silero(rng: Rng, dims: Dims, seed: int) -> Feeds:
    batch, rate = dims["batch"], dims.get("rate", 16000)
    return {
        "input": _windows(rng, batch, rate),
        "state": _state(rng, seed, 2, batch, 128),
        "sr": np.array(rate, np.int64),
    }


def _silero_16k(rng: Rng, dims: Dims, seed: int) -> Feeds:
    batch = dims.get("batch", 1)
    return {"input": _windows(rng, batch, 16000), "state": _state(rng, seed, 2, batch, 128)}


def _silero_sequence(rng: Rng, dims: Dims, seed: int) -> Feeds:
    windows = _windows(rng, dims["sequence_length"], 16000)
    return {"input": windows, "h": _state(rng, seed, 1, 1, 128), "c": _state(rng, seed, 1, 1, 128)}


def _silero_v4(rng: Rng, dims: Dims, seed: int) -> Feeds:
    batch = dims["batch"]
    return {
        "input": _windows(rng, batch, 16000)[:, 64:],
        "sr": np.array(16000, np.int64),
        "h": _state(rng, seed, 2, batch, 64),
        "c": _state(rng, seed, 2, batch, 64),
    }


# -- other speech ------------------------------------------------------------------------------


def _gtcrn(rng: Rng, dims: Dims, seed: int) -> Feeds:
    """One frame of a short-time Fourier transform, and the caches of the frames before."""
    frame = np.fft.rfft(voice(rng, 1, 512, 16000)[0] * np.sqrt(np.hanning(512)))
    return {
        "mix": np.stack([frame.real, frame.imag], -1)[None, :, None].astype(np.float32),
        "conv_cache": _state(rng, seed, 2, 1, 16, 16, 33),
        "tra_cache": _state(rng, seed, 2, 3, 1, 1, 16),
        "inter_cache": _state(rng, seed, 2, 1, 33, 16),
    }


def _sound(name: str, length: int, *tail: int, rate: int = 16000) -> Feeder:
    return lambda rng, dims, seed: {
        name: voice(rng, dims["batch"], length, rate).reshape(dims["batch"], length, *tail)
    }


def _spectra(name: str, frames: int, bands: int, scale: float, offset: float) -> Feeder:
    return lambda rng, dims, seed: {
        name: np.stack([scale * log_spectrum(rng, frames, bands) + offset for _ in range(dims["batch"])])
    }


def _aecmos(hidden: int, rng: Rng, dims: Dims, seed: int) -> Feeds:
    """Spectra of the far end, the microphone and the result, and the first state of the recurrence."""
    frames = dims["frames"]
    three = [1 + 0.25 * log_spectrum(rng, frames, 160) for _ in range(3)]
    return {"input": np.stack(three)[None], "h0": _state(rng, seed, 4, 1, hidden)}


def _plcmos(rng: Rng, dims: Dims, seed: int) -> Feeds:
    spectrum, rater = log_spectrum(rng, dims["frames"], 257), rng.normal(size=(1, 64))
    return {"degraded_audio": spectrum[None, None], "rater_embed": rater.astype(np.float32)}


def _smart_turn(rng: Rng, dims: Dims, seed: int) -> Feeds:
    """Features of 8 s that end in 1 to 3 s of fading voice."""
    sounds = np.zeros((dims["batch"], 128000), np.float32)
    for sound in sounds:
        spoken = np.concatenate([voice(rng, 1, 8000, 16000)[0] for _ in range(rng.integers(2, 7))])
        sound[-len(spoken) :] = spoken * np.linspace(1, 0.3, len(spoken), dtype=np.float32)
    return {"input_features": np.stack([whisper_features(sound) for sound in sounds])}


# -- openwakeword ------------------------------------------------------------------------------


def _melspectrogram(rng: Rng, dims: Dims, seed: int) -> Feeds:
    """Samples as the 16-bit numbers that they are, in floats."""
    return {"input": np.round(32767 * voice(rng, dims["batch"], dims["samples"], 16000))}


def _embedding(rng: Rng, dims: Dims, seed: int) -> Feeds:
    rows = [log_spectrum(rng, 76, 32) / 2 + 2 for _ in range(dims["batch"])]
    return {"input_1": np.stack(rows)[..., None]}


def _embeddings(name: str, frames: int) -> Feeder:
    """Embeddings, whose values lie within some +-20."""

    def feed(rng: Rng, dims: Dims, seed: int) -> Feeds:
        return {name: 6 * rng.standard_normal((dims.get("batch", 1), frames, 96), np.float32)}

    return feed


# -- brain waves -------------------------------------------------------------------------------


def _spindle(rng: Rng, dims: Dims, seed: int) -> Feeds:
    """30 s at 250 Hz, and the strength of 15 frequencies over them."""
    batch = dims["batch"]
    raw = brain_waves(rng, batch, 7500)
    strength = np.abs(brain_waves(rng, 15 * batch, 7500)).reshape(batch, 15, 7500)
    return {"raw_signal": raw[:, None], "spectrogram": strength}


def _seizure(rng: Rng, dims: Dims, seed: int) -> Feeds:
    """A spectrogram: 100 frequencies by time."""
    batch, time = dims["batch"], dims["time"]
    return {"x": brain_waves(rng, batch * 100, time).reshape(batch, 100, time)}


# -- bytes -------------------------------------------------------------------------------------


def _magika(rng: Rng, dims: Dims, seed: int) -> Feeds:
    return {"bytes": program_bytes(rng, dims["batch"])}


_ONE = {"batch": 1}
_FRAMES = {"frames": 500}
_WINDOW = {"input": ["batch", 576]}
_CLIP = {"input": [1, 3, "frames", 160]}


def _entry(
    name: str,
    feed: Feeder,
    dims: Dims | None = None,
    note: str = "",
    *,
    tolerance: float = 1e-4,
    values: Mapping[str, int] | None = None,
    fixed: Mapping[str, Sequence[int | str]] | None = None,
) -> ModelEntry:
    source = partial(from_package, name)
    return ModelEntry(name, source, feed, dims or {}, tolerance, note, values or {}, fixed or {})


MODELS: list[ModelEntry] = [
    _entry("magika", _magika, _ONE, "the batch is unk__214 in, unk__215 out", tolerance=5e-4),
    _entry("silero_vad_16k_sequence", _silero_sequence, {"sequence_length": 16}),
    _entry("silero_vad_openvino_16k", _silero_16k),
    _entry("silero_vad_op18_ifless", _silero, {"batch": 1, "rate": 16000},
           "rate is 16000 or 8000; one If remains"),
    _entry("silero_vad", _silero, _ONE, "25 If, dimensions without names; the rate and the window are bound",
           values={"sr": 16000}, fixed=_WINDOW),
    _entry("silero_vad_16k_op15", _silero, _ONE, "a rate that nothing reads", fixed=_WINDOW),
    _entry("silero_vad_half", _silero_16k, _ONE, fixed=_WINDOW),
    _entry("wake_silero", _silero_v4, _ONE, "the version 4 of silero-vad", values={"sr": 16000}),
    _entry("gtcrn", _gtcrn, note="14 GRU of one step, ScatterND"),
    _entry("basic_pitch", _sound("serving_default_input_2:0", 43844, 1, rate=22050), _ONE,
           "closer to float64 than onnxruntime is", tolerance=1e-3),
    _entry("dnsmos_p808", _spectra("input_1", 900, 120, 1.0, 1.0), _ONE),
    _entry("dnsmos_sig", _spectra("input_1", 901, 161, 1.0, 1.0), _ONE),
    _entry("dnsmos_bak_ovr", _spectra("input_1", 901, 161, 1.0, 1.0), _ONE),
    _entry("dnsmos_sig_bak_ovr", _sound("input_1", 144160), _ONE, "the spectra are part of it"),
    _entry("pdnsmos_sig_bak_ovr", _sound("input_1", 144160), _ONE),
    _entry("aecmos_16k_scenario", partial(_aecmos, 64), _FRAMES, "the batch is 1", fixed=_CLIP),
    _entry("aecmos_16k", partial(_aecmos, 64), _FRAMES, fixed=_CLIP),
    _entry("aecmos_48k", partial(_aecmos, 96), _FRAMES, fixed=_CLIP),
    _entry("plcmos", _plcmos, _FRAMES, fixed={"degraded_audio": [1, 1, "frames", 257]}),
    _entry("smart_turn", _smart_turn, _ONE, "int8; a value rounded the other way changes many after it",
           tolerance=2e-2),
    _entry("wake_melspectrogram", _melspectrogram, {"batch": 1, "samples": 16000}),
    _entry("wake_embedding", _embedding, _ONE),
    _entry("wake_alexa", _embeddings("onnx::Flatten_0", 16)),
    _entry("wake_jarvis", _embeddings("x.1", 16), note="a second network in an If on the first one's answer"),
    _entry("wake_marvin", _embeddings("onnx::Flatten_0", 16), note="a sigmoid near 0", tolerance=2e-3),
    _entry("wake_mycroft", _embeddings("input_1", 16), _ONE, "two LSTM"),
    _entry("wake_timer", _embeddings("onnx::Flatten_0", 34), note="an output whose name is JSON"),
    _entry("wake_weather", _embeddings("onnx::Flatten_0", 22)),
    _entry("spindle_eeg", _spindle, _ONE),
    _entry("spindle_ieeg", _spindle, _ONE),
    _entry("seizure_paper", _seizure, {"batch": 1, "time": 300}),
    _entry("seizure_full", _seizure, {"batch": 1, "time": 300}),
]  # fmt: skip
"""The networks on signals."""
