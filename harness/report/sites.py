"""Comparisons by hardware as text, Markdown, LaTeX, CSV or JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.analysis.cells import Grid
from harness.analysis.comparison import LEVEL
from harness.analysis.sites import SiteComparison
from harness.report.comparison import interval_text, p_text
from harness.report.document import DASH, Document, Table, in_format
from harness.report.table import column_name, size_name
from harness.wording import counted, in_points, training_examples

if TYPE_CHECKING:
    import pandas as pd

NOTE = (
    "Difference in points (x100) over the pairs of runs that ran on one kind of hardware, by the device's name; pairs of two kinds are in none. The test of a gap takes subsets as drawn anew "
    "for each kind, and the seeds that the kinds share as given: what they tell apart may be the hardware or anything else that differs between the sites."
)
"""What the figures are."""


def rendered_sites(comparisons: Sequence[SiteComparison], grid: Grid, against: str, format: str) -> str:
    """Ends with a newline. Raises UserError for an unknown format."""
    sentences = [sentence(each, grid) for each in comparisons]
    body: dict[str, Any] = {
        "table": grid.resolved.table.name,
        "against": against,
        "by": "hardware",
        "sites": [],
        "sentences": sentences,
    }
    head = ("Column", f"Minus {against}", "Hardware", "Subsets x seeds", "Points", "95 % interval")
    tables = []
    for size in grid.resolved.sizes:
        rows = [
            [
                column_name(grid, each.comparison.column),
                each.comparison.row,
                site.hardware,
                f"{site.difference.num_subsets} x {site.difference.num_seeds}",
                in_points(site.difference.mean, sign=True),
                interval_text(site.difference.interval) if site.difference.interval else DASH,
            ]
            for each in comparisons
            for site in each.sites
            if each.comparison.size == size
        ]
        tables.append(Table(size_name(size, grid.resolved.size_unit), head, rows, frozenset({0, 1, 2}), stacked=True))
    document = Document(f"{grid.resolved.table.name}-sites", tables, [*sentences, NOTE], caption=[NOTE])
    return in_format(format, site_frame(comparisons), "sites", body, document)


def sentence(comparison: SiteComparison, grid: Grid) -> str:
    """Whether the kinds of hardware differ in a difference of rows, or why that is not told."""
    c = comparison.comparison
    place = f"{c.row} - {c.against}, {c.title}, {training_examples(c.size, grid.resolved.size_unit)}"
    across = f" ({counted(comparison.across, 'pair')} of two kinds of hardware left out)" if comparison.across else ""
    if comparison.p is None or comparison.p_holm is None:
        return f"{place}: no verdict on hardware: {comparison.why}{across}."
    names = [site.hardware for site in comparison.sites]
    apart = comparison.p_holm < LEVEL
    words = f"{' and '.join(names)} {'differ' if apart else 'cannot be told apart'}"
    gap = ""
    if comparison.gap is not None and comparison.interval is not None:
        gap = f"{in_points(comparison.gap, sign=True)} points, 95 % interval {interval_text(comparison.interval)} over their {comparison.unit}; "
    return f"{place}: {words}: {gap}p {p_text(comparison.p)}, by Holm {p_text(comparison.p_holm)}{across}."


def site_frame(comparisons: Sequence[SiteComparison]) -> pd.DataFrame:
    """One row a comparison and kind of hardware, on the metric's own scale; `docs/statistics.md` has the columns."""
    import pandas as pd

    columns = (
        *("size", "column", "metric", "row", "against", "hardware", "num_subsets", "num_seeds"),
        *("difference", "low", "high", "across_hardware", "gap", "gap_low", "gap_high", "gap_p", "gap_p_holm"),
    )
    rows = [
        {
            **{name: getattr(each.comparison, name) for name in ("size", "column", "metric", "row", "against")},
            "hardware": site.hardware,
            "num_subsets": site.difference.num_subsets,
            "num_seeds": site.difference.num_seeds,
            "difference": site.difference.mean,
            "low": site.difference.interval.low if site.difference.interval else None,
            "high": site.difference.interval.high if site.difference.interval else None,
            "across_hardware": each.across,
            "gap": each.gap,
            "gap_low": each.interval.low if each.interval else None,
            "gap_high": each.interval.high if each.interval else None,
            "gap_p": each.p,
            "gap_p_holm": each.p_holm,
        }
        for each in comparisons
        for site in each.sites
    ]
    return pd.DataFrame(rows, columns=list(columns))
