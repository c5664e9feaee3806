"""Samplers and stratified splits: shares to within one row, nothing shared, the same from files in any order."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tasks.task_files import pairs, write_file

from harness.errors import UserError
from harness.tasks.protocol import SAMPLERS, quotas
from harness.tasks.protocols import PROTOCOLS
from harness.tasks.rows import Rows
from harness.tasks.sources import TextSource, open_source
from harness.tasks.task import TASKS

FEW, PER_CLASS, FULL = (PROTOCOLS[f"scl_{name}"] for name in ("few_shot", "per_class", "full_size"))
SST2, MNLI = TASKS["sst2"], TASKS["mnli"]
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
    drawn = []
    for order in orders:
        try:
            drawn.append(SAMPLERS[sampler](MNLI, rows_of(counts, order), size, ["scope", 0]))
        except UserError as error:
            drawn.append(str(error))
    first, second = drawn
    if isinstance(first, str):
        assert first == second
        return
    assert isinstance(second, Rows)
    assert first.digest == second.digest
    assert len(first) == size == len(set(first.ids.tolist()))
    assert Counter(zip(first.texts, first.gold.tolist(), strict=True)) <= Counter(
        zip(rows_of(counts).texts, rows_of(counts).gold.tolist(), strict=True)
    )
    have = np.bincount(first.gold, minlength=3)
    assert have.min() > 0
    if sampler == "stratified":
        assert all(abs(have - np.array(counts) * size / sum(counts)) < 1)
    if sampler == "per_class":
        assert have.tolist() == [size // 3] * 3


@pytest.mark.parametrize(
    ("sampler", "counts", "size", "says"),
    [
        ("stratified", [1, 200, 200], 20, "its share of 20 is none"),
        ("stratified", [5, 5, 5], 16, "16 training examples are requested and there are 15; give smaller --sizes"),
        ("stratified", [5, 5, 5], 2, "cannot hold its 3 classes"),
        ("stratified", [5, 0, 5], 6, "no training example has the class 1"),
        ("per_class", [50, 50, 50], 20, "give a multiple of 3"),
        ("per_class", [4, 50, 50], 15, "class 0 (entailment) has 4 of 104 training examples, and 5 of each class"),
    ],
)
def test_what_cannot_be_drawn_says_why(sampler: str, counts: list[int], size: int, says: str) -> None:
    with pytest.raises(UserError) as error:
        SAMPLERS[sampler](MNLI, rows_of(counts), size, ["scope"])
    assert says in str(error.value)


def test_a_regression_is_stratified_as_one_class_and_has_no_classes_to_count() -> None:
    rows = Rows(tuple((f"text {i}", "x") for i in range(30)), np.linspace(0, 5, 30).astype(np.float32))
    assert len(SAMPLERS["stratified"](TASKS["stsb"], rows, 7, ["scope"])) == 7
    with pytest.raises(UserError, match="regression has no classes"):
        SAMPLERS["per_class"](TASKS["stsb"], rows, 8, ["scope"])


# ------------------------------------------------------------------------------------------------------------- splits


def sst2(place: Path, train: int, validation: int, seed: int, repeated: int = 0) -> TextSource:
    """Files of SST-2 with three positive rows of four, in an order drawn from `seed`; `repeated` validation texts stand there twice,
    once with either label."""
    rows: dict[str, list[dict[str, Any]]] = {
        name: [{"sentence": f"{name} {i}", "label": int(i % 4 > 0)} for i in range(count)]
        for name, count in (("train", train), ("validation", validation - repeated))
    }
    rows["validation"] += [{"sentence": f"validation {i}", "label": int(i % 4 == 0)} for i in range(repeated)]
    for name, found in rows.items():
        random.Random(seed).shuffle(found)
        write_file(place / f"sst2/{name}.jsonl", found)
    return open_source(place)


@pytest.mark.parametrize(("validation", "repeated"), [(60, 0), (61, 7), (2000, 40)])
def test_dev_and_test_share_nothing_and_hold_the_classes_shares(tmp_path: Path, validation: int, repeated: int) -> None:
    sources = [sst2(tmp_path / str(seed), 40, validation, seed, repeated) for seed in (1, 2)]
    sets = FEW.evaluation_sets(SST2, sources[0])
    again = FEW.evaluation_sets(SST2, sources[1])
    assert (sets.dev.digest, sets.tests["test"].digest) == (again.dev.digest, again.tests["test"].digest)
    dev, test = sets.dev, sets.tests["test"]
    assert len(test) == validation // 2
    assert not set(dev.texts) & set(test.texts)
    assert validation - len(test) - repeated <= len(dev) <= 500 or len(dev) == 500
    share = sources[0].load(SST2, "validation").gold.mean()
    assert abs(test.gold.sum() - share * len(test)) < 1
    assert abs(dev.gold.sum() - share * len(dev)) < 1 + repeated
    for other in (PER_CLASS, FULL):  # the sets of one family
        found = other.evaluation_sets(SST2, sources[0])
        assert (found.dev.digest, found.tests["test"].digest) == (dev.digest, test.digest)


def test_training_samples_differ_and_hold_the_classes_shares(tmp_path: Path) -> None:
    sources = [sst2(tmp_path / str(seed), 400, 20, seed) for seed in (1, 2)]
    samples = [FEW.training_set(SST2, sources[0], 20, subset) for subset in range(10)]
    assert [FEW.training_set(SST2, sources[1], 20, k).digest for k in range(10)] == [each.digest for each in samples]
    assert len({each.digest for each in samples}) == 10
    assert {int(each.gold.sum()) for each in samples} == {15}
    assert {int(PER_CLASS.training_set(SST2, sources[0], 20, k).gold.sum()) for k in range(3)} == {10}
    assert len(FULL.training_set(SST2, sources[0], 0, 0)) == 400


def test_the_papers_sizes(tmp_path: Path) -> None:
    """S8: half of 872, 1,043, 5,463 and 9,815, and 500 or what is left; three classes as 7, 7 and 6 of 20."""
    sources = sst2(tmp_path, 20, 872, 1)
    sets = FEW.evaluation_sets(SST2, sources)
    assert (len(sets.dev), len(sets.tests["test"]), sets.comparable) == (436, 436, True)
    assert "train has 20 of 67,349 rows" in FULL.evaluation_sets(SST2, sources).note
    write_file(tmp_path / "qnli/validation.parquet", pairs(5463, *TASKS["qnli"].columns))
    sets = FEW.evaluation_sets(TASKS["qnli"], sources)
    assert (len(sets.dev), len(sets.tests["test"]), sets.comparable) == (500, 2731, True)
    for split, count in (("train", 391), ("validation_matched", 9815), ("validation_mismatched", 9832)):
        write_file(tmp_path / f"mnli/{split}.parquet", pairs(count, *MNLI.columns, classes=3))
    sets = FEW.evaluation_sets(MNLI, sources)
    sizes = {name: len(rows) for name, rows in sets.tests.items()}
    assert (len(sets.dev), sizes) == (500, {"matched": 4907, "mismatched": 4916})
    assert sorted(np.bincount(FEW.training_set(MNLI, sources, 20, 0).gold, minlength=3).tolist()) == [6, 7, 7]


# ------------------------------------------------------------------------------------------------------------- texts
