"""The MLM loss against a loop written from the formula, float64 gradients, closed forms and degenerate batches."""

from __future__ import annotations

import math

import pytest
import torch
from objectives.formulas import leaf, normal
from torch import Tensor

from harness.objectives.losses import masked_lm


def naive_masked_lm(logits: Tensor, targets: Tensor) -> float:
    total = 0.0
    for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
        total -= math.log(math.exp(row[target]) / sum(math.exp(value) for value in row))
    return total / len(targets)


class TestMaskedLm:
    def test_equals_the_formula(self) -> None:
        logits, targets = normal(6, 11), torch.tensor([0, 10, 3, 3, 7, 1])
        assert masked_lm(logits, targets).item() == pytest.approx(naive_masked_lm(logits, targets), rel=1e-12)

    def test_gradient(self) -> None:
        targets = torch.tensor([0, 4, 2])
        assert torch.autograd.gradcheck(lambda logits: masked_lm(logits, targets), (leaf(normal(3, 5)),))

    def test_equal_logits_give_log_of_vocabulary(self) -> None:
        assert masked_lm(torch.full((4, 50), 3.0), torch.arange(4)).item() == pytest.approx(math.log(50))

    def test_certain_and_right_is_zero_and_certain_and_wrong_is_the_margin(self) -> None:
        logits = torch.tensor([[2e4, 0.0, 0.0]])
        assert masked_lm(logits, torch.tensor([0])).item() == 0.0
        assert masked_lm(logits, torch.tensor([1])).item() == 2e4

    def test_nothing_selected_is_a_connected_zero(self) -> None:
        logits = leaf(normal(0, 7))
        loss = masked_lm(logits, torch.zeros(0, dtype=torch.long))
        (gradient,) = torch.autograd.grad(loss, (logits,))
        assert loss.item() == 0.0
        assert gradient.shape == (0, 7)

    def test_nothing_selected_reaches_the_weights(self) -> None:
        weight = leaf(normal(7, 3))
        masked_lm(normal(0, 3) @ weight.T, torch.zeros(0, dtype=torch.long)).backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None
        assert torch.equal(weight.grad, torch.zeros_like(weight))

    def test_order_duplicates_and_shift_do_not_matter(self) -> None:
        logits, targets = normal(5, 6), torch.tensor([0, 5, 2, 2, 1])
        order = torch.tensor([3, 1, 4, 0, 2])
        expected = masked_lm(logits, targets)
        torch.testing.assert_close(masked_lm(logits[order], targets[order]), expected)
        torch.testing.assert_close(masked_lm(logits.repeat(2, 1), targets.repeat(2)), expected)
        torch.testing.assert_close(masked_lm(logits + normal(5, 1, seed=2), targets), expected)

    def test_narrow_integer_targets(self) -> None:
        logits, targets = normal(3, 6), torch.tensor([0, 5, 2])
        assert torch.equal(masked_lm(logits, targets.to(torch.int32)), masked_lm(logits, targets))

    @pytest.mark.parametrize("target", [-100, -1, 6])
    def test_no_index_is_ignored(self, target: int) -> None:
        with pytest.raises(RuntimeError, match="out of bounds"):
            masked_lm(normal(2, 6), torch.tensor([1, target]))

    @pytest.mark.parametrize(
        ("logits", "targets", "word"),
        [
            (normal(3), torch.zeros(3).long(), "logits"),
            (normal(2, 3, 4), torch.zeros(2, 3).long(), "logits"),
            (normal(3, 0), torch.zeros(3).long(), "logits"),
            (normal(3, 4).long(), torch.zeros(3).long(), "logits"),
            (normal(3, 4), torch.zeros(2).long(), "targets"),
        ],
    )
    def test_bad_arguments(self, logits: Tensor, targets: Tensor, word: str) -> None:
        with pytest.raises(ValueError, match=word):
            masked_lm(logits, targets)
