"""Probes: which cosines they measure, that they do not change training, and that objectives can be compared by them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from harness.encoders.tokens import Examples, Tokens
from harness.objectives.probes import (
    alignment,
    context_cosines,
    corrected,
    paired_cosines,
    replaced_and_original,
    sequence_cosines,
    uniformity,
)
from harness.specs import Objective
from harness.streams import stream
from harness.training import loop
from harness.training.loop import probed, train

CPU = torch.device("cpu")
PROBED = ("mlm", "cmlm-simsiam", "taco", "coco_lm", "coco_lm-no_contrast")


def text(lengths: list[int]) -> Tokens:
    """Sequences with a special token at both ends."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    special = np.isin(np.arange(offsets[-1]), [*offsets[:-1], *(offsets[1:] - 1)])
    return Tokens(np.arange(offsets[-1], dtype=np.int32), np.zeros(offsets[-1], np.int8), special, offsets)


def cosines(states: Tensor, tokens: Tokens, seed: int = 0) -> dict[str, float]:
    encoder: Any = lambda batch: states  # noqa: E731
    found = context_cosines(encoder, tokens, lambda purpose, *more: stream(seed, purpose, *more), CPU)
    return {name: value.item() for name, value in found.items()}


def test_tokens_of_one_text_against_those_of_others() -> None:
    tokens = text([7, 3, 12, 5])
    own = torch.eye(4).repeat_interleave(torch.tensor([7, 3, 12, 5]), dim=0)
    assert cosines(own, tokens) == {"intra_context_cosine": 1.0, "inter_context_cosine": 0.0}
    together = cosines(torch.ones(27, 4), tokens)
    assert list(together.values()) == pytest.approx([1.0, 1.0])
    alone = cosines(torch.ones(5, 4), text([5]))
    assert alone["intra_context_cosine"] == pytest.approx(1.0)
    assert math.isnan(alone["inter_context_cosine"])
    assert math.isnan(cosines(torch.ones(6, 4), text([3, 3]))["intra_context_cosine"]), (
        "one word has no other in its text"
    )


def test_special_tokens_are_no_words() -> None:
    tokens = text([9, 6, 8])
    states = torch.ones(23, 4)
    states[torch.from_numpy(tokens.special)] = math.nan
    for seed in range(20):
        assert list(cosines(states, tokens, seed).values()) == pytest.approx([1.0, 1.0])


def test_the_other_token_is_drawn_from_the_whole_text() -> None:
    """TACO's A.3: 'w_j, j != i, within the same context (sentence)', and not within the window of the loss."""
    size = 40
    angle = torch.linspace(0, math.pi, size)
    states = torch.stack([angle.cos(), angle.sin()], dim=1)
    states = torch.cat([torch.zeros(1, 2), states, torch.zeros(1, 2)])
    every = torch.cos(angle[:, None] - angle[None, :])
    expected = (every.sum() - every.trace()) / (size * (size - 1))
    found = np.mean([cosines(states, text([size + 2]), seed)["intra_context_cosine"] for seed in range(200)])
    assert found == pytest.approx(expected.item(), abs=0.03)
    near = torch.cos(angle[:1] - angle[1:3]).mean()
    assert near - expected > 0.3, "a window of two would be told apart"


def test_pairs_of_sequences_by_hand() -> None:
    """COCO-LM 3.2: the positive pair is a text's two views, all remaining sequences of both views are negatives."""
    a, b = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    views = [(k, v) for k in range(3) for v in (a[k], b[k])]
    pairs = [
        (i == j, torch.nn.functional.cosine_similarity(x, y, dim=0).item())
        for m, (i, x) in enumerate(views)
        for n, (j, y) in enumerate(views)
        if m != n
    ]
    found = sequence_cosines(a, b)
    for name, same in (("positive_sequence_cosine", True), ("negative_sequence_cosine", False)):
        assert found[name].item() == pytest.approx(np.mean([c for s, c in pairs if s == same]), abs=1e-6)
    assert sequence_cosines(a[:1], b[:1])["negative_sequence_cosine"].isnan()


def look(folder: Path, spec: Objective, dropout: float = 0.0) -> dict[str, float]:
    module = tiny.built(folder, spec, dropout=dropout)
    found = probed(module, Examples(tiny.tokens(folder, tiny.texts(9, 4)[0])), tiny.draw_of(), "fp32", CPU)
    assert module.training
    return found


def test_objectives_are_compared_by_one_measure(bert: Path) -> None:
    """On one encoder MLM and TACO measure the same, and COCO-LM with and without its contrast; dropout has no effect."""
    expected = look(bert, tiny.OBJECTIVES["mlm"])
    assert set(expected) == {"intra_context_cosine", "inter_context_cosine"}
    for name in ("mlm", "taco", "cmlm-simsiam"):
        assert look(bert, tiny.OBJECTIVES[name], dropout=0.5) == expected
    pairs = look(bert, tiny.OBJECTIVES["coco_lm"])
    accuracies = {f"{what}_accuracy_{which}" for what in ("copy", "lm") for which in ("replaced", "original")}
    assert set(pairs) == {"positive_sequence_cosine", "negative_sequence_cosine", *accuracies}
    for name in ("coco_lm", "coco_lm-no_contrast", "coco_lm-projection", "coco_lm-all_token", "coco_lm-no_stop"):
        assert look(bert, tiny.OBJECTIVES[name], dropout=0.5) == pairs
    without = look(bert, tiny.OBJECTIVES["coco_lm-no_lm"])
    assert without == {name: value for name, value in pairs.items() if not name.startswith("lm_")}
    softmax = look(bert, tiny.OBJECTIVES["coco_lm-softmax"])
    assert {n: v for n, v in softmax.items() if n[:2] != "lm"} == without, "another prediction, the same copies"


def test_cosines_alignment_and_uniformity_by_hand() -> None:
    a, b = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    units = [[row / row.norm() for row in each] for each in (a, b)]
    cosines = [float(x @ y) for x, y in zip(*units, strict=True)]
    assert paired_cosines(a, b).tolist() == pytest.approx(cosines, abs=1e-6)
    distances = [float((x - y).square().sum()) for x, y in zip(*units, strict=True)]
    assert alignment(a, b).item() == pytest.approx(np.mean(distances), abs=1e-6)
    potentials = [
        math.exp(-2 * float((x - y).square().sum())) for i, x in enumerate(units[0]) for y in units[0][i + 1 :]
    ]
    assert uniformity(a).item() == pytest.approx(math.log(np.mean(potentials)), abs=1e-6)
    assert alignment(a, 3 * a).item() == pytest.approx(0.0, abs=1e-6)
    assert uniformity(a[:1].expand(4, 5)).item() == pytest.approx(0.0, abs=1e-5)
    assert paired_cosines(a, torch.zeros_like(a)).tolist() == [0.0] * 7


def test_corrections_by_hand() -> None:
    """COCO-LM's equation 1, word by word, and its Figure 8, token by token."""
    draw = torch.Generator().manual_seed(0)
    copy_logits, words = torch.randn(40, generator=draw), 2 * torch.randn(40, 6, generator=draw)
    original, ids = torch.randint(0, 6, (2, 40), generator=draw)
    ids[:20] = original[:20]
    found = corrected(copy_logits, words, ids)
    for t in range(40):
        copied = 1 / (1 + math.exp(-copy_logits[t].item()))
        softmax = np.exp(words[t].numpy()) / np.exp(words[t].numpy()).sum()
        p = [(v == ids[t]) * copied + (1 - copied) * softmax[v] for v in range(6)]
        assert found[t] == int(np.argmax(p))
    right = [bool(found[t] == original[t]) for t in range(40)]
    shares = replaced_and_original(found == original, original, ids, "x")
    for name, same in (("x_original", True), ("x_replaced", False)):
        mine = [each for t, each in enumerate(right) if bool(original[t] == ids[t]) == same]
        assert shares[name].item() == pytest.approx(np.mean(mine))
    assert replaced_and_original(found == original, ids, ids, "x")["x_replaced"].isnan()


@pytest.mark.parametrize("name", PROBED)
def test_training_does_not_feel_a_probe(name: str, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    for probe in (probed, lambda *_: {}):
        monkeypatch.setattr(loop, "probed", probe)
        stage, inputs = tiny.post_training(bert, tiny.OBJECTIVES[name], steps=4, dropout=0.3)
        module = tiny.built(bert, stage.objective, dropout=0.3)
        outcome = train(module, inputs, stage.optim, stage.seed, log_every=1)
        ends.append((module.state_dict(), [entry["loss"] for entry in outcome.history], outcome.flops))
        measures = outcome.history[-1].get("measures", {})
        assert any(key.endswith(("context_cosine", "sequence_cosine")) for key in measures) == (probe is probed)
    (weights, losses, flops), (others, other_losses, other_flops) = ends
    assert (losses, flops) == (other_losses, other_flops)
    assert all(torch.equal(weights[key], others[key]) for key in weights)
