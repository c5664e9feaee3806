"""Reference rows: they draw nothing, depend on nothing that they do not read, join any table by a flag, and move no other row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from methods.contexts import CONTEXT, HEADLESS, chain, keys

from harness.encoders import locate
from harness.errors import UserError
from harness.methods import METHODS, REFERENCE, methods_named
from harness.methods import chain as chained
from harness.planning.request import Request
from harness.planning.resolve import resolve
from harness.planning.runs import Plan, make_plan
from harness.planning.table import load_table, table_names
from harness.specs import NO_ENCODER, Encoder, Optim, Parent, Selection

FITTED = ("majority", "tfidf", "frozen_states")
TITLES = ["Majority", "TF-IDF", "Frozen states", "Frozen head"]


@pytest.mark.parametrize("name", FITTED)
def test_what_is_fitted_depends_on_its_rows_and_on_nothing_else(name: str) -> None:
    method, (key,) = METHODS[name], keys(METHODS[name])
    same: list[dict[str, Any]] = [
        {"seed": 42},
        {"fine_tune": Optim(9e-5, 8, 3)},
        {"selection": Selection("accuracy", 7)},
        {"mlm_head": HEADLESS.mlm_head},
    ]
    reads_texts: list[dict[str, Any]] = [{"encoder": Encoder("9" * 32)}, {"data": replace(CONTEXT.data, max_length=64)}]
    other: list[dict[str, Any]] = [
        {"data": replace(CONTEXT.data, train=CONTEXT.unlabelled.train)},
        {"data": replace(CONTEXT.data, tests=())},
        {"selection": Selection("mcc")},
    ]
    if name == "frozen_states":
        other += reads_texts
    else:
        same += reads_texts
        assert chain(method)[-1].init == NO_ENCODER
    assert all(keys(method, replace(CONTEXT, **change)) == [key] for change in same)
    assert all(keys(method, replace(CONTEXT, **change)) != [key] for change in other)


def test_the_frozen_head_is_ft_but_for_its_objective() -> None:
    (head,), (ft,) = chain(METHODS["frozen_head"]), chain(METHODS["ft"])
    assert replace(head, objective=ft.objective) == ft
    assert head.key != ft.key


def test_states_can_be_those_of_a_post_trained_encoder_and_words_can_not() -> None:
    def steps(name: str) -> list[Any]:
        return [method() for method in methods_named(name)]

    leaf = chained(steps("tapt+frozen_states"), CONTEXT)[-1]
    assert isinstance(leaf.init, Parent)
    assert leaf.init.stage.key == chain(METHODS["tapt"])[0].key
    with pytest.raises(
        UserError, match="method tfidf reads no encoder, so nothing can be trained before it; name it alone"
    ):
        chained(steps("tapt+tfidf"), CONTEXT)


def plan_of(table: str, **changes: Any) -> Plan:
    preset = "quick" if "quick" in load_table(table).presets else None
    return make_plan(resolve(load_table(table), Request(preset=preset, **changes)), None, locate("bert-tiny"))


@pytest.mark.parametrize("table", ["few_shot", "scl_transfer", "k_shot"])
def test_the_flag_adds_rows_and_moves_no_other(table: str) -> None:
    alone, beside = plan_of(table), plan_of(table, reference=True)
    titles = [row.title for row in beside.resolved.rows]
    assert titles[-4:] == TITLES
    assert [run for run in beside.runs if run.row not in TITLES] == list(alone.runs)
    assert alone.stages.keys() <= beside.stages.keys()
    seeds = len(beside.resolved.seeds)
    for name in TITLES[:3]:
        mine = [run for run in beside.runs if run.row == name]
        assert len(mine) == seeds * len({run.stage.key for run in mine})


def test_every_table_takes_the_flag() -> None:
    for name in table_names():
        table = load_table(name)
        tasks = None if table.tasks else ("sst2",)
        rows = resolve(table, Request(tasks=tasks, reference=True)).rows
        assert [row.title for row in rows if row.method in REFERENCE] == TITLES
