"""The page of a table: cells with intervals and verdicts, comparisons, variances, learning curves, cost, caption, runs, command. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from harness.pages import curves, forest
from harness.pages.layout import Block, Commands, Folded, Lines, Picture, Pictures, Section, Table, page
from harness.pages.markup import HTML, below
from harness.pages.picture import picture
from harness.pages.provenance import COST_LINES, cost_table, runs_folded
from harness.specs import Record, Run
from harness.statistics.difference import Interval
from harness.tables.caption import Caption, caption_lines, footnotes, in_points, title_lines
from harness.tables.cells import Cell, Grid
from harness.tables.comparison import Comparison, Comparisons, Place, cell_intervals
from harness.tables.figure import canvas_of, points_of
from harness.tables.render import cell_text, class_tables, column_name, size_name
from harness.tables.render_comparison import Layout, comparison_layout, variance_layout
from harness.tables.variance import CellVariance

MANY_SENTENCES = 8
"""More sentences are folded."""


@dataclass(frozen=True)
class Results:
    """What the page shows. `comparisons`: a sentence where rows cannot be compared. `runs`: of the table; `records`: of their stages;
    `curves`: of their dev scores; `commands`: that make the table and the page again."""

    grid: Grid
    caption: Caption
    comparisons: Comparisons | str
    variances: Sequence[CellVariance]
    runs: Sequence[Run]
    records: Mapping[str, Record]
    curves: curves.Curves
    commands: Sequence[str]


def results_page(found: Results) -> str:
    grid = found.grid
    title, *subtitle = title_lines(grid)
    sections = [
        Section("results", "Results", _results(found)),
        Section("comparisons", "Comparisons", _comparisons(found)),
        Section("variance", "Variance", _variance(found)),
        *_own_figure(grid),
        Section("curves", "Learning curves", _curves(found)),
        *_classes(found.caption),
        Section("cost", "Cost", [cost_table(grid, found.runs, found.records), Lines(COST_LINES)]),
        Section("protocol", "Protocol and notes", [Lines(caption_lines(grid, found.caption))]),
        Section("runs", "Runs, versions and hardware", runs_folded(grid, found.runs, found.records)),
        Section("again", "How to make it again", [Commands(found.commands)]),
    ]
    return page(f"{grid.resolved.table.name}: {title.rstrip('.')}", " ".join(subtitle), sections)


# -------------------------------------------------------------------------------------------------------------- results


def _results(found: Results) -> list[Block]:
    grid = found.grid
    letters, marks = footnotes(grid)
    intervals, apart = cell_intervals(grid), _verdicts(found.comparisons)
    spread = grid.resolved.aggregate.spread != "none"
    blocks: list[Block] = []
    head = ["Method", *(column_name(grid, column) for column in grid.columns)]
    for size in grid.resolved.sizes:
        rows = []
        for row in (*grid.resolved.printed_rows, *grid.resolved.averages):
            cells: list[str] = [row]
            for column in grid.columns:
                cell, place = grid.cells[size, row, column], (size, row, column)
                lines = _lines(grid, cell, intervals.get(place), apart.get(place))
                cells.append(below(cell_text(cell, letters, HTML, spread), lines))
            rows.append(cells)
        blocks.append(Table(size_name(size), head, rows))
    about = []
    if intervals:
        about.append(f"Below a cell stands the 95 % interval of its mean on this test set, {_factors(grid)}.")
    else:
        about.append(
            "No cell has an interval: one needs the mean of two runs or more, all done, with different scores."
        )
    if apart and not isinstance(found.comparisons, str):
        about.append(
            f"higher, lower, equivalent: than or to {found.comparisons.against}, by Holm over all comparisons."
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


def _verdicts(found: Comparisons | str) -> dict[Place, Comparison]:
    """The comparisons that say something."""
    if isinstance(found, str):
        return {}
    return {
        (each.size, each.row, each.column): each
        for each in found.comparisons
        if each.verdict in ("higher", "lower", "equivalent")
    }


# ----------------------------------------------------------------------------------------------------------- statistics


def _comparisons(found: Results) -> list[Block]:
    if isinstance(found.comparisons, str):
        return [Lines([found.comparisons])]
    layout = comparison_layout(found.comparisons)
    pictures: list[Block] = [Pictures(forest.pictures_of(found.comparisons))]
    said: list[Block] = [Lines(layout.sentences)]
    if len(layout.sentences) > MANY_SENTENCES:
        said = [Folded(f"The comparisons in words: {len(layout.sentences)} sentences", said)]
    return [*pictures, *_tables(layout), *said, Lines(layout.about)]


def _variance(found: Results) -> list[Block]:
    if not found.variances:
        return [Lines(["No cell has two runs or more that are done, so there is no variance to split."])]
    layout = variance_layout(found.variances, found.grid)
    said: list[Block] = [Lines(layout.sentences)] if layout.sentences else []
    if len(layout.sentences) > MANY_SENTENCES:
        said = [Folded(f"What is not known: {len(layout.sentences)} sentences", said)]
    return [*_tables(layout), Lines(layout.about), *said]


def _tables(layout: Layout) -> list[Table]:
    return [Table(name, layout.head, rows, frozenset(layout.left)) for name, rows in layout.blocks if rows]


# ------------------------------------------------------------------------------------------------------ figures, classes


def _own_figure(grid: Grid) -> list[Section]:
    """The figure that the table has of its own, as `report --figure` draws it."""
    shown = grid.resolved.table.figure
    if shown is None:
        return []
    points = points_of(grid)
    known = [point for point in points if point.value is not None]
    if not known:
        return [Section("figure", "Figure", [Lines(["No point of the figure has all its runs done."])])]
    rows = [
        [
            point.row,
            point.column,
            f"{point.size:,}" if point.size else "full",
            "" if point.x is None else f"{point.x:g}",
            f"{point.value:.2f}",
            _number(point.spread),
        ]
        for point in known
        if point.value is not None
    ]
    data = Table(
        f"Points over {shown.label}", ["Row", "Column", "Size", shown.label, "Score", "Spread"], rows, frozenset({0, 1})
    )
    missing = f" of {len(points)} points; the others' runs are not all done" if len(known) < len(points) else " points"
    described = f"Scores over {shown.label}: {len(known)}{missing}."
    svg = picture(
        lambda: canvas_of(points, shown),
        "own",
        f"{grid.resolved.table.title} over {shown.label}",
        described,
        own_colours=True,
    )
    return [Section("figure", "Figure", [Picture(svg, described, data)])]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _curves(found: Results) -> list[Block]:
    panels = curves.panels_of(found.grid, found.runs, found.curves)
    if not panels:
        return [
            Lines(
                [
                    "No curve: no finished run was scored on dev at two updates or more; bench --dev-points 10 records more points."
                ]
            )
        ]
    return [
        Lines(
            [
                "Dev score over the updates of fine-tuning: the mean of the runs that the cells above are made of, where all of them were scored."
            ]
        ),
        *curves.blocks_of(panels),
    ]


def _classes(caption: Caption) -> list[Section]:
    """The classes of a user's own task."""
    blocks: list[Block] = []
    for title, head, body in class_tables(caption, HTML):
        rows = [[Markup(cell) for cell in row] for row in body]  # HTML.escape has escaped them
        blocks.append(Table(Markup(title), [Markup(name) for name in head], rows))
    return [Section("classes", "Classes", blocks)] if blocks else []
