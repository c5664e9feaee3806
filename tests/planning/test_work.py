"""What is left to do of a plan under any state of the store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from requested import TINY, resolve_table

from harness.planning.runs import Plan, make_plan
from harness.planning.work import Item, work
from harness.specs import Status
from harness.storage import weights_of

HEAD, FT, SCL, TAPT_1, TAPT_2, CMLM_1, CMLM_2 = "head", "FT", "SCL", "TAPT 1", "TAPT 2", "CMLM 1", "CMLM 2"
PARENT = {TAPT_1: HEAD, CMLM_1: HEAD, TAPT_2: TAPT_1, CMLM_2: CMLM_1}
EVERY = (HEAD, FT, SCL, *PARENT)


def small(tasks: tuple[str, ...] = ("cola",), seeds: tuple[int, ...] = (31,), **more: Any) -> Plan:
    resolved = resolve_table("few_shot", "paper", tasks=tasks, sizes=(20,), subsets=(0,), seeds=seeds, **more)
    return make_plan(resolved, None, TINY)


PLAN = small()
KEYS = {HEAD: next(stage.key for stage in PLAN.stages.values() if stage.phase == "mlm-head")}
for run in PLAN.runs:
    *_, leaf = run.stage.chain
    if len(run.stage.chain) == 3:
        KEYS |= {f"{run.row} 1": run.stage.chain[1].key, f"{run.row} 2": leaf.key}
    else:
        KEYS[run.row] = leaf.key
NAMES = {key: name for name, key in KEYS.items()}


def left(
    states: dict[str, tuple[Status, int]], weights: Iterable[str] = (), retry: bool = False
) -> tuple[dict[str, Item], set[str]]:
    """Items by name in order, and the blocked ones."""
    have = {weights_of(KEYS[name]) for name in weights}
    items, blocked = work(PLAN, states, have.__contains__, retry)
    return ({NAMES[item.stage.key]: item for item in items}, {NAMES[stage.key] for stage in blocked})


def test_names_metrics_and_costs() -> None:
    items, _ = left({})
    assert items[HEAD].name == "mlm-head of TAPT/cola/n20/subset0/seed31 and 1 more"
    assert items[CMLM_2].name == items[CMLM_1].name == "CMLM/cola/n20/subset0/seed31"
    assert {name for name, item in items.items() if item.metrics} == {FT, SCL, TAPT_2, CMLM_2}
    assert all(item.cost == PLAN.stage_flops(item.stage) > 0 for item in items.values())


def test_metrics_are_those_of_the_stages_own_task() -> None:
    items, _ = work(small(("cola", "mrpc")), {}, lambda key: False, False)
    found = {item.stage.data.dev.name: item.metrics for item in items if item.stage.data.dev}
    assert found == {"cola/dev": ("mcc", "accuracy"), "mrpc/dev": ("accuracy", "f1")}


def test_a_leaf_of_two_rows_is_trained_once_under_a_name_for_both() -> None:
    made = small(set=("cmlm.alpha=0",))
    items, _ = work(made, {}, lambda key: False, False)
    assert len(items) == 5
    assert [item.name for item in items if item.stage.phase == "fine-tune"] == [
        "FT/cola/n20/subset0/seed31",
        "SCL/cola/n20/subset0/seed31",
        "fine-tune of TAPT/cola/n20/subset0/seed31 and 1 more",
    ]


STATES = st.sampled_from([None, "done", "failed", "diverged"])


@settings(max_examples=150)
@given(st.tuples(*[STATES] * 7), st.sets(st.sampled_from(EVERY)), st.booleans())
def test_laws_of_work_in_any_state(states: tuple[Any, ...], weights: set[str], retry: bool) -> None:
    state = dict(zip(EVERY, states, strict=True))
    items, blocked = left({KEYS[n]: (s, 1) for n, s in state.items() if s}, weights, retry)
    order = list(items)
    wanted = {n for n, s in state.items() if s in (None, "failed") or (retry and s == "diverged")}
    fatal = {n for n, s in state.items() if s == "diverged" and not retry}

    def ancestors(name: str) -> list[str]:
        return [PARENT[name], *ancestors(PARENT[name])] if name in PARENT else []

    # each wanted stage is either trained or blocked, and blocked by an ancestor that diverged
    assert wanted == {n for n, i in items.items() if not i.remake} | blocked
    assert not set(items) & blocked
    for name in wanted:
        assert (name in blocked) == any(a in fatal for a in ancestors(name))
    # a recorded stage is made again only for a child that is trained, and where its weights are gone
    children = {n: [c for c in items if PARENT.get(c) == n] for n in EVERY}
    for name, item in items.items():
        assert item.keep_weights == bool(children[name])
        if item.remake:
            assert state[name] == "done"
            assert name not in weights
            assert children[name]
        assert item.seen_attempt == (1 if state[name] else 0)
    # every trained stage finds the weights it starts from: made before it in this very list, or there
    for name in order:
        if name in PARENT:
            before = PARENT[name] in order[: order.index(name)]
            assert before or (state[PARENT[name]] == "done" and PARENT[name] in weights)
