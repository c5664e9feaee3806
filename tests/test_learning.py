"""Pre-training objectives learn (slow: 200 updates of each).

pytest tests/test_learning.py -m slow -rP      # under six minutes on two cores, with what was measured
"""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import SimpleNamespace

import learning
import pytest
import tiny

from harness.errors import UserError
from harness.specs import Optim
from harness.training.loop import batch_order


@pytest.mark.slow
@pytest.mark.usefixtures("packaged")
def test_every_objective_learns(tmp_path: Path) -> None:
    """On Wikipedia's passages, from bert-tiny."""
    setting = learning.Setting("bert-tiny", 200, 1e-3, tmp_path)
    laws = learning.laws({name: learning.learn(name, setting) for name in learning.TRAINED})
    for name, measure, value, against, other, holds in laws:
        print(f"{name}, {measure}: {value:.3f}, {against}: {other:.3f}, {'holds' if holds else 'does not hold'}")
    assert all(law[-1] for law in laws)


def test_the_loss_of_unigrams_and_the_blocks_that_pre_training_leaves(bert: Path) -> None:
    """Held-out blocks are none of those that the stage draws; the baseline is that of a loop over their masked tokens."""
    curves = importlib.import_module("benchmarks.learning_curves")
    stage = SimpleNamespace(optim=Optim(1e-3, 4, 5), seed=7)
    blocks = 2 * curves.UNSEEN
    drawn, unseen = curves.split(stage, blocks)
    batches = [rows for rows, _ in zip(batch_order(blocks, 4, 7), range(5), strict=False)]
    assert sorted(drawn) == sorted(row for rows in batches for row in rows)
    assert len(set(unseen)) == curves.UNSEEN
    assert not set(unseen) & set(drawn)
    with pytest.raises(UserError, match="5 updates of 4 leave fewer than 128 of 147 blocks unseen"):
        curves.split(stage, curves.UNSEEN + 19)
    tokens = tiny.tokens(bert, tiny.texts(80, 3)[0])
    train, held_out, size = tokens.take(range(40)), tokens.take(range(40, 80)), tiny.vocabulary(bert).size
    counts = dict.fromkeys(range(size), 1)
    for token in train.ids[~train.special]:
        counts[int(token)] += 1
    losses = [
        -math.log(counts[int(token)] / sum(counts.values()))
        for index, batch in enumerate(curves.batches(held_out))
        for token in batch.ids[curves.masked(batch, index)]
    ]
    assert len(losses) > 10
    assert curves.unigram_loss(train, held_out, size) == pytest.approx(sum(losses) / len(losses))
