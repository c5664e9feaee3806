"""Results of a study: its budget, the best point, best.yaml and the final test.

Pure: no torch, optuna or ray, and the same trials in any order give the same results. `harness.views.study` prints them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from harness.planning.aggregation import mean, subset_std
from harness.planning.recipe import Value
from harness.search.trials import Point, Replicates, Trial, best_trial
from harness.yaml_files import dumped


@dataclass(frozen=True)
class Study:
    """Everything that a report of a study needs.

    `method`: the method as in titles, and `row` the row of a table that it is; `paths`: what varies, in the space's order;
    `replicates`: (subset, seed) in the order they are run; `grid`: of a grid, its values by path; `default`: the paper's
    point, tried first; `notes`: sentences for the caption.
    """

    name: str
    method: str
    row: str
    paths: tuple[str, ...]
    metric: str
    replicates: Replicates
    trials: tuple[Trial, ...]
    grid: Mapping[str, tuple[Value, ...]] | None
    default: Point
    mode: str
    sampler: str
    racing: str
    seed: int
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "trials", tuple(sorted(self.trials, key=lambda trial: trial.number)))

    @property
    def best(self) -> Trial | None:
        """The eligible trial with the best mean."""
        return best_trial(self.trials)

    @property
    def default_trial(self) -> Trial | None:
        """The trial of the default point, when it has begun."""
        return next((trial for trial in self.trials if trial.point == self.default), None)


def ranked(study: Study) -> list[Trial]:
    """Best first: eligible trials by their mean, complete ones with a failed replicate, dropped ones by their
    number of replicates, failed ones, running ones."""

    def place(trial: Trial) -> tuple[int, int, float, int]:
        center, state = trial.mean(), ("complete", "dropped", "failed", "running").index(trial.state)
        further = not trial.eligible if trial.state == "complete" else -len(trial.outcomes)
        return state, further, math.inf if center is None else -center, trial.number

    return sorted(study.trials, key=place)


def budget(study: Study) -> dict[str, Any]:
    """What a study cost: numbers of trials in all, complete, dropped and failed; replicates that ended, of `full` (all of every trial); their stages, and
    FLOPs and seconds recorded with these, whoever trained them."""
    outcomes = [outcome for trial in study.trials for outcome in trial.outcomes]
    states = Counter(trial.state for trial in study.trials)
    return {
        "trials": len(study.trials),
        **{state: states[state] for state in ("complete", "dropped", "failed")},
        "replicates": len(outcomes),
        "full": len(study.trials) * len(study.replicates),
        "stages": sum(outcome.stages for outcome in outcomes),
        "flops": math.fsum(outcome.flops for outcome in outcomes),
        "seconds": math.fsum(outcome.seconds for outcome in outcomes),
    }


class Measured(TypedDict):
    """A mean over replicates; `spread`: sd of the subsets' means, of the replicates where there is one subset."""

    mean: float
    spread: float | None


def measured(values: Sequence[float], replicates: Replicates, less: Iterable[float] | None = None) -> Measured:
    """Of the `values`, each `less` another one on the same replicate."""
    each = values if less is None else [a - b for a, b in zip(values, less, strict=True)]
    return {"mean": mean(each), "spread": subset_std([subset for subset, _ in replicates], each)}


def above_default(study: Study) -> Measured | None:
    """The best point minus the default one on the replicates that both have. None unless all replicates of both are done."""
    best, first = study.best, study.default_trial
    if best is None or first is None or not first.eligible:
        return None
    return measured(best.values, study.replicates, first.values)


def chosen(study: Study, rule: str) -> dict[str, Any]:
    """The mapping `chosen` of best.yaml: how the point was chosen (`rule`, in words), its dev score, and what the study cost.

    Raises ValueError while no trial can be the best.
    """
    best, first, difference = study.best, study.default_trial, above_default(study)
    if best is None:
        raise ValueError(f"no trial of the study {study.name} has all its replicates done")

    def scored(trial: Trial) -> dict[str, Any]:
        return {**measured(trial.values, study.replicates), "replicates": len(trial.outcomes)}

    spent = budget(study)
    return {
        "study": study.name,
        "trial": best.number,
        "rule": rule,
        "metric": study.metric,
        "dev": scored(best),
        **({"default": scored(first) | {"difference": dict(difference)}} if first and difference else {}),
        **{name: spent[name] for name in ("trials", "complete", "dropped", "failed", "replicates", "flops")},
        "hours": round(spent["seconds"] / 3600, 4),
        "sampler": study.sampler,
        "racing": study.racing,
        "seed": study.seed,
    }


def best_yaml(point: Mapping[str, Any]) -> str:
    """A point as the YAML file that `harness bench --with` takes; every value reads back unchanged."""
    return f"# harness bench --with THIS FILE\n{dumped(_plain(point), lists_in_a_line=False)}"


def _plain(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {str(key): _plain(value) for key, value in node.items()}
    return [_plain(value) for value in node] if isinstance(node, (list, tuple)) else node


class FinalTest(TypedDict):
    """The chosen point's test scores. `test`: the mean over `columns` within each replicate; `difference`: dev minus test,
    replicate by replicate, None where they are no means of one metric over the same tasks; `default`: the default point's test mean, where that is another point; `above_default`: the chosen
    point's minus the default one's, replicate by replicate."""

    replicates: int
    dev: Measured
    columns: dict[str, Measured]
    test: Measured
    difference: Measured | None
    default: Measured | None
    above_default: Measured | None


def final_test(
    dev: Sequence[float],
    test: Mapping[str, Sequence[float]],
    replicates: Replicates,
    default: Mapping[str, Sequence[float]] | None = None,
    compares: bool = True,
) -> FinalTest:
    """Dev and test scores of the chosen point, `test` by column title, and `default` the test scores of the default point,
    all in the order of `replicates`. `compares`: see `FinalTest.difference`."""
    scores = [dev, *test.values(), *(default or {}).values()]
    if not test or not replicates or {len(values) for values in scores} != {len(replicates)}:
        raise ValueError("a final test takes one dev score and one test score a column for each replicate")
    average, first = ([mean(values) for values in zip(*(of or {}).values(), strict=True)] for of in (test, default))
    return {
        "replicates": len(replicates),
        "dev": measured(dev, replicates),
        "columns": {title: measured(values, replicates) for title, values in test.items()},
        "test": measured(average, replicates),
        "difference": measured(dev, replicates, average) if compares else None,
        "default": measured(first, replicates) if first else None,
        "above_default": measured(average, replicates, first) if first else None,
    }
