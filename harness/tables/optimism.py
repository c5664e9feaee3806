"""Optimism of selection: the dev score of each selected checkpoint minus its test score, cell by cell, with the crossed interval.

Pure. `docs/statistics.md` says what it is and what it is not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.errors import UserError
from harness.statistics.design import full_grid
from harness.statistics.difference import Difference, difference
from harness.tables.caption import counted, in_points, training_examples
from harness.tables.cells import Grid, counted_scores
from harness.tables.comparison import REGION
from harness.tables.render import STYLES, column_name, size_name
from harness.tables.render_comparison import Layout, interval_text, laid_out
from harness.tables.schema import csv_text, records

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Optimism:
    """Of one cell, on the metric's own scale: means over the largest full grid of its replicates, and dev minus test."""

    size: int
    row: str
    column: str
    title: str
    metric: str
    dev: float
    test: float
    gap: Difference


def optimism(grid: Grid) -> list[Optimism]:
    """Every cell of which a run is done. Raises UserError for a table of dev scores, which has no test scores."""
    if grid.resolved.aggregate.scores == "dev":
        raise UserError(
            f"compare --optimism: table {grid.resolved.table.name} shows dev scores, as its paper does; it has no test scores to subtract."
        )
    scores: Any = counted_scores(grid)
    found = []
    by_cell = dict(iter(scores[scores["dev"].notna()].groupby(["size", "row", "column"], sort=False)))
    for size in grid.resolved.sizes:
        for column in grid.resolved.columns:
            for row in grid.resolved.printed_rows:
                runs = by_cell.get((size, row, column))
                if runs is None:
                    continue
                means = runs.groupby(["subset", "seed"])[
                    ["dev", "test"]
                ].mean()  # of several configurations that all count
                subsets, seeds = full_grid([(int(s), int(r)) for s, r in means.index])
                dev, test = (
                    np.array([[means.loc[(s, r), name] for r in seeds] for s in subsets], dtype=np.float64)
                    for name in ("dev", "test")
                )
                place = (size, row, column, grid.title(column), grid.resolved.columns[column].metric)
                gap = difference(dev - test, REGION)
                found.append(Optimism(*place, float(dev.mean()), float(test.mean()), gap))
    return found


def sentence(each: Optimism) -> str:
    """What a cell's figures say, in plain words."""
    place, gap = f"{each.row}, {each.title}, {training_examples(each.size)}", each.gap
    design = f"{counted(gap.num_subsets, 'subset')} x {counted(gap.num_seeds, 'seed')}"
    if gap.interval is None:
        return f"{place}: dev minus test is {in_points(gap.mean, sign=True)} points over {design}, without an interval: {gap.why}."
    clear = "above 0" if gap.interval.low > 0 else "below 0" if gap.interval.high < 0 else "not separable from 0"
    return f"{place}: dev minus test is {in_points(gap.mean, sign=True)} points, 95 % interval {interval_text(gap.interval)} over {design}: {clear}."


NOTE = (
    "Dev minus test of the selected checkpoints in points (x100); interval: crossed t over subsets and seeds, for these dev and test sets. Selection "
    "on dev raises the difference; test examples that are easier than the dev examples lower it, in all rows alike."
)


def optimism_frame(found: Sequence[Optimism]) -> pd.DataFrame:
    """One row a cell, on the metric's own scale."""
    import pandas as pd

    names = ("size", "row", "column", "metric", "dev", "test")
    rows = [
        {name: getattr(each, name) for name in names}
        | {"num_subsets": each.gap.num_subsets, "num_seeds": each.gap.num_seeds, "gap": each.gap.mean}
        | {
            "low": each.gap.interval.low if each.gap.interval else None,
            "high": each.gap.interval.high if each.gap.interval else None,
            "p": each.gap.p,
            "sentence": sentence(each),
        }
        for each in found
    ]
    return pd.DataFrame(rows, columns=[*names, "num_subsets", "num_seeds", "gap", "low", "high", "p", "sentence"])


def rendered_optimism(found: Sequence[Optimism], grid: Grid, more: Sequence[str], format: str) -> str:
    """`more`: further sentences below the table. Ends with a newline. Raises UserError for an unknown format."""
    if format == "csv":
        return csv_text(optimism_frame(found))
    if format == "json":
        body = {"table": grid.resolved.table.name, "optimism": records(optimism_frame(found)), "notes": [NOTE, *more]}
        return json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    dash = STYLES["text"].dash
    blocks = []
    for size in grid.resolved.sizes:
        rows = [
            [
                *(column_name(grid, each.column), each.row, in_points(each.dev), in_points(each.test)),
                in_points(each.gap.mean, sign=True),
                interval_text(each.gap.interval) if each.gap.interval else dash,
            ]
            for each in found
            if each.size == size
        ]
        blocks.append((size_name(size), rows))
    head = ("Column", "Row", "Dev", "Test", "Dev - test", "95 % interval")
    layout = Layout(
        f"{grid.resolved.table.name}-optimism", head, tuple(blocks), (0, 1), (NOTE,), tuple(map(sentence, found))
    )
    return laid_out(layout, [*layout.sentences, NOTE, *more], format)
