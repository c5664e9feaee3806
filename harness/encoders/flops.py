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


def parameters(config: Mapping[str, Any]) -> float:
    """Parameters of an encoder with its MLM head, whose output layer is the word embeddings: exact for BERT, RoBERTa and ELECTRA, and within a
    few per cent for families with other positions, norms or biases. 0 where the shape is unknown."""
    if "hidden_size" not in config:
        return 0.0
    d, ff, words = config["hidden_size"], config["intermediate_size"], config.get("vocab_size", 0)
    family, width = family_of(config), config.get("embedding_size") or d
    positions = 0 if family.own_positions else config.get("max_position_embeddings", 512)
    embeddings = width * (words + positions + config.get("type_vocab_size", 0) + 2) + (width != d) * (width + 1) * d
    layer = 4 * d * d + (3 if family.gated else 2) * d * ff + 9 * d + ff  # matrices, biases and two norms
    return float(embeddings + config["num_hidden_layers"] * layer + (d + 3) * width + words)


def weights_bytes(config: Mapping[str, Any]) -> float:
    """What the stored weights of an encoder take with its heads, in fp32."""
    return float(4 * (parameters(config) + config.get("hidden_size", 0) ** 2))
