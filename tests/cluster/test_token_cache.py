"""A row set is tokenised once for each way of reading it, however many stages ask for it."""

from __future__ import annotations

from typing import Any

import pytest

from harness.cluster import worker
from harness.cluster.worker import TokenCache
from harness.specs import Data, Encoder, Objective, Optim, RowSet, Selection, Stage

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


def test_once_a_row_set_and_way_of_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without texts gets what another has made."""
    made: list[Any] = []
    monkeypatch.setattr(worker.ray, "put", lambda tokens: tokens)

    def tokenised(rows: RowSet, data: Data, encoder: str) -> Any:
        made.append((rows.digest, data.max_length, data.views, data.blocks))
        return made[-1]

    first = TokenCache(tokenised)
    for times in range(3):
        cache = first if times < 2 else TokenCache(made=first.made)
        for data in READINGS:
            selection = Selection("accuracy") if data.dev else None
            stage = Stage(Objective("cross_entropy", 1), data, Optim(1e-3, 8, 2), 0, Encoder("e", "e"), selection)
            evaluations = [*([data.dev] if data.dev else []), *data.tests]
            # Evaluation sets are read text by text, however the training rows are.
            assert cache.references(stage) == [
                (data.train.digest, data.max_length, data.views, data.blocks),
                *((rows.digest, data.max_length, 1, "text") for rows in evaluations),
            ]
    assert len(made) == len(set(made)) == 9, "train in 4 ways, other in one, dev and test at 2 lengths"
