"""Diagnostics of collapse: the spread of embeddings, and their cosines.

Collapse is all embeddings at one point: their spread is 0, cosines of positive and of negative pairs are both 1. Learning keeps the
spread up and opens a gap between the two cosines. Shape letters and laws (precision, zero vectors, NaN) are those of harness.objectives.losses.
No function carries a gradient. A mean over no pair is NaN.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from harness.objectives.losses import (
    _dtype,
    _no_autocast,
    _pair_cosines,
    _pairs,
    _unit,
)


@torch.no_grad()
def embedding_std(features: Tensor) -> Tensor:
    """Spread of the directions: [B, d] -> scalar, 0 at collapse and about 1 for directions spread over the sphere.

    The mean over the dimensions of the standard deviation over the batch of the l2-normalised rows, times sqrt(d). The
    deviation is the population's (divided by B); NaN if B = 0. Zero vectors are rows of zeros.

    Source: SimSiam (Chen and He, 2021), section 4.1, which compares the same deviation with 1 / sqrt(d).
    """
    with _no_autocast(features):
        unit = _unit(features.to(_dtype(features)))
        return (unit - unit.mean(dim=0)).square().mean(dim=0).sqrt().mean() * math.sqrt(features.shape[1])


@torch.no_grad()
def pair_cosines(a: Tensor, b: Tensor) -> dict[str, Tensor]:
    """Cosines of two views: [N, d] twice -> "positive", the mean of cos(a_i, b_i), and "negative", that of cos(a_i, b_j).

    "negative" is over i != j, and so NaN if N = 1.
    """
    with _no_autocast(a):
        dtype = _dtype(a, b)
        own = torch.eye(a.shape[0], dtype=torch.bool, device=a.device)
        cosines = _unit(a.to(dtype)) @ _unit(b.to(dtype)).T
        return {"positive": _mean(cosines, own), "negative": _mean(cosines, ~own)}


@torch.no_grad()
def class_cosines(features: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Cosines within and across classes: [B, d] and labels [B] -> "positive", "negative".

    The means over pairs of two examples of one class, and of different classes.
    """
    with _no_autocast(features):
        unit = _unit(features.to(_dtype(features)))
        cosines = unit @ unit.T
        same = labels[:, None] == labels[None, :]
        itself = torch.eye(features.shape[0], dtype=torch.bool, device=features.device)
        return {"positive": _mean(cosines, same & ~itself), "negative": _mean(cosines, ~same)}


@torch.no_grad()
def indexed_cosines(g: Tensor, positives: Tensor, negatives: Tensor, anchors: Tensor) -> dict[str, Tensor]:
    """Cosines of token_alignment's pairs: -> "positive", "negative", the means over the pairs that exist.

    g = h - e [B, L, d], positives [B, L], negatives [B, L, K, 2] (-1: none), anchors [B, L] booleans: only theirs count.
    Pairs with padding are the sampler's to leave out; there is no `real` here.
    """
    with _no_autocast(g):
        unit = _unit(g.to(_dtype(g)))
        sequences, positions, present = _pairs(positives, negatives)
        cosines = _pair_cosines(unit, unit, sequences, positions)
        present = present & anchors[:, :, None]
        return {
            "positive": _mean(cosines[:, :, 0], present[:, :, 0]),
            "negative": _mean(cosines[:, :, 1:], present[:, :, 1:]),
        }


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    """NaN over nothing. What is not counted is dropped, NaN included."""
    return values.masked_fill(~counted, 0.0).sum() / counted.sum()
