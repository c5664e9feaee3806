"""A study is Optuna's own, in the database of the runs: which points it asked for, and how each ended. What they scored is read from the records of
their runs. No ray."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, takewhile
from types import MappingProxyType
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from harness.errors import UserError
from harness.planning.request import Override
from harness.scores import counted_records
from harness.search.points import Points, ReplicateOutcome, Trial
from harness.search.request import Point
from harness.search.space import ResolvedSpace
from harness.specs import Record, digest_of, trained_again
from harness.store import Store
from harness.store.studies import database_errors, storage_of

NOTES = "harness"
"""The attribute of Optuna's trials for how they ended, where they did not repeat another: 'state' and 'reason'. In older studies 'not done', why
replicates of a complete trial failed."""
DIED = "its process died too often"
"""Reason of a failed trial that the next command retries."""
STARTUP = 5
"""Random points before TPE starts to model; Optuna's default of 10 would be most of a small search."""


def sampler_of(space: ResolvedSpace, seed: int) -> optuna.samplers.BaseSampler:
    """Optuna's sampler of a space. A grid's points are enqueued one by one, so its sampler is never used."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # multivariate and group
        if space.sampler == "tpe":
            conditional = any(drawn.when for drawn in space.parameters.values())
            return optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP, multivariate=True, group=conditional)
        return optuna.samplers.RandomSampler(seed=seed)


def study_name(space: ResolvedSpace, seed: int, default_runs: Sequence[str], overrides: Iterable[Override] = ()) -> str:
    """Equal for two commands that propose the same points and evaluate them by the same runs. What the space and the user (`overrides`)
    set for all points may have an effect at others than the default one. It leaves out the number of
    trials, so a study can be extended. It is a valid folder name, whatever the space is called."""
    of_set = [each for each in space.given if each.in_file]  # the others are in the default point's runs
    texts = sorted(each.text for each in (*of_set, *overrides))
    shared = {"set": texts} if texts else {}
    identity = digest_of({"space": space.identity(), "seed": seed, "runs": list(default_runs), **shared})
    words = re.sub(r"[^\w.+-]+", "_", f"{space.name}-{space.mode}-{space.preset}").lstrip(".")
    return f"{words}-{identity[:8]}"


def opened(store: Store, name: str, metric: str) -> optuna.Study:
    """The study of a command that holds it."""
    with database_errors(store):
        study = optuna.create_study(
            study_name=name, storage=storage_of(store), direction="maximize", load_if_exists=True
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names([metric])
        for each in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            study.tell(each.number, state=TrialState.FAIL)  # its command was killed
    return study


# ------------------------------------------------------------------------------------------------------------ trials


def key_of(point: Point) -> frozenset[Any]:
    return frozenset(point.items())


def notes_of(trial: FrozenTrial) -> dict[str, Any]:
    return dict(trial.user_attrs.get(NOTES, {}))


def trials_of(study: optuna.Study | None, points: Points, store: Store) -> tuple[Trial, ...]:
    """A trial for each point, under the number of its first one, by number. A trial whose replicates are all recorded is complete, whoever
    trained them."""
    trials: dict[frozenset[Any], Trial] = {}
    for each in study.get_trials(deepcopy=False) if study else ():
        with suppress(ValueError):  # it waits, or its command was killed while it drew
            point, notes = points.space.define(each), notes_of(each)
            trial = trials.get(key_of(point)) or Trial(each.number, point, outcomes_of(points, store, point))
            state, reason = notes.get("state", trial.state), notes.get("reason", trial.reason)
            if len(trial.outcomes) == len(points.replicates):
                state, reason = "complete", ""
            elif state == "complete":  # the records of its replicates are gone
                state = "running"
            trials[key_of(point)] = replace(trial, state=state, reason=reason)
    return tuple(trials.values())


def outcomes_of(
    points: Points, store: Store, point: Point, failed: Mapping[str, str] = MappingProxyType({})
) -> tuple[ReplicateOutcome, ...]:
    """The replicates of a point whose runs have ended, up to the first one that has not. `failed`: why stages failed, by key; one whose parent's
    weights are gone has no record."""
    try:
        runs = points.runs(point)
    except UserError:  # it cannot be run, and its notes say why
        return ()
    records = counted_records(store, points.counted(chain.from_iterable(runs)))
    every = {key: Record(key, "failed", reason) for key, reason in failed.items()} | records
    found = (points.outcome(each, records) or points.outcome(each, every) for each in runs)
    return tuple(filter(None, takewhile(bool, found)))


def unfinished(trial: Trial, retry: bool = False) -> bool:
    """Whether the next command runs a trial (again): it has not ended, or one of its replicates failed or, with `retry`,
    diverged. A point that cannot be run at all is not run again."""
    again = trained_again(retry)
    return (
        trial.state == "running"
        or any(outcome.status in again for outcome in trial.outcomes)
        or (trial.state == "failed" and (bool(trial.outcomes) or trial.reason == DIED))
    )
