"""A study in a tracker: a group a trial, its stages as replicates end, and no test score."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from search.small import small_space
from tracking.samples import TINY, Recording, filled

from harness.commands import track
from harness.commands.track import Tracking, study_projection
from harness.search.points import Points
from harness.search.trials import Trial
from harness.store import Store
from harness.tables.plan import make_plan
from harness.tables.request import Request
from harness.tables.resolve import resolve
from harness.tables.table import load_table


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    """Two trials of a small space over two replicates, of which nothing is trained."""
    space = small_space(tmp_path, mode="search", racing="none")
    request = Request("few_shot", "quick", ("cmlm",), ("cola",), (20,), (0,), (31, 42), encoder="bert-tiny")
    base = resolve(load_table("few_shot"), request)
    plan = make_plan(base, None, TINY)
    tasks = {name: found.task for name, found in plan.tasks.items()}
    points = Points(space, base, request, tasks, plan.table_data)
    trials = [Trial(number, {**space.defaults, "alpha": alpha}) for number, alpha in enumerate((0.5, 0.25))]
    return SimpleNamespace(
        name="mine", points=points, proposals=SimpleNamespace(history=SimpleNamespace(trials=trials))
    )


def test_trials_are_groups_and_written_as_their_replicates_end(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, Any] = {}
    store = Store(f"sqlite:///{tmp_path}/harness.db")
    monkeypatch.setattr(track, "trackers_named", lambda *_: {"recording": lambda e, f: Recording(e, f, kept)})
    said: list[str] = []
    tracking = Tracking(Request(track=("recording",), flags=True), store.url, said.append)
    seen: list[str] = []

    @contextmanager
    def view(*_: Any) -> Iterator[Any]:
        yield lambda kind, trial: seen.append(kind)

    first, second = opened.proposals.history.trials
    with tracking.watched_trials(view)(opened, "") as show:
        for trial in (first, second):
            show("started", trial)
            runs = [run for runs in opened.points.runs(trial.point) for run in runs]
            stages = {stage.key: stage for run in runs for stage in run.stage.chain}
            known = store.statuses(stages)
            filled(store, SimpleNamespace(stages={k: s for k, s in stages.items() if k not in known}))  # type: ignore[arg-type]
            show("replicate", trial)
    outcomes = tracking.finish(lambda: study_projection(opened))
    assert seen == ["started", "replicate"] * 2
    assert not said
    assert outcomes["recording"].total == len(kept)
    runs = [each[-1] for each in kept.values()]
    ends = [run for run in runs if run.kind == "fine-tune"]
    assert {(run.group, run.parameters["trial"], run.parameters["alpha"]) for run in ends} == {
        ("trial 0/cola/n20", 0, 0.5),
        ("trial 1/cola/n20", 1, 0.25),
    }
    assert len(ends) == 4
    assert not [name for run in runs for name in run.scores if "test" in name]
    cells = {run.group: run for run in runs if run.kind == "cell"}
    assert cells["trial 0/cola/n20"].scores["runs"] == 2
    assert cells["trial 0/cola/n20"].scores["mean/dev/mcc"] == 0.5
