"""How a batch is split: over ranks, and into the micro-batches of each, with contrast groups whole where they fit.

Numbers only, no torch. The batch size is always the global one, so no split changes what is trained.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchSplit:
    """`shards`: by rank, its micro-batches as slices of rows, in order. A rank without rows has one empty micro-batch.

    `whole_groups`: no contrast group is cut, so each micro-batch can be contrasted by itself.
    """

    shards: tuple[tuple[slice, ...], ...]
    whole_groups: bool

    @property
    def num_micro_batches(self) -> int:
        return sum(len(shard) for shard in self.shards)


def split_batch(size: int, group: int, workers: int = 1, micro_batch: int = 0) -> BatchSplit:
    """Split `size` rows whose contrast groups are `group` consecutive rows (0 or 1: rows are independent).

    Ranks get whole groups where there are enough of them, else an even share of the rows. A micro-batch has at most
    `micro_batch` rows (0: the whole shard), and whole groups where one fits.
    """
    unit = group if group > 1 and -(-size // group) >= workers else 1
    units = -(-size // unit)
    shards = []
    for rank in range(workers):
        start, stop = (min(each * units // workers * unit, size) for each in (rank, rank + 1))
        step = stop - start
        if 0 < micro_batch < step:
            step = micro_batch // unit * unit or micro_batch
        shards.append(
            tuple(slice(at, min(at + step, stop)) for at in range(start, stop, max(step, 1))) or (slice(start, start),)
        )
    edges = {edge for shard in shards for rows in shard for edge in (rows.start, rows.stop)}
    return BatchSplit(tuple(shards), group <= 1 or all(edge % group == 0 or edge == size for edge in edges))
