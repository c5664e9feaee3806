"""Objectives on masked views: masked language modelling, CMLM, which also contrasts views, and TACO, which contrasts tokens.

All mask view 0 from the same streams, so that at equal seed TAPT, CMLM and TACO see the same view 0 at every step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.encoders.models.batch import Batch
from harness.encoders.tokens import Examples, Tokens
from harness.methods.cmlm import Cmlm
from harness.methods.mlm import Masked
from harness.methods.mlm import MaskedLm as Mlm
from harness.methods.taco import Taco
from harness.objectives.base import Draw, TrainingObjective, embedding_std
from harness.objectives.losses import token_alignment
from harness.objectives.masking import corrupt, sample_negatives, sample_positives, select
from harness.objectives.view_contrast import ViewContrast


def all_but_first(tokens: Tokens) -> NDArray[np.bool_]:
    """[T]: every token but the first of each sequence, whose state stands for the sequence (docs/papers.md L8)."""
    found = np.ones(len(tokens.ids), dtype=np.bool_)
    found[tokens.offsets[:-1]] = False
    return found


class MaskedText(TrainingObjective):
    """Dynamic random masking, and the loss of the masked tokens of view 0: what objectives with masked views share.
    Each token is selected with probability p_m, 80/10/10 (CMLM equation 1); special tokens never."""

    params: Masked
    uses_mlm_head = True

    def mask(
        self, tokens: Tokens, probability: float, draw: Draw, view: int, excluded: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.bool_], NDArray[Any]]:
        """(selected [T], corrupted ids [T]) of one view of T tokens."""
        size = len(tokens.ids)
        assert self.vocabulary.mask_id is not None
        selected = select(self.maskable(tokens), probability, draw("mask", view).random(size), excluded)
        actions = draw("mask_action", view).random(size)
        random_ids = draw("mask_random", view).integers(0, self.vocabulary.size, size)
        return selected, corrupt(tokens.ids, selected, actions, random_ids, self.vocabulary.mask_id)

    def maskable(self, tokens: Tokens) -> NDArray[np.bool_]:
        """[T]: the tokens that may be masked."""
        return ~tokens.special

    def batch(self, first: Tokens, predicted: NDArray[Any], ids: NDArray[Any], views: int = 1, **placed: Any) -> Batch:
        """From view 0, its `predicted` positions [T0], and the corrupted ids of so many views of it, one view after another."""
        copies = np.tile(np.arange(len(first)), views)
        return Batch(replace(first.take(copies), ids=ids), copies, placed=predicting(first, predicted, **placed))

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"masked_lm": batch.num_predicted}

    def token_term(self, hidden: Tensor, batch: Batch) -> Tensor:
        """Of the states [M, d] of the predicted tokens."""
        return self.masked_term(self.encoder.mlm_logits(hidden), batch)


def predicting(tokens: Tokens, predicted: NDArray[np.bool_], **more: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Arrays of tokens [T] of which some are predicted."""
    return {"predicted": predicted, "targets": tokens.ids.astype(np.int64), **more}


class MaskedLM(MaskedText):
    """Masked language modelling, token mean. With `mask_special_tokens` special tokens are masked too, except the first (COCO-LM,
    appendix D, of RoBERTa)."""

    params: Mlm

    def build(self) -> None:
        self.weights = {"masked_lm": 1.0}
        if self.params.fixed_embeddings:
            # And with them an MLM head's output that is tied to them.
            self.encoder.base.get_input_embeddings().weight.requires_grad_(False)

    def maskable(self, tokens: Tokens) -> NDArray[np.bool_]:
        return all_but_first(tokens) if self.params.mask_special_tokens else super().maskable(tokens)

    def prepare(self, examples: Examples, labels: NDArray[Any] | None, draw: Draw) -> Batch:
        tokens = examples.tokens
        selected, ids = self.mask(tokens, self.params.p_m, draw, 0)
        return self.batch(tokens, self.maskable(tokens) if self.params.token_prediction else selected, ids)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        return {"masked_lm": self.token_term(self.encoder(batch, batch["where"]), batch)}


class MaskedLMHead(MaskedLM):
    """Masked language modelling that trains the MLM head alone; the encoder stays bit-identical, and with it a word
    embedding that is tied to the head's output."""

    def build(self) -> None:
        super().build()
        for parameter in self.encoder.base.parameters():
            parameter.requires_grad_(False)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            hidden = self.encoder(batch, batch["where"])
        return {"masked_lm": self.token_term(hidden, batch)}


class ContrastiveMaskedLM(MaskedText):
    """CMLM (equations 1-12): MLM on view 0 + alpha x contrast between view 0 and K complementary views."""

    params: Cmlm

    def build(self) -> None:
        self.weights = {"contrast": self.params.alpha}
        if self.params.mlm:
            self.weights = {"masked_lm": 1.0, **self.weights}
        self.uses_mlm_head = self.params.mlm
        self.contrast = ViewContrast(self.encoder, self.params, self.seed)

    def prepare(self, examples: Examples, labels: NDArray[Any] | None, draw: Draw) -> Batch:
        tokens, params = examples.tokens, self.params
        selected, first = self.mask(tokens, params.p_m, draw, 0)
        excluded = selected if params.masking == "complementary" else None
        further = [self.mask(tokens, params.p_c, draw, view, excluded)[1] for view in range(1, params.num_views + 1)]
        return self.batch(tokens, selected & params.mlm, np.concatenate([first, *further]), params.num_views + 1)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        where, first, terms = batch["where"], batch.first, {}
        if self.params.mlm:
            predicted, seen = self.encoder(batch, torch.cat([where, first])).split([len(where), len(first)])
            terms["masked_lm"] = self.token_term(predicted, batch)
        else:
            seen = self.encoder(batch, first)
        self.measure("embedding_std", embedding_std, seen[: len(seen) // (self.params.num_views + 1)])
        return {**terms, "contrast": self.contrast(seen, batch)}

    def counts(self, batch: Batch) -> dict[str, float]:
        return {**super().counts(batch), "contrast": batch.size}


class TokenAlignment(MaskedText):
    """masked LM + weight x token-alignment contrast (TACO equations 3, 6-8 and 11)."""

    params: Taco

    def build(self) -> None:
        self.weights = {"masked_lm": 1.0, "contrast": self.params.weight}

    def prepare(self, examples: Examples, labels: NDArray[Any] | None, draw: Draw) -> Batch:
        tokens = examples.tokens
        selected, ids = self.mask(tokens, self.params.p_m, draw, 0)
        shape = (len(tokens), int(tokens.lengths.max()))
        positives = sample_positives(tokens.lengths, self.params.window, draw("positives").random(shape))
        drawn = (
            draw(name).random((*shape, self.params.num_negatives)) for name in ("negatives_row", "negatives_column")
        )
        negatives = sample_negatives(tokens.lengths, *drawn, group=self.params.contrast_group)
        # Relative to a token's own sequence, so that a part of a batch has the same. A pair without a position is none.
        negatives[..., 0] -= np.where(negatives[..., 1] < 0, -1, np.arange(len(tokens))[:, None, None])
        real = np.arange(shape[1]) < tokens.lengths[:, None]
        anchors = selected if self.params.concentrated else np.ones_like(selected)
        return self.batch(tokens, selected, ids, positives=positives[real], negatives=negatives[real], anchors=anchors)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        hidden, embedded = self.encoder.forward_with_embeddings(batch)
        around, states = batch.whole or batch, hidden
        if batch.gather:
            states, embedded = batch.gather(torch.stack([hidden, embedded], dim=1)).unbind(dim=1)
        positives, negatives, anchors = (around.padded(around[name]) for name in ("positives", "negatives", "anchors"))
        own = torch.arange(len(negatives), device=negatives.device)[:, None, None, None]
        negatives = torch.cat([negatives[..., :1] + own, negatives[..., 1:]], dim=3)
        h, e, real = around.padded(states), around.padded(embedded), around.real
        contrast = token_alignment(
            h, e, positives, negatives, real, temperature=self.params.temperature, anchors=anchors
        )
        self.measure("embedding_std", lambda: embedding_std(states.index_select(0, around.first)))
        predicted = hidden.index_select(0, batch["where"])
        return {"masked_lm": self.token_term(predicted, batch), "contrast": contrast}

    def counts(self, batch: Batch) -> dict[str, float]:
        return {**super().counts(batch), "contrast": int(batch.placed["anchors"].sum())}
