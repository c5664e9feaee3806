"""A split batch is the batch: its terms, its gradient, and 20 steps of training, for every objective."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.encoders.kernels import processor
from harness.training.batch_split import split_batch
from harness.training.forward_backward import ForwardBackward
from harness.training.process_group import SINGLE_PROCESS

CPU = torch.device("cpu")
ROWS = 8
"""Of a batch: two groups of 4, or half a group of SCL's 16."""


@given(st.integers(1, 70), st.integers(0, 20), st.integers(1, 6), st.integers(0, 20))
def test_every_row_is_in_one_micro_batch_in_order(size: int, group: int, workers: int, micro_batch: int) -> None:
    split = split_batch(size, group, workers, micro_batch)
    parts = [part for each in split.shards for part in each]
    assert len(split.shards) == workers
    assert split.num_micro_batches == len(parts)
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(size))
    assert all(0 <= part.start <= part.stop <= size for part in parts)
    if micro_batch:
        assert max(part.stop - part.start for part in parts) <= micro_batch
    else:
        assert all(len(each) == 1 for each in split.shards)
    groups = [row // max(group, 1) for row in range(size)]
    cut = any(groups[part.start - 1] == groups[part.start] for part in parts if 0 < part.start < size)
    assert split.whole_groups == (group <= 1 or not cut)


@given(st.integers(1, 12), st.integers(1, 20), st.integers(1, 6))
def test_groups_are_whole_where_there_are_enough_of_them(count: int, group: int, workers: int) -> None:
    split = split_batch(count * group, group, workers)
    if count >= workers:
        assert split.whole_groups
        shares = [sum(part.stop - part.start for part in each) // group for each in split.shards]
        assert max(shares) - min(shares) <= 1
    for micro_batch in (group, 2 * group + 1):
        assert split_batch(count * group, group, 1, micro_batch).whole_groups


def test_the_split_over_one_rank_is_the_batch() -> None:
    assert split_batch(16, 16).shards == ((slice(0, 16),),)


def gradients(
    folder: Path, name: str, micro_batch: int, precision: str = "fp32"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Terms and gradients of one batch in double precision, which autocast leaves as it is."""
    spec = tiny.OBJECTIVES[name]
    _, inputs = (tiny.fine_tuning if name in tiny.SUPERVISED else tiny.post_training)(folder, spec)
    module = tiny.built(folder, spec).double()
    of_row = len(inputs.train) // inputs.views
    rows = np.concatenate([np.arange(3, 3 + ROWS) + view * of_row for view in range(inputs.views)])
    labels = None if inputs.labels is None else inputs.labels[3 : 3 + ROWS]
    views = module.prepare(inputs.train.take(rows), labels, tiny.draw_of())
    terms = ForwardBackward(module, SINGLE_PROCESS, micro_batch, precision, CPU, 1).run(views, ROWS, 1, None)
    return terms, {n: p.grad for n, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", tiny.OBJECTIVES)
def test_terms_and_gradients_of_the_micro_batches_add_up(name: str, bert: Path) -> None:
    """Micro-batches of 1 and 3 cut the contrast groups of 4, those of 4 and 5 do not."""
    terms, whole = gradients(bert, name, 0)
    assert terms["loss"].isfinite()
    for micro_batch in (1, 3, 4, 5):
        parts, added = gradients(bert, name, micro_batch)
        assert parts.keys() == terms.keys()
        for term in terms:
            assert parts[term].item() == pytest.approx(terms[term].item(), rel=1e-12)
        assert added.keys() == whole.keys()
        for parameter, gradient in whole.items():
            torch.testing.assert_close(added[parameter], gradient, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("micro_batch", [0, 3])
@pytest.mark.parametrize("name", ["scl", "cmlm-simclr", "taco", "coco_lm"])
def test_fp16_scales_the_gradient_and_not_the_terms(name: str, micro_batch: int, bert: Path, monkeypatch: Any) -> None:
    """To the bit: the scale is a power of two, the same for each micro-batch."""
    monkeypatch.setattr(processor, "kernels", lambda: processor.DEFAULT)  # whole layers know no double under autocast
    terms, plain = gradients(bert, name, micro_batch)
    same, scaled = gradients(bert, name, micro_batch, "fp16")
    assert {n: t.item() for n, t in same.items()} == {n: t.item() for n, t in terms.items()}
    for parameter, gradient in plain.items():
        assert torch.equal(scaled[parameter], gradient * 2**16), parameter
