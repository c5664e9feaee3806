"""A tracker shows what the store holds, once, whenever it is written and however often."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tracking.samples import Recording, failed_then_done, filled, plan_of, projection, recorded_in
from views.runs import commit

from harness.store import Store
from harness.tasks import score
from harness.tracking import TrackedRun, Writer

Kept = dict[str, list[TrackedRun]]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    """What is written to the tracker `recording`."""
    runs: Kept = {}
    recorded_in(monkeypatch, recording=Recording(runs))
    return runs


def writer(store: Store) -> Writer:
    return Writer(store.url, ["recording"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path}/harness.db")


def test_every_recorded_number_is_shown_under_its_update(store: Store, kept: Kept) -> None:
    plan = plan_of(("ft",), (31,))
    records = filled(store, plan)
    writer(store).write(projection(plan))
    (run,) = plan.runs
    shown, record = kept[run.stage.key][0], records[run.stage.key]
    assert shown.history == (
        ("dev/curve", 2, 0.05),
        ("train/loss", 2, 0.6),
        ("dev/mcc", 4, 0.1),
        ("train/ce", 4, 0.5),
        ("train/loss", 4, 0.4),
        ("dev/mcc", 8, 0.2),
        ("measures/embedding_std", 8, 0.9),
        ("train/ce", 8, 0.25),
        ("train/loss", 8, 0.25),
    )
    tests = plan.tasks["cola"].tests["test"].digest
    predicted = record.predictions[tests]
    assert shown.scores["final/test/mcc"] == score("mcc", predicted)
    assert shown.scores["final/dev/mcc"] == 0.5
    assert shown.scores["final/step"] == 8
    assert shown.scores["cost/seconds"] == 2.0
    assert shown.tags["provenance.device"] == "a CPU"
    expected = {
        "row": "FT",
        "task": "cola",
        "size": 20,
        "subset": 0,
        "seed": 31,
        "preset": "quick",
        "objective": "cross_entropy",
    }
    assert expected.items() <= shown.parameters.items()
    assert shown.parameters["optim.lr"] == run.stage.optim.lr
    assert shown.parameters["optim.steps"] == run.stage.optim.steps


def test_a_shared_stage_belongs_to_no_cell_and_has_only_what_its_runs_agree_on(store: Store, kept: Kept) -> None:
    plan = plan_of(("cmlm",))
    filled(store, plan)
    writer(store).write(projection(plan))
    shared = [key for key, members in projection(plan).by_stage.items() if len(members) > 1]
    assert shared
    for key in shared:
        assert kept[key][0].parameters["task"] == "cola"
        assert "seed" not in kept[key][0].parameters
        assert not any(name.startswith("final/test") for name in kept[key][0].scores)


def test_beside_a_command_or_afterwards_is_the_same(store: Store, monkeypatch: pytest.MonkeyPatch, kept: Kept) -> None:
    plan, after = plan_of(), Kept()
    background = writer(store)
    background.put(projection(plan))
    for stage in plan.stages.values():
        commit(store, stage, seconds=1.0)
        background.put(projection(plan), stage.key)
    assert not background.finish(projection(plan))["recording"].error
    recorded_in(monkeypatch, recording=Recording(after))
    for new in (len(plan.stages), 0):  # the second time nothing is written
        made = writer(store)
        made.write(projection(plan))
        assert (made.outcomes["recording"].new, made.outcomes["recording"].total) == (new, len(plan.stages))
    assert kept == after
    assert all(len(kept[key]) == 1 for key in plan.stages)


def test_a_failed_stage_is_shown_and_replaced_when_it_is_done(store: Store, kept: Kept) -> None:
    plan = plan_of(("ft",), (31,))
    (stage,) = plan.stages.values()
    failed_then_done(store, stage, lambda: writer(store).write(projection(plan)))
    writer(store).write(projection(plan))
    assert [(run.status, run.reason) for run in kept[stage.key]] == [("failed", "out of memory"), ("done", "")]


def test_a_tracker_that_is_away_costs_one_warning_and_is_caught_up_with(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails at its first run, is left alone while stages end, and gets everything at the end if it is back."""
    plan, kept, said = plan_of(), Kept(), []
    away, tried = threading.Event(), []
    away.set()

    class Away(Recording):
        def write(self, run: TrackedRun) -> None:
            tried.append(run.key)
            if away.is_set():
                raise ConnectionError("refused")
            super().write(run)

    recorded_in(monkeypatch, away=Away(kept), other=Recording({}))
    made = Writer(store.url, ["away", "other"], warn=lambda *why: said.append(why))
    records = filled(store, plan)
    for key in records:
        made.write(projection(plan), key)
    assert len(tried) == 1
    assert made.outcomes["other"].new == len(records)
    away.clear()
    outcomes = made.finish(projection(plan))
    assert said == [("away", "ConnectionError: refused")]
    assert not outcomes["away"].error
    assert len(kept) == len(plan.stages)
