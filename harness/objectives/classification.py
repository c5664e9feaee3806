"""Fine-tuning objectives: cross-entropy (squared error for regression), alone or with the supervised contrastive loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.encoders.models.text_encoder import Batch
from harness.encoders.tokens import Tokens
from harness.objectives import diagnostics
from harness.objectives.base import Draw, Measures, TrainingObjective, Views, at_least_single, in_groups, named
from harness.objectives.definitions import HEAD
from harness.objectives.losses import supervised_contrastive


class CrossEntropy(TrainingObjective):
    """Mean cross-entropy of a head on the first token: dropout, dense, tanh, dropout, linear (RoBERTa's own head, for
    every encoder: docs/papers.md D1). One label means regression with mean squared error."""

    supervised = True

    def build(self) -> None:
        size = self.encoder.hidden_size
        self.weights = {"cross_entropy": 1.0}
        self.drop = nn.Dropout(self.dropout)
        self.dense = self.draw_linear(nn.Linear(size, size), "classification_dense")
        self.out = self.draw_linear(nn.Linear(size, self.num_labels), "classification_out")

    def parts(self) -> dict[str, Tensor]:
        layers = {"dense": self.dense, "out": self.out}
        return {
            f"{HEAD}/{name}.{kind}": getattr(layer, kind).detach().to("cpu", copy=True)
            for name, layer in layers.items()
            for kind in ("weight", "bias")
        }

    def load_parts(self, tensors: Mapping[str, Tensor], parts: tuple[str, ...]) -> None:
        """Raises KeyError where the weights have no head."""
        if HEAD not in parts:
            return
        with torch.no_grad():
            for name, layer in (("dense", self.dense), ("out", self.out)):
                layer.weight.copy_(tensors[f"{HEAD}/{name}.weight"])
                layer.bias.copy_(tensors[f"{HEAD}/{name}.bias"])

    def prepare(self, tokens: Tokens, labels: NDArray[Any] | None, draw: Draw) -> Views:
        return Views(tokens, tokens.ids, labels, self.step_flops(tokens))

    def represent(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Raw first-token state, pooled state, logits: [B, d], [B, d], [B, C]."""
        first = self.encoder(batch, batch.packing.first)
        pooled = torch.tanh(self.dense(self.drop(first)))
        return first, pooled, self.out(self.drop(pooled))

    def predict(self, batch: Batch) -> Tensor:
        return self.represent(batch)[2]

    def classify(self, logits: Tensor, labels: Tensor) -> Tensor:
        logits = at_least_single(logits)
        if self.num_labels == 1:
            return nn.functional.mse_loss(logits[:, 0], labels.to(logits.dtype))
        return nn.functional.cross_entropy(logits, labels)

    def forward(self, batch: Batch, views: Views, measures: Measures | None = None) -> dict[str, Tensor]:
        _, _, logits = self.represent(batch)
        return {"cross_entropy": self.classify(logits, self.labels(batch, views))}

    def counts(self, views: Views) -> dict[str, float]:
        return {"cross_entropy": len(views.tokens)}

    def labels(self, batch: Batch, views: Views) -> Tensor:
        return torch.as_tensor(views.labels).to(batch.ids.device)


class SupervisedContrast(CrossEntropy):
    """(1 - lambda) cross-entropy + lambda supervised contrastive loss (SCL, equations 1-3).

    params: lam, temperature, reduction ('mean', 'mean_valid' or 'sum'), representation ('first_token': the raw state of
    the first token, taken with dropout active; 'pooled': after dense and tanh), contrast_group.
    """

    contrasted = "supervised_contrastive"

    def build(self) -> None:
        super().build()
        lam = self.params["lam"]
        self.weights = {"cross_entropy": 1.0 - lam, "supervised_contrastive": lam}

    def counts(self, views: Views) -> dict[str, float]:
        rows = len(views.tokens)
        # A sum over anchors has the same weight in each micro-batch as in the batch.
        return {"cross_entropy": rows, "supervised_contrastive": 1 if self.params["reduction"] == "sum" else rows}

    def forward(self, batch: Batch, views: Views, measures: Measures | None = None) -> dict[str, Tensor]:
        first, pooled, logits = self.represent(batch)
        own = labels = self.labels(batch, views)
        features = first if self.params["representation"] == "first_token" else pooled
        if views.global_batch:
            features, labels = views.global_batch.gather(features), self.labels(batch, views.global_batch.whole)
        groups = list(in_groups(len(labels), self.params["contrast_group"]))
        reduction = self.params["reduction"]
        parts = [
            supervised_contrastive(
                features[rows], labels[rows], temperature=self.params["temperature"], reduction=reduction
            )
            * (1.0 if reduction == "sum" else share)
            for rows, share in groups
        ]
        if measures is not None:
            measures["embedding_std"] = diagnostics.embedding_std(features)
            measures |= named(diagnostics.class_cosines(features, labels))
            collapsed = [
                diagnostics.collapsed_supervised(labels[rows], reduction) * (1.0 if reduction == "sum" else share)
                for rows, share in groups
            ]
            measures["collapsed_value"] = torch.stack(collapsed).sum()
        return {
            "cross_entropy": self.classify(logits, own),
            "supervised_contrastive": torch.stack(parts).sum(),
        }
