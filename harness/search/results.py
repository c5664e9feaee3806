"""What a study found: its trials as one frame, the best point, what it cost, best.yaml and the final test.

Pure: no torch, optuna or ray, and the same trials in any order give the same results. `harness.views.study` prints them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from harness.planning.aggregation import mean, subset_std
from harness.search.points import Points
from harness.search.trials import ReplicateOutcome, Replicates, Trial, best_trial
from harness.wording import counted
from harness.yaml_files import dumped

if TYPE_CHECKING:
    import pandas as pd

Measured = dict[str, Any]
"""A `mean` over replicates and its `spread`: sd of the subsets' means, of the replicates where there is one subset."""


@dataclass(frozen=True)
class Study:
    """`found`: a trial for each point; `repeated`: those that repeat one of them; `seed`: of the sampler; `notes`: what each point was run as."""

    name: str
    points: Points
    seed: int
    found: tuple[Trial, ...]
    repeated: tuple[Trial, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """What varies, in the space's order."""
        return tuple(self.points.space.parameters)

    @property
    def replicates(self) -> Replicates:
        return self.points.replicates

    @cached_property
    def ranked(self) -> list[Trial]:
        """Best first: eligible trials by their mean, complete ones with a failed replicate, dropped ones by their
        number of replicates, failed ones, running ones."""

        def place(trial: Trial) -> tuple[int, int, float, int]:
            center, state = trial.mean(), ("complete", "dropped", "failed", "running").index(trial.state)
            further = not trial.eligible if trial.state == "complete" else -len(trial.outcomes)
            return state, further, math.inf if center is None else -center, trial.number

        return sorted(self.found, key=place)

    @cached_property
    def best(self) -> Trial | None:
        """The eligible trial with the best mean."""
        return best_trial(self.found)

    @property
    def default(self) -> Trial | None:
        """The trial of the point that is tried first, once it has begun."""
        return next((trial for trial in self.ranked if trial.point == self.points.space.defaults), None)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row a trial and replicate that has ended: trial, state, the values of its point, subset, seed, metric, value, status, reason, and
        what it cost."""
        import pandas as pd

        rows = [
            {"trial": trial.number, "state": trial.state}
            | {path: trial.point.get(path) for path in self.paths}
            | {"subset": subset, "seed": seed, "metric": self.points.metric}
            | asdict(outcome)
            for trial in sorted(self.found, key=lambda trial: trial.number)
            for (subset, seed), outcome in zip(self.replicates, trial.outcomes, strict=False)
        ]
        outcome = [field.name for field in fields(ReplicateOutcome)]
        columns = ["trial", "state", *self.paths, "subset", "seed", "metric", *outcome]
        return pd.DataFrame(rows, columns=columns, dtype=object).infer_objects()

    def spent(self) -> dict[str, Any]:
        """Numbers of trials in all, complete, dropped and failed; replicates that ended, of `full` (all of every trial); their stages, and
        FLOPs and seconds recorded with these, whoever trained them."""
        outcomes = [outcome for trial in self.found for outcome in trial.outcomes]
        states = Counter(trial.state for trial in self.found)
        return {
            "trials": len(self.found),
            **{state: states[state] for state in ("complete", "dropped", "failed")},
            "replicates": len(outcomes),
            "full": len(self.found) * len(self.replicates),
            "stages": sum(outcome.stages for outcome in outcomes),
            "flops": math.fsum(outcome.flops for outcome in outcomes),
            "seconds": math.fsum(outcome.seconds for outcome in outcomes),
        }

    def measured(self, values: Sequence[float], less: Iterable[float] | None = None) -> Measured:
        """Of the `values` of the first replicates, each `less` another one on the same replicate."""
        each = values if less is None else [a - b for a, b in zip(values, less, strict=True)]
        return {"mean": mean(each), "spread": subset_std([subset for subset, _ in self.replicates[: len(each)]], each)}

    def above_default(self) -> Measured | None:
        """The best point minus the default one, replicate by replicate. None unless all replicates of both are done."""
        if self.best is None or self.default is None or not self.default.eligible:
            return None
        return self.measured(self.best.values, self.default.values)

    def chosen(self) -> dict[str, Any]:
        """The mapping `chosen` of best.yaml: how the point was chosen, its dev score, and what the study cost.

        Raises ValueError while no trial can be the best.
        """
        best, first, difference, spent = self.best, self.default, self.above_default(), self.spent()
        if best is None:
            raise ValueError(f"no trial of the study {self.name} has all its replicates done")
        eligible = counted(sum(trial.eligible for trial in self.found), "point")
        full = {"replicates": len(self.replicates)}
        return {
            "study": self.name,
            "trial": best.number,
            "rule": f"the highest mean dev {self.points.metric} among the {eligible} of {len(self.found)} whose "
            f"{counted(len(self.replicates), 'replicate')} are done",
            "metric": self.points.metric,
            "dev": self.measured(best.values) | full,
            **(
                {"default": self.measured(first.values) | full | {"difference": difference}}
                if first and difference
                else {}
            ),
            **{name: spent[name] for name in ("trials", "complete", "dropped", "failed", "replicates", "flops")},
            "hours": round(spent["seconds"] / 3600, 4),
            "sampler": self.points.space.sampler,
            "racing": self.points.space.racing,
            "seed": self.seed,
        }

    def final_test(
        self, test: Mapping[str, Sequence[float]], default: Mapping[str, Sequence[float]] | None, compares: bool
    ) -> dict[str, Any]:
        """The best point's test scores by column, and `default`, those of the default point where that is another one, all in the order of the
        replicates. `difference`: dev minus test, None unless it `compares`: both are means of one metric over the same tasks."""
        dev = self.best.values if self.best else ()
        if not test or {len(values) for values in (dev, *test.values(), *(default or {}).values())} != {
            len(self.replicates)
        }:
            raise ValueError("a final test takes one dev score and one test score a column for each replicate")
        average, first = ([mean(values) for values in zip(*(of or {}).values(), strict=True)] for of in (test, default))
        return {
            "replicates": len(self.replicates),
            "dev": self.measured(dev),
            "columns": {title: self.measured(values) for title, values in test.items()},
            "test": self.measured(average),
            "difference": self.measured(dev, average) if compares else None,
            "default": self.measured(first) if first else None,
            "above_default": self.measured(average, first) if first else None,
        }


def best_yaml(point: Mapping[str, Any]) -> str:
    """A point as the YAML file that `harness bench --with` takes; every value reads back unchanged."""
    return f"# harness bench --with THIS FILE\n{dumped(json.loads(json.dumps(point)), lists_in_a_line=False)}"
