"""TACO: MLM, and contrast between the global semantics of tokens (last hidden state minus embedding)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.encoders.kernels.packing import packing
from harness.encoders.models.text_encoder import Batch
from harness.encoders.tokens import Examples
from harness.objectives import diagnostics
from harness.objectives.base import Draw, Measures, named, on
from harness.objectives.definitions.alignment import TacoDefinition
from harness.objectives.losses import token_alignment
from harness.objectives.masked import MaskedText, MaskedViews
from harness.objectives.masking import sample_negatives, sample_positives


@dataclass(frozen=True)
class AlignmentViews(MaskedViews):
    """`anchors` [T]: which tokens are anchors; `positives` [B, L] their positions; `negatives` [B, L, K, 2] (sequence,
    position); -1 where there is none."""

    anchors: NDArray[np.bool_]
    positives: NDArray[np.int64]
    negatives: NDArray[np.int64]

    def cut(self, rows: slice) -> dict[str, Any]:
        found, drawn = super().cut(rows), self.negatives[rows]
        width = int(found["tokens"].lengths.max())
        drawn = drawn[:, :width]
        return found | {
            "anchors": self.anchors[slice(*self.span(rows))],
            "positives": self.positives[rows, :width],
            "negatives": np.where(drawn < 0, drawn, drawn - np.array([rows.start, 0])),
        }


class TokenAlignment(MaskedText):
    """masked LM + weight x token-alignment contrast (TACO equations 3, 6-8 and 11)."""

    params: TacoDefinition

    def build(self) -> None:
        self.weights = {"masked_lm": 1.0, "contrast": self.params.weight}

    def prepare(self, examples: Examples, labels: NDArray[Any] | None, draw: Draw) -> AlignmentViews:
        tokens = examples.tokens
        selected, ids = self.mask(tokens, self.params.p_m, draw, 0)
        masked = self.views(tokens, self.maskable(tokens) if self.params.token_prediction else selected, ids)
        shape = (len(tokens), int(tokens.lengths.max()))
        num_negatives, reading = self.params.num_negatives, self.params.window_reading
        positives = sample_positives(
            tokens.lengths,
            self.params.window,
            draw("positives").random(shape),
            reading=reading,
            fallback=draw("positives_fallback").random(shape) if reading == "released" else None,
        )
        negatives = sample_negatives(
            tokens.lengths,
            num_negatives,
            draw("negatives_row").random((*shape, num_negatives)),
            draw("negatives_column").random((*shape, num_negatives)),
            group=self.params.contrast_group,
        )
        anchors = selected if self.params.concentrated else np.ones_like(selected)
        return AlignmentViews(
            tokens, masked.owner, ids, None, masked.flops, masked.where, masked.targets, anchors, positives, negatives
        )

    def forward(self, batch: Batch, views: AlignmentViews, measures: Measures | None = None) -> dict[str, Tensor]:
        hidden, embedded = self.encoder.forward_with_embeddings(batch)
        if self.params.embedding != "layer":
            (original,) = on(batch.ids.device, views.tokens.ids.astype(np.int64))
            embedded = self.encoder.word_embeddings(original if self.params.embedding == "original" else batch.ids)
        around, packed, states = views, batch.packing, hidden
        if views.global_batch:
            around = views.global_batch.whole
            packed = packing(around.tokens.lengths, batch.ids.device)
            states, embedded = views.global_batch.gather(torch.stack([hidden, embedded], dim=1)).unbind(dim=1)
        anchors, positives, negatives = on(batch.ids.device, around.anchors, around.positives, around.negatives)
        h, e = packed.padded(states), packed.padded(embedded)
        real = packed.padded(torch.ones_like(states[:, 0], dtype=torch.bool))
        anchors = packed.padded(anchors)
        contrast = token_alignment(
            h,
            e,
            positives,
            negatives,
            real,
            temperature=self.params.temperature,
            detach_contrast=self.params.detach_contrast,
            anchors=anchors,
        )
        if measures is not None:
            measures["embedding_std"] = diagnostics.embedding_std(states.index_select(0, packed.first))
            measures |= named(diagnostics.indexed_cosines(h - e, positives, negatives, anchors))
        (where,) = on(batch.ids.device, views.where)
        return {"masked_lm": self.token_term(hidden.index_select(0, where), views, measures), "contrast": contrast}

    def counts(self, views: AlignmentViews) -> dict[str, float]:  # type: ignore[override]
        return {**super().counts(views), "contrast": int(views.anchors.sum())}
