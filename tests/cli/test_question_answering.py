"""Question answering on the command line: a file of questions is benched, and its predictions are shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cli.command import Said
from cluster import in_process
from questions import write_questions

from harness.store import Store
from harness.tasks import score

Harness = Callable[..., Said]
BENCH = (
    "--tasks qa.jsonl --methods ft,scl --sizes 0 --seeds 31 --set max_length=24 "
    "--set fine_tune.min_steps=20 --set fine_tune.epochs=1 --set fine_tune.lr=3e-3"
)


@pytest.fixture
def benched(harness: Harness, workdir: Path, bert: Path, monkeypatch: pytest.MonkeyPatch) -> Said:
    write_questions(workdir / "qa.jsonl", 60)
    in_process.patch(monkeypatch)
    return harness(*f"bench {BENCH} --encoder {bert}".split())


def test_a_file_of_questions_is_benched(benched: Said, harness: Harness) -> None:
    said = benched
    assert said.status == 0, said.err
    assert "qa (F1)" in said.out
    assert "Skipped: SCL on qa: SCL is not defined for extractive question answering." in said.out + said.err
    store = Store("sqlite:///.harness/harness.db", create=False)
    (label,) = store.recorded_runs()
    record = store.records([label["key"]], predictions=True)[label["key"]]
    assert record.status == "done"
    assert set(record.dev_scores) == {
        "answer_f1",
        "exact_match",
        "hasans_f1",
        "hasans_exact",
        "noans_accuracy",
        "best_f1",
    }
    for predicted in record.predictions.values():
        assert predicted.gold.dtype.kind == "S"
        assert 0 <= score("exact_match", predicted) <= score("answer_f1", predicted) <= score("best_f1", predicted) <= 1
        assert all(isinstance(array, np.ndarray) and array.dtype != object for array in predicted.arrays.values())
    key = label["key"][:12]
    errors = harness(f"errors {key}")
    assert errors.status == 0, errors.err
    assert "9 examples of dev are not answered exactly" in errors.out
    shown = harness(f"show {key}")
    assert shown.status == 0, shown.err
    for format in ("csv", "json", "md", "html"):
        assert harness(*f"report --format {format}".split()).status == 0
