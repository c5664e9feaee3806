"""The page of a study: its points, margins, plots and replicates; a study without a best point says so."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.trial import create_trial

from harness.commands.stored import tune_command
from harness.planning.request import Request, parse_override
from harness.search.request import TuneRequest
from harness.search.results import Study
from harness.search.trials import ReplicateOutcome, Trial
from harness.specs import Record
from harness.views.document import Picture
from harness.views.figures.study import save_plots
from harness.views.study_page import StudyResults, study_page

REPLICATES = ((0, 31), (1, 31))
GRID = {"alpha": (0.1, 0.5), "contrast": ("simclr", "<b>")}


def trial(number: int, *scores: float, **others: Any) -> Trial:
    point = {"alpha": GRID["alpha"][number % 2], "contrast": GRID["contrast"][number // 2]}
    outcomes = tuple(ReplicateOutcome(score, flops=1e9, seconds=36.0, stages=1) for score in scores)
    return Trial(number, point, outcomes, "complete" if len(scores) == 2 else "running", **others)


def study(*trials: Trial) -> Study:
    return Study(
        name="scl-quick",
        method="SCL",
        row="SCL",
        paths=tuple(GRID),
        metric="accuracy",
        replicates=REPLICATES,
        trials=trials,
        grid=GRID,
        default=trials[0].point,
        mode="grid",
        sampler="grid",
        racing="none",
        seed=0,
    )


FULL = study(trial(0, 0.5, 0.6), trial(1, 0.7, 0.8), trial(2, 0.4, 0.5), trial(3, 0.3, 0.3))


def made(
    found: Study, plots: tuple[Picture, ...] = (), best: str = "method: scl\n", places: tuple[str, ...] = ()
) -> str:
    keys = {each.number: [[f"{each.number}{index}" * 16] for index in range(2)] for each in found.trials}
    records = {
        key: Record(key, "done", provenance={"device": "a CPU", "torch": "2.13.0"})
        for trial_ in keys.values()
        for (key,) in trial_
    }
    return study_page(
        StudyResults(
            found,
            found,
            best,
            ["Test: 70.00."],
            plots,
            ["No x.", *(f"{place}/p.svg cannot be drawn." for place in places)],
            keys,
            records,
            [
                "harness tune scl",
                *(f"harness bench --with {place}/best.yaml --store sqlite:///{place}/h.db" for place in places),
            ],
        )
    )


def test_the_page_has_everything_the_study_found() -> None:
    text = made(FULL)
    assert text == made(FULL)
    assert "Trial 1: alpha = 0.5, contrast = simclr; dev acc 75.00 ± 7.07." in text
    assert "<b>75.00 ± 7.07</b>" in text
    assert "method: scl" in text
    assert "Test: 70.00." in text
    assert "dev acc, alpha down, contrast across" in text
    assert "111111111111" in text
    assert "All on a CPU, 1 thread a run; torch 2.13.0." in text
    assert "harness tune scl" in text
    assert "&lt;b&gt;" in text
    assert not re.search(
        r"\b(nan|None)\b", re.sub(r"<style>.*?</style>|<script>.*?</script>", "", text, flags=re.DOTALL)
    )


def test_the_page_names_files_without_their_folders() -> None:
    """The path of best.yaml names a person and a machine; a mailed page has neither."""
    text = made(
        FULL, best="method: scl\ntarget: {tasks: [/home/some.one/intents.csv]}\n", places=("/home/some.one/x-1",)
    )
    assert "some.one" not in text
    assert "harness bench --with best.yaml --store sqlite:///h.db" in text
    assert "tasks: [intents.csv]" in text


def test_a_study_without_a_best_point_says_so() -> None:
    broken = ReplicateOutcome(0.0, "failed", "out of <memory>")
    text = made(study(replace(trial(0, 0.5), outcomes=(broken,)), trial(1)), best="")
    assert re.search(r'class="lead">There is no best point', text)
    assert "failed [a]" in text
    assert "[a]: out of &lt;memory&gt;." in text
    assert "best.yaml" not in text


def test_optunas_plots_stand_on_the_page_with_their_data(tmp_path: Path) -> None:
    known = optuna.create_study(direction="maximize")
    choices = {path: CategoricalDistribution(values) for path, values in GRID.items()}
    for each in FULL.trials:
        known.add_trial(create_trial(params=dict(each.point), distributions=choices, value=each.mean()))
    plots, notes = save_plots(known, tmp_path, FULL.paths, {number: number for number in range(9)})
    assert len([*tmp_path.iterdir()]) == len(plots) == 2
    assert ".png" not in " ".join(notes), "a mailed page lacks the files"
    importances, parallel = plots
    assert {row[0] for row in importances.data.rows} == set(GRID)  # type: ignore[union-attr]
    assert sum(float(row[1]) for row in importances.data.rows) == 1.0  # type: ignore[union-attr]
    assert [row[-1] for row in parallel.data.rows] == ["55", "75", "45", "30"]  # type: ignore[union-attr]
    text = made(FULL, (*plots,))
    assert text.count("<img ") == 2
    assert "style=" not in text
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert {*re.findall(r'(?:href="|url\()([^")]+)', text)} <= {f"#{each}" for each in ids}
    assert "<image" not in text


def test_the_command_of_a_study() -> None:
    base = Request(
        tasks=("sst2",),
        sizes=(100,),
        store="postgresql://me:secret@host/x",
        overrides=(parse_override("optim.lr=1e-5", "--set"),),
    )
    asked = TuneRequest("scl", base, space="my space.yaml", mode="grid", trials=4, metric="f1", seed=3)
    said = tune_command(asked)
    assert said.startswith(
        "harness tune scl --grid --space 'my space.yaml' --trials 4 --metric f1 --seed 3 --tasks sst2 --sizes 100"
    )
    assert "--set optim.lr=1e-5 --store" in said
    assert "secret" not in said
    laptop = TuneRequest("cmlm", replace(base, preset=None), preset="laptop")
    assert tune_command(laptop) == tune_command(replace(laptop, base=replace(laptop.base, preset="laptop")))
    assert tune_command(laptop).startswith("harness tune cmlm --preset laptop --tasks sst2")
    assert tune_command(TuneRequest("cmlm")) == "harness tune cmlm"
