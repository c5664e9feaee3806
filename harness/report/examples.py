"""What the test examples of a table come to, as tables and sentences: consensus, flips, doubted labels, calibration. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.analysis.calibration import TEMPERATURES
from harness.analysis.examples import ExampleFrames
from harness.analysis.schema import records
from harness.report.document import DASH, Document, Table
from harness.report.table import column_name, size_name
from harness.statistics.agreement import AGREED
from harness.statistics.calibration import BINS
from harness.wording import counted, in_points, training_examples

AGREEMENT = (
    "Points (x100). Consensus: the score of what most runs of a row predict. Flips: of an example, the share of pairs of runs that predict "
    "differently; by seed: of pairs with one training subset, by subset: of pairs with one seed."
)
CALIBRATION = (
    f"Means over runs, with 95 % intervals over subsets and seeds. ECE: expected calibration error of the predicted class's probability, in {BINS} bins "
    "of equal mass, in points (x100); calibrated: what right probabilities would show on so many examples. Brier: sum over classes, 0 to 2; it is reliability - "
    "resolution + uncertainty + what the bins leave over. Temperature and threshold: chosen on dev, medians; ECE then: at the temperature; gain: of "
    "the column's metric at the threshold, of two classes."
)
"""What the columns are."""


def examples_document(frames: ExampleFrames) -> Document:
    tables = [*agreement_tables(frames), *calibration_tables(frames)]
    about = [AGREEMENT, CALIBRATION, *frames.skipped]
    return Document(f"{frames.grid.resolved.table.name}-examples", tables, [*label_sentences(frames), *about])


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


def calibration_tables(frames: ExampleFrames) -> list[Table]:
    """For each size the errors of probabilities, and what temperature and threshold change; threshold and gain where some task has two classes."""
    two = "threshold" in frames.rows
    errors = ("Column", "Row", "ECE", "calibrated", "Brier", "reliability", "resolution")
    changes = ["Column", "Row", "Temperature", "ECE then", "change", *(["Threshold", "gain"] if two else [])]
    tables = []
    for size, rows in _by_size(frames):
        where = size_name(size, frames.grid.resolved.size_unit).lower()
        of_errors, of_changes = [], []
        for row in rows:
            numbers = [_number(row[name], 3) for name in ("reliability", "resolution")]
            ece = [_points(row["ece"]) + _interval(row), _points(row["ece_calibrated"])]
            of_errors.append([*_place(frames, row), *ece, _number(row["brier"], 3), *numbers])
            change = [_temperature(row["temperature"]), _points(row["ece_tempered"]), _change(row, "tempering")]
            gain = [_number(row["threshold"], 2), _change(row, "threshold_gain")] if two else []
            of_changes.append([*_place(frames, row), *change, *gain])
        tables.append(Table(f"Calibration, {where}", errors, of_errors, frozenset({0, 1}), stacked=True))
        title = f"Temperature{' and threshold' if two else ''} from dev, {where}"
        tables.append(Table(title, changes, of_changes, frozenset({0, 1}), stacked=True))
    return tables


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


def _missing(value: Any) -> bool:
    return value is None or value != value


def _points(value: Any) -> str:
    return DASH if _missing(value) else in_points(value)


def _number(value: Any, digits: int) -> str:
    return DASH if _missing(value) else f"{value:.{digits}f}"


def _temperature(value: Any) -> str:
    edge = {TEMPERATURES[0]: "≤ ", TEMPERATURES[-1]: "≥ "}.get(value, "")
    return edge + _number(value, 2)


def _interval(row: dict[str, Any]) -> str:
    low, high = row["ece_low"], row["ece_high"]
    return "" if _missing(low) else f" ({in_points(low)} to {in_points(high)})"


def _change(row: dict[str, Any], name: str) -> str:
    if _missing(row[name]):
        return DASH
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    ends = "" if _missing(low) else f" ({in_points(low, sign=True)} to {in_points(high, sign=True)})"
    return in_points(row[name], sign=True) + ends
