"""Every objective in one place: its version, its module, what a step of it costs, and what it requires of an encoder.

No torch: plans use this before anything is loaded. A new objective is one entry of DEFINITIONS and its module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.encoders.families import family_of
from harness.encoders.flops import TRAIN, forward_flops, mlm_head_flops
from harness.specs import Objective

HEAD = "classifier"
"""The part of a classifier's weights that holds its head."""
WORD_EMBEDDINGS = "word_embeddings"
"""What a stage may take of its parent's encoder instead of all of it."""

Params = Mapping[str, Any]
Config = Mapping[str, Any]


@dataclass(frozen=True)
class StepSize:
    """What one training step works on. `tokens` and `squares` (the sum of squared lengths) of the first view, `encoded` and
    `encoded_squares` of everything that goes through the encoder, and the number of `predicted` positions."""

    tokens: float
    squares: float
    encoded: float
    encoded_squares: float
    predicted: float = 0.0


@dataclass(frozen=True)
class Definition:
    """An objective. `version` is part of every stage's key: raise it by hand when the code changes a value.

    `module`: file of this package and class. `flops(params, config, size)`: FLOPs of a training step of that size.
    `expected(params, rows, length)`: the size of a step over `rows` sequences of `length` tokens (of one view), before any
    text is read. `unmet(params, config)`: why an encoder of this configuration cannot be trained, with what to change.
    `mlm_head(params)`: whether it needs the encoder's MLM head.
    """

    version: int
    module: tuple[str, str]
    flops: Callable[[Params, Config, StepSize], float]
    expected: Callable[[Params, float, float], StepSize]
    unmet: Callable[[Params, Config], str | None] = lambda params, config: None
    mlm_head: Callable[[Params], bool] = lambda params: False


# -------------------------------------------------------------------------------------------------- sizes and FLOPs


def _views(params: Params, rows: float, length: float) -> StepSize:
    """Views without predicted tokens."""
    views = 1 + int(params.get("num_views", 0))
    tokens, squares = rows * length, rows * length * length
    return StepSize(tokens, squares, views * tokens, views * squares)


def _masked(params: Params, rows: float, length: float) -> StepSize:
    """Views of which the first has predicted tokens."""
    size = _views(params, rows, length)
    share = 1.0 if params.get("token_prediction") else float(params["p_m"]) if params.get("mlm", True) else 0.0
    return StepSize(size.tokens, size.squares, size.encoded, size.encoded_squares, share * size.tokens)


def _corrupted(params: Params, rows: float, length: float) -> StepSize:
    """A corrupted view, and a crop of the text where it is contrasted."""
    tokens, squares = rows * length, rows * length * length
    kept = float(params["crop_ratio"]) if params.get("contrast") else 0.0
    return StepSize(
        tokens, squares, tokens + kept * tokens, squares + kept * kept * squares, float(params["p_m"]) * tokens
    )


def _encoder_flops(params: Params, config: Config, size: StepSize) -> float:
    """Encoder and MLM head are trained."""
    once = forward_flops(config, size.encoded, size.encoded_squares)
    return TRAIN * (once + mlm_head_flops(config, size.predicted))


def _head_flops(params: Params, config: Config, size: StepSize) -> float:
    """The encoder is frozen: one forward pass."""
    return forward_flops(config, size.encoded, size.encoded_squares) + TRAIN * mlm_head_flops(config, size.predicted)


def _alignment_flops(params: Params, config: Config, size: StepSize) -> float:
    """Each token has cosines with a positive and K negatives."""
    cosines = 2.0 * size.tokens * (int(params["num_negatives"]) + 1) * int(config["hidden_size"])
    return _encoder_flops(params, config, size) + TRAIN * cosines


def auxiliary_shape(params: Params, config: Config) -> tuple[int, int]:
    """(layers, hidden size) of the auxiliary network: 'shallow' has a third of the encoder's layers at full width, or the
    number that the encoder's size gives (COCO-LM section 3.3: a quarter in large++), 'narrow' all of them at a third of the
    width, in whole heads (ELECTRA's 256 of 768)."""
    layers, hidden = int(config["num_hidden_layers"]), int(config["hidden_size"])
    if params["auxiliary"] == "shallow":
        return params["auxiliary_layers"] or config.get("auxiliary_layers") or max(1, math.ceil(layers / 3)), hidden
    head = hidden // int(config.get("num_attention_heads", max(1, hidden // 64)))
    return params["auxiliary_layers"] or layers, max(1, round(hidden / 3 / head)) * head


def _auxiliary_flops(params: Params, config: Config, size: StepSize, passes: float = TRAIN) -> float:
    layers, hidden = auxiliary_shape(params, config)
    words = config.get("embedding_size") or config["hidden_size"]
    small = {**config, "num_hidden_layers": layers, "hidden_size": hidden, "head_width": words}
    if hidden != config["hidden_size"]:
        small |= {"intermediate_size": 4 * hidden}
    return float(passes) * (forward_flops(small, size.tokens, size.squares) + mlm_head_flops(small, size.predicted))


def _replaced_flops(params: Params, config: Config, size: StepSize) -> float:
    """The auxiliary network samples, and is trained unless it has converged; the encoder reads what it filled in."""
    total = TRAIN * forward_flops(config, size.encoded, size.encoded_squares)
    replacements = params.get("replacements", "auxiliary")
    if replacements != "random":
        total += _auxiliary_flops(params, config, size, 1.0 if replacements == "converged" else TRAIN + 1)
    if params.get("lm", "none") != "none":
        positions = size.tokens if params["lm"] == "all_token" else size.predicted
        total += TRAIN * 2.0 * positions * config["hidden_size"] * config["vocab_size"]
    return total


# ------------------------------------------------------------------------------------------------------ requirements


def _narrow_embeddings(config: Config) -> str | None:
    width, size = config.get("embedding_size"), config.get("hidden_size")
    if not width or width == size:
        return None
    return f"its embeddings have {width} dimensions and its states {size}"


def _word_embeddings(params: Params, config: Config) -> str | None:
    """TACO subtracts the embedding from the state."""
    narrow = _narrow_embeddings(config)
    if not narrow or params["embedding"] != "word":
        return None
    return f"{narrow}, so one cannot be taken from the other; set taco.embedding to layer"


def _auxiliary_network(method: str) -> Callable[[Params, Config], str | None]:
    """An auxiliary network is made of the encoder's own layers."""

    def unmet(params: Params, config: Config) -> str | None:
        if params.get("replacements") == "random":
            return None
        family = family_of(config)
        if family.transform is None:
            return f"an auxiliary network cannot be made of {family.title}'s layers; use a BERT, RoBERTa or ELECTRA encoder"
        layers = int(config.get("num_hidden_layers", 0))
        if params["auxiliary"] == "shallow" and layers and int(params["auxiliary_layers"]) > layers:
            return f"it has {layers} layers, fewer than {method}.auxiliary_layers {params['auxiliary_layers']}"
        return None

    return unmet


def _corrective(params: Params, config: Config) -> str | None:
    """The corrective LM head is the word embeddings themselves."""
    narrow = _narrow_embeddings(config) if params["lm"] != "none" else None
    missing = narrow and f"{narrow}, so the LM head cannot be the embeddings themselves; set coco_lm.lm to none"
    return _auxiliary_network("coco_lm")(params, config) or missing


def _always(params: Params) -> bool:
    return True


def _auxiliary(params: Params) -> bool:
    """An auxiliary network has a copy of the encoder's head."""
    return params.get("replacements") != "random"


DEFINITIONS = {
    "cross_entropy": Definition(1, ("classification", "CrossEntropy"), _encoder_flops, _views),
    "scl": Definition(1, ("classification", "SupervisedContrast"), _encoder_flops, _views),
    "mlm": Definition(1, ("masked", "MaskedLM"), _encoder_flops, _masked, mlm_head=_always),
    "mlm_head": Definition(1, ("masked", "MaskedLMHead"), _head_flops, _masked, mlm_head=_always),
    "cmlm": Definition(
        1, ("masked", "ContrastiveMaskedLM"), _encoder_flops, _masked, mlm_head=lambda params: bool(params["mlm"])
    ),
    "cssl": Definition(1, ("translated", "TranslatedContrast"), _encoder_flops, _views),
    "taco": Definition(1, ("alignment", "TokenAlignment"), _alignment_flops, _masked, _word_embeddings, _always),
    "electra": Definition(
        1,
        ("replaced", "ReplacedTokenDetection"),
        _replaced_flops,
        _corrupted,
        _auxiliary_network("electra"),
        _auxiliary,
    ),
    "coco_lm": Definition(1, ("replaced", "CorrectiveContrast"), _replaced_flops, _corrupted, _corrective, _auxiliary),
    "auxiliary_mlm": Definition(
        1, ("replaced", "AuxiliaryMaskedLM"), _auxiliary_flops, _corrupted, _auxiliary_network("coco_lm"), _always
    ),
}


def step_flops(spec: Objective, config: Config, rows: float, length: float) -> float:
    """FLOPs of one training step over `rows` sequences of `length` tokens (of one view, where data hold several)."""
    definition = DEFINITIONS[spec.name]
    return definition.flops(spec.params, config, definition.expected(spec.params, rows, length))


def unmet(spec: Objective, config: Config) -> str | None:
    """Why an encoder of this configuration cannot be trained with the objective, and what to change, in one sentence; or
    None."""
    return DEFINITIONS[spec.name].unmet(spec.params, config)


def headless(spec: Objective, config: Config) -> str | None:
    """Why a row with this objective is skipped for an encoder of a kind that has no MLM head; or None."""
    family = family_of(config)
    if family.mlm or not DEFINITIONS[spec.name].mlm_head(spec.params):
        return None
    return f"{family.title} encoders have no MLM head, so they can be fine-tuned but not post-trained with one"
