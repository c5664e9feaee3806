"""Data that were read once make the runs of every point: the same runs as a plan of that point."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from requested import BERT_TINY, resolve_table

from harness.encoders import Located, locate
from harness.planning.data import runs_of
from harness.planning.resolved import ResolvedTable
from harness.planning.runs import Plan, make_plan
from harness.planning.task_reader import Translation
from harness.specs import Encoder
from harness.tasks.rows import Rows
from harness.tasks.sources import TextSource, open_source

TINY = Located(Encoder("7" * 32, "tiny"), None, BERT_TINY, None)


def resolved(*texts: str, table: str = "few_shot", preset: str = "quick", **overrides: Any) -> ResolvedTable:
    return resolve_table(table, preset, set=texts, **overrides)


@pytest.fixture(scope="module")
def source(packaged: dict[str, Path]) -> TextSource:
    return open_source(None)


def doubled(rows: Rows) -> Rows:
    return Rows(tuple((*texts, *(text.upper() for text in texts)) for texts in rows.texts), None, rows.name)


TRANSLATION = Translation(lambda rows: doubled(rows), views=2)


@pytest.fixture(scope="module")
def quick(source: TextSource) -> Plan:
    return make_plan(resolved(), source, locate("bert-tiny"), translation=TRANSLATION)


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
    whole = make_plan(resolved(*texts), source, locate("bert-tiny"), translation=TRANSLATION)
    runs, skipped = runs_of(resolved(*texts), pickle.loads(pickle.dumps(quick.table_data)))
    assert runs == whole.runs
    assert [run.stage.to_json() for run in runs] == [run.stage.to_json() for run in whole.runs], "labels count too"
    assert skipped == whole.skipped
    assert {run.row for run in runs} == {"FT", "SCL", "CSSL", "TAPT", "CMLM"}
    assert whole.table_data == quick.table_data


def test_a_narrower_table_is_made_of_the_same_readings(quick: Plan) -> None:
    runs, _ = runs_of(resolved(methods=("CMLM",), sizes=(100,), subsets=(2, 0), seeds=(31, 42)), quick.table_data)
    known = {run.name: run.stage.key for run in quick.runs}
    assert [run.name.partition("/")[2] for run in runs] == [
        f"movies/n100/subset{subset}/seed{seed}" for subset in (2, 0) for seed in (31, 42)
    ]
    assert [run.stage.key for run in runs if run.seed == 31] == [known[run.name] for run in runs if run.seed == 31]


def test_pre_training_is_made_of_readings_too() -> None:
    new = Located(Encoder("4" * 32, "new:tiny"), None, BERT_TINY, None, new=True)
    narrow = {"table": "pretraining", "preset": "paper", "tasks": ("rte",), "methods": ("MLM", "TACO", "RTD Only")}
    sets = ("pre_train.lr=3e-4", "taco.window=3", "pre_train.max_length=64")
    before, after = (make_plan(resolved(*texts, **narrow), None, new) for texts in ((), sets))
    assert runs_of(resolved(*sets, **narrow), before.table_data)[0] == after.runs
    assert {run.stage.key for run in before.runs}.isdisjoint(run.stage.key for run in after.runs)


def test_readings_are_small_and_hold_no_text(quick: Plan) -> None:
    packed = pickle.dumps(quick.table_data)
    assert len(packed) < 10_000, "row sets of one task, three subsets and two sizes"
    texts = {text for rows in quick.library.values() for columns in rows.texts for text in columns if len(text) > 20}
    assert len(texts) > 3000
    assert not [text for text in texts if text.encode() in packed]
