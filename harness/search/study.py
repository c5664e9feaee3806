"""The record of a study: every proposal and its result in the store, so that a command resumes where it stopped, and a copy
in Optuna's own tables, for `optuna-dashboard`. No ray."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Annotated, Any, TypeVar

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState
from pydantic import BeforeValidator, TypeAdapter, ValidationError
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from harness import private
from harness.errors import UserError, first_line
from harness.planning.request import Override
from harness.retry import retried
from harness.search.parameters import Parameter
from harness.search.space import ResolvedSpace
from harness.search.trials import Point, ReplicateOutcome, State, Trial, first_value
from harness.specs import digest_of, trained_again
from harness.store import Store

T = TypeVar("T")

DIED = "its process died too often"
"""Reason of a failed trial that the next command retries."""
STARTUP = 5
"""Random points before TPE starts to model; Optuna's default of 10 would be most of a small search."""
TRIES = 4
"""Attempts at creating Optuna's tables in a new database, which several commands may do at once."""


def sampler_of(space: ResolvedSpace, seed: int) -> optuna.samplers.BaseSampler:
    """Optuna's sampler of a space. A grid's points are enqueued one by one, so its sampler is never used."""
    conditional = any(parameter.when for parameter in space.parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # multivariate, group and GP
        if space.sampler == "tpe":
            return optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP, multivariate=True, group=conditional)
        if space.sampler == "gp":
            return optuna.samplers.GPSampler(seed=seed, n_startup_trials=STARTUP)
        return optuna.samplers.RandomSampler(seed=seed)


def study_name(
    space: ResolvedSpace, seed: int, default_runs: tuple[str, ...], overrides: Iterable[Override] = ()
) -> str:
    """Equal for two commands that propose the same points and evaluate them by the same runs. `overrides`: what the space and the user
    set for all points, which may have an effect at others than the default one. It leaves out the number of
    trials, so a study can be extended. It is a valid folder name, whatever the space is called."""
    texts = sorted(override.text for override in overrides)
    shared = {"set": texts} if texts else {}
    identity = digest_of({"space": space.identity(), "seed": seed, "runs": list(default_runs), **shared})
    words = re.sub(r"[^\w.+-]+", "_", f"{space.space.name}-{space.mode}-{space.preset}").lstrip(".")
    return f"{words}-{identity[:8]}"


# ----------------------------------------------------------------------------------------------------------- history


@dataclass(frozen=True)
class Entry:
    """One proposal. `same_as`: the earlier one that is the same computation. `told`: the value that the sampler was told, as
    the `order`th value, after it had been asked `after` times: enough to restore the sampler's state."""

    trial: Trial
    same_as: int | None = None
    told: Annotated[float | None, BeforeValidator(first_value)] = None
    after: int = -1
    order: int = -1

    @property
    def ended(self) -> bool:
        return self.order >= 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Entry:
        """Raises ValueError, in a few words, for JSON of another shape."""
        try:
            return TypeAdapter(cls).validate_python(body)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def unfinished(entry: Entry, retry: bool = False) -> bool:
    """Whether the next command runs a trial (again): it has not ended, or one of its replicates failed or, with `retry`,
    diverged. A point that cannot be run at all is not run again."""
    trial, again = entry.trial, trained_again(retry)
    return (
        not entry.ended
        or any(outcome.status in again for outcome in trial.outcomes)
        or (trial.state == "failed" and (bool(trial.outcomes) or trial.reason == DIED))
    )


class History:
    """All proposals of a study by number, also of earlier commands. Each change is stored before the method returns, except
    the outcomes of a running trial, which the ledger has."""

    def __init__(self, name: str, store: Store, mirror: OptunaMirror | None) -> None:
        self.name, self._store, self._mirror = name, store, mirror
        self.entries: dict[int, Entry] = {}
        for number, body in store.trials(name).items():
            try:
                self.entries[number] = Entry.from_json(body)
            except ValueError as error:
                raise UserError(
                    f"The store {store.shown} has a damaged trial {number} of the study {name} ({error}); restore the store "
                    "from a copy, or take another sampler seed to begin a new study."
                ) from None
        if sorted(self.entries) != list(range(len(self.entries))):
            raise UserError(
                f"The study {name} misses trials in the store; take another sampler seed to begin a new one."
            )

    @property
    def trials(self) -> tuple[Trial, ...]:
        """One for each point, by number."""
        return tuple(entry.trial for entry in self.entries.values() if entry.same_as is None)

    def unfinished(self, retry: bool = False) -> list[Trial]:
        """Those that the next command runs (again)."""
        return [e.trial for e in self.entries.values() if e.same_as is None and unfinished(e, retry)]

    @property
    def repeated(self) -> tuple[Trial, ...]:
        """Points that are the same computation as an earlier one, with its outcomes."""
        pairs = [
            (entry.trial, self.entries[entry.same_as].trial)
            for entry in self.entries.values()
            if entry.same_as is not None
        ]
        return tuple(replace(first, number=trial.number, point=trial.point) for trial, first in pairs)

    def propose(self, point: Point, same_as: int | None = None) -> int:
        number = len(self.entries)
        self._keep(Entry(Trial(number, dict(point)), same_as))
        return number

    def restart(self, number: int) -> None:
        """Run a trial again from its first replicate; recorded stages are reused."""
        entry = self.entries[number]
        trial = replace(entry.trial, outcomes=(), state="running", reason="")
        self.entries[number] = replace(entry, trial=trial)

    def add_outcome(self, number: int, done: int, outcome: ReplicateOutcome) -> bool:
        """Add a trial's `done`th replicate. False when it is known: a trial whose process died reports it again."""
        entry = self.entries[number]
        if done <= len(entry.trial.outcomes):
            return False
        trial = replace(entry.trial, outcomes=(*entry.trial.outcomes, outcome))
        self.entries[number] = replace(entry, trial=trial)
        if self._mirror:
            self._mirror.report(number, done, trial.mean() or 0.0)
        return True

    def finish(self, number: int, state: State, reason: str, told: float | None) -> None:
        entry = self.entries[number]
        trial = replace(entry.trial, state=state, reason=reason)
        if not entry.ended:
            entry = replace(
                entry, told=told, after=len(self.entries), order=sum(e.ended for e in self.entries.values())
            )
        self._keep(replace(entry, trial=trial))
        if self._mirror:
            self._mirror.end(self.entries[number])

    def _keep(self, entry: Entry) -> None:
        number = entry.trial.number
        new = number not in self.entries
        self.entries[number] = entry
        self._store.keep_trial(self.name, number, entry.to_json())
        if new and self._mirror:
            self._mirror.begin(entry)


# ------------------------------------------------------------------------------------------------------------ mirror


class OptunaMirror:
    """A copy of the study in Optuna's tables of the store's database, for Optuna's own tools. Nothing is resumed from it;
    what differs from the history is written again."""

    def __init__(self, space: ResolvedSpace, name: str, store: Store, metric: str) -> None:
        self._space, self._name, self._metric = space, name, metric
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._store = store
        for _ in range(TRIES):
            with suppress(UserError):  # another command is creating the tables: the next attempt finds them
                self._storage = self._tables()
                break
            time.sleep(0.5)
        else:
            self._storage = self._tables()
        self._open()

    def _tables(self) -> optuna.storages.RDBStorage:
        options = {"connect_args": {"timeout": 30.0}} if self._store.path else {"pool_pre_ping": True}
        url = self._store.url.replace("{", "{{").replace("}", "}}")  # Optuna formats it
        with _database_errors(self._store):
            return optuna.storages.RDBStorage(url, engine_kwargs=options, skip_compatibility_check=True)

    def _open(self) -> None:
        with _database_errors(self._store):
            self.study = optuna.create_study(
                study_name=self._name,
                storage=self._storage,
                direction="maximize",
                load_if_exists=True,
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                self.study.set_metric_names([self._metric])
            self._trials = {trial.number: trial for trial in self.study.get_trials(deepcopy=False)}

    def sync(self, entries: Mapping[int, Entry]) -> None:
        """Make the copy equal to the history."""
        shown = {n: _shown(entry) for n, entry in entries.items()}
        there = {n: (trial.state, trial.values) for n, trial in self._trials.items()}
        if all(shown.get(n) == seen for n, seen in there.items()) and len(there) <= len(shown):
            missing = [entry for n, entry in sorted(entries.items()) if n not in there]
        else:
            with _database_errors(self._store):
                optuna.delete_study(study_name=self._name, storage=self._storage)
            self._open()
            missing = [entry for _, entry in sorted(entries.items())]
        for entry in missing:
            self.begin(entry)

    def begin(self, entry: Entry) -> None:
        trial = self._frozen(entry)
        self._trials[entry.trial.number] = trial
        number = self._retried(self._storage.create_new_trial, private.study_id(self.study), trial)
        private.set_trial_id(trial, number)

    def report(self, number: int, done: int, value: float) -> None:
        trial = self._trials[number]
        if not trial.state.is_finished():
            self._retried(self._storage.set_trial_intermediate_value, private.trial_id(trial), done, value)

    def end(self, entry: Entry) -> None:
        trial = self._trials[entry.trial.number]
        if trial.state.is_finished():
            return  # it failed in an earlier command and was run again: the next sync writes it
        state, values = _shown(entry)
        self._retried(self._storage.set_trial_user_attr, private.trial_id(trial), "harness", _notes(entry))
        self._retried(self._storage.set_trial_state_values, private.trial_id(trial), state, values)
        trial.state, trial.values = state, values

    @retried
    def _retried(self, act: Callable[..., T], *arguments: Any) -> T:
        """A write of Optuna's."""
        with _database_errors(self._store):
            return act(*arguments)

    def _frozen(self, entry: Entry) -> optuna.trial.FrozenTrial:
        state, values = _shown(entry)
        point = entry.trial.point
        distributions = {p.path: _distribution(p) for p in self._space.parameters if p.path in point}
        outcomes = entry.trial.values
        means = {k + 1: sum(outcomes[: k + 1]) / (k + 1) for k in range(len(outcomes))}
        now = datetime.now()
        return optuna.trial.FrozenTrial(
            number=entry.trial.number,
            trial_id=-1,
            state=state,
            value=None,
            values=values,
            datetime_start=now,
            datetime_complete=now if state.is_finished() else None,
            params=dict(point),
            distributions=distributions,
            user_attrs={"harness": _notes(entry)},
            system_attrs={},
            intermediate_values=means,
        )


def _shown(entry: Entry) -> tuple[TrialState, list[float] | None]:
    if entry.trial.state == "running" and not entry.ended:
        return TrialState.RUNNING, None
    if entry.trial.state == "complete" and entry.same_as is None:
        return TrialState.COMPLETE, [entry.trial.mean() or 0.0]
    if (
        entry.trial.state in ("complete", "running") and entry.told is not None
    ):  # it repeats one that ended, or was run again
        return TrialState.COMPLETE, [entry.told]
    if entry.trial.state == "dropped":
        return TrialState.PRUNED, None if entry.told is None else [entry.told]
    return TrialState.FAIL, None


def _notes(entry: Entry) -> dict[str, Any]:
    """A trial's attributes in Optuna's dashboard. They hold dev results only."""
    trial = entry.trial
    notes = {"state": trial.state, "reason": trial.reason, "replicates": len(trial.outcomes), "same as": entry.same_as}
    reasons = [outcome.reason for outcome in trial.outcomes if outcome.reason]
    return {key: value for key, value in (notes | {"not done": reasons}).items() if value not in ("", None, [])}


def _distribution(parameter: Parameter) -> optuna.distributions.BaseDistribution:
    if parameter.choices:
        return CategoricalDistribution(parameter.offered)
    if parameter.integer:
        return IntDistribution(int(parameter.low), int(parameter.high), parameter.log, int(parameter.step or 1))
    return FloatDistribution(parameter.low, parameter.high, parameter.log, parameter.step)


@contextmanager
def _database_errors(store: Store) -> Iterator[None]:
    """Optuna's database errors as one sentence."""
    try:
        yield
    except (optuna.exceptions.StorageInternalError, optuna.exceptions.DuplicatedStudyError, SQLAlchemyError) as error:
        cause = error.__cause__ or error
        if isinstance(cause, DBAPIError):
            with store.as_user_error():
                raise cause from None
        raise UserError(
            f"The store {store.shown} refused the study ({first_line(cause)}); recorded stages are kept."
        ) from None
