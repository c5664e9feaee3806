"""Marginal tables of a grid: a metric at each value of each path, and the two-way table of two paths.

Pure: the same trials in any order give the same bytes.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from harness.search.results import Study, design
from harness.search.tables import (
    WORST,
    CellParts,
    aligned,
    csv_text,
    number_text,
    row_title,
    score_cell,
    shown_value,
    style_of,
    title_of,
)
from harness.search.trials import Trial, best_trial
from harness.tables.aggregation import mean
from harness.tables.recipe import Value
from harness.tables.render import STYLES, Style, latex_table, table_lines

Block = tuple[str, list[str], list[list[str]]]
"""One table: title, header and rows, escaped."""


@dataclass(frozen=True)
class Marginal:
    """A metric over the points of a grid that have the values `at`: two paths give a cell, one a marginal, none the grid.

    `mean`: over the means of the `complete` of these `points`; `best`: the number of the best eligible trial among them.
    """

    metric: str
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
            if old is None or _reached(study, trial) > _reached(study, old):
                found[place] = trial
    return found


def _reached(study: Study, trial: Trial) -> tuple[bool, bool, int]:
    return study.eligible(trial), study.complete(trial), len(trial.outcomes)


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
    for k, metric in enumerate(study.metrics):
        for at in places:
            here = [t for t in trials.values() if all(t.point[path] == value for path, value in at.items())]
            means = [value for t in here if study.complete(t) and (value := t.mean(k)) is not None]
            best = best_trial(filter(study.eligible, here), study.directions[k], k)
            share = size // math.prod(len(study.grid[path]) for path in at)
            center = mean(means) if means else None
            found.append(Marginal(metric, at, center, len(means), share, best.number if best else None))
    return tuple(found)


def marginal_tables(study: Study, format: str) -> str:
    """The marginals of a grid in a format: where two paths vary, one table with the first down and the second across, else a
    table for each path; '' for a search and where nothing varies. Raises UserError for an unknown format."""
    style = style_of(format)
    margins = marginals(study)
    if not varied(study):
        return ""
    if format == "json":
        return json.dumps([asdict(margin) for margin in margins], indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if style is None:
        return _margins_csv(study, margins)
    blocks = margin_blocks(study, style)
    lines = [style.escape(line) for line in margin_lines(study, bold=format != "text")]
    if format == "latex":
        tables = [
            latex_table(f"{study.name}-{i}", h, [(title, b)], lines, ()) for i, (title, h, b) in enumerate(blocks)
        ]
        return "\n".join(tables)
    parts = []
    for title, header, body in blocks:
        parts += [f"### {title}\n" if format == "md" else title, *table_lines(header, body, format), ""]
    bullet = "- " if format == "md" else ""
    return "\n".join([*parts, *(bullet + line for line in lines)]) + "\n"


def margin_blocks(study: Study, style: Style) -> list[Block]:
    """The margins of a grid as tables, escaped; [] for a search and where nothing varies."""
    if not varied(study):
        return []
    blocks: list[Block] = []
    margins = marginals(study)
    for k, metric in enumerate(study.metrics):
        mine = [margin for margin in margins if margin.metric == metric]
        blocks += [_across(study, k, mine, style)] if _crossed(study) else _by_path(study, k, mine, style)
    return blocks


def _crossed(study: Study) -> bool:
    return len(varied(study)) == 2


def margin_lines(study: Study, bold: bool) -> Iterator[str]:
    """What the margins are, for below them."""
    total, across = len(study.replicates), _crossed(study)
    yield f"Study {study.name}: {row_title(study)}; {design(study.replicates)}. Test was not scored."
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


def _across(study: Study, k: int, margins: Sequence[Marginal], style: Style) -> Block:
    """The table of two paths: the first down, the second across, with the means of complete rows and columns."""
    down, right = varied(study)
    metric, grid, trials = study.metrics[k], study.grid or {}, trials_by_point(study)
    best = next(margin.best for margin in margins if not margin.at)
    whole = {
        tuple(margin.at.items()): number_text(metric, margin.mean, style)
        for margin in margins
        if margin.complete == margin.points and margin.mean is not None
    }
    columns = [
        aligned([_cell(study, trials.get((a, b)), k, best, style) for a in grid[down]], style) for b in grid[right]
    ]
    rows = [whole.get(((down, a),), style.dash) for a in grid[down]]
    foot = [whole.get(((right, b),), style.dash) for b in grid[right]]
    corner = style.escape(f"{down} \\ {right}" if style is STYLES["text"] else f"{down} / {right}")
    header = [corner, *(shown_value(b, style, exact=True) for b in grid[right])]
    body = [[shown_value(a, style, exact=True), *(column[i] for column in columns)] for i, a in enumerate(grid[down])]
    if set(rows) != {style.dash}:
        header.append("mean")
        body = [[*row, text] for row, text in zip(body, rows, strict=True)]
    if set(foot) != {style.dash}:
        corner_text = [whole.get((), style.dash)] if len(header) > len(foot) + 1 else []
        body.append(["mean", *foot, *corner_text])
    return style.escape(f"{title_of(metric)}, {down} down, {right} across"), header, body


def _cell(study: Study, trial: Trial | None, k: int, best: int | None, style: Style) -> CellParts | str:
    if trial is None:
        return style.dash
    if not study.complete(trial):
        return "failed" if trial.state == "failed" else f"{len(trial.outcomes)}/{len(study.replicates)}"
    cell = score_cell(study, trial, k, trial.number == best, style)
    if study.eligible(trial) or isinstance(cell, str):
        return cell
    return (*cell[:3], style.mark("x"))


def _by_path(study: Study, k: int, margins: Sequence[Marginal], style: Style) -> Iterator[Block]:
    """A table for each path: the mean over complete points, their number, and the best one."""
    metric, sign = study.metrics[k], 1 if study.directions[k] == "maximize" else -1
    trials = {trial.number: trial for trial in study.trials}
    for path in varied(study):
        mine = [margin for margin in margins if list(margin.at) == [path]]
        whole = all(margin.complete == margin.points for margin in mine)
        top = max((sign * margin.mean for margin in mine if margin.mean is not None), default=None) if whole else None
        means: list[CellParts | str] = []
        bests: list[CellParts | str] = []
        for margin in mine:
            if margin.mean is None:
                means.append(style.dash)
            elif margin.complete < margin.points:
                means.append(("(", number_text(metric, margin.mean, style), "", ")"))
            else:
                marked = style.best("|") if sign * margin.mean == top else "|"
                before, _, after = marked.partition("|")
                means.append((before, number_text(metric, margin.mean, style), "", after))
            found = trials[margin.best] if margin.best is not None else None
            bests.append(score_cell(study, found, k, False, style) if found else style.dash)
        body = [
            [
                shown_value(margin.at[path], style, exact=True),
                center,
                f"{margin.complete}/{margin.points}",
                style.escape(f"#{margin.best}") if margin.best is not None else style.dash,
                best,
            ]
            for margin, center, best in zip(mine, aligned(means, style), aligned(bests, style), strict=True)
        ]
        header = [style.escape(name) for name in (path, "mean", "points", "best", "its value")]
        yield style.escape(f"{title_of(metric)} by {path}"), header, body


def _margins_csv(study: Study, margins: Sequence[Marginal]) -> str:
    names = ["metric", *(f"set.{path}" for path in varied(study)), "mean", "complete", "points", "best"]
    rows = [asdict(margin) for margin in margins]
    for row in rows:
        row |= {f"set.{path}": value for path, value in row.pop("at").items()}
    return csv_text(names, rows)
