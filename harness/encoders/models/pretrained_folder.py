"""A trained model as a folder of Hugging Face's. Where transformers has a class that computes the same, plain
transformers loads it; another classifier is written as its encoder, with the head in a file beside it. T5's relative
positions are written so that plain transformers refuses the folder. `load_encoder` takes every one of these."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from transformers.utils import logging as transformers_logging

from harness.encoders.families import RELATIVE
from harness.encoders.models.text_encoder import TextEncoder
from harness.encoders.tokens import pretrained_tokenizer
from harness.errors import UserError

HEAD_FILE = "classifier.safetensors"
"""The head of a classifier that transformers has no class for: dense.weight, dense.bias, out.weight, out.bias; of question answering start
and end instead."""
WEIGHTS = "model.safetensors"
HEAD, SIDES, KINDS = ("dense", "out"), ("start", "end"), ("weight", "bias")
"""The layers of a classifier's head and of one for question answering, and what each holds."""
ANSWERS = "qa_outputs"
"""The layer of start and end in transformers' models for question answering."""

Form = Literal["classifier", "question_answering", "masked_lm", "encoder", "relative"]
"""What loads a folder: AutoModelForSequenceClassification; AutoModelForQuestionAnswering; AutoModelForMaskedLM; AutoModel, a head in `HEAD_FILE` apart; harness
alone."""


PIPELINES: dict[Form, str] = {
    "classifier": "text-classification",
    "question_answering": "question-answering",
    "masked_lm": "fill-mask",
}
"""The hub's tag of a folder. Of an encoder with its head beside it a pipeline would draw a head at random, so it has none."""


@dataclass(frozen=True)
class Head:
    """The head of a classifier by the names of `HEAD_FILE`, and its classes (empty: regression). `per_token`: it answers questions."""

    tensors: Mapping[str, Tensor]
    classes: tuple[str, ...]
    per_token: bool = False


def write_model(encoder: TextEncoder, folder: Path, head: Head | None = None) -> Form:
    """Write weights and configuration, in one file each: with the head of a classifier or of question answering, with the MLM head, or alone
    where that was never trained."""
    relative = encoder.relative_positions
    if head and not relative and (model := _with_head(encoder, head)):
        model.save_pretrained(str(folder), max_shard_size="1TB")
        return "question_answering" if head.per_token else "classifier"
    alone = head or encoder.fresh_head
    form: Form = "relative" if relative else "encoder" if alone else "masked_lm"
    model = encoder.base if form == "encoder" else encoder.model
    model.save_pretrained(str(folder), max_shard_size="1TB")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | _labels(head)
    if relative:  # under a model type that transformers does not know: it would leave them out
        config |= {"base_model_type": config["model_type"], "model_type": RELATIVE, "architectures": [RELATIVE]}
        config |= dict(zip(("relative_buckets", "relative_distance"), relative.shape, strict=True))
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if head:
        beside = {name: tensor.detach().to("cpu").contiguous() for name, tensor in head.tensors.items()}
        save_file(beside, folder / HEAD_FILE, metadata={"format": "pt"})
    return form


def write_tokenizer(source: Path, encoder: TextEncoder, folder: Path, max_length: int) -> None:
    """Write the tokenizer of the folder `source` so that its defaults are what the model was trained with: token types where the
    encoder tells them apart, and at most `max_length` tokens."""
    inputs = ["input_ids", *(["token_type_ids"] if encoder.typed else []), "attention_mask"]
    tokenizer = pretrained_tokenizer(source, model_input_names=inputs, model_max_length=max_length)
    tokenizer.save_pretrained(str(folder))
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    if settings.get("tokenizer_class") == "TokenizersBackend":  # a name that older versions of transformers do not know
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _labels(head: Head | None) -> dict[str, Any]:
    if head is None or head.per_token:
        return {}
    names = head.classes or ("score",)
    return {
        "id2label": dict(enumerate(names)),
        "label2id": {name: code for code, name in enumerate(names)},
        "problem_type": "single_label_classification" if head.classes else "regression",
    }


def _plain(config: Any, changes: Mapping[str, Any]) -> Any:
    """A copy of a configuration, without what this process chose for its own forward pass."""
    return type(config).from_dict({**config.to_dict(), "dtype": "float32", **changes})


def _with_head(encoder: TextEncoder, head: Head) -> Any:
    """transformers' own model that computes what this encoder and head do; None where it has none, or one with another head, as ModernBERT's."""
    classifier, config, tensors = encoder.family.classifier, _plain(encoder.config, _labels(head)), head.tensors
    prefix = f"{encoder.model.base_model_prefix}."
    state = {name: tensor for name, tensor in encoder.model.state_dict().items() if name.startswith(prefix)}
    if head.per_token:
        of: Any = AutoModelForQuestionAnswering
        state |= {f"{ANSWERS}.{k}": torch.cat([tensors[f"start.{k}"], tensors[f"end.{k}"]]) for k in KINDS}
    elif classifier is None:
        return None
    else:
        of, config = AutoModelForSequenceClassification, _plain(config, classifier.settings)
        for layer, name in ((classifier.dense, "dense"), (classifier.out, "out")):
            state |= {f"{layer}.{kind}": tensors[f"{name}.{kind}"] for kind in KINDS}
    try:
        with torch.random.fork_rng(devices=[]):
            model = of.from_config(config, dtype=torch.float32)
    except ValueError:  # the library has none
        return None
    missing, unexpected = model.load_state_dict(state, strict=False)
    return None if missing or unexpected else model


# -------------------------------------------------------------------------------------------------------------- reading


def read_head(folder: Path, encoder: TextEncoder) -> Head | None:
    """The head of a folder that holds a classifier with a head like ours, and its classes, or one that answers questions by start and end
    of a span; None where there is none."""
    config: Any = encoder.config
    beside, state = (load_file(path) if path.exists() else {} for path in (folder / HEAD_FILE, folder / WEIGHTS))
    ours, sides = ([f"{layer}.{kind}" for layer in layers for kind in KINDS] for layers in (HEAD, SIDES))
    if all(name in beside for name in sides):
        return Head(beside, (), per_token=True)
    if f"{ANSWERS}.weight" in state:
        weights, biases = state[f"{ANSWERS}.weight"], state[f"{ANSWERS}.bias"]
        parts = (weights[:1], biases[:1], weights[1:], biases[1:])
        return Head(dict(zip(sides, parts, strict=True)), (), per_token=True)
    if getattr(config, "problem_type", None) == "multi_label_classification":
        raise UserError(
            f"{folder}: gives each text several labels (problem_type), and predict gives it one; use transformers for it."
        )
    classes = tuple(str(config.id2label[code]) for code in sorted(config.id2label)) if config.num_labels > 1 else ()
    if beside:
        if missing := [name for name in ours if name not in beside]:
            raise UserError(f"{folder / HEAD_FILE} lacks {missing[0]}; export the run again.")
        return Head(beside, classes)
    classifier = encoder.family.classifier
    if classifier is None:
        return None
    theirs = [f"{layer}.{kind}" for layer in (classifier.dense, classifier.out) for kind in KINDS]
    fits = all(getattr(config, name, None) == value for name, value in classifier.settings.items())
    if not fits or not all(name in state for name in theirs):
        return None
    return Head({name: state[other] for name, other in zip(ours, theirs, strict=True)}, classes)


_LOADED_BY: dict[str, Any] = {
    "classifier": AutoModelForSequenceClassification,
    "question_answering": AutoModelForQuestionAnswering,
    "masked_lm": AutoModelForMaskedLM,
}


class PlainModel(nn.Module):
    """What plain transformers loads of a folder, with the head beside it where there is one. `answering`: it says where an answer begins and ends."""

    def __init__(self, folder: Path, form: Form) -> None:
        super().__init__()
        transformers_logging.set_verbosity_error()  # an encoder alone has no pooler, which is of no use here
        transformers_logging.disable_progress_bar()
        self.form, self.tokenizer = form, AutoTokenizer.from_pretrained(str(folder))
        self.model: Any = _LOADED_BY.get(form, AutoModel).from_pretrained(str(folder), dtype=torch.float32)
        self.head = load_file(folder / HEAD_FILE) if (folder / HEAD_FILE).exists() else {}
        self.answering = form == "question_answering" or "start.weight" in self.head
        self.eval()

    def tokens(self, texts: Sequence[tuple[str, ...]]) -> dict[str, Tensor]:
        """Rows of one or two texts as plain transformers reads them, padded: [n, L] each. Of questions the context is truncated."""
        columns = [list(column) for column in zip(*texts, strict=True)]
        truncation: Any = "only_second" if self.answering else True
        return dict(self.tokenizer(*columns, padding=True, truncation=truncation, return_tensors="pt"))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Tokens [n, L] each -> the logits of a classifier [n, C], of start and end [n, L, 2], or of a masked language model at the first token
        [n, V]; of an encoder alone that token's state [n, d]."""
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        out = self.model(**{name: tensor for name, tensor in given.items() if tensor is not None})
        if self.form == "classifier":
            return out.logits  # type: ignore[no-any-return]
        if self.form == "question_answering":
            return torch.stack([out.start_logits, out.end_logits], dim=2)
        if self.answering:
            return torch.cat([self._head(side, out[0]) for side in SIDES], dim=2)
        first: Tensor = out[0][:, 0]
        return self._head("out", torch.tanh(self._head("dense", first))) if self.head else first

    def _head(self, layer: str, states: Tensor) -> Tensor:
        return linear(states, self.head[f"{layer}.weight"], self.head[f"{layer}.bias"])


def plain_logits(folder: Path, form: Form, texts: Sequence[tuple[str, ...]]) -> Tensor:
    """What plain transformers computes of rows of one or two texts, as `PlainModel` does; of start and end at the tokens [T, 2]."""
    model = PlainModel(folder, form)
    given = model.tokens(texts)
    with torch.inference_mode():
        found: Tensor = model(**given)
    return found[given["attention_mask"].bool()] if model.answering else found
