"""What a study proposes and when it stops a trial: Optuna's study in the store's database as a searcher of Ray Tune, and Ray's schedulers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import optuna
from optuna.trial import TrialState
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule, TrialScheduler
from ray.tune.search import Searcher
from ray.tune.stopper import Stopper

from harness.errors import UserError
from harness.search.points import Points, State, Trial, Watch, best_trial
from harness.search.racing import paired, projected
from harness.search.study import DIED, NOTES, REPEATS, asked, key_of, limit_of, notes_of, sampler_of, trials_of
from harness.store import Store
from harness.store.studies import database_errors

T = TypeVar("T")


class Proposals(Searcher, Stopper):
    """Gives Tune one point of the `study` after another, up to as many distinct ones as its space asks for. A point that repeats an
    earlier one is not run. `seed`: of the sampler; a study that goes on takes another, lest it draws the same points again. It stops all trials if the
    study cannot continue (`fatal`), or its time is `over`."""

    def __init__(self, study: optuna.Study, points: Points, store: Store, watch: Watch, seed: int) -> None:
        super().__init__()
        self.points, self.study = points, study
        self.trials = {key_of(trial.point): trial for trial in trials_of(study, points, store)}
        self.fatal: Exception | None = None
        self.over = False
        self.reasons: dict[int, str] = {}
        self._store, self._watch = store, watch
        self._running: dict[str, tuple[optuna.Trial, frozenset[Any]]] = {}
        """By Tune's name of a trial: Optuna's trial, and the key of its point."""
        study.sampler = sampler_of(points.space, seed + len(asked(study, points.space)))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Searcher, ())  # Tune would pickle its searcher and its stopper into a folder that is never read

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return self.stop_all()

    def stop_all(self) -> bool:
        return self.fatal is not None or self.over

    def _guarded(self, act: Callable[..., T], *arguments: Any) -> T | None:
        """Tune swallows or wraps exceptions of its searcher; an error of the store must end the study."""
        if self.stop_all():
            return None
        try:
            with database_errors(self._store):
                return act(*arguments)
        except UserError as error:
            self.fatal = error
            return None

    # ------------------------------------------------------------------------------------------------- Tune's calls

    def suggest(self, trial_id: str) -> Any:
        return self._guarded(self._next, trial_id) or Searcher.FINISHED

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self.heard(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self._guarded(self._complete, trial_id, result, error)

    def heard(self, trial_id: str, result: dict[str, Any]) -> Trial | None:
        """The trial with the replicates that it reported; None if the study must end."""
        return self._guarded(self._take, trial_id, result)

    # ------------------------------------------------------------------------------------------------- what they do

    def _next(self, trial_id: str) -> dict[str, Any] | None:
        space = self.points.space
        for _ in range(REPEATS):
            waiting = self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
            if not waiting and (space.sampler == "grid" or len(self.trials) >= limit_of(space)):
                return None
            trial = self.study.ask()
            point, notes = space.define(trial), notes_of(trial)
            key, known = key_of(point), self.trials.get(key_of(point))
            if known and not notes:  # it repeats one
                self._tell(trial, known)
                continue
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

    def _take(self, trial_id: str, result: dict[str, Any]) -> Trial:
        """Scheduler and searcher both report a replicate, in either order, and a trial whose process died reports it again."""
        if result.get("fatal"):
            raise UserError(str(result["error"]))
        trial, key = self._running[trial_id]
        outcomes = tuple(result.get("outcomes", ()))
        if len(outcomes) > len(self.trials[key].outcomes):
            self.trials[key] = replace(self.trials[key], outcomes=outcomes)
            trial.report(self.trials[key].mean(), len(outcomes))
            self._watch("replicate", self.trials[key])
        return self.trials[key]

    def _complete(self, trial_id: str, result: dict[str, Any] | None, error: bool) -> None:
        ended = self._take(trial_id, result or {})
        trial, _ = self._running.pop(trial_id)
        state: State = "dropped"
        reason = self.reasons.get(ended.number, "")
        if failure := str((result or {}).get("error", "")) or (DIED if error else ""):
            state, reason = "failed", failure
        elif len(ended.outcomes) == len(self.points.replicates):
            state, reason = "complete", ""
        self._end(trial, replace(ended, state=state, reason=reason))

    def _end(self, trial: optuna.Trial, ended: Trial) -> None:
        broken = [outcome.reason for outcome in ended.outcomes if outcome.status != "done"]
        notes = {"state": ended.state, "reason": ended.reason, "not done": broken}
        trial.set_user_attr(NOTES, notes_of(trial) | {key: note for key, note in notes.items() if note})
        self.trials[key_of(ended.point)] = ended
        self._tell(trial, ended)
        self._watch("ended", ended)

    def _tell(self, trial: optuna.Trial, ended: Trial) -> None:
        """Tell the sampler the mean of a complete trial; of a dropped one its running mean, corrected for which subsets came first."""
        told = ended.mean() if ended.state == "complete" else None
        if ended.state == "dropped":
            told = projected(ended.values, [other.values for other in self.trials.values() if other.eligible])
        self.study.tell(trial, told, state=TrialState.FAIL if told is None else TrialState.COMPLETE)


# ---------------------------------------------------------------------------------------------------------- schedulers


class Race(FIFOScheduler):
    """Drops a point by the paired test of `search/racing.py` against the best fully replicated one, and at once when a
    replicate of it failed or diverged: it can not be the best any more."""

    def __init__(self, proposals: Proposals) -> None:
        super().__init__()
        self._proposals = proposals

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        mine = self._proposals.heard(trial.trial_id, result)
        if mine is None:
            return str(TrialScheduler.STOP)
        replicates, best = self._proposals.points.replicates, best_trial(self._proposals.trials.values())
        reason = ""
        if mine.outcomes[-1].status != "done":
            (subset, seed), status = replicates[len(mine.outcomes) - 1], mine.outcomes[-1].status
            reason = f"subset {subset}, seed {seed} {status}: such a point cannot be the best"
        elif best is not None:
            reason = paired(mine.values, best.values, replicates, f"trial {best.number}")
        if not reason:
            return str(TrialScheduler.CONTINUE)
        self._proposals.reasons[mine.number] = reason
        return str(TrialScheduler.STOP)


def scheduler_of(proposals: Proposals) -> TrialScheduler | None:
    """The racing rule as Tune's scheduler. The paired rule knows the trials that ended in earlier commands, Ray's own know those of this one."""
    points = proposals.points
    rule, full = points.space.racing, len(points.replicates)
    if rule == "none" or full < 2:
        return None
    if rule == "paired":
        return Race(proposals)
    common = {"time_attr": "replicates_done", "metric": "score", "mode": "max", "grace_period": min(2, full - 1)}
    if rule == "asha":
        return ASHAScheduler(max_t=full, reduction_factor=2, **common)  # the better half continues at each rung
    return MedianStoppingRule(hard_stop=True, min_time_slice=math.inf, **common)  # never pauses
