"""What a plan read, kept as JSON, gives the same runs again."""

from __future__ import annotations

import json

import pytest
from requested import BERT_TINY, resolve_table

from harness.encoders import Located
from harness.planning.resolved import ResolvedTable
from harness.planning.runs import Plan, make_plan
from harness.planning.snapshot import Snapshot, remade, snapshot
from harness.planning.table import load_table, table_names
from harness.planning.task_reader import Translation
from harness.specs import Encoder


def plan_of(resolved: ResolvedTable) -> Plan:
    """Each encoder with a digest of its name."""
    located = (Located(Encoder(f"{each.name:0<32}", each.name), None, BERT_TINY, None) for each in resolved.encoders)
    return make_plan(resolved, None, *located)


def kept(plan: Plan) -> Snapshot:
    read = Snapshot.from_json(json.loads(json.dumps(snapshot(plan, {}).to_json())))
    assert read is not None
    return read


@pytest.mark.parametrize("name", [name for name in table_names() if load_table(name).tasks])
def test_every_table_has_its_runs_again(name: str) -> None:
    resolved = resolve_table(name, "quick")
    plan = plan_of(resolved)
    again = remade(resolved, kept(plan))
    assert again is not None
    assert (again.runs, again.skipped, again.stages.keys()) == (plan.runs, plan.skipped, plan.stages.keys())
    assert [each.tests for each in again.tasks.values()] == [each.tests for each in plan.tasks.values()]
    assert [*map(again.stage_flops, again.stages.values())] == [*map(plan.stage_flops, plan.stages.values())]


def test_a_part_of_what_was_read_is_enough_and_another_recipe_gives_other_keys() -> None:
    read = kept(plan_of(resolve_table("few_shot", "quick", encoder="bert-tiny,minilm")))
    for fields in ({"encoder": "minilm"}, {"methods": ("ft",), "subsets": (0,)}, {"set": ["fine_tune.lr=0.1"]}):
        resolved = resolve_table("few_shot", "quick", **{"encoder": "bert-tiny", **fields})
        again = remade(resolved, read)
        assert again is not None
        assert [run.stage.key for run in again.runs] == [run.stage.key for run in plan_of(resolved).runs]


def test_where_no_translator_is_named_what_was_translated_is_read() -> None:
    """A table named one when its bench was recorded, and names none now."""
    named = resolve_table("few_shot", "quick", translator="apertium:spa,cat")
    plan = make_plan(named, None, Located(Encoder("7" * 32), None, BERT_TINY, None), translation=Translation())
    assert any(stage.data.views > 1 for stage in plan.stages.values())
    for translator, same in (("apertium:spa,cat", True), (None, True), ("file:views.csv", False)):
        again = remade(resolve_table("few_shot", "quick", translator=translator), kept(plan))
        assert (again is not None and again.stages.keys() == plan.stages.keys()) == same


@pytest.mark.parametrize(
    "fields",
    [{"subsets": (7,)}, {"encoder": "minilm"}, {"data": "elsewhere"}, {"protocol": "k_shot"}, {"tasks": ("cola",)}],
)
def test_what_was_not_read_is_no_plan(fields: dict[str, object]) -> None:
    read = kept(plan_of(resolve_table("few_shot", "quick", encoder="bert-tiny", tasks=("sst2",))))
    resolved = resolve_table("few_shot", "quick", **{"encoder": "bert-tiny", "tasks": ("sst2",), **fields})
    assert remade(resolved, read) is None


@pytest.mark.parametrize("body", [None, [], {"sizes": [0]}, {"sizes": [0], "files": {}, "parts": [{"encoder": 3}]}])
def test_what_another_version_wrote_is_none(body: object) -> None:
    assert Snapshot.from_json(body) is None
