"""How a batch is divided: among workers, and among the micro-batches of each, with contrast groups whole where they fit.

Numbers only, no torch. The batch size is always the global one, so that no division changes what is trained.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchSplit:
    """Rows of a batch by worker and micro-batch, in order; a worker without rows has one empty micro-batch.

    `whole`: no contrast group is cut, so that each micro-batch can be contrasted by itself.
    """

    parts: tuple[tuple[slice, ...], ...]
    whole: bool

    @property
    def count(self) -> int:
        return sum(len(each) for each in self.parts)


def split_batch(size: int, group: int, workers: int = 1, micro_batch: int = 0) -> BatchSplit:
    """Divide `size` rows whose contrast groups are `group` consecutive rows (0 or 1: rows have nothing to do with each
    other). Groups go whole to workers where there are enough of them, else rows are shared out evenly; a micro-batch has
    at most `micro_batch` rows (0: all of a worker's), and whole groups where one fits."""
    unit = group if group > 1 and -(-size // group) >= workers else 1
    units = -(-size // unit)
    parts = []
    for worker in range(workers):
        start, stop = (min(each * units // workers * unit, size) for each in (worker, worker + 1))
        step = stop - start
        if 0 < micro_batch < step:
            step = micro_batch // unit * unit or micro_batch
        parts.append(
            tuple(slice(at, min(at + step, stop)) for at in range(start, stop, max(step, 1))) or (slice(start, start),)
        )
    edges = {edge for each in parts for part in each for edge in (part.start, part.stop)}
    return BatchSplit(tuple(parts), group <= 1 or all(edge % group == 0 or edge == size for edge in edges))
