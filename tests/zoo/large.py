"""Networks at the sizes that people run, too large for the tests of every day.

Benchmarks, and tests that are marked slow, use them at full size; they are not among `registry.MODELS`, but
`registry.find` knows them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from zoo.detection import yolo
from zoo.entry import Feeder, Feeds, ModelEntry
from zoo.feeders import pictures, sentences
from zoo.mobile import efficientnet_lite0, mobilenet_v1, mobilenet_v3_large
from zoo.trained import MINILM_VOCABULARY, minilm_real
from zoo.transformers import bert_base, gpt2_step, minilm, vit_small
from zoo.vision import densenet121, resnet50, vgg11_bn


def gpt2_feeder(layers: int = 12, heads: int = 12, size: int = 64, vocabulary: int = 8192) -> Feeder:
    """A random token, its place, and caches of normal numbers [batch, heads, past, size]."""

    def feed(rng: np.random.Generator, dims: Mapping[str, int], seed: int) -> Feeds:
        batch, past = dims["batch"], dims["past"]
        feeds: Feeds = {
            "input_ids": rng.integers(0, vocabulary, (batch, 1)),
            "position_ids": np.full((batch, 1), past, np.int64),
        }
        for k in range(layers):
            for kind in ("key", "value"):
                cache = rng.standard_normal((batch, heads, past, size))
                feeds[f"past_{k}_{kind}"] = cache.astype(np.float32)
        return feeds

    return feed


_PICTURE = {"N": 1}
_TEXT = {"batch": 1, "sequence": 128}

MODELS: dict[str, ModelEntry] = {
    entry.name: entry
    for entry in [
        ModelEntry("resnet50", resnet50, pictures(224), _PICTURE),
        ModelEntry("vgg11_bn", vgg11_bn, pictures(224), _PICTURE),
        ModelEntry("densenet121", densenet121, pictures(224), _PICTURE),
        ModelEntry("mobilenet_v1", mobilenet_v1, pictures(224), _PICTURE),
        ModelEntry("mobilenet_v3_large", mobilenet_v3_large, pictures(224), _PICTURE),
        ModelEntry(
            "efficientnet_lite0_relu6",
            efficientnet_lite0,
            pictures(224),
            _PICTURE,
            note="the trained efficientnet_lite0 has SiLU",
        ),
        ModelEntry("yolo", yolo, pictures(320), _PICTURE),
        ModelEntry("bert_base", bert_base, sentences(4096), _TEXT),
        ModelEntry("minilm", minilm, sentences(4096), _TEXT),
        ModelEntry(
            "minilm_real",
            minilm_real,
            sentences(MINILM_VOCABULARY),
            _TEXT,
            note="all-MiniLM-L6-v2 from its trained weights; random words",
        ),
        ModelEntry("vit_small", vit_small, pictures(224), _PICTURE),
        ModelEntry(
            "gpt2_step",
            gpt2_step,
            gpt2_feeder(),
            {"batch": 1, "past": 128},
            note="past may be 0: empty caches; past + 1 is the symbol `total` of the outputs",
        ),
    ]
}
"""With every symbolic dimension kept; random weights but for `minilm_real`."""
