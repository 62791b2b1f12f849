"""Inputs that look like what networks are used on: voices, their spectra, brain waves, bytes of programs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


def voice(rng: np.random.Generator, count: int, length: int, rate: int) -> Array:
    """[count, length] samples in [-1, 1] of one voiced sound: a falling row of harmonics, and some noise."""
    time = np.arange(count * length) / rate
    pitch = rng.uniform(90, 250)
    strength = 0.5 + 0.5 * np.sin(2 * np.pi * 4 * time)
    sound = 0.01 * rng.standard_normal(time.size)
    for k in range(1, int(0.45 * rate / pitch)):
        sound += 0.15 / k * strength * np.sin(2 * np.pi * k * pitch * time + rng.uniform(0, 6.28))
    return np.clip(sound, -1, 1).reshape(count, length).astype(np.float32)


def log_spectrum(rng: np.random.Generator, frames: int, bands: int) -> Array:
    """[frames, bands] logarithms, base 10, of the power in equal bands of a voice; the largest is 0."""
    window = 512
    sound = voice(rng, 1, (frames - 1) * 160 + window, 16000)[0]
    pieces = np.lib.stride_tricks.sliding_window_view(sound, window)[::160]
    power = np.abs(np.fft.rfft(pieces * np.hanning(window))) ** 2
    edges = np.linspace(0, window // 2, bands + 1)
    narrow = [power[:, int(a) : max(int(b), int(a) + 1)].mean(1) for a, b in pairwise(edges)]
    levels = np.log10(np.maximum(np.stack(narrow, 1), 1e-10))
    return (levels - levels.max()).astype(np.float32)


def whisper_features(sound: Array) -> Array:
    """[80, frames] of samples at 16 kHz, 160 to a frame: logarithms, base 10, of the power in 80 mel bands,
    cut off 8 below the largest, plus 4, over 4 (Radford et al. 2022, section 2.2)."""
    window, rate, bands = 400, 16000, 80
    edges = 700 * (10 ** (np.linspace(0, np.log10(1 + rate / 1400), bands + 2)) - 1)
    low, mid, high = (edges[k : k + bands, None] for k in range(3))
    bins = np.fft.rfftfreq(window, 1 / rate)
    rising, falling = (bins - low) / (mid - low), (high - bins) / (high - mid)
    mel = np.maximum(np.minimum(rising, falling), 0) * 2 / (high - low)
    padded = np.pad((sound - sound.mean()) / sound.std(), window // 2, mode="reflect")
    pieces = np.lib.stride_tricks.sliding_window_view(padded, window)[: len(sound) : 160]
    power = np.abs(np.fft.rfft(pieces * np.hanning(window + 1)[:-1])) ** 2
    levels = np.log10(np.maximum(mel @ power.T, 1e-10))
    return ((np.maximum(levels, levels.max() - 8) + 4) / 4).astype(np.float32)


def brain_waves(rng: np.random.Generator, count: int, length: int, rate: int = 250) -> Array:
    """[count, length] samples of unit variance: noise that falls with frequency, a rhythm of 12 Hz."""
    frequencies = np.fft.rfftfreq(length, 1 / rate)
    spectrum = rng.standard_normal((2, count, frequencies.size)) / np.maximum(frequencies, 0.5)
    waves = np.fft.irfft(spectrum[0] + 1j * spectrum[1], length)
    waves /= waves.std(1, keepdims=True)
    time = np.arange(length) / rate
    waves += np.sin(2 * np.pi * 12 * time) * (np.sin(2 * np.pi * 0.3 * time + rng.uniform(0, 6.28)) > 0.8)
    return (waves / waves.std(1, keepdims=True)).astype(np.float32)


_WORDS = ["def", "return", "for", "in", "if", "else", "import", "self", "value", "index", "print", "len",
          "range", "None", "True", "x", "y", "=", "+", "(", ")", ":", "[", "]"]  # fmt: skip


def program_bytes(rng: np.random.Generator, count: int) -> npt.NDArray[np.int32]:
    """[count, 2048]: the first and the last 1024 bytes of something like a program; 256 pads a short one."""
    tokens = np.full((count, 2048), 256, np.int32)
    for row in tokens:
        lines = [" ".join(rng.choice(_WORDS, 8)) for _ in range(int(rng.integers(4, 60)))]
        text = "import os\n\n" + "\n    ".join(lines)
        content = np.frombuffer(text.encode(), np.uint8)
        first, last = content[:1024], content[-1024:]
        row[: first.size] = first
        row[2048 - last.size :] = last
    return tokens
