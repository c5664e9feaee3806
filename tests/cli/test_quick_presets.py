"""A shorter form of the quick presets of the papers' tables: trained to the end, on a tiny encoder and made-up texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trained
from cli.conftest import Harness
from cluster import in_process

SHORT = "--preset quick --tasks sst2 --data data --set fine_tune.steps=3 --set max_length=64"

PRE_TRAINED = "--corpus corpus.txt --set pre_train.steps=5 --set pre_train.batch_size=8"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained.films_folder(tmp_path_factory.mktemp("quick"))


@pytest.mark.parametrize(
    ("table", "more", "runs"),
    [
        ("scl_noisy", "--subsets 0,1,2 --translator file:views.jsonl", 12),
        ("unlabelled", "--methods 100,500 --subsets 0,1 --set post_train.steps=3", 4),
        ("views", "--subsets 0 --set post_train.steps=3", 5),
        (
            "objectives",
            "--sizes 100 --subsets 0 --methods CSSL,ELECTRA --set post_train.steps=3 --translator file:views.jsonl",
            2,
        ),
        ("taco_variants", f"--methods MLM+TP-50k,MLM+TP-250k {PRE_TRAINED}", 2),
        ("taco_embeddings", PRE_TRAINED, 3),
        ("coco_lm_base_plus", PRE_TRAINED, 1),
        ("k_shot", "--methods FT,SCL --sizes 8 --subsets 0,1", 4),
    ],
)
def test_a_quick_preset_runs_to_the_end(
    harness: Harness,
    folder: Path,
    folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    table: str,
    more: str,
    runs: int,
) -> None:
    monkeypatch.chdir(folder)
    in_process.patch(monkeypatch)
    store = f"--store sqlite:///{table}.db"
    short = (
        SHORT.replace("--set fine_tune.steps=3", "") if table.startswith("coco_lm_") else SHORT
    )  # its grid sets the epochs
    said = harness(f"bench --table {table} {short} {more} --encoder {folders['bert']} {store} --format json")
    assert said.status == 0, said.err
    cells = json.loads(said.out)["cells"]
    assert cells
    assert all(cell["value"] is not None and cell["done"] == cell["expected"] for cell in cells)
    assert len({row["key"] for row in json.loads(said.out)["results"]}) == runs
