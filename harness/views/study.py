"""What a study found: its numbers, all points, the margins of a grid, Optuna's pictures, and one page of it all.

Pure: the same trials in any order give the same bytes.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pandas as pd

from harness.paths import without_folders
from harness.planning.aggregation import mean, std, subset_means
from harness.planning.recipe import Value
from harness.search.points import STATES, Points, ReplicateOutcome, Trial, best_trial
from harness.tasks.metrics import METRICS
from harness.views.view import DASH, Table, View, best, commands, folded, html_of, page, with_spread
from harness.wording import counted, in_points, shortened, some_of, value_text
from harness.yaml_files import dumped

if TYPE_CHECKING:
    import optuna
BEST_FILE = "best.yaml"
NO_BEST = "There is no best point: no point has all its replicates done."
FEW = 20
"""With fewer points an importance is mostly chance."""
SCREEN = 8
"""Points that a screen shows."""
Measured = dict[str, Any]
"""A `mean` over replicates and its `spread`: sd of the subsets' means, of the replicates where there is one subset."""


@dataclass
class Study:
    """`seed`: of the sampler; `notes`: what each point was run as; `trials`: one for each point."""

    name: str
    points: Points
    seed: int
    notes: Sequence[str] = ()
    trials: tuple[Trial, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """What varies, in the space's order."""
        return tuple(self.points.space.parameters)

    @property
    def score(self) -> str:
        """What a column of means is called."""
        return f"dev {METRICS[self.points.metric].short}"

    @property
    def ranked(self) -> list[Trial]:
        """Best first: eligible trials by their mean, complete ones with a failed replicate, dropped ones by their
        number of replicates, failed ones, running ones."""

        def place(trial: Trial) -> tuple[int, int, float, int]:
            further = not trial.eligible if trial.state == "complete" else -len(trial.outcomes)
            return STATES.index(trial.state), further, -trial.mean() if trial.outcomes else -math.inf, trial.number

        return sorted(self.trials, key=place)

    @property
    def best(self) -> Trial | None:
        """The eligible trial with the best mean."""
        return best_trial(self.trials)

    @property
    def default(self) -> Trial | None:
        """The trial of the point that is tried first, once it has begun."""
        return next((trial for trial in self.trials if trial.point == self.points.space.defaults), None)

    @property
    def frame(self) -> pd.DataFrame:
        """One row a trial and replicate that has ended: trial, state, the values of its point, subset, seed, metric, value, status, reason, and
        what it cost."""
        rows = [
            {"trial": trial.number, "state": trial.state}
            | {path: trial.point.get(path) for path in self.paths}
            | {"subset": subset, "seed": seed, "metric": self.points.metric}
            | asdict(outcome)
            for trial in sorted(self.trials, key=lambda trial: trial.number)
            for (subset, seed), outcome in zip(self.points.replicates, trial.outcomes, strict=False)
        ]
        outcome = [field.name for field in fields(ReplicateOutcome)]
        columns = ["trial", "state", *self.paths, "subset", "seed", "metric", *outcome]
        return pd.DataFrame(rows, columns=columns, dtype=object).infer_objects()

    def spent(self) -> dict[str, Any]:
        """Numbers of trials in all, complete, dropped and failed; replicates that ended, of `full` (all of every trial); their stages, and
        FLOPs and seconds recorded with these, whoever trained them."""
        states, ended = Counter(trial.state for trial in self.trials), self.frame
        counts: dict[str, Any] = {"trials": len(self.trials), **{state: states[state] for state in STATES[:3]}}
        counts |= {"replicates": len(ended), "full": len(self.trials) * len(self.points.replicates)}
        counts |= {"stages": int(ended["stages"].sum())}
        return counts | {name: math.fsum(ended[name]) for name in ("flops", "seconds")}

    def measured(self, values: Sequence[float]) -> Measured:
        """Of the values of the first replicates."""
        subsets = [subset for subset, _ in self.points.replicates[: len(values)]]
        return {"mean": mean(values), "spread": std(subset_means(subsets, values), 1)}

    def above_default(self) -> Measured | None:
        """The best point minus the default one, replicate by replicate. None unless all replicates of both are done."""
        if self.best is None or self.default is None or not self.default.eligible:
            return None
        return self.measured([a - b for a, b in zip(self.best.values, self.default.values, strict=True)])


def about(study: Study) -> dict[str, Any]:
    """How a study's best point was found, by name: with the numbers of its best and its default trial, and what the study cost."""
    space = study.points.space
    found: dict[str, Any] = {
        "study": study.name,
        "method": space.method,
        "row": study.points.base.rows[0].name,
        "mode": space.mode,
    }
    found |= {"metric": study.points.metric, "sampler": space.sampler, "racing": space.racing, "seed": study.seed}
    numbers = {name: getattr(getattr(study, name), "number", None) for name in ("best", "default")}
    return {**found, **numbers, "spent": study.spent()}


def best_yaml(point: Mapping[str, Any]) -> str:
    """A point as the YAML file that `harness bench --with` takes; every value reads back unchanged."""
    return f"# harness bench --with THIS FILE\n{dumped(json.loads(json.dumps(point)), lists_in_a_line=False)}"


# -------------------------------------------------------------------------------------------------------------- points


def study_view(study: Study) -> View:
    """All points, best first, with the margins of a grid; its frame has every replicate."""
    tables, lines = [_points_table(study), *margins(study)], [*_lines(study), *study.notes]
    return View("trials", study.frame, tables, lines, about=about(study), notes=_footnotes(study))


def screen(study: Study) -> View:
    """As a terminal shows it: the best points, or all of a grid with its means, and what is to be known of them."""
    view = study_view(study)
    (table, *grid), left = view.tables, max(0, len(study.trials) - SCREEN)
    more = [f"And {counted(left, 'point')} more, in the table of points beside best.yaml."] * bool(left and not grid)
    tables = grid if left and grid else [replace(table, rows=table.rows[:SCREEN]), *grid]
    return replace(view, tables=tables, lines=[*more, *(line for line in view.lines if line not in study.notes)])


def _points_table(study: Study) -> Table:
    rows = []
    for trial in study.ranked:
        statuses = Counter(outcome.status for outcome in trial.outcomes if outcome.status != "done")
        words = {"best": trial is study.best, "default": trial is study.default, trial.state: trial.state != "complete"}
        note = [word for word, holds in words.items() if holds] + [f"{n} {status}" for status, n in statuses.items()]
        values = [shown_value(trial.point.get(path)) for path in study.paths]
        done = f"{len(trial.outcomes)}/{len(study.points.replicates)}"
        rows.append([str(trial.number), *values, _score(study, trial), done, ", ".join(note)])
    names = [path.rpartition(".")[2] for path in study.paths]
    head = ["#", *(names if len({*names}) == len(names) else study.paths), study.score, "replicates", "note"]
    return Table("", head, rows, frozenset({0, len(head) - 1}))


def margins(study: Study) -> Iterator[Table]:
    """Of a grid in which two paths vary its points with the first down and the second across, and the means of whole rows and columns."""
    space = study.points.space
    grid = {path: values for path, drawn in space.parameters.items() if len(values := drawn.choice or ()) > 1}
    if space.mode != "grid" or len(grid) != 2:
        return
    (down, rows), (right, columns) = grid.items()
    trials = {(trial.point.get(down), trial.point.get(right)): trial for trial in study.trials}
    cells = [[trials.get((row, column)) for column in columns] for row in rows]

    def margin(of: Sequence[Trial | None]) -> str:
        means = [trial.mean() for trial in of if trial and trial.state == "complete"]
        return in_points(mean(means)) if len(means) == len(of) else DASH

    body = [
        [value_text(value), *(_score(study, trial) if trial else DASH for trial in here), margin(here)]
        for value, here in zip(rows, cells, strict=True)
    ]
    body.append(["mean", *map(margin, zip(*cells, strict=True)), margin([*chain(*cells)])])
    head = [f"{down} \\ {right}", *map(value_text, columns), "mean"]
    yield Table(f"{study.score}, {down} down, {right} across", head, body)


def _score(study: Study, trial: Trial) -> str:
    """A trial's mean and its spread; in parentheses while replicates are missing, marked where it is the best."""
    if not trial.outcomes:
        return DASH
    text = _shown(study.measured(trial.values))
    text = text if trial.state == "complete" else f"({text})"
    return best(text) if trial is study.best else text


def shown_value(value: Value | None) -> str:
    """A hyperparameter's value, a drawn number in four digits."""
    return DASH if value is None else value_text(float(f"{value:.4g}") if isinstance(value, float) else value)


def _footnotes(study: Study) -> list[str]:
    """Why points were dropped, cannot be run or have replicates that failed: each reason with its trials."""
    reasons: dict[str, dict[str, None]] = {}
    for trial in study.ranked:
        found = [outcome.reason for outcome in trial.outcomes if outcome.status != "done"]
        for reason in found + [trial.reason] * (trial.state in ("dropped", "failed")):
            text = shortened(" ".join(reason.split()) or "no reason recorded")
            reasons.setdefault(text, {})[f"#{trial.number}"] = None
    return [f"{some_of([*trials])}: {reason}." for reason, trials in reasons.items()]


# ----------------------------------------------------------------------------------------------------------- sentences


def _subtitle(study: Study) -> str:
    space, row = study.points.space, study.points.base.rows[0].name
    method = f" ({space.method})" if space.method != row else ""
    return f"{row}{method}, {space.mode} over {', '.join(study.paths)}; sampler {space.sampler}, racing {space.racing}, seed {study.seed}."


def _lines(study: Study) -> Iterator[str]:
    """What is to be known of the points."""
    yield f"Study {study.name}: {_subtitle(study)}"
    yield _conclusion(study)
    yield f"Values: dev {study.points.metric} in points (x100), {_design(study)}. Test sets have no part in them."
    if any(trial.outcomes and trial.state != "complete" for trial in study.trials):
        yield "In parentheses: the mean so far of a point whose replicates are not all done."
    if any(outcome.status != "done" for trial in study.trials for outcome in trial.outcomes):
        yield "A failed or diverged replicate counts with the metric's worst value, and its point cannot be the best."
    spent = study.spent()
    states: dict[str, int] = {state: spent[state] for state in STATES[:3]}
    states["not finished"] = spent["trials"] - sum(states.values())
    counts = ", ".join(f"{number} {state}" for state, number in states.items() if number)
    yield (
        f"{counted(spent['trials'], 'point')}{f' ({counts})' if counts else ''}, {spent['replicates']} of {spent['full']} replicates; "
        f"{counted(spent['stages'], 'stage')}, {spent['flops']:.2e} FLOPs, {spent['seconds'] / 3600:.2f} hours, without MLM heads and pre-training."
    )


def _conclusion(study: Study) -> str:
    """One sentence: the best point and how far it is from the default one."""
    found, difference = study.best, study.above_default()
    if found is None:
        return NO_BEST
    if found is study.default:
        return f"The best point is trial {found.number}, the default one: no point tried is better."
    if difference is None:
        return f"The best point is trial {found.number}."
    return (
        f"The best point is trial {found.number}, {_shown(difference)} above the default one on dev, where it was selected; only a test on other rows "
        "says whether this holds."
    )


def _design(study: Study) -> str:
    """What a mean and its ± are taken over, in words."""
    subsets, seeds = ({*each} for each in zip(*study.points.replicates, strict=True))
    if len(study.points.replicates) == 1:
        return "one replicate, so no spread"
    if len(subsets) == 1:
        return f"mean ± standard deviation (ddof 1) over {len(study.points.replicates)} replicates of one subset"
    over = f"{len(subsets)} subsets x {counted(len(seeds), 'seed')}"
    return f"mean ± standard deviation of the subsets' means (ddof 1) over {over}"


def _shown(cell: Measured) -> str:
    return with_spread(in_points(cell["mean"]), "" if cell["spread"] is None else in_points(cell["spread"]))


# ------------------------------------------------------------------------------------------------------------ pictures


def pictures(study: Study, told: optuna.Study) -> tuple[list[View], list[str]]:
    """Optuna's pictures of the eligible trials, which it was told as complete, and a sentence for each that cannot be drawn or rests on few points."""
    import optuna

    trials = [trial for trial in study.trials if trial.eligible]
    shown = [path for path in study.paths if len({t.point[path] for t in trials if path in t.point}) > 1]
    if not shown or len({trial.mean() for trial in trials}) < 2:
        return [], ["No plots: they take two complete points with other values of a parameter and other scores."]
    title, points = f"{study.score} (x100)", counted(len(trials), "point")
    views = [
        View(name, study.frame, (), [said], partial(_figure, told, shown, title, f"plot_{plot}"))
        for name, plot, said in (
            ("importances", "param_importances", f"Importances for {title}, {points}"),
            ("parallel_coordinate", "parallel_coordinate", f"{points} as lines over their parameters"),
        )
    ]
    try:
        optuna.importance.get_param_importances(told, params=shown)
    except (ValueError, RuntimeError) as error:
        return views[1:], [f"No importances: {' '.join(str(error).split()).rstrip('.') or type(error).__name__}."]
    few = f"Importances rest on {points}: with fewer than {FEW} they are mostly chance."
    return views, [few] * (len(trials) < FEW)


def _figure(study: optuna.Study, paths: list[str], title: str, function: str) -> Any:
    """A picture of Optuna's, which is made by pyplot, without a trace in it."""
    import matplotlib
    from matplotlib import pyplot
    from optuna.visualization import matplotlib as drawing

    style: Any = {"text.parse_math": True, "axes.grid": False}  # ticks of a logarithm are formulas, and axes overlap
    with matplotlib.rc_context(style):
        draw = getattr(drawing, function)
        figure = draw(study, params=paths, target=lambda trial: 100 * trial.value, target_name=title).figure
        pyplot.close(figure)
        figure.set_layout_engine("tight")
        figure.set_size_inches(max(6.4, 1.5 * len(paths)), 4.0)
        figure.draw_without_rendering()  # which makes the ticks
    return figure


# ------------------------------------------------------------------------------------------------------------ the page


def study_page(
    study: Study,
    best_yaml: str,
    pictures: Sequence[View],
    notes: Sequence[str],
    machines: Sequence[str],
    again: Sequence[str],
) -> str:
    """`best_yaml`: its text, '' where no point is the best; `notes`: why a picture is missing;
    `machines`: of its runs; `again`: the commands that make the study and run its best point."""
    chosen = html_of((), [NO_BEST])
    if study.best:
        values = ", ".join(f"{path} = {shown_value(study.best.point.get(path))}" for path in study.paths)
        score = f"{study.score} {_shown(study.measured(study.best.values))}"
        chosen = html_of((), [f"Trial {study.best.number}: {values}; {score}."])
        chosen += folded(BEST_FILE, commands([without_folders(best_yaml.rstrip())]))
    points = study_view(study)
    plots = "".join(view.html for view in pictures) + html_of((), map(without_folders, notes))
    made = commands(map(without_folders, again)) + html_of((), [f"{machine}." for machine in machines])
    sections = [
        ("best", "Best point", chosen),
        ("points", "Points", replace(points, lines=points.lines[2:]).html),  # the others stand above
        ("plots", "Plots", plots),
        ("again", "How to make it again", made),
    ]
    return page(f"Study {study.name}", _subtitle(study), sections, _conclusion(study))
