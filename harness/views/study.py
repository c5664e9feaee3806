"""What a study found: all points, the margins of a grid, Optuna's pictures, the final test in words, and one page of it all.

Pure: the same trials in any order give the same bytes.
"""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
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
from harness.views.figures.panels import picture
from harness.views.page import Block, Commands, Folded, Picture, Section, page
from harness.views.provenance import SHORT_KEY, machine_lines, machines_of
from harness.views.view import DASH, Table, View, best, noted
from harness.wording import counted, in_points, shortened, some_of

if TYPE_CHECKING:
    import optuna

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


def study_view(study: Study) -> View:
    """All points, best first, with the margins of a grid; its frame has every replicate."""
    space, (margins, known) = study.points.space, margin_tables(study)
    points = [
        {"trial": trial.number, "point": dict(trial.point), "state": trial.state, "reason": trial.reason}
        | {"eligible": trial.eligible}
        | (study.measured(trial.values) if trial.outcomes else {"mean": None, "spread": None})
        for trial in study.ranked
    ]
    about: dict[str, Any] = {
        "study": study.name,
        "method": space.method,
        "row": study.points.base.rows[0].name,
        "mode": space.mode,
    }
    about |= {"metric": study.points.metric, "sampler": space.sampler, "racing": space.racing, "seed": study.seed}
    tables, lines = [points_table(study), *margins], [*_lines(study), *known, *study.notes]
    about |= {"best": getattr(study.best, "number", None), "default": getattr(study.default, "number", None)}
    about |= {"spent": study.spent(), "points": points}
    return View("trials", study.trials, tables, lines, about=about, notes=_footnotes(study))


def screen(study: Study) -> View:
    """As a terminal shows it: the best points and the default one, the margins of a grid, and what is to be known of them."""
    view, names = study_view(study), [path.rpartition(".")[2] for path in study.paths]
    table, *margins = view.tables
    ranks = [place for place, trial in enumerate(study.ranked) if place < SCREEN or trial is study.default]
    head = [table.head[0], *names, *table.head[1 + len(names) :]] if len({*names}) == len(names) else table.head
    tables = [replace(table, head=head, rows=[table.rows[place] for place in ranks]), *margins]
    if len(margins) == 1 and "across" in margins[0].title and len(study.found) > SCREEN:
        tables, ranks = margins, []  # which has every point
    left = len(study.found) - len(ranks)
    lines = [line for line in view.lines if line not in study.notes]
    return replace(
        view,
        tables=tables,
        lines=[
            *([f"And {counted(left, 'point')} more, in the table of points beside best.yaml."] if left else []),
            *lines,
        ],
    )


def points_table(study: Study) -> Table:
    """All points, best first."""
    rows = []
    for trial in study.ranked:
        statuses = Counter(outcome.status for outcome in trial.outcomes if outcome.status != "done")
        words = {"best": trial is study.best, "default": trial is study.default, trial.state: trial.state != "complete"}
        note = [word for word, holds in words.items() if holds] + [f"{n} {status}" for status, n in statuses.items()]
        values = [shown_value(trial.point.get(path)) for path in study.paths]
        done = f"{len(trial.outcomes)}/{len(study.replicates)}"
        rows.append([str(trial.number), *values, _score(study, trial, study.best), done, ", ".join(note)])
    head = ["#", *study.paths, title_of(study), "replicates", "note"]
    return Table("", head, rows, frozenset({0, len(head) - 1}))


def _score(study: Study, trial: Trial, top: Trial | None = None) -> str:
    """A trial's mean and its spread; in parentheses while replicates are missing. `top`: the best one."""
    if not trial.outcomes:
        return DASH
    text = _shown(study.measured(trial.values))
    text = text if trial.state == "complete" else f"({text})"
    return best(text) if trial is top else text


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


def _reason(text: str) -> str:
    return shortened(" ".join(text.split()) or "no reason recorded")


def _footnotes(study: Study) -> list[str]:
    """Why points were dropped, cannot be run or have replicates that failed: each reason with its trials."""
    reasons: dict[str, dict[str, None]] = {}
    for trial in study.ranked:
        found = [outcome.reason for outcome in trial.outcomes if outcome.status != "done"]
        for reason in found + [trial.reason] * (trial.state in ("dropped", "failed")):
            reasons.setdefault(_reason(reason), {})[f"#{trial.number}"] = None
    return [f"{some_of([*trials])}: {reason}." for reason, trials in reasons.items()]


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


def margin_tables(study: Study) -> tuple[list[Table], list[str]]:
    """Where two paths of a grid vary one table with the first down and the second across, else a table for each path; and what is to be known."""
    grid, trials = (
        {path: values for path, values in _grid(study).items() if len(values) > 1},
        [*_in_grid(study).values()],
    )
    if not grid:
        return [], []
    across = len(grid) == 2
    tables = [_across(study, grid)] if across else [_by_path(study, grid, path) for path in grid]
    lines = []
    if sum(trial.state == "complete" for trial in trials) < math.prod(map(len, grid.values())):
        lines.append(
            f"r/{len(study.replicates)}: only r of its replicates are done; a row or column with such a point has no mean."
            if across
            else "A mean in parentheses is over other points than the rest of the table, since points are missing."
        )
    if any(outcome.status != "done" for trial in trials for outcome in trial.outcomes):
        lines.append("x: such a point cannot be the best." if across else WORST)
    return tables, lines


def _margin(study: Study, at: Mapping[str, Value]) -> tuple[list[float], Trial | None]:
    """The means of the complete trials of a grid with these values, and the best one of them."""
    here = [
        trial for trial in _in_grid(study).values() if all(trial.point[path] == value for path, value in at.items())
    ]
    return [trial.mean() or 0.0 for trial in here if trial.state == "complete"], best_trial(here)


def _across(study: Study, grid: Mapping[str, Sequence[Value]]) -> Table:
    """The table of two paths, with the means of complete rows and columns."""
    trials, (_, top), (down, right) = _in_grid(study), _margin(study, {}), grid

    def margin(count: int, at: Mapping[str, Value]) -> str:
        means, _ = _margin(study, at)
        return in_points(mean(means)) if len(means) == count else DASH

    def cell(trial: Trial | None) -> str:
        if trial is None or trial.state == "failed":
            return "failed" if trial else DASH
        if trial.state != "complete":
            return f"{len(trial.outcomes)}/{len(study.replicates)}"
        return noted(_score(study, trial, top), "" if trial.eligible else "x")

    wide, high = len(grid[right]), len(grid[down])
    rows = [
        [shown_value(a, exact=True), *(cell(trials.get((a, b))) for b in grid[right]), margin(wide, {down: a})]
        for a in grid[down]
    ]
    rows.append(["mean", *(margin(high, {right: b}) for b in grid[right]), margin(wide * high, {})])
    head = [f"{down} \\ {right}", *(shown_value(b, exact=True) for b in grid[right]), "mean"]
    return Table(f"{title_of(study)}, {down} down, {right} across", head, rows)


def _by_path(study: Study, grid: Mapping[str, Sequence[Value]], path: str) -> Table:
    """The mean over complete points with each value, their number, and the best one."""
    count = math.prod(len(values) for other, values in grid.items() if other != path)
    margins = {value: _margin(study, {path: value}) for value in grid[path]}
    complete = all(len(means) == count for means, _ in margins.values())
    top = max((mean(means) for means, _ in margins.values()), default=0.0) if complete else None
    rows = []
    for value, (means, first) in margins.items():
        shown = in_points(mean(means)) if means else DASH
        shown = f"({shown})" if 0 < len(means) < count else best(shown) if means and mean(means) == top else shown
        beside = [f"#{first.number}", _score(study, first)] if first else [DASH, DASH]
        rows.append([shown_value(value, exact=True), shown, f"{len(means)}/{count}", *beside])
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
    best_yaml: str,
    tested: Sequence[str],
    pictures: Sequence[Picture],
    notes: Sequence[str],
    keys: Mapping[int, Sequence[Sequence[str]]],
    records: Mapping[str, Record],
    commands: Sequence[str],
) -> str:
    """`best_yaml`: its text, '' where no point is the best; `tested`: sentences of the final test; `notes`: why a picture is missing;
    `keys`: of the runs of each replicate, by trial; `records`: of these runs; `commands`: that make the study and run its best point."""
    chosen: list[Block] = [[NO_BEST]]
    if study.best:
        values = ", ".join(f"{path} = {shown_value(study.best.point.get(path))}" for path in study.paths)
        score = f"{title_of(study)} {_shown(study.measured(study.best.values))}"
        lines = [f"Trial {study.best.number}: {values}; {score}.", *tested]
        chosen = [lines, Folded("best.yaml", [Commands([without_folders(best_yaml.rstrip())])])]
    points = study_view(study)
    sections = [
        Section("best", "Best point", chosen),
        Section("points", "Points", [replace(points, lines=points.lines[2:])]),  # the others stand above
        Section("plots", "Plots", [*pictures, [*map(without_folders, notes)]]),
        Section("runs", "Replicates, versions and hardware", _replicates(study, keys, records)),
        Section("again", "How to make it again", [Commands([*map(without_folders, commands)])]),
    ]
    return page(f"Study {study.name}", subtitle(study), sections, conclusion(study))


def _replicates(
    study: Study, keys: Mapping[int, Sequence[Sequence[str]]], records: Mapping[str, Record]
) -> list[Block]:
    rows = []
    for each in study.trials.to_dict("records"):
        runs = keys.get(each["trial"], ())
        index = study.replicates.index((each["subset"], each["seed"]))
        status = each["status"] if each["status"] == "done" else f"{each['status']}: {_reason(each['reason'])}"
        place = [str(each["trial"]), str(each["subset"]), str(each["seed"]), in_points(each["value"]), status]
        shown = ", ".join(key[:SHORT_KEY] for key in runs[index]) if index < len(runs) else ""
        rows.append([*place, f"{each['seconds'] / 3600:.3f}", f"{each['flops']:.3g}", shown])
    about = machine_lines(machines_of(records.values()))
    if not rows:
        return [about, ["No replicate has ended."]]
    head = ["Trial", "Subset", "Seed", title_of(study), "Status", "Hours", "FLOPs", "Runs"]
    said = f"Runs: the first {SHORT_KEY} characters of their keys, which harness show takes."
    table = Table("Replicates", head, rows, frozenset({4, 7}))
    return [about, [said], Folded(f"Replicates: {len(rows):,}", [table])]
