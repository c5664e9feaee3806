"""Relative positions as T5 has them (Raffel et al. 2020, section 2.1): every distance falls into a bucket, every bucket
adds a score per head. COCO-LM (section 4) adds them to a BERT, whose absolute positions stay (docs/papers.md L11)."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.encoders.models.batch import Batch


@lru_cache(maxsize=1024)
def buckets_of(width: int, buckets: int, max_distance: int) -> NDArray[np.int64]:
    """The bucket of every distance key - query from -(width - 1) to width - 1, [2 * width - 1]. Half of the buckets are
    for keys to the right. Of each half the first half holds one distance each, the others grow in geometric steps up to
    `max_distance`, and the last takes whatever is farther."""
    # On the host, in double precision: no device may round a distance at the edge of a bucket to another side.
    half = buckets // 2
    exact = half // 2
    distance = np.arange(-(width - 1), width)
    far = np.maximum(np.abs(distance), exact) / exact
    grown = exact + (np.log(far) / math.log(max_distance / exact) * (half - exact)).astype(np.int64)
    within = np.where(np.abs(distance) < exact, np.abs(distance), np.minimum(grown, half - 1))
    found: NDArray[np.int64] = within + half * (distance > 0)
    return found


class RelativePositions(nn.Module):
    """A table [buckets, heads], zero at first, shared by all layers of one encoder. `max_distance` is a tensor [1], so
    that a weights file holds all that is needed to make the module again."""

    max_distance: Tensor

    def __init__(self, heads: int, buckets: int = 32, max_distance: int = 128) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(buckets, heads))
        self.register_buffer("max_distance", torch.tensor([max_distance]))
        self.distance = max_distance  # a number as well: reading a tensor would wait for the device at every step

    @classmethod
    def like(cls, tensors: dict[str, Tensor]) -> RelativePositions:
        """A module for the tensors `table` and `max_distance` of a weights file, with their values."""
        buckets, heads = tensors["table"].shape
        made = cls(heads, buckets, int(tensors["max_distance"]))
        made.load_state_dict(tensors)
        return made

    @property
    def shape(self) -> tuple[int, int]:
        """(buckets, max_distance)."""
        return self.table.shape[0], self.distance

    def forward(self, batch: Batch) -> Batch:
        """The batch with its scores: once a forward pass, for all layers."""
        width = batch.shape[1]
        by_distance = torch.from_numpy(buckets_of(width, *self.shape)).to(self.table.device)
        place = torch.arange(width, device=self.table.device)
        buckets = by_distance[place[None, :] - place[:, None] + width - 1]
        scores = nn.functional.embedding(buckets, self.table)  # [L, L, H]
        return batch.with_bias(scores.permute(2, 0, 1)[None].contiguous())
