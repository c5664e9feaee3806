"""A study's plots: how important each parameter is, and the points as lines over their parameters. Pure but for what is written."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.paths import replace_file
from harness.views.document import Picture, Table
from harness.views.figures.panels import INK, SERIES, file_of, panels_of, picture
from harness.views.study import shown_value

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

IMPORTANCES, PARALLEL = "importances.png", "parallel_coordinate.png"
FEW = 20
"""With fewer points an importance is mostly chance."""


def save_plots(
    study: optuna.study.Study, folder: Path, paths: Sequence[str], counted: Mapping[int, int]
) -> tuple[list[Picture], list[str]]:
    """Writes importances.png and parallel_coordinate.png of the trials in `counted`, Optuna's number to the one that is shown, into `folder`.

    Scores are in points (x100), as in the tables. Returns the plots as pictures of a page, and a sentence for each that could not be
    drawn or that rests on few points.
    """
    from optuna.trial import TrialState

    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    trials = [trial for trial in complete if trial.number in counted]
    shown = [path for path in paths if len({trial.params[path] for trial in trials if path in trial.params}) > 1]
    why = "no parameter takes two values among the complete points" if not shown else ""
    if len({trial.values[0] for trial in trials}) < 2:
        why = "all complete points have one score" if len(trials) > 1 else "fewer than two points are complete"
    if why:
        return [], [f"No plot of importances or of points over their parameters: {why}."]
    title = f"dev {(study.metric_names or ['score'])[0]} (x100)"
    pictures, notes = [], []
    folder.mkdir(parents=True, exist_ok=True)
    try:
        importances = importances_of(trials, shown)
    except (ValueError, RuntimeError) as error:
        notes.append(f"No importances: {(' '.join(str(error).split()) or type(error).__name__).rstrip('.')}.")
    else:
        few = len(trials) < FEW
        heading = f"Importances for {title}, {len(trials)} points{' (few: mostly chance)' if few else ''}"
        rows = [[path, f"{share:.3f}"] for path, share in importances.items()]
        described = "; ".join(" ".join(row) for row in rows)
        data = Table("Importances", ["Parameter", "Importance"], rows)
        pictures.append(_saved(lambda: _bars(importances, heading), folder / IMPORTANCES, heading, described, data))
        notes += (
            [f"Importances rest on {len(trials)} points: with fewer than {FEW} they are mostly chance."] if few else []
        )
    heading = f"{len(trials)} points as lines over their parameters"
    rows = [
        [
            str(counted[trial.number]),
            *(shown_value(trial.params.get(path)) for path in shown),
            f"{100 * trial.values[0]:.4g}",
        ]
        for trial in trials
    ]
    data = Table("Complete points", ["Trial", *shown, title], rows)
    described = f"{len(trials)} complete points; the best has a colour, of the others darker lines have better values"
    pictures.append(_saved(lambda: _lines(trials, shown, title), folder / PARALLEL, heading, described, data))
    return pictures, notes


def importances_of(trials: Sequence[FrozenTrial], paths: Sequence[str]) -> dict[str, float]:
    """The share of each parameter by Optuna's default evaluator, the largest first."""
    import optuna

    study = optuna.create_study(direction="maximize")
    study.add_trials(trials)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return dict(optuna.importance.get_param_importances(study, params=list(paths)))


def _saved(make: Callable[[], Any], path: Path, title: str, described: str, data: Table) -> Picture:
    replace_file(path, file_of(make, "png"))
    return Picture(picture(make, title, described), title, data)


def _bars(importances: Mapping[str, float], title: str) -> Any:
    canvas, (axes,) = panels_of(1, panel=(6.0, 1.0 + 0.3 * len(importances)))
    names = [*importances][::-1]
    bars = axes.barh(names, [importances[name] for name in names], color=SERIES[0])
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.set(title=title, xlabel="importance", xlim=(0, 1.1 * max(importances.values())))
    axes.grid(visible=False)
    return canvas


def _lines(trials: Sequence[FrozenTrial], paths: Sequence[str], metric: str) -> Any:
    """An axis for each parameter and the metric, from 0 to 1 each, with its own ticks beside it. Opacity is the rank."""
    columns = [_axis([trial.params.get(path) for trial in trials]) for path in paths]
    columns.append(_axis([100 * trial.values[0] for trial in trials]))
    canvas, (axes,) = panels_of(1, panel=(max(5.0, 1.5 * len(columns)), 3.2))
    order = sorted(range(len(trials)), key=lambda i: (trials[i].values[0], -trials[i].number))  # the best last
    for rank, index in enumerate(order):
        points = [(k, heights[index]) for k, (heights, _) in enumerate(columns) if heights[index] is not None]
        best = rank == len(order) - 1
        style = {"color": SERIES[2], "linewidth": 2} if best else {"color": INK, "linewidth": 0.9}
        axes.plot(*zip(*points, strict=True), alpha=None if best else 0.1 + 0.5 * rank / len(order), **style)
    for place, (_, ticks) in enumerate(columns):
        axes.axvline(place, color=INK, linewidth=0.8)
        for height, text in ticks.items():
            end = {0.0: ((0, -5), "center", "top"), 1.0: ((0, 5), "center", "bottom")}.get(
                height, ((4, 0), "left", "center")
            )
            axes.annotate(text, (place, height), end[0], textcoords="offset points", ha=end[1], va=end[2], fontsize=8)
    axes.set_xticks(range(len(columns)), [*paths, metric])
    axes.set(yticks=[], xlim=(-0.1, len(columns) - 0.6))
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    axes.tick_params(axis="x", length=0, pad=10)
    return canvas


def _axis(values: Sequence[Any]) -> tuple[list[float | None], dict[float, str]]:
    """Heights of values in [0, 1], None where a point has none, and ticks: of numbers the ends, by their logarithm where they span two
    orders of magnitude; of few values and of names each."""
    import math

    known = [value for value in values if value is not None]
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in known)
    distinct = sorted(set(known)) if numbers else list(dict.fromkeys(known))
    if not numbers:
        position = {value: index for index, value in enumerate(distinct)}
        measure: Callable[[Any], float] = position.__getitem__
    else:
        measure = math.log if distinct[0] > 0 and distinct[-1] >= 100 * distinct[0] else float
    low, high = measure(distinct[0]), measure(distinct[-1])

    def height(value: Any) -> float:
        return 0.5 if high == low else (measure(value) - low) / (high - low)

    shown = distinct if len(distinct) <= 4 else [distinct[0], distinct[-1]]
    return [None if value is None else height(value) for value in values], {height(v): shown_value(v) for v in shown}
