"""Networks with random weights, by name, and how to feed them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import numpy.typing as npt

from zoo.entry import Feeder, Feeds, ModelEntry
from zoo.feeders import attention_mask, sentences
from zoo.feeders import pictures as _picture
from zoo.sequence import bert_encoder_layer, bert_mini, decoder_step, gru, lstm, mlp
from zoo.vision import ds_cnn, mobilenet_v2, resnet18, squeezenet, unet

__all__ = [
    "MODELS",
    "bert_encoder_layer",
    "bert_mini",
    "decoder_step",
    "ds_cnn",
    "gru",
    "lstm",
    "mlp",
    "mobilenet_v2",
    "resnet18",
    "squeezenet",
    "unet",
]


def _normal(rng: np.random.Generator, *shape: int) -> npt.NDArray[np.float32]:
    return rng.standard_normal(shape).astype(np.float32)


def _rows(*shape: int) -> Feeder:
    return lambda rng, dims, seed: {"x": _normal(rng, dims["N"], *shape)}


def _recurrent(size: int, hidden: int, *, states: str, directions: int = 1, lens: bool = False) -> Feeder:
    def feed(rng: np.random.Generator, dims: Mapping[str, int], seed: int) -> Feeds:
        batch, steps = dims["N"], dims["T"]
        feeds: Feeds = {"x": _normal(rng, steps, batch, size)}
        if lens:
            feeds["lens"] = rng.integers(1, steps + 1, batch, dtype=np.int32)
            feeds["lens"][0] = steps
        for name in states:
            feeds[name] = 0.5 * _normal(rng, directions, batch, hidden) * np.float32(seed != 0)
        return feeds

    return feed


def _bert_layer(rng: np.random.Generator, dims: Mapping[str, int], seed: int) -> Feeds:
    batch, sequence = dims["batch"], dims["sequence"]
    return {
        "hidden": _normal(rng, batch, sequence, 256),
        "attention_mask": attention_mask(rng, batch, sequence),
    }


def _decoder(rng: np.random.Generator, dims: Mapping[str, int], seed: int) -> Feeds:
    batch, past = dims["batch"], dims["past"]
    return {
        "token": rng.integers(0, 1024, (batch, 1)),
        "position": np.full((batch, 1), past, np.int64),
        "past_key": _normal(rng, batch, 4, past, 32),
        "past_value": _normal(rng, batch, 4, past, 32),
    }


_bert = sentences(8192)

_TEXT = {"batch": 1, "sequence": 128}
_STEPS = {"N": 1, "T": 32}

MODELS: dict[str, ModelEntry] = {
    entry.name: entry
    for entry in [
        ModelEntry("resnet18", resnet18, _picture(224), {"N": 1}),
        ModelEntry("mobilenet_v2", mobilenet_v2, _picture(224), {"N": 1}),
        ModelEntry("squeezenet", squeezenet, _picture(224), {"N": 1}),
        ModelEntry("ds_cnn", ds_cnn, _rows(1, 49, 10), {"N": 1}),
        ModelEntry("unet", unet, _picture(96), {"N": 1}),
        ModelEntry("mlp", mlp, _rows(64), {"N": 1}),
        ModelEntry("lstm", lstm, _recurrent(64, 128, states="hc"), _STEPS),
        ModelEntry(
            "lstm_bidirectional",
            partial(lstm, bidirectional=True, sequence_lens=True),
            _recurrent(64, 128, states="hc", directions=2, lens=True),
            _STEPS,
            note="sequence lengths: padding steps give zeros, the reverse direction starts at each length",
        ),
        ModelEntry("gru", gru, _recurrent(64, 128, states="h"), _STEPS),
        ModelEntry("bert_encoder_layer", bert_encoder_layer, _bert_layer, _TEXT),
        ModelEntry("bert_mini", bert_mini, _bert, _TEXT),
        ModelEntry(
            "decoder_step",
            decoder_step,
            _decoder,
            {"batch": 1, "past": 64},
            note="past may be 0: an empty cache; past + 1 is the symbol `total` of the outputs",
        ),
    ]
}
"""The builders at the sizes that benchmarks use, with every symbolic dimension kept."""
