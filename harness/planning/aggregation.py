"""Aggregation: how the runs of a cell become its value, which configuration of a row counts, how columns become an Avg.

Pure. A rule reads the scores of a cell's runs, a frame with the columns dev and test and a row a run in the order of the design; it
selects by dev alone. Means are exactly rounded (`math.fsum`), so the order of runs changes no digit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from harness.yaml_files import MisplacedError, Strict, one_of

if TYPE_CHECKING:
    import pandas as pd

AVERAGE = "avg"
"""Column id of the mean over columns."""

mean = statistics.fmean
"""The mean of at least one value."""


def std(values: Sequence[float], ddof: int) -> float | None:
    """The standard deviation with `ddof`, None when there are not more than `ddof` values."""
    if len(values) <= ddof:
        return None
    center = mean(values)
    return math.sqrt(math.fsum((v - center) ** 2 for v in values) / (len(values) - ddof))


def subset_means(subsets: Sequence[int], values: Sequence[float]) -> list[float]:
    """The mean of each subset's values; with a single subset, the values themselves."""
    by_subset: dict[int, list[float]] = {}
    for subset, value in zip(subsets, values, strict=True):
        by_subset.setdefault(subset, []).append(value)
    return [*map(mean, by_subset.values())] if len(by_subset) > 1 else [*values]


# ------------------------------------------------------------------------------------------------------------- rules

RULES: Mapping[str, str] = {
    "mean": "mean",
    "median": "median",
    "best": "run that is best on dev",
    "top_k": "mean of the {k} runs that are best on dev",
}
"""What a table's `aggregate.center` and `aggregate.select_by` name, as captions say it."""
NO_SPREAD = {"median": "a median takes no standard deviation", "best": "one run has no standard deviation"}

RuleName = Annotated[str, one_of("rule", RULES)]


class Aggregation(Strict):
    """How the runs of a cell become its value, as a table's YAML says.

    `center`: the rule, with its `k`; `spread`: the standard deviation of the runs that the value is made of, with `ddof`.
    `select`: of a row with several configurations the one whose dev scores are highest under the rule `select_by` (left out:
    `center`), for each task or for each task and subset; 'none': the runs of all configurations count.
    `average`: an Avg column over `average_over` (left out: all columns; columns in brackets count as one), of each replicate
    before the rule or of the cells. `scores`: whether cells are made of scores on test, or of those on dev at the selected
    checkpoint.
    """

    center: RuleName = "mean"
    k: Annotated[int, Field(ge=1, le=1000, strict=True)] | None = None
    spread: Literal["std", "none"] = "std"
    ddof: Literal[0, 1] = 1
    select: Literal["none", "per_task", "per_subset"] = "none"
    select_by: RuleName | None = None
    average: Literal["per_replicate", "of_cells", "none"] = "none"
    average_over: tuple[str | tuple[str, ...], ...] | None = None
    scores: Literal["test", "dev"] = "test"

    @model_validator(mode="after")
    def _rules_fit(self) -> Aggregation:
        takes_k, no_spread = "top_k" in (self.center, self.select_by), NO_SPREAD.get(self.center)
        rule = "top_k needs k, how many runs count" if takes_k else "only a rule like top_k has a k"
        nothing, no_avg = self.select == "none", self.average == "none"
        for key, wrong, why in (
            ("k", takes_k != (self.k is not None), rule),
            ("spread", no_spread and self.spread != "none", f"{no_spread}; set spread: none"),
            ("select_by", self.select_by and nothing, "nothing is selected; add select: per_task or per_subset"),
            ("average_over", self.average_over and no_avg, "there is no Avg; add average: per_replicate or of_cells"),
        ):
            if wrong:
                raise MisplacedError([key], why)
        return self

    def groups(self, columns: Iterable[str]) -> list[tuple[str, ...]]:
        """The groups of columns of the Avg, which is the mean over groups of the mean within each; of those columns that are here."""
        here = [*columns]
        given = [(each,) if isinstance(each, str) else each for each in self.average_over or here]
        return [group for each in given if (group := tuple(column for column in each if column in here))]

    @property
    def label(self) -> str:
        """A cell's value in words: 'mean', 'mean of the 3 runs that are best on dev'."""
        return RULES[self.center].format(k=self.k)

    @property
    def selected_by(self) -> str:
        """The rule that selects a configuration."""
        return self.select_by or self.center

    def counted(self, runs: pd.DataFrame, rule: str = "") -> list[float]:
        """The test scores that count under a rule (left out: `center`); of runs that are equal on dev the first. Raises ValueError for a run without a
        dev score, where the rule selects by it."""
        if best := {"best": 1, "top_k": self.k}.get(rule or self.center):
            if runs["dev"].isna().any():
                raise ValueError("a rule that selects by dev needs the dev score of every run")
            runs = runs.sort_values("dev", ascending=False, kind="stable").head(best)
        return list(runs["test"])

    def value(self, runs: pd.DataFrame, rule: str = "") -> float:
        """The value of a cell of these runs."""
        scores = self.counted(runs, rule)
        return statistics.median(scores) if (rule or self.center) == "median" else mean(scores)

    def best_configurations(self, scores: pd.DataFrame, by: list[str]) -> pd.Series[str]:
        """Of each group `by` the configuration whose dev scores have the highest value under the rule that selects; of equal ones the first."""
        groups = scores.assign(test=scores["dev"]).groupby([*by, "configuration"], sort=False)[["dev", "test"]]
        return groups.apply(self.value, self.selected_by).groupby(level=by, sort=False).idxmax().map(lambda at: at[-1])

    @property
    def stated(self) -> dict[str, Any]:
        """Its values by name; of those that not every table has, only the ones that this table gives."""
        plain = {name for name, value in (("select", "none"), ("scores", "test")) if getattr(self, name) == value}
        return self.model_dump(exclude_none=True, exclude=plain)
