"""A study's plots are written, or a sentence says why not, and no setting of matplotlib or Optuna is changed."""

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

from harness.views.figures import study as plots
from harness.views.figures.panels import SERIES
from harness.views.figures.study import IMPORTANCES, PARALLEL, save_plots

ALL = {number: number for number in range(1000)}
PATHS = ("post_train.lr", "k", "contrast", "tau")


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(level)


def search(count: int, constant: bool = False) -> optuna.study.Study:
    """Points of a log float, an integer, a choice and a parameter that stands under one choice only."""
    study, draw = optuna.create_study(direction="maximize"), random.Random(1)
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
        value = 0.5 if constant else 0.5 + params["k"] / 100
        study.add_trial(create_trial(params=params, distributions=distributions, value=value))
    return study


def size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def test_both_pictures_are_written(tmp_path: Path) -> None:
    pictures, missing = save_plots(search(20), tmp_path / "new", PATHS, ALL)
    assert len(pictures) == 2
    assert missing == []
    for name in (IMPORTANCES, PARALLEL):
        assert min(size(tmp_path / "new" / name)) > 300
    importances, points = (picture.data for picture in pictures)
    assert importances is not None
    assert points is not None
    assert sum(float(str(row[1])) for row in importances.rows) == pytest.approx(1, abs=0.01)
    assert len(points.rows) == 20


def test_scores_are_in_the_unit_of_the_tables_and_the_best_line_has_a_colour() -> None:
    axes = plots._lines(search(4).trials, ["post_train.lr", "k"], "dev accuracy (x100)").axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["post_train.lr", "k", "dev accuracy (x100)"]
    coloured = [line for line in axes.lines if line.get_color() == SERIES[2]]
    assert [line.get_ydata()[-1] for line in coloured] == [1.0]
    assert len([line for line in axes.lines if len(line.get_ydata()) == 3]) == 4
    heights, ticks = plots._axis([1e-6, 1e-4, None, 1e-5])
    assert heights == pytest.approx([0, 1, None, 0.5])
    assert [*ticks.values()] == ["1e-6", "1e-5", "0.0001"]


def test_importances_of_few_points_are_said_to_be_chance(tmp_path: Path) -> None:
    for count, few in ((19, True), (20, False)):
        _, notes = save_plots(search(count), tmp_path / str(count), PATHS, ALL)
        assert bool(notes) == few
        assert all(f"Importances rest on {count} points" in note for note in notes)


def test_only_the_points_that_count_are_drawn(tmp_path: Path) -> None:
    """A repeated proposal, and a point with a replicate that failed, are complete trials for Optuna."""
    study = search(25)
    best = max(study.trials, key=lambda trial: trial.value or 0.0)
    counted = {trial.number: 100 + trial.number for trial in study.trials if trial.number != best.number}
    (importances, lines), _ = save_plots(study, tmp_path, PATHS, counted)
    assert "24 points" in importances.caption
    assert lines.caption == "24 points as lines over their parameters"
    assert lines.data is not None
    assert {int(row[0]) for row in lines.data.rows} == {*counted.values()}


def test_a_sentence_says_why_there_is_no_picture(tmp_path: Path) -> None:
    pruned = search(1)
    pruned.add_trial(create_trial(state=TrialState.PRUNED))
    for study, paths, part in (
        (search(0), PATHS, "fewer than two points are complete"),
        (pruned, PATHS, "fewer than two points are complete"),
        (search(5, constant=True), PATHS, "all complete points have one score"),
        (search(5), (), "no parameter takes two values among the complete points"),
    ):
        pictures, (missing,) = save_plots(study, tmp_path, paths, ALL)
        assert pictures == []
        assert part in missing
    assert list(tmp_path.iterdir()) == []


def test_nothing_global_changes(tmp_path: Path) -> None:
    import matplotlib

    optuna.logging.set_verbosity(optuna.logging.INFO)
    before = (matplotlib.get_backend(), dict(matplotlib.rcParams), list(warnings.filters))
    study = search(6)
    values = [trial.values for trial in study.trials]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save_plots(study, tmp_path, PATHS, ALL)
    assert [w for w in caught if issubclass(w.category, optuna.exceptions.ExperimentalWarning)] == []
    assert (matplotlib.get_backend(), dict(matplotlib.rcParams), list(warnings.filters)) == before
    assert optuna.logging.get_verbosity() == optuna.logging.INFO
    assert [trial.values for trial in study.trials] == values
