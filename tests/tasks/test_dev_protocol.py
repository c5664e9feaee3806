"""The protocol of pre-training papers: the whole development set is dev and test."""

from __future__ import annotations

from pathlib import Path

import pytest
from tasks.task_files import pairs, single, write_file

from harness.errors import UserError
from harness.tasks import PROTOCOLS, TASKS, open_source

GLUE_DEV = PROTOCOLS["glue_dev"]


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
