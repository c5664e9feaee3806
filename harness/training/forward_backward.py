"""Forward and backward of one batch: whole, or in parts, by the ranks of a worker group and in micro-batches.

Each part's terms weigh by what they are means over, so that the parts add up to the batch's own terms and gradient. Where
a contrast group reaches beyond a part, the part contrasts its rows with those of the others, which carry no gradient to
it: every part does so for its own, and the gradients add up to the whole one's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from harness.encoders.models.text_encoder import Batch
from harness.objectives.base import Gather, Measures, TrainingObjective, Views
from harness.streams import seed_of
from harness.training.batch_split import BatchSplit, split_batch
from harness.training.process_group import ProcessGroup


class _EnoughError(Exception):
    """Ends a forward pass that only asks what it would gather."""


class ForwardBackward:
    """Runs `objective` on batches; gradients are those of the whole batch on every worker. Dropout is drawn anew for each
    part, so that its draws, and they alone, depend on the split."""

    def __init__(
        self,
        objective: TrainingObjective,
        process_group: ProcessGroup,
        micro_batch: int,
        precision: str,
        device: torch.device,
        seed: int,
    ) -> None:
        self._objective, self._process_group, self._micro_batch = objective, process_group, micro_batch
        self._precision, self._device, self._seed = precision, device, seed
        self._model: Any = objective
        if process_group.size > 1:
            # An option may leave a head unused; the buffers are tables that all workers have.
            self._model = DistributedDataParallel(objective, find_unused_parameters=True, forward_sync_buffers=False)

    def run(self, views: Views, size: int, step: int, measured: list[Measures] | None) -> dict[str, Tensor]:
        """Backward of a batch of `size` rows. Returns this worker's summands of the loss and the terms, without gradient;
        what is logged beside them is appended to `measured` where it is given."""
        split = split_batch(size, self._objective.contrast_group, self._process_group.size, self._micro_batch)
        if split.count == 1:
            terms = self._forward(self._model, views, measured, seed_of(self._seed, "dropout", step))
            loss = self._objective.loss(terms)
            loss.backward()  # type: ignore[no-untyped-call]
            return {"loss": loss.detach(), **{name: term.detach() for name, term in terms.items()}}
        mine = split.parts[self._process_group.rank]
        found: list[dict[str, Tensor]] = []
        counts = self._objective.counts(views)
        gathers = self._gathers(views, size, step, split)
        for last, (rows, gather) in zip(_lasts(mine), gathers, strict=True):
            part = views.micro_batch(size, _some(rows, size), gather)
            terms = self._forward(self._model, part, measured, seed_of(self._seed, "dropout", step, rows.start))
            share = self._shares(part, counts, split, empty=rows.start == rows.stop)
            terms = {name: term * share[name] for name, term in terms.items()}
            loss = self._objective.loss(terms)
            with nullcontext() if last else self._unsynchronised():
                # DistributedDataParallel divides the sum over the workers by their number.
                (loss * self._process_group.size).backward()  # type: ignore[no-untyped-call]
            found.append({"loss": loss.detach(), **{name: term.detach() for name, term in terms.items()}})
        return {name: torch.stack([each[name] for each in found]).sum(dim=0) for name in found[0]}

    def _forward(
        self, model: Any, views: Views, measured: list[Measures] | None, dropout_seed: int
    ) -> dict[str, Tensor]:
        measures: Measures | None = None if measured is None else {}
        seed_dropout(dropout_seed, self._device)
        with autocast(self._device, self._precision):
            terms: dict[str, Tensor] = model(Batch.of(views.tokens, self._device, views.ids), views, measures)
        if measured is not None and measures:
            measured.append(measures)
        return terms

    def _unsynchronised(self) -> AbstractContextManager[Any]:
        return self._model.no_sync() if self._process_group.size > 1 else nullcontext()

    def _shares(self, part: Views, counts: dict[str, float], split: BatchSplit, *, empty: bool) -> dict[str, float]:
        """What a part's terms weigh, given the whole batch's `counts`. One that is contrasted beyond the part is the whole
        batch's in each part."""
        own = self._objective.counts(part)
        share = {name: 0.0 if empty or not count else own[name] / count for name, count in counts.items()}
        if not split.whole:
            share[self._objective.contrasted] = 1 / split.count
        return share

    def _gathers(self, views: Views, size: int, step: int, split: BatchSplit) -> Iterator[tuple[slice, Gather | None]]:
        """Each of this worker's parts with what gathers the others' rows for it."""
        mine = split.parts[self._process_group.rank]
        if split.whole:
            yield from ((rows, None) for rows in mine)
            return
        if all(len(parts) == 1 for parts in split.parts):

            def meet(rows: Tensor) -> Tensor:
                rows = rows[: 0 if mine[0].start == mine[0].stop else len(rows)]
                return _put(rows, *self._process_group.all_gather_rows(rows), split.count)

            yield mine[0], meet
            return
        # Several parts one after the other: all are run once without gradient for what they would gather, and again with
        # the same dropout.
        cached: list[Tensor] = []

        def look(rows: Tensor) -> Tensor:
            cached.append(rows)
            raise _EnoughError

        for rows in mine:
            part = views.micro_batch(size, _some(rows, size), look)
            with torch.no_grad(), suppress(_EnoughError):
                self._forward(self._objective, part, None, seed_of(self._seed, "dropout", step, rows.start))
            if rows.start == rows.stop:
                cached[-1] = cached[-1][:0]
        whole, at = self._process_group.all_gather_rows(torch.cat(cached))
        for rows, kept in zip(mine, cached, strict=True):

            def fill(again: Tensor, at: int = at, count: int = len(kept)) -> Tensor:
                return _put(again[:count], whole, at, split.count)

            yield rows, fill
            at += len(kept)


def _put(rows: Tensor, whole: Tensor, at: int, parts: int) -> Tensor:
    """`whole` with these rows, which carry a gradient, in their place. The term that comes of it weighs 1 / `parts` in each
    part: the gradient is to be the whole one's."""
    if rows.requires_grad:
        rows = rows.view_as(rows)
        rows.register_hook(lambda gradient: gradient * parts)  # type: ignore[no-untyped-call]
    return torch.cat([whole[:at], rows, whole[at + len(rows) :]])


def _some(rows: slice, size: int) -> slice:
    """A worker without rows runs the batch's last one, which then weighs nothing: the others wait for its gradient."""
    return rows if rows.start < rows.stop else slice(size - 1, size)


def _lasts(parts: Sequence[slice]) -> list[bool]:
    return [False] * (len(parts) - 1) + [True]


def seed_dropout(seed: int, device: torch.device) -> None:
    """As `torch.manual_seed`, of the generators that are used: it also makes a note of the stack for others, at each call."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    return torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bf16" else nullcontext()
