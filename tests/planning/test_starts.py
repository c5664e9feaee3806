"""Runs that start from a selected run: which one is selected, what is known before, and what happens where there is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from requested import UNREAD, first_starts, request, resolve_start, resolve_table
from views.runs import commit

from harness.commands.prepare import Prepared, prepare, prepare_recorded
from harness.commands.views import grid_of
from harness.errors import UserError
from harness.planning.runs import Plan, make_plan
from harness.planning.starts import best_run
from harness.specs import Parent, Record
from harness.storage import weights_of
from harness.store import Store
from harness.views.notes import start_sentences

EARLIER = make_plan(resolve_start(resolve_table("scl_transfer", "paper"), request("paper")), None, UNREAD)


def plan(decided: bool, **fields: object) -> Plan:
    resolved = resolve_table("scl_transfer", "paper", **fields)
    starts = first_starts(resolved, request("paper", **fields), None, UNREAD) if decided else {}
    return make_plan(resolved, None, UNREAD, starts=starts)


@pytest.mark.parametrize("seed", range(20))
def test_the_first_of_the_best_on_dev_is_selected(seed: int) -> None:
    """Against a naive loop, with ties, failures and diverged runs among them."""
    draw = np.random.default_rng(seed)
    best, records = None, {}
    runs = [run for run in EARLIER.runs if run.row == "CE"]
    for run in runs:
        end, score = draw.choice(["done", "failed", "diverged"], p=[0.6, 0.3, 0.1]), float(draw.integers(3)) / 4
        records[run.stage.key] = Record(run.stage.key, end, dev_scores={"accuracy": score} if end == "done" else {})
        if end == "done" and (best is None or score > records[best.stage.key].dev_scores["accuracy"]):
            best = run
    assert best_run(runs, records) == best


def test_what_cannot_start_from_there_is_refused() -> None:
    with pytest.raises(UserError, match=r"scl_transfer, key starts_from: row TAPT trains on unlabelled texts"):
        resolve_table("scl_transfer", "paper", methods=("ft", "tapt"))
    with pytest.raises(UserError, match=r"row CE: the head .* has 2 outputs, and task mnli has 3 labels"):
        plan(True, tasks=("mnli",))


@pytest.mark.usefixtures("workdir", "packaged")
def test_the_bench_of_the_other_table_comes_first() -> None:
    """Its runs are selected from once all have ended; a failed one is left out, and a row of which all failed is skipped with the reason."""

    def prepared(train: bool = False) -> Prepared:
        return prepare(replace(request("quick"), table="scl_transfer"), train=train)

    with pytest.raises(
        UserError, match=r"harness bench --table scl_full_size .*--tasks movies .* --methods 'CE,CE . SCL' --keep best"
    ):
        prepared(train=True)
    before = prepare(replace(request("quick", tasks=("movies",)), table="scl_full_size"), train=False)
    store = Store(before.store.url)
    replace(before, store=store).remember()
    *first, last = (run for run in before.plan.runs if run.row in ("CE", "CE + SCL"))
    for index, run in enumerate(first):
        end = ("diverged", "the loss is nan") if run.row == "CE" else ("failed", "out of memory") if index == 0 else ()
        commit(store, run.stage, *end)
    assert "CE + SCL" not in prepared().plan.table_data.starts, f"{last.name} has not ended"
    commit(store, last.stage)
    found = prepared()
    assert {run.row for run in found.plan.runs} == {"CE + SCL"}
    (ce,) = (cell for (_, row, _), cell in grid_of(found).cells.items() if row == "CE")
    assert "none of the 3 runs that it could start from was trained" in str(ce)
    assert "the loss is nan" in str(ce)
    assert [each.partition(" starts from ")[0] for each in [*start_sentences(found.plan)][1:]] == ["CE + SCL"]
    with pytest.raises(UserError, match="whose weights are not there"):
        prepared(train=True)
    start = found.plan.table_data.starts["CE + SCL"]
    assert isinstance(start, Parent)
    weights = store.artifacts / weights_of(start.stage.key)
    weights.parent.mkdir(parents=True, exist_ok=True)
    weights.touch()
    again = prepared(train=True)
    assert all(item.stage.init == start for item in again.items)
    replace(again, store=store).remember()
    commit(store, again.items[0].stage)
    recorded = prepare_recorded(again.request)
    assert recorded.plan.library == {}
    assert recorded.plan.stages.keys() == again.plan.stages.keys()
