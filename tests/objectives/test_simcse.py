"""SimCSE: two passes of one text that differ by dropout alone, against equation 4 spelled out in double precision."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from harness.encoders.tokens import Examples

CPU = torch.device("cpu")


def passed(folder: Path, rows: int, *, dropout: float, **params: Any) -> tuple[Any, Tensor, Tensor]:
    """(module, what the encoder gave the loss [2B, d], the loss)."""
    spec = tiny.OBJECTIVES["simcse"]
    module = tiny.built(folder, replace(spec, params={**spec.params, **params}), dropout=dropout)
    tokens = tiny.tokens(folder, tiny.texts(rows, seed=4)[0])
    views = module.prepare(Examples(tokens), None, tiny.draw_of())
    assert np.array_equal(views.ids, np.tile(tokens.ids, 2))
    first: list[Tensor] = []
    module.encoder.register_forward_hook(lambda *given: first.append(given[-1]))
    torch.manual_seed(3)
    loss = module(views.on(CPU))["contrast"]
    return module, first[0].detach(), loss


def equation(states: Tensor, weight: Tensor | None, bias: Tensor | None, temperature: float, group: int) -> Tensor:
    """Equation 4, anchor by anchor, within groups."""
    if weight is not None:
        states = torch.tanh(states @ weight.T + bias)
    rows, terms = len(states) // 2, []
    for i in range(rows):
        others = range(i // group * group, min(i // group * group + group, rows))
        own = [torch.cosine_similarity(states[i], states[rows + j], dim=0) / temperature for j in others]
        terms.append(torch.stack(own).logsumexp(0) - own[i % group])
    return torch.stack(terms).mean()


@pytest.mark.parametrize(("rows", "group", "projection"), [(8, 8, False), (9, 4, True), (3, 8, True)])
def test_value_and_gradient(projection: bool, rows: int, group: int, bert: Path) -> None:
    module, states, loss = passed(bert, rows, dropout=0.2, projection=projection, contrast_group=group, temperature=0.3)
    head = (
        [p.detach().double().requires_grad_() for p in module.projection.parameters()] if projection else [None, None]
    )
    expected = equation(states.double(), *head, 0.3, group)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    if projection:
        found = torch.autograd.grad(loss, list(module.projection.parameters()))
        for gradient, true in zip(found, torch.autograd.grad(expected, head), strict=True):
            torch.testing.assert_close(gradient.double(), true, rtol=1e-3, atol=1e-6)


def test_dropout_alone_makes_the_views(bert: Path) -> None:
    with_it, without = (passed(bert, 6, dropout=p)[1] for p in (0.1, 0.0))
    assert not torch.isclose(with_it[:6], with_it[6:]).all(dim=1).any()
    torch.testing.assert_close(without[:6], without[6:])
