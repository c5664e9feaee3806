"""Forward and backward pass of one batch: whole, or split over the ranks of a process group and into micro-batches.

Each micro-batch weighs its terms by the number of things that they are means over, so the sum over all micro-batches is
the batch's own terms and gradient. Where the split cuts contrast groups, each micro-batch contrasts its rows with all rows
of the batch; only its own rows carry a gradient. Every micro-batch does so, and the gradients add up to the batch's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from harness.encoders.models.batch import Batch, Gather
from harness.objectives.base import TrainingObjective, Views
from harness.streams import seed_of
from harness.training.numerics import DTYPES, grad_scaler
from harness.training.process_group import ProcessGroup


class _GatheredError(Exception):
    """Ends a forward pass that runs only for the rows that it would gather."""


class ForwardBackward:
    """Runs `objective` on batches. Every rank ends with the gradient of the whole batch, times the scale of `scaler`. Each
    micro-batch draws its own dropout, so only the dropout depends on the split."""

    def __init__(
        self,
        objective: TrainingObjective,
        process_group: ProcessGroup,
        micro_batch: int,
        precision: str,
        device: torch.device,
        seed: int,
        *,
        block: bool = False,
    ) -> None:
        self._objective, self._process_group, self._micro_batch = objective, process_group, micro_batch
        self._precision, self._device, self._seed, self._block = precision, device, seed, block
        self.scaler = grad_scaler(device, precision)
        self._model: Any = objective
        if process_group.size > 1:
            # An option may leave a head unused; the buffers are tables that all ranks have.
            self._model = DistributedDataParallel(objective, find_unused_parameters=True, forward_sync_buffers=False)

    def run(self, views: Views, step: int, host: Batch | None = None) -> dict[str, Tensor]:
        """Backward pass of a batch, which `host` is where it is made already. Returns this rank's summands of the loss and the terms, without
        gradient."""
        split = split_batch(views.size, self._objective.contrast_group, self._process_group.size, self._micro_batch)
        if split.num_micro_batches == 1:
            terms = self._forward(self._model, views, seed_of(self._seed, "dropout", step), host)
            loss = self._objective.loss(terms)
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            return {"loss": loss.detach(), **{name: term.detach() for name, term in terms.items()}}
        shard = split.shards[self._process_group.rank]
        summands: list[dict[str, Tensor]] = []
        counts = self._objective.counts(views)
        for rows, gather in self._micro_batches(views, step, split):
            micro_batch = views.micro_batch(_at_least_one(rows, views.size), gather)
            terms = self._forward(self._model, micro_batch, seed_of(self._seed, "dropout", step, rows.start))
            weights = self._weights(micro_batch, counts, split, empty=rows.start == rows.stop)
            terms = {name: term * weights[name] for name, term in terms.items()}
            loss = self._objective.loss(terms)
            with nullcontext() if rows == shard[-1] else self._no_sync():
                # DistributedDataParallel divides the sum over the ranks by their number.
                self.scaler.scale(loss * self._process_group.size).backward()  # type: ignore[no-untyped-call]
            summands.append({"loss": loss.detach(), **{name: term.detach() for name, term in terms.items()}})
        return {name: torch.stack([each[name] for each in summands]).sum(dim=0) for name in summands[0]}

    def _forward(self, model: Any, views: Views, dropout_seed: int, host: Batch | None = None) -> dict[str, Tensor]:
        seed_dropout(dropout_seed, self._device)
        with autocast(self._device, self._precision):
            terms: dict[str, Tensor] = model((host or views.batch(block=self._block)).to(self._device))
        return terms

    def _no_sync(self) -> AbstractContextManager[Any]:
        return self._model.no_sync() if self._process_group.size > 1 else nullcontext()

    def _weights(
        self, micro_batch: Views, counts: dict[str, float], split: BatchSplit, *, empty: bool
    ) -> dict[str, float]:
        """The weight of each term of a micro-batch, given the whole batch's `counts`. Where the split cuts contrast groups, the
        contrasted term is the whole batch's in each micro-batch."""
        own = self._objective.counts(micro_batch)
        weights = {name: 0.0 if empty or not count else own[name] / count for name, count in counts.items()}
        if not split.whole_groups:
            weights[self._objective.contrasted] = 1 / split.num_micro_batches
        return weights

    def _micro_batches(self, views: Views, step: int, split: BatchSplit) -> Iterator[tuple[slice, Gather | None]]:
        """Each micro-batch of this rank, with the function that gathers the rows of the others for it."""
        shard, total = split.shards[self._process_group.rank], split.num_micro_batches
        if split.whole_groups:
            yield from ((rows, None) for rows in shard)
            return
        if all(len(each) == 1 for each in split.shards):

            def all_gather(rows: Tensor) -> Tensor:
                rows = rows[: 0 if shard[0].start == shard[0].stop else len(rows)]
                return _with_gradient(rows, *self._process_group.all_gather_rows(rows), total)

            yield shard[0], all_gather
            return
        # Several micro-batches one after another: all run once without gradient for the rows that they would gather, and
        # again with the same dropout.
        cached: list[Tensor] = []

        def keep(rows: Tensor) -> Tensor:
            cached.append(rows)
            raise _GatheredError

        for rows in shard:
            micro_batch = views.micro_batch(_at_least_one(rows, views.size), keep)
            with torch.no_grad(), suppress(_GatheredError):
                self._forward(self._objective, micro_batch, seed_of(self._seed, "dropout", step, rows.start))
            if rows.start == rows.stop:
                cached[-1] = cached[-1][:0]
        whole, at = self._process_group.all_gather_rows(torch.cat(cached))
        for rows, kept in zip(shard, cached, strict=True):

            def replace_own(again: Tensor, at: int = at, count: int = len(kept)) -> Tensor:
                return _with_gradient(again[:count], whole, at, total)

            yield rows, replace_own
            at += len(kept)


def _with_gradient(rows: Tensor, whole: Tensor, at: int, num_micro_batches: int) -> Tensor:
    """`whole` with these rows, which carry a gradient, from `at` on. The contrasted term weighs 1 / `num_micro_batches` in
    each micro-batch; the hook makes the gradient the whole term's."""
    if rows.requires_grad:
        rows = rows.view_as(rows)
        rows.register_hook(lambda gradient: gradient * num_micro_batches)  # type: ignore[no-untyped-call]
    return torch.cat([whole[:at], rows, whole[at + len(rows) :]])


def _at_least_one(rows: slice, size: int) -> slice:
    """A rank without rows runs the batch's last one with weight zero, because the others wait for its gradient."""
    return rows if rows.start < rows.stop else slice(size - 1, size)


def seed_dropout(seed: int, device: torch.device) -> None:
    """Seed the generators that dropout draws from. `torch.manual_seed` would also queue a call for every other
    device, with a formatted stack, each time."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    return nullcontext() if precision == "fp32" else torch.autocast(device.type, dtype=DTYPES[precision])


@dataclass(frozen=True)
class BatchSplit:
    """Of a global batch, so no split changes what is trained. `shards`: by rank, its micro-batches as slices of rows, in order. A rank without
    rows has one empty micro-batch.

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
