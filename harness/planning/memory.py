"""Memory that a stage needs on the device that trains it, in parts, before anything is loaded; and the micro-batch that fits.

AdamW in fp32 holds four numbers a parameter: the weight, its gradient and two moments. What the backward pass needs is counted from the tensors that
the layers of a packed encoder save (`tests/planning/test_device_cost.py` sums what autograd saves).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from harness.encoders.families import family_of
from harness.encoders.flops import layer_parameters, parameters
from harness.objectives import definition_of
from harness.specs import Stage

SHARE, CONTEXT = 0.9, 1e9
"""What a run can use of its device: the allocator leaves gaps, and CUDA with its kernels takes a gigabyte. A guess."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one device, at most: texts are counted with the stage's `max_length`. `best`: the copy of the best checkpoint's weights."""

    weights: float
    gradients: float
    optimizer: float
    best: float
    activations: float

    @property
    def total(self) -> float:
        return float(sum(getattr(self, field.name) for field in fields(self)))


def memory_of(stage: Stage, config: Mapping[str, Any], rows: float) -> Memory:
    """With `rows` examples a micro-batch. A stage that trains a part of the weights alone, or the embeddings of its own words alone, takes less."""
    count = 4 * (parameters(config) + auxiliary_parameters(stage, config))
    half = count / 2 if stage.optim.precision != "fp32" else 0.0  # autocast keeps copies of the weights
    return Memory(
        weights=count + half,
        gradients=count,
        optimizer=2 * count,
        best=count if stage.selection else 0.0,
        activations=activations(stage, config, rows),
    )


def auxiliary_parameters(stage: Stage, config: Mapping[str, Any]) -> float:
    """Of an auxiliary network: its layers, and its own MLM head."""
    shape = definition_of(stage.objective).second_network(config)
    if shape is None:
        return 0.0
    layers, width = shape
    words = config.get("embedding_size") or config["hidden_size"]
    own = config if width == config["hidden_size"] else {**config, "hidden_size": width, "intermediate_size": 4 * width}
    return float(layers * layer_parameters(own) + (width + 3) * words + config["vocab_size"])


def activations(stage: Stage, config: Mapping[str, Any], rows: float) -> float:
    """Bytes that the backward pass of `rows` examples needs.

    A layer saves 10 d + 2 ff numbers a token, with a gate 4 ff: its input, q, k, v and the context before and after padding, the inputs of both
    norms, what enters and leaves the activation, and two dropout masks. Where attention is not a fused kernel (the library's own forward, relative
    positions), it also saves three scores a head and pair of tokens. In half precision all but the inputs of norms and masks take half. Logits over
    the vocabulary are there three times: themselves, their logarithm and their gradient.
    """
    if "hidden_size" not in config:
        return 0.0
    definition, family = definition_of(stage.objective), family_of(config)
    length = float(stage.data.max_length)
    size = definition.expected(rows, length)
    wide, narrow = (4.0, 4.0) if stage.optim.precision == "fp32" else (4.0, 2.0)
    fused = family.packed and not stage.encoder.relative_buckets

    def layer(d: float, ff: float, heads: float, tokens: float, squares: float) -> float:
        kept = tokens * (4 * wide * d + narrow * (6 * d + (4 if family.gated else 2) * ff))
        return kept + (0.0 if fused else 3 * wide * heads * squares)

    d, heads = config["hidden_size"], config.get("num_attention_heads", 1)
    ff = config["intermediate_size"]
    total = config["num_hidden_layers"] * layer(d, ff, heads, size.encoded, size.encoded_squares)
    total += 3 * wide * (config.get("embedding_size") or d) * size.encoded
    if shape := definition.second_network(config):
        layers, width = shape
        inner, parts = (ff, heads) if width == d else (4 * width, max(1, heads * width // d))
        total += layers * layer(width, inner, parts, size.tokens, size.squares)
    return float(total + 3 * wide * definition.vocabulary_positions(size) * config.get("vocab_size", 0))


def fitting(stage: Stage, config: Mapping[str, Any], memory: float, rows: int) -> int:
    """The most of `rows` examples that a device of so many bytes takes at once; 0 where not even one fits."""
    room = SHARE * memory - CONTEXT - memory_of(stage, config, 0).total
    one = activations(stage, config, 1)
    return rows if one * rows <= room else max(0, int(room // one)) if one else 0
