"""Marginal tables of a grid: a metric at each value of each path, and the two-way table of two paths.

Pure: the same trials in any order give the same bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from harness.errors import unknown
from harness.planning.aggregation import mean
from harness.planning.recipe import Value
from harness.search.results import Study
from harness.search.trials import Trial, best_trial
from harness.views.document import DASH, FORMATS, Document, Entry, Table, written
from harness.views.study import WORST, csv_of, design, row_title, score_entry, shown_value, title_of
from harness.views.view import json_text
from harness.wording import in_points


@dataclass(frozen=True)
class Marginal:
    """The scores of the points of a grid that have the values `at`: two paths give a cell, one a marginal, none the grid.

    `mean`: over the means of the `complete` of these `points`; `best`: the number of the best eligible trial among them.
    """

    at: Mapping[str, Value]
    mean: float | None
    complete: int
    points: int
    best: int | None


def varied(study: Study) -> tuple[str, ...]:
    """The paths of the grid that have more than one value."""
    return tuple(path for path in study.paths if len((study.grid or {}).get(path, ())) > 1)


def trials_by_point(study: Study) -> dict[tuple[Value, ...], Trial]:
    """The grid's trials by their values at the varied paths; of several at one point the one with the most replicates."""
    grid, paths = study.grid or {}, varied(study)
    found: dict[tuple[Value, ...], Trial] = {}
    for trial in study.trials:
        if all(path in trial.point and trial.point[path] in values for path, values in grid.items()):
            place = tuple(trial.point[path] for path in paths)
            old = found.get(place)
            if old is None or _reached(trial) > _reached(old):
                found[place] = trial
    return found


def _reached(trial: Trial) -> tuple[bool, bool, int]:
    return trial.eligible, trial.state == "complete", len(trial.outcomes)


def marginals(study: Study) -> tuple[Marginal, ...]:
    """The marginals of a grid: its cells where two paths vary, then each value of each path, then the whole grid; () for a
    search. A trial whose point is not in the grid is left out."""
    if not study.grid:
        return ()
    paths, trials = varied(study), trials_by_point(study)
    places: list[dict[str, Value]] = []
    if len(paths) == 2:
        places += [dict(zip(paths, pair, strict=True)) for pair in itertools.product(*(study.grid[p] for p in paths))]
    places += [{path: value} for path in paths for value in study.grid[path]]
    places.append({})
    size = math.prod(len(study.grid[path]) for path in paths)
    found = []
    for at in places:
        here = [t for t in trials.values() if all(t.point[path] == value for path, value in at.items())]
        means = [value for t in here if t.state == "complete" and (value := t.mean()) is not None]
        best = best_trial(here)
        share = size // math.prod(len(study.grid[path]) for path in at)
        center = mean(means) if means else None
        found.append(Marginal(at, center, len(means), share, best.number if best else None))
    return tuple(found)


def marginal_tables(study: Study, format: str) -> str:
    """The marginals of a grid in a format: where two paths vary, one table with the first down and the second across, else a
    table for each path; '' for a search and where nothing varies. Raises UserError for an unknown format."""
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    if not varied(study):
        return ""
    if format == "json":
        return json_text([asdict(margin) for margin in marginals(study)])
    if format == "csv":
        return _margins_csv(study, marginals(study))
    tables = margin_tables(study)
    lines = [*margin_lines(study, bold=format != "text")]
    if format == "latex":  # an environment for each, since their heads differ
        return written(Document(study.name, tables[:1], lines, caption=lines, below=tables[1:]), format)
    return written(Document(study.name, tables, lines), format)


def margin_tables(study: Study) -> list[Table]:
    """The margins of a grid; [] for a search and where nothing varies."""
    if not varied(study):
        return []
    margins = marginals(study)
    return [_across(study, margins)] if _crossed(study) else [*_by_path(study, margins)]


def _crossed(study: Study) -> bool:
    return len(varied(study)) == 2


def margin_lines(study: Study, bold: bool) -> Iterator[str]:
    """What the margins are, for below them."""
    total, across = len(study.replicates), _crossed(study)
    yield f"Study {study.name}: {row_title(study)}; {design(study.replicates)}. Test sets have no part in them."
    if across:
        yield (
            f"{'Bold' if bold else 'Star'}: the best point; r/{total}: only r of its replicates are done, so no mean is shown. "
            "The mean of a row or column is shown where all its points are complete."
        )
    else:
        yield (
            "The mean over all complete points with a value; in parentheses where points are missing, since it is then over "
            f"other points than the rest of the table. {'Bold' if bold else 'Star'}: the best value, once none is missing."
        )
    if any(o.status != "done" for trial in trials_by_point(study).values() for o in trial.outcomes):
        yield f"x: {WORST}" if across else WORST


def _across(study: Study, margins: Sequence[Marginal]) -> Table:
    """The table of two paths: the first down, the second across, with the means of complete rows and columns."""
    down, right = varied(study)
    grid, trials = study.grid or {}, trials_by_point(study)
    best = next(margin.best for margin in margins if not margin.at)
    whole = {
        tuple(margin.at.items()): Entry(in_points(margin.mean))
        for margin in margins
        if margin.complete == margin.points and margin.mean is not None
    }
    dash = Entry(DASH)
    head = [f"{down} \\ {right}", *(shown_value(b, exact=True) for b in grid[right])]
    rows: list[list[str | Entry]] = [
        [shown_value(a, exact=True), *(_cell(study, trials.get((a, b)), best) for b in grid[right])] for a in grid[down]
    ]
    means = [whole.get(((down, a),)) for a in grid[down]]
    foot = [whole.get(((right, b),)) for b in grid[right]]
    if any(means):
        head.append("mean")
        rows = [[*row, mean or dash] for row, mean in zip(rows, means, strict=True)]
    if any(foot):
        corner = [whole.get((), dash)] if any(means) else []
        rows.append(["mean", *(mean or dash for mean in foot), *corner])
    return Table(f"{title_of(study.metric)}, {down} down, {right} across", head, rows)


def _cell(study: Study, trial: Trial | None, best: int | None) -> Entry:
    if trial is None:
        return Entry(DASH)
    if trial.state != "complete":
        return Entry("failed" if trial.state == "failed" else f"{len(trial.outcomes)}/{len(study.replicates)}")
    entry = score_entry(study, trial, trial.number == best)
    return entry if trial.eligible or entry.text == DASH else replace(entry, marks="x")


def _by_path(study: Study, margins: Sequence[Marginal]) -> Iterator[Table]:
    """A table for each path: the mean over complete points, their number, and the best one."""
    trials = {trial.number: trial for trial in study.trials}
    for path in varied(study):
        mine = [margin for margin in margins if list(margin.at) == [path]]
        whole = all(margin.complete == margin.points for margin in mine)
        top = max((margin.mean for margin in mine if margin.mean is not None), default=None) if whole else None
        rows: list[list[str | Entry]] = []
        for margin in mine:
            mean = Entry(DASH)
            if margin.mean is not None:
                partial = margin.complete < margin.points
                best = not partial and margin.mean == top
                mean = Entry(in_points(margin.mean), best=best, partial=partial)
            value, count = shown_value(margin.at[path], exact=True), f"{margin.complete}/{margin.points}"
            if margin.best is None:
                rows.append([value, mean, count, DASH, Entry(DASH)])
            else:
                score = score_entry(study, trials[margin.best], best=False)
                rows.append([value, mean, count, f"#{margin.best}", score])
        yield Table(f"{title_of(study.metric)} by {path}", [path, "mean", "points", "best", "its value"], rows)


def _margins_csv(study: Study, margins: Sequence[Marginal]) -> str:
    names = [*(f"set.{path}" for path in varied(study)), "mean", "complete", "points", "best"]
    rows = [asdict(margin) for margin in margins]
    for row in rows:
        row |= {f"set.{path}": value for path, value in row.pop("at").items()}
    return csv_of(names, rows)
