"""CSSL: views side by side in the data, contrasted as if each had been encoded by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from harness.encoders.models.batch import Batch
from harness.encoders.tokens import Examples
from harness.objectives.base import Views
from harness.objectives.losses import simclr, simsiam
from harness.training.loop import Inputs, train

CPU = torch.device("cpu")
CSSL = ["cssl-simclr", "cssl-simsiam"]


def module_of(folder: Path, name: str, views: int) -> Any:
    spec = tiny.OBJECTIVES[name]
    return tiny.built(folder, replace(spec, params={**spec.params, "num_views": views - 1}))


def marked(folder: Path, count: int, views: int) -> Inputs:
    """Text i in every view; view k begins with the word w(30 + k)."""
    rows = [(f"w{30 + view} {text}",) for view in range(views) for (text,) in tiny.texts(count, seed=4)[0]]
    return Inputs(tiny.examples(tiny.tokens(folder, rows), views))


@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize("name", CSSL)
def test_as_if_each_view_were_encoded_by_itself(name: str, views: int, bert: Path) -> None:
    module, inputs = module_of(bert, name, views), marked(bert, 10, views)
    seen = module.prepare(inputs.train, None, tiny.draw_of())
    found = module(seen.on(CPU))["contrast"].item()
    first = []
    for view in range(views):
        alone = inputs.train.tokens.take(np.arange(10) * views + view)
        first.append(module.encoder(Batch.of(alone, CPU))[alone.offsets[:-1]])
    h0, hk = first[0], torch.stack(first[1:])
    if name == "cssl-simsiam":
        z = [module.contrast.predict_view(h) for h in first]
        expected = simsiam(h0, hk, z[0], torch.stack(z[1:])).item()
    else:
        groups = [slice(0, 4), slice(4, 8), slice(8, 10)]
        parts = [simclr(h0[g], hk[:, g], temperature=0.2).item() * len(h0[g]) for g in groups]
        expected = sum(parts) / 10
    assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("views", [2, 3])
def test_a_batch_holds_the_same_texts_in_every_view(views: int, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last small batch of an epoch too; and an epoch sees every text once."""
    module, inputs = module_of(bert, "cssl-simclr", views), marked(bert, 11, views)
    prepare, batches, module.measured = type(module).prepare, [], False

    def spy(self: Any, examples: Examples, labels: Any, draw: Any) -> Views:
        made: Views = prepare(self, examples, labels, draw)
        batches.append(made.tokens)
        return made

    monkeypatch.setattr(type(module), "prepare", spy)
    outcome = train(module, inputs, tiny.optim(batch_size=4, steps=6), 1)
    assert [len(tokens) for tokens in batches] == [4 * views, 4 * views, 3 * views] * 2
    words = tiny.tokens(bert, [(" ".join(f"w{30 + view}" for view in range(views)),)]).ids[1:-1]
    for epoch in (batches[:3], batches[3:]):
        texts = []
        for tokens in epoch:
            rows = [tokens.take([i]).ids.tolist() for i in range(len(tokens))]
            size = len(rows) // views
            for view in range(views):
                part = rows[view * size : (view + 1) * size]
                assert all(row[1] == words[view] for row in part)
                assert [row[2:] for row in part] == [row[2:] for row in rows[:size]]
            texts += [tuple(row[2:]) for row in rows[:size]]
        whole = inputs.train.tokens
        assert sorted(texts) == sorted(tuple(whole.take([i * views]).ids[2:].tolist()) for i in range(11))
    # FLOPs count every view
    assert outcome.flops == pytest.approx(sum(module.step_flops(tokens) for tokens in batches))


def test_nothing_is_drawn_and_nothing_changed(bert: Path) -> None:
    module, inputs = module_of(bert, "cssl-simclr", 2), marked(bert, 4, 2)

    def draw(*_: Any) -> Any:
        raise AssertionError("CSSL asks for no random numbers")

    seen = module.prepare(inputs.train, None, draw)
    assert np.array_equal(seen.ids, inputs.train.side_by_side()[0].ids)
