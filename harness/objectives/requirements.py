"""What an objective asks of an encoder, checked on its configuration before anything is loaded. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.specs import Objective


def unmet(spec: Objective, config: Mapping[str, Any]) -> str | None:
    """Why an encoder of this configuration cannot be trained with the objective, in a sentence with its mend, or None."""
    params, kind = spec.params, config.get("model_type", "bert")
    method = "electra" if spec.name == "electra" else "coco_lm"
    if spec.name in ("electra", "coco_lm", "auxiliary_mlm") and params.get("replacements") != "random":
        if kind == "mpnet":
            return "an auxiliary network cannot be made of MPNet's layers; use a BERT, RoBERTa or ELECTRA encoder"
        layers = int(config.get("num_hidden_layers", 0))
        if params["auxiliary"] == "shallow" and layers and int(params["auxiliary_layers"]) > layers:
            return f"it has {layers} layers, fewer than {method}.auxiliary_layers {params['auxiliary_layers']}"
    width, size = config.get("embedding_size"), config.get("hidden_size")
    if width and width != size:
        narrow = f"its embeddings have {width} dimensions and its states {size}"
        if spec.name == "coco_lm" and params["lm"] != "none":
            return f"{narrow}, so the LM head cannot be the embeddings themselves; set coco_lm.lm to none"
        if spec.name == "taco" and params["embedding"] == "word":
            return f"{narrow}, so one cannot be taken from the other; set taco.embedding to layer"
    return None
