"""A row set is tokenised once for each way of reading it, however many stages ask for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from harness.cluster import worker
from harness.cluster.worker import TokenCache
from harness.methods import objective
from harness.specs import Data, Encoder, Optim, RowSet, Selection, Stage

SEEDS = range(20)
TRAIN, OTHER, DEV, TEST = (RowSet(name, name) for name in ("train", "other", "dev", "test"))
READINGS = [
    Data(TRAIN, 2, 64, DEV, (TEST,)),
    Data(OTHER, 2, 64, DEV, (TEST,)),
    Data(TRAIN, 2, 128, DEV, (TEST,)),
    Data(TRAIN, max_length=64),
    Data(TRAIN, max_length=64, views=2),
    Data(TRAIN, max_length=64, blocks="packed"),
    Data(TRAIN, 2, 64, DEV, (TEST,), views=2),
    Data(TRAIN, 2, 64, TRAIN, (DEV, TEST)),
]
"""Longer, in views and in blocks, with and without evaluation sets, and a training set that is another's dev set."""
STAGES = [
    Stage(
        objective("cross_entropy"),
        replace(data, train=replace(data.train, name=f"label of seed {seed}")),
        Optim(lr=1e-3, batch_size=8, steps=2),
        seed,
        Encoder("e", "e"),
        Selection("accuracy") if data.dev else None,
        "fine-tune",
    )
    for seed in SEEDS
    for data in READINGS
]

Way = tuple[str, int, int, str]


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What went to the object store; a reference is its number there."""
    kept: list[Any] = []
    monkeypatch.setattr(worker.ray, "put", lambda tokens: kept.append(tokens) or len(kept) - 1)
    return kept


def test_once_a_row_set_and_way_of_reading(put: list[Any]) -> None:
    asked: list[Way] = []

    def tokenised(rows: RowSet, data: Data, encoder: str) -> Any:
        asked.append((rows.digest, data.max_length, data.views, data.blocks))
        return asked[-1]

    token_cache = TokenCache(tokenised)
    for stage in STAGES:
        data = stage.data
        references = token_cache.references(stage)
        evaluations = [*([data.dev] if data.dev else []), *data.tests]
        # Evaluation sets are read text by text, however the training rows are.
        assert [put[reference] for reference in references] == [
            (data.train.digest, data.max_length, data.views, data.blocks),
            *((rows.digest, data.max_length, 1, "text") for rows in evaluations),
        ]
    assert set(Counter(asked).values()) == {1}
    assert put == asked
    assert len(put) == 9  # train in 4 ways, other in one, dev and test at 2 lengths


def test_what_is_there_is_not_made_again(put: list[Any]) -> None:
    """A process without texts takes another's references."""
    first = TokenCache(lambda rows, *_: rows.digest)
    expected = [first.references(stage) for stage in STAGES]
    count = len(put)
    second = TokenCache(None, first.made)
    assert [second.references(stage) for stage in STAGES] == expected
    assert len(put) == count
