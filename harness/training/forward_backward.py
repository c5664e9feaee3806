"""Forward and backward pass of one batch: whole, or split over the ranks of a process group and into micro-batches.

Each micro-batch weighs its terms by the number of things that they are means over, so the sum over all micro-batches is
the batch's own terms and gradient. Where the split cuts contrast groups, each micro-batch contrasts its rows with all rows
of the batch; only its own rows carry a gradient. Every micro-batch does so, and the gradients add up to the batch's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from types import MethodType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel

from harness.encoders.models.batch import Batch, Gather
from harness.errors import DivergedError, first_line
from harness.objectives.base import TrainingObjective
from harness.specs import Optim
from harness.streams import seed_of
from harness.training.process_group import SINGLE_PROCESS, ProcessGroup

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The type of products by precision."""
LEAST_SCALE = 1.0
"""Below it gradients overflow without being scaled, and no update can be expected any more."""


def loss_scale(scaler: GradScaler, optimizer: torch.optim.Optimizer, step: int, steps: int) -> dict[str, float]:
    """Measures of a stage of `steps` updates after `step` of them: the scale, and how many updates were skipped since its start.
    None in another precision than fp16.

    Raises DivergedError where the scale is below LEAST_SCALE, and where all updates of the stage were skipped.
    """
    if not scaler.is_enabled():
        return {}
    # AdamW counts the updates that it makes, for its bias correction. A checkpoint holds that count already.
    made = torch.stack([state["step"] for state in optimizer.state.values()]).max()
    scale, skipped = scaler.get_scale(), step - int(made)
    if scale < LEAST_SCALE or skipped == steps:
        raise DivergedError(
            f"the gradients overflow fp16: {skipped} of {step} updates were skipped, down to a loss scale of {scale:.15g}; "
            "train in bf16 or fp32"
        )
    return {"loss_scale": scale, "skipped_updates": float(skipped)}


def use_repeatable_kernels(device: torch.device) -> None:
    """Let torch use only kernels that give the same bits each time, where `device` is a CUDA device.

    Without this the backward pass of attention and sums at repeated indices add in no fixed order. An operation without such a
    kernel raises RuntimeError. cuDNN's attention, which torch prefers in half precision, is left out: it plans anew for each shape of
    a batch, and here nearly every batch has another one (docs/gpu.md).
    """
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it torch refuses the products of cuBLAS
    torch.use_deterministic_algorithms(True)
    memory: Any = torch.utils.deterministic
    memory.fill_uninitialized_memory = False  # a kernel for each new tensor, for nothing
    torch.backends.cuda.enable_cudnn_sdp(False)


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """It as kernels that torch makes for each form of what it is given. They are the same in every process: no size is left open, and no timing
    chooses those that would add in another order. Dropout follows from the seed of the device's generator."""
    settings: Any = {"fullgraph": True, "dynamic": False, "recompile_limit": 64, "options": {"deterministic": True}}
    return torch.compile(function, **settings)


@contextmanager
def compiled_layers(objective: TrainingObjective) -> Iterator[None]:
    """In which the encoder's layers, but for the last one, which computes some rows only, and the MLM loss are compiled."""
    with ExitStack() as replaced:
        for layer in objective.encoder.base.get_submodule(objective.encoder.family.layers)[:-1]:
            forward = MethodType(compiled(type(layer).forward), layer)
            replaced.enter_context(patch.object(layer, "forward", forward))
        replaced.enter_context(patch.object(objective, "masked_lm", compiled(objective.masked_lm)))
        yield


CPU = torch.device("cpu")


class _GatheredError(Exception):
    """Ends a forward pass that runs only for the rows that it would gather."""


@dataclass(frozen=True)
class Placement:
    """How a stage is trained. At most `micro_batch` sequences of a batch go through the encoder at once (0: a rank's whole
    share). `recorder`: makes what captures updates in place of CUDA's graphs."""

    device: torch.device = CPU
    process_group: ProcessGroup = SINGLE_PROCESS
    micro_batch: int = 0
    recorder: Callable[[], Any] | None = None

    @property
    def repeats(self) -> bool:
        """Whether something records updates and repeats them."""
        return self.recorder is not None or self.device.type == "cuda"


ON_CPU = Placement()


@dataclass(eq=False)
class ForwardBackward:
    """Runs `objective` on batches. Every rank ends with the gradient of the whole batch, times the scale of `scaler`. Each
    micro-batch draws its own dropout, so only the dropout depends on the split. `block`: batches are blocks, as a GPU takes them, but for
    the library's own layers (of other families), which may see how far a batch is padded. `compiles`: full blocks go through compiled layers;
    `has_compiled`: some did."""

    objective: TrainingObjective
    optim: Optim
    seed: int
    placement: Placement = ON_CPU

    def __post_init__(self) -> None:
        self.block = self.placement.repeats and self.objective.encoder.family.packed
        self.compiles, self.has_compiled = self.block and self.placement.process_group.size == 1, False
        # For fp16, whose smallest gradients would be 0: from 2^16 on, doubled after 2,000 updates in a row and halved where a gradient is not
        # finite; such an update is skipped. In another precision it changes nothing, and has no state.
        self.scaler = GradScaler(self.placement.device.type, enabled=self.optim.precision == "fp16")
        self._model: Any = self.objective
        if self.placement.process_group.size > 1:
            # An option may leave a head unused; the buffers are tables that all ranks have.
            self._model = DistributedDataParallel(
                self.objective, find_unused_parameters=True, forward_sync_buffers=False
            )

    def run(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Backward pass of a batch on the host. Returns this rank's summands of the loss and the terms, without gradient."""
        group, objective = self.placement.process_group, self.objective
        micro_batch = self.placement.micro_batch
        shards, whole_groups = split_batch(batch.size, objective.contrast_group, group.size, micro_batch)
        shard, total = shards[group.rank], sum(map(len, shards))
        if total == 1:
            terms = self._forward(self._model, batch, step)
            return self._backward(terms, 1)
        summands: list[dict[str, Tensor]] = []
        counts = objective.counts(batch)
        gathers = [None] * len(shard) if whole_groups else self._gathers(batch, step, shards)
        for rows, gather in zip(shard, gathers, strict=True):
            part = _part(batch, rows, gather)
            own, empty = objective.counts(part), rows.start == rows.stop
            weights = {name: 0.0 if empty or not count else own[name] / count for name, count in counts.items()}
            if not whole_groups:  # the contrasted term is the whole batch's in each micro-batch
                weights[objective.contrasted] = 1 / total
            terms = self._forward(self._model, part, step, rows.start)
            terms = {name: term * weights[name] for name, term in terms.items()}
            with nullcontext() if group.size == 1 or rows == shard[-1] else self._model.no_sync():
                # DistributedDataParallel divides the sum over the ranks by their number.
                summands.append(self._backward(terms, group.size))
        return {name: torch.stack([each[name] for each in summands]).sum(dim=0) for name in summands[0]}

    def _forward(self, model: Any, batch: Batch, step: int, *start: int) -> dict[str, Tensor]:
        device, moved = self.placement.device, batch.on(self.placement.device, block=self.block)
        # Not where a pass without gradient, which is compiled for itself, must draw the same dropout.
        full = self.compiles and moved.width > 0 and moved.mask is None and not moved.whole
        seed_dropout(seed_of(self.seed, "dropout", step, *start), device)
        try:
            with compiled_layers(self.objective) if full else nullcontext(), autocast(device, self.optim.precision):
                terms: dict[str, Tensor] = model(moved)
            self.has_compiled |= full
            return terms
        except Exception as error:
            if not full:
                raise
            self.compiles = False  # no Triton, no compiler, or what these cannot do
            reason = first_line(getattr(error, "inner_exception", error))
            logging.getLogger(__name__).warning("blocks of %d x %d tokens are not compiled: %s", *moved.shape, reason)
        return self._forward(model, batch, step, *start)  # without the error, which holds the tensors of its frames

    def _backward(self, terms: dict[str, Tensor], factor: int) -> dict[str, Tensor]:
        loss = self.objective.loss(terms)
        self.scaler.scale(loss * factor if factor > 1 else loss).backward()  # type: ignore[no-untyped-call]
        return {"loss": loss.detach(), **{name: term.detach() for name, term in terms.items()}}

    def _gathers(self, batch: Batch, step: int, shards: list[list[slice]]) -> Sequence[Gather | None]:
        """For each micro-batch of this rank the function that gathers the rows of the others."""
        group, total = self.placement.process_group, sum(map(len, shards))
        shard = shards[group.rank]
        if total == len(shards):

            def all_gather(rows: Tensor) -> Tensor:
                rows = rows[: 0 if shard[0].start == shard[0].stop else len(rows)]
                return _with_gradient(rows, *group.all_gather_rows(rows), total)

            return [all_gather]
        # Several micro-batches one after another: all run once without gradient for the rows that they would gather, and
        # again with the same dropout.
        cached: list[Tensor] = []

        def keep(rows: Tensor) -> Tensor:
            cached.append(rows)
            raise _GatheredError

        for rows in shard:
            with torch.no_grad(), suppress(_GatheredError):
                self._forward(self.objective, _part(batch, rows, keep), step, rows.start)
            if rows.start == rows.stop:
                cached[-1] = cached[-1][:0]
        whole, at = group.all_gather_rows(torch.cat(cached))

        def replace_own(at: int, count: int) -> Gather:
            return lambda again: _with_gradient(again[:count], whole, at, total)

        starts = accumulate(map(len, cached), initial=at)
        return [replace_own(start, len(kept)) for start, kept in zip(starts, cached, strict=False)]


def _part(batch: Batch, rows: slice, gather: Gather | None) -> Batch:
    """A micro-batch. A rank without rows runs the batch's last one with weight zero, because the others wait for its gradient."""
    return batch.micro_batch(rows if rows.start < rows.stop else slice(batch.size - 1, batch.size), gather)


def _with_gradient(rows: Tensor, whole: Tensor, at: int, num_micro_batches: int) -> Tensor:
    """`whole` with these rows, which carry a gradient, from `at` on. The contrasted term weighs 1 / `num_micro_batches` in
    each micro-batch; the hook makes the gradient the whole term's."""
    if rows.requires_grad:
        rows = rows.view_as(rows)
        rows.register_hook(lambda gradient: gradient * num_micro_batches)  # type: ignore[no-untyped-call]
    return torch.cat([whole[:at], rows, whole[at + len(rows) :]])


def seed_dropout(seed: int, device: torch.device) -> None:
    """Seed the generators that dropout draws from. `torch.manual_seed` would also queue a call for every other
    device, with a formatted stack, each time."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    return nullcontext() if precision == "fp32" else torch.autocast(device.type, dtype=DTYPES[precision])


def split_batch(size: int, group: int, workers: int = 1, micro_batch: int = 0) -> tuple[list[list[slice]], bool]:
    """Split `size` rows of a global batch whose contrast groups are `group` consecutive rows (0 or 1: rows are independent): the micro-batches of each
    rank in order, of which a rank without rows has an empty one; and whether no group is cut, so that each can be contrasted by itself.

    Ranks get whole groups where there are enough of them, else an even share of the rows. A micro-batch has at most
    `micro_batch` rows (0: the whole shard), and whole groups where one fits.
    """
    unit = group if group > 1 and -(-size // group) >= workers else 1
    units = -(-size // unit)
    shards: list[list[slice]] = []
    for rank in range(workers):
        start, stop = (min(each * units // workers * unit, size) for each in (rank, rank + 1))
        step = stop - start
        if 0 < micro_batch < step:
            step = micro_batch // unit * unit or micro_batch
        parts = [slice(at, min(at + step, stop)) for at in range(start, stop, max(step, 1))]
        shards.append(parts or [slice(start, start)])
    edges = {edge for shard in shards for rows in shard for edge in (rows.start, rows.stop)}
    return shards, group <= 1 or all(edge % group == 0 or edge == size for edge in edges)
