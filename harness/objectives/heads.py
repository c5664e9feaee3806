"""The heads of classifiers and of question answering: what they read of a batch, and their outputs. A head knows its layers; a loss does
not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from harness.encoders.models.batch import Batch
from harness.encoders.models.text_encoder import TextEncoder
from harness.kinds import Kind
from harness.methods.definition import HEAD
from harness.objectives.base import draw_linear


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
        self._trained_in, self._number = kind.trained_in, getattr(torch, kind.output_type)
        self.drop = nn.Dropout(dropout)
        self.dense = draw_linear(nn.Linear(size, size), spread, seed, "classification_dense")
        self.out = draw_linear(nn.Linear(size, kind.outputs), spread, seed, "classification_out")

    def forward(self, encoder: TextEncoder, batch: Batch) -> HeadOutputs:
        first = encoder(batch, batch.packing.first)
        pooled = torch.tanh(self.dense(self.drop(first)))
        logits = self.out(self.drop(pooled))
        if self._trained_in is not None:
            mean, spread = self._trained_in
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
