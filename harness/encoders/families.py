"""Encoder families: one entry per `model_type` says what the rest of the harness must know of it. No torch.

A packed family's layers see tokens end to end, and its attention is looked up by name (`kernels/attention.py`), so linear layers
compute no padding and the last layer computes only what an objective reads. Every other family runs by the library's own
padded forward, slower and right. Fields that are left out hold for a family of which nothing special is known. A switch on
`model_type` anywhere else is a mistake: add a field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Layer:
    """The parts of a layer whose attention holds its own output projection, and whether its norms come before them."""

    attention: str
    projection: str
    attention_norm: str
    feed_forward: str
    feed_forward_norm: str
    pre_norm: bool = False


@dataclass(frozen=True)
class Family:
    """The encoders of one `model_type`. Names of modules and tensors are paths in the library's model.

    `stack`: the module of a packed family that runs its layers, below the base model, with the layers as its `layer`; empty: not
    packed. `layer`: None where the layers are BERT's. `head`: modules that make logits of hidden states, one after another. `transform`: (dense, normalisation, bias over the
    vocabulary, activation) of that head, which an auxiliary network copies; an empty activation is gelu. `after_padding`:
    positions are numbered from `pad_token_id` + 1, not from 0. `own_positions`: what it has in place of absolute positions alone.
    `names`: how its configuration calls what BERT's calls otherwise. `tokenizer`: the files that a tokenizer is built from
    without tokenizer.json.
    """

    title: str
    stack: str = ""
    layer: Layer | None = None
    head: tuple[str, ...] = ()
    transform: tuple[str, str, str, str] | None = None
    after_padding: bool = False
    own_positions: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    tokenizer: tuple[str, ...] = ()

    @property
    def packed(self) -> bool:
        return bool(self.stack)

    def shape(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration, with its numbers also under BERT's names."""
        return {**config, **{name: config[own] for name, own in self.names.items() if own in config}}

    def positions(self, config: Mapping[str, Any]) -> int:
        """The longest sequence that an encoder of this configuration takes, in tokens."""
        count = int(config.get("max_position_embeddings", 512))
        return count - int(config.get("pad_token_id", 1)) - 1 if self.after_padding else count


def _roberta(title: str, tokenizer: tuple[str, ...] = ()) -> Family:
    transform = ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "")
    return Family(title, "encoder", None, ("lm_head",), transform, after_padding=True, tokenizer=tokenizer)


FAMILIES = {
    "bert": Family(
        "BERT",
        "encoder",
        None,
        ("cls",),
        (
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.bias",
            "cls.predictions.transform.transform_act_fn",
        ),
        tokenizer=("vocab.txt",),
    ),
    "roberta": _roberta("RoBERTa", ("vocab.json", "merges.txt")),
    "electra": Family(
        "ELECTRA",
        "encoder",
        None,
        ("generator_predictions", "generator_lm_head"),
        (
            "generator_predictions.dense",
            "generator_predictions.LayerNorm",
            "generator_lm_head.bias",
            "generator_predictions.activation",
        ),
        tokenizer=("vocab.txt",),
    ),
    "mpnet": Family(
        "MPNet", head=("lm_head",), after_padding=True, own_positions="relative positions", tokenizer=("vocab.txt",)
    ),
    "distilbert": Family(
        "DistilBERT",
        "transformer",
        Layer("attention", "attention.out_lin", "sa_layer_norm", "ffn", "output_layer_norm"),
        ("vocab_transform", "activation", "vocab_layer_norm", "vocab_projector"),
        ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias", "activation"),
        names={
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim",
        },
        tokenizer=("vocab.txt",),
    ),
    "camembert": _roberta("CamemBERT"),
    "xlm-roberta": _roberta("XLM-RoBERTa"),
}


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a configuration. One that is not at hand yet (no `model_type`) is taken for RoBERTa's, which has the
    fewest positions."""
    return FAMILIES[config.get("model_type", "roberta")]
