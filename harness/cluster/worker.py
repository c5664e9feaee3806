"""A worker trains one stage after another in its own process; what it reads lies in the object store as tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayTaskError

from harness.bench.work import Item
from harness.encoders.tokens import Tokens, Vocabulary
from harness.errors import UserError
from harness.specs import Data, Execution, RowSet, Stage, Status, Workplace
from harness.store import Owner

if TYPE_CHECKING:
    from harness.running import Launch

WORKER_DEATHS = 3
"""A stage whose worker process died this often becomes a failed record."""

Tokenised = Callable[[RowSet, Data], tuple[Tokens, Any]]
"""(row set, how the stage reads it) -> its tokens and labels, as arrays; called once a row set and way of reading."""


def answer(reference: Any) -> Any:
    """`ray.get`, with a user's error said as it was said first and not wrapped in another process's trace."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        cause: Any = error
        while isinstance(cause, RayTaskError):
            cause = cause.cause
        if isinstance(cause, UserError):
            raise UserError(str(cause)) from None
        raise


def died(times: int, error: Exception) -> str:
    """Why a stage failed whose worker did not come back."""
    return f"its worker process died {times} times ({type(error).__name__})"


def slots_of(execution: Execution, workers: int = 1) -> int:
    """How many runs, of `workers` workers each, fit into the cluster at the same time, or fewer when asked. Raises UserError
    when not one fits."""
    there = ray.cluster_resources()
    cpus, gpus = execution.cpus_per_run * workers, execution.gpus_per_run * workers
    fit = int(there.get("CPU", 0) / cpus)
    if gpus > 0:
        fit = min(fit, int(there.get("GPU", 0) / gpus))
    if fit < 1:
        raise UserError(
            f"A run takes {cpus:g} CPUs and {gpus:g} GPUs, and this cluster has {there.get('CPU', 0):g} and "
            f"{there.get('GPU', 0):g}; lower --cpus-per-run, --gpus-per-run or --num-workers."
        )
    return max(1, min(fit, execution.slots // workers)) if execution.slots else fit


class Shelf:
    """Tokens of row sets in the object store, made once each when a stage first asks for them.

    A process that has no texts gets the `references` of one that has, and can make nothing itself.
    """

    def __init__(
        self, tokenised: Tokenised | None = None, references: Mapping[tuple[Any, ...], Any] = MappingProxyType({})
    ) -> None:
        self._tokenised = tokenised
        self.made: dict[tuple[Any, ...], Any] = dict(references)

    def references(self, stage: Stage) -> tuple[list[str], list[Any]]:
        """Digests of a stage's evaluation sets, and what it reads: its training rows, then those sets."""
        wanted = _wanted(stage)
        for rows, data in wanted:
            if _place(rows, data) not in self.made:
                assert self._tokenised is not None, f"{rows.name} was not put on the shelf"
                self.made[_place(rows, data)] = ray.put(self._tokenised(rows, data))
        return [rows.digest for rows, _ in wanted[1:]], [self.made[_place(*each)] for each in wanted]


def _wanted(stage: Stage) -> list[tuple[RowSet, Data]]:
    plain = replace(stage.data, views=1, blocks="text")
    evaluations = [*([stage.data.dev] if stage.data.dev else []), *stage.data.tests]
    return [(stage.data.train, stage.data), *((rows, plain) for rows in evaluations)]


def _place(rows: RowSet, data: Data) -> tuple[Any, ...]:
    return (rows.digest, data.max_length, data.views, data.blocks)


def train_item(
    item: Item,
    owner: Owner | None,
    ledger: Any,
    workplace: Workplace,
    vocabulary: Vocabulary,
    digests: list[str],
    sets: list[tuple[Tokens, Any]],
    launch: Launch | None = None,
) -> tuple[Status, str, bool]:
    """Train a stage and commit its record in the name of `owner`, the driver where it is None.

    `sets`: training rows, then one an evaluation digest. `launch`: what wraps the training function where it is not Ray
    Train's local mode. Returns status, reason, and whether the record is ours.
    """
    from harness.cluster import distributed
    from harness.running import run_stage
    from harness.training.loop import Inputs

    (train, labels), *evaluations = sets
    inputs = Inputs(train, labels, dict(zip(digests, evaluations, strict=True)), item.stage.data.views)
    record = run_stage(
        item.stage,
        inputs,
        vocabulary,
        item.metrics,
        workplace,
        keep_product=item.keep_product,
        launch=launch or distributed.launch,
    )
    if item.remake:  # its record stands, whatever became of the weights this time
        ray.get(ledger.release.remote(item.stage.key, owner))
        return record.status, record.reason, True
    return record.status, record.reason, bool(ray.get(ledger.commit.remote(item.stage, record, owner)))


def prepared(workplace: Workplace) -> Workplace:
    """Once a process: torch with its number of threads, on the device that Ray gave."""
    import torch

    torch.set_num_threads(workplace.threads)
    if workplace.device == "cpu" and torch.cuda.is_available() and ray.get_gpu_ids():
        return replace(workplace, device="cuda")
    return workplace


@ray.remote
class Worker:
    """Imports torch once, then trains one stage after another."""

    def __init__(self, workplace: Workplace, ledger: Any, name: str) -> None:
        self._workplace, self._ledger, self._name = prepared(workplace), ledger, name

    def __repr__(self) -> str:
        return self._name

    def run(
        self, item: Item, owner: Owner | None, vocabulary: Vocabulary, digests: list[str], *sets: tuple[Tokens, Any]
    ) -> tuple[Status, str, bool]:
        return train_item(item, owner, self._ledger, self._workplace, vocabulary, digests, list(sets))


def submit(worker: Any, item: Item, vocabulary: Vocabulary, shelf: Shelf, owner: Owner | None = None) -> Any:
    """A reference to what `Worker.run` will return; the dashboard shows the task under the item's name."""
    digests, references = shelf.references(item.stage)
    return worker.run.options(name=item.name).remote(item, owner, vocabulary, digests, *references)
