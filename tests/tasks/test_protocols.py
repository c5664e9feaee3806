"""The papers' protocols: their sizes, splits that share nothing, subsets and samplers that depend on content alone."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tasks.task_files import pairs, single, write_file

from harness.errors import UserError
from harness.tasks.protocol import SAMPLERS, Protocol, quotas
from harness.tasks.protocols import PROTOCOLS, dev_size
from harness.tasks.rows import Rows
from harness.tasks.sources import TextSource, open_source
from harness.tasks.task import TASKS, Splits, Task

FEW, FULL, GLUE_DEV = (PROTOCOLS[name] for name in ("cmlm_few_shot", "cmlm_full_size", "glue_dev"))
SCL, PER_CLASS, SCL_FULL = (PROTOCOLS[f"scl_{name}"] for name in ("few_shot", "per_class", "full_size"))
SST2, MNLI = TASKS["sst2"], TASKS["mnli"]
OWN = Task(name="mine", columns=("sentence",), classes=("a", "b"), metrics=("accuracy",))


def folder_of(place: Path, task: str = "sst2", ending: str = "jsonl", **splits: list[dict[str, Any]]) -> TextSource:
    for split, rows in splits.items():
        write_file(place / f"{task}/{split}.{ending}", rows)
    return open_source(place)


def sizes(protocol: Protocol, task: str, source: TextSource) -> tuple[int, dict[str, int], bool]:
    sets = protocol.evaluation_sets(TASKS[task], source)
    return len(sets.dev), {name: len(rows) for name, rows in sets.tests.items()}, not sets.note


def keys(rows: Rows) -> set[tuple[str, ...]]:
    return set(rows.texts)


# ----------------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("task", "dev", "test"), [("cola", 500, 543), ("sst2", 500, 372), ("qnli", 500, 4963), ("rte", 200, 77)]
)
def test_the_papers_sizes_on_the_official_files(task: str, dev: int, test: int, glue: TextSource) -> None:
    assert sizes(FEW, task, glue) == (dev, {"test": test}, True)
    assert FEW.evaluation_sets(TASKS[task], glue).note == ""
    full = FULL.evaluation_sets(TASKS[task], glue)
    assert full.dev.digest == FEW.evaluation_sets(TASKS[task], glue).dev.digest
    whole = len(FULL.training_set(TASKS[task], glue, 0, 0)) == TASKS[task].official["train"]
    assert bool(full.note) is not whole


def test_what_is_no_published_set_says_why(glue: TextSource) -> None:
    """Samples of the files, and MRPC, where the paper contradicts itself."""
    assert sizes(FEW, "qqp", glue) == (500, {"test": 2000}, False)
    assert sizes(FEW, "mnli", glue) == (500, {"matched": 9090, "mismatched": 499}, False)
    assert "validation has 7,598 of 40,430 rows" in FEW.evaluation_sets(TASKS["qqp"], glue).note
    assert "train has 12,096 of 104,743" in FULL.evaluation_sets(TASKS["qnli"], glue).note
    assert sizes(FULL, "mrpc", glue) == (500, {"test": 1225}, False)
    assert "says that it splits the development set" in FULL.evaluation_sets(TASKS["mrpc"], glue).note


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TextSource:
    """Files with as many rows as the published development sets."""
    place = tmp_path_factory.mktemp("glue")
    matched, mismatched = (pairs(count, *MNLI.columns, classes=3) for count in (9815, 9832))
    folder_of(place, "mnli", train=pairs(391, *MNLI.columns, classes=3), validation_matched=matched)
    folder_of(place, "mnli", validation_mismatched=mismatched)
    for task, count in (("qnli", 5463), ("mrpc", 408)):
        folder_of(place, task, validation=pairs(count, *TASKS[task].columns))
    rows = [{"sentence": f"validation {i}", "label": int(i % 4 > 0)} for i in range(872)]
    return folder_of(place, train=single(20), validation=rows)


@pytest.mark.parametrize(
    ("protocol", "task", "dev", "tests"),
    [
        (FEW, "mnli", 500, {"matched": 9315, "mismatched": 9332}),
        (SCL, "sst2", 436, {"test": 436}),
        (SCL, "qnli", 500, {"test": 2731}),
        (SCL, "mnli", 500, {"matched": 4907, "mismatched": 4916}),
    ],
)
def test_whole_files_give_the_papers_sizes(
    protocol: Protocol, task: str, dev: int, tests: dict[str, int], whole: TextSource
) -> None:
    """S8: half of 872, 5,463 and 9,815, and 500 or what is left."""
    assert sizes(protocol, task, whole) == (dev, tests, True)


def test_what_the_files_lack_is_noted(whole: TextSource) -> None:
    assert sizes(FEW, "mrpc", whole) == (200, {"test": 208}, False)
    assert "is split 200/208" in FEW.evaluation_sets(TASKS["mrpc"], whole).note
    assert "train has 20 of 67,349 rows" in SCL_FULL.evaluation_sets(SST2, whole).note
    drawn = np.bincount(SCL.training_set(MNLI, whole, 20, 0).gold, minlength=3)
    assert sorted(drawn.tolist()) == [6, 7, 7]


def test_small_development_sets(tmp_path: Path) -> None:
    found = {2: 1, 3: 2, 100: 72, 269: 193, 270: 200, 277: 200, 408: 200, 699: 200, 700: 500}
    assert {rows: dev_size(rows) for rows in found} == found
    for rows in (2, 100):
        source = folder_of(tmp_path / str(rows), train=single(5), validation=single(rows))
        assert sizes(FEW, "sst2", source) == (found[rows], {"test": rows - found[rows]}, False)
    for nothing in (single(1), single(1) * 10):
        with pytest.raises(UserError, match=r"^task sst2: .*validation.*\.$"):
            FEW.evaluation_sets(SST2, folder_of(tmp_path / "none", train=single(5), validation=nothing))


# ----------------------------------------------------------------------------------------------------------- splits


def test_dev_and_test_are_all_of_the_source_rows(tmp_path: Path) -> None:
    source = folder_of(tmp_path, train=single(5), validation=single(800) + single(40))  # 40 rows stand twice
    sets = FEW.evaluation_sets(SST2, source)
    both = Rows(sets.dev.texts + sets.tests["test"].texts, np.r_[sets.dev.gold, sets.tests["test"].gold])
    assert both.digest == source.load(SST2, "validation").digest
    assert len(sets.dev) == 500
    assert not keys(sets.dev) & keys(sets.tests["test"])


@pytest.mark.parametrize(("validation", "repeated"), [(60, 0), (61, 7), (2000, 40)])
def test_dev_and_test_hold_the_classes_shares(tmp_path: Path, validation: int, repeated: int) -> None:
    """Three positive rows of four; `repeated` validation texts stand there twice, once with either label."""
    rows = [{"sentence": f"validation {i}", "label": int(i % 4 > 0)} for i in range(validation - repeated)]
    rows += [{"sentence": f"validation {i}", "label": int(i % 4 == 0)} for i in range(repeated)]
    source = folder_of(tmp_path, train=single(40), validation=rows)
    sets = SCL.evaluation_sets(SST2, source)
    dev, test = sets.dev, sets.tests["test"]
    assert len(test) == validation // 2
    assert not keys(dev) & keys(test)
    assert validation - len(test) - repeated <= len(dev) <= 500 or len(dev) == 500
    share = source.load(SST2, "validation").gold.mean()
    assert abs(test.gold.sum() - share * len(test)) < 1
    assert abs(dev.gold.sum() - share * len(dev)) < 1 + repeated
    for other in (PER_CLASS, SCL_FULL):  # the sets of one family
        found = other.evaluation_sets(SST2, source)
        assert (found.dev.digest, found.tests["test"].digest) == (dev.digest, test.digest)


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
    hidden = [{**row, "label": -1} for row in single(50, start=500)]
    folder_of(tmp_path, "sst2", "parquet", train=single(90), validation=single(320, start=90), test=hidden)
    counts = {"train": 60, "validation": 40, "test": 710}
    mrpc = {split: pairs(count, "sentence1", "sentence2") for split, count in counts.items()}
    folder_of(tmp_path, "mrpc", "parquet", **mrpc)
    source = folder_of(tmp_path, "mine", "parquet", train=single(30), validation=single(50, start=30))
    for task in (SST2, TASKS["mrpc"], OWN):
        sets = FEW.evaluation_sets(task, source)
        drawn = FEW.training_set(task, source, 20, 1)
        assert (drawn.digest, sets.dev.digest, sets.tests["test"].digest) == FROZEN[task.name]


@pytest.mark.parametrize(("rows", "dev"), [(30, 30), (500, 500), (640, 500)])
def test_a_users_test_file_is_the_test_set(rows: int, dev: int, tmp_path: Path) -> None:
    """And then nothing of it, and nothing but validation, is dev."""
    validation, test = single(rows, start=10), single(12, start=2000)
    source = folder_of(tmp_path, "mine", "csv", train=single(9), validation=validation, test=test)
    sets = FEW.evaluation_sets(OWN, source)
    assert sets.tests["test"].digest == source.load(OWN, "test").digest
    assert len(sets.dev) == dev
    assert not Counter(sets.dev.texts) - Counter(source.load(OWN, "validation").texts)
    of_dev = f"all {rows} rows" if dev == rows else f"{dev} of the {rows} rows"
    assert sets.origin == f"dev {of_dev} of validation; test all 12 rows of test"


def test_the_test_split_that_a_task_names_is_its_test_set(tmp_path: Path) -> None:
    """Not a file called test, which may be its development set."""
    files = {"train": single(9), "validation": single(30), "test": single(40, start=9), "judge": single(12, start=25)}
    source = folder_of(tmp_path, "mine", "csv", **files)
    judged, tested = Splits(test="judge"), Splits(validation="test", test="test")
    named, cut = (OWN.model_copy(update={"splits": splits}) for splits in (judged, tested))
    sets = FEW.evaluation_sets(named, source)
    assert sets.dev.digest == source.load(named, "validation").digest
    assert sets.tests["test"].digest == source.load(named, "judge").digest
    assert "5 test rows have a text of dev" in sets.note
    assert FEW.evaluation_sets(cut, source).origin == "dev 28 and test 12 of the 40 rows of test"
    origin = FEW.evaluation_sets(
        OWN.model_copy(update={"splits": Splits(validation="test", test="judge")}), source
    ).origin
    assert origin == "dev all 40 rows of test; test all 12 rows of judge"
    (tmp_path / "mine/judge.csv").unlink()
    with pytest.raises(UserError, match=r"no judge\.parquet, .* \(there: test.csv, train.csv, validation.csv\)"):
        FEW.evaluation_sets(named, open_source(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("test.tsv", "sentence\tlabel\na\t0\n", "test.tsv: is not read; write the split as test.csv"),
        ("Test.csv", "sentence,label\na,0\n", "Test.csv: is not read"),
        ("test-00001-of-00002.parquet", "", "test-00001-of-00002.parquet: is not read"),
        ("test.csv", "sentence\na\n", "test.csv.* no column 'label'"),
        ("test.csv", "sentence,label\na,-1\n", "test.csv.* label -1 means"),
    ],
)
def test_a_users_test_file_is_never_ignored_in_silence(name: str, content: str, words: str, tmp_path: Path) -> None:
    folder_of(tmp_path, "mine", "csv", train=single(9), validation=single(40, start=9))
    (tmp_path / "mine" / name).write_text(content)
    with pytest.raises(UserError, match=words):
        FEW.evaluation_sets(OWN, open_source(tmp_path))
    (tmp_path / "mine" / name).rename(tmp_path / "mine/put_away.csv")
    assert FEW.evaluation_sets(OWN, open_source(tmp_path)).origin == "dev 28 and test 12 of the 40 rows of validation"


def test_glue_dev_scores_the_development_sets(tmp_path: Path) -> None:
    """All of both of MNLI's, and of MRPC not the labelled test file, which CMLM's protocol splits."""
    source = folder_of(tmp_path, train=single(60), validation=single(20, start=100))
    found = GLUE_DEV.evaluation_sets(SST2, source)
    assert found.dev.digest == found.tests["test"].digest == source.load(SST2, "validation").digest
    assert len(found.dev) == 20
    assert found.note == "validation has 20 of 872 rows; train has 60 of 67,349 rows"
    assert GLUE_DEV.training_set(SST2, source, 0, 0).digest == source.load(SST2, "train").digest
    assert keys(GLUE_DEV.training_set(SST2, source, 10, 1)) < keys(source.load(SST2, "train"))
    counts = {"train": 60, "validation_matched": 12, "validation_mismatched": 15}
    folder_of(tmp_path, "mnli", **{name: pairs(n, *MNLI.columns, classes=3) for name, n in counts.items()})
    assert sizes(GLUE_DEV, "mnli", source) == (12, {"matched": 12, "mismatched": 15}, False)
    counts = {"train": 60, "validation": 12, "test": 30}
    folder_of(tmp_path, "mrpc", **{name: pairs(n, *TASKS["mrpc"].columns) for name, n in counts.items()})
    assert sizes(GLUE_DEV, "mrpc", source) == (12, {"test": 12}, False)
    assert FEW.evaluation_sets(MNLI, source).origin == (
        "dev 8 and matched 4 of the 12 rows of validation_matched; mismatched 5 of the 15 rows of validation_mismatched"
    )


# ------------------------------------------------------------------------------------------------- subsets and samplers


THREE = st.lists(st.integers(1, 60), min_size=3, max_size=3)


def rows_of(counts: list[int], order: int = 0) -> Rows:
    """Rows with `counts` of each class, in an order drawn from `order`; of every tenth text there are two."""
    codes = [code for code, count in enumerate(counts) for _ in range(count)]
    texts = [(f"text {i - i % 10 // 9}", "x") for i in range(len(codes))]
    both = list(zip(texts, codes, strict=True))
    random.Random(order).shuffle(both)
    return Rows(tuple(text for text, _ in both), np.array([code for _, code in both], dtype=np.int64))


@settings(max_examples=60, deadline=None)
@given(counts=THREE, share=st.floats(0, 1))
def test_quotas_are_the_shares_to_within_one_row(counts: list[int], share: float) -> None:
    size = int(share * sum(counts))
    found = quotas(counts, size)
    assert sum(found) == size
    for have, count in zip(found, counts, strict=True):
        assert abs(have - count * size / sum(counts)) < 1
        assert 0 <= have <= count


def test_what_a_class_lacks_others_give() -> None:
    assert quotas([10, 10, 10], 9, [1, 10, 10]) == [1, 4, 4]
    assert quotas([10, 10], 8, [1, 7]) == [1, 7]
    assert quotas([1309, 1309, 1310], 20) == [7, 6, 7]  # the largest remainder, then the lower code


@settings(max_examples=30, deadline=None)
@given(counts=THREE, share=st.floats(0.05, 1), orders=st.tuples(st.integers(0, 9), st.integers(0, 9)))
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_draws_are_rows_of_the_set_and_know_no_order(
    sampler: str, counts: list[int], share: float, orders: tuple[int, int]
) -> None:
    size = max(3, int(share * sum(counts)))
    if sampler == "per_class":
        size = 3 * max(1, int(share * min(counts)))
    drawn: list[Rows | str] = []
    for order in orders:
        try:
            drawn.append(SAMPLERS[sampler](MNLI, rows_of(counts, order), size, ["scope", 0]))
        except UserError as error:
            drawn.append(str(error))
    first, second = drawn
    if isinstance(first, str) or isinstance(second, str):
        assert first == second
        return
    assert first.digest == second.digest
    assert len(first) == size == len(set(first.ids.tolist()))
    every = rows_of(counts)
    assert Counter(zip(first.texts, first.gold, strict=True)) <= Counter(zip(every.texts, every.gold, strict=True))
    have = np.bincount(first.gold, minlength=3)
    assert have.min() > 0
    if sampler == "stratified":
        assert all(abs(have - np.array(counts) * size / sum(counts)) < 1)
    if sampler == "per_class":
        assert have.tolist() == [size // 3] * 3


@pytest.mark.parametrize(
    ("sampler", "counts", "size", "says"),
    [
        (
            "uniform",
            [1, 9_999, 9_999],
            3,
            r"class 0 \(entailment\) has 1 of 19,999 training examples, and is in none of 1,000",
        ),
        ("uniform", [5, 5, 5], 16, "16 training examples are requested and there are 15; give smaller --sizes"),
        ("stratified", [1, 200, 200], 20, "its share of 20 is none"),
        ("stratified", [5, 5, 5], 2, "cannot hold its 3 classes"),
        ("stratified", [5, 0, 5], 6, "no training example has the class 1"),
        ("per_class", [50, 50, 50], 20, "give a multiple of 3"),
        ("per_class", [4, 50, 50], 15, r"class 0 \(entailment\) has 4 of 104 training examples, and 5 of each class"),
    ],
)
def test_what_a_sampler_cannot_draw_says_why(sampler: str, counts: list[int], size: int, says: str) -> None:
    with pytest.raises(UserError, match=says):
        SAMPLERS[sampler](MNLI, rows_of(counts), size, ["scope"])


def test_a_regression_is_stratified_as_one_class_and_has_no_classes_to_count() -> None:
    rows = Rows(tuple((f"text {i}", "x") for i in range(30)), np.linspace(0, 5, 30).astype(np.float32))
    for sampler in ("uniform", "stratified"):
        drawn = SAMPLERS[sampler](TASKS["stsb"], rows, 7, ["scope"])
        assert (len(drawn), drawn.gold.dtype) == (7, np.float32)
    with pytest.raises(UserError, match="regression has no classes"):
        SAMPLERS["per_class"](TASKS["stsb"], rows, 8, ["scope"])
