"""What is measured beside a loss. No function carries a gradient."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from harness.encoders.models.batch import Batch
from harness.objectives.losses import _dtype, _no_autocast, _unit


@torch.no_grad()
def embedding_std(features: Tensor) -> Tensor:
    """A measure of collapse, the spread of directions: [B, d] -> scalar, 0 at one point and about 1 for directions spread over the sphere.

    The mean over the dimensions of the standard deviation over the batch of the l2-normalised rows, times sqrt(d). The
    deviation is the population's (divided by B); NaN if B = 0. Zero vectors are rows of zeros.

    Source: SimSiam (Chen and He, 2021), section 4.1, which compares the same deviation with 1 / sqrt(d).
    """
    with _no_autocast(features):
        unit = _unit(features.to(_dtype(features)))
        return (unit - unit.mean(dim=0)).square().mean(dim=0).sqrt().mean() * math.sqrt(features.shape[1])


def accuracy(logits: Tensor, batch: Batch) -> Tensor:
    """The share of the predicted tokens [M, V] that are right."""
    right = (logits.detach().argmax(dim=1) == batch["targets"]).float()
    return right.mean() if batch.counted is None else (right * batch.counted).sum() / batch.counted.sum()
