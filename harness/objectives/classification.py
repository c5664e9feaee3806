"""Fine-tuning objectives: cross-entropy (squared error for regression), alone or with the supervised contrastive loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.encoders.models.batch import Batch
from harness.encoders.models.text_encoder import TextEncoder
from harness.encoders.tokens import ClozeExamples, Examples, Tokens, by_length
from harness.kinds import Kind
from harness.methods.definition import HEAD
from harness.methods.prompt import LabelWords as Prompted
from harness.methods.scl import Scl
from harness.objectives.base import (
    Draw,
    TrainingObjective,
    Views,
    at_least_single,
    draw_linear,
    embedding_std,
    mean_over_groups,
)
from harness.objectives.losses import supervised_contrastive
from harness.streams import stream


class HeadOutputs(NamedTuple):
    """By row: `state` [B, d] of the encoder as the head reads it, `pooled` [B, d] before the head's last layer, `logits` [B, C]."""

    state: Tensor
    pooled: Tensor
    logits: Tensor


class Head(nn.Module):
    """Base of the heads that a later stage can start from."""

    def packed(self, logits: Tensor, batch: Batch) -> Tensor:
        """The outputs of the kind, a row each, from `HeadOutputs.logits`."""
        return logits

    def parts(self) -> dict[str, Tensor]:
        """Its weights as 'classifier/name' on the CPU, that a later stage can start from."""
        return {f"{HEAD}/{name}": tensor.to("cpu", copy=True) for name, tensor in self.state_dict().items()}

    def load_parts(self, tensors: Mapping[str, Tensor]) -> None:
        """Raises KeyError where the weights have no head."""
        self.load_state_dict({name: tensors[f"{HEAD}/{name}"] for name in self.state_dict()})


class WordHead(Head):
    """The encoder's MLM head at the mask of each cloze, on the label words alone; `tied`: the product with the word embeddings instead,
    which is COCO-LM's head for its corrective language modelling. Of a regression its two words stand for the ends of the scale; what
    it predicts is the score that is expected between them. It has no weights of its own."""

    words: Tensor

    def __init__(self, mask_id: int, tied: bool, kind: Kind) -> None:
        super().__init__()
        self._mask_id = mask_id
        self._tied = tied
        self._scale, self._number = kind.scale, getattr(torch, kind.output_type)
        self.register_buffer("words", torch.zeros(0, dtype=torch.long), persistent=False)

    def forward(self, encoder: TextEncoder, batch: Batch) -> HeadOutputs:
        # One in each sequence: as many as there are, without asking the device.
        masked = (batch.ids == self._mask_id).int()
        masks = torch.topk(masked, len(batch.packing.first)).indices.sort().values
        state = encoder(batch, masks)
        logits = encoder.embedding_logits(state) if self._tied else encoder.mlm_logits(state)
        return HeadOutputs(state, state, logits[:, self.words])

    def packed(self, logits: Tensor, batch: Batch) -> Tensor:
        if self._scale is None:
            return logits
        low, high = self._scale
        return low + (high - low) * logits.to(self._number).softmax(dim=1)[:, 1:]


class RowHead(Head):
    """One vector of outputs a row, from its first token: dropout, dense, tanh, dropout, linear (RoBERTa's own head, for every
    encoder: docs/papers.md D1). Scores are trained less their mean and divided by their standard deviation, so that its layers learn as well in any unit."""

    def __init__(self, encoder: TextEncoder, kind: Kind, dropout: float, seed: int) -> None:
        super().__init__()
        size, spread = encoder.hidden_size, encoder.config.initializer_range
        self._target_scale, self._number = kind.target_scale, getattr(torch, kind.output_type)
        self.drop = nn.Dropout(dropout)
        self.dense = draw_linear(nn.Linear(size, size), spread, seed, "classification_dense")
        self.out = draw_linear(nn.Linear(size, kind.outputs), spread, seed, "classification_out")

    def forward(self, encoder: TextEncoder, batch: Batch) -> HeadOutputs:
        first = encoder(batch, batch.packing.first)
        pooled = torch.tanh(self.dense(self.drop(first)))
        logits = self.out(self.drop(pooled))
        if self._target_scale is not None:
            mean, spread = self._target_scale
            logits = mean + spread * logits.to(self._number)
        return HeadOutputs(first, pooled, logits)


class TokenHead(Head):
    """Start and end of an answer: two linear layers on each token's last state (COCO-LM's; BERT's own have no dropout either). The logits
    [B, L, 2] are those of the padded batch, -inf where no answer may begin or end, so that their cross-entropy with the tokens of start and
    end is the mean of both losses."""

    def __init__(self, encoder: TextEncoder, dropout: float, seed: int) -> None:
        super().__init__()
        size, spread = encoder.hidden_size, encoder.config.initializer_range
        self.start = draw_linear(nn.Linear(size, 1), spread, seed, "span_start")
        self.end = draw_linear(nn.Linear(size, 1), spread, seed, "span_end")

    def forward(self, encoder: TextEncoder, batch: Batch) -> HeadOutputs:
        states = encoder(batch)
        scores = torch.cat([self.start(states), self.end(states)], dim=1)
        scores = scores.masked_fill(~batch["answers"][:, None], float("-inf"))
        packing = batch.packing
        logits = packing.padded(scores).masked_fill(~packing.real[:, :, None], float("-inf"))
        first = states.index_select(0, packing.first)
        return HeadOutputs(first, first, logits)

    def packed(self, logits: Tensor, batch: Batch) -> Tensor:
        """Of each token, [T, 2]."""
        return batch.packing.gathered(logits.flatten(0, 1))


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

    predicts = True
    has_classifier = True
    measured = False
    head: Head

    def build(self) -> None:
        self.weights = {"cross_entropy": 1.0}
        assert self.kind is not None
        if self.kind.per_token:
            self.head = TokenHead(self.encoder, self.dropout, self.seed)
        else:
            self.head = RowHead(self.encoder, self.kind, self.dropout, self.seed)

    def parts(self) -> dict[str, Tensor]:
        return self.head.parts()

    def load_parts(self, tensors: Mapping[str, Tensor], parts: tuple[str, ...]) -> None:
        """Raises KeyError where the weights have no head."""
        if HEAD in parts:
            self.head.load_parts(tensors)

    def prepare(self, examples: Examples, labels: NDArray[Any] | None, draw: Draw) -> Views:
        return self.views(examples, labels, self.step_flops(examples.tokens))

    def views(self, examples: Examples, labels: NDArray[Any] | None, flops: float) -> Views:
        """With what the loss reads of the labels of the examples, for each sequence."""
        tokens, owner = examples.tokens, examples.owner
        found = {} if labels is None else {"labels": self.targets(labels[owner], tokens)}
        return Views(tokens, owner, tokens.ids, flops, found)

    def targets(self, labels: NDArray[Any], tokens: Tokens) -> NDArray[Any]:
        """What the loss reads of the labels [S] of sequences."""
        assert self.kind is not None
        return self.kind.targets(labels, tokens)

    def outputs(self, batch: Batch) -> HeadOutputs:
        found: HeadOutputs = self.head(self.encoder, batch)
        return found

    def predict(self, batch: Batch) -> Tensor:
        return self.head.packed(self.outputs(batch).logits, batch)

    def classify(self, logits: Tensor, labels: Tensor) -> Tensor:
        assert self.kind is not None
        loss = CRITERIA[self.kind.loss](at_least_single(logits), labels)
        return (loss / self.kind.target_scale[1] ** 2).float() if self.kind.target_scale else loss

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        return {"cross_entropy": self.classify(self.outputs(batch).logits, batch["labels"])}

    def counts(self, views: Views) -> dict[str, float]:
        return {"cross_entropy": len(views.tokens)}


class FrozenHead(CrossEntropy):
    """The same where the head alone is trained, on the states that the encoder has in evaluation. Each row of a stage is encoded once, in batches in which
    the updates have no part: an interrupted stage goes on with the same states."""

    def build(self) -> None:
        super().build()
        self.encoder.requires_grad_(False)
        self._training: Tokens | None = None
        self._rows: dict[bytes, int] = {}
        self._states: Tensor | None = None
        self._seen: Examples | None = None
        self._evaluated: list[Tensor] = []
        self._at = 0

    def take_training_set(self, examples: Examples, labels: NDArray[Any] | None) -> None:
        self._training = examples.tokens
        self._rows = {key: row for row, key in enumerate(_keys(examples.tokens))}

    def prepare(self, examples: Examples, labels: NDArray[Any] | None, draw: Draw) -> Views:
        """The FLOPs of a stage are those of its rows, not of its updates."""
        if self._training is None:  # of no stage
            return super().prepare(examples, labels, draw)
        views = self.views(examples, labels, 0.0)
        rows = np.array([self._rows[key] for key in _keys(views.tokens)])
        return replace(views, sequences={**views.sequences, "rows": rows})

    def outputs(self, batch: Batch) -> HeadOutputs:
        if self._training is None:  # it only predicts: of any number of rows
            return super().outputs(batch)
        if "rows" in batch.arrays:
            if self._states is None:
                self._states = self._encode(self._training, batch.ids.device)
            states = self._states[batch["rows"]]
        else:
            if self._at == len(self._evaluated):
                self._evaluated.append(self.encoder(batch, batch.packing.first))
            states = self._evaluated[self._at]
            self._at += 1
        found: HeadOutputs = self.head(lambda *_: states, batch)
        return found

    def evaluated(self, examples: Examples) -> Examples:
        """The states of one evaluation set are kept, by batch: dev's, from one evaluation to the next."""
        if examples is not self._seen:
            self._seen, self._evaluated = examples, []
        self._at = 0
        return examples

    def _encode(self, tokens: Tokens, device: torch.device) -> Tensor:
        self.encoder.eval()
        found, order = [], list(by_length(tokens.lengths))
        with torch.no_grad():
            for rows in order:
                batch = Batch.of(tokens.take(rows), device)
                found.append(self.encoder(batch, batch.packing.first))
        self.encoder.train()
        return torch.cat(found)[torch.from_numpy(np.argsort(np.concatenate(order))).to(device)]


def _keys(tokens: Tokens) -> list[bytes]:
    cuts = [slice(a, b) for a, b in pairwise(tokens.offsets.tolist())]
    return [tokens.ids[cut].tobytes() + tokens.types[cut].tobytes() for cut in cuts]


class LabelWords(CrossEntropy):
    """Cross-entropy of the label words' logits at the mask of a cloze (Gao et al., LM-BFF, equation 1), where the prompt asks for it with
    demonstrations: drawn anew at each update, the example itself excluded; at evaluation the mean over some draws, which are the same
    each time an example is evaluated. Of a regression between two words the Kullback-Leibler divergence from their shares in the gold score
    (LM-BFF's prompt-based regression); the released code passes the shares where its loss expects their logarithms."""

    params: Prompted
    has_classifier = False

    def build(self) -> None:
        assert self.kind is not None
        self.weights = {"cross_entropy": 1.0}
        assert self.vocabulary.mask_id is not None
        self.uses_mlm_head = self.params.head == "mlm"
        self.embeddings_predict = not self.uses_mlm_head
        self.head = WordHead(self.vocabulary.mask_id, not self.uses_mlm_head, self.kind)

    def take_training_set(self, examples: Examples, labels: NDArray[Any] | None) -> None:
        assert isinstance(examples, ClozeExamples)
        assert labels is not None
        assert self.kind is not None
        self._training = examples, self.kind.sampled_groups(labels)[0]
        self.head.words = torch.from_numpy(examples.words).to(next(self.encoder.parameters()).device)

    def prepare(self, examples: Examples, labels: NDArray[Any] | None, draw: Draw) -> Views:
        assert isinstance(examples, ClozeExamples)
        if examples.draws:
            generator = draw("demonstrations")
            examples = examples.demonstrated(*self._training, [generator] * len(examples), 1, exclude=True)
        flops = self.step_flops(examples.tokens, predicted=len(examples.tokens))
        return self.views(examples, labels, flops)

    def targets(self, labels: NDArray[Any], tokens: Tokens) -> NDArray[Any]:
        assert self.kind is not None
        return self.kind.word_targets(labels)

    def evaluated(self, examples: Examples) -> Examples:
        assert isinstance(examples, ClozeExamples)
        if not examples.draws:
            return examples
        generators = [stream(self.seed, "demonstrations_of_evaluation", row) for row in range(len(examples))]
        return examples.demonstrated(*self._training, generators, examples.draws, exclude=False)

    def classify(self, logits: Tensor, labels: Tensor) -> Tensor:
        assert self.kind is not None
        return CRITERIA[self.kind.word_loss](at_least_single(logits), labels)


class SupervisedContrast(CrossEntropy):
    """(1 - lambda) cross-entropy + lambda supervised contrastive loss (SCL, equations 1-3)."""

    params: Scl
    contrasted = "supervised_contrastive"
    measured = True

    def build(self) -> None:
        super().build()
        lam = self.params.lam
        self.weights = {"cross_entropy": 1.0 - lam, "supervised_contrastive": lam}

    def counts(self, views: Views) -> dict[str, float]:
        rows = len(views.tokens)
        # A sum over anchors has the same weight in each micro-batch as in the batch.
        return {"cross_entropy": rows, "supervised_contrastive": 1 if self.params.reduction == "sum" else rows}

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        outputs = self.outputs(batch)
        own = labels = batch["labels"]
        features = outputs.state if self.params.representation == "first_token" else outputs.pooled
        if batch.gather and batch.whole:
            features, labels = batch.gather(features), batch.whole["labels"]
        options: dict[str, Any] = {"temperature": self.params.temperature, "reduction": self.params.reduction}
        contrast = mean_over_groups(
            len(labels),
            self.params.contrast_group,
            lambda rows: supervised_contrastive(features[rows], labels[rows], **options),
            summed=self.params.reduction == "sum",
        )
        self.measure("embedding_std", embedding_std, features)
        return {"cross_entropy": self.classify(outputs.logits, own), "supervised_contrastive": contrast}
