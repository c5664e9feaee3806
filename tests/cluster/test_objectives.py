"""Every objective through the real bench: pre-training from random weights, post-training, back-translations, SCL on top."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from cluster.driver import finished, kept

from harness.store import Store
from harness.tasks.packaged import packaged_rows

pytestmark = pytest.mark.ray

OBJECTIVES = (
    "bench --table objectives --methods CSSL,TACO,ELECTRA,COCO-LM,CMLM+SCL --sizes 100 --subsets 0 --set mlm_head.steps=2 "
    "--set post_train.steps=12 --set fine_tune.steps=4 --translator file:views.jsonl --slots 1 --yes --format json"
)
PRE = (
    "bench --table pretraining --methods MLM,TACO,COCO-LM --subsets 0 --set pre_train.steps=3 --set fine_tune.steps=4 --slots 1 "
    "--yes --format json"
)


@pytest.mark.usefixtures("packaged")
def test_objectives_as_post_training(tmp_path: Path) -> None:
    texts = sorted({text for (text,) in packaged_rows("movies", "train").texts})
    views = [{"text": text, "view_1": " ".join(text.split()[::-1]), "view_2": text.upper()} for text in texts]
    (tmp_path / "views.jsonl").write_text("".join(json.dumps(row) + "\n" for row in views), encoding="utf-8")
    driver = finished(tmp_path, OBJECTIVES)
    assert {cell["row"] for cell in driver.table["cells"]} == {"CSSL", "TACO", "ELECTRA", "COCO-LM", "CMLM+SCL"}
    assert all(cell["done"] == cell["expected"] == 1 for cell in driver.table["cells"])
    store = Store(f"sqlite:///{tmp_path}/.harness/harness.db", create=False)
    found = {}
    for key in kept(tmp_path):
        stage, record = store.stage(key), store.records([key])[key]
        assert stage is not None
        found[stage.objective.name] = (stage, record)
    assert set(found) == {"mlm", "cssl", "taco", "electra", "coco_lm", "cmlm", "cross_entropy", "scl"}
    assert found["cssl"][0].data.views == 2
    for name in ("cssl", "taco", "coco_lm", "cmlm"):
        measures = found[name][1].history[-1]["measures"]
        assert {"embedding_std", "positive_cosine", "collapsed_value"} <= set(measures), name
        assert all(math.isfinite(value) for value in measures.values())
    before = kept(tmp_path)
    again = finished(tmp_path, OBJECTIVES)
    assert "To do: nothing." in again.err
    assert again.table == driver.table
    assert kept(tmp_path) == before


@pytest.mark.usefixtures("packaged")
def test_pre_training_from_random_weights(tmp_path: Path) -> None:
    driver = finished(tmp_path, PRE)
    assert [(cell["row"], cell["done"], cell["expected"]) for cell in driver.table["cells"]] == [
        (row, 1, 1) for row in ("MLM", "TACO", "COCO-LM")
    ]
    (blocks,) = (tmp_path / ".harness" / "blocks").iterdir()
    assert (blocks / "manifest.json").is_file()
    again = finished(tmp_path, PRE.replace("MLM,TACO", "MLM,ELECTRA"))
    assert again.counts["done"] == 2, "ELECTRA's pre-training and its fine-tuning, nothing else"
    assert sum(1 for _ in (tmp_path / ".harness" / "blocks").iterdir()) == 1
