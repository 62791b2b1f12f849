"""Inputs that several networks share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from zoo.entry import Feeder, Feeds, image


def pictures(size: int) -> Feeder:
    """`x` [N, 3, size, size]."""
    return lambda rng, dims, seed: {"x": image(rng, (dims["N"], 3, size, size))}


def attention_mask(rng: np.random.Generator, batch: int, sequence: int) -> npt.NDArray[np.int64]:
    """Ones, then zeros: the first sentence is whole, the others are padded from a random place on."""
    lengths = rng.integers(1, sequence + 1, batch)
    lengths[0] = sequence
    return (np.arange(sequence)[None] < lengths[:, None]).astype(np.int64)


def sentences(vocabulary: int) -> Feeder:
    """Pairs of sentences as BERT takes them, of random words below `vocabulary`."""

    def feed(rng: np.random.Generator, dims: Mapping[str, int], seed: int) -> Feeds:
        batch, sequence = dims["batch"], dims["sequence"]
        mask = attention_mask(rng, batch, sequence)
        second = (np.arange(sequence)[None] >= sequence // 2).astype(np.int64)
        ids = rng.integers(0, vocabulary, (batch, sequence)) * mask
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": second * mask}

    return feed
