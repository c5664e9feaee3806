"""Optuna's plots are written, or a sentence says why not, and no setting of matplotlib or Optuna is changed."""

from __future__ import annotations

import random
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from harness.search import plots
from harness.search.plots import IMPORTANCES, PARALLEL, save_plots

PATHS = ("post_train.lr", "k", "contrast", "tau")


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(level)


def search(count: int, directions: tuple[str, ...] = ("maximize",), constant: bool = False) -> optuna.study.Study:
    """Points of a log float, an integer, a choice and a parameter that stands under one choice only."""
    study, draw = optuna.create_study(directions=list(directions)), random.Random(1)
    for number in range(count):
        params: dict[str, Any] = {
            "post_train.lr": 10 ** draw.uniform(-6, -3),
            "k": draw.randint(1, 50),
            "contrast": "simclr" if number % 3 else "cmlm",
        }
        distributions: dict[str, Any] = {
            "post_train.lr": FloatDistribution(1e-6, 1e-3, log=True),
            "k": IntDistribution(1, 50),
            "contrast": CategoricalDistribution(["simclr", "cmlm"]),
        }
        if params["contrast"] == "simclr":
            params["tau"], distributions["tau"] = draw.uniform(0.1, 1), FloatDistribution(0.1, 1)
        values = [0.5 if constant else 0.5 + params["k"] / 100, 1e12][: len(directions)]
        study.add_trial(create_trial(params=params, distributions=distributions, values=values))
    return study


def size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    return width, height


@pytest.mark.parametrize("directions", [("maximize",), ("minimize",), ("maximize", "minimize")])
def test_both_pictures_are_written(directions: tuple[str, ...], tmp_path: Path) -> None:
    files, missing = save_plots(search(20, directions), tmp_path / "new", PATHS)
    assert [path.name for path in files] == [IMPORTANCES, PARALLEL]
    assert missing == []
    assert all(min(size(path)) > 300 for path in files)


def test_scores_are_in_the_unit_of_the_tables_and_every_line_is_seen() -> None:
    import numpy as np

    study = search(4)
    scores = [100 * trial.values[0] for trial in study.trials]
    with plots._agg_backend():
        shown = plots._first_metric(study, study.trials, 100)
        figure = plots._parallel_coordinate(shown, ["post_train.lr", "k"], plots._title("accuracy"))
        axes, *others = figure.axes
        assert axes.get_ylim() == pytest.approx((min(scores), max(scores)))
        assert axes.get_xticklabels()[0].get_text() == "dev accuracy (x100)"
        assert "dev accuracy (x100)" in {each.get_ylabel() for each in others}
        (lines,) = axes.collections
        lines.update_scalarmappable()
        assert all(np.abs(np.array(color[:3]) - 1).max() >= 0.3 for color in lines.get_colors())
    assert plots._title("flops") == "flops"


def test_importances_of_few_points_are_said_to_be_chance(tmp_path: Path) -> None:
    for count, few in ((5, True), (12, False)):
        _, notes = save_plots(search(count), tmp_path / str(count), PATHS)
        assert bool(notes) == few
        assert all(f"{IMPORTANCES} rests on {count} points" in note for note in notes)


def test_a_grid_of_numbers(tmp_path: Path) -> None:
    study = optuna.create_study(direction="maximize")
    grid = {"alpha": CategoricalDistribution([0.1, 0.5, 1.0]), "p_c": CategoricalDistribution([0.1, 0.2])}
    for alpha in (0.1, 0.5, 1.0):
        for p_c in (0.1, 0.2):
            study.add_trial(create_trial(params={"alpha": alpha, "p_c": p_c}, distributions=grid, value=alpha - p_c))
    assert len(save_plots(study, tmp_path, ("alpha", "p_c"))[0]) == 2


def test_a_sentence_says_why_there_is_no_picture(tmp_path: Path) -> None:
    pruned = search(1)
    pruned.add_trial(create_trial(state=TrialState.PRUNED))
    for study, part in (
        (search(0), "fewer than two points are complete"),
        (pruned, "fewer than two points are complete"),
        (search(5, constant=True), "all complete points have one score"),
    ):
        files, missing = save_plots(study, tmp_path, PATHS)
        assert (files, missing) == ([], [f"No {name}: {part}." for name in (IMPORTANCES, PARALLEL)])
    assert (
        save_plots(search(5), tmp_path, ())[1][0]
        == f"No {IMPORTANCES}: no parameter takes two values among the complete points."
    )
    assert list(tmp_path.iterdir()) == []


def test_what_a_plot_refuses_is_told_and_the_other_one_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **others: Any) -> None:
        raise ValueError("too\nfew trials.")

    monkeypatch.setattr("optuna.visualization.matplotlib.plot_param_importances", refuse)
    files, missing = save_plots(search(5), tmp_path, PATHS)
    assert [path.name for path in files] == [PARALLEL]
    assert missing == [f"No {IMPORTANCES}: too few trials."]


def test_nothing_global_changes(tmp_path: Path) -> None:
    import matplotlib
    from matplotlib import pyplot

    mine = pyplot.figure()
    optuna.logging.set_verbosity(optuna.logging.INFO)
    before = (matplotlib.get_backend(), dict(matplotlib.rcParams), pyplot.get_fignums(), list(warnings.filters))
    study = search(6)
    values = [trial.values for trial in study.trials]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save_plots(study, tmp_path, PATHS)
    assert [w for w in caught if issubclass(w.category, optuna.exceptions.ExperimentalWarning)] == []
    assert (matplotlib.get_backend(), dict(matplotlib.rcParams), pyplot.get_fignums(), list(warnings.filters)) == before
    assert optuna.logging.get_verbosity() == optuna.logging.INFO
    assert [trial.values for trial in study.trials] == values
    pyplot.close(mine)
