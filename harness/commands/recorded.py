"""What a store remembers: a recorded stage with what its data tell of it, the run and the cell that it belongs to, texts and numbers; its runs; the last
bench, and the request and command that make a run again."""

from __future__ import annotations

import html
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harness.commands.prepare import Prepared, lacking, name_of_task, prepare, prepare_recorded
from harness.commands.tracking import history
from harness.errors import UserError, masked, unknown
from harness.methods import METHODS, known_methods
from harness.paths import PYTHON
from harness.planning.request import (
    FIELDS,
    LABELLED,
    Request,
    flag_of,
    from_json,
    has_rows,
    is_own,
    names_joined,
    same_table,
)
from harness.planning.runs import Plan, best_run
from harness.planning.table import load_table
from harness.search.request import SEARCH_FIELDS, TuneRequest
from harness.specs import Record, RowSet, Run, Stage
from harness.store import DEFAULT_URL, Store, StoredRequest
from harness.store.records import predicted_by
from harness.tasks.task import TASKS
from harness.wording import some_of

if TYPE_CHECKING:
    import pandas as pd


class RecordedRun(NamedTuple):
    """`label`: as the store has it; empty where a stage ends no run. `cell`: the request of all subsets and seeds of its cell, or without a label the whole
    one, and the `command` that makes it again; None and '' where the store does not know the request."""

    label: Mapping[str, Any]
    cell: Request | None = None
    command: str = ""


@dataclass(frozen=True, repr=False)
class StageRecord:
    """A stage of a store and its record with predictions."""

    store: Store
    stage: Stage
    record: Record
    runs: Sequence[RecordedRun] = ()  # those that it ends
    planned: Prepared | None = None  # a table of several runs that has it, where one is at hand

    @property
    def again(self) -> str:
        """The command that makes it again, '' where that is not known."""
        return next((run.command for run in self.runs if run.command), "")

    @property
    def key(self) -> str:
        return self.record.key

    def prepare(self, *, train: bool = False) -> Prepared:
        """Its cell, or the table that has it, planned. Raises UserError where the request is not known, or its files changed."""
        if self.planned:
            return prepare(self.planned.request, train=True) if train else self.planned
        cell = next((run.cell for run in self.runs if run.cell), None)
        if cell is None:
            raise UserError(
                f"{self.key[:12]}: the store {self.store.shown} does not know which request made this stage; run its bench again "
                "with this store, which trains nothing that is recorded."
            )
        prepared = prepare(replace(cell, store=self.store.url), train=train)
        if self.key not in prepared.plan.stages:
            missing = ", ".join(prepared.plan.unresolved[:3])
            why = f"{missing} is not at hand" if missing else "its table, its data or its encoder changed since then"
            raise UserError(f"{self.key[:12]}: the same request makes another stage now: {why}. It was: {self.again}")
        return prepared

    def run_in(self, plan: Plan) -> Run:
        """The run that ends with it, or the first that passes through it."""
        passing = [run for run in plan.runs if any(stage.key == self.key for stage in run.stage.chain)]
        return next((run for run in passing if run.stage.key == self.key), passing[0])

    @cached_property
    def _texts(self) -> tuple[Plan | None, str]:
        """The plan with the texts of its examples; None and why where these are not at hand."""
        try:
            plan = self.prepare().plan
        except (UserError, OSError) as error:
            return None, str(error).rstrip(".")
        if any(rows.digest in plan.library for rows in self.stage.row_sets):
            return plan, ""
        return None, f"{some_of(lacking(plan)) or 'its data'} is not at hand"

    @property
    def textless(self) -> str:
        """Why the texts of its examples are missing."""
        return self._texts[1]

    @cached_property
    def history(self) -> pd.DataFrame:
        """The evaluations, one row each: step, the means of the loss's terms since the entry before, and scores on dev
        as 'dev.accuracy'."""
        import pandas as pd

        entries = [{name: value for name, value in entry.items() if name != "curve"} for entry in self.record.history]
        return pd.json_normalize(entries)

    @cached_property
    def curve(self) -> pd.DataFrame:
        """The learning curve in more points than the evaluations, one row a point: step, loss (its mean since the point before)
        and dev, the score that checkpoints are selected by. Values that are not finite are left out."""
        import pandas as pd

        names = {"train/loss": "loss", "dev/curve": "dev"}
        names |= {f"dev/{self.stage.selection.metric}": "dev"} if self.stage.selection else {}
        points = pd.DataFrame(history(self.record), columns=["name", "step", "value"])
        named = points.assign(name=points["name"].map(names)).dropna()
        wide = named.pivot_table(index="step", columns="name", values="value", aggfunc="first")
        return wide.reindex(columns=["loss", "dev"]).rename_axis(columns=None).reset_index()

    @cached_property
    def predictions(self) -> pd.DataFrame:
        """One row an example of dev and of each test set: split, the text columns of its task where its texts are at hand, gold
        and predicted class (by name where the task is known, else by code; numbers for a regression), and the logit of each
        class."""
        import pandas as pd

        frames = [self.split(name) for name in self.splits]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["split", "gold", "predicted"])

    @property
    def splits(self) -> dict[str, RowSet]:
        """The sets that predictions are recorded of, by name."""
        data = self.stage.data
        splits = {"dev": data.dev} if data.dev else {}
        splits |= {"test" if len(data.tests) == 1 else rows.name.rpartition("/")[2]: rows for rows in data.tests}
        return {name: rows for name, rows in splits.items() if rows.digest in self.record.predictions}

    def split(self, name: str) -> pd.DataFrame:
        """The rows of `predictions` of one set."""
        import pandas as pd

        rows, (plan, _) = self.splits[name], self._texts
        predicted = predicted_by(self.record, rows.digest)
        task = plan.task_of.get(self.key) if plan else None
        texts = plan.library.get(rows.digest) if plan else None
        frame = pd.DataFrame({"split": [name] * len(predicted.gold)})
        if task and texts is not None and np.array_equal(texts.gold, predicted.gold):
            frame[list(task.columns)] = texts.texts
        return frame.assign(**(task.kind if task else self.stage.data.kind or predicted.kind).frame(predicted))

    def __repr__(self) -> str:
        return f"<{self.stage.phase} {self.key[:12]}: {self.record.status}>"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self)[1:-1])}</p>{self.history.to_html(index=False, max_rows=20, na_rep='')}"


def recorded(url: str | None, beginning: str) -> StageRecord:
    """The only stage whose key begins so, in the store at `url` (None: the default one). Raises UserError."""
    store = Store(url or DEFAULT_URL, create=False)
    check_exists(store)
    keys = store.keys_like(beginning)
    if not keys:
        raise UserError(f"The store {store.shown} has no record whose key begins with '{beginning}'.")
    if len(keys) > 1:
        shown = ", ".join(key[:12] for key in keys)
        raise UserError(f"Several keys begin with '{beginning}': {shown}; give more characters.")
    stage, record = store.stages(keys)[keys[0]], store.records(keys, predictions=True)[keys[0]]
    asked = sorted((each for each, _ in store.requests_for(keys)), key=lambda each: bool(each.study))
    runs = [
        _recorded_run(label, next((each for each in asked if each.table == label["table"]), None), stage, url)
        for label in store.labels(keys)
    ]
    if not any(run.cell for run in runs):
        runs += [_recorded_run({}, each, stage, url) for each in asked if not each.study][:1]
    return StageRecord(store, stage, record, runs)


def _recorded_run(label: Mapping[str, Any], stored: StoredRequest | None, stage: Stage, url: str | None) -> RecordedRun:
    """With the part of a stored request that makes it; all subsets and seeds of its cell where the table takes the best of several. A row that the
    table does not have goes by its method, and a method of a user's file by all the files that the request names."""
    if stored is None:
        return RecordedRun(label)
    request = from_json(stored.values)
    encoders = tuple(name for name in request.encoder or () if stage.encoder.name in (name, Path(name).name))
    request = replace(request, encoder=encoders[:1] or request.encoder)
    if not label:
        return RecordedRun(label, request, command(request, store=url))
    task, row, method = (str(label[name]) for name in ("task", "row", "method"))
    best_of = False
    with suppress(UserError):  # the user's file is gone or changed
        table = load_table(request.table)
        best_of = (table.aggregate.k or 1) > 1
        row = row if row in {each.name for each in table.rows} else method
    of_file = any(part not in METHODS or METHODS[part].file for part in method.split("+"))
    files = tuple(name for name in request.methods or () if PYTHON in name and of_file)
    named = request.tasks is None or task in request.tasks
    cell = replace(
        request,
        reference=None,
        methods=files or (row,),
        tasks=(task,) if named else tuple(text for text in request.tasks or () if is_own(text)),
        sizes=(label["size"],) if label["size"] else request.sizes,
    )
    alone = cell if best_of else replace(cell, seeds=(label["seed"],), subsets=(label["subset"],))
    return RecordedRun(label, cell, command(alone, store=url))


def best_key(request: Request) -> str:
    """The run of the last bench with the best dev score among those of one task that leave a model; see `best_run`. Filters of `request` narrow the
    bench. Raises UserError."""
    store = Store(request.store or DEFAULT_URL, create=False)
    last = last_bench(store)
    if last is None:
        raise UserError(f"--best: the store {store.shown} holds no bench yet; run one first, or name a key.")
    plan = prepare_recorded(like_last(request, last[1])).plan
    tasks = dict.fromkeys(run.task for run in plan.runs)
    if len(tasks) > 1:
        raise UserError(
            f"--best: the last bench has {', '.join(tasks)}, whose scores cannot be compared; name one with --tasks."
        )
    best = best_run(plan.runs_with_weights, store.records(run.stage.key for run in plan.runs))
    if best is None:
        raise UserError(
            "--best: no run of the last bench that leaves a model has finished yet (what scikit-learn fits leaves none); run the same bench "
            "again, or name a key."
        )
    return best.stage.key


def misclassified(key: str, *, split: str = "dev", store: str = DEFAULT_URL) -> pd.DataFrame:
    """The examples of one split that a run got wrong: texts (where they are not at hand, the number of the row in its split from 1),
    gold and predicted class, confidence (the
    probability of the predicted class) and logits; the highest probability first. Of a regression all examples by `difference`.

    `attrs`: 'rows' of the split, 'wrong' of them, the 'measure' that orders them, and 'textless', why there are no texts. Raises UserError for a split without predictions.
    """
    record = recorded(store, key)
    if not record.splits:
        raise UserError(
            f"{record.key[:12]} ({record.stage.phase}) has no predictions; name a run that ends with fine-tuning."
        )
    if split not in record.splits:
        raise unknown("split", split, record.splits, "--split")
    predicted = predicted_by(record.record, record.splits[split].digest)
    order, measure, values = predicted.kind.mistakes(predicted)
    wrong = record.split(split).assign(**{measure: values}).iloc[order].reset_index(drop=True)
    if record.textless:
        wrong.insert(1, "row", order + 1)
    wrong.attrs.update(rows=len(values), wrong=len(order), measure=measure, textless=record.textless)
    return wrong


def recorded_runs(store: Store, request: Request) -> list[dict[str, Any]]:
    """The recorded runs of a store, the newest first, narrowed by the table and the filters of `request`: key, table, row, method,
    task, size (0: the full training set), subset, seed, status, reason, metric and dev (at the selected checkpoint), step,
    seconds of the last stage, recorded_at (Unix time)."""
    check_exists(store)
    wanted = {name: getattr(request, name + "s") for name in ("task", "size", "subset", "seed")}
    wanted["table"] = (request.table,) if request.table else None
    wanted["task"] = None if request.tasks is None else tuple(map(name_of_task, request.tasks))
    methods = None if request.methods is None else {known_methods(name).casefold() for name in request.methods}
    runs = [
        label
        for label in store.recorded_runs()
        if (methods is None or methods & {label["row"].casefold(), label["method"].casefold()})
        and all(values is None or label[name] in values for name, values in wanted.items())
    ]
    records = store.records({run["key"] for run in runs})
    for run in runs:
        record = records[run["key"]]
        metric, dev = next(iter(record.dev_scores.items()), ("", None))
        run |= {"status": record.status, "reason": record.reason, "metric": metric, "dev": dev}
        run |= {"step": record.selected_step, "seconds": record.seconds, "recorded_at": run.pop("committed_at")}
    return runs


# ---------------------------------------------------------------------------------------------- requests and commands


def check_exists(store: Store) -> None:
    """Raises UserError where there is no store."""
    if not store.exists:
        raise UserError(f"There is no store at {store.shown}; run a bench first, or name another one with --store.")


def last_bench(store: Store, table: str = "") -> tuple[StoredRequest, Request] | None:
    """The last bench that was run, of `table` where one is named."""
    benches = ((stored, from_json(stored.values)) for stored in store.requests() if not stored.study)
    return next((each for each in benches if not table or same_table(each[1].table, table)), None)


def like_last(request: Request, last: Request) -> Request:
    """The request with the values of the last bench in what it leaves out, and its overrides after that one's. A task of the user's may be
    named as the table names it, instead of by its file."""
    if unread := [task for task in request.tasks or () if not is_own(task) and task not in TASKS]:
        files = {name_of_task(text): text for text in last.tasks or () if is_own(text)}
        if missing := next((task for task in unread if task not in files), None):
            raise unknown("task", missing, [*TASKS, *files], request.origin("tasks"))
        request = replace(request, tasks=tuple(files.get(task, task) for task in request.tasks or ()))
    if request.tasks and not any(map(has_rows, request.tasks)):
        left_out: dict[str, Any] = dict.fromkeys(LABELLED)  # they describe files that are not among its tasks
        last = replace(last, **left_out)
    if request.methods is not None:  # they are all the rows that are wanted
        last = replace(last, reference=None)
    given = [name for name in ("table", *FIELDS) if getattr(request, name) not in (None, "")]
    taken = {name: getattr(last, name) for name in ("table", *FIELDS) if name not in given}
    origins = {name: last.origin(name) for name in taken}
    overrides = (*last.overrides, *request.overrides)
    return replace(request, **taken, overrides=overrides, origins={**request.origins, **origins})


def tune_command(request: TuneRequest) -> str:
    """The command line of a search, for a shell."""
    words = ["harness", "tune", *(request.base.methods or (request.method,))]
    for name in (*SEARCH_FIELDS, "out"):
        if value := getattr(request, name):
            words += [f"--{value}"] if name == "mode" else [f"--{name}", str(value)]
    words += _words(replace(request.base, methods=None, preset=None), request.base.store)
    return masked(shlex.join(words))


def command(request: Request, verb: str = "bench", store: str | None = None) -> str:
    """The command line of a request, for a shell."""
    return masked(shlex.join(["harness", verb, "--table", request.table, *_words(request, store)]))


def _words(request: Request, store: str | None) -> list[str]:
    words: list[str] = []
    for name in FIELDS:
        value = getattr(request, name)
        if value not in (None, False):
            words += (
                [flag_of(name)]
                if value is True
                else [flag_of(name), names_joined(value) if isinstance(value, tuple) else str(value)]
            )
    for override in request.overrides:
        words += ["--set", override.text]
    return words + (["--store", store] if store else [])
