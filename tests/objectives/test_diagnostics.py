"""Spread and cosines against loops."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from objectives.formulas import cosine, leaf, normal
from torch import Tensor

from harness.objectives.diagnostics import (
    class_cosines,
    embedding_std,
    indexed_cosines,
    pair_cosines,
)

LABELS = torch.tensor([0, 1, 1, 0, 2, 0])
POSITIVES = torch.tensor([[1, 2, 0], [2, -1, 0]])
NEGATIVES = torch.tensor([[[[1, 0], [1, 2]]] * 3, [[[0, 1], [-1, -1]], [[0, 0], [0, 2]], [[-1, -1], [-1, -1]]]])
ANCHORS = torch.tensor([[True, True, True], [True, True, False]])

MEASURES: dict[str, Callable[[Tensor], dict[str, Tensor]]] = {
    "embedding_std": lambda x: {"std": embedding_std(x)},
    "pair_cosines": lambda x: pair_cosines(x, x.flip(0)),
    "class_cosines": lambda x: class_cosines(x, LABELS),
    "indexed_cosines": lambda x: indexed_cosines(x.reshape(2, 3, -1), POSITIVES, NEGATIVES, ANCHORS),
}


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("name", MEASURES)
class TestEveryMeasure:
    def test_no_gradient_and_no_side_effect(self, name: str) -> None:
        x = leaf(normal(6, 4))
        kept = x.detach().clone()
        for value in MEASURES[name](x).values():
            assert value.shape == ()
            assert value.dtype == torch.float64
            assert not value.requires_grad
        assert torch.equal(x, kept)

    def test_zero_vectors_are_finite_and_nan_is_not_hidden(self, name: str) -> None:
        x = normal(6, 4)
        x[0] = 0.0
        assert all(value.isfinite() for value in MEASURES[name](x).values())
        x[0, 1] = math.nan
        assert all(value.isnan() for value in MEASURES[name](x).values())

    def test_collapse_is_told(self, name: str) -> None:
        made = MEASURES[name](torch.full((6, 4), 3.0))
        expected = 0.0 if name == "embedding_std" else 1.0
        assert [value.item() for value in made.values()] == pytest.approx([expected] * len(made), abs=1e-6)


class TestEmbeddingStd:
    def test_equals_the_loop(self) -> None:
        x = normal(7, 5)
        rows = [[value / math.sqrt(sum(v * v for v in row)) for value in row] for row in x.tolist()]
        stds = []
        for column in zip(*rows, strict=True):
            middle = mean(list(column))
            stds.append(math.sqrt(mean([(value - middle) ** 2 for value in column])))
        assert embedding_std(x).item() == pytest.approx(mean(stds) * math.sqrt(5))


class TestCosines:
    def test_pairs_equal_the_loop(self) -> None:
        a, b = normal(5, 4), normal(5, 4, seed=1)
        table = [[cosine(x, y) for y in b.tolist()] for x in a.tolist()]
        made = pair_cosines(a, b)
        assert made["positive"].item() == pytest.approx(mean([table[i][i] for i in range(5)]))
        assert made["negative"].item() == pytest.approx(
            mean([table[i][j] for i in range(5) for j in range(5) if i != j])
        )

    def test_classes_equal_the_loop(self) -> None:
        x = normal(6, 4)
        rows, y = x.tolist(), LABELS.tolist()
        pairs = [(i, j) for i in range(6) for j in range(i)]
        made = class_cosines(x, LABELS)
        for key, same in (("positive", True), ("negative", False)):
            expected = mean([cosine(rows[i], rows[j]) for i, j in pairs if (y[i] == y[j]) == same])
            assert made[key].item() == pytest.approx(expected)

    def test_tokens_equal_the_loop(self) -> None:
        g = normal(2, 3, 4)
        rows = g.tolist()
        positive, negative = [], []
        for b, j in ANCHORS.nonzero().tolist():
            if POSITIVES[b, j] >= 0:
                positive.append(cosine(rows[b][j], rows[b][int(POSITIVES[b, j])]))
            negative += [cosine(rows[b][j], rows[s][p]) for s, p in NEGATIVES[b, j].tolist() if s >= 0]
        made = indexed_cosines(g, POSITIVES, NEGATIVES, ANCHORS)
        assert made["positive"].item() == pytest.approx(mean(positive))
        assert made["negative"].item() == pytest.approx(mean(negative))

    def test_padding_does_not_matter(self) -> None:
        g = normal(2, 3, 4)
        padded = torch.cat([g, torch.full((2, 1, 4), math.nan, dtype=g.dtype)], dim=1)
        missing = torch.full((2, 1, 2, 2), -1)
        made = indexed_cosines(
            padded,
            torch.cat([POSITIVES, missing[:, :, 0, 0]], dim=1),
            torch.cat([NEGATIVES, missing], dim=1),
            torch.cat([ANCHORS, missing[:, :, 0, 0] > 0], dim=1),
        )
        torch.testing.assert_close(made, indexed_cosines(g, POSITIVES, NEGATIVES, ANCHORS))
