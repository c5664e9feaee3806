"""Contrast between the views of a text by their first tokens: SimSiam or SimCLR, as CMLM's equations 7 to 11 print them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from harness.encoders.models.text_encoder import TextEncoder
from harness.objectives import diagnostics
from harness.objectives.base import Measures, Views, draw_linear, in_groups, named
from harness.objectives.losses import simclr, simsiam


class ViewContrast(nn.Module):
    """The contrast between view 0 and views 1 to K, with SimSiam's predictor where it is SimSiam.

    params: contrast ('simsiam', or 'simclr' with temperature and contrast_group).
    """

    def __init__(self, encoder: TextEncoder, params: Mapping[str, Any], seed: int) -> None:
        super().__init__()
        self.params = dict(params)
        if self.params["contrast"] == "simsiam":
            size, spread = encoder.hidden_size, encoder.config.initializer_range
            # Equation 10: no bias, no normalisation, d to d; the paper does not say how they are drawn.
            self.inner = draw_linear(nn.Linear(size, size, bias=False), spread, seed, "predictor_inner")
            self.outer = draw_linear(nn.Linear(size, size, bias=False), spread, seed, "predictor_outer")

    def predict_view(self, first: Tensor) -> Tensor:
        """z = W2 gelu(W1 h), equation 10."""
        return self.outer(nn.functional.gelu(self.inner(first)))  # type: ignore[no-any-return]

    def forward(self, by_view: Tensor, views: Views, measures: Measures | None = None) -> Tensor:
        """First tokens by view [K + 1, B, d] -> the contrast, a scalar. Measures are of views 0 and 1."""
        if views.global_batch:
            by_view = views.global_batch.gather(by_view.transpose(0, 1)).transpose(0, 1)
        h0, hk = by_view[0], by_view[1:]
        if measures is not None:
            measures["embedding_std"] = diagnostics.embedding_std(h0)
            measures |= named(diagnostics.pair_cosines(h0, hk[0]))
        if self.params["contrast"] == "simsiam":
            z = self.predict_view(by_view)
            if measures is not None:
                measures["predictor_cosine"] = diagnostics.pair_cosines(z[0], hk[0])["positive"]
                measures["collapsed_value"] = h0.new_tensor(diagnostics.collapsed_simsiam(), dtype=torch.float32)
            return simsiam(h0, hk, z[0], z[1:])
        parts, collapsed = [], 0.0
        for rows, share in in_groups(h0.shape[0], self.params["contrast_group"]):
            parts.append(simclr(h0[rows], hk[:, rows], temperature=self.params["temperature"]) * share)
            collapsed += share * math.log(rows.stop - rows.start)
        if measures is not None:
            measures["collapsed_value"] = h0.new_tensor(collapsed, dtype=torch.float32)
        return torch.stack(parts).sum()
