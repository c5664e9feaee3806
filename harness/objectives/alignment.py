"""TACO: MLM, and contrast between the global semantics of tokens (last hidden state minus embedding)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.encoders.models.batch import Batch
from harness.encoders.tokens import Examples
from harness.methods.taco import Taco
from harness.objectives.base import Draw, Views, embedding_std
from harness.objectives.losses import token_alignment
from harness.objectives.masked import MaskedText
from harness.objectives.masking import sample_negatives, sample_positives


class TokenAlignment(MaskedText):
    """masked LM + weight x token-alignment contrast (TACO equations 3, 6-8 and 11)."""

    params: Taco

    def build(self) -> None:
        self.weights = {"masked_lm": 1.0, "contrast": self.params.weight}

    def prepare(self, examples: Examples, labels: NDArray[Any] | None, draw: Draw) -> Views:
        tokens = examples.tokens
        selected, ids = self.mask(tokens, self.params.p_m, draw, 0)
        masked = self.views(tokens, self.maskable(tokens) if self.params.token_prediction else selected, ids)
        shape = (len(tokens), int(tokens.lengths.max()))
        num_negatives, uniforms = self.params.num_negatives, draw("positives").random(shape)
        positives = sample_positives(tokens.lengths, self.params.window, uniforms)
        negatives = sample_negatives(
            tokens.lengths,
            num_negatives,
            draw("negatives_row").random((*shape, num_negatives)),
            draw("negatives_column").random((*shape, num_negatives)),
            group=self.params.contrast_group,
        )
        real = np.arange(shape[1]) < tokens.lengths[:, None]
        anchors, placed = real.copy(), {"positives": positives, "negatives": negatives}
        if self.params.concentrated:
            anchors[real] = selected
        # Relative to a token's own sequence, so that a part of a batch has the same. A pair without a position is none.
        missing = negatives[..., 1] < 0
        negatives[..., 0] = np.where(missing, 0, negatives[..., 0] - np.arange(len(tokens))[:, None, None])
        return replace(masked, placed=placed | {"anchors": anchors})

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        hidden, embedded = self.encoder.forward_with_embeddings(batch)
        around, states = batch.whole or batch, hidden
        if batch.gather:
            states, embedded = batch.gather(torch.stack([hidden, embedded], dim=1)).unbind(dim=1)
        packed = around.packing
        positives, negatives, anchors = around["positives"], around["negatives"], around["anchors"]
        own = torch.arange(len(negatives), device=negatives.device)[:, None, None, None]
        negatives = torch.cat([negatives[..., :1] + own, negatives[..., 1:]], dim=3)
        h, e, real = packed.padded(states), packed.padded(embedded), packed.real
        temperature = self.params.temperature
        contrast = token_alignment(h, e, positives, negatives, real, temperature=temperature, anchors=anchors)
        self.measure("embedding_std", lambda: embedding_std(states.index_select(0, packed.first)))
        predicted = hidden.index_select(0, batch["where"])
        return {"masked_lm": self.token_term(predicted, batch), "contrast": contrast}

    def counts(self, views: Views) -> dict[str, float]:
        return {**super().counts(views), "contrast": int(views.placed["anchors"].sum())}
