"""What a study proposes and when it stops a trial: Optuna's study in the store's database as a searcher and a stopper of Ray Tune."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import optuna
from optuna.trial import TrialState
from ray.tune.search import Searcher
from ray.tune.stopper import Stopper

from harness.cluster.ledger import LOOK_SECONDS, StopRequests
from harness.cluster.worker import ASK_SECONDS
from harness.errors import UserError
from harness.search.points import Points, Trial, Watch, best_trial
from harness.search.racing import paired
from harness.search.request import TuneRequest
from harness.search.study import DIED, NOTES, key_of, outcomes_of, sampler_of, trials_of, unfinished
from harness.store import Store
from harness.store.studies import database_errors

T = TypeVar("T")
REPEATS = 100
"""The space counts as exhausted after this many proposals in a row that were tried before."""
STOP_SECONDS = 1.5 * ASK_SECONDS
"""The time in which all workers hear that they are to stop."""


class Proposals(Searcher, Stopper):
    """Gives Tune one point of the `study` after another, up to as many distinct ones as its space asks for. A point that repeats an
    earlier one is not run. What an earlier command left `unfinished` and the first points are asked for before. The sampler has the request's
    seed; a study that goes on takes another, lest it draws the same points again. It stops a trial that
    loses the race, and all if the study cannot continue (`fatal`) or `stops` ended it STOP_SECONDS ago."""

    def __init__(
        self, study: optuna.Study, points: Points, store: Store, watch: Watch, request: TuneRequest, stops: StopRequests
    ) -> None:
        super().__init__()
        self.points, self.study = points, study
        self.trials = {key_of(trial.point): trial for trial in trials_of(study, points, store)}
        self.fatal: Exception | None = None
        self._stops, self._over, self._next_look = stops, False, 0.0
        self._store, self._watch = store, watch
        self._running: dict[str, tuple[optuna.Trial, frozenset[Any]]] = {}
        """By Tune's name of a trial: Optuna's trial, and the key of its point."""
        again = [trial.point for trial in self.trials.values() if unfinished(trial, request.base.retry)]
        self._again = set(map(key_of, again))
        first = [point for point in points.space.first_points if key_of(point) not in self.trials]
        with database_errors(store):
            ended = sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))
            study.sampler = sampler_of(points.space, request.seed + ended)
            for point in (*again, *first):
                study.enqueue_trial(dict(point))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Searcher, ())  # Tune would pickle its searcher and its stopper into a folder that is never read

    # ------------------------------------------------------------------------------------------------- Tune's calls

    def stop_all(self) -> bool:
        """Tune asks after each event, and ten times a second where there is none."""
        if time.monotonic() >= self._next_look:
            self._over = bool(self._stops.over)
            self._guarded(self._stops.look)
            self._next_look = time.monotonic() + (STOP_SECONDS if self._stops.over else LOOK_SECONDS)
        return self.fatal is not None or self._over

    def suggest(self, trial_id: str) -> Any:
        return self._guarded(self._next, trial_id) or Searcher.FINISHED

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Whether a trial that reports is to stop."""
        return self._guarded(self._heard, trial_id, result) is not False

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self._guarded(self._complete, trial_id)

    def _guarded(self, act: Callable[..., T], *arguments: Any) -> T | None:
        """Tune swallows or wraps exceptions of its searcher; an error of the store must end the study."""
        if self.fatal or self._over:
            return None
        try:
            with database_errors(self._store):
                return act(*arguments)
        except UserError as error:
            self.fatal = error
            return None

    # ------------------------------------------------------------------------------------------------- what they do

    def _next(self, trial_id: str) -> dict[str, Any] | None:
        space = self.points.space
        for _ in range(REPEATS):
            waiting = self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
            if not waiting and len(self.trials) >= space.trials:
                return None
            trial = self.study.ask()
            point = space.define(trial)
            key = key_of(point)
            known = self.trials.get(key)
            if known and key not in self._again:  # it repeats one
                self._tell(trial, known)
                continue
            self._again.discard(key)
            begun = Trial(known.number if known else trial.number, point)
            try:
                self.points.runs(point)
            except UserError as error:
                self._end(trial, replace(begun, state="failed", reason=str(error)))
                continue
            self._running[trial_id] = trial, key
            self.trials[key] = begun
            self._watch("started", begun)
            return {"number": begun.number, "point": dict(point)}
        return None

    def _heard(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Take the replicates so far, which a trial whose process died reports again. Returns whether it has ended."""
        trial, key = self._running[trial_id]
        so_far = self.trials[key]
        if error := result.get("error"):
            if result["fatal"]:
                raise UserError(error)
            self.trials[key] = replace(so_far, state="failed", reason=error)
        elif result["ended"] > len(so_far.outcomes):
            ended = outcomes_of(self.points, self._store, so_far.point, result["failed"])[: result["ended"]]
            assert len(ended) == result["ended"], "each of its runs has ended"
            so_far = replace(so_far, outcomes=ended)
            trial.report(so_far.mean(), len(so_far.outcomes))
            self._watch("replicate", so_far)
            if len(so_far.outcomes) == len(self.points.replicates):
                so_far = replace(so_far, state="complete")
            elif self.points.space.racing == "paired" and (reason := self._lost(so_far)):
                so_far = replace(so_far, state="dropped", reason=reason)
            self.trials[key] = so_far
        return self.trials[key].state != "running"

    def _lost(self, trial: Trial) -> str:
        """Why a trial cannot be the best: its last replicate failed or diverged, or the paired test holds it worse than the best complete one. Else ''."""
        replicates, best, status = self.points.replicates, best_trial(self.trials.values()), trial.outcomes[-1].status
        if status != "done":
            subset, seed = replicates[len(trial.outcomes) - 1]
            return f"subset {subset}, seed {seed} {status}: such a point cannot be the best"
        return paired(trial.values, best.values, replicates, f"trial {best.number}") if best else ""

    def _complete(self, trial_id: str) -> None:
        trial, key = self._running.pop(trial_id)
        ended = self.trials[key]
        self._end(trial, replace(ended, state="failed", reason=DIED) if ended.state == "running" else ended)

    def _end(self, trial: optuna.Trial, ended: Trial) -> None:
        trial.set_user_attr(NOTES, {"state": ended.state, "reason": ended.reason})
        self.trials[key_of(ended.point)] = ended
        self._tell(trial, ended)
        self._watch("ended", ended)

    def _tell(self, trial: optuna.Trial, ended: Trial) -> None:
        """Tell the sampler the mean of a trial that can be the best. Optuna ranks one that was pruned below these, whatever its replicates scored."""
        pruned = ended.state == "dropped" or (ended.state == "complete" and not ended.eligible)
        state = TrialState.COMPLETE if ended.eligible else TrialState.PRUNED if pruned else TrialState.FAIL
        self.study.tell(trial, ended.mean() if ended.eligible else None, state=state)
