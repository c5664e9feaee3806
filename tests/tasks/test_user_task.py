"""A user's own task: from YAML to splits, and errors that name file, line and key."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tasks.task_files import write_file

from harness.errors import UserError
from harness.tasks import PROTOCOLS, open_source
from harness.tasks.task import load_user_task

GOOD = """\
name: reviews
title: Reviews
columns: [text]
classes: ['no', 'yes']
metrics: [accuracy, f1]
"""


def task_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "task.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_users_task_goes_the_same_way(tmp_path: Path) -> None:
    task = load_user_task(task_file(tmp_path, GOOD))
    assert (task.name, task.title, task.columns, task.kind.outputs) == ("reviews", "Reviews", ("text",), 2)
    assert task.classes == ("no", "yes")
    for split, count in (("train", 60), ("validation", 100)):
        rows = [{"text": f"{split} {i}", "label": "yes" if i % 3 else "no"} for i in range(count)]
        write_file(tmp_path / f"reviews/{split}.csv", rows)
    source = open_source(tmp_path)
    protocol = PROTOCOLS["cmlm_few_shot"]
    sets = protocol.evaluation_sets(task, source)
    assert (len(sets.dev), len(sets.tests["test"]), sets.comparable) == (72, 28, False)
    assert len(protocol.training_set(task, source, 20, 1)) == 20


def test_words_of_a_regression_stand_for_the_ends_of_its_scale(tmp_path: Path) -> None:
    text = "name: likeness\ncolumns: [a, b]\nregression: true\nmetrics: [pearson]\n"
    text += 'prompt: {template: "{first} [MASK] {second}", words: {5: "Yes", 0.5: "No"}}\n'
    path = tmp_path / "likeness.yaml"
    path.write_text(text)
    task = load_user_task(path)
    assert task.prompt is not None
    assert (task.prompt.words, task.label_range, task.kind.scale) == (("No", "Yes"), (0.5, 5.0), (0.5, 5.0))
    for words in ('{0: "No"}', '{0: "No", yes: "Yes"}', '{0: "No", 1: "Maybe", 2: "Yes"}'):
        path.write_text(text.replace('{5: "Yes", 0.5: "No"}', words))
        with pytest.raises(UserError, match="the lowest and one for the highest score"):
            load_user_task(path)


def test_regression_and_splits(tmp_path: Path) -> None:
    text = "name: likeness\ncolumns: [a, b]\nregression: true\nmetrics: [pearson]\n"
    splits = "splits: {train: fit, validation: choose, test: judge}\nversion: 3\n"
    task = load_user_task(task_file(tmp_path, text + splits))
    assert (task.kind.outputs, task.train, task.dev, task.tests) == (1, "fit", "choose", (("test", "judge"),))
    assert (task.version, task.title) == (3, "likeness")
    for split in ("fit", "choose", "judge"):
        write_file(
            tmp_path / f"likeness/{split}.jsonl", [{"a": split, "b": str(i), "label": i * 100.5} for i in range(9)]
        )
    sets = PROTOCOLS["cmlm_few_shot"].evaluation_sets(task, open_source(tmp_path))
    assert len(sets.dev) == len(sets.tests["test"]) == 9
    assert sets.dev.gold.dtype == np.float32


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("columns", "colums", ("line 3", "colums", "Did you mean 'columns'")),
        ("name: reviews\n", "", ("name", "missing")),
        ("name: reviews", "name: sst2", ("line 1", "key name", "built-in")),
        ("name: reviews", "name: ../up", ("line 1", "key name", "lower-case")),
        ("name: reviews", "name: " + "x" * 300, ("line 1", "key name", "at most 100")),
        ("title: Reviews", 'title: "two\\nlines"', ("line 2", "key title", "one line")),
        ("title: Reviews", "title: " + "x" * 300, ("line 2", "key title", "at most 60")),
        ("['no', 'yes']", "['no', ' yes']", ("line 4", "key classes.1", "ends with a space")),
        ("[text]", "[]", ("line 3", "key columns")),
        ("[text]", "[a, b, c]", ("line 3", "key columns")),
        ("[text]", "[text, text]", ("line 3", "'text' cannot be")),
        ("[text]", "[label]", ("line 3", "'label' cannot be")),
        ("['no', 'yes']", "[one]", ("line 4", "two or more")),
        ("['no', 'yes']", "[one, one]", ("line 4", "different")),
        ("['no', 'yes']", "[0, 1]", ("line 4", "string")),
        ("classes: ['no', 'yes']\n", "", ("either two or more classes, 'regression: true', or 'spans: true'",)),
        ("accuracy, f1", "acuracy", ("line 5", "Did you mean 'accuracy'")),
        ("accuracy, f1", "pearson", ("line 5", "does not apply", "choose from accuracy, balanced_accuracy, f1")),
        ("accuracy, f1", "accuracy, f1_marco", ("line 5", "Did you mean 'f1_macro'")),
        ("accuracy, f1", "accuracy, accuracy", ("line 5", "key metrics.1", "is given twice")),
        (
            "'yes']",
            "'yes', 'maybe']",
            ("line 5", "'f1' does not apply", "3 classes; choose from accuracy, balanced_accuracy, f1_macro"),
        ),
        ("accuracy, f1]", "f1]\nsplits: {test: train}", ("line 6", "another split")),
        ("accuracy, f1]", "f1]\nsplits: {test: a/b}", ("line 6", "'a/b'")),
        ("accuracy, f1]", "f1]\nsplits: {tset: a}", ("line 6", "tset", "Did you mean 'test'")),
        ("accuracy, f1]", "f1", ("not valid YAML",)),
    ],
)
def test_mistakes_are_named_with_their_line(old: str, new: str, words: tuple[str, ...], tmp_path: Path) -> None:
    path = task_file(tmp_path, GOOD.replace(old, new))
    with pytest.raises(UserError) as caught:
        load_user_task(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    for word in words:
        assert word in message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_user_task(tmp_path / "none.yaml")
