"""Fine-tuning objectives: cross-entropy (squared error for regression), alone or with the supervised contrastive loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.encoders.models.batch import Batch
from harness.encoders.models.text_encoder import TextEncoder
from harness.encoders.tokens import Examples, Tokens, by_length
from harness.encoders.tokens.cloze import ClozeExamples
from harness.kinds import Kind
from harness.methods.definition import HEAD
from harness.methods.prompt import LabelWords as Prompted
from harness.methods.scl import Scl
from harness.objectives.base import (
    Draw,
    TrainingObjective,
    at_least_single,
    draw_linear,
    embedding_std,
    mean_over_groups,
)
from harness.objectives.losses import supervised_contrastive
from harness.streams import stream


class RowHead(nn.Module):
    """One vector of outputs a row, from its first token: dropout, dense, tanh, dropout, linear (RoBERTa's own head, for every
    encoder: docs/papers.md D1). Scores are trained less their mean and divided by their standard deviation, so that its layers learn as well in any unit."""

    def __init__(self, encoder: TextEncoder, kind: Kind, seed: int) -> None:
        super().__init__()
        size = encoder.hidden_size
        self._target_scale, self._number = kind.target_scale, getattr(torch, kind.output_type)
        self.drop = nn.Dropout()
        self.dense = draw_linear(nn.Linear(size, size), encoder, seed, "classification_dense")
        self.out = draw_linear(nn.Linear(size, kind.outputs), encoder, seed, "classification_out")

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """First tokens [B, d] -> [B, C]."""
        return self.outputs(self.pooled(states))

    def pooled(self, states: Tensor) -> Tensor:
        return torch.tanh(self.dense(self.drop(states)))

    def outputs(self, pooled: Tensor) -> Tensor:
        logits: Tensor = self.out(self.drop(pooled))
        if self._target_scale is None:
            return logits
        mean, spread = self._target_scale
        return mean + spread * logits.to(self._number)


class TokenHead(nn.Module):
    """Start and end of an answer: two linear layers on each token's last state (COCO-LM's; BERT's own have no dropout either). The logits
    [B, L, 2] are those of the padded batch, -inf where no answer may begin or end, so that their cross-entropy with the tokens of start and
    end is the mean of both losses."""

    def __init__(self, encoder: TextEncoder, seed: int) -> None:
        super().__init__()
        size = encoder.hidden_size
        self.start = draw_linear(nn.Linear(size, 1), encoder, seed, "span_start")
        self.end = draw_linear(nn.Linear(size, 1), encoder, seed, "span_end")

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """All tokens [T, d] -> [B, L, 2]."""
        scores = torch.cat([self.start(states), self.end(states)], dim=1)
        scores = scores.masked_fill(~batch["answers"][:, None], float("-inf"))
        return batch.padded(scores).masked_fill(~batch.real[:, :, None], float("-inf"))


def _mean_squared_error(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.mse_loss(logits[:, 0], labels.to(logits.dtype))


def _kl_divergence(logits: Tensor, shares: Tensor) -> Tensor:
    """Of the distribution of the model over two words from (1 - share, share): [B, 2], [B] -> scalar, the mean over rows."""
    targets = torch.stack([1 - shares, shares], dim=1).to(logits.dtype)
    return nn.functional.kl_div(logits.log_softmax(dim=1), targets, reduction="batchmean")


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """[B, C], [B], or of start and end [B, L, 2], [B, 2] -> scalar. CUDA has no deterministic loss of more than two dimensions."""
    if logits.dim() == 2:
        return nn.functional.cross_entropy(logits, labels)
    shares = logits.log_softmax(dim=1).transpose(1, 2).flatten(0, 1)
    return nn.functional.nll_loss(shares, labels.flatten())


CRITERIA: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": _cross_entropy,
    "mean_squared_error": _mean_squared_error,
    "kl_divergence": _kl_divergence,
}
"""By the loss of the kind: (outputs, labels) -> the mean over rows."""


class CrossEntropy(TrainingObjective):
    """The loss of the task's kind on a head's outputs: cross-entropy, or the squared error of scores; a mean over rows."""

    has_classifier = True
    measured = False
    kind: Kind
    head: Any

    def build(self) -> None:
        self.weights = {"cross_entropy": 1.0}
        if self.kind.per_token:
            self.head = TokenHead(self.encoder, self.seed)
        else:
            self.head = RowHead(self.encoder, self.kind, self.seed)

    def parts(self) -> dict[str, Tensor]:
        weights = self.head.state_dict() if self.has_classifier else {}
        return {f"{HEAD}/{name}": tensor.to("cpu", copy=True) for name, tensor in weights.items()}

    def load_parts(self, tensors: Mapping[str, Tensor], parts: tuple[str, ...]) -> None:
        """Raises KeyError where the weights have no head."""
        if HEAD in parts and self.has_classifier:
            self.head.load_state_dict({name: tensors[f"{HEAD}/{name}"] for name in self.head.state_dict()})

    def prepare(self, examples: Examples, labels: NDArray[Any] | None, draw: Draw) -> Batch:
        """With what the loss reads of the labels of the examples, for each sequence."""
        tokens, owner = examples.tokens, examples.owner
        return Batch(tokens, owner, {} if labels is None else {"labels": self.targets(labels[owner], tokens)})

    def targets(self, labels: NDArray[Any], tokens: Tokens) -> NDArray[Any]:
        """What the loss reads of the labels [S] of sequences."""
        return self.kind.targets(labels, tokens)

    def states(self, batch: Batch) -> Tensor:
        """What the head reads: the states of all tokens [T, d], or of first tokens [S, d]."""
        found: Tensor = self.encoder(batch, None if self.kind.per_token else batch.first)
        return found

    def logits(self, batch: Batch) -> Tensor:
        found: Tensor = self.head(self.states(batch), batch)
        return found

    def predict(self, batch: Batch) -> Tensor:
        logits = self.logits(batch)
        return batch.gathered(logits.flatten(0, 1)) if self.kind.per_token else logits

    def classify(self, logits: Tensor, labels: Tensor) -> Tensor:
        loss = CRITERIA[self.kind.loss](at_least_single(logits), labels)
        return (loss / self.kind.target_scale[1] ** 2).float() if self.kind.target_scale else loss

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        return {"cross_entropy": self.classify(self.logits(batch), batch["labels"])}

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"cross_entropy": len(batch.tokens)}


class FrozenHead(CrossEntropy):
    """The same where the head alone is trained, on the states that the encoder has in evaluation. Each row of a stage is encoded once, in batches in which
    the updates have no part: an interrupted stage goes on with the same states."""

    def build(self) -> None:
        super().build()
        self.encoder.requires_grad_(False)
        self._training: Tokens | None = None
        self._states: Tensor | None = None
        self._seen: Examples | None = None

    def take_training_set(self, examples: Examples, labels: NDArray[Any] | None) -> None:
        self._training = examples.tokens
        self._rows = {key: row for row, key in enumerate(_keys(examples.tokens))}

    def step_flops(self, batch: Batch) -> float:
        """Of a stage they are those of its rows, not of its updates."""
        return super().step_flops(batch) if self._training is None else 0.0

    def states(self, batch: Batch) -> Tensor:
        if self._training is None:  # it only predicts: of any number of rows
            return super().states(batch)
        if self.training:
            if self._states is None:
                self._states = self._encode(self._training, batch.ids.device)
            return self._states[[self._rows[key] for key in _keys(batch.tokens)]]
        if self._at == len(self._evaluated):
            self._evaluated.append(super().states(batch))
        self._at += 1
        return self._evaluated[self._at - 1]

    def evaluated(self, examples: Examples) -> Examples:
        """The states of one evaluation set are kept, by batch: dev's, from one evaluation to the next."""
        if examples is not self._seen:
            self._seen, self._evaluated = examples, list[Tensor]()
        self._at = 0
        return examples

    def _encode(self, tokens: Tokens, device: torch.device) -> Tensor:
        read, order = super().states, list(by_length(tokens.lengths))
        self.encoder.eval()
        with torch.no_grad():
            found = torch.cat([read(Batch.of(tokens.take(rows), device)) for rows in order])
        self.encoder.train()
        return found[torch.from_numpy(np.argsort(np.concatenate(order))).to(device)]


def _keys(tokens: Tokens) -> list[bytes]:
    cuts = [slice(a, b) for a, b in pairwise(tokens.offsets.tolist())]
    return [tokens.ids[cut].tobytes() + tokens.types[cut].tobytes() for cut in cuts]


class LabelWords(CrossEntropy):
    """Cross-entropy of the label words' logits at the mask of a cloze (Gao et al., LM-BFF, equation 1), by the encoder's MLM head, or by the
    product with the word embeddings, which is COCO-LM's head for its corrective language modelling. Where the prompt asks for it with
    demonstrations: drawn anew at each update, the example itself excluded; at evaluation the mean over some draws, which are the same
    each time an example is evaluated. Of a regression the two words stand for the ends of the scale: the loss is the Kullback-Leibler divergence from
    their shares in the gold score (LM-BFF's prompt-based regression; the released code passes the shares where its loss expects their logarithms), the
    prediction the score that is expected between them."""

    params: Prompted
    has_classifier = False
    words: Tensor

    def build(self) -> None:
        self.weights = {"cross_entropy": 1.0}
        self.uses_mlm_head = self.params.mlm_head
        self.register_buffer("words", torch.zeros(0, dtype=torch.long), persistent=False)

    def take_training_set(self, examples: Examples, labels: NDArray[Any] | None) -> None:
        assert isinstance(examples, ClozeExamples)
        assert labels is not None
        self._training = examples, self.kind.sampled_groups(labels)[0]
        self.words = torch.from_numpy(examples.words).to(next(self.encoder.parameters()).device)

    def prepare(self, examples: Examples, labels: NDArray[Any] | None, draw: Draw) -> Batch:
        assert isinstance(examples, ClozeExamples)
        if examples.draws:
            generator = draw("demonstrations")
            examples = examples.demonstrated(*self._training, [generator] * len(examples), 1, exclude=True)
        return super().prepare(examples, labels, draw)

    def step_flops(self, batch: Batch) -> float:
        """A word of each sequence is predicted."""
        return super().step_flops(replace(batch, placed={"predicted": np.ones(len(batch.tokens))}))

    def targets(self, labels: NDArray[Any], tokens: Tokens) -> NDArray[Any]:
        return self.kind.word_targets(labels)

    def evaluated(self, examples: Examples) -> Examples:
        assert isinstance(examples, ClozeExamples)
        if not examples.draws:
            return examples
        generators = [stream(self.seed, "demonstrations_of_evaluation", row) for row in range(len(examples))]
        return examples.demonstrated(*self._training, generators, examples.draws, exclude=False)

    def logits(self, batch: Batch) -> Tensor:
        assert self.vocabulary.mask_id is not None
        # One mask in each sequence: as many as there are, without asking the device.
        masked = batch.ids.eq(self.vocabulary.mask_id).int()
        masks = torch.topk(masked, len(batch.first)).indices.sort().values
        logits_of = self.encoder.mlm_logits if self.uses_mlm_head else self.encoder.embedding_logits
        return logits_of(self.encoder(batch, masks))[:, self.words]

    def predict(self, batch: Batch) -> Tensor:
        logits = self.logits(batch)
        if self.kind.scale is None:
            return logits
        low, high = self.kind.scale
        return low + (high - low) * logits.to(getattr(torch, self.kind.output_type)).softmax(dim=1)[:, 1:]

    def classify(self, logits: Tensor, labels: Tensor) -> Tensor:
        return CRITERIA[self.kind.word_loss](at_least_single(logits), labels)


class SupervisedContrast(CrossEntropy):
    """(1 - lambda) cross-entropy + lambda supervised contrastive loss (SCL, equations 1-3)."""

    params: Scl
    contrasted = "supervised_contrastive"
    measured = True

    def build(self) -> None:
        super().build()
        self.weights = {"cross_entropy": 1.0 - self.params.lam, "supervised_contrastive": self.params.lam}

    def counts(self, batch: Batch) -> dict[str, float]:
        # A sum over anchors has the same weight in each micro-batch as in the batch.
        contrasted = 1 if self.params.reduction == "sum" else len(batch.tokens)
        return {**super().counts(batch), "supervised_contrastive": contrasted}

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        states, params = self.states(batch), self.params
        pooled = self.head.pooled(states)
        own = labels = batch["labels"]
        features = states if params.representation == "first_token" else pooled
        terms = {"cross_entropy": self.classify(self.head.outputs(pooled), own)}
        if batch.gather and batch.whole:
            features, labels = batch.gather(features), batch.whole["labels"]
        terms["supervised_contrastive"] = mean_over_groups(
            len(labels),
            params.contrast_group,
            lambda rows: supervised_contrastive(
                features[rows], labels[rows], temperature=params.temperature, reduction=params.reduction
            ),
            summed=params.reduction == "sum",
        )
        self.measure("embedding_std", embedding_std, features)
        return terms
