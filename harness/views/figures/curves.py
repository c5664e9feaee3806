"""Learning curves: the dev score over the updates of fine-tuning, as the mean of the runs that each cell is made of. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.objectives import definition_of
from harness.specs import Run
from harness.tasks.metrics import METRICS
from harness.views.cells import Grid, counted_scores
from harness.views.document import Block, Picture, Pictures, Table
from harness.views.figures.panels import columns_of, handles_of, legend_below, look, panels_of, picture
from harness.views.table import size_name
from harness.wording import counted, in_points

MOST_POINTS = 15
"""Of a longer curve so many points are shown, at equal distances."""
PANEL, LINE = (3.7, 2.5), 0.19
"""Inches of a panel without its legend, and of a line of a legend."""
PAGE = 8.0
"""Inches of a legend that all panels share, which they do from `MOST_IN_PANEL` rows on."""
MOST_IN_PANEL = 6

Curves = Mapping[str, Sequence[tuple[int, float]]]
"""By key of a run's last stage: (update, dev score) in order."""


@dataclass(frozen=True)
class Line:
    """`points`: (update, mean of the dev score over `runs` runs), at the updates at which all of them were scored. `place`: of the row in
    its table, from 0, so that a row looks alike in every picture."""

    row: str
    place: int
    runs: int
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Panel:
    """The rows of one task at one size; `size_unit`: what the size counts."""

    size: int
    size_unit: str
    task: str
    title: str
    metric: str
    lines: tuple[Line, ...]


def curves_of(grid: Grid, runs: Sequence[Run], curves: Curves) -> list[Panel]:
    """Every task and size, with the rows of which some run is done and was scored at two updates or more. Rows that scikit-learn fits have
    none: what they are scored at are candidates."""
    keys = {
        (run.size, run.row, run.task, run.subset, run.seed): run.stage.key
        for run in runs
        if not definition_of(run.stage.objective).fitted
    }
    metrics = {run.task: run.stage.selection.metric for run in runs if run.stage.selection}
    columns = {column.task: column.title for column in reversed([*grid.resolved.columns.values()])}
    scores: Any = counted_scores(grid).drop_duplicates(["size", "configuration", "task", "subset", "seed"])
    of_cell: dict[tuple[int, str, str], list[str]] = {}
    for score in scores.itertuples():
        key = keys.get((score.size, score.configuration, score.task, score.subset, score.seed))
        if key is not None:
            of_cell.setdefault((score.size, score.task, score.row), []).append(key)
    panels = []
    for size in grid.resolved.sizes:
        for task in grid.resolved.tasks:
            lines = [
                _line(row, place, [curves.get(key, ()) for key in of_cell.get((size, task, row), ())])
                for place, row in enumerate(grid.resolved.printed_rows)
            ]
            kept = tuple(line for line in lines if line and len(line.points) > 1)
            if kept:
                panels.append(Panel(size, grid.resolved.size_unit, task, columns[task], metrics.get(task, ""), kept))
    return panels


def _line(row: str, place: int, curves: Sequence[Sequence[tuple[int, float]]]) -> Line | None:
    if not curves:
        return None
    by_step = [dict(curve) for curve in curves]
    steps = sorted(set.intersection(*(set(each) for each in by_step)))
    if len(steps) > MOST_POINTS:
        steps = [steps[int(i)] for i in np.linspace(0, len(steps) - 1, MOST_POINTS).round()]
    return Line(
        row, place, len(curves), tuple((step, float(np.mean([each[step] for each in by_step]))) for step in steps)
    )


def blocks_of(panels: Sequence[Panel]) -> list[Block]:
    """A small picture for each panel, with its means as a table; of many rows one legend for all."""
    lines = {line.place: line for panel in panels for line in panel.lines}
    every = [lines[place] for place in sorted(lines)]
    shared = len(every) > MOST_IN_PANEL and len(panels) > 1
    pictures = [_picture(panel, legend=not shared) for panel in panels]
    return [*([_legend(every)] if shared else []), Pictures(pictures)]


def _legend(lines: Sequence[Line]) -> Picture:
    """The lines of all panels, as a picture of their names."""
    columns = columns_of([line.row for line in lines], PAGE)

    def figure() -> Any:
        from matplotlib.lines import Line2D

        canvas, _ = panels_of(0, panel=(PAGE, LINE * -(-len(lines) // columns) + 0.1))
        samples = [Line2D([], [], **look(line.place)) for line in lines]
        canvas.legend(samples, [line.row for line in lines], loc="center", ncols=columns)
        return canvas

    described = f"The lines of {', '.join(line.row for line in lines)}."
    return Picture(picture(figure, "Legend of the learning curves", described), "Lines of all panels")


def _picture(panel: Panel, legend: bool) -> Picture:
    title = f"{panel.title}, {size_name(panel.size, panel.size_unit).lower()}"
    metric = METRICS[panel.metric].short
    ends = "; ".join(f"{line.row} ends at {in_points(line.points[-1][1])}" for line in panel.lines)
    steps = sorted({step for line in panel.lines for step, _ in line.points})
    means = [dict(line.points) for line in panel.lines]
    rows = [
        [f"{step:,}", *("" if (value := each.get(step)) is None else in_points(value) for each in means)]
        for step in steps
    ]
    counts = {line.runs for line in panel.lines}
    several = ", ".join(f"{line.row} {line.runs}" for line in panel.lines)
    caption = f"mean of {counted(counts.pop(), 'run')}" if len(counts) == 1 else f"means; runs: {several}"
    head = ["Update", *(line.row for line in panel.lines)]
    data = Table(f"Dev {metric} (x100) by update: {title}", head, rows, frozenset())
    description = f"Mean dev {metric} over updates. {ends}."
    made = picture(lambda: _figure(panel, metric, legend), f"Learning curves: {title}", description)
    return Picture(made, f"{title}: {caption}", data)


def _figure(panel: Panel, metric: str, legend: bool) -> Any:
    below = LINE * -(-len(panel.lines) // columns_of([line.row for line in panel.lines], PANEL[0])) if legend else 0.0
    canvas, (axes,) = panels_of(1, panel=PANEL, more=(0, below))
    for line in panel.lines:
        steps, values = zip(*line.points, strict=True)
        scores = [100 * value for value in values]
        axes.plot(steps, scores, markevery=max(1, len(steps) // 5), label=line.row, **look(line.place))
    axes.set(
        title=f"{panel.title}, {size_name(panel.size, panel.size_unit).lower()}",
        xlabel="update",
        ylabel=f"dev {metric} (x100)",
    )
    axes.locator_params(nbins=5)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    if legend:
        legend_below(canvas, handles_of(canvas))
    return canvas
