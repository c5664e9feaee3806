"""What these tests train: encoders with random weights in published shapes, every objective, and random tokens.

No text, no tokenizer and no download: a GPU machine needs this repository and its packages only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import of_method

from harness.encoders.models.text_encoder import TextEncoder, load_encoder, set_dropout
from harness.encoders.packaged import Size
from harness.encoders.tokens import Examples, Frame, Tokens, Vocabulary
from harness.encoders.tokens.cloze import ClozeExamples
from harness.kinds import kind_of_outputs
from harness.methods import DEFINITIONS, METHODS, objective
from harness.objectives import build
from harness.objectives.base import TrainingObjective
from harness.specs import Objective
from harness.training.loop import Inputs

CPU = torch.device("cpu")
BATCH, SEED = 8, 7
FIRST, SEPARATOR, MASK, ORDINARY = 2, 3, 4, 5
"""Ids of the special tokens, and the first id of ordinary ones; 0 and 1 are padding."""


def _shape(layers: int, hidden: int, heads: int, feed_forward: int, vocabulary: int, **more: Any) -> dict[str, Any]:
    size = Size(layers, hidden, heads, feed_forward, vocabulary, more.pop("positions", 512), 0, "")
    return size.config(vocabulary) | more


_ROBERTA = {"model_type": "roberta", "pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "positions": 514}
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": _shape(2, 32, 4, 64, 60, positions=128),
    "bert-tiny": _shape(2, 128, 2, 512, 30_522),
    "minilm": _shape(6, 384, 12, 1536, 30_522),
    "roberta-base": _shape(12, 768, 12, 3072, 50_265, **_ROBERTA),
}
"""Configurations: 'tiny' of no paper, for tests; bert-tiny, MiniLM with 6 layers, RoBERTa-base."""


@dataclass(frozen=True)
class Trained:
    """What a test trains: an objective, and how. `relative`: with T5's relative positions; `num_labels`: 1 is regression."""

    spec: Objective
    num_labels: int = 0
    relative: bool = False
    views: int = 1


@cache
def trained() -> dict[str, Trained]:
    """Every objective, and the settings that change what runs on the device."""
    cut = {"contrast_group": 4}
    named = {
        "ft": Trained(objective("cross_entropy"), 2),
        "ft-regression": Trained(objective("cross_entropy"), 1),
        "scl": Trained(of_method("scl"), 2),
        "mlm": Trained(of_method("mlm")),
        "mlm-relative": Trained(of_method("mlm"), relative=True),
        "mlm_head": Trained(objective("mlm_head", p_m=0.15)),
        "cmlm": Trained(of_method("cmlm")),
        "cmlm-simclr": Trained(of_method("cmlm", contrast="simclr", **cut)),
        "cssl": Trained(of_method("cssl", **cut), views=2),
        "taco": Trained(of_method("taco", num_negatives=10, **cut)),
        "electra": Trained(of_method("electra")),
        "coco_lm": Trained(of_method("coco_lm", **cut)),
        "coco_lm-relative": Trained(of_method("coco_lm", **cut), relative=True),
        "coco_lm-all_token": Trained(of_method("coco_lm", lm="all_token", rtd=False, stop_gradient=False)),
        "coco_lm-random": Trained(of_method("coco_lm", replacements="random")),
        "auxiliary_mlm": Trained(of_method("coco_lm", stage=0, replacements="converged")),
    }
    for name in METHODS:  # the trained objectives that no entry names, at their methods' defaults
        spec = of_method(name)
        if not DEFINITIONS[spec.name].fitted and spec.name not in {what.spec.name for what in named.values()}:
            named[spec.name] = Trained(spec, 2 * DEFINITIONS[spec.name].labelled)
    return named


def vocabulary_of(config: Mapping[str, Any]) -> Vocabulary:
    return Vocabulary(config["vocab_size"], MASK)


def encoder_of(config: Mapping[str, Any], *, relative: bool = False) -> TextEncoder:
    """An encoder with weights of its own stream: the same on every call."""
    made = load_encoder(Path(), "made", seed=SEED, config=config)
    if relative:
        made.add_relative_positions()
        with torch.no_grad():
            assert made.relative_positions is not None
            made.relative_positions.table.normal_(0.0, 0.5, generator=torch.Generator().manual_seed(SEED))
    return made


def built(what: Trained, config: Mapping[str, Any], dropout: float = 0.0) -> TrainingObjective:
    """The objective as a module, on the CPU and in training mode."""
    kind = kind_of_outputs(what.num_labels) if what.num_labels else None
    made = build(what.spec, encoder_of(config, relative=what.relative), vocabulary_of(config), kind, SEED)
    set_dropout(made, dropout)
    if what.spec.name == "prompt":
        rows = inputs_of(what, config)
        made.take_training_set(rows.train, rows.labels)
    return made.train()


def random_tokens(count: int, vocabulary: int, mean: float, longest: int, seed: int = SEED) -> Tokens:
    """Sequences of random ids between a first and a last special token, of 6 to `longest` tokens, about `mean` on average
    (gamma-distributed, as the lengths of sentences roughly are). `mean` of `longest`: all are as long."""
    random = np.random.default_rng(seed)
    drawn = np.full(count, longest) if mean >= longest else random.gamma(3.0, mean / 3.0, count)
    lengths = np.clip(np.rint(drawn), 6, longest).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = random.integers(ORDINARY, vocabulary, offsets[-1]).astype(np.int32)
    special = np.zeros(len(ids), dtype=np.bool_)
    for place, token in ((offsets[:-1], FIRST), (offsets[1:] - 1, SEPARATOR)):
        ids[place], special[place] = token, True
    return Tokens(ids, np.zeros(len(ids), dtype=np.int8), special, offsets)


def clozes(count: int, config: Mapping[str, Any], mean: float, longest: int) -> ClozeExamples:
    """Random sequences with the mask before the last token, and room for a demonstration of each of two classes behind."""
    tokens = random_tokens(count, config["vocab_size"], mean, longest - 4)
    masks = tokens.offsets[1:] - 2
    tokens.ids[masks], tokens.special[masks] = MASK, True
    frame = Frame((np.array([[FIRST, 0]]), np.array([[SEPARATOR, 0]])), (0,), SEPARATOR)
    words = np.array([ORDINARY, ORDINARY + 1])
    return ClozeExamples(
        tokens, identities=np.arange(count), words=words, mask_id=MASK, frame=frame, draws=2, max_length=longest
    )


@dataclass(frozen=True)
class Lengths:
    """Lengths of sequences in tokens."""

    mean: float = 27.0
    longest: int = 128


FEW_SHOT = Lengths()
"""As SST-2's sentences and the packaged movie snippets have them, under the protocol's limit of 128."""


def inputs_of(what: Trained, config: Mapping[str, Any], rows: int = 4 * BATCH, lengths: Lengths = FEW_SHOT) -> Inputs:
    """Random rows for an objective, with labels where it predicts some."""
    limit = min(lengths.longest, config["max_position_embeddings"] - 2)
    tokens = random_tokens(rows * what.views, config["vocab_size"], lengths.mean, limit)
    examples = Examples(tokens, None if what.views == 1 else np.arange(rows + 1) * what.views)
    labels = np.random.default_rng(SEED).integers(0, 2, rows)
    if what.spec.name == "prompt":
        return Inputs(clozes(rows, config, lengths.mean, limit), labels)
    if what.num_labels == 1:
        return Inputs(examples, labels.astype(np.float32))
    return Inputs(examples, labels if what.num_labels else None)


@dataclass(frozen=True)
class Setting:
    """Where and how large the tests are. `shape` of the numeric ones, `updates` of
    a timed training, after `warm` that are not timed; `folder`: for files that may be deleted."""

    device: torch.device
    folder: Path
    shape: str = "bert-tiny"
    updates: int = 20
    warm: int = 5

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def config(self) -> dict[str, Any]:
        """Of the numeric tests: weights five times as wide as published ones, so that no loss is near that of no signal."""
        return SHAPES[self.shape] | {"initializer_range": 0.1}


def needs(setting: Setting, precision: str) -> None:
    """Skips the test for a precision that the device has no arithmetic for; torch would emulate it."""
    if precision == "bf16" and setting.cuda and not torch.cuda.is_bf16_supported(including_emulation=False):
        pytest.skip("this device has no bf16")
