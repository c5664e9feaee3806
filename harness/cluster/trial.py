"""A trial as Ray Tune runs it: one hyperparameter point, one replicate a step, through the same workers and the same ledger
as the bench."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import ray
from ray import tune

from harness.bench.work import Item
from harness.cluster.group import hired
from harness.cluster.walk import Walker
from harness.cluster.worker import GONE, Shelf, answer, submit
from harness.encoders.tokens import Vocabulary
from harness.errors import UserError, first_line
from harness.search.points import Points
from harness.search.trials import Point, ReplicateOutcome
from harness.specs import Execution, Status, Workplace
from harness.store import Owner


class Judge(Protocol):
    """Gives the outcomes of a point's replicates, one after another in the order of all trials."""

    replicates: int

    def begin(self, number: int, point: Point) -> None: ...
    def outcome(self, index: int) -> ReplicateOutcome: ...
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
        self._outcomes: list[ReplicateOutcome] = []
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
    retry: bool


class Replicates:
    """The judge that trains: a point's replicates one after another, each a walk along its chains."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self.replicates = len(means.points.replicates)
        self._hand = Hand(means)
        self._walker = Walker(means.ledger, means.driver.here(), means.workplace, self._hand.train, means.retry)

    def begin(self, number: int, point: Point) -> None:
        self._number = number
        self._runs = self._means.points.runs(point)

    def outcome(self, index: int) -> ReplicateOutcome:
        points, runs = self._means.points, self._runs[index]
        chains = [self._walker.walk(run, points.scored(run), f"trial {self._number}: {run.name}") for run in runs]
        return points.outcome(runs, chains)

    def close(self) -> None:
        self._hand.close()


class Hand:
    """What trains for a trial, in the trial's own placement group; another takes its place when it dies."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._shelf = Shelf(references=means.made)
        self._worker: Any = None

    def train(self, item: Item, owner: Owner) -> tuple[Status, str, bool]:
        means = self._means
        if self._worker is None:
            self._worker = hired(means.execution, means.workplace, means.ledger, "harness-worker")
        try:
            result: tuple[Status, str, bool] = answer(submit(self._worker, item, means.vocabulary, self._shelf, owner))
        except GONE:
            self.close()
            raise
        return result

    def close(self) -> None:
        if self._worker is not None:
            ray.kill(self._worker)
            self._worker = None
