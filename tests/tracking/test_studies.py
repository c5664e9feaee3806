"""A study in a tracker: a group a trial, its stages as replicates end, and no test score."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from search.small import small_space
from tracking.samples import TINY, Recording, filled, recorded_in

from harness.commands.study import study_projection, track_trial
from harness.planning.request import Request
from harness.planning.resolve import resolve
from harness.planning.runs import make_plan
from harness.planning.table import load_table
from harness.search.points import Points
from harness.search.trials import Trial
from harness.store import Store
from harness.tracking import Projection, Writer


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    """Two trials of a small space over two replicates, of which nothing is trained."""
    space = small_space(tmp_path, mode="search", racing="none")
    request = Request(
        "few_shot",
        "quick",
        methods=("cmlm",),
        tasks=("cola",),
        sizes=(20,),
        subsets=(0,),
        seeds=(31, 42),
        encoder="bert-tiny",
    )
    base = resolve(load_table("few_shot"), request)
    plan = make_plan(base, None, TINY)
    tasks = {name: found.task for name, found in plan.tasks.items()}
    points = Points(space, base, request, tasks, plan.table_data)
    trials = [Trial(number, {**space.defaults, "alpha": alpha}) for number, alpha in enumerate((0.5, 0.25))]
    return SimpleNamespace(name="mine", points=points, trials=trials)


def test_trials_are_groups_and_written_as_their_replicates_end(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, Any] = {}
    store = Store(f"sqlite:///{tmp_path}/harness.db")
    said: list[Any] = []
    recorded_in(monkeypatch, recording=Recording(kept))
    writer = Writer(store.url, ["recording"], warn=lambda *why: said.append(why))
    for trial in opened.trials:
        track_trial(opened, writer, "started", trial)
        runs = [run for runs in opened.points.runs(trial.point) for run in runs]
        stages = {stage.key: stage for run in runs for stage in run.stage.chain}
        known = store.statuses(stages)
        filled(store, SimpleNamespace(stages={k: s for k, s in stages.items() if k not in known}))  # type: ignore[arg-type]
        track_trial(opened, writer, "replicate", trial)
        writer.finish(Projection("harness-mine", ()))
        assert stages.keys() <= kept.keys(), "before the study ends"
    outcomes = writer.finish(study_projection(opened))
    assert not said
    assert outcomes["recording"].total == len(kept)
    runs = [each[-1] for each in kept.values()]
    ends = [run for run in runs if run.phase == "fine-tune"]
    assert {(run.group, run.parameters["trial"], run.parameters["alpha"]) for run in ends} == {
        ("trial 0/cola/n20", 0, 0.5),
        ("trial 1/cola/n20", 1, 0.25),
    }
    assert len(ends) == 4
    assert not [name for run in runs for name in run.scores if "test" in name]
