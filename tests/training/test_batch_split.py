"""A split batch is the batch: its terms and its gradient, for every objective; and a step keeps to its device."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harness.encoders.kernels.cpu import Dropout
from harness.training import forward_backward
from harness.training.forward_backward import ForwardBackward, Placement, split_batch

ROWS = 8
"""Of a batch: two groups of 4, or half a group of SCL's 16."""


@given(st.integers(1, 70), st.integers(0, 20), st.integers(1, 6), st.integers(0, 20))
def test_every_row_is_in_one_micro_batch_in_order(size: int, group: int, workers: int, micro_batch: int) -> None:
    shards, whole_groups = split_batch(size, group, workers, micro_batch)
    parts = [part for each in shards for part in each]
    assert len(shards) == workers
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(size))
    assert all(0 <= part.start <= part.stop <= size for part in parts)
    if micro_batch:
        assert max(part.stop - part.start for part in parts) <= micro_batch
    else:
        assert all(len(each) == 1 for each in shards)
    groups = [row // max(group, 1) for row in range(size)]
    cut = any(groups[part.start - 1] == groups[part.start] for part in parts if 0 < part.start < size)
    assert whole_groups == (group <= 1 or not cut)


@given(st.integers(1, 12), st.integers(1, 20), st.integers(1, 6))
def test_groups_are_whole_where_there_are_enough_of_them(count: int, group: int, workers: int) -> None:
    shards, whole_groups = split_batch(count * group, group, workers)
    if count >= workers:
        assert whole_groups
        shares = [sum(part.stop - part.start for part in each) // group for each in shards]
        assert max(shares) - min(shares) <= 1
    for micro_batch in (group, 2 * group + 1):
        assert split_batch(count * group, group, 1, micro_batch)[1]


@pytest.fixture
def dropout_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout is replaced by a function of each value and of the number of the pass in its micro-batch: two passes differ, as under
    dropout, and the split of a batch changes nothing."""
    passes: Counter[int] = Counter()

    def forward(layer: nn.Module, x: Tensor) -> Tensor:
        if not layer.training:
            return x
        passes[id(layer)] += 1
        return x * (1 + 0.5 * torch.sin(9 * x + passes[id(layer)]))

    monkeypatch.setattr(nn.Dropout, "forward", forward)
    monkeypatch.setattr(Dropout, "forward", forward)
    monkeypatch.setattr(forward_backward, "seed_dropout", lambda *_: passes.clear())


def gradients(
    folder: Path, name: str, micro_batch: int, precision: str = "fp32"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Terms and gradients of one batch in double precision, which autocast leaves as it is."""
    spec = tiny.OBJECTIVES[name]
    _, inputs = (tiny.fine_tuning if name in tiny.SUPERVISED else tiny.post_training)(folder, spec)
    module = tiny.built(folder, spec).double()
    rows = np.arange(3, 3 + ROWS)
    labels = None if inputs.labels is None else inputs.labels[rows]
    views, optim = module.prepare(inputs.train.take(rows), labels, tiny.draw_of()), tiny.optim(precision=precision)
    terms = ForwardBackward(module, optim, 1, Placement(micro_batch=micro_batch)).run(views, 1)
    return terms, {n: p.grad for n, p in module.named_parameters() if p.grad is not None}


CUT = ("scl", "cmlm-simclr", "cssl-simclr", "simcse", "taco", "coco_lm")
"""One of each objective that contrasts groups."""


@pytest.mark.parametrize("name", CUT)
@pytest.mark.usefixtures("dropout_by_value")
def test_terms_and_gradients_of_the_micro_batches_add_up_under_dropout(name: str, bert: Path) -> None:
    """Micro-batches of 3 cut the contrast groups of 4. Without dropout it is a law of the contract (tests/objectives/test_contract.py)."""
    terms, whole = gradients(bert, name, 0)
    assert terms["loss"].isfinite()
    parts, added = gradients(bert, name, 3)
    assert parts.keys() == terms.keys()
    for term in terms:
        assert parts[term].item() == pytest.approx(terms[term].item(), rel=1e-12)
    assert added.keys() == whole.keys()
    for parameter, gradient in whole.items():
        torch.testing.assert_close(added[parameter], gradient, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize(("name", "micro_batch"), [("scl", 0), ("taco", 3), ("coco_lm", 3)])
def test_fp16_scales_the_gradient_and_not_the_terms(name: str, micro_batch: int, bert: Path) -> None:
    """To the bit: the scale is a power of two, the same for each micro-batch."""
    terms, plain = gradients(bert, name, micro_batch)
    same, scaled = gradients(bert, name, micro_batch, "fp16")
    assert {n: t.item() for n, t in same.items()} == {n: t.item() for n, t in terms.items()}
    for parameter, gradient in plain.items():
        assert torch.equal(scaled[parameter], gradient * 2**16), parameter


# ------------------------------------------------------------------------------------------------------- one device

META = torch.device("meta")
"""A device that stores nothing, and refuses to give a value or a shape that depends on one."""


class OneDevice(TorchDispatchMode):
    """Raises AssertionError for an operator with tensors of both devices, unless it is a transfer to META."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        devices = {each.device.type for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor) and each.dim()}
        transfer = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
        assert transfer or len(devices) < 2, f"{func} with tensors on {devices}"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("name", "relative"), [*((name, (0, 0)) for name in CUT), ("coco_lm", (8, 16))])
def test_a_step_of_cut_groups_keeps_to_its_device(name: str, relative: tuple[int, int], bert: Path) -> None:
    """Nothing that it computes with is left on the host, and no value is read back before it has ended. A whole batch is a law of the contract."""
    spec, rows = tiny.OBJECTIVES[name], np.arange(8)
    _, inputs = (tiny.fine_tuning if name in tiny.SUPERVISED else tiny.post_training)(bert, spec)
    objective = tiny.built(bert, spec, dropout=0.1, relative=relative).to(META)
    labels = None if inputs.labels is None else inputs.labels[rows]
    views = objective.prepare(inputs.train.take(rows), labels, tiny.draw_of())
    with OneDevice():
        terms = ForwardBackward(objective, tiny.optim(), 1, Placement(META, micro_batch=3)).run(views, 1)
        with pytest.raises(AssertionError, match="index_select"):
            torch.empty(6, 4, device=META).index_select(0, torch.arange(3))
    trained = [parameter.grad for parameter in objective.parameters() if parameter.grad is not None]
    assert len(trained) > 3
    assert {each.device for each in (*terms.values(), *trained)} == {META}
