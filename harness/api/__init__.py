"""The Python API, for notebooks and scripts, as `import harness` gives it; docs/python.md lists the functions.

Arguments are those of the command line: `harness bench --table few_shot --methods ft --set fine_tune.lr=1e-5` is
`harness.bench("few_shot", methods="ft", set={"fine_tune.lr": 1e-5})`, and trains the same stages. What is wrong in an
argument raises `harness.errors.UserError`. Data come back as pandas data frames.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from os import fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from harness.api.arguments import Name, in_notebook, of_recorded, of_search, of_table, share, undisturbed
from harness.commands.export import Exported
from harness.commands.export import export as write
from harness.commands.predict import classifier
from harness.commands.prepare import Prepared, prepare, prepare_recorded
from harness.commands.publish import Published, open_other
from harness.commands.publish import publish as write_published
from harness.commands.recorded import StageRecord, best_key, recorded, recorded_runs
from harness.commands.recorded import misclassified as misclassified
from harness.commands.study import PreparedStudy, StudyPlan, prepare_study, recorded_studies, searched
from harness.commands.train import Show, unshown
from harness.commands.train import bench as run_bench
from harness.commands.trained import Embeddings, embeddings_of
from harness.commands.views import VIEWS, WITH_TEXTS, caption_of, detections_of, differences_of, grid_of, seal
from harness.errors import UserError, naming_arguments, unknown
from harness.planning.recipe import Value
from harness.planning.request import Request, read
from harness.scores import RESULT_DTYPES as RESULT_DTYPES
from harness.scores import results_of
from harness.search.points import Watch
from harness.search.request import TuneRequest
from harness.store import DEFAULT_URL, Store
from harness.store import merge as merge_stores
from harness.store.exchange import Merged
from harness.views.table import results_view
from harness.views.view import View
from harness.wording import counted

if TYPE_CHECKING:
    from harness.planning.work import Event


@dataclass(frozen=True, repr=False)
class PlanSummary:
    """What a table needs, what is done and what it costs."""

    _prepared: Prepared

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row a run: row, method, task, size (0: the full training set), subset, seed, status of its last stage ('' while
        it is not trained) and the key of that stage."""
        names, runs = ["row", "method", "task", "size", "subset", "seed"], self._prepared.plan.runs
        frame = pd.DataFrame([[getattr(run, name) for name in names] for run in runs], columns=names)
        return frame.assign(status=[self._status(run.stage.key) for run in runs], key=[run.stage.key for run in runs])

    @cached_property
    def stages(self) -> pd.DataFrame:
        """One row a stage, parents first: phase, objective, status, whether it is to be trained, estimated FLOPs, key."""
        plan, left = self._prepared.plan, {item.stage.key for item in self._prepared.items}
        return pd.DataFrame(
            {
                "phase": stage.phase,
                "objective": stage.objective.name,
                "status": self._status(key),
                "to_train": key in left,
                "flops": plan.stage_flops(stage),
                "key": key,
            }
            for key, stage in plan.stages.items()
        )

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The labelled rows that the runs train on, select on and are tested on, for another system to be compared with: task, split ('train', 'dev',
        or the name of a test set), size and subset of its training set (missing for a dev or test set that all training sets share), the digest
        of the set, the position of the example in it (as in the predictions of a record), its texts by the task's columns, and its label."""
        plan, frames = self._prepared.plan, []
        sets: dict[tuple[str, str, str], set[tuple[int, int]]] = {}
        for (name, size, subset, _, augment), training in plan.table_data.training.items():
            splits = {"train": training.labelled, "dev": training.dev, **plan.tasks[name].tests}
            for split, row_set in splits.items() if augment is None else ():
                sets.setdefault((name, split, row_set.digest), set()).add((size, subset))
        for (name, split, digest), drawn in sets.items():
            task, rows = plan.tasks[name].task, plan.library.get(digest)
            if rows is None:
                raise UserError(f"rows: the data of {name} are not at hand; name them with data=.")
            at: tuple[Any, Any] = next(iter(drawn)) if len(drawn) == 1 else (pd.NA, pd.NA)
            place = {"task": name, "split": split, "size": at[0], "subset": at[1], "digest": digest}
            texts = pd.DataFrame(rows.texts, columns=list(task.columns)).assign(label=task.kind.named(rows.gold))
            places = pd.DataFrame({**place, "example": range(len(texts))}).astype({"size": "Int64", "subset": "Int64"})
            frames.append(pd.concat([places, texts], axis=1))
        return pd.concat(frames, ignore_index=True)

    def _status(self, key: str) -> str:
        return self._prepared.statuses.get(key, ("",))[0]

    @property
    def hours(self) -> float:
        """The estimated hours of what is left, on this machine."""
        return self._prepared.hours

    @naming_arguments()
    def detect(self, points: float = 1.0) -> pd.DataFrame:
        """What the plan detects with 80 % power, and the cheapest design for a difference of `points`: one row a size and column, with
        scores on the metric's own scale. `docs/statistics.md` has the columns."""
        return detections_of(self._prepared, share("points", points)).frame

    @naming_arguments()
    def seal(self, against: str = "", region: float = 1.0, items: bool = False, points: float | None = None) -> str:
        """Seal the comparison in the store, before its first run, and give the digest to publish. `against`, `region`, `items`: as of `compare`; `points`: the
        difference that is looked for. Raises UserError where runs are recorded already."""
        wanted = None if points is None else share("points", points)
        return seal(self._prepared, against, share("region", region), items, wanted).digest

    @property
    def missing(self) -> tuple[str, ...]:
        """Data and encoders that are not at hand; while there are some, keys are provisional."""
        return self._prepared.plan.unresolved

    def __repr__(self) -> str:
        plan, left = self._prepared.plan, len(self._prepared.items)
        return f"<PlanSummary of {plan.resolved.table.name}: {len(plan.runs)} runs, {len(plan.stages)} stages, {left} to train>"


@dataclass(frozen=True, repr=False)
class BenchResult(View):
    """The results of a table after its training, as a view (`harness.report`). `complete`: every cell that can be filled is."""

    complete: bool = False

    @property
    def results(self) -> pd.DataFrame:
        """As `harness.results`."""
        return self.frame


@dataclass(frozen=True, repr=False)
class TuneResult:
    """A study after its trials. `name`: of the study, in the store; `trials`: one row a trial and replicate: trial, state,
    the values of its point, subset, seed, metric, value, status, reason and cost; `best`: the best point as the `set` of a bench, None where no point
    has all its replicates trained to the end."""

    name: str
    trials: pd.DataFrame
    best: dict[str, Value] | None

    def __repr__(self) -> str:
        return f"<Study {self.name}: {self.trials['trial'].nunique()} trials, best {self.best}>"


@of_table
def plan(request: Request) -> PlanSummary:
    """What a bench with these arguments would run; trains nothing.

    `table`: a name ('harness list tables') or the path of a YAML file. `set`: overridden values by key. `with_file`: a YAML
    file with a method's point, as `tune` writes it, or several. Others: fields of `harness.planning.request.Request`; what is left out is the table's.

    >>> import harness
    >>> ours = harness.plan("few_shot", tasks="movies", methods="ft", sizes=20, subsets=0, seeds=[31, 42])
    >>> ours
    <PlanSummary of few_shot: 2 runs, 2 stages, 2 to train>
    >>> ours.runs[["row", "task", "size", "subset", "seed", "status"]]
      row    task  size  subset  seed status
    0  FT  movies    20       0    31
    1  FT  movies    20       0    42
    """
    return PlanSummary(prepare(request, train=False))


@of_table
def bench(request: Request, *, on_event: Callable[[Event], None] | None = None) -> BenchResult:
    """Train what a table lacks, and give its results. Arguments as of `plan`; `on_event`: called with each event of a stage.

    >>> import harness
    >>> done = harness.bench("few_shot", tasks="movies", methods="ft", sizes=20, subsets=0, seeds=31, set={"fine_tune.steps": 4})
    >>> done.complete
    True
    >>> list(done.results["metric"])
    ['accuracy']
    """
    prepared, trackers = run_bench(request, _shown(on_event))
    trackers.finish()
    grid = grid_of(prepared)
    return BenchResult(**vars(results_view(grid, caption_of(prepared))), complete=grid.complete)


def _shown(to: Callable[..., None] | None) -> Show:
    """Events of stages and trials go to a callback, or below the cell of a notebook."""

    def show(subject: Any, dashboard: str) -> AbstractContextManager[Callable[..., None]]:
        below = in_notebook(len(subject.items)) if isinstance(subject, Prepared) else None
        return unshown() if isinstance(subject, tuple) else nullcontext(to or below or (lambda *_: None))

    return show


@of_recorded
def results(request: Request) -> pd.DataFrame:
    """Tidy results from the store, one row a replicate and metric; trains nothing. Arguments as of `plan`; without a table
    those of the last bench in the store.

    `docs/results.md` has the columns, `harness.RESULT_DTYPES` their dtypes; they are those of `harness report --format csv`. A run
    that failed has one row, with its reason; a run that was never tried has none.

    >>> import harness
    >>> ours = harness.results()
    >>> ours.groupby(["row", "task", "metric"])["test"].agg(["mean", "count"])["count"].tolist()
    [1]
    """
    prepared = _recorded(request)
    return results_of(prepared.plan, prepared.store)


def _recorded(request: Request, texts: bool = False) -> Prepared:
    """Prepared for its records. Warns where its texts are asked for and not at hand."""
    prepared = prepare_recorded(request, texts=texts)
    if prepared.note:
        warnings.warn(prepared.note, stacklevel=4)  # of the one who called
    return prepared


@of_recorded
def report(request: Request, *, view: str = "results") -> View:
    """A view of a table from the store, as `harness report --view` prints it; trains nothing. Its `frame` has every number, unrounded on the metric's own
    scale; `written(format)` writes it as text, md, latex, csv, json, parquet, html, png, svg or pdf. Other arguments as of `results`."""
    if view not in VIEWS:
        raise unknown("view", view, VIEWS, "view")
    prepared = _recorded(request, texts=view in WITH_TEXTS)
    return VIEWS[view](prepared, grid_of(prepared))


@of_recorded
def compare(request: Request, *, against: str = "", region: float = 1.0, items: bool = False) -> View:
    """Every row of a table against one of them, from the store, as a view (`report`); trains nothing. Arguments as of `results`.

    `against`: a row (left out: the first). `region`: rows are equivalent within so many points. `items`: test items are a
    third factor beside subsets and seeds.

    >>> import harness
    >>> done = harness.bench("few_shot", tasks="movies", methods=["ft", "scl"], sizes=20, subsets=[0, 1], seeds=31, set={"fine_tune.steps": 4})
    >>> found = harness.compare()
    >>> found.frame[["row", "against", "num_subsets", "num_seeds"]]
       row against  num_subsets  num_seeds
    0  SCL      FT            2          1
    """
    prepared = _recorded(request, texts=items)
    return differences_of(prepared, grid_of(prepared), against, share("region", region), items)


@of_search
def tune(request: TuneRequest, *, on_trial: Watch | None = None) -> TuneResult:
    """Search a method's hyperparameters, judged on dev over subsets and seeds. The trials that a store holds are not run again.

    `method`: 'cmlm', several as 'cmlm+scl', or a method's own Python file. `space`: a name ('harness list spaces') or the path of a YAML file. `preset`:
    of the space. `mode`: 'grid' or 'search'. `seed`: of the sampler. `set` and fields of a request hold for all points, as of `plan`;
    `on_trial`: called with what happened ('started', 'replicate', 'ended') and the trial.

    >>> import harness
    >>> found = harness.tune("ft", sampler="random", trials=2, tasks="movies", sizes=20, subsets=0, seeds=31, racing="none")
    >>> len(found.trials), "fine_tune.lr" in found.best
    (2, True)
    """
    with searched(request, _shown(on_trial)) as (opened, trackers):
        trackers.finish()
        return _result_of(opened)


@of_search
def tune_plan(request: TuneRequest) -> StudyPlan:
    """What `tune` with these arguments would run; trains nothing. Of a search its stages, FLOPs and hours are upper bounds."""
    return prepare_study(request, train=False).plan()


@undisturbed()
def studies(*, store: str = DEFAULT_URL) -> pd.DataFrame:
    """The studies of a store, one row a study, the one that ran last first: study, table, row, numbers of trials (complete, dropped, failed, running),
    metric, best (the mean of its best trial on dev) and started_at (of its last trial)."""
    return _with_times(recorded_studies(Store(store, create=False)), "started_at")


def _with_times(rows: list[dict[str, Any]], column: str) -> pd.DataFrame:
    frame = pd.DataFrame(rows)
    return frame.assign(**{column: pd.to_datetime(frame[column], unit="s", utc=True)}) if rows else frame


def _result_of(opened: PreparedStudy) -> TuneResult:
    best = opened.best
    settings = opened.points.space.overrides(best.point) if best else ()
    return TuneResult(opened.name, opened.frame, {each.key: each.value for each in settings} if best else None)


@undisturbed()
def record(key: str, *, store: str = DEFAULT_URL) -> StageRecord:
    """One recorded stage by its key, or the beginning of one.

    >>> import harness
    >>> key = harness.results()["key"][0]
    >>> ours = harness.record(key)
    >>> ours.history[["step", "dev.accuracy"]].shape
    (1, 2)
    >>> wrong = ours.predictions.query("gold != predicted")
    >>> list(wrong.columns)
    ['split', 'sentence', 'gold', 'predicted', 'logit.negative', 'logit.positive']
    """
    return recorded(store, key)


@of_recorded
def publish(request: Request, folder: Name, *, without_labels: bool = False) -> Published:
    """Write the results and records of a table as a folder that others check, print and continue. `without_labels`: without the gold
    labels of its examples, which `merge` takes from the data. Other arguments as of `results`."""
    return write_published(prepare_recorded(request), Path(fspath(folder)), gold=not without_labels)


@undisturbed()
def merge(other: Name, *, data: Name | None = None, store: str = DEFAULT_URL) -> Merged:
    """Take over what another store, or a published folder, holds and `store` lacks. A finished record of `store` stays; what differs is
    in `conflicts` and `studies` of the result. `data`: of a folder that was published without labels."""
    theirs, labels = open_other(fspath(other), None if data is None else fspath(data))
    return merge_stores(Store(store), theirs, labels)


@undisturbed()
def runs(*, store: str = DEFAULT_URL) -> pd.DataFrame:
    """The recorded runs of a store, one row a run, the newest first.

    Columns: key, table, row, method, task, size (0: the full training set), subset, seed, status, reason, metric, dev (at the
    selected checkpoint, 1 for 100 %), step, seconds of the last stage, recorded_at.
    """
    return _with_times(recorded_runs(Store(store, create=False), Request()), "recorded_at")


@undisturbed("torch", "transformers.utils.logging")
def export(
    key: str = "",
    out: Name = "model",
    *,
    best: bool = False,
    tasks: str | None = None,
    store: str | None = None,
    storage: str | None = None,
    accept_difference: bool = False,
    license: str = "",
    onnx: bool = False,
) -> Exported:
    """Write a recorded stage as a folder that plain transformers loads, with a model card; see docs/models.md.

    `key`: or its beginning; with `best` the run of the last bench with the best dev score (`tasks`: the one that is meant, where it has several). Weights that
    are not stored are trained again and compared with the record. `license`: what the card states, as the hub calls it ('apache-2.0'). `onnx`: also
    as model.onnx, of a classifier.
    """
    if bool(key) == best:
        raise UserError("export: name a key, or give best=True for the best run of the last bench.")
    key = best_key(read(Request, {"store": store, "tasks": tasks})) if best else key
    options: dict[str, Any] = {"accept_difference": accept_difference, "license": license, "onnx": onnx}
    return write(recorded(store, key), Path(fspath(out)), unshown, storage=storage, **options)


@undisturbed("torch", "transformers.utils.logging")
def predict(
    model: Name, texts: Sequence[str | tuple[str, ...]], *, store: str | None = None, storage: str | None = None
) -> pd.DataFrame:
    """What an exported folder, or a recorded run whose weights are stored, predicts of texts (or pairs of them), one row each: the
    predicted class and the probability of each class as 'probability.CLASS', or the predicted number.
    Raises UserError for another number of texts in a row than the model takes."""
    rows = _rows(texts)
    found = classifier(fspath(model), store=store, storage=storage)
    if wrong := [row for row in rows if found.columns and len(row) != len(found.columns)]:
        raise UserError(
            f"texts: a row has {counted(len(wrong[0]), 'text')}, and the model takes {len(found.columns)} ({', '.join(found.columns)})."
        )
    return pd.DataFrame(found.columns_of(rows))


@undisturbed("torch", "transformers.utils.logging")
def embeddings(
    key: str,
    texts: Sequence[str | tuple[str, ...]] | None = None,
    *,
    store: str | None = None,
    storage: str | None = None,
) -> Embeddings:
    """The states of the first token after the last layer [n, d] under a recorded stage's weights, of its first test set, with the gold
    labels, or of `texts` (or pairs of them). Weights that are not stored are trained again and
    compared with the record."""
    return embeddings_of(recorded(store, key), None if texts is None else _rows(texts), storage)


def _rows(texts: Sequence[str | tuple[str, ...]]) -> list[tuple[str, ...]]:
    if isinstance(texts, str):
        raise UserError("texts: should be a list of texts; give one text as [text].")
    return [(text,) if isinstance(text, str) else tuple(text) for text in texts]
