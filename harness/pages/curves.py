"""Learning curves: the dev score over the updates of fine-tuning, as the mean of the runs that each cell is made of. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.pages.layout import Block, Picture, Pictures, Table
from harness.pages.picture import FAINT, INK, look, picture
from harness.specs import Run
from harness.tables.caption import counted, in_points
from harness.tables.cells import Grid, counted_scores
from harness.tables.render import SHORT, size_name

MOST_POINTS = 15
"""Of a longer curve so many points are shown, at equal distances."""
WIDTH, HEIGHT = 3.7, 2.5
"""Inches of a panel without its legend."""
PAGE = 8.0
"""Inches of a legend that all panels share, which they do from `MOST_IN_PANEL` rows on."""
MOST_IN_PANEL = 6
LEGEND_LINE = 0.19
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 8, "handlelength": 2.6, "columnspacing": 1.0, "borderpad": 0.0}
STYLE: dict[str, Any] = {"markersize": 4, "linewidth": 1.4}
SAMPLE, LETTER = 0.6, 0.066
"""Inches of a line's sample in the legend with the space around it, and of a letter of its name."""

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
    """The rows of one task at one size."""

    size: int
    task: str
    title: str
    metric: str
    lines: tuple[Line, ...]


def panels_of(grid: Grid, runs: Sequence[Run], curves: Curves) -> list[Panel]:
    """Every task and size, with the rows of which some run is done and was scored at two updates or more."""
    keys = {(run.size, run.row, run.task, run.subset, run.seed): run.stage.key for run in runs}
    metrics = {run.task: run.stage.selection.metric for run in runs if run.stage.selection}
    columns = {column.task: column.title for column in reversed([*grid.resolved.columns.values()])}
    scores: Any = counted_scores(grid).drop_duplicates(["size", "configuration", "task", "subset", "seed"])
    mine: dict[tuple[int, str, str], list[str]] = {}
    for each in scores.itertuples():
        key = keys.get((each.size, each.configuration, each.task, each.subset, each.seed))
        if key is not None:
            mine.setdefault((each.size, each.task, each.row), []).append(key)
    found = []
    for size in grid.resolved.sizes:
        for task in grid.resolved.tasks:
            lines = [
                _line(row, place, [curves.get(key, ()) for key in mine.get((size, task, row), ())])
                for place, row in enumerate(grid.resolved.printed_rows)
            ]
            kept = tuple(line for line in lines if line and len(line.points) > 1)
            if kept:
                found.append(Panel(size, task, columns[task], metrics.get(task, ""), kept))
    return found


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
    pictures = [_picture(number, panel, legend=not shared) for number, panel in enumerate(panels)]
    return [*([_legend(every)] if shared else []), Pictures(pictures)]


def _legend(lines: Sequence[Line]) -> Picture:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    columns = _columns(lines, PAGE)

    def drawn() -> Any:
        figure = Figure(figsize=(PAGE, LEGEND_LINE * -(-len(lines) // columns) + 0.1))
        samples = [Line2D([], [], **look(line.place), **STYLE) for line in lines]
        figure.legend(samples, [line.row for line in lines], loc="center", ncols=columns, **LEGEND)
        return figure

    names = ", ".join(line.row for line in lines)
    return Picture(
        picture(drawn, "legend", "Legend of the learning curves", f"The lines of {names}."), "Lines of all panels"
    )


def _columns(lines: Sequence[Line], width: float) -> int:
    """Into how many columns a legend of this width goes, in inches."""
    widest = SAMPLE + LETTER * max(len(line.row) for line in lines)
    return min(len(lines), max(1, int(width / widest)))


def _picture(number: int, panel: Panel, legend: bool) -> Picture:
    title = f"{panel.title}, {size_name(panel.size).lower()}"
    metric = SHORT.get(panel.metric, panel.metric)
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
    svg = picture(lambda: _drawn(panel, metric, legend), f"curve{number}", f"Learning curves: {title}", description)
    return Picture(svg, f"{title}: {caption}", data)


def _drawn(panel: Panel, metric: str, legend: bool) -> Any:
    from matplotlib.figure import Figure  # no pyplot: no backend and no global state

    columns = _columns(panel.lines, WIDTH)
    height = HEIGHT + (LEGEND_LINE * -(-len(panel.lines) // columns) if legend else 0.0)
    figure = Figure(figsize=(WIDTH, height))
    below = 0.5 + height - HEIGHT  # of the axis, and of the legend
    figure.subplots_adjust(0.6 / WIDTH, below / height, 1 - 0.12 / WIDTH, 1 - 0.3 / height)
    axes = figure.add_subplot()
    for line in panel.lines:
        axes.plot(
            [step for step, _ in line.points],
            [100 * value for _, value in line.points],
            markevery=max(1, len(line.points) // 5),
            label=line.row,
            **look(line.place),
            **STYLE,
        )
    axes.set(title=f"{panel.title}, {size_name(panel.size).lower()}", xlabel="update", ylabel=f"dev {metric} (x100)")
    axes.locator_params(nbins=5)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    finish(axes)
    if legend:
        figure.legend(loc="lower center", ncols=columns, **LEGEND)
    return figure


def finish(axes: Any) -> None:
    """The look that all pictures of a page share."""
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.title.set_color(INK)
