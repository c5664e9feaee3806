"""What the test examples of a table come to, as tables and sentences: consensus, flips, doubted labels. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.analysis.schema import records
from harness.statistics.agreement import AGREED
from harness.views.document import DASH, Document, Table
from harness.views.numbers.examples import ExampleFrames
from harness.views.table import column_name, size_name
from harness.wording import counted, in_points, training_examples

AGREEMENT = (
    "Points (x100). Consensus: the score of what most runs of a row predict. Flips: of an example, the share of pairs of runs that predict "
    "differently; by seed: of pairs with one training subset, by subset: of pairs with one seed."
)
"""What the columns are."""


def examples_document(frames: ExampleFrames) -> Document:
    lines = [*label_sentences(frames), AGREEMENT, *frames.skipped]
    return Document(f"{frames.grid.resolved.table.name}-examples", agreement_tables(frames), lines)


def agreement_tables(frames: ExampleFrames) -> list[Table]:
    head = ("Column", "Row", "Runs", "Test", "Consensus", "Flips", "by seed", "by subset")
    return [
        Table(
            size_name(size, frames.grid.resolved.size_unit),
            head,
            [
                [
                    *_place(frames, row),
                    f"{row['num_subsets']} x {row['num_seeds']}",
                    *(
                        _points(row[name])
                        for name in ("test", "consensus", "flips", "flips_by_seed", "flips_by_subset")
                    ),
                ]
                for row in rows
            ],
            frozenset({0, 1}),
            stacked=True,
        )
        for size, rows in _by_size(frames)
    ]


def label_sentences(frames: ExampleFrames) -> list[str]:
    """For each column and size what all rows get wrong, and how far the list of doubted labels can be trusted."""
    return [_labels(frames, row) for row in records(frames.labels)]


def _labels(frames: ExampleFrames, row: dict[str, Any]) -> str:
    place = f"{frames.grid.title(row['column'])}, {training_examples(row['size'], frames.grid.resolved.size_unit)}"
    rows = "every row" if row["rows"] > 1 else "the row"
    wrong = f"{place}: the consensus of {rows} is wrong on {row['all_rows_wrong']:,} of {counted(row['examples'], 'test example')}"
    doubts = f"{counted(row['doubted'], 'label')} {'is' if row['doubted'] == 1 else 'are'} doubted ({100 * AGREED:g} % of {row['runs']} runs or more agree on one other class)"
    good = (
        f"; if {100 * row['wrong']:g} % of the labels are wrong at random, the list holds {100 * row['recall']:.0f} % of these, and "
        f"{100 * row['precision']:.0f} % of the list are such labels"
        if row["doubted"]
        else ""
    )
    return f"{wrong}; {doubts}{good}."


def _by_size(frames: ExampleFrames) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    for size in frames.grid.resolved.sizes if len(frames.rows) else ():
        rows = records(frames.rows[frames.rows["size"] == size])
        if rows:
            yield size, rows


def _place(frames: ExampleFrames, row: dict[str, Any]) -> tuple[str, str]:
    return column_name(frames.grid, row["column"]), row["row"]


def _points(value: Any) -> str:
    return DASH if value is None or value != value else in_points(value)
