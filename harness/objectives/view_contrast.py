"""Contrast between the views of a text by their first tokens: SimSiam or SimCLR, as CMLM's equations 7 to 11 print them; CSSL and SimCSE."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.encoders.models.batch import Batch
from harness.encoders.models.text_encoder import TextEncoder
from harness.encoders.tokens import Examples
from harness.methods.cmlm import Cmlm
from harness.methods.cssl import TranslatedViews
from harness.methods.simcse import SimCse
from harness.objectives.base import Draw, TrainingObjective, draw_linear, embedding_std, mean_over_groups
from harness.objectives.losses import simclr, simsiam


class ViewContrast(nn.Module):
    """The contrast between view 0 and views 1 to K, with SimSiam's predictor where it is SimSiam."""

    def __init__(self, encoder: TextEncoder, params: Cmlm | TranslatedViews | SimCse, seed: int) -> None:
        super().__init__()
        self.params = params
        if self.params.contrast == "simsiam":
            size = encoder.hidden_size
            # Equation 10: no bias, no normalisation, d to d; the paper does not say how they are drawn.
            self.inner = draw_linear(nn.Linear(size, size, bias=False), encoder, seed, "predictor_inner")
            self.outer = draw_linear(nn.Linear(size, size, bias=False), encoder, seed, "predictor_outer")

    def forward(self, first: Tensor, batch: Batch) -> Tensor:
        """First tokens [(K + 1) B, d], view after view -> the contrast, a scalar."""
        by_view = first.view(self.params.num_views + 1, -1, first.shape[-1])
        if batch.gather:
            by_view = batch.gather(by_view.transpose(0, 1)).transpose(0, 1)
        h0, hk = by_view[0], by_view[1:]
        if self.params.contrast == "simsiam":
            z = self.outer(nn.functional.gelu(self.inner(by_view)))  # W2 gelu(W1 h), equation 10
            return simsiam(h0, hk, z[0], z[1:])
        group, temperature = self.params.contrast_group, self.params.temperature
        return mean_over_groups(len(h0), group, lambda rows: simclr(h0[rows], hk[:, rows], temperature=temperature))


class TranslatedContrast(TrainingObjective):
    """CMLM equations 13 and 14: the contrast of equations 7 to 11 between the views of a text, which are the sequences of an
    example, without a token loss. The encoder reads the B sequences of view 0, then those of view 1, and so on to view K."""

    params: TranslatedViews | SimCse

    def build(self) -> None:
        self.weights = {"contrast": 1.0}
        self.contrast = ViewContrast(self.encoder, self.params, self.seed)

    def prepare(self, examples: Examples, labels: NDArray[Any] | None, draw: Draw) -> Batch:
        return Batch(*examples.side_by_side())

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        seen = self.represent(batch)
        self.measure("embedding_std", embedding_std, seen[: len(seen) // (self.params.num_views + 1)])
        return {"contrast": self.contrast(seen, batch)}

    def represent(self, batch: Batch) -> Tensor:
        """What is contrasted of each sequence: its first token, [(K + 1) B, d]."""
        first: Tensor = self.encoder(batch, batch.first)
        return first

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"contrast": len(batch.tokens)}


class DropoutContrast(TranslatedContrast):
    """Unsupervised SimCSE (equation 4): the views are passes of the same text, which differ by their dropout alone."""

    params: SimCse

    def build(self) -> None:
        super().build()
        if self.params.projection:
            size = self.encoder.hidden_size
            layer = draw_linear(nn.Linear(size, size), self.encoder, self.seed, "projection")
            self.projection = nn.Sequential(layer, nn.Tanh())

    def prepare(self, examples: Examples, labels: NDArray[Any] | None, draw: Draw) -> Batch:
        owner = np.tile(np.arange(len(examples)), self.params.num_views + 1)
        return Batch(examples.tokens.take(owner), owner)

    def represent(self, batch: Batch) -> Tensor:
        first = super().represent(batch)
        return self.projection(first) if self.params.projection else first
