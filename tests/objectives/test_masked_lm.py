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

    def test_nothing_selected_is_a_connected_zero(self) -> None:
        logits = leaf(normal(0, 7))
        loss = masked_lm(logits, torch.zeros(0, dtype=torch.long))
        (gradient,) = torch.autograd.grad(loss, (logits,))
        assert loss.item() == 0.0
        assert gradient.shape == (0, 7)

    @pytest.mark.parametrize("target", [-100, -1, 6])
    def test_no_index_is_ignored(self, target: int) -> None:
        with pytest.raises(RuntimeError, match="out of bounds"):
            masked_lm(normal(2, 6), torch.tensor([1, target]))
