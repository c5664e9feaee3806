"""What a study proposes and when it stops a trial: Ray's OptunaSearch and schedulers, and the study's history."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule, TrialScheduler
from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch
from ray.tune.stopper import NoopStopper, Stopper

from harness import private
from harness.errors import UserError
from harness.search.points import Points
from harness.search.racing import failed_replicate, paired, projected
from harness.search.study import DIED, Entry, History, sampler_of
from harness.search.trials import ReplicateOutcome, Trial, best_trial

REPEATS = 100
"""The space counts as exhausted after this many proposals in a row that were tried before."""
GRACE = 2
"""Replicates that ASHA and median stopping grant each point."""
FACTOR = 2
"""ASHA: the better half continues at each rung."""

T = TypeVar("T")
Watch = Callable[[str, Trial], None]
"""Told 'started', 'replicate' and 'ended' with the trial as it is then."""


def search_of(points: Points, seed: int) -> OptunaSearch:
    """Optuna with its study in memory and the default point enqueued, or every point of a grid."""
    space = points.space
    return OptunaSearch(
        space=space.define,
        metric="value",
        mode="max",
        points_to_evaluate=[dict(p) for p in (space.grid_points() if space.sampler == "grid" else (space.defaults,))],
        sampler=sampler_of(space, seed),
    )


class Proposals(Searcher):
    """Gives Tune one point after another: first those that an interrupted command left unfinished, then new ones, up to `limit`
    distinct ones in total. A point that is the same computation as an earlier one is not run. `retry`: diverged replicates of
    ended trials are run again too. `proposes`: False where the study is only read, and its sampler need not be as it was."""

    def __init__(
        self,
        points: Points,
        history: History,
        search: OptunaSearch,
        limit: int,
        watch: Watch,
        retry: bool = False,
        *,
        proposes: bool = True,
    ) -> None:
        super().__init__()
        self.points, self.history = points, history
        self._search, self._watch = search, watch
        self._limit = int(min(limit, points.space.num_points))
        self.fatal: Exception | None = None
        self.over = False
        self.reasons: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._followers: dict[int, list[int]] = {}
        self._known: dict[tuple[str, ...], int] = {}
        self._waiting: deque[int] = deque()
        if proposes:
            self._rehearse(retry)

    def __reduce__(self) -> tuple[Any, ...]:
        """Tune pickles its searcher into a folder that is never read: a study resumes from its history."""
        return (Searcher, ())

    # ------------------------------------------------------------------------------------------------- resuming

    def _rehearse(self, retry: bool) -> None:
        """Bring the sampler to the state of the last command: the same asks and tells in the same order."""
        entries = self.history.entries
        tells = deque(sorted((e for e in entries.values() if e.ended), key=lambda e: e.order))
        for number, entry in sorted(entries.items()):
            while tells and tells[0].after <= number:
                self._tell(tells[0].trial.number, tells.popleft().told)
            point = self._search.suggest(str(number))
            if point != dict(entry.trial.point):
                raise UserError(
                    f"The study {self.history.name} was begun by other versions of Optuna or of this harness: proposal "
                    f"{number} would be {point} now. Take another --seed to begin a new study; recorded runs are used again."
                )
            if entry.same_as is None:
                self._remember(entry)
            elif not entry.ended:
                self._followers.setdefault(entry.same_as, []).append(number)
        while tells:
            self._tell(tells[0].trial.number, tells.popleft().told)
        self._waiting.extend(trial.number for trial in self.history.unfinished(retry))

    def _remember(self, entry: Entry) -> None:
        with suppress(UserError):  # it could not be run then either, and its end says why
            self._known.setdefault(self.points.identity(entry.trial.point), entry.trial.number)

    def remaining(self) -> int:
        """How many trials have not ended or may still be proposed."""
        last = list(self.history.entries.values())[-REPEATS:]
        exhausted = len(last) == REPEATS and all(entry.same_as is not None for entry in last)
        unended = {trial.number for trial in self.history.trials if trial.state == "running"} | {*self._waiting}
        return len(unended) + (0 if exhausted else self._more())

    def _more(self) -> int:
        """How many points may still be proposed. A grid ends with its list, even if two of its points are one computation."""
        if self.points.space.sampler == "grid":
            return max(0, self._limit - len(self.history.entries))
        return max(0, self._limit - len(self.history.trials))

    # ------------------------------------------------------------------------------------------------- Tune's calls

    def suggest(self, trial_id: str) -> Any:
        return self._guarded(self._suggest, trial_id) or Searcher.FINISHED

    def _suggest(self, trial_id: str) -> dict[str, Any] | None:
        number: int | None
        if self._waiting:
            number = self._waiting.popleft()
            self.history.restart(number)
        elif (number := self._ask()) is None:
            return None
        self._numbers[trial_id] = number
        trial = self.history.entries[number].trial
        self._watch("started", trial)
        return {"number": number, "point": dict(trial.point)}

    def _guarded(self, act: Callable[..., T], *arguments: Any) -> T | None:
        """Tune swallows or wraps exceptions of its searcher; an error of the store must end the study."""
        if self.fatal or self.over:
            return None
        try:
            return act(*arguments)
        except UserError as error:
            self.fatal = error
            return None

    def _ask(self) -> int | None:
        for _ in range(REPEATS):
            if not self._more():
                return None
            point = self._search.suggest(str(len(self.history.entries)))
            try:
                identity = self.points.identity(point)
            except UserError as error:
                number = self.history.propose(point)
                self._tell(number, None)
                self.history.finish(number, "failed", str(error), None)
                self._watch("ended", self.history.entries[number].trial)
                continue
            first = self._known.get(identity)
            number = self.history.propose(point, first)
            if first is None:
                self._known[identity] = number
                return number
            self._followers.setdefault(first, []).append(number)
            if self.history.entries[first].ended:
                self._end_followers(first)
        return None

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self.heard(self._numbers[trial_id], result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self._guarded(self._complete, self._numbers.pop(trial_id), result, error)

    def heard(self, number: int, result: dict[str, Any]) -> Trial | None:
        """The trial with the replicate that it reported; None if the study must end."""
        return self._guarded(self._take, number, result)

    def _complete(self, number: int, result: dict[str, Any] | None, error: bool) -> None:
        if result:
            self._take(number, result)
        trial = self.history.entries[number].trial
        failure = str((result or {}).get("error", "")) or (DIED if error else "")
        if failure:
            self._end(number, "failed", failure, None)
        elif len(trial.outcomes) == len(self.points.replicates):
            self._end(number, "complete", "", trial.mean())
        else:
            self._end(number, "dropped", self.reasons.get(number, ""), self._projected(trial))

    # ------------------------------------------------------------------------------------------------- what they do

    def _take(self, number: int, result: dict[str, Any]) -> Trial:
        """Add a reported replicate to the history. Scheduler and searcher both report it, in either order."""
        if result.get("fatal"):
            raise UserError(str(result["error"]))
        if "outcome" in result:
            outcome = ReplicateOutcome(**json.loads(result["outcome"]))
            if self.history.add_outcome(number, int(result["replicates_done"]), outcome):
                self._watch("replicate", self.history.entries[number].trial)
        return self.history.entries[number].trial

    def _projected(self, trial: Trial) -> float:
        """The value of a stopped trial for the sampler: its running mean, corrected for which subsets came first."""
        return projected(trial.values, [other.values for other in self.history.trials if other.eligible])

    def _end(self, number: int, state: Any, reason: str, told: float | None) -> None:
        first_time = not self.history.entries[number].ended
        self.history.finish(number, state, reason, told)
        if first_time:
            self._tell(number, told)
        self._watch("ended", self.history.entries[number].trial)
        self._end_followers(number)

    def _end_followers(self, number: int) -> None:
        entry = self.history.entries[number]
        for follower in self._followers.pop(number, []):
            self.history.finish(follower, entry.trial.state, "", entry.told)
            self._tell(follower, entry.told)

    def _tell(self, number: int, told: float | None) -> None:
        values = None if told is None else {"value": told}
        self._search.on_trial_complete(str(number), values, error=values is None)


class Ended(Stopper):
    """Tells Tune to stop all trials if the study cannot continue, or its time is over."""

    def __init__(self, proposals: Proposals) -> None:
        self._proposals = proposals

    def __reduce__(self) -> tuple[Any, ...]:
        return (NoopStopper, ())

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return self.stop_all()

    def stop_all(self) -> bool:
        return self._proposals.fatal is not None or self._proposals.over


# ---------------------------------------------------------------------------------------------------------- schedulers


class Race(FIFOScheduler):
    """Drops a point by the paired test of `search/racing.py` against the best fully replicated one, and at once when a
    replicate of it failed or diverged: it can not be the best any more."""

    def __init__(self, proposals: Proposals) -> None:
        super().__init__()
        self._proposals = proposals

    def __reduce__(self) -> tuple[Any, ...]:
        return (FIFOScheduler, ())

    def on_trial_result(self, tune_controller: Any, trial: TuneTrial, result: dict[str, Any]) -> str:
        mine = self._proposals.heard(trial.config["number"], result)
        if mine is None:
            return str(TrialScheduler.STOP)
        points = self._proposals.points
        best = best_trial(self._proposals.history.trials)
        verdict = failed_replicate(mine.outcomes, points.replicates)
        if not verdict.drop and best is not None:
            verdict = paired(mine.values, best.values, points.replicates, name=f"trial {best.number}")
        if not verdict.drop:
            return str(TrialScheduler.CONTINUE)
        self._proposals.reasons[mine.number] = verdict.reason
        return str(TrialScheduler.STOP)


def scheduler_of(proposals: Proposals) -> TrialScheduler | None:
    """The racing rule as Tune's scheduler, which knows the trials that ended in earlier commands."""
    points = proposals.points
    rule, full = points.space.racing, len(points.replicates)
    if rule == "none" or full < 2:
        return None
    if rule == "paired":
        return Race(proposals)
    grace = min(GRACE, full - 1)
    common = {"time_attr": "replicates_done", "metric": "score", "mode": "max"}
    scheduler = (
        ASHAScheduler(max_t=full, grace_period=grace, reduction_factor=FACTOR, **common)
        if rule == "asha"
        else MedianStoppingRule(grace_period=grace, hard_stop=True, min_time_slice=math.inf, **common)  # never pauses
    )
    _rehearse(scheduler, proposals.history.trials)
    return scheduler


def _rehearse(scheduler: TrialScheduler, trials: Iterable[Trial]) -> None:
    """Show a scheduler of Ray the trials that ended before; its decisions about them are ignored."""
    for trial in trials:
        if trial.state not in ("complete", "dropped"):
            continue
        stub = TuneTrial("harness-ended", stub=True, config={"number": trial.number}, trial_id=f"ended{trial.number}")
        scheduler.on_trial_add(None, stub)
        result: dict[str, Any] = {}
        for done in range(1, len(trial.outcomes) + 1):
            score = math.fsum(trial.values[:done]) / done
            result = {"score": score, "replicates_done": done, "training_iteration": done}
            scheduler.on_trial_result(None, stub, result)
            if isinstance(scheduler, MedianStoppingRule):  # which admits no result of a trial that it stopped
                private.forget_stopped(scheduler, stub)
        scheduler.on_trial_complete(None, stub, result)
