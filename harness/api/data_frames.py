"""What the Python API gives back: plans, results, comparisons and studies as pandas data frames."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from harness.api.arguments import share
from harness.commands.prepare import Prepared
from harness.commands.views import detections_of, seal
from harness.errors import UserError, naming_arguments
from harness.planning.recipe import Value
from harness.views.view import View


@dataclass(frozen=True, repr=False)
class PlanSummary:
    """What a table needs, what is done and what it costs."""

    _prepared: Prepared

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row a run: row, method, task, size (0: the full training set), subset, seed, status of its last stage ('' while
        it is not trained) and the key of that stage."""
        names = ["row", "method", "task", "size", "subset", "seed"]
        runs = self._prepared.plan.runs
        frame = pd.DataFrame([{name: getattr(run, name) for name in names} for run in runs], columns=names)
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
    """A study after its trials. `name`: of the study, in the store and on Ray's dashboard; `trials`: one row a trial and replicate: trial, state,
    the values of its point, subset, seed, metric, value, status, reason and cost; `best`: the best point as the `set` of a bench, None where no point
    has all its replicates trained to the end."""

    name: str
    trials: pd.DataFrame
    best: dict[str, Value] | None

    def __repr__(self) -> str:
        return f"<Study {self.name}: {self.trials['trial'].nunique()} trials, best {self.best}>"
