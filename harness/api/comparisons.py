"""`harness.compare`: rows of a table against one of them, and the variance of its cells, as data frames."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from harness.commands.compare import comparisons_of, variance_of
from harness.commands.prepare import Prepared
from harness.tables.comparison import Comparisons
from harness.tables.render_comparison import (
    comparison_frame,
    ranking_frame,
    rendered,
    rendered_variance,
    sentence,
    variance_frame,
)

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class CompareResult:
    """Rows compared. Scores are on the metric's own scale (1 for 100 %); `docs/statistics.md` has the columns."""

    _prepared: Prepared
    _found: Comparisons

    @cached_property
    def comparisons(self) -> pd.DataFrame:
        """One row a size, column and row."""
        return comparison_frame(self._found)

    @cached_property
    def rankings(self) -> pd.DataFrame:
        """One row a size, column and row: in which share of the resamples it is the best."""
        return ranking_frame(self._found)

    @cached_property
    def variance(self) -> pd.DataFrame:
        """One row a cell and source of variance."""
        return variance_frame(variance_of(self._prepared)[1])

    @property
    def sentences(self) -> list[str]:
        """Each comparison in words."""
        return [sentence(each, self._found) for each in self._found.comparisons]

    def table(self, format: str = "text") -> str:
        """The comparisons; `format`: text, md, latex, csv or json."""
        return rendered(self._found, format)

    def variance_table(self, format: str = "text") -> str:
        """The variances; `format`: text, md, latex, csv or json."""
        grid, found = variance_of(self._prepared)
        return rendered_variance(found, grid, format)

    def __repr__(self) -> str:
        return self.table()


def compare_prepared(prepared: Prepared, against: str, region: float, items: bool) -> CompareResult:
    """`region`: in points."""
    return CompareResult(prepared, comparisons_of(prepared, against, region / 100, items))
