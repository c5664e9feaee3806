"""A recorded stage with what its store and its data tell of it: the run and the cell that it belongs to, texts, and how to make
it again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from harness.commands.prepare import Prepared, prepare
from harness.commands.stored import command, find_key, last_bench, like_last, of_cell, of_run
from harness.errors import UserError
from harness.specs import Record, Run, Stage
from harness.store import DEFAULT_URL, Store, StoredRequest
from harness.tables.plan import Plan
from harness.tables.request import Request, from_json
from harness.tables.waves import best_run
from harness.tasks import TASKS, Task


@dataclass(frozen=True)
class Recorded:
    """A stage of a store, its record with predictions, and the request that makes it.

    `cell`: the request of its cell, all subsets and seeds; of a stage that no run ends with the whole request. `label`: of the
    run that ends with it. `again`: the command that makes it again. All three empty where the store does not know. `step`: which of
    its weights are meant, its final ones or those after an update.
    """

    store: Store
    stage: Stage
    record: Record
    cell: Request | None = None
    label: Mapping[str, Any] | None = None
    again: str = ""
    step: Literal["last"] | int = "last"

    @property
    def key(self) -> str:
        return self.record.key

    @property
    def after(self) -> str:
        """Which weights are meant, in words that follow a name; empty for the final ones."""
        return "" if self.step == "last" else f" after update {self.step:,} of {self.stage.optim.steps:,}"

    def prepare(self, *, train: bool = False) -> Prepared:
        """Its cell, planned. Raises UserError where the request is not known, or its files changed."""
        if self.cell is None:
            raise UserError(
                f"{self.key[:12]}: the store {self.store.shown} does not know which request made this stage; run its bench again "
                "with this store, which trains nothing that is recorded."
            )
        found = prepare(replace(self.cell, store=self.store.url), train=train)
        if self.key not in found.plan.stages:
            missing = ", ".join(found.plan.unresolved[:3])
            why = f"{missing} is not at hand" if missing else "its table, its data or its encoder changed since then"
            raise UserError(f"{self.key[:12]}: the same request makes another stage now: {why}. It was: {self.again}")
        return found

    def run_in(self, plan: Plan) -> Run:
        """The run that ends with it, or the first that passes through it."""
        ends = [run for run in plan.runs if run.stage.key == self.key]
        return next(iter(ends or [run for run in plan.runs if any(s.key == self.key for s in run.stage.chain)]))


def recorded(url: str | None, beginning: str) -> Recorded:
    """The stage whose key begins so, in the store at `url` (None: the default one). Raises UserError."""
    store = Store(url or DEFAULT_URL, create=False)
    key = find_key(store, beginning)
    stage, record = store.stage(key), store.records([key], predictions=True)[key]
    assert stage is not None  # a record keeps its stage
    for stored, label in requests_of(store, key):
        return Recorded(store, stage, record, of_cell(stored, label), label, command(of_run(stored, label), store=url))
    for stored in store.requests(key):
        if not stored.study:
            whole = from_json(stored.values)
            return Recorded(store, stage, record, whole, None, command(whole, store=url))
    return Recorded(store, stage, record)


def after_update(found: Recorded, update: int) -> Recorded:
    """The same stage with its weights after an update. Raises UserError where it has none of its own."""
    stage, said = found.stage, f"--update {update}: {found.key[:12]}"
    if stage.selection:
        raise UserError(
            f"{said} ({stage.phase}) keeps its best checkpoint alone; name a stage of pre-training or post-training, whose key 'harness "
            f"show {found.key[:12]}' prints among the parents."
        )
    if not 1 <= update <= stage.optim.steps:
        saved = "".join(f"{step:,}, " for step in found.record.provenance.get("saved_at", []))
        raise UserError(
            f"{said} has {stage.optim.steps:,} updates (weights saved after {saved}{stage.optim.steps:,}); name one."
        )
    return replace(found, step="last" if update == stage.optim.steps else update)


def requests_of(store: Store, key: str) -> Iterator[tuple[StoredRequest, Mapping[str, Any]]]:
    """The requests that made the runs which end with a stage, each with the run's label; benches before studies."""
    labels = store.labels(key)
    for stored in sorted(store.requests(key), key=lambda request: bool(request.study)):
        yield from ((stored, label) for label in labels if label["table"] == stored.table)


def plan_of(store: Store, stage: Stage) -> Plan | None:
    """The plan of a run that ends with a stage, for its texts; None where its data are not at hand any more."""
    for stored, label in requests_of(store, stage.key):
        try:
            made = prepare(replace(of_run(stored, label), store=store.url), train=False).plan
        except (UserError, OSError):
            continue
        if any(rows.digest in made.library for rows in stage.row_sets):
            return made
    return None


def class_names(stage: Stage, labels: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The names of the classes that a stage predicts: as its data name them, else by the tasks of its runs; their codes where
    neither is known."""
    if stage.data.classes:
        return stage.data.classes
    known = (TASKS[label["task"]].classes for label in labels if label["task"] in TASKS)
    found = next((names for names in known if len(names) == stage.data.num_labels), None)
    return found or tuple(f"class {code}" for code in range(stage.data.num_labels))


def task_of(stage: Stage, plan: Plan) -> Task | None:
    """The task that a stage is evaluated on."""
    dev = stage.data.dev
    return next((found.task for found in plan.tasks.values() if dev and found.dev.digest == dev.digest), None)


def best_key(request: Request) -> str:
    """The run of the last bench with the best dev score among those of one task; see `best_run`. Filters of `request` narrow the
    bench. Raises UserError."""
    store = Store(request.store or DEFAULT_URL, create=False)
    found = last_bench(store)
    if found is None:
        raise UserError(f"--best: the store {store.shown} holds no bench yet; run one first, or name a key.")
    plan = prepare(like_last(request, found[1]), train=False).plan
    tasks = dict.fromkeys(run.task for run in plan.runs)
    if len(tasks) > 1:
        raise UserError(
            f"--best: the last bench has {', '.join(tasks)}, whose scores cannot be compared; name one with --tasks."
        )
    best = best_run(plan.runs, store.records([run.stage.key for run in plan.runs]))
    if best is None:
        raise UserError("--best: no run of the last bench has finished yet; run the same bench again, or name a key.")
    return best.stage.key


def recorded_runs(store: Store, request: Request) -> list[dict[str, Any]]:
    """The recorded runs of a store, the newest first, narrowed by the table and the filters of `request`: key, table, row, method,
    task, size (0: the full training set), subset, seed, status, reason, metric and dev (at the selected checkpoint), step,
    seconds of the last stage, recorded_at (Unix time)."""
    if not store.exists:
        raise UserError(f"There is no store at {store.shown} yet; run a bench first, or name another store.")
    wanted = {name: getattr(request, name + "s") for name in ("task", "size", "subset", "seed")}
    methods = None if request.methods is None else {name.casefold() for name in request.methods}
    labels = [
        label
        for label in store.recorded_runs()
        if (not request.table or label["table"] == request.table)
        and (methods is None or methods & {label["row"].casefold(), label["method"].casefold()})
        and all(values is None or label[name] in values for name, values in wanted.items())
    ]
    records = store.records(dict.fromkeys(label["key"] for label in labels))
    found = []
    for label in labels:
        if (record := records.get(label["key"])) is not None:  # None: damaged
            metric, dev = next(iter(record.dev_scores.items()), ("", None))
            more = {"status": record.status, "reason": record.reason, "metric": metric, "dev": dev}
            more |= {"step": record.selected_step, "seconds": record.seconds, "recorded_at": label.pop("committed_at")}
            found.append({**label, **more})
    return found


def learning_curve(record: Record, stage: Stage) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """(step, loss) and (step, dev score by the metric of the selection) of a record, in order; without points that an older record
    lacks."""
    losses: list[tuple[int, float]] = []
    dev: list[tuple[int, float]] = []
    for entry in record.history:
        curve, step = entry.get("curve", {}), int(entry["step"])
        losses += [
            (int(at), float(loss)) for at, loss in curve.get("loss", [[step, entry["loss"]]] if "loss" in entry else [])
        ]
        dev += [(int(at), float(value)) for at, value in curve.get("dev", [])]
        if stage.selection and "dev" in entry:
            dev.append((step, float(entry["dev"][stage.selection.metric])))
    return losses, dev
