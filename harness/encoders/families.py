"""Encoder families: one entry per `model_type` says what the rest of the harness must know of it. No torch.

The layers of a packed family see tokens end to end, and the last one computes only what an objective reads. Every other
family runs by the library's own padded forward, slower and right: those with an entry, and whatever else transformers'
`AutoModelForMaskedLM` takes. A switch on `model_type` anywhere else is a mistake: add a field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
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
class Classifier:
    """transformers' sequence classifier of a family whose head computes what ours does: first token, dense, tanh,
    linear. `dense`, `out`: paths of its two linear layers; `settings`: what its configuration must say for it."""

    dense: str
    out: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """The encoders of one `model_type`. Names of modules and tensors are paths in the library's model; a field that is
    left out holds for a family of which nothing special is known.

    `layers`: the list of a packed family's layers, below the base model; empty: not packed. `layer`: None where the
    layers are BERT's. `transform`: (dense, normalisation, bias over the vocabulary, activation) of its MLM head, which
    an auxiliary network copies; an empty activation is gelu.
    `after_padding`: positions are numbered from `pad_token_id` + 1. `numbered`: they are passed to the model, which
    would take a padding id inside a text for padding. `own_positions`: what it has in place of absolute positions
    alone. `gated`: its feed-forward layers have three matrices. `relative_scores`: how many scores with relative
    positions each token has in a layer. `dropouts`: dropout modules that the library leaves out where the configuration
    says 0. `names`: how its configuration calls what BERT's calls otherwise; `defaults`: what it may leave out.
    `tokenizer`: the files that a tokenizer is built from without tokenizer.json. `seen`: texts of tasks that released
    encoders were trained on. `classifier`: None where transformers has none with a head like ours. `other_head`: how
    the weights of another MLM head begin, and the settings under which the library reads that one."""

    title: str
    layers: str = ""
    layer: Layer | None = None
    transform: tuple[str, str, str, str] | None = None
    after_padding: bool = False
    numbered: bool = True
    own_positions: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    gated: bool = False
    dropouts: tuple[str, ...] = ()
    relative_scores: Callable[[Mapping[str, Any]], int] = lambda config: 0
    tokenizer: tuple[str, ...] = ()
    seen: str = ""
    classifier: Classifier | None = None
    other_head: tuple[str, Mapping[str, Any]] = ("", {})

    @property
    def packed(self) -> bool:
        return bool(self.layers)

    @property
    def stack(self) -> str:
        """The module that holds and runs the layers."""
        return self.layers.rpartition(".")[0]

    def shape(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration, with its numbers also under BERT's names."""
        config = {**self.defaults, **config}
        return {**config, **{name: config[own] for name, own in self.names.items() if own in config}}

    def positions(self, config: Mapping[str, Any]) -> int:
        """The longest sequence that an encoder of this configuration takes, in tokens."""
        count = int(config.get("max_position_embeddings", 512))
        return count - int(config.get("pad_token_id", 1)) - 1 if self.after_padding else count


_WIKIPEDIA = "pre-trained on Wikipedia, where QNLI's passages come from"
_ROTARY, _RELATIVE = "rotary positions", "relative positions"
_HEAD = Classifier("classifier.dense", "classifier.out_proj")
_CONTEXT = Classifier("pooler.dense", "classifier", {"pooler_hidden_act": "tanh"})
_REPLACED = ("lm_predictions.", {"legacy": False})
_BERT, _ELECTRA = "cls.predictions.transform", "generator_predictions"


_ROBERTA = Family(
    "RoBERTa",
    "encoder.layer",
    transform=("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", ""),
    after_padding=True,
    tokenizer=("vocab.json", "merges.txt"),
    seen=_WIKIPEDIA,
    classifier=_HEAD,
)


def _disentangled(config: Mapping[str, Any]) -> int:
    """DeBERTa's attention from content to position and back (He et al. 2021, section 3.1): each reads a table that has two entries
    a distance. The table's own projections, once a batch, are left out."""
    kinds = config.get("pos_att_type") or ()
    kinds = kinds.split("|") if isinstance(kinds, str) else kinds
    names = ("position_buckets", "max_relative_positions", "max_position_embeddings")
    span = next((config[name] for name in names if (config.get(name) or 0) > 0), 512)
    return 2 * span * len({"c2p", "p2c"} & {kind.strip() for kind in kinds}) if config.get("relative_attention") else 0


FAMILIES = {
    "bert": Family(
        "BERT",
        "encoder.layer",
        transform=(f"{_BERT}.dense", f"{_BERT}.LayerNorm", "cls.predictions.bias", f"{_BERT}.transform_act_fn"),
        tokenizer=("vocab.txt",),
        seen=_WIKIPEDIA,
        classifier=Classifier("bert.pooler.dense", "classifier"),
    ),
    "roberta": _ROBERTA,
    "electra": Family(
        "ELECTRA",
        "encoder.layer",
        transform=(f"{_ELECTRA}.dense", f"{_ELECTRA}.LayerNorm", "generator_lm_head.bias", f"{_ELECTRA}.activation"),
        tokenizer=("vocab.txt",),
        seen=_WIKIPEDIA,
    ),
    "mpnet": Family(
        "MPNet",
        after_padding=True,
        own_positions=_RELATIVE,
        tokenizer=("vocab.txt",),
        seen=f"{_WIKIPEDIA}; all-mpnet-base-v2 saw MNLI's and QQP's pairs",
        classifier=_HEAD,
    ),
    "distilbert": Family(
        "DistilBERT",
        "transformer.layer",
        Layer("attention", "attention.out_lin", "sa_layer_norm", "ffn", "output_layer_norm"),
        transform=("vocab_transform", "vocab_layer_norm", "vocab_projector.bias", "activation"),
        names={
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
        },
        tokenizer=("vocab.txt",),
        seen=_WIKIPEDIA,
    ),
    "modernbert": Family(
        "ModernBERT",
        "layers",
        Layer("attn", "attn.Wo", "attn_norm", "mlp", "mlp_norm", pre_norm=True),
        own_positions=_ROTARY,
        gated=True,
        dropouts=("out_drop",),
        seen="ModernBERT's texts are not published, Ettin's are",
    ),
    "camembert": replace(_ROBERTA, title="CamemBERT", tokenizer=(), seen=""),
    "xlm-roberta": replace(_ROBERTA, title="XLM-RoBERTa", tokenizer=(), seen=""),
    "deberta": Family(
        "DeBERTa",
        own_positions=_RELATIVE,
        relative_scores=_disentangled,
        tokenizer=("vocab.json", "merges.txt"),
        seen=_WIKIPEDIA,
        classifier=_CONTEXT,
        other_head=_REPLACED,
    ),
    "deberta-v2": Family(
        "DeBERTa-v2/v3",
        own_positions=_RELATIVE,
        relative_scores=_disentangled,
        tokenizer=("spm.model",),
        seen=_WIKIPEDIA,
        classifier=_CONTEXT,
        other_head=_REPLACED,
    ),
    "albert": Family(
        "ALBERT",
        names={"head_width": "embedding_size"},
        tokenizer=("spiece.model",),
        seen=_WIKIPEDIA,
        classifier=Classifier("albert.pooler", "classifier"),
    ),
    "roberta-prelayernorm": Family("RoBERTa-PreLayerNorm", after_padding=True, classifier=_HEAD),
    "xlm-roberta-xl": Family("XLM-RoBERTa-XL", after_padding=True, classifier=_HEAD),
    "data2vec-text": Family("Data2VecText", after_padding=True, classifier=_HEAD),
    "eurobert": Family("EuroBERT", own_positions=_ROTARY, gated=True),
    "nomic_bert": Family("NomicBERT", own_positions=_ROTARY, gated=True),
}
"""By `model_type`."""
RELATIVE = "harness-relative-positions"
"""The `model_type` of a folder whose weights hold T5's relative positions; its `base_model_type` is that of the encoder below.
transformers does not know it, so it does not load the folder without them."""
SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings")
"""Numbers of a configuration that every encoder has, by BERT's names."""


def base_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the encoder below relative positions; another one as it is."""
    base = config.get("base_model_type")
    return {**config, "model_type": base} if base else dict(config)


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a configuration. One that is not at hand yet (no `model_type`) is taken for RoBERTa's, which has the
    fewest positions. Raises KeyError for a `model_type` that cannot be trained."""
    kind = str(config.get("model_type", "roberta"))
    found = FAMILIES.get(kind) or _others(kind)
    if found is None:
        raise KeyError(kind)
    return found


@lru_cache(maxsize=64)
def _others(kind: str) -> Family | None:
    """A family without an entry, as transformers describes it; None where it has no MLM, or is no encoder alone."""
    # Here, because it imports torch and takes a second; families with an entry do without.
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    if kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return None
    made = CONFIG_MAPPING[kind]()
    if made.is_encoder_decoder:
        return None
    defaults = {name: value for name in SHAPE if isinstance(value := getattr(made, name, None), int)}
    names = {name: own for name, own in made.attribute_map.items() if name in (*SHAPE, "vocab_size")}
    return Family(kind, numbered=False, names=names, defaults=defaults)
