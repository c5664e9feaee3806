"""A study's plots: Optuna's own of importances and of parallel coordinates."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.search.results import COSTS

if TYPE_CHECKING:
    import optuna

IMPORTANCES, PARALLEL = "importances.png", "parallel_coordinate.png"
FEW = 10
"""With fewer points an importance is mostly chance."""
LIGHTEST = 0.3
"""Least distance of a line's colour from white; Optuna's own map begins at white."""
LABEL = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5}


def save_plots(
    study: optuna.study.Study, folder: Path, paths: Sequence[str], seen: Callable[[str, Any], None] | None = None
) -> tuple[list[Path], list[str]]:
    """Writes importances.png and parallel_coordinate.png of the complete trials for the first metric into `folder`.

    Scores are in points (x100), as in the tables. `seen`: called with the name and the figure of each. Returns the files, and a
    sentence for each plot that could not be drawn or that rests on few points.
    """
    from optuna.trial import TrialState

    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    shown = [path for path in paths if len({trial.params[path] for trial in trials if path in trial.params}) > 1]
    why = "no parameter takes two values among the complete points" if not shown else ""
    if len({trial.values[0] for trial in trials}) < 2:
        why = "all complete points have one score" if len(trials) > 1 else "fewer than two points are complete"
    if why:
        return [], [f"No {name}: {why}." for name in (IMPORTANCES, PARALLEL)]
    files, notes = [], []
    metric = (study.metric_names or ["score"])[0]
    for name, plot in ((IMPORTANCES, _importances), (PARALLEL, _parallel_coordinate)):
        try:
            with _agg_backend():
                figure = plot(_first_metric(study, trials, 1 if metric in COSTS else 100), shown, _title(metric))
                folder.mkdir(parents=True, exist_ok=True)
                figure.savefig(folder / name, dpi=150, bbox_inches="tight")
                if seen:
                    seen(name, figure)
            files.append(folder / name)
        except (ValueError, RuntimeError, AssertionError) as error:
            notes.append(f"No {name}: {(' '.join(str(error).split()) or type(error).__name__).rstrip('.')}.")
    if len(trials) < FEW and any(file.name == IMPORTANCES for file in files):
        notes.append(
            f"{IMPORTANCES} rests on {len(trials)} points: with fewer than {FEW}, importances are mostly chance."
        )
    return files, notes


def _title(metric: str) -> str:
    return metric if metric in COSTS else f"dev {metric} (x100)"


def _first_metric(
    study: optuna.study.Study, trials: Sequence[optuna.trial.FrozenTrial], unit: float
) -> optuna.study.Study:
    """The same trials with their first value only, times `unit`. (With a `target`, Optuna's plots treat low values as
    good.)"""
    import optuna

    alone = optuna.create_study(direction=study.directions[0])
    alone.add_trials(
        optuna.trial.create_trial(params=trial.params, distributions=trial.distributions, value=unit * trial.values[0])
        for trial in trials
    )
    return alone


def _importances(study: optuna.study.Study, paths: Sequence[str], metric: str) -> Any:
    from matplotlib import pyplot
    from optuna.visualization.matplotlib import plot_param_importances

    pyplot.rcParams["figure.figsize"] = (7, 1.5 + 0.5 * len(paths))
    axes = plot_param_importances(study, params=list(paths))
    axes.get_legend().remove()
    few = f" (fewer than {FEW}: mostly chance)" if len(study.trials) < FEW else ""
    axes.set_title(f"Importances for {metric}, {len(study.trials)} points{few}", loc="left", fontsize="medium")
    axes.set_xlabel("Importance")
    axes.set_ylabel("")
    return axes.figure


def _parallel_coordinate(study: optuna.study.Study, paths: Sequence[str], metric: str) -> Any:
    import numpy as np
    from matplotlib import pyplot
    from matplotlib.colors import ListedColormap
    from optuna.visualization.matplotlib import plot_parallel_coordinate

    pyplot.rcParams["figure.figsize"] = (max(6, 3 + 1.5 * len(paths)), 4.5)
    axes = plot_parallel_coordinate(study, params=list(paths), target_name=metric)
    axes.set_title(f"{len(study.trials)} points", fontsize="medium", y=1.03)
    cut, whole = [label.get_text() for label in axes.get_xticklabels()], [metric, *sorted(paths)]
    if all(name.startswith(text.removesuffix("...")) for text, name in zip(cut, whole, strict=True)):
        axes.set_xticklabels(whole)  # Optuna cuts names after 20 characters
    pyplot.setp(axes.get_xticklabels(), ha="left", rotation_mode="anchor")
    for lines in axes.collections:
        shades = lines.get_cmap()(np.linspace(0, 1, 256))
        kept = np.abs(shades[:, :3] - 1).max(axis=1) >= LIGHTEST
        lines.set_cmap(ListedColormap(shades[kept]))
    for other in axes.figure.axes:
        pyplot.setp(other.get_yticklabels(), bbox=LABEL)
    return axes.figure


@contextmanager
def _agg_backend() -> Iterator[None]:
    """pyplot on Agg, and Optuna without info messages; restores backend, settings, open figures and log level."""
    import matplotlib
    import optuna
    from matplotlib import pyplot

    backend, figures, level = matplotlib.get_backend(), set(pyplot.get_fignums()), optuna.logging.get_verbosity()
    pyplot.switch_backend("agg")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with matplotlib.rc_context(), warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)
        for number in set(pyplot.get_fignums()) - figures:
            pyplot.close(number)
        with suppress(ImportError):  # a backend that does not work here
            pyplot.switch_backend(backend)
