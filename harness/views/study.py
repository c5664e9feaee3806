"""What a study found: all points, the margins of a grid, Optuna's pictures, the final test in words, and one page of it all.

Pure but for the pictures' files: the same trials in any order give the same bytes.
"""

from __future__ import annotations

import itertools
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.paths import without_folders
from harness.planning.aggregation import mean
from harness.planning.recipe import Value
from harness.search.results import Measured, Study
from harness.search.trials import Trial, best_trial
from harness.specs import Record
from harness.tasks.metrics import METRICS
from harness.views.document import (
    DASH,
    Block,
    Commands,
    Document,
    Entry,
    Folded,
    Lines,
    Picture,
    Section,
    Table,
    in_format,
)
from harness.views.figures.panels import picture
from harness.views.page import page
from harness.views.provenance import SHORT_KEY, machine_lines, machines_of
from harness.wording import counted, in_points, letter, shortened, some_of

if TYPE_CHECKING:
    import optuna
    import pandas as pd

WORST = "A failed or diverged replicate counts with the metric's worst value, and its point cannot be the best."
NO_BEST = "There is no best point: no point has all its replicates done."
FEW = 20
"""With fewer points an importance is mostly chance."""
SCREEN = 8
"""Points that a screen shows."""
PICTURES = {"plot_param_importances": "importances.png", "plot_parallel_coordinate": "parallel_coordinate.png"}
"""Functions of `optuna.visualization.matplotlib`, and the files that they draw."""
STYLE = {"text.parse_math": True, "axes.grid": False}
"""Of matplotlib: Optuna's ticks of a logarithm are formulas, and its axes overlap."""


# -------------------------------------------------------------------------------------------------------------- points


def points_written(study: Study, format: str) -> str:
    """All points, best first, as text, md or latex; every replicate unrounded as csv or json. Raises UserError for another format."""
    lines, space = [*_lines(study), *study.notes], study.points.space
    points = [
        {"trial": trial.number, "point": dict(trial.point), "state": trial.state, "reason": trial.reason}
        | {"mean": trial.mean(), "spread": trial.spread(study.replicates), "eligible": trial.eligible}
        for trial in study.ranked
    ]
    numbers = {"best": study.best and study.best.number, "default": study.default and study.default.number}
    about: dict[str, Any] = {
        "study": study.name,
        "method": space.method,
        "row": study.points.base.rows[0].name,
        "mode": space.mode,
    }
    about |= {"metric": study.points.metric, "sampler": space.sampler, "racing": space.racing, "seed": study.seed}
    body = {**about, **numbers, **study.spent(), "lines": lines, "points": points, "trials": []}
    document = Document(f"{study.name}-points", [points_table(study)], lines, _footnotes(study)[1], lines[:2])
    return in_format(format, study.trials, "trials", body, document)


def screen(study: Study) -> str:
    """As a terminal shows it: the best points and the default one, the margins of a grid, and what is to be known of them."""
    table, first = points_table(study), study.default
    shown = [trial for place, trial in enumerate(study.ranked) if place < SCREEN or trial is first]
    rows = [row for row, trial in zip(table.rows, study.ranked, strict=True) if trial in shown]
    names = [path.rpartition(".")[2] for path in study.paths]
    if len({*names}) == len(names):
        table = replace(table, head=[table.head[0], *names, *table.head[1 + len(names) :]])
    left = len(study.found) - len(rows)
    more = [f"And {counted(left, 'point')} more: points.md in the folder below."] if left else []
    margins, said = margin_tables(study)
    notes = _footnotes(study)[1]
    lines = [*more, *_lines(study), *said]
    return in_format("text", None, "", {}, Document("", [replace(table, rows=rows), *margins], lines, notes))


def points_table(study: Study) -> Table:
    """All points, best first."""
    letters, _ = _footnotes(study)
    head = ["#", *study.paths, title_of(study), "replicates", "note"]
    rows: list[list[str | Entry]] = []
    for trial in study.ranked:
        words = {"best": trial is study.best, "default": trial is study.default, trial.state: trial.state != "complete"}
        note = ", ".join(word for word, holds in words.items() if holds)
        values = [shown_value(trial.point.get(path)) for path in study.paths]
        done, marks = (
            f"{len(trial.outcomes)}/{len(study.replicates)}",
            ",".join(map(letters.__getitem__, _marks(study, trial))),
        )
        rows.append([str(trial.number), *values, _score(study, trial), done, Entry(note, marks=marks)])
    return Table("", head, rows, frozenset({0, len(head) - 1}))


def _score(study: Study, trial: Trial) -> Entry:
    """A trial's mean and its spread; in parentheses while replicates are missing."""
    center, spread = trial.mean(), trial.spread(study.replicates)
    if center is None:
        return Entry(DASH)
    text = "" if spread is None else in_points(spread)
    return Entry(in_points(center), text, best=trial is study.best, partial=trial.state != "complete")


def title_of(study: Study) -> str:
    return f"dev {METRICS[study.points.metric].short}"


def shown_value(value: Value | None, exact: bool = False) -> str:
    """A hyperparameter's value; a float with more than six digits is rounded to four unless `exact`."""
    if value is None or isinstance(value, bool):
        return {None: DASH, True: "true", False: "false"}[value]
    if not isinstance(value, float):
        return str(value)
    text = repr(value) if exact or len(re.sub(r"e.*|\D", "", repr(value))) <= 6 else f"{value:.4g}"
    return re.sub(r"e([+-]?)0*(\d)", lambda found: f"e{found[1].strip('+')}{found[2]}", text)


def _marks(study: Study, trial: Trial) -> list[tuple[str, str]]:
    """Why a trial is marked: its failed replicates, and why it was dropped or cannot be run."""
    found: list[tuple[str, str]] = [
        (outcome.status, _reason(outcome.reason)) for outcome in trial.outcomes if outcome.status != "done"
    ]
    if trial.state in ("dropped", "failed"):
        ended = f"dropped after {len(trial.outcomes)} of {len(study.replicates)}"
        found.append((ended if trial.state == "dropped" else "cannot be run", _reason(trial.reason)))
    return list(dict.fromkeys(found))


def _reason(text: str) -> str:
    return " ".join(text.split()) or "no reason recorded"


def _footnotes(study: Study) -> tuple[dict[tuple[str, str], str], list[str]]:
    """A letter for each mark in the order of the table, and its line."""
    members: dict[tuple[str, str], list[str]] = {}
    for trial in study.ranked:
        for mark in _marks(study, trial):
            places = [
                f"#{trial.number} subset{subset} seed{seed}"
                for (subset, seed), outcome in zip(study.replicates, trial.outcomes, strict=False)
                if (outcome.status, _reason(outcome.reason)) == mark
            ]
            members.setdefault(mark, []).extend(places or [f"#{trial.number}"])
    letters = {mark: letter(i) for i, mark in enumerate(members)}
    lines = []
    for (kind, reason), runs in members.items():
        what = f"{counted(len(runs), 'replicate')} {kind}" if kind in ("failed", "diverged") else kind
        lines.append(f"{letters[kind, reason]}: {what} ({shortened(reason)}): {some_of(runs)}.")
    return letters, lines


# ----------------------------------------------------------------------------------------------------------- sentences


def subtitle(study: Study) -> str:
    row, space = study.points.base.rows[0].name, study.points.space
    method = f" ({space.method})" if space.method != row else ""
    return f"{row}{method}, {space.mode} over {', '.join(study.paths)}; sampler {space.sampler}, racing {space.racing}, seed {study.seed}."


def _lines(study: Study) -> list[str]:
    """What is to be known of the points."""
    lines = [f"Study {study.name}: {subtitle(study)}", conclusion(study)]
    lines.append(
        f"Values: dev {study.points.metric} in points (x100), {design(study)}. Test sets have no part in them."
    )
    if any(trial.outcomes and trial.state != "complete" for trial in study.found):
        lines.append("In parentheses: the mean so far of a point whose replicates are not all done.")
    if any(outcome.status != "done" for trial in study.found for outcome in trial.outcomes):
        lines.append(WORST)
    spent = study.spent()
    states = {state: spent[state] for state in ("complete", "dropped", "failed")}
    states["not finished"] = spent["trials"] - sum(states.values())
    counts = ", ".join(f"{number} {state}" for state, number in states.items() if number)
    lines.append(
        f"{counted(spent['trials'], 'point')}{f' ({counts})' if counts else ''}, {spent['replicates']} of {spent['full']} replicates; "
        f"{counted(spent['stages'], 'stage')}, {spent['flops']:.2e} FLOPs, {spent['seconds'] / 3600:.2f} hours, without MLM heads and pre-training."
    )
    return lines


def conclusion(study: Study) -> str:
    """One sentence: the best point and how far it is from the default one."""
    best, difference = study.best, study.above_default()
    if best is None:
        return NO_BEST
    if best is study.default:
        return f"The best point is trial {best.number}, the default one: no point tried is better."
    if difference is None:
        return f"The best point is trial {best.number}."
    return (
        f"The best point is trial {best.number}, {_distance(difference)} the default one on dev, where it was selected; only a test on other rows "
        "says whether this holds."
    )


def design(study: Study) -> str:
    """What a mean and its ± are taken over, in words."""
    replicates = study.replicates
    subsets, seeds = {subset for subset, _ in replicates}, {seed for _, seed in replicates}
    if len(replicates) == 1:
        return "one replicate, so no spread"
    if len(subsets) == 1:
        return f"mean ± standard deviation (ddof 1) over {len(replicates)} replicates of one subset"
    over = f"{len(subsets)} subsets x {counted(len(seeds), 'seed')}"
    return f"mean ± standard deviation of the subsets' means (ddof 1) over {over}"


def test_lines(study: Study, test: Mapping[str, Any], before: Sequence[int]) -> Iterator[str]:
    """The final test in words. `before`: the other trials of the study whose test scores were seen."""
    scores = [f"{title} {_shown(cell)}" for title, cell in test["columns"].items()]
    scores += [f"mean of the columns {_shown(test['test'])}"] if len(scores) > 1 else []
    yield f"Test: {', '.join(scores)}."
    if test["difference"]:
        yield f"Dev: {_shown(test['dev'])}, {_distance(test['difference'])} test."
    else:
        yield f"Dev {study.points.metric}: {_shown(test['dev'])}, not a mean of the same scores as that of test."
    points = "this point"
    if test["default"]:
        points = "this point and the default one"
        above = _distance(test["above_default"])
        yield f"Test of the default point: {_shown(test['default'])}; the best point is {above} it."
    yield f"Values are in points (x100): {design(study)}."
    if before:
        tried = ", ".join(map(str, before))
        yield (
            f"The test set was scored for {points} after the choice on dev, and before for trial {tried} of this study: this score is one of "
            f"{len(before) + 1}."
        )
    else:
        yield f"The test set was scored once, for {points}, after the choice on dev."


def _distance(difference: Measured) -> str:
    mean, spread = difference["mean"], difference["spread"]
    return f"{_shown({'mean': abs(mean), 'spread': spread})} {'above' if mean >= 0 else 'below'}"


def _shown(cell: Measured) -> str:
    return in_points(cell["mean"]) + (f" ± {in_points(cell['spread'])}" if cell["spread"] is not None else "")


# ------------------------------------------------------------------------------------------------------------- margins


def _grid(study: Study) -> dict[str, tuple[Value, ...]]:
    """The values of a grid by path; {} for a search."""
    space = study.points.space
    return {path: drawn.choice or () for path, drawn in space.parameters.items()} if space.mode == "grid" else {}


def _in_grid(study: Study) -> dict[tuple[Value, ...], Trial]:
    """The grid's trials by their values at the paths that vary, each cell of the grid counting, also where two are one computation; of several at
    one point the one with the most replicates."""
    grid, found = _grid(study), dict[tuple[Value, ...], Trial]()
    whole = sorted((*study.found, *study.repeated), key=lambda trial: trial.number)
    for trial in sorted(whole, key=lambda t: (t.eligible, t.state == "complete", len(t.outcomes)), reverse=True):
        if all(path in trial.point and trial.point[path] in values for path, values in grid.items()):
            found.setdefault(tuple(trial.point[path] for path, values in grid.items() if len(values) > 1), trial)
    return found


def margins(study: Study) -> pd.DataFrame:
    """The margins of a grid: its cells where two paths vary, then each value of each path, then the whole grid. `mean`: over the means of the
    `complete` ones of these `points`; `best`: the number of the best eligible trial. Empty for a search."""
    import pandas as pd

    grid, trials = {path: values for path, values in _grid(study).items() if len(values) > 1}, _in_grid(study)
    cells = (
        [dict(zip(grid, place, strict=True)) for place in itertools.product(*grid.values())] if len(grid) == 2 else []
    )
    rows = []
    for at in [*cells, *({path: value} for path, values in grid.items() for value in values), {}] if grid else []:
        here = [trial for trial in trials.values() if all(trial.point[path] == value for path, value in at.items())]
        means = [trial.mean() or 0.0 for trial in here if trial.state == "complete"]
        size = math.prod(len(values) for path, values in grid.items() if path not in at)
        best = best_trial(here)
        numbers = {"mean": mean(means) if means else None, "complete": len(means), "points": size}
        rows.append({**dict.fromkeys(grid), **at, **numbers, "best": best.number if best else None})
    return pd.DataFrame(rows, columns=[*grid, "mean", "complete", "points", "best"], dtype=object)


def margins_written(study: Study, format: str) -> str:
    """The margins in a format; '' for a search and where nothing varies."""
    frame, (tables, lines) = margins(study), margin_tables(study)
    lines = [
        f"Study {study.name}: {subtitle(study)}",
        f"Values: {design(study)}. Test sets have no part in them.",
        *lines,
    ]
    document = Document(f"{study.name}-margins", tables[:1], lines, caption=lines[:2], below=tables[1:])
    return in_format(format, frame, "margins", {"study": study.name, "margins": []}, document) if tables else ""


def margin_tables(study: Study) -> tuple[list[Table], list[str]]:
    """Where two paths vary one table with the first down and the second across, else a table for each path; and what is to be known of them."""
    frame, grid = margins(study), _grid(study)
    paths = [path for path in grid if path in frame.columns]
    if not len(frame):
        return [], []
    if len(paths) == 2:
        return [_across(study, frame, *paths)], _known(study, frame, "x: ")
    return [_by_path(study, frame[frame[path].notna()], path) for path in paths], _known(study, frame, "")


def _known(study: Study, frame: pd.DataFrame, mark: str) -> list[str]:
    lines = []
    if (frame["complete"] < frame["points"]).any():
        lines.append(
            f"r/{len(study.replicates)}: only r of its replicates are done. A row or column with such a point has no mean."
            if mark
            else "In parentheses: points are missing, so that this mean is over other points than the rest of the table."
        )
    if any(outcome.status != "done" for trial in _in_grid(study).values() for outcome in trial.outcomes):
        lines.append(f"{mark}{WORST}")
    return lines


def _across(study: Study, frame: pd.DataFrame, down: str, right: str) -> Table:
    """The table of two paths, with the means of complete rows and columns."""
    grid, trials = _grid(study), _in_grid(study)
    known = frame[frame["complete"] == frame["points"]]
    whole = {(row[down], row[right]): Entry(in_points(row["mean"])) for row in known.to_dict("records")}
    head = [f"{down} \\ {right}", *(shown_value(b, exact=True) for b in grid[right]), "mean"]
    rows: list[list[str | Entry]] = [
        [
            shown_value(a, exact=True),
            *(_cell(study, trials.get((a, b))) for b in grid[right]),
            whole.get((a, None), DASH),
        ]
        for a in grid[down]
    ]
    rows.append(["mean", *(whole.get((None, b), DASH) for b in grid[right]), whole.get((None, None), DASH)])
    return Table(f"{title_of(study)}, {down} down, {right} across", head, rows)


def _cell(study: Study, trial: Trial | None) -> Entry:
    if trial is None:
        return Entry(DASH)
    if trial.state != "complete":
        return Entry("failed" if trial.state == "failed" else f"{len(trial.outcomes)}/{len(study.replicates)}")
    return replace(_score(study, trial), marks="" if trial.eligible else "x")


def _by_path(study: Study, frame: pd.DataFrame, path: str) -> Table:
    """The mean over complete points with each value, their number, and the best one."""
    trials = {trial.number: trial for trial in (*study.found, *study.repeated)}
    complete, rows = bool((frame["complete"] == frame["points"]).all()), []
    for row in frame.to_dict("records"):
        partial, top = row["complete"] < row["points"], complete and row["mean"] == frame["mean"].max()
        mean = Entry(in_points(row["mean"]), best=top, partial=partial) if row["complete"] else Entry(DASH)
        best = (
            [DASH, DASH]
            if row["best"] is None
            else [f"#{row['best']}", replace(_score(study, trials[row["best"]]), best=False)]
        )
        rows.append([shown_value(row[path], exact=True), mean, f"{row['complete']}/{row['points']}", *best])
    return Table(f"{title_of(study)} by {path}", [path, "mean", "points", "best", "its value"], rows)


# ------------------------------------------------------------------------------------------------------------ pictures


def pictures(
    study: Study, known: optuna.Study, told: Mapping[int, int]
) -> tuple[dict[str, tuple[Callable[[], Any], Picture]], list[str]]:
    """Optuna's pictures of the eligible trials by file name, as what makes a figure and as a page shows it, and a sentence for each that cannot be
    drawn or rests on few points. `told`: see `harness.search.study.told`."""
    import optuna

    numbers = {trial.number for trial in study.found if trial.eligible}
    trials = [trial for trial in known.get_trials(deepcopy=False) if told.get(trial.number) in numbers]
    shown = [path for path in study.paths if len({t.params[path] for t in trials if path in t.params}) > 1]
    why = "" if shown else "no parameter takes two values among the complete points"
    if len({trial.values[0] for trial in trials}) < 2:
        why = "all complete points have one score" if len(trials) > 1 else "fewer than two points are complete"
    if why:
        return {}, [f"No plot of importances or of points over their parameters: {why}."]
    title, points = f"{title_of(study)} (x100)", counted(len(trials), "point")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        counting = optuna.create_study(direction="maximize")
        counting.add_trials(
            optuna.trial.create_trial(params=t.params, distributions=t.distributions, value=100 * t.values[0])
            for t in trials
        )
        try:
            importances, failed = optuna.importance.get_param_importances(counting, params=shown), ""
        except (ValueError, RuntimeError) as error:
            importances, failed = {}, " ".join(str(error).split()).rstrip(".") or type(error).__name__
    notes = [f"No importances: {failed}."] if failed else []
    notes += [f"Importances rest on {points}: with fewer than {FEW} they are mostly chance."] * (
        len(trials) < FEW and not failed
    )
    rows: dict[str, tuple[str, list[str], list[list[str]]]] = {}
    if importances:
        shares = [[path, f"{share:.3f}"] for path, share in importances.items()]
        rows["plot_param_importances"] = f"Importances for {title}, {points}", ["Parameter", "Importance"], shares
    values = [
        [str(told[t.number]), *(shown_value(t.params.get(path)) for path in shown), f"{100 * t.values[0]:.4g}"]
        for t in trials
    ]
    rows["plot_parallel_coordinate"] = f"{points} as lines over their parameters", ["Trial", *shown, title], values
    found: dict[str, tuple[Callable[[], Any], Picture]] = {}
    for function, (caption, head, body) in rows.items():
        make = partial(_figure, counting, function, shown, title)
        image = picture(make, caption, title, **STYLE)
        found[PICTURES[function]] = make, Picture(image, caption, Table(caption, head, body))
    return found, notes


def _figure(study: optuna.Study, function: str, paths: list[str], title: str) -> Any:
    """A picture of Optuna's, which is made by pyplot, without a trace in it."""
    from matplotlib import pyplot
    from optuna.visualization import matplotlib

    figure = getattr(matplotlib, function)(study, params=paths, target_name=title).figure
    pyplot.close(figure)
    figure.set_layout_engine("tight")
    figure.set_size_inches(max(6.4, 1.5 * len(paths)), 4.0)
    return figure


# ------------------------------------------------------------------------------------------------------------ the page


def study_page(
    study: Study,
    best: str,
    tested: Sequence[str],
    pictures: Sequence[Picture],
    notes: Sequence[str],
    keys: Mapping[int, Sequence[Sequence[str]]],
    records: Mapping[str, Record],
    commands: Sequence[str],
) -> str:
    """`best`: the text of best.yaml, '' where no point is the best; `tested`: sentences of the final test; `notes`: why a picture is missing;
    `keys`: of the runs of each replicate, by trial; `records`: of these runs; `commands`: that make the study and run its best point."""
    chosen: list[Block] = [Lines([NO_BEST])]
    if study.best:
        values = ", ".join(f"{path} = {shown_value(study.best.point.get(path))}" for path in study.paths)
        score = f"{title_of(study)} {_shown(study.measured(study.best.values))}"
        lines = Lines([f"Trial {study.best.number}: {values}; {score}.", *tested])
        chosen = [lines, Folded("best.yaml", [Commands([without_folders(best.rstrip())])])]
    points = replace(points_table(study), title="All points, best first")
    tables, known = margin_tables(study)
    sections = [
        Section("best", "Best point", chosen),
        Section("points", "Points", [points, Lines([*_footnotes(study)[1], *_lines(study)[2:], *study.notes])]),
        *([Section("margins", "Margins", [*tables, Lines(known)])] if tables else []),
        Section("plots", "Plots", [*pictures, Lines([*map(without_folders, notes)])]),
        Section("runs", "Replicates, versions and hardware", _replicates(study, keys, records)),
        Section("again", "How to make it again", [Commands([*map(without_folders, commands)])]),
    ]
    return page(f"Study {study.name}", subtitle(study), sections, conclusion(study))


def _replicates(
    study: Study, keys: Mapping[int, Sequence[Sequence[str]]], records: Mapping[str, Record]
) -> list[Block]:
    rows: list[list[str | Entry]] = []
    for each in study.trials.to_dict("records"):
        runs = keys.get(each["trial"], ())
        index = study.replicates.index((each["subset"], each["seed"]))
        status = (
            each["status"] if each["status"] == "done" else f"{each['status']}: {shortened(_reason(each['reason']))}"
        )
        place = [str(each["trial"]), str(each["subset"]), str(each["seed"]), in_points(each["value"]), status]
        shown = ", ".join(key[:SHORT_KEY] for key in runs[index]) if index < len(runs) else ""
        rows.append([*place, f"{each['seconds'] / 3600:.3f}", f"{each['flops']:.3g}", shown])
    about = Lines([*machine_lines(machines_of(records.values()))])
    if not rows:
        return [about, Lines(["No replicate has ended."])]
    head = ["Trial", "Subset", "Seed", title_of(study), "Status", "Hours", "FLOPs", "Runs"]
    said = f"Runs: the first {SHORT_KEY} characters of their keys, which harness show takes."
    table = Table("Replicates", head, rows, frozenset({4, 7}), headed=False)
    return [about, Lines([said]), Folded(f"Replicates: {len(rows):,}", [table])]
