"""Multiply-add counts (x 2) of an encoder's passes. No torch: plans use them before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.encoders.families import family_of

TRAIN = 3.0
"""A training step costs a forward pass and about twice as much backwards."""


def forward_flops(config: Mapping[str, Any], tokens: float, squares: float) -> float:
    """One forward pass over sequences with `tokens` tokens in all and `squares` = sum of squared lengths. A local layer counts
    as a global one, which it is for texts within its window."""
    d, ff, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    family, square = family_of(config), 4 * d * d
    if grouped := config.get("num_key_value_heads"):  # several heads share their keys and values
        square = 2 * d * d + 2 * d * d * grouped // config["num_attention_heads"]
    relative = 2.0 * d * family.relative_scores(config) * tokens
    return float(
        layers * (2.0 * (square + (3 if family.gated else 2) * d * ff) * tokens + 4.0 * d * squares + relative)
    )


def mlm_head_flops(config: Mapping[str, Any], positions: float) -> float:
    """The MLM head at `positions` positions: the transform and the product with every word embedding.

    `head_width`, where the configuration has it, is the width of the word embeddings (an auxiliary's may differ)."""
    d = config["hidden_size"]
    width = config.get("head_width", d)
    return float(2.0 * positions * (d * width + width * config["vocab_size"]))


def weights_bytes(config: Mapping[str, Any]) -> float:
    """What the stored weights of an encoder take with its heads, in fp32; without positions of its own and biases, about 2 %."""
    if "hidden_size" not in config:
        return 0.0
    d, ff, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    width = config.get("embedding_size", d)
    matrices = layers * (4 * d * d + (3 if family_of(config).gated else 2) * d * ff) + 2 * d * d
    return float(4 * (matrices + width * (config.get("vocab_size", 0) + config.get("max_position_embeddings", 512))))
