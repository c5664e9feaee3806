"""The K-shot protocol: K of each class in training and in dev, nothing shared, the same for every method, another draw for each subset."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tasks.task_files import cut, forms, pairs, skewed, write_file

from harness.errors import UserError
from harness.tasks.protocols import PROTOCOLS
from harness.tasks.sources import open_source
from harness.tasks.task import TASKS, load_user_task

K_SHOT = PROTOCOLS["k_shot"]
SST2, MNLI, STSB = (TASKS[name] for name in ("sst2", "mnli", "stsb"))


def test_k_of_each_class_in_training_and_dev(tmp_path: Path) -> None:
    source = skewed(tmp_path, 1)
    known = source.load(SST2, "train")
    for size, subset in product((1, 8, 16), (0, 3, 7)):
        train, dev, _ = cut(K_SHOT, SST2, source, size, subset)
        for rows in (train, dev):
            assert np.bincount(rows.gold).tolist() == [size, size]
            assert len(forms(rows)) == 2 * size
        assert set(zip(train.texts, train.gold, strict=True)) <= set(zip(known.texts, known.gold, strict=True))
        smaller = cut(K_SHOT, SST2, source, max(1, size // 2), subset)[0]
        assert set(smaller.texts) <= set(train.texts), "a larger K holds the training rows of a smaller one"


def test_mnli_has_three_classes_and_two_test_sets(tmp_path: Path) -> None:
    for split, count in (("train", 300), ("validation_matched", 30), ("validation_mismatched", 31)):
        rows = [{**row, "hypothesis": f"{split} {row['hypothesis']}"} for row in pairs(count, *MNLI.columns, classes=3)]
        write_file(tmp_path / f"mnli/{split}.parquet", rows)
    source = open_source(tmp_path)
    train, dev, _ = cut(K_SHOT, MNLI, source, 16, 0)
    assert [np.bincount(rows.gold).tolist() for rows in (train, dev)] == [[16] * 3] * 2
    tests = K_SHOT.evaluation_sets(MNLI, source).tests
    assert {name: len(rows) for name, rows in tests.items()} == {"matched": 30, "mismatched": 31}
    assert K_SHOT.num_rows(MNLI, 16) == 48


def test_a_regression_has_as_many_scores_below_the_middle_as_from_it_on(tmp_path: Path) -> None:
    scores = [0.0, 2.4, 2.5, 2.6, 5.0]
    for split, count in (("train", 200), ("validation", 20)):
        rows = [
            {**row, "sentence2": f"{split} {i}", "label": scores[i % 5]}
            for i, row in enumerate(pairs(count, *STSB.columns))
        ]
        write_file(tmp_path / f"stsb/{split}.parquet", rows)
    source = open_source(tmp_path)
    for rows in cut(K_SHOT, STSB, source, 16, 1)[:2]:
        assert np.bincount(rows.gold >= 2.5).tolist() == [16, 16]
    assert K_SHOT.num_rows(STSB, 16) == 32
    with pytest.raises(UserError, match=r"scores below 2\.5 has 80 labelled texts .* give sizes up to 40"):
        cut(K_SHOT, STSB, source, 41, 0)


def test_sizes_that_cannot_be_say_so(tmp_path: Path) -> None:
    source = skewed(tmp_path, 1, train=40)
    for wrong in (0, -1):
        with pytest.raises(UserError, match="no full training set; give --sizes from 1 on"):
            cut(K_SHOT, SST2, source, wrong, 0)
    with pytest.raises(
        UserError, match=r"negative has \d+ labelled texts beside test, and 16 training and as many dev"
    ):
        cut(K_SHOT, SST2, source, 16, 0)
    (size,) = K_SHOT.sizes(SST2, source)
    assert 1 <= size < 16
    cut(K_SHOT, SST2, source, size, 0)
    with pytest.raises(UserError, match=f"give sizes up to {size}"):
        cut(K_SHOT, SST2, source, size + 1, 0)
    assert K_SHOT.sizes(SST2, skewed(tmp_path / "more", 1)) == (16,)


def test_a_run_has_the_seed_of_its_split() -> None:
    assert [K_SHOT.training_seed(subset, 0) for subset in range(7)] == [13, 21, 42, 87, 100, 101, 102]
    assert K_SHOT.training_seed(1, 31) == 52
    others = [protocol for name, protocol in PROTOCOLS.items() if name != "k_shot"]
    assert all(protocol.training_seed(subset, 31) == 31 for protocol in others for subset in range(7))


def test_a_users_rows_have_a_test_set_of_their_own_first(tmp_path: Path) -> None:
    write_file(tmp_path / "a.csv", [{"text": f"Text {i}.", "label": "abc"[i % 3]} for i in range(200)])
    path = tmp_path / "task.yaml"
    path.write_text("name: mine\ndata: a.csv\ncolumns: [text]\nclasses: [a, b, c]\nmetrics: [accuracy]\n")
    task, source = load_user_task(path), open_source(None)
    sets = K_SHOT.evaluation_sets(task, source)
    train, dev, _ = cut(K_SHOT, task, source, 10, 0)
    assert (len(train), len(dev), len(sets.tests["test"])) == (30, 30, 50)
    assert not forms(train) & forms(dev)
    assert not (forms(train) | forms(dev)) & forms(sets.tests["test"])
    assert sets.origin == (
        "test 50 of the 200 labelled rows, drawn once by their text; training and dev examples drawn anew for each subset from 150 texts "
        "of them"
    )
