"""What the Python API gives back: plans, results, studies and records as pandas data frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.api.arguments import checked
from harness.commands.compare import detections_of
from harness.commands.prepare import Prepared
from harness.commands.recorded import learning_curve
from harness.commands.report import grid_of
from harness.search.results import Study
from harness.search.trials import Trial
from harness.specs import Record, RowSet, Stage
from harness.tables.plan import Plan
from harness.tables.recipe import Value
from harness.tables.render import render
from harness.tables.render_power import detection_rows
from harness.tables.results import results_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class PlanSummary:
    """What a table needs, what is done and what it costs."""

    _prepared: Prepared

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row a run: row, method, task, size (0: the full training set), subset, seed, status of its last stage ('' while
        it is not trained) and the key of that stage."""
        import pandas as pd

        statuses = self._prepared.statuses
        names = ("row", "method", "task", "size", "subset", "seed")
        return pd.DataFrame(
            [
                {
                    **{name: getattr(run, name) for name in names},
                    "status": statuses.get(run.stage.key, ("",))[0],
                    "key": run.stage.key,
                }
                for run in self._prepared.plan.runs
            ],
            columns=[*names, "status", "key"],
        )

    @cached_property
    def stages(self) -> pd.DataFrame:
        """One row a stage, parents first: phase, objective, status, whether it is to be trained, estimated FLOPs, key."""
        import pandas as pd

        plan, statuses = self._prepared.plan, self._prepared.statuses
        left = {item.stage.key for item in self._prepared.items}
        return pd.DataFrame(
            {
                "phase": stage.phase,
                "objective": stage.objective.name,
                "status": statuses.get(key, ("",))[0],
                "to_train": key in left,
                "flops": plan.stage_flops(stage),
                "key": key,
            }
            for key, stage in plan.stages.items()
        )

    @property
    def hours(self) -> float:
        """The estimated hours of what is left, on this machine."""
        return self._prepared.hours

    def detect(self, points: float = 1.0) -> pd.DataFrame:
        """What the plan detects with 80 % power, and the cheapest design for a difference of `points`: one row a size and column, with
        scores on the metric's own scale. `docs/statistics.md` has the columns."""
        import pandas as pd

        return pd.DataFrame(detection_rows(detections_of(self._prepared, checked("points", points) / 100)))

    @property
    def missing(self) -> tuple[str, ...]:
        """Data and encoders that are not at hand; while there are some, keys are provisional."""
        return self._prepared.plan.unresolved

    def __repr__(self) -> str:
        plan, left = self._prepared.plan, len(self._prepared.items)
        return f"<PlanSummary of {plan.resolved.table.name}: {len(plan.runs)} runs, {len(plan.stages)} stages, {left} to train>"


@dataclass(frozen=True, repr=False)
class BenchResult:
    """A table after its training."""

    _prepared: Prepared

    @cached_property
    def results(self) -> pd.DataFrame:
        """As `harness.results`."""
        return results_of(self._prepared.plan, self._prepared.store)

    @property
    def complete(self) -> bool:
        """Every cell that can be filled is."""
        return grid_of(self._prepared)[0].complete

    def table(self, format: str = "text") -> str:
        """The rendered table; `format`: text, md, latex, csv or json."""
        return render(*grid_of(self._prepared), format)

    def __repr__(self) -> str:
        return self.table()


@dataclass(frozen=True, repr=False)
class TuneResult:
    """A study after its trials. `name`: of the study, in the store and on Ray's dashboard."""

    name: str
    _study: Study
    _best: Mapping[str, Value] | None

    @property
    def best(self) -> dict[str, Value] | None:
        """The best point as the `set` of a bench; None where no point has all its replicates trained to the end."""
        return None if self._best is None else dict(self._best)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row a trial, replicate and metric: trial, state, the values of its point, subset, seed, metric, value, status."""
        import pandas as pd

        return pd.DataFrame([row for trial in self._study.trials for row in self._rows(trial)])

    def _rows(self, trial: Trial) -> Iterator[dict[str, Any]]:
        point = {path: trial.point.get(path) for path in self._study.paths}
        for (subset, seed), outcome in zip(self._study.replicates, trial.outcomes, strict=False):
            for metric, value in zip(self._study.metrics, outcome.values, strict=True):
                yield {
                    "trial": trial.number,
                    "state": trial.state,
                    **point,
                    "subset": subset,
                    "seed": seed,
                    "metric": metric,
                    "value": value,
                    "status": outcome.status,
                }

    def __repr__(self) -> str:
        return f"<Study {self.name}: {len(self._study.trials)} trials, best {self.best}>"


@dataclass(frozen=True, repr=False)
class StageRecord:
    """One recorded stage. `record`: its status, scores, cost and provenance."""

    stage: Stage
    record: Record
    _texts: Plan | None

    @property
    def key(self) -> str:
        return self.record.key

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
        and dev, the score that checkpoints are selected by."""
        import pandas as pd

        losses, dev = learning_curve(self.record, self.stage)
        found = pd.DataFrame(losses, columns=["step", "loss"]).astype({"step": int})
        scores = pd.DataFrame(dev, columns=["step", "dev"]).astype({"step": int})
        return found.merge(scores, on="step", how="outer").sort_values("step", ignore_index=True)

    @cached_property
    def predictions(self) -> pd.DataFrame:
        """One row an example of dev and of each test set: split, the text columns of its task where its texts are at hand, gold
        and predicted class (by name where the task is known, else by code; numbers for a regression), and the logit of each
        class."""
        import pandas as pd

        data = self.stage.data
        splits = {"dev": data.dev} if data.dev else {}
        splits |= {"test" if len(data.tests) == 1 else rows.name.rpartition("/")[2]: rows for rows in data.tests}
        found = [self._split(name, rows) for name, rows in splits.items() if rows.digest in self.record.predictions]
        return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=["split", "gold", "predicted"])

    def _split(self, name: str, rows: RowSet) -> pd.DataFrame:
        import pandas as pd

        predicted, plan = self.record.predictions[rows.digest], self._texts
        logits = np.asarray(predicted.logits).reshape(len(predicted.gold), -1)
        dev = self.stage.data.dev
        task = next((t.task for t in plan.tasks.values() if dev and t.dev.digest == dev.digest), None) if plan else None
        texts = plan.library.get(rows.digest) if plan else None
        found = pd.DataFrame({"split": [name] * len(logits)})
        if task and texts is not None and np.array_equal(texts.gold, predicted.gold):
            for index, column in enumerate(task.columns):
                found[column] = [row[index] for row in texts.texts]
        if logits.shape[1] == 1:
            return found.assign(gold=predicted.gold, predicted=logits[:, 0])
        classes = list(task.classes if task else map(str, range(logits.shape[1])))
        found["gold"] = [classes[code] for code in predicted.gold]
        found["predicted"] = [classes[code] for code in logits.argmax(axis=1)]
        return found.assign(**{f"logit.{name}": logits[:, code] for code, name in enumerate(classes)})

    def __repr__(self) -> str:
        return f"<{self.stage.phase} {self.key[:12]}: {self.record.status}>"
