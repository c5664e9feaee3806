"""Objectives on masked views: masked language modelling, and CMLM, which also contrasts views.

Both mask view 0 from the same streams, so that at equal seed TAPT and CMLM see the same view 0 at every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.encoders.models.text_encoder import Batch
from harness.encoders.tokens import Examples, Tokens
from harness.objectives.base import Draw, Measures, TrainingObjective, Views, on
from harness.objectives.definitions.masked import CmlmDefinition, MaskedDefinition, MlmDefinition
from harness.objectives.losses import masked_lm
from harness.objectives.masking import corrupt, select
from harness.objectives.view_contrast import ViewContrast


@dataclass(frozen=True)
class MaskedViews(Views):
    """`where` [M]: the predicted positions of view 0, `targets` [M] their original ids."""

    where: NDArray[np.int64]
    targets: NDArray[np.int64]

    def cut(self, rows: slice) -> dict[str, Any]:
        first, _ = self.span(rows)
        inside = self.inside(rows)
        return super().cut(rows) | {"where": self.where[inside] - first, "targets": self.targets[inside]}

    def inside(self, rows: slice) -> NDArray[np.bool_]:
        """[M]: whether each predicted position is in these rows."""
        first, last = self.span(rows)
        return (self.where >= first) & (self.where < last)


def all_but_first(tokens: Tokens) -> NDArray[np.bool_]:
    """[T]: every token but the first of each sequence, whose state stands for the sequence (docs/papers.md L8)."""
    found = np.ones(len(tokens.ids), dtype=np.bool_)
    found[tokens.offsets[:-1]] = False
    return found


class MaskedText(TrainingObjective):
    """Dynamic random masking, and the loss of the masked tokens of view 0: what objectives with masked views share.

    Each token is selected with probability p_m (Bernoulli as printed: CMLM equation 1; fairseq selects a fixed number),
    80/10/10; special tokens never.
    """

    params: MaskedDefinition
    uses_mlm_head = True

    def mask(
        self,
        tokens: Tokens,
        probability: float,
        draw: Draw,
        view: int,
        excluded: NDArray[np.bool_] | None = None,
        mask_only: bool = False,
    ) -> tuple[NDArray[np.bool_], NDArray[Any]]:
        """(selected [T], corrupted ids [T]) of one view of T tokens."""
        size = len(tokens.ids)
        assert self.vocabulary.mask_id is not None
        selected = select(self.maskable(tokens), probability, draw("mask", view).random(size), excluded)
        actions = draw("mask_action", view).random(size)
        random_ids = draw("mask_random", view).integers(0, self.vocabulary.size, size)
        return selected, corrupt(tokens.ids, selected, actions, random_ids, self.vocabulary.mask_id, mask_only)

    def maskable(self, tokens: Tokens) -> NDArray[np.bool_]:
        """[T]: the tokens that may be masked."""
        return ~tokens.special

    def views(self, first: Tokens, predicted: NDArray[np.bool_], ids: NDArray[Any], num_views: int = 1) -> MaskedViews:
        """From view 0, its `predicted` positions [T0], and the corrupted ids of `num_views` views of it, one view after another."""
        copies = np.tile(np.arange(len(first)), num_views)
        tokens = first if num_views == 1 else first.take(copies)
        where = np.flatnonzero(predicted)
        flops = self.step_flops(first, predicted=len(where), encoded=tokens)
        return MaskedViews(tokens, copies, ids, None, flops, where, first.ids[where].astype(np.int64))

    def counts(self, views: MaskedViews) -> dict[str, float]:
        return {"masked_lm": len(views.where)}

    def token_term(self, hidden: Tensor, views: MaskedViews, measures: Measures | None) -> Tensor:
        """Of the states [M, d] of the predicted tokens."""
        (targets,) = on(hidden.device, views.targets)
        logits = self.encoder.mlm_logits(hidden)
        if measures is not None:
            measures["mlm_accuracy"] = (logits.detach().argmax(dim=1) == targets).float().mean()
        return masked_lm(logits, targets)


class MaskedLM(MaskedText):
    """Masked language modelling, token mean. With `mask_special_tokens` special tokens are masked too, except the first (COCO-LM,
    appendix D, of RoBERTa)."""

    params: MlmDefinition

    def build(self) -> None:
        self.weights = {"masked_lm": 1.0}
        if self.params.fixed_embeddings:
            self.encoder.fix_word_embeddings()

    def maskable(self, tokens: Tokens) -> NDArray[np.bool_]:
        return all_but_first(tokens) if self.params.mask_special_tokens else super().maskable(tokens)

    def prepare(self, examples: Examples, labels: NDArray[Any] | None, draw: Draw) -> MaskedViews:
        tokens = examples.tokens
        selected, ids = self.mask(tokens, self.params.p_m, draw, 0)
        return self.views(tokens, self.maskable(tokens) if self.params.token_prediction else selected, ids)

    def forward(self, batch: Batch, views: MaskedViews, measures: Measures | None = None) -> dict[str, Tensor]:
        (where,) = on(batch.ids.device, views.where)
        return {"masked_lm": self.token_term(self.encoder(batch, where), views, measures)}


class MaskedLMHead(MaskedLM):
    """Masked language modelling that trains the MLM head alone; the encoder is frozen and stays bit-identical.

    A word embedding that is tied to the head's output is the encoder's, so it is frozen too.
    """

    def build(self) -> None:
        super().build()
        for parameter in self.encoder.base.parameters():
            parameter.requires_grad_(False)

    def forward(self, batch: Batch, views: MaskedViews, measures: Measures | None = None) -> dict[str, Tensor]:
        (where,) = on(batch.ids.device, views.where)
        with torch.no_grad():
            hidden = self.encoder(batch, where)
        return {"masked_lm": self.token_term(hidden, views, measures)}


class ContrastiveMaskedLM(MaskedText):
    """CMLM (equations 1-12): MLM on view 0 + alpha x contrast between view 0 and K complementary views."""

    params: CmlmDefinition

    def build(self) -> None:
        self.weights = {"contrast": self.params.alpha}
        if self.params.mlm:
            self.weights = {"masked_lm": 1.0, **self.weights}
        self.uses_mlm_head = self.params.mlm
        self.contrast = ViewContrast(self.encoder, self.params, self.seed)

    def prepare(self, examples: Examples, labels: NDArray[Any] | None, draw: Draw) -> MaskedViews:
        tokens = examples.tokens
        num_views = self.params.num_views
        selected, first = self.mask(tokens, self.params.p_m, draw, 0)
        excluded = selected if self.params.masking == "complementary" else None
        ids = [first]
        for view in range(1, num_views + 1):
            ids.append(self.mask(tokens, self.params.p_c, draw, view, excluded, self.params.mask_only)[1])
        if not self.params.mlm:
            selected = np.zeros_like(selected)
        return self.views(tokens, selected, np.concatenate(ids), num_views + 1)

    def forward(self, batch: Batch, views: MaskedViews, measures: Measures | None = None) -> dict[str, Tensor]:
        first = batch.packing.first
        if not self.params.mlm:
            return {"contrast": self.contrast(self.encoder(batch, first), views, measures)}
        (where,) = on(batch.ids.device, views.where)
        predicted, seen = self.encoder(batch, torch.cat([where, first])).split([len(where), len(first)])
        masked_lm = self.token_term(predicted, views, measures)
        return {"masked_lm": masked_lm, "contrast": self.contrast(seen, views, measures)}

    def counts(self, views: MaskedViews) -> dict[str, float]:
        return {**super().counts(views), "contrast": views.size}
