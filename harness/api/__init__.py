"""The Python API, for notebooks and scripts: `import harness`, then `harness.plan`, `harness.bench`, `harness.tune`,
`harness.results`, `harness.compare`, `harness.record`, and for trained models `harness.runs`, `harness.misclassified`, `harness.export`, `harness.predict`.

Arguments are those of the command line: `harness bench --table few_shot --methods ft --set fine_tune.lr=1e-5` is
`harness.bench("few_shot", methods="ft", set={"fine_tune.lr": 1e-5})`, and trains the same stages. What is wrong in an
argument raises `harness.errors.UserError`. Data come back as pandas data frames.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from os import fspath
from typing import TYPE_CHECKING, Any, Unpack

from harness.api.arguments import Fields, Name, Set, Shared, checked, request_from, with_table
from harness.api.comparisons import CompareResult, compare_prepared
from harness.api.data_frames import BenchResult, PlanSummary, StageRecord, TuneResult
from harness.api.models import export, misclassified, predict, runs
from harness.commands.prepare import Prepared, prepare
from harness.commands.recorded import plan_of
from harness.commands.stored import find_key, last_bench, like_last
from harness.commands.study import Opened, Watcher, open_study, prepare_study, run_trials, study_of
from harness.commands.track import Tracking, check_trackers, projection_of, study_projection
from harness.commands.train import train, translated
from harness.errors import UserError
from harness.search.request import TuneRequest
from harness.search.results import best_point
from harness.search.space import Mode
from harness.store import DEFAULT_URL, Store
from harness.tables.request import Request
from harness.tables.results import results_of
from harness.tables.schema import RESULT_DTYPES

if TYPE_CHECKING:
    import pandas as pd

    from harness.tables.lifecycle import Event

__all__ = [
    "RESULT_DTYPES",
    "BenchResult",
    "CompareResult",
    "PlanSummary",
    "StageRecord",
    "TuneResult",
    "bench",
    "compare",
    "export",
    "misclassified",
    "plan",
    "predict",
    "record",
    "results",
    "runs",
    "tune",
]


def plan(table: Name = "", *, set: Set | None = None, with_file: Name = "", **fields: Unpack[Fields]) -> PlanSummary:
    """What a bench with these arguments would run; trains nothing.

    `table`: a name ('harness list tables') or the path of a YAML file. `set`: overridden values by key. `with_file`: a YAML
    file with a method's point, as `tune` writes it. `fields`: see `Fields`; what is left out is the table's.

    >>> import harness
    >>> ours = harness.plan("few_shot", tasks="movies", methods="ft", sizes=20, subsets=0, seeds=[31, 42])
    >>> ours
    <PlanSummary of few_shot: 2 runs, 2 stages, 2 to train>
    >>> ours.runs[["row", "task", "size", "subset", "seed", "status"]]
      row    task  size  subset  seed status
    0  FT  movies    20       0    31
    1  FT  movies    20       0    42
    """
    return PlanSummary(prepare(with_table(request_from(table, set, with_file, fields)), train=False))


def bench(
    table: Name = "",
    *,
    set: Set | None = None,
    with_file: Name = "",
    on_event: Callable[[Event], None] | None = None,
    **fields: Unpack[Fields],
) -> BenchResult:
    """Train what a table lacks, and give its results. Arguments as of `plan`; `on_event`: called with each event of a stage.

    >>> import harness
    >>> done = harness.bench("few_shot", tasks="movies", methods="ft", sizes=20, subsets=0, seeds=31, set={"fine_tune.steps": 4})
    >>> done.complete
    True
    >>> list(done.results["metric"])
    ['accuracy']
    """

    @contextmanager
    def view(*_: Any) -> Iterator[Callable[[Event], None]]:
        yield on_event or (lambda event: None)

    asked = with_table(request_from(table, set, with_file, fields))
    check_trackers(asked)
    prepared = prepare(asked, train=True)
    tracking = Tracking(asked, prepared.store.url, warnings.warn)
    if prepared.items:
        prepared, _ = translated(prepared, _uncounted)
        prepared = train(prepared, tracking.watched(view))
    if prepared.plan.runs:
        prepared.remember()
    tracking.finish(lambda: projection_of(prepared))
    return BenchResult(prepared)


@contextmanager
def _uncounted(*_: Any) -> Iterator[Callable[[int], Callable[[int, int], None]]]:
    yield lambda size: lambda done, total: None


def results(
    table: Name = "", *, set: Set | None = None, with_file: Name = "", **fields: Unpack[Fields]
) -> pd.DataFrame:
    """Tidy results from the store, one row a replicate and metric; trains nothing. Arguments as of `plan`; without a table
    those of the last bench in the store.

    `docs/results.md` has the columns, `harness.RESULT_DTYPES` their dtypes; they are those of `harness report --format csv`. A run
    that failed has one row, with its reason; a run that was never tried has none.

    >>> import harness
    >>> ours = harness.results()
    >>> ours.groupby(["row", "task", "metric"])["test"].agg(["mean", "count"])["count"].tolist()
    [1]
    """
    prepared = _recorded("results", request_from(table, set, with_file, fields))
    return results_of(prepared.plan, prepared.store)


def _recorded(function: str, request: Request) -> Prepared:
    """The request prepared; without a table that of the last bench in its store."""
    if not request.table:
        last = last_bench(Store(request.store or DEFAULT_URL, create=False))
        if last is None:
            raise UserError(f"{function}: the store holds no bench yet; name a table, or a store with one.")
        request = like_last(request, last[1])
    return prepare(request, train=False)


def compare(
    table: Name = "",
    *,
    against: str = "",
    region: float = 1.0,
    items: bool = False,
    set: Set | None = None,
    with_file: Name = "",
    **fields: Unpack[Fields],
) -> CompareResult:
    """Every row of a table against one of them, from the store; trains nothing. Arguments as of `results`.

    `against`: a row (left out: the first). `region`: rows are equivalent within so many points. `items`: test items are a
    third factor beside subsets and seeds.

    >>> import harness
    >>> done = harness.bench("few_shot", tasks="movies", methods=["ft", "scl"], sizes=20, subsets=[0, 1], seeds=31, set={"fine_tune.steps": 4})
    >>> found = harness.compare()
    >>> found.comparisons[["row", "against", "num_subsets", "num_seeds"]]
       row against  num_subsets  num_seeds
    0  SCL      FT            2          1
    """
    if not isinstance(items, bool):
        raise UserError(f"items: should be true or false, not {items!r}.")
    prepared = _recorded("compare", request_from(table, set, with_file, fields))
    return compare_prepared(prepared, against, checked("region", region), items)


def tune(
    method: str,
    *,
    space: Name = "",
    preset: str | None = None,
    mode: Mode | None = None,
    trials: int | None = None,
    sampler: str | None = None,
    racing: str | None = None,
    metric: str | Iterable[str] | None = None,
    seed: int = 0,
    set: Set | None = None,
    on_trial: Watcher | None = None,
    **fields: Unpack[Shared],
) -> TuneResult:
    """Search a method's hyperparameters, judged on dev over subsets and seeds. The trials that a store holds are not run again.

    `method`: 'cmlm', or several as 'cmlm+scl'. `space`: a name ('harness list spaces') or the path of a YAML file. `preset`:
    of the space. `mode`: 'grid' or 'search'. `seed`: of the sampler. `set` and `fields` hold for all points, as of `plan`;
    `on_trial`: called with what happened ('started', 'replicate', 'ended') and the trial.

    >>> import harness
    >>> found = harness.tune("ft", sampler="random", trials=2, tasks="movies", sizes=20, subsets=0, seeds=31, racing="none")
    >>> len(found.trials), "fine_tune.lr" in found.best
    (2, True)
    """

    @contextmanager
    def view(*_: Any) -> Iterator[Watcher]:
        yield on_trial or (lambda kind, trial: None)

    request = TuneRequest(
        method=method,
        base=request_from("", set, "", fields, Shared),
        space=fspath(space),
        preset=checked("preset", preset),
        mode=mode,
        trials=checked("trials", trials),
        sampler=checked("sampler", sampler),
        racing=checked("racing", racing),
        metrics=checked("metric", metric),
        seed=checked("seed", seed),
    )
    check_trackers(request.base)
    prepared = prepare_study(request)
    if prepared.prepared.plan.untranslated:
        translated(prepared.prepared, _uncounted)
        prepared = prepare_study(request)  # what was translated has its identity now
    with open_study(prepared) as opened:
        tracking = Tracking(request.base, opened.store.url, warnings.warn)
        if opened.proposals.remaining():
            run_trials(opened, tracking.watched_trials(view))
        opened.mirror.sync(opened.proposals.history.entries)
        tracking.finish(lambda: study_projection(opened))
        return _tuned(opened)


def _tuned(opened: Opened) -> TuneResult:
    study = study_of(opened)
    best = best_point(study)
    overrides = () if best is None else opened.points.space.overrides(best.point)
    return TuneResult(opened.name, study, None if best is None else {o.key: o.value for o in overrides})


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
    opened = Store(store, create=False)
    whole = find_key(opened, key)
    stage, found = opened.stage(whole), opened.records([whole], predictions=True)[whole]
    assert stage is not None  # a record keeps its stage
    return StageRecord(stage, found, plan_of(opened, stage) if found.predictions else None)
