"""Question answering's data: files in each format give the same rows, what is wrong is one sentence, and splits cut no context."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from questions import questions, write_questions
from tasks.task_files import inferred, read, write_file

from harness.answers import as_label, of_label
from harness.errors import UserError
from harness.tasks.inferred import task_yaml
from harness.tasks.overlap import normal_ids
from harness.tasks.protocols import PROTOCOLS
from harness.tasks.rows import Rows
from harness.tasks.sources import open_source
from harness.tasks.task import TASKS, load_user_task

SQUAD = TASKS["squad_v2"]
RECORD = {"question": "Who?", "context": "Ann met Bob.", "answers": {"text": ["Ann"], "answer_start": [0]}}


def records(count: int) -> list[dict[str, Any]]:
    rows, labels = questions(count)
    found = []
    for (question, context), label in zip(rows, labels.tolist(), strict=True):
        answers = of_label(label)
        answer = {"text": [text for text, _ in answers], "answer_start": [start for _, start in answers]}
        found.append({"question": question, "context": context, "answers": answer})
    return found


def write(folder: Path, form: str, rows: list[dict[str, Any]]) -> Path:
    path = folder / f"rows.{form}"
    if form == "json":
        path.write_text(json.dumps({"version": "v2.0", "data": [article(row) for row in rows]}))
        return path
    return write_file(path, [{**row, "answers": json.dumps(row["answers"])} for row in rows] if form == "csv" else rows)


def article(row: dict[str, Any]) -> dict[str, Any]:
    pairs = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
    answers = [{"text": text, "answer_start": start} for text, start in pairs]
    question = {"question": row["question"], "id": "1", "answers": answers, "is_impossible": not answers}
    return {"title": "T", "paragraphs": [{"context": row["context"], "qas": [question]}]}


@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv", "json"])
def test_each_format_gives_the_same_rows(form: str, tmp_path: Path) -> None:
    rows, labels = questions(20)
    found = read(write(tmp_path, form, records(20)), SQUAD)
    assert found.texts == tuple(rows)
    assert found.gold.tolist() == labels.tolist()
    assert found.digest == Rows(tuple(rows), labels).digest
    assert found.sorted().take(range(5)).row_set("").rows == 5


def test_answers_are_part_of_what_a_row_is() -> None:
    texts = (("q", "a b"), ("q", "a b"))
    labels = [as_label([("a", 0)]), as_label([("b", 2)]), as_label([])]
    digests = {Rows(texts, np.array([labels[i], labels[j]])).digest for i, j in ((0, 1), (0, 2), (1, 2), (0, 0))}
    assert len(digests) == 4
    assert Rows(texts, np.array(labels[:2])).digest == Rows(texts, np.array(labels[1::-1])).digest


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"answers": {"text": ["Bob"], "answer_start": [9]}},
            r"line 2: the answer 'Bob' does not stand at character 9 of its context \(begins at 8\); correct it\.",
        ),
        ({"answers": {"text": ["Eve"], "answer_start": [0]}}, r"'Eve' does not stand .* \(is not in it\)"),
        (
            {"answers": {"text": ["Ann"], "answer_start": []}},
            r"line 2: label .* is unknown to task squad_v2; it should be \{",
        ),
        ({"answers": "Ann"}, r"line 2: label 'Ann' is unknown"),
        ({"answers": None}, r"line 2: the label is missing"),
        ({"question": " ", "context": "\n"}, r"line 2: question and context blank"),
        ({"context": 3}, r"line 2: 'context' is 3, not text"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        read(write(tmp_path, "jsonl", [RECORD, RECORD | change]), SQUAD)


def test_without_unanswerable_questions_each_has_an_answer(tmp_path: Path) -> None:
    path = write(tmp_path, "jsonl", [RECORD, RECORD | {"answers": {"text": [], "answer_start": []}}])
    assert len(read(path, SQUAD)) == 2
    with pytest.raises(UserError, match="is unknown to task squad"):
        read(path, TASKS["squad"])


@pytest.mark.parametrize("body", ["[]", '{"data": 3}', '{"data": [{"paragraphs": [{"qas": [{}]}]}]}', "{"])
def test_other_json_is_refused(body: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(body)
    with pytest.raises(UserError, match=r"a\.json: is not SQuAD's JSON .* write one object a line to a \.jsonl file\."):
        read(tmp_path / "a.json", SQUAD)


def test_a_task_is_inferred_and_its_file_reads_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ruamel.yaml import YAML

    monkeypatch.chdir(tmp_path)
    path = write_questions(tmp_path / "qa.jsonl", 30)
    task = inferred(path)
    assert (task.columns, task.label, task.kind.answer) == (("question", "context"), "answers", "span")
    assert len(read(path, task)) == 30
    YAML().dump(task_yaml(task, tmp_path), tmp_path / "qa.yaml")
    again = load_user_task(tmp_path / "qa.yaml")
    assert (again.kind, again.metrics, again.data) == (task.kind, task.metrics, task.data)
    renamed = tmp_path / "other.jsonl"
    renamed.write_text(path.read_text().replace('"context"', '"passage"'))
    with pytest.raises(UserError, match="label"):
        inferred(renamed, text=("question", "passage"), label="answers")
    found = inferred(renamed, text=("question", "passage"), kind="spans")
    assert found.columns == ("question", "passage")
    with pytest.raises(UserError, match="question answering takes two"):
        inferred(renamed, text=("passage",), kind="spans")


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("columns: [question]\nspans: true\n", "takes two, question and context"),
        ("columns: [question, context]\nspans: true\nclasses: [a, b]\n", "'spans: true' for question answering"),
        ("columns: [question, answers]\nspans: true\n", "'answers' cannot be a text column"),
    ],
)
def test_a_task_file_that_contradicts_itself(lines: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "qa.yaml"
    path.write_text(f"name: qa\nmetrics: [answer_f1]\n{lines}")
    with pytest.raises(UserError, match=sentence):
        load_user_task(path)
    path.write_text("name: qa\nmetrics: [accuracy]\ncolumns: [question, context]\nspans: true\n")
    with pytest.raises(UserError, match="'accuracy' does not apply to task qa, extractive question answering"):
        load_user_task(path)


@pytest.mark.parametrize("protocol", ["own", "own_redrawn", "own_cross_validated", "cmlm_few_shot", "scl_few_shot"])
def test_splits_cut_no_context(protocol: str, tmp_path: Path) -> None:
    """Each context has three questions, in other letters: all on one side."""
    rows, path = records(40), tmp_path / "qa.jsonl"
    asked = [{**row, "question": f"{word} {row['question']}"} for row in rows for word in ("who", "what", "when")]
    path.write_text("".join(json.dumps(row) + "\n" for row in asked))
    yaml = tmp_path / "qa.yaml"
    yaml.write_text("name: qa\nmetrics: [answer_f1]\ncolumns: [question, context]\nspans: true\ndata: qa.jsonl\n")
    task, source, rules = load_user_task(yaml), open_source(None), PROTOCOLS[protocol]
    for subset in (0, 1):
        if rules.num_subsets is None and not rules.redraws and subset:
            continue
        sets = [
            rules.training_set(task, source, 0, subset),
            rules.dev_set(task, source, 0, subset),
            *rules.evaluation_sets(task, source).tests.values(),
        ]
        contexts = [set(normal_ids(each, whole=False)[:, 1].tolist()) for each in sets]
        assert all(contexts)
        assert not any(a & b for a, b in pairwise([*contexts, contexts[0]]))
    few = rules.training_set(task, source, 12, 0)
    assert len(few) == 12 or protocol == "own_cross_validated"


def test_training_rows_with_a_context_of_a_given_test_set_are_left_out(tmp_path: Path) -> None:
    rows = records(30)
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tested = [{**row, "question": "another"} for row in rows[:10]]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tested))
    yaml = tmp_path / "qa.yaml"
    yaml.write_text(
        "name: qa\nmetrics: [answer_f1]\ncolumns: [question, context]\nspans: true\ndata: qa.jsonl\ntest: test.jsonl\n"
    )
    found = PROTOCOLS["own"].evaluation_sets(load_user_task(yaml), open_source(None))
    assert "10 labelled rows left out, their text is in test" in found.origin
