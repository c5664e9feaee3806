"""Every objective through the real bench: pre-training from random weights, post-training, back-translations, SCL on top."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from cluster.conftest import Bench
from cluster.driver import finished, kept
from trained import films_folder

from harness.store import Store
from harness.yaml_files import packaged_files

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


@pytest.mark.ray
@pytest.mark.slow
def test_workers_read_blocks_and_views(folder: Path, bert: Path) -> None:
    """One chain on Ray: pre-training on blocks of a corpus, post-training on two translations of each text, fine-tuning."""
    text = packaged_files("benchmarks")["pretraining"].read_text(encoding="utf-8")
    row = "{name: MLM, pre_train: mlm, method: ft}"
    assert text.count(row) == 1
    (folder / "chain.yaml").write_text(text.replace(row, row.replace("ft", "cssl")), encoding="utf-8")
    line = PRE.format(bert).replace(
        "--table pretraining --methods MLM,TACO,COCO-LM", "--table chain.yaml --methods MLM"
    )
    driver = finished(folder, f"{line} --set post_train.steps=2 --translator file:views.jsonl")
    assert driver.counts["done"] == 3
    (cell,) = (cell for cell in driver.table["cells"] if cell["column"] == "sst2")
    assert (cell["done"], cell["expected"]) == (1, 1)
    store = Store(f"sqlite:///{folder}/.harness/harness.db", create=False)
    stages = {stage.phase: stage for key in kept(folder) if (stage := store.stage(key))}
    assert stages["pre-train"].data.blocks == "packed"
    assert stages["post-train"].data.views == 2
