"""Four objectives as one writes them for Hugging Face's Trainer: the library's models on padded batches, a pass for each
view, logits at every position. They serve to be timed against; batches and views are those of the objectives here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gpu.models import SEED, padded
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification

from harness.encoders.tokens import Tokens
from harness.objectives.base import TrainingObjective
from harness.objectives.losses import corrective_lm, replaced_token_detection, sequence_contrastive
from harness.streams import stream
from harness.training.loop import Inputs

Batch = dict[str, Tensor]
IGNORED = -100


def plain(
    objective: TrainingObjective, config: Mapping[str, Any], inputs: Inputs
) -> tuple[nn.Module, Callable[[list[int]], Batch]]:
    """(model that returns its loss, collator from row numbers to its keyword arguments). Of `objective` they use what prepares
    its views, and its heads."""
    make_model, arguments = _MODELS[type(objective).__name__]
    drawn = iter(range(1, 2**62))

    def collate(rows: list[int]) -> Batch:
        step, chosen = next(drawn), np.asarray(rows)
        labels = None if inputs.labels is None else inputs.labels[chosen]
        views = objective.prepare(inputs.train.take(chosen), labels, lambda p, *m: stream(SEED, p, step, *m))
        return arguments(views, int(config["pad_token_id"]), len(chosen))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return make_model(objective, config), collate


def _library(kind: Any, config: Mapping[str, Any], **changes: Any) -> Any:
    """The library's model, with its own attention."""
    fields = {name: value for name, value in {**config, **changes}.items() if name != "model_type"}
    return kind.from_config(AutoConfig.for_model(config["model_type"], **fields))


def _classifier(_: TrainingObjective, config: Mapping[str, Any]) -> Any:
    return _library(AutoModelForSequenceClassification, config, num_labels=2)


def _classified(views: Any, pad: int, _: int) -> Batch:
    return {**padded(views.tokens, pad), "labels": torch.as_tensor(views.sequences["labels"])}


def _masked_lm(_: TrainingObjective, config: Mapping[str, Any]) -> Any:
    return _library(AutoModelForMaskedLM, config)


def _masked(views: Any, pad: int, _: int) -> Batch:
    """The masked view and the labels of its predicted positions."""
    batch = padded(views.tokens, pad)
    return {**batch, "labels": _labels(views.tokens, views, batch["attention_mask"])}


def _labels(first: Tokens, views: Any, real: Tensor) -> Tensor:
    flat = np.full(len(first.ids), IGNORED, dtype=np.int64)
    flat[views.predicted["where"]] = views.predicted["targets"]
    return padded(first, IGNORED, flat)["input_ids"].masked_fill(real == 0, IGNORED)


class _Cmlm(nn.Module):
    """MLM on view 0 and the contrast of first tokens, one pass for each view."""

    def __init__(self, objective: Any, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.contrast = _library(AutoModelForMaskedLM, config), objective.contrast
        self.weight = objective.weights["contrast"]

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor, others: Tensor) -> dict[str, Tensor]:
        out = self.model(input_ids=input_ids, attention_mask=attention_mask, labels=labels, output_hidden_states=True)
        firsts = [out.hidden_states[-1][:, 0]]
        for ids in others.unbind(dim=1):
            firsts.append(self.model.base_model(input_ids=ids, attention_mask=attention_mask)[0][:, 0])
        contrast = self.contrast(torch.stack(firsts), SimpleNamespace(gather=None))
        return {"loss": out.loss + self.weight * contrast}


def _all_views(views: Any, pad: int, rows: int) -> Batch:
    """View 0, and views 1 to K as `others` [B, K, L]: each repeats the sequences of view 0 with other ids."""
    first = views.tokens.take(np.arange(rows))
    ids = views.tokens.ids.reshape(-1, len(first.ids))
    batches = [padded(first, pad, view) for view in ids]
    labels = _labels(first, views, batches[0]["attention_mask"])
    return {**batches[0], "labels": labels, "others": torch.stack([view["input_ids"] for view in batches[1:]], dim=1)}


class _CocoLm(nn.Module):
    """The auxiliary network's MLM, corrective LM on what it filled in, and the contrast with a crop."""

    def __init__(self, objective: Any, config: Mapping[str, Any]) -> None:
        super().__init__()
        layers, _ = objective.params.auxiliary_shape(config)
        self.model = _library(AutoModelForMaskedLM, config)
        self.auxiliary = _library(AutoModelForMaskedLM, config, num_hidden_layers=layers)
        self.auxiliary.base_model.embeddings = self.model.base_model.embeddings
        self.auxiliary.tie_weights()
        self.detector, self.params = objective.detector, objective.params

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        labels: Tensor,
        original: Tensor,
        crop_ids: Tensor,
        crop_mask: Tensor,
    ) -> dict[str, Tensor]:
        filled = self.auxiliary(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
        masked, corrupted, base = labels != IGNORED, original.clone(), self.model.base_model
        with torch.no_grad():
            corrupted[masked] = torch.multinomial(filled.logits[masked].float().softmax(dim=1), 1)[:, 0]
        hidden = base(input_ids=corrupted, attention_mask=attention_mask)[0]
        cropped = base(input_ids=crop_ids, attention_mask=crop_mask)[0]
        words = nn.functional.linear(hidden[masked], base.embeddings.word_embeddings.weight)
        detected = self.detector(hidden)[..., 0]
        copy = replaced_token_detection(detected, original, corrupted, attention_mask.bool())
        lm = corrective_lm(detected[masked], words, original[masked], (original == corrupted)[masked])
        contrast = sequence_contrastive(hidden[:, 0], cropped[:, 0], temperature=self.params.temperature)
        return {"loss": filled.loss + self.params.lambda_copy * copy + lm + contrast}


def _corrected(views: Any, pad: int, _: int) -> Batch:
    first, whole = views.tokens, views.main
    batch = padded(first, pad)
    crops = padded(whole.take(np.arange(len(first), len(whole))), pad)
    return {
        **batch,
        "labels": _labels(first, views, batch["attention_mask"]),
        "original": padded(whole.take(np.arange(len(first))), pad)["input_ids"],
        "crop_ids": crops["input_ids"],
        "crop_mask": crops["attention_mask"],
    }


_MODELS: dict[str, tuple[Callable[[Any, Mapping[str, Any]], nn.Module], Callable[[Any, int, int], Batch]]] = {
    "CrossEntropy": (_classifier, _classified),
    "MaskedLM": (_masked_lm, _masked),
    "ContrastiveMaskedLM": (_Cmlm, _all_views),
    "ReplacedTokens": (_CocoLm, _corrected),
}
"""By the class of the objective: the model, and its keyword arguments from an objective's views, the padding id and the number of rows."""
