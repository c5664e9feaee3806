"""Question answering on the command line: a file of questions is benched, and its predictions are shown."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli.command import Said
from cluster import in_process
from questions import write_questions

from harness.cli import main
from harness.commands.prepare import prepare
from harness.commands.views import grid_of, with_answers
from harness.planning.request import from_json
from harness.store import Store
from harness.tasks.metrics import score

Harness = Callable[..., Said]
BENCH = (
    "--tasks qa.jsonl --methods ft,scl --sizes 0 --seeds 31 --set max_length=24 "
    "--set fine_tune.min_steps=20 --set fine_tune.epochs=1 --set fine_tune.lr=3e-3"
)


@pytest.fixture(scope="module")
def trained_once(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bench of questions."""
    folder = tmp_path_factory.mktemp("questions")
    write_questions(folder / "qa.jsonl", 30, asked=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        in_process.patch(patch)
        assert main(f"bench {BENCH} --encoder {bert}".split()) == 0
    return folder


@pytest.fixture
def benched(trained_once: Path, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The label of the run of that bench, in a copy of its folder."""
    shutil.copytree(trained_once, workdir, dirs_exist_ok=True)
    in_process.patch(monkeypatch)
    (label,) = Store("sqlite:///.harness/harness.db", create=False).recorded_runs()
    return label


def test_a_file_of_questions_is_benched(benched: dict[str, Any], harness: Harness) -> None:
    said = harness("report")
    assert said.status == 0, said.err
    assert "qa (F1)" in said.out
    assert "SCL not run: SCL is not defined for extractive question answering." in said.out
    key = benched["key"]
    record = Store("sqlite:///.harness/harness.db", create=False).records([key], predictions=True)[key]
    assert record.status == "done"
    scores = {"answer_f1", "exact_match", "hasans_f1", "hasans_exact", "noans_accuracy", "best_f1"}
    assert set(record.dev_scores) == scores
    for predicted in record.predictions.values():
        assert predicted.gold.dtype.kind == "S"
        assert 0 <= score("exact_match", predicted) <= score("answer_f1", predicted) <= score("best_f1", predicted) <= 1
        assert all(isinstance(array, np.ndarray) and array.dtype != object for array in predicted.arrays.values())
    errors = harness(f"errors {key[:12]}")
    assert errors.status == 0, errors.err
    assert " examples of dev are not answered exactly" in errors.out
    assert harness(f"show {key[:12]}").status == 0


def test_an_exported_folder_answers_as_plain_transformers_does(
    benched: dict[str, Any], harness: Harness, workdir: Path
) -> None:
    """The answers of 'harness predict' with the folder are the best spans of plain transformers' logits."""
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    said = harness("export", benched["key"][:12], "--out", "model")
    assert said.status == 0, said.err
    assert "loaded by AutoModelForQuestionAnswering" in said.out
    assert "Plain transformers gives the same logits within" in said.out
    write_questions(workdir / "new.jsonl", 12, seed=9)
    said = harness(*["predict", "model", "--input", "new.jsonl", "--output", "scored.jsonl"])
    assert said.status == 0, said.err
    assert "Wrote 12 rows to scored.jsonl, each with its answer." in said.out
    scored = [json.loads(line) for line in (workdir / "scored.jsonl").read_text().splitlines()]
    short = [row for row in scored if len(row["context"].split()) <= 18]  # one window holds it
    assert len(short) > 3
    tokenizer, model = AutoTokenizer.from_pretrained("model"), AutoModelForQuestionAnswering.from_pretrained("model")
    for row in short:
        how = {"truncation": "only_second", "return_offsets_mapping": True, "return_tensors": "pt"}
        given = tokenizer(row["question"], row["context"], **how)
        places = given.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            found = model.eval()(**given)
        starts, ends = found.start_logits[0].tolist(), found.end_logits[0].tolist()
        inside = [i for i, sequence in enumerate(given.sequence_ids(0)) if sequence == 1]
        spans = [(starts[a] + ends[b], places[a][0], places[b][1]) for a in inside for b in inside if a <= b < a + 30]
        best, first, stop = max(spans)
        answered = best >= starts[0] + ends[0]
        assert row["answer"] == (row["context"][first:stop] if answered else "")
        assert row["answer_start"] == (first if answered else None)
        assert 0 < row["probability"] <= 1
    card = (workdir / "model" / "README.md").read_text()
    assert "pipeline_tag: question-answering" in card
    code = card.partition("```python\n")[2].partition("```")[0]
    assert "AutoModelForQuestionAnswering" in code
    with redirect_stdout(StringIO()) as answer:
        exec(compile(code, "card", "exec"), {})
    assert answer.getvalue().strip()


def test_a_question_without_room_is_refused_before_anything_trains(
    harness: Harness, workdir: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_questions(workdir / "qa.jsonl", 30, asked=4)
    in_process.patch(monkeypatch)
    said = harness(*f"bench {BENCH} --set max_length=8 --encoder {bert}".split())
    assert said.status == 2
    assert "max_length 8: leaves no room for a context beside the 4 tokens of the question" in said.err
    assert not Store("sqlite:///.harness/harness.db").recorded_runs()


def test_items_are_contexts(benched: dict[str, Any], harness: Harness, bert: Path) -> None:
    """What an interval over test items takes together: all questions of a context. The mean over contexts is still the metric."""
    store = Store("sqlite:///.harness/harness.db", create=False)
    (stored,) = store.requests()
    prepared = prepare(from_json(stored.values), train=False)
    grid = with_answers(prepared, grid_of(prepared))
    ((_, values),) = grid.answers.items()
    ((_, data),) = prepared.plan.tasks.items()
    rows = prepared.plan.library[data.tests["test"].digest]
    contexts = {context for _, context in rows.texts}
    assert len(rows) == 2 * len(contexts)
    assert len(values) == len(contexts)
    test = grid.results.query("metric == 'answer_f1' and test.notna()")["test"].item()
    assert values.mean() == pytest.approx(test)
    said = harness(*f"bench {BENCH.replace('scl', 'tapt')} --set post_train.epochs=1 --encoder {bert}".split())
    assert said.status == 0, said.err
    compared = harness("compare --last --items")
    assert "A test item is all examples of one context (qa)." in compared.out, compared.err
