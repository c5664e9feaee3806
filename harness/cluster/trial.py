"""A trial as Ray Tune runs it: one hyperparameter point, one replicate per step, with the workers and the ledger of the bench."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import ray
from ray import tune

from harness.cluster.chain_runner import ChainRunner
from harness.cluster.worker import WORKER_LOST, TokenCache, WorkerResult, answer, submit
from harness.cluster.worker_group import start_worker
from harness.encoders.tokens import Vocabulary
from harness.errors import UserError, first_line
from harness.execution import Execution, WorkerSetup
from harness.search.points import Points
from harness.search.trials import Point, ReplicateOutcome
from harness.store import Owner
from harness.tables.work import Item


class Evaluator(Protocol):
    """Gives the outcomes of a point's replicates, one after another in the order of all trials."""

    replicates: int

    def begin(self, number: int, point: Point) -> None: ...
    def outcome(self, index: int) -> ReplicateOutcome: ...
    def close(self) -> None: ...


class HarnessTrial(tune.Trainable):
    """`step` runs the next replicate and reports the point's scores so far. An actor serves one trial after another with the same
    evaluator."""

    def setup(self, config: dict[str, Any], make_evaluator: Callable[[], Evaluator]) -> None:
        self._evaluator = make_evaluator()
        self._begin(config)

    def __repr__(self) -> str:
        return "harness-trial"

    def _begin(self, config: dict[str, Any]) -> None:
        self._outcomes: list[ReplicateOutcome] = []
        self._evaluator.begin(config["number"], config["point"])

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._begin(new_config)
        return True

    def step(self) -> dict[str, Any]:
        try:
            outcome = self._evaluator.outcome(len(self._outcomes))
        except Exception as error:  # a failed trial does not stop the study; a cluster that cannot run any trial does
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
            "done": done >= self._evaluator.replicates,
        }

    def cleanup(self) -> None:
        self._evaluator.close()


@dataclass(frozen=True)
class TrialContext:
    """What a trial's process needs to train. `made`: references to tokens, as of `TokenCache`."""

    points: Points
    setup: WorkerSetup
    vocabulary: Vocabulary
    made: dict[tuple[Any, ...], Any]
    ledger: Any
    driver: Owner
    execution: Execution
    retry: bool


class TrainingEvaluator:
    """The evaluator that trains: a point's replicates one after another, each a run along its chains."""

    def __init__(self, context: TrialContext) -> None:
        self._context = context
        self.replicates = len(context.points.replicates)
        self._worker = TrialWorker(context)
        self._chain_runner = ChainRunner(
            context.ledger, context.driver.here(), context.setup, self._worker.train, context.retry
        )

    def begin(self, number: int, point: Point) -> None:
        self._number = number
        self._runs = self._context.points.runs(point)

    def outcome(self, index: int) -> ReplicateOutcome:
        points, runs = self._context.points, self._runs[index]
        chains = [self._chain_runner.run(run, points.scored(run), f"trial {self._number}: {run.name}") for run in runs]
        return points.outcome(runs, chains)

    def close(self) -> None:
        self._worker.close()


class TrialWorker:
    """The worker of a trial, in the trial's placement group. A new one starts after its death."""

    def __init__(self, context: TrialContext) -> None:
        self._context = context
        self._token_cache = TokenCache(references=context.made)
        self._worker: Any = None

    def train(self, item: Item, owner: Owner) -> WorkerResult:
        context = self._context
        if self._worker is None:
            self._worker = start_worker(context.execution, context.setup, context.ledger, "harness-worker")
        try:
            result: WorkerResult = answer(submit(self._worker, item, context.vocabulary, self._token_cache, owner))
        except WORKER_LOST:
            self.close()
            raise
        return result

    def close(self) -> None:
        if self._worker is not None:
            ray.kill(self._worker)
            self._worker = None
