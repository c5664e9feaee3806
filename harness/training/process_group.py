"""The process group of the ranks that train one stage together: torch.distributed and no Ray, which starts the
processes (cluster/). All ranks make the same calls in the same order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, distributed


@dataclass(frozen=True)
class ProcessGroup:
    """This process's `rank` among `size` ranks."""

    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> Self:
        """The default process group; a single process if there is none."""
        if distributed.is_available() and distributed.is_initialized():
            return cls(distributed.get_rank(), distributed.get_world_size())
        return cls()

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, bit-identical on each."""
        if self.size > 1:
            distributed.all_reduce(tensor)
        return tensor

    def all_gather_object(self, value: Any) -> list[Any]:
        """A small value of each rank, by rank."""
        values = [value] * self.size
        if self.size > 1:
            distributed.all_gather_object(values, value)
        return values

    def all_gather_rows(self, rows: Tensor) -> tuple[Tensor, int]:
        """The rows [n, ...] of all ranks, whose n may differ, concatenated [N, ...]; and the index of this rank's first row. No
        gradient."""
        rows = rows.detach()
        if self.size == 1:
            return rows, 0
        own = torch.tensor(len(rows), device=rows.device)
        sizes = [torch.empty_like(own) for _ in range(self.size)]
        distributed.all_gather(sizes, own)  # as a tensor: this runs at every step
        counts = torch.stack(sizes).tolist()
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        found = [torch.empty_like(padded) for _ in counts]
        distributed.all_gather(found, padded)
        return torch.cat([each[:n] for each, n in zip(found, counts, strict=True)]), sum(counts[: self.rank])


SINGLE_PROCESS = ProcessGroup()
