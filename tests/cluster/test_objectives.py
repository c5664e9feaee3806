"""Every objective through the real bench: pre-training from random weights, post-training, back-translations, SCL on top."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from cluster.conftest import Bench
from cluster.driver import kept
from trained import films_folder

from harness.store import Store

SHORT = "--tasks sst2 --data data --sizes 100 --subsets 0 --set fine_tune.steps=2 --set max_length=64 --slots 1 --yes --format json"
OBJECTIVES = (
    "bench --table objectives --methods CSSL,TACO,ELECTRA,COCO-LM,CMLM+SCL --set post_train.steps=6 "
    f"--translator file:views.jsonl --encoder {{}} {SHORT}"
)
PRE = (
    "bench --table pretraining --methods MLM,TACO,COCO-LM --corpus corpus.txt --set pre_train.steps=3 "
    f"--set pre_train.batch_size=8 --encoder new:tiny@{{}} {SHORT}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return films_folder(tmp_path)


def test_objectives_as_post_training(bench: Bench, folder: Path, bert: Path) -> None:
    line = OBJECTIVES.format(bert)
    first = bench(folder, line)
    assert {cell["row"] for cell in first.table["cells"]} == {"CSSL", "TACO", "ELECTRA", "COCO-LM", "CMLM+SCL"}
    assert all(cell["done"] == cell["expected"] == 1 for cell in first.table["cells"])
    store = Store(f"sqlite:///{folder}/.harness/harness.db", create=False)
    found = {}
    for key in kept(folder):
        stage, record = store.stage(key), store.records([key])[key]
        assert stage is not None
        found[stage.objective.name] = (stage, record)
    assert set(found) == {"cssl", "taco", "electra", "coco_lm", "cmlm", "cross_entropy", "scl"}
    assert found["cssl"][0].data.views == 2
    for name in ("cssl", "taco", "coco_lm", "cmlm"):
        measures = found[name][1].history[-1]["measures"]
        assert "embedding_std" in measures, name
        assert all(math.isfinite(value) for value in measures.values())
    before = kept(folder)
    again = bench(folder, line)
    assert "To do: nothing." in again.err
    assert again.table == first.table
    assert kept(folder) == before


def test_pre_training_from_random_weights(bench: Bench, folder: Path, bert: Path) -> None:
    line = PRE.format(bert)
    first = bench(folder, line)
    assert [(cell["row"], cell["done"], cell["expected"]) for cell in first.table["cells"]] == [
        (row, 1, 1) for row in ("MLM", "TACO", "COCO-LM")
    ]
    (blocks,) = (folder / ".harness" / "blocks").glob("[!.]*")
    assert (blocks / "manifest.json").is_file()
    again = bench(folder, line.replace("MLM,TACO", "MLM,ELECTRA"))
    assert again.done == 2, "ELECTRA's pre-training and its fine-tuning, nothing else"
    assert len([*(folder / ".harness" / "blocks").glob("[!.]*")]) == 1
