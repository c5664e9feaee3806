"""Protocols: the paper's sizes, splits that share nothing, subsets that depend on content alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tasks.task_files import pairs, single, write_file

from harness.errors import UserError
from harness.tasks.protocol import Protocol
from harness.tasks.protocols import PROTOCOLS, dev_size
from harness.tasks.rows import Rows
from harness.tasks.sources import TextSource, open_source
from harness.tasks.task import TASKS, Task

FEW, FULL, GLUE_DEV = (PROTOCOLS[name] for name in ("cmlm_few_shot", "cmlm_full_size", "glue_dev"))
SST2 = TASKS["sst2"]


def folder_of(
    place: Path, train: list[dict[str, Any]], validation: list[dict[str, Any]], task: str = "sst2"
) -> TextSource:
    write_file(place / f"{task}/train.jsonl", train)
    write_file(place / f"{task}/validation.jsonl", validation)
    return open_source(place)


def sizes(protocol: Protocol, task: str, source: TextSource) -> tuple[int, dict[str, int], bool]:
    sets = protocol.evaluation_sets(TASKS[task], source)
    return len(sets.dev), {name: len(rows) for name, rows in sets.tests.items()}, sets.comparable


def keys(rows: Rows) -> set[tuple[str, ...]]:
    return set(rows.texts)


@pytest.mark.parametrize(
    ("task", "dev", "test"),
    [("cola", 500, 543), ("sst2", 500, 372), ("qnli", 500, 4963), ("rte", 200, 77)],
)
def test_the_papers_sizes_on_the_official_files(task: str, dev: int, test: int, glue: TextSource) -> None:
    assert sizes(FEW, task, glue) == (dev, {"test": test}, True)
    assert FEW.evaluation_sets(TASKS[task], glue).note == ""
    full = FULL.evaluation_sets(TASKS[task], glue)
    assert full.dev.digest == FEW.evaluation_sets(TASKS[task], glue).dev.digest
    whole = len(FULL.training_set(TASKS[task], glue, 0, 0)) == dict(TASKS[task].official)["train"]
    assert full.comparable is whole


def test_samples_of_the_official_files_are_not_comparable(glue: TextSource) -> None:
    assert sizes(FEW, "qqp", glue) == (500, {"test": 2000}, False)
    assert sizes(FEW, "mnli", glue) == (500, {"matched": 9090, "mismatched": 499}, False)
    assert "validation has 7,598 of 40,430 rows" in FEW.evaluation_sets(TASKS["qqp"], glue).note
    assert "train has 12,096 of 104,743" in FULL.evaluation_sets(TASKS["qnli"], glue).note
    assert not FEW.evaluation_sets(TASKS["stsb"], glue).comparable


def test_whole_mnli_and_qqp_have_the_papers_sizes(tmp_path: Path) -> None:
    columns = TASKS["mnli"].columns
    for split, rows in (("validation_matched", 9815), ("validation_mismatched", 9832)):
        write_file(tmp_path / f"mnli/{split}.parquet", pairs(rows, *columns, classes=3))
    write_file(tmp_path / "qqp/validation.parquet", pairs(40430, *TASKS["qqp"].columns))
    source = open_source(tmp_path)
    assert sizes(FEW, "mnli", source) == (500, {"matched": 9315, "mismatched": 9332}, True)
    assert sizes(FEW, "qqp", source) == (500, {"test": 2000}, True)


def test_mrpc_is_not_comparable_because_the_paper_contradicts_itself(glue: TextSource) -> None:
    for protocol in (FEW, FULL):
        sets = protocol.evaluation_sets(TASKS["mrpc"], glue)
        assert (len(sets.dev), len(sets.tests["test"]), sets.comparable) == (500, 1225, False)
        assert "says that it splits the development set" in sets.note


def test_mrpc_without_the_msr_test_file_says_so(tmp_path: Path) -> None:
    write_file(tmp_path / "mrpc/validation.parquet", pairs(408, "sentence1", "sentence2"))
    source = open_source(tmp_path)
    assert sizes(FEW, "mrpc", source) == (200, {"test": 208}, False)
    assert "is split 200/208" in FEW.evaluation_sets(TASKS["mrpc"], source).note


def test_dev_and_test_are_all_of_the_source_rows(tmp_path: Path) -> None:
    rows = single(800) + single(40)  # 40 rows stand twice
    source = folder_of(tmp_path, single(5), rows)
    sets = FEW.evaluation_sets(SST2, source)
    both = Rows(sets.dev.texts + sets.tests["test"].texts, np.r_[sets.dev.gold, sets.tests["test"].gold])
    assert both.digest == source.load(SST2, "validation").digest
    assert len(sets.dev) == 500
    assert not keys(sets.dev) & keys(sets.tests["test"])


@pytest.mark.parametrize(
    ("rows", "dev"), [(2, 1), (3, 2), (100, 72), (269, 193), (270, 200), (277, 200), (408, 200), (699, 200), (700, 500)]
)
def test_small_development_sets(rows: int, dev: int, tmp_path: Path) -> None:
    assert dev_size(rows) == dev
    source = folder_of(tmp_path, single(5), single(rows))
    assert sizes(FEW, "sst2", source) == (dev, {"test": rows - dev}, False)


@pytest.mark.parametrize("rows", [single(1), single(1) * 10])
def test_what_cannot_be_split_is_refused(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^task sst2: .*validation.*\.$"):
        FEW.evaluation_sets(SST2, folder_of(tmp_path, single(5), rows))


def test_a_test_split_of_ones_own_is_the_test_set(tmp_path: Path) -> None:
    task = Task("mine", "Mine", ("sentence",), ("a", "b"), ("accuracy",), tests=(("test", "held"),), own=True)
    for split, rows in (("train", single(9)), ("validation", single(30)), ("held", single(12, start=25))):
        write_file(tmp_path / f"mine/{split}.csv", rows)
    source = open_source(tmp_path)
    sets = FEW.evaluation_sets(task, source)
    assert sets.dev.digest == source.load(task, "validation").digest
    assert sets.tests["test"].digest == source.load(task, "held").digest
    assert "5 test rows have a text of dev" in sets.note
    assert not sets.comparable


FROZEN = {
    "sst2": (
        "4c9baa043b79ddb1de58e52f4f335e7b",
        "71f540e83a443819acc13d8cc1874884",
        "4c964948135201008198b1a42d429a53",
    ),
    "mrpc": (
        "324d776f7ca5882d28679446121dfbc3",
        "db84ba254ec8f53aaa2e715a1e3bfce0",
        "f6b6594b8f7d99dbb4b5778aef134ac9",
    ),
    "mine": (
        "32dd1b5178ee905b6d35e478c624e243",
        "779a038e7d415e054090bb5ac90a0708",
        "a9f600c60a20244bdfe228a03b650072",
    ),
}
"""Training subset, dev and test of the first release: keys hash these digests, so none may ever move."""


def test_rows_of_a_folder_like_glue_are_those_of_the_first_release(tmp_path: Path) -> None:
    """GLUE's test files have hidden labels and are not read, but for MRPC's; a user's task without a test file has none."""
    for split, rows in (("train", single(90)), ("validation", single(320, start=90))):
        write_file(tmp_path / f"sst2/{split}.parquet", rows)
    write_file(tmp_path / "sst2/test.parquet", [{**row, "label": -1} for row in single(50, start=500)])
    for split, count in (("train", 60), ("validation", 40), ("test", 710)):
        write_file(tmp_path / f"mrpc/{split}.parquet", pairs(count, "sentence1", "sentence2"))
    for split, rows in (("train", single(30)), ("validation", single(50, start=30))):
        write_file(tmp_path / f"mine/{split}.parquet", rows)
    source = open_source(tmp_path)
    for task in (SST2, TASKS["mrpc"], OWN):
        sets = FEW.evaluation_sets(task, source)
        drawn = FEW.training_set(task, source, 20, 1)
        assert (drawn.digest, sets.dev.digest, sets.tests["test"].digest) == FROZEN[task.name]


OWN = Task("mine", "Mine", ("sentence",), ("a", "b"), ("accuracy",), own=True)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(("rows", "dev"), [(30, 30), (500, 500), (640, 500)])
def test_a_users_test_file_is_the_test_set(ending: str, rows: int, dev: int, tmp_path: Path) -> None:
    """And then nothing of it, and nothing but validation, is dev."""
    for split, count, start in (("train", 9, 0), ("validation", rows, 10), ("test", 12, 2000)):
        write_file(tmp_path / f"mine/{split}.{ending}", single(count, start=start))
    source = open_source(tmp_path)
    sets = FEW.evaluation_sets(OWN, source)
    assert sets.tests["test"].digest == source.load(OWN, "test").digest
    assert len(sets.dev) == dev
    assert not Counter(sets.dev.texts) - Counter(source.load(OWN, "validation").texts)
    of_dev = f"all {rows} rows" if dev == rows else f"{dev} of the {rows} rows"
    assert sets.origin == f"dev {of_dev} of validation; test all 12 rows of test"


def test_a_test_file_that_the_task_takes_for_another_split_is_not_its_test_set(tmp_path: Path) -> None:
    for split, rows in (("train", single(9)), ("test", single(40, start=9)), ("judge", single(7, start=90))):
        write_file(tmp_path / f"mine/{split}.csv", rows)
    cut = replace(OWN, dev="test", tests=(("test", "test"),))
    sets = FEW.evaluation_sets(cut, open_source(tmp_path))
    assert sets.origin == "dev 28 and test 12 of the 40 rows of test"
    named = replace(OWN, dev="test", tests=(("test", "judge"),))
    assert (
        FEW.evaluation_sets(named, open_source(tmp_path)).origin == "dev all 40 rows of test; test all 7 rows of judge"
    )


def test_a_test_split_that_a_task_names_has_to_be_there(tmp_path: Path) -> None:
    for split, rows in (("train", single(9)), ("validation", single(40, start=9)), ("test", single(40, start=90))):
        write_file(tmp_path / f"mine/{split}.csv", rows)
    named = replace(OWN, tests=(("test", "judge"),))
    with pytest.raises(
        UserError, match=r"there is no judge\.parquet, .* \(there: test.csv, train.csv, validation.csv\)"
    ):
        FEW.evaluation_sets(named, open_source(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("test.tsv", "sentence\tlabel\na\t0\n", "test.tsv: is not read; write the split as test.csv"),
        ("Test.csv", "sentence,label\na,0\n", "Test.csv: is not read"),
        ("test.json", "[]", "test.json: is not read"),
        ("test.csv.gz", "", "test.csv.gz: is not read"),
        ("test-00001-of-00002.parquet", "", "test-00001-of-00002.parquet: is not read"),
        ("test", "", "test: is not read"),
        ("test.csv", "sentence\na\n", "no column 'label'.* or rename the file: by its name it is the test set"),
        ("test.csv", "sentence,label\na,-1\n", "label -1 means .* or rename the file: by its name it is the test set"),
    ],
)
def test_a_users_test_file_is_never_ignored_in_silence(name: str, content: str, words: str, tmp_path: Path) -> None:
    for split, rows in (("train", single(9)), ("validation", single(40, start=9))):
        write_file(tmp_path / f"mine/{split}.csv", rows)
    (tmp_path / "mine" / name).write_text(content)
    with pytest.raises(UserError, match=words):
        FEW.evaluation_sets(OWN, open_source(tmp_path))
    (tmp_path / "mine" / name).rename(tmp_path / "mine/put_away.csv")
    assert FEW.evaluation_sets(OWN, open_source(tmp_path)).origin == "dev 28 and test 12 of the 40 rows of validation"


def test_the_origin_of_every_set_is_said(tmp_path: Path) -> None:
    columns = TASKS["mnli"].columns
    for split, rows in (("validation_matched", 100), ("validation_mismatched", 50)):
        write_file(tmp_path / f"mnli/{split}.parquet", pairs(rows, *columns, classes=3))
    assert FEW.evaluation_sets(TASKS["mnli"], open_source(tmp_path)).origin == (
        "dev 72 and matched 28 of the 100 rows of validation_matched; mismatched 14 of the 50 rows of validation_mismatched"
    )


def test_subsets_overlap_as_chance_has_it(tmp_path: Path) -> None:
    """Across subsets and across sizes: the mean overlap of two draws of 100 of 1,000 rows is 10."""
    source = folder_of(tmp_path, single(1000), single(20))
    draws = [keys(FEW.training_set(SST2, source, 100, subset)) for subset in range(20)]
    overlaps = [len(a & b) for i, a in enumerate(draws) for b in draws[:i]]
    assert 9 < np.mean(overlaps) < 11
    small = [len(keys(FEW.training_set(SST2, source, 50, subset)) & draws[subset]) for subset in range(20)]
    assert 3.5 < np.mean(small) < 6.5
    assert len(set().union(*draws)) > 800


def test_task_and_protocol_have_subsets_of_their_own(tmp_path: Path) -> None:
    source = folder_of(tmp_path, single(500), single(20))
    folder_of(tmp_path, single(500), single(20), "cola")
    digests = {protocol.training_set(SST2, source, 50, 0).digest for protocol in (FEW, FULL)}
    digests.add(FEW.training_set(TASKS["cola"], source, 50, 0).digest)
    assert len(digests) == 3


def test_every_class_is_in_every_subset(tmp_path: Path) -> None:
    rows = [{"sentence": f"row {i}", "label": int(i < 6)} for i in range(300)]
    source = folder_of(tmp_path, rows, single(20))
    ordered = folder_of(tmp_path / "again", rows[::-1], single(20))
    for subset in range(20):
        drawn = FEW.training_set(SST2, source, 10, subset)
        assert set(drawn.gold.tolist()) == {0, 1}
        assert drawn.digest == FEW.training_set(SST2, ordered, 10, subset).digest


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    source = folder_of(tmp_path, single(30), single(20))
    for size, words in (
        (31, "31 training examples are requested and there are 30"),
        (1, "2 classes"),
        (-1, "counted from 0"),
    ):
        with pytest.raises(UserError, match=words) as caught:
            FEW.training_set(SST2, source, size, 0)
        assert str(caught.value).startswith("task sst2: ")
    with pytest.raises(UserError, match="counted from 0"):
        FEW.training_set(SST2, source, 5, -1)
    one = folder_of(tmp_path / "one", [{**row, "label": 0} for row in single(30)], single(20))
    with pytest.raises(UserError, match=r"no training example has the class 1 \(positive\)"):
        FEW.training_set(SST2, one, 5, 0)
    rare = folder_of(tmp_path / "rare", [{"sentence": str(i), "label": int(i == 0)} for i in range(30_000)], single(20))
    with pytest.raises(UserError, match=r"class 1 \(positive\) has 1 of 30,000"):
        FEW.training_set(SST2, rare, 2, 0)


def test_regression_subsets(tmp_path: Path) -> None:
    rows = [{"sentence1": "a", "sentence2": str(i), "label": 2.5} for i in range(40)]
    source = folder_of(tmp_path, rows, rows, "stsb")
    drawn = FEW.training_set(TASKS["stsb"], source, 20, 0)
    assert drawn.gold.dtype == np.float32
    assert len(drawn) == 20


# ------------------------------------------------------- the whole development set is dev and test


def test_the_development_set_is_dev_and_test(tmp_path: Path) -> None:
    write_file(tmp_path / "sst2/train.parquet", single(60))
    write_file(tmp_path / "sst2/validation.parquet", single(20, start=100))
    source, task = open_source(tmp_path), TASKS["sst2"]
    found = GLUE_DEV.evaluation_sets(task, source)
    assert found.dev.digest == found.tests["test"].digest == source.load(task, "validation").digest
    assert len(found.dev) == 20
    assert not found.comparable
    assert found.note == "validation has 20 of 872 rows; train has 60 of 67,349 rows"
    assert GLUE_DEV.training_set(task, source, 0, 0).digest == source.load(task, "train").digest
    drawn = GLUE_DEV.training_set(task, source, 10, 1)
    assert len(drawn) == 10
    assert set(drawn.texts) < set(source.load(task, "train").texts)
    with pytest.raises(UserError, match="give smaller --sizes"):
        GLUE_DEV.training_set(task, source, 61, 0)


def test_mnli_is_scored_on_both_of_its_sets(tmp_path: Path) -> None:
    for split, count in (("train", 60), ("validation_matched", 12), ("validation_mismatched", 15)):
        write_file(tmp_path / f"mnli/{split}.parquet", pairs(count, *TASKS["mnli"].columns, classes=3))
    found = GLUE_DEV.evaluation_sets(TASKS["mnli"], open_source(tmp_path))
    assert found.dev.digest == found.tests["matched"].digest
    assert {name: len(rows) for name, rows in found.tests.items()} == {"matched": 12, "mismatched": 15}


def test_mrpc_is_scored_on_its_development_set(tmp_path: Path) -> None:
    """Not on the labelled test file, which CMLM's protocol splits."""
    for split, count in (("train", 60), ("validation", 12), ("test", 30)):
        write_file(tmp_path / f"mrpc/{split}.parquet", pairs(count, *TASKS["mrpc"].columns))
    found = GLUE_DEV.evaluation_sets(TASKS["mrpc"], open_source(tmp_path))
    assert len(found.dev) == len(found.tests["test"]) == 12
