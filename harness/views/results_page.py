"""The page of a table: cells with intervals and verdicts, comparisons, variances, learning curves, cost, caption, runs, command. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from harness.methods import METHODS
from harness.specs import Record, Run
from harness.statistics.difference import Interval
from harness.views.caption import Caption, best_line, caption_lines, footnotes, title_lines
from harness.views.cells import Cell, Grid
from harness.views.comparison import (
    VARIANCE,
    comparison_document,
    conclusion,
    notes,
    remarks,
    unknown_sources,
    variance_document,
)
from harness.views.document import Block, Commands, Document, Entry, Folded, Lines, Picture, Pictures, Section, Table
from harness.views.examples import AGREEMENT, agreement_tables, label_sentences
from harness.views.figures import curves, forest
from harness.views.figures.figure import canvas_of, points_of
from harness.views.figures.panels import picture
from harness.views.numbers.comparison import Comparison, Comparisons, Place, cell_intervals
from harness.views.numbers.examples import ExampleFrames
from harness.views.numbers.ranks import sets_of_the_best
from harness.views.page import page
from harness.views.provenance import COST_LINES, cost_table, runs_folded
from harness.views.settings import settings_folded
from harness.views.table import cell_entry, class_tables, column_name, size_name
from harness.views.variance import CellVariance
from harness.wording import in_points

CURVES = "Dev score over the updates of fine-tuning: the mean of the runs that the cells above are made of, where all of them were scored."
NO_CURVE = (
    "No curve: no finished run was scored on dev at two updates or more; bench --dev-points 10 records more points."
)
MANY_SENTENCES = 8
"""More sentences are folded."""


@dataclass(frozen=True)
class Results:
    """What the page shows. `comparisons`: a sentence where rows cannot be compared. `runs`: of the table; `records`: of their stages;
    `curves`: of their dev scores; `commands`: that make the table and the page again; `examples`: of the test sets, None where no predictions are stored."""

    grid: Grid
    caption: Caption
    comparisons: Comparisons | str
    variances: Sequence[CellVariance]
    runs: Sequence[Run]
    records: Mapping[str, Record]
    curves: curves.Curves
    commands: Sequence[str]
    examples: ExampleFrames | None = None


def results_page(results: Results) -> str:
    grid = results.grid
    title, *subtitle = title_lines(grid)
    lines = caption_lines(grid, results.caption)
    sections = [
        Section("results", "Results", _results(results)),
        Section("comparisons", "Comparisons", _comparisons(results)),
        Section("variance", "Variance", _variance(results)),
        *_own_figure(grid),
        Section("curves", "Learning curves", _curves(results)),
        *_examples(results.examples),
        *_classes(results.caption, results.grid.resolved.size_unit),
        Section("cost", "Cost", [cost_table(grid, results.runs, results.records), Lines(COST_LINES)]),
        Section("methods", "Methods", [Lines(_methods(grid))]),
        Section("protocol", "Protocol and settings", [Lines(lines), *settings_folded(grid.resolved)]),
        Section("runs", "Runs, versions and hardware", runs_folded(grid, results.runs, results.records)),
        Section("again", "How to make it again", [Commands(results.commands)]),
    ]
    lead = results.comparisons if isinstance(results.comparisons, str) else conclusion(results.comparisons)
    return page(f"{grid.resolved.table.name}: {title.rstrip('.')}", " ".join(subtitle), sections, lead)


# -------------------------------------------------------------------------------------------------------------- results


def _results(results: Results) -> list[Block]:
    grid = results.grid
    letters, marks = footnotes(grid)
    intervals, apart, leading = cell_intervals(grid), _verdicts(results.comparisons), sets_of_the_best(grid)
    blocks: list[Block] = []
    head = ["Method", *(column_name(grid, column) for column in grid.columns)]
    for size in grid.resolved.sizes:
        rows: list[list[str | Entry]] = []
        for row in (*grid.resolved.printed_rows, *grid.resolved.averages):
            cells: list[str | Entry] = [row]
            for column in grid.columns:
                cell, place = grid.cells[size, row, column], (size, row, column)
                lines = _lines(grid, cell, intervals.get(place), apart.get(place))
                cells.append(replace(cell_entry(grid, place, letters, leading), below=tuple(lines)))
            rows.append(cells)
        blocks.append(Table(size_name(size, grid.resolved.size_unit), head, rows, stacked=True))
    about = []
    if intervals:
        about.append(
            f"Below a cell stands the 95 % interval of its mean on this {grid.resolved.scored_set}, {_factors(grid)}."
        )
    else:
        about.append(
            "No cell has an interval: one needs the mean of two runs or more, all done, with different scores."
        )
    if leading:
        about.append(best_line(bold=True))
    if apart and not isinstance(results.comparisons, str):
        about.append(
            f"higher, lower, equivalent: than or to {results.comparisons.against}, by Holm over all comparisons."
        )
    return [*blocks, Lines([*about, *marks])]


def _factors(grid: Grid) -> str:
    """What the intervals of cells are over, and what they say nothing about."""
    r = grid.resolved
    if len(r.seeds) == 1:
        return "over subsets; one seed says nothing about others"
    if max(len(r.subsets_at(size)) for size in r.sizes) == 1:
        return "over seeds; one subset says nothing about others"
    return "crossed over subsets and seeds: where the mean over others of them would lie"


def _lines(grid: Grid, cell: Cell, interval: Interval | None, versus: Comparison | None) -> list[tuple[str, str]]:
    """The small lines below a cell: (class, text)."""
    lines = []
    if interval:
        lines.append(("", f"{in_points(interval.low)} to {in_points(interval.high)}"))
    if grid.resolved.comparable and cell.paper is not None:
        spread = "" if cell.paper_spread is None else f" ± {in_points(cell.paper_spread)}"
        lines.append(("", f"paper {in_points(cell.paper)}{spread}{f': {cell.verdict}' if cell.verdict else ''}"))
    if versus:
        name = {"higher": "up", "lower": "down"}.get(versus.verdict, "")
        lines.append((name, f"{versus.verdict} {'to' if versus.verdict == 'equivalent' else 'than'} {versus.against}"))
    return lines


def _verdicts(comparisons: Comparisons | str) -> dict[Place, Comparison]:
    """The comparisons that say something."""
    if isinstance(comparisons, str):
        return {}
    decided = (c for c in comparisons.comparisons if c.verdict in ("higher", "lower", "equivalent"))
    return {(c.size, c.row, c.column): c for c in decided}


def _methods(grid: Grid) -> list[str]:
    """What the methods' names stand for, and their papers."""
    parts = dict.fromkeys(
        part for row in grid.resolved.trained_rows for part in (*row.pre_train.split("+"), *row.parts) if part
    )
    methods = [METHODS[part] for part in parts]
    return [f"{method.title}: {method.full_name}. {method.citation}." for method in methods]


# ----------------------------------------------------------------------------------------------------------- statistics


def _comparisons(results: Results) -> list[Block]:
    if isinstance(results.comparisons, str):
        return [Lines([results.comparisons])]
    document = comparison_document(results.comparisons)
    pictures: list[Block] = [Pictures(forest.pictures_of(results.comparisons))]
    words = _folded("Remarks", remarks(results.comparisons))
    return [*pictures, *_filled(document), *words, Lines([*results.comparisons.plan, *notes(results.comparisons)])]


def _variance(results: Results) -> list[Block]:
    if not results.variances:
        return [Lines(["No cell has two runs or more that are done, so there is no variance to split."])]
    document = variance_document(results.variances, results.grid)
    return [
        *_filled(document),
        Lines([VARIANCE]),
        *_folded("What is not known", unknown_sources(results.variances, results.grid)),
    ]


def _folded(title: str, lines: Sequence[str]) -> list[Block]:
    """Sentences; of many a list that a reader opens."""
    if len(lines) > MANY_SENTENCES:
        return [Folded(f"{title}: {len(lines)} sentences", [Lines(lines)])]
    return [Lines(lines)] if lines else []


def _filled(document: Document) -> list[Table]:
    return [table for table in document.tables if table.rows]


# ------------------------------------------------------------------------------------------------------ figures, classes


def _own_figure(grid: Grid) -> list[Section]:
    """The figure that the table has of its own, as `report --figure` draws it."""
    shown = grid.resolved.table.figure
    if shown is None:
        return []
    points = points_of(grid)
    if all(point.value is None for point in points):
        return [Section("figure", "Figure", [Lines(["No point of the figure has all its runs done."])])]
    pictures = []
    for column in dict.fromkeys(point.column for point in points):
        drawn = [point for point in points if point.column == column]
        rows = [
            [
                p.row,
                f"{p.size:,}" if p.size else "full",
                "" if p.x is None else f"{p.x:.15g}",
                *map(_number, (p.value, p.spread)),
            ]
            for p in drawn
            if p.value is not None
        ]
        data = Table(f"{column} over {shown.label}", ["Row", "Size", shown.label, "Score", "Spread"], rows)
        missing = f" of {len(drawn)} points; the others' runs are not all done" if len(rows) < len(drawn) else " points"
        described = f"{column}, scores over {shown.label}: {len(rows)}{missing}."
        made = picture(partial(canvas_of, drawn, shown), f"{column} over {shown.label}", described)
        pictures.append(Picture(made, described, data))
    return [Section("figure", "Figure", [Pictures(pictures)])]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _curves(results: Results) -> list[Block]:
    panels = curves.curves_of(results.grid, results.runs, results.curves)
    if not panels:
        return [Lines([NO_CURVE])]
    return [Lines([CURVES]), *curves.blocks_of(panels)]


def _examples(frames: ExampleFrames | None) -> list[Section]:
    """What replicates agree on, and which labels are in doubt."""
    if frames is None or not len(frames.rows):
        return []
    agreement: list[Block] = [*agreement_tables(frames), Lines([AGREEMENT, *frames.skipped])]
    return [Section("examples", "Test examples", [*agreement, *_folded("Labels in doubt", label_sentences(frames))])]


def _classes(caption: Caption, size_unit: str) -> list[Section]:
    """The classes of a user's own task."""
    tables = class_tables(caption, size_unit)
    return [Section("classes", "Classes", tables)] if tables else []
