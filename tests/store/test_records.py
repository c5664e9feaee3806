"""Records and labels come back as they were written, one a key, and a done one stays."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from store.samples import committed, record, run, same, stage

from harness.errors import UserError
from harness.specs import Run, Stage
from harness.store import Store


def test_a_record_comes_back_to_the_last_bit(store: Store, url: str) -> None:
    of = stage(1)
    assert committed(store, of)
    again = Store(url)
    assert same(again.records([of.key], predictions=True)[of.key], record(of))
    assert again.records([of.key])[of.key].predictions == {}
    assert again.statuses([of.key, "0" * 32]) == {of.key: ("done", 1)}


def test_the_stage_comes_back_with_its_chain_labels_and_key(store: Store) -> None:
    of = stage(1)
    committed(store, of)
    found = store.stages([of.key])[of.key]
    assert [s.key for s in found.chain] == [s.key for s in of.chain]
    assert found == of
    assert [s.phase for s in found.chain] == ["warm-up", "post-train", "fine-tune"]
    assert (found.data.dev and found.data.dev.name, found.encoder.name) == ("toy/dev", "tiny")
    assert Stage.from_json(json.loads(json.dumps(of.to_json()))).to_json() == of.to_json()
    assert store.stages(["0" * 32]) == {}


@pytest.mark.parametrize("column", ["record", "stage"])
def test_a_record_that_this_harness_cannot_read_is_named(file_store: Store, column: str) -> None:
    of = stage()
    committed(file_store, of)
    with file_store._write() as connection:
        connection.exec_driver_sql(f"UPDATE records SET {column} = '{{\"speed\": 1}}'")
    with pytest.raises(
        UserError, match=rf"^The record {of.key[:10]} has fields that this harness does not know, or is damaged; "
    ):
        file_store.records([of.key]) if column == "record" else file_store.stages([of.key])


def test_more_keys_than_one_query_takes(store: Store) -> None:
    stages = [stage(seed) for seed in range(3)]
    for of in stages:
        committed(store, of)
    keys = [f"{i:032x}" for i in range(1200)]
    wanted = [keys[0], stages[0].key, *keys, stages[1].key, stages[2].key, stages[0].key]
    assert set(store.statuses(wanted)) == set(store.records(wanted)) == {of.key for of in stages}


def test_keys_by_prefix_take_no_wildcards(store: Store) -> None:
    keys = sorted(stage(seed).key for seed in range(30))
    for seed in range(30):
        committed(store, stage(seed))
    assert store.keys_like(keys[0][:12]) == [keys[0]]
    assert store.keys_like("%") == store.keys_like("_") == store.keys_like("x") == []
    assert len(store.keys_like("")) == 20


def test_the_newest_are_finished_stages(store: Store) -> None:
    committed(store, stage(1), mark=1)
    committed(store, stage(2), "failed", 2)
    committed(store, stage(3), mark=3)
    assert [found.key for found in store.newest(9)] == [stage(3).key, stage(1).key]
    assert [found.key for found in store.newest(1)] == [stage(3).key]


def test_labels_are_kept_once_and_beside_the_key(store: Store) -> None:
    """Of any length and size."""
    long = replace(run(stage(1), "row " * 200), task="task " * 100, size=2**40, seed=2**40)
    runs = [run(stage(1)), long, run(stage(2))]
    store.label("few_shot", runs)
    store.label("few_shot", [*runs, run(stage(3))])
    store.label("table " * 100, runs[:1])

    def label(table: str, of: Run) -> dict[str, Any]:
        names = ("row", "method", "task", "size", "subset", "seed")
        return {"key": of.stage.key, "table": table} | {name: getattr(of, name) for name in names}

    found = sorted(store.labels([stage(1).key]), key=lambda each: (each["table"], each["row"]))
    assert found == [label("few_shot", runs[0]), label("few_shot", long), label("table " * 100, runs[0])]
    assert len(store.labels([stage(3).key])) == 1
    assert store.labels(["0" * 32]) == []


def test_without_create_a_missing_store_reads_as_empty_and_is_not_made(url: str, tmp_path: Path) -> None:
    store = Store(url, create=False)
    assert not store.exists
    assert (store.statuses(["a"]), store.records(["a"]), store.labels(["a"])) == ({}, {}, [])
    assert (store.keys_like(""), store.newest(9), store.stages(["a"]), store.studies()) == ([], [], {}, [])
    assert list(tmp_path.iterdir()) == []
    assert store.path or sa.inspect(store._engine).get_table_names() == []
    committed(Store(url.replace("+psycopg", "")), stage())
    assert Store(url, create=False).statuses([stage().key]) == {stage().key: ("done", 1)}


TEXTS = {"a": "one", "b": "", "c": "zwei\nZeilen 日本 😀 \u2028 'quoted' % ?", "d": "x" * 100_000, "e": "a\x00b"}


def test_translations_come_back_and_what_was_kept_first_stays(store: Store, url: str) -> None:
    assert store.translations(list(TEXTS)) == {}
    store.keep_translations(TEXTS)
    store.keep_translations({})
    store.keep_translations(dict.fromkeys(["a", "f"], "another"))
    assert Store(url).translations(["a", "nowhere", "f", "e", "d", "c", "b", "a"]) == TEXTS | {"f": "another"}
    assert store.translations([]) == {}
