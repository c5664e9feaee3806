"""A trial as Ray Tune runs it: one hyperparameter point, one replicate a step, through the same workers and the same ledger
as the bench."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import ray
from ray import tune
from ray.exceptions import OutOfMemoryError, RayActorError

from harness.bench.work import Item
from harness.cluster.group import Group
from harness.cluster.walk import Walker
from harness.cluster.worker import Shelf, Worker, answer, submit
from harness.encoders.tokens import Vocabulary
from harness.errors import UserError, first_line
from harness.search.board import Outcome, Point
from harness.search.points import Points
from harness.specs import Execution, Run, Status, Workplace
from harness.store import Owner


class Judge(Protocol):
    """Gives the outcomes of a point's replicates, one after another in the order of all trials."""

    replicates: int

    def begin(self, number: int, point: Point) -> None: ...
    def outcome(self, index: int) -> Outcome: ...
    def close(self) -> None: ...


class HarnessTrial(tune.Trainable):
    """`step` runs the next replicate and reports what is known of the point so far; an actor serves one trial after
    another, and its judge stays."""

    def setup(self, config: dict[str, Any], make_judge: Callable[[], Judge]) -> None:
        self._judge = make_judge()
        self._begin(config)

    def __repr__(self) -> str:
        return "harness-trial"

    def _begin(self, config: dict[str, Any]) -> None:
        self._outcomes: list[Outcome] = []
        self._judge.begin(config["number"], config["point"])

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._begin(new_config)
        return True

    def step(self) -> dict[str, Any]:
        try:
            outcome = self._judge.outcome(len(self._outcomes))
        except Exception as error:  # one broken trial does not stop the study; a cluster that cannot run any does
            fatal = isinstance(error, UserError)
            reason = str(error) if fatal else f"{type(error).__name__}: {first_line(error)}"
            return {
                "error": reason,
                "fatal": fatal,
                "score": math.nan,
                "replicates_done": len(self._outcomes),
                "done": True,
            }
        self._outcomes.append(outcome)
        done = len(self._outcomes)
        first = [each.values[0] for each in self._outcomes]
        return {
            "score": sum(first) / done,
            "replicates_done": done,
            "outcome": json.dumps(asdict(outcome)),
            "done": done >= self._judge.replicates,
        }

    def cleanup(self) -> None:
        self._judge.close()


@dataclass(frozen=True)
class Means:
    """What a trial's process needs to train: places, tokens, the ledger, and how much of the cluster it has."""

    points: Points
    workplace: Workplace
    vocabulary: Vocabulary
    made: dict[tuple[Any, ...], Any]
    ledger: Any
    driver: Owner
    execution: Execution
    num_workers: int
    retry: bool
    label: str


class Replicates:
    """The judge that trains: `num_workers` replicates of a point side by side, each a walk along its chains."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self.replicates = len(means.points.replicates)
        hand = Group(means) if means.num_workers > 1 else OneWorker(means)
        self._hand = hand
        self._walker = Walker(means.ledger, means.driver.here(), means.workplace, hand.train, means.retry)
        self._threads = ThreadPoolExecutor(means.num_workers)
        self._futures: list[Future[Outcome]] = []

    def begin(self, number: int, point: Point) -> None:
        for future in self._futures:  # of a trial that was dropped: what runs ends, and is recorded
            future.cancel()
        self._futures = []
        self._number = number
        self._runs = self._means.points.runs(point)

    def outcome(self, index: int) -> Outcome:
        ahead = min(index + self._means.num_workers, self.replicates)
        for runs in self._runs[len(self._futures) : ahead]:
            self._futures.append(self._threads.submit(self._replicate, self._number, runs))
        return self._futures[index].result()

    def _replicate(self, number: int, runs: Sequence[Run]) -> Outcome:
        points = self._means.points
        chains = [self._walker.walk(run, points.scored(run), f"trial {number}: {run.name}") for run in runs]
        return points.outcome(runs, chains)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._hand.close()


class OneWorker:
    """A worker process in the trial's own placement group; a new one takes its place when it dies."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._shelf = Shelf(references=means.made)
        self._worker: Any = None

    def train(self, item: Item, owner: Owner) -> tuple[Status, str, bool]:
        if self._worker is None:
            execution = self._means.execution
            worker: Any = Worker
            self._worker = worker.options(num_cpus=execution.cpus_per_run, num_gpus=execution.gpus_per_run).remote(
                self._means.workplace, self._means.ledger, "harness-worker"
            )
        try:
            result: tuple[Status, str, bool] = answer(
                submit(self._worker, item, self._means.vocabulary, self._shelf, owner)
            )
        except (RayActorError, OutOfMemoryError):
            self._worker = None
            raise
        return result

    def close(self) -> None:
        if self._worker is not None:
            ray.kill(self._worker)
            self._worker = None
