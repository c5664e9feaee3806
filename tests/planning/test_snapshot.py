"""Data that were read once make the runs of every point, and kept as JSON give the same runs again."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from requested import BERT_TINY, resolve_table

from harness.encoders import Located, locate
from harness.planning.data import runs_of
from harness.planning.resolved import ResolvedTable
from harness.planning.runs import Plan, make_plan
from harness.planning.snapshot import Snapshot, remade, snapshot
from harness.planning.table import load_table, table_names
from harness.specs import Encoder
from harness.tasks.rows import Rows
from harness.tasks.sources import TextSource, open_source
from harness.tasks.translation import Translator


def resolved(*texts: str, table: str = "few_shot", preset: str = "quick", **overrides: Any) -> ResolvedTable:
    return resolve_table(table, preset, set=texts, **overrides)


@pytest.fixture(scope="module")
def source(packaged: dict[str, Path]) -> TextSource:
    return open_source(None)


def doubled(rows: Rows) -> Rows:
    return Rows(tuple((*texts, *(text.upper() for text in texts)) for texts in rows.texts))


TRANSLATOR = Translator(find=doubled)


@pytest.fixture(scope="module")
def quick(source: TextSource) -> Plan:
    return make_plan(resolved(), source, locate("bert-tiny"), translator_of=lambda augment: TRANSLATOR)


@pytest.mark.parametrize(
    "texts",
    [
        ("cmlm.alpha=0.3", "scl.temperature=0.07", "cssl.temperature=0.2"),
        ("post_train.epochs=7", "post_train.batch_size=16", "fine_tune.lr=1e-5"),
        ("optim.dropout=0", "max_length=64"),
    ],
    ids=str,
)
def test_readings_of_one_point_make_the_runs_of_another(
    quick: Plan, source: TextSource, texts: tuple[str, ...]
) -> None:
    whole = make_plan(resolved(*texts), source, locate("bert-tiny"), translator_of=lambda augment: TRANSLATOR)
    runs, skipped = runs_of(resolved(*texts), pickle.loads(pickle.dumps(quick.table_data)))
    assert runs == whole.runs
    assert [run.stage.to_json() for run in runs] == [run.stage.to_json() for run in whole.runs], "labels count too"
    assert skipped == whole.skipped
    assert {run.row for run in runs} == {"FT", "SCL", "CSSL", "TAPT", "CMLM"}
    assert whole.table_data == quick.table_data


def test_pre_training_is_made_of_readings_too() -> None:
    new = Located(Encoder("4" * 32, "new:tiny"), None, BERT_TINY, None, new=True)
    narrow = {"table": "pretraining", "preset": "paper", "tasks": ("rte",), "methods": ("MLM", "TACO", "RTD Only")}
    sets = ("pre_train.lr=3e-4", "taco.window=3", "pre_train.max_length=64")
    before, after = (make_plan(resolved(*texts, **narrow), None, new) for texts in ((), sets))
    assert runs_of(resolved(*sets, **narrow), before.table_data)[0] == after.runs
    assert {run.stage.key for run in before.runs}.isdisjoint(run.stage.key for run in after.runs)


def plan_of(resolved: ResolvedTable) -> Plan:
    """Each encoder with a digest of its name."""
    located = (Located(Encoder(f"{name:0<32}", name), None, BERT_TINY, None) for name in resolved.encoders)
    return make_plan(resolved, None, *located)


def kept(plan: Plan, *, earlier: bool = False) -> Snapshot:
    body = json.loads(json.dumps(snapshot(plan, {})))
    read = Snapshot.of(of_an_earlier_state(body) if earlier else body)
    assert read is not None
    return read


def of_an_earlier_state(body: dict[str, Any]) -> dict[str, Any]:
    """The same data under each encoder, without what was kept later; of a task other fields."""
    data, parts = body["data"], []
    for name, located in data["located"].items():
        part = {key: located[key] for key in ("encoder", "config", "contaminated")}
        part |= {key: data[key] for key in ("source", "views", "untranslated", "overlaps")}
        part |= {key: [(json.loads(each), of) for each, of in data[key].items()] for key in ("training", "unaugmented")}
        part["corpora"] = [((0.0, float(fraction)), rows) for fraction, rows in data["corpora"].items()]
        part |= {"mlm_head": data["mlm_heads"].get(name), "read_under": body["read_under"][name]}
        tasks = {
            n: each | {"task": {"name": n, "own": False, "names_test": False}} for n, each in data["tasks"].items()
        }
        parts.append({**part, "tasks": tasks})
    return {"sizes": body["sizes"], "files": body["files"], "parts": parts}


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
    """Also of an earlier state."""
    plan = plan_of(resolve_table("few_shot", "quick", encoder="bert-tiny,minilm"))
    read = kept(plan, earlier=True)
    assert read.data.located["minilm"] == replace(plan.table_data.located["minilm"], folder=None)
    for fields in ({"encoder": "minilm"}, {"methods": ("ft",), "subsets": (0,)}, {"set": ["fine_tune.lr=0.1"]}):
        resolved = resolve_table("few_shot", "quick", **{"encoder": "bert-tiny", **fields})
        again = remade(resolved, read)
        assert again is not None
        assert [run.stage.key for run in again.runs] == [run.stage.key for run in plan_of(resolved).runs]


def test_where_no_translator_is_named_what_was_translated_is_read() -> None:
    """A table named one when its bench was recorded, and names none now."""
    named = resolve_table("few_shot", "quick", translator="apertium:spa,cat")
    plan = make_plan(
        named, None, Located(Encoder("7" * 32), None, BERT_TINY, None), translator_of=lambda augment: Translator()
    )
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
    assert Snapshot.of(body) is None
