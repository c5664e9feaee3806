"""Learning curves: the dev score over the updates of fine-tuning, as the mean of the runs that each cell is made of. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.methods import definition_of
from harness.specs import Run
from harness.tasks.metrics import METRICS
from harness.views.cells import Grid, counted_scores
from harness.views.figures.panels import legend_below, look, panels_of
from harness.views.view import View
from harness.wording import examples

if TYPE_CHECKING:
    import pandas as pd

MOST_POINTS = 15
"""Of a longer curve so many points are shown, at equal distances."""
ABOUT = "Dev score over the updates of fine-tuning: the mean of the runs of which each cell is made, at the updates at which all were scored."
PLACE = ["size", "task", "row"]

Curves = Mapping[str, Sequence[tuple[int, float]]]
"""By key of a run's last stage: (update, dev score) in order."""


def curves_view(grid: Grid, runs: Sequence[Run], curves: Curves) -> View:
    """One row a size, task, row and update, of rows of which some run is done and was scored at two updates or more. What scikit-learn fits has
    no curve: what it is scored at are candidates."""
    import pandas as pd

    keys = {
        (run.size, run.row, run.task, run.subset, run.seed): run.stage.key
        for run in runs
        if not definition_of(run.stage.objective).fitted
    }
    metrics = {run.task: run.stage.selection.metric for run in runs if run.stage.selection}
    scores = counted_scores(grid).drop_duplicates(["size", "configuration", "task", "subset", "seed"])
    found: list[dict[str, Any]] = []
    for place, of_cell in scores.groupby(PLACE, sort=False):
        places = of_cell[["size", "configuration", "task", "subset", "seed"]].itertuples(index=False, name=None)
        each = [dict(curves.get(keys[run], ())) for run in places if run in keys]
        steps = sorted(set.intersection(*map(set, each))) if each else []
        if len(steps) > MOST_POINTS:
            steps = [steps[int(i)] for i in np.linspace(0, len(steps) - 1, MOST_POINTS).round()]
        of_place = dict(zip(PLACE, place, strict=True))
        if len(steps) > 1:
            means = {step: float(np.mean([curve[step] for curve in each])) for step in steps}
            found += [{**of_place, "runs": len(each), "update": step, "dev": dev} for step, dev in means.items()]
    frame = pd.DataFrame(found, columns=[*PLACE, "runs", "update", "dev"])
    if not found:
        return View(
            "curves", frame, [], ["No run has a learning curve yet: one needs two updates at which dev was scored."]
        )
    return View("curves", frame, [], [ABOUT], lambda: _figure(grid, frame, metrics))


def _figure(grid: Grid, frame: pd.DataFrame, metrics: Mapping[str, str]) -> Any:
    """A panel for each size and task. A row looks alike in every panel."""
    r = grid.resolved
    titles = {column.task: column.title for column in reversed([*r.columns.values()])}
    places = {row: place for place, row in enumerate(r.printed_rows)}
    panels = [
        (size, task)
        for size in r.sizes
        for task in r.tasks
        if ((frame["size"] == size) & (frame["task"] == task)).any()
    ]
    canvas, drawn = panels_of(len(panels), more=(0, 0.5))
    for axes, (size, task) in zip(drawn, panels, strict=True):
        here = frame[(frame["size"] == size) & (frame["task"] == task)]
        for row in (row for row in places if (here["row"] == row).any()):
            line = here[here["row"] == row]
            axes.plot(line["update"], 100 * line["dev"], label=row, **look(places[row]))
        metric = METRICS[metrics[task]].short if task in metrics else "score"
        axes.set(title=f"{titles[task]}, {examples(size, r.size_unit)}", xlabel="update", ylabel=f"dev {metric} (x100)")
        axes.locator_params(nbins=5)
        axes.xaxis.set_major_formatter("{x:,.0f}")
    legend_below(canvas)
    return canvas
