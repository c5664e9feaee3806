"""A study: prepared from a request, opened under a lock, its trials run on Ray."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from harness.commands.prepare import Prepared, prepare, storage_of
from harness.commands.tracking import Trackers, check_trackers
from harness.commands.train import Show, check_machine, deadline_of, session_of, tokenised_of, translate_texts, unshown
from harness.errors import UserError
from harness.paths import check_writable, without_folders
from harness.planning.point import TARGET, PointFile
from harness.planning.request import from_json
from harness.planning.resolve import resolve
from harness.planning.runs import Plan
from harness.search.points import STATES, Points, State, Trial, Watch
from harness.search.request import Point, TuneRequest
from harness.search.space import check_metric, check_varied, requested_space
from harness.search.study import key_of, notes_of, opened, study_name, trials_of, unfinished
from harness.specs import SHARED_PHASES
from harness.storage import Storage, weights_of
from harness.store import Owner, Store, StoredRequest
from harness.store.studies import begun_study
from harness.views.study import BEST_FILE, Study, about


@dataclass(frozen=True)
class StudyPlan:
    """What a study needs. `points`: all of a grid, or as many as a search tries; `ended`: in earlier commands, and not run again; `stages` in all and `to_train`, with their FLOPs and their hours on this machine: of a search
    as if each new point cost what the default one does."""

    name: str
    points: int
    ended: int
    stages: int
    to_train: int
    flops: float
    hours: float


@dataclass(kw_only=True)
class PreparedStudy(Study):
    """A study ready to be run: the default point as a bench would run it, and what makes runs of other points. `owner`, `optuna`: in `open_study`, where
    this process holds it; `stopped`: why it ended with trials left."""

    request: TuneRequest
    prepared: Prepared
    owner: Owner = field(init=False, repr=False)
    optuna: optuna.Study = field(init=False, repr=False)
    stopped: str = ""

    @property
    def folder(self) -> Path:
        """Where its tables, plots and best.yaml are written: beside its store, unless another is named."""
        return Path(self.request.out or self.prepared.store.artifacts.parent.absolute() / "studies" / self.name)

    def plan(self) -> StudyPlan:
        """What is left, as `StudyPlan` says it; nothing is trained or written. Exact for a grid; for a search the default point is counted for those that
        are not proposed yet, and no point is dropped."""
        store, space, retry = self.prepared.store, self.points.space, self.request.base.retry

        def planned(points: Iterable[Point]) -> Plan:
            return replace(self.prepared.plan, runs=tuple(self.points.runs_of(points)))

        trials = trials_of(begun_study(store, self.name), self.points, store)
        again, asked = [trial.point for trial in trials if unfinished(trial, retry)], [trial.point for trial in trials]
        left = planned([*again, *(point for point in space.first_points if point not in asked)])
        stages = planned(asked).stages | left.stages
        to_train = left.pending(store.statuses(left.stages), retry)
        own = [stage for stage in planned([space.defaults]).stages.values() if stage.phase not in SHARED_PHASES]
        new = 0 if space.sampler == "grid" else max(0, space.trials - max(1, len(trials)))
        train, cost = len(to_train) + len(own) * new, left.stage_flops
        flops = sum(map(cost, to_train)) + new * sum(map(cost, own))
        hours = self.prepared.hours_of(flops, train or 1)
        ended = len(trials) - len(again)
        return StudyPlan(self.name, space.trials, ended, len(stages) + len(own) * new, train, flops, hours)

    @property
    def remaining(self) -> int:
        """How many points run again, or may still be proposed."""
        again = sum(unfinished(trial, self.request.base.retry) for trial in self.trials)
        return again + max(0, self.points.space.trials - len(self.trials))

    @property
    def failed(self) -> int:
        """Points that have ended with replicates that failed, which the same command tries again."""
        return sum(trial.state != "running" and unfinished(trial) for trial in self.trials)

    def best_point(self) -> dict[str, Any]:
        """The best point, which there is, as `best.yaml` has it."""
        base, request, given = self.points.base, self.points.request, self.request.base
        assert self.best is not None
        target = {name: getattr(request, name) for name in TARGET} | {"tasks": given.tasks or base.tasks}
        target |= {name: getattr(base, name) for name in ("preset", "sizes", "subsets", "seeds", "encoder")}
        target |= {"table": self.points.space.table, "row": base.rows[0].name}
        target |= {"set": [override.text for override in request.overrides]}
        kept = {name: [*value] if isinstance(value, tuple) else value for name, value in target.items() if value}
        method = given.methods[0] if given.methods else self.points.space.method
        chosen = {**about(self), "dev": self.measured(self.best.values)}
        point = {"method": method, "set": dict(self.best.point), "target": kept, "chosen": chosen}
        PointFile.model_validate(point)
        return point


def prepare_study(request: TuneRequest, *, train: bool = True) -> PreparedStudy:
    """Read and check everything that a search names. With `train`, also the machine, and what a hub holds is fetched. Raises UserError."""
    if train:
        check_machine(request.base)
    if len(encoders := request.base.encoder or ()) > 1:
        where = f"{request.base.origin('encoder')} {','.join(encoders)}"
        raise UserError(f"{where}: a study is of one encoder; tune each by itself.")
    if request.out:
        check_writable(Path(request.out).absolute() / BEST_FILE)
    request = request.read()
    space = requested_space(request)
    prepared = prepare(space.bench(request.base, space.defaults), train=train)
    check_varied(space, prepared.resolved.rows, (*space.given, *request.base.overrides))
    if prepared.plan.skipped:
        row, task, reason = prepared.plan.skipped[0]
        raise UserError(f"{row}{' on ' + task if task else ''} cannot be tuned: {reason}.")
    tasks = {name: found.task for name, found in prepared.plan.tasks.items()}
    check_metric(space, tasks, request)
    chosen, overrides = prepared.resolved, (*space.given, *request.base.overrides)
    shared = replace(prepared.request, tasks=chosen.tasks, sizes=chosen.sizes, overrides=overrides)
    base = resolve(prepared.resolved.table, shared, tasks)
    points = Points(space, base, shared, tasks, prepared.plan.table_data)
    runs = [run.stage.key for run in points.runs_of([space.defaults])]
    name = study_name(space, request.seed, runs, request.base.overrides)
    sizes = ", ".join(f"N={size}" if size else "full size" for size in base.sizes)
    notes = [
        f"Each point is row {base.rows[0].name} of table {base.table.name}, preset {base.preset}, protocol {base.protocol.name}, encoder {base.encoder} "
        f"({prepared.plan.encoders[0].encoder.digest[:10]}), data {prepared.plan.table_data.source}: {', '.join(base.tasks)}, {sizes}.",
        *([f"Changed from the table's own setting: {'; '.join(base.deviations)}."] if base.deviations else []),
        *space.notes,
    ]
    return PreparedStudy(name, points, request.seed, [*map(without_folders, notes)], request=request, prepared=prepared)


@contextmanager
def open_study(study: PreparedStudy) -> Iterator[PreparedStudy]:
    """The study of a request with its trials, which no other process may hold at the same time."""
    store = study.prepared.store = Store(study.prepared.store.url)
    study.owner = Owner.current()
    if store.lease(f"study {study.name}"[-64:], study.owner) == "held":
        raise UserError(f"The study {study.name} is run by another command now; wait for it, or take another --seed.")
    try:
        study.optuna = opened(store, study.name, study.points.metric)
        study.trials = trials_of(study.optuna, study.points, store)
        yield study
    finally:
        store.release(study.owner)


@contextmanager
def searched(
    request: TuneRequest,
    show: Show = unshown,
    warn: Callable[[str], None] = warnings.warn,
    agree: Callable[[PreparedStudy], None] = lambda study: None,
) -> Iterator[tuple[PreparedStudy, Trackers]]:
    """The study of a request with the trials that were left, and its trackers, which have written the stages of these.

    `warn`, `agree`: as of `bench`.
    """
    check_trackers(request.base.track, request.base.origin("track"))
    study, deadline = prepare_study(request), deadline_of(request.base)
    agree(study)
    if study.prepared.plan.untranslated:
        translate_texts(study.prepared, show, warn)
        study = prepare_study(request)  # what was translated has its identity now
    with open_study(study):
        store = study.prepared.store
        trackers = Trackers(request.base.track, f"harness-{study.name}", store.url)
        if study.remaining:
            run_trials(study, show, deadline, partial(track_trial, study, trackers, warn))
            study.trials = trials_of(study.optuna, study.points, store)
        for trial in study.trials:
            track_trial(study, trackers, warn, "ended", trial)
        yield study, trackers


def run_trials(study: PreparedStudy, show: Show, deadline: float, track: Watch) -> None:
    """Run the trials that are left, until `deadline` (by `time.monotonic()`). Everything that needs ray and torch is imported in here."""
    points, prepared, store, request = study.points, study.prepared, study.prepared.store, study.request.base
    plan, located, storage = prepared.plan, prepared.plan.encoders[0], storage_of(request, store)
    vocabularies, tokenised = tokenised_of(prepared)
    with session_of(request, [located], storage) as (dashboard, settled, setup):
        from harness.cluster.ledger import StopRequests, start_ledger
        from harness.cluster.proposals import Proposals
        from harness.cluster.tune import explore
        from harness.cluster.worker import TokenCache

        ledger, token_cache = start_ledger(store, study.owner), TokenCache(tokenised)
        stop_requests = StopRequests(ledger, deadline)
        for stage in plan.stages.values():
            token_cache.references(stage)
        shared = shared_weights(points)
        with show(study, dashboard) as shown:

            def watch(kind: str, trial: Trial) -> None:
                for watcher in (shown, partial(_remember, study), track):
                    watcher(kind, trial)
                if kind == "ended":
                    _discard(study, storage, starts_from(points, trial.point) - shared)

            explore(
                Proposals(study.optuna, points, store, watch, study.request, stop_requests),
                settled,
                points=points,
                worker_setup=setup,
                vocabulary=vocabularies[located.encoder.digest],
                references=token_cache.made,
                ledger=ledger,
                retry=request.retry,
            )
        study.stopped = stop_requests.over
        if not study.stopped:
            _discard(study, storage, shared)


def starts_from(points: Points, point: Point) -> set[str]:
    """The stages whose weights the runs of a point need, and which no other command keeps."""
    stages = [stage for run in points.runs_of([point]) for stage in run.stage.chain[:-1]]
    return {stage.key for stage in stages if stage.phase not in SHARED_PHASES}


def shared_weights(points: Points) -> set[str]:
    """What runs of the default point, or of several points of a grid, start from."""
    space = points.space
    users = Counter(key for point in (space.defaults, *space.first_points) for key in starts_from(points, point))
    return {key for key, number in users.items() if number > 1}


def _discard(study: PreparedStudy, storage: Storage, keys: Iterable[str]) -> None:
    """Delete the weights of stages, unless another command may use them."""
    if not study.prepared.store.others_alive(study.owner):
        for key in keys:
            storage.delete(weights_of(key))


def _remember(study: PreparedStudy, kind: str, trial: Trial) -> None:
    """Keep which runs a trial's stages are for, and the bench that runs its point."""
    if kind == "started":
        points, store, kept = study.points, study.prepared.store, study.prepared.kept
        runs = points.runs_of([trial.point])
        store.label(points.base.table.name, runs)
        settings = [override.text for override in points.space.bench(study.request.base, trial.point).overrides]
        request = StoredRequest(kept.table, {**kept.values, "set": settings}, study.name)
        store.keep_request(request, [stage.key for run in runs for stage in run.stage.chain])


def recorded_studies(store: Store) -> list[dict[str, Any]]:
    """The studies of a store, the one that ran last first, as they say it themselves; nothing is planned: study, table, row, trials (complete, dropped, failed,
    running), metric, best (the mean of the best trial over its replicates on the metric's own scale, None without one) and started_at (Unix time of the
    last trial's start)."""
    asked: dict[str, StoredRequest] = {}
    for stored in store.requests():
        asked.setdefault(stored.study, stored)
    found = []
    for name in store.studies():
        study, stored = begun_study(store, name), asked.get(name, StoredRequest("", {}))
        trials = study.get_trials(deepcopy=False) if study else []
        ends: dict[frozenset[Any], tuple[State, float | None]] = {}
        for each in trials:
            notes = notes_of(each)
            if "state" in notes or each.state == TrialState.RUNNING:
                state = notes.get("state", "running")
                sound = each.state == TrialState.COMPLETE and state == "complete" and "not done" not in notes
                ends[key_of(each.params)] = state, each.value if sound else None
        if study and trials:
            row = without_folders(", ".join((stored.values and from_json(stored.values).methods) or ()))
            states = Counter(state for state, _ in ends.values())
            said: dict[str, Any] = {"study": name, "table": stored.table, "row": row}
            said |= {state: states[state] for state in STATES}
            best = max((mean for _, mean in ends.values() if mean is not None), default=None)
            said |= {"metric": (study.metric_names or [""])[0], "best": best, "started_at": stored.asked_at}
            found.append(said)
    return sorted(found, key=lambda study: -study["started_at"])


# ----------------------------------------------------------------------------------------------------------- trackers


def track_trial(study: PreparedStudy, trackers: Trackers, warn: Callable[[str], None], kind: str, trial: Trial) -> None:
    """Show a trial as a group, without test scores, which the study does not look at, and write the stages of its last replicate."""
    if trackers:
        runs = study.points.runs_of([trial.point])
        for run in runs:
            trackers.add(run, f"trial {trial.number}", {"study": study.name, "trial": trial.number, **trial.point})
        if kind == "replicate":
            trackers.write([stage.key for run in runs for stage in run.stage.chain], warn)
