"""A task whose data are on the Hugging Face hub, trained end to end by the command; afterwards it needs no hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub import COMMIT, stand_in
from tiny import texts

pytestmark = [pytest.mark.ray, pytest.mark.slow]

TASK = """
name: moods
data: hub:me/moods
columns: [text]
label: mood
classes: [bad, good]
metrics: [accuracy]
"""
LINE = "bench --table few_shot --tasks moods.yaml --sizes 100 --subsets 0 --seeds 31 --methods ft --format json "
LINE += "--set max_length=64 --set fine_tune.steps=60 --set fine_tune.lr=5e-3 --slots 1 --encoder"


def bench(folder: Path, encoder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command with a hub cache of its own."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_HOME": str(folder / "home"), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*", **variables}
    words = [sys.executable, "-m", "harness", *LINE.split(), str(encoder)]
    done = subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_a_task_of_the_hub_is_trained_and_then_needs_no_hub(tmp_path: Path, bert: Path) -> None:
    (tmp_path / "moods.yaml").write_text(TASK, encoding="utf-8")
    with stand_in(tmp_path / "hub") as hub:
        folder = hub.folder("me/moods")
        folder.mkdir(parents=True)
        for seed, split, count in ((0, "train", 300), (1, "validation", 120)):
            rows, labels = texts(count, seed)
            columns = {"text": [text for (text,) in rows], "mood": [("bad", "good")[label] for label in labels]}
            pq.write_table(pa.table(columns), folder / f"{split}.parquet")
        first = bench(tmp_path, bert, HF_ENDPOINT=hub.address)
        assert sorted(hub.got(".parquet")) == ["train.parquet", "validation.parquet"]
    table = json.loads(first.stdout)
    (result,) = table["results"]
    assert (result["task"], result["status"], result["metric"]) == ("moods", "done", "accuracy")
    assert result["test"] > 0.9, "one word tells the label"
    assert f"hub:me/moods@{COMMIT[:7]}" in " ".join(table["lines"])
    again = bench(tmp_path, bert, HF_HUB_OFFLINE="1")
    assert "to train: 0." in again.stderr
    assert json.loads(again.stdout) == table
