"""What a training step of an objective costs, by arithmetic: for plans, before anything is loaded. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from harness.encoders.flops import TRAIN, forward_flops, mlm_head_flops
from harness.specs import Objective


def auxiliary_shape(params: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[int, int]:
    """(layers, hidden size) of the auxiliary network: 'shallow' has a third of the encoder's layers at full width, or what
    the encoder's size says (COCO-LM section 3.3: a quarter in large++), 'narrow' all of them at a third of the width, in
    whole heads (ELECTRA's 256 of 768)."""
    layers, hidden = int(config["num_hidden_layers"]), int(config["hidden_size"])
    if params["auxiliary"] == "shallow":
        return params["auxiliary_layers"] or config.get("auxiliary_layers") or max(1, math.ceil(layers / 3)), hidden
    head = hidden // int(config.get("num_attention_heads", max(1, hidden // 64)))
    return params["auxiliary_layers"] or layers, max(1, round(hidden / 3 / head)) * head


def step_flops(spec: Objective, config: Mapping[str, Any], rows: float, length: float) -> float:
    """FLOPs of one training step over `rows` sequences of `length` tokens (of one view, where data hold several)."""
    params = spec.params
    tokens, squares = rows * length, rows * length * length
    once = forward_flops(config, tokens, squares)
    masked = tokens * float(params.get("p_m", 0.0))
    if spec.name in ("electra", "coco_lm", "auxiliary_mlm"):
        return _replaced(spec, config, tokens, squares, masked)
    if params.get("token_prediction"):
        masked = tokens
    if spec.name == "mlm_head":  # the encoder is frozen: one forward pass
        return once + TRAIN * mlm_head_flops(config, masked)
    total = once * (1 + int(params.get("num_views", 0)))
    if params.get("mlm", True):
        total += mlm_head_flops(config, masked)
    if spec.name == "taco":
        total += 2.0 * tokens * (int(params["num_negatives"]) + 1) * config["hidden_size"]
    return TRAIN * total


def _replaced(spec: Objective, config: Mapping[str, Any], tokens: float, squares: float, masked: float) -> float:
    params, total = spec.params, 0.0
    if params.get("replacements") != "random":
        layers, hidden = auxiliary_shape(params, config)
        words = config.get("embedding_size") or config["hidden_size"]
        small = {**config, "num_hidden_layers": layers, "hidden_size": hidden, "head_width": words}
        if hidden != config["hidden_size"]:
            small |= {"intermediate_size": 4 * hidden}
        passes = TRAIN if spec.name == "auxiliary_mlm" else TRAIN + 1  # one more to sample, without a gradient
        if params.get("replacements") == "converged":
            passes = 1.0
        total += passes * (forward_flops(small, tokens, squares) + mlm_head_flops(small, masked))
    if spec.name == "auxiliary_mlm":
        return total
    total += TRAIN * forward_flops(config, tokens, squares)
    if params.get("contrast"):
        kept = float(params["crop_ratio"])
        total += TRAIN * forward_flops(config, tokens * kept, squares * kept * kept)
    if params.get("lm", "none") != "none":
        positions = tokens if params["lm"] == "all_token" else masked
        total += TRAIN * 2.0 * positions * config["hidden_size"] * config["vocab_size"]
    return total
