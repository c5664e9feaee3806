"""Question answering's loss against a loop in float64, its head, its split over micro-batches, and training on it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import tiny
import torch
from questions import READING, windows
from torch.utils._python_dispatch import TorchDispatchMode

from harness.encoders.models.batch import Batch
from harness.encoders.models.text_encoder import set_dropout
from harness.encoders.tokens import Examples
from harness.kinds import Spans
from harness.methods import objective
from harness.objectives import build
from harness.objectives.classification import CRITERIA
from harness.training.forward_backward import ForwardBackward, Placement
from harness.training.loop import predict
from harness.training.process_group import ProcessGroup

CPU = torch.device("cpu")
KIND = Spans(reading=READING)


def built(folder: Path) -> Any:
    made = build(objective("cross_entropy"), tiny.encoder(folder), tiny.vocabulary(folder), KIND, 1)
    set_dropout(made, 0.0)
    return made.train()


def outputs_of(module: Any, examples: Examples) -> np.ndarray[Any, Any]:
    """Start and end logits [T, 2] by the layers themselves, without a mask, in float64."""
    batch = Batch.of(examples.tokens, CPU)
    with torch.no_grad():
        states = module.encoder(batch).double().numpy()
    layers = (module.head.start, module.head.end)
    return np.stack(
        [states @ layer.weight[0].detach().double().numpy() + layer.bias.item() for layer in layers], axis=1
    )


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
def test_the_loss_is_a_naive_mean_over_windows(kind: str, folders: dict[str, Path]) -> None:
    """Of each window the mean of two cross-entropies over its context and its first token."""
    examples, labels = windows(folders[kind], 9)
    module = built(folders[kind])
    views = module.prepare(examples, labels, tiny.draw_of())
    terms = module(views.on(CPU))
    raw, tokens = outputs_of(module, examples), examples.tokens
    assert tokens.places is not None
    targets, losses, answered = KIND.targets(labels[examples.owner], tokens), [], 0
    for window, (a, b) in enumerate(zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)):
        allowed = [0] + [i for i in range(b - a) if tokens.places[a + i, 0] >= 0]
        for side in (0, 1):
            scores = raw[a:b, side][allowed]
            losses.append(np.log(np.exp(scores).sum()) - raw[a + targets[window, side], side])
        answered += int(targets[window, 1] > 0)
    assert 0 < answered < len(tokens)
    assert float(terms["cross_entropy"].detach()) == pytest.approx(float(np.mean(losses)), rel=1e-5)
    assert module.counts(views) == {"cross_entropy": len(tokens)}


class Named(TorchDispatchMode):
    """Names what is computed."""

    names: ClassVar[set[str]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


def test_the_loss_is_torchs_to_the_last_bit_by_what_cuda_repeats() -> None:
    """`nll_loss2d` raises on CUDA where algorithms have to be deterministic."""
    logits, labels = torch.randn(5, 30, 2), torch.randint(0, 9, (5, 2))
    logits[2, 9:] = float("-inf")
    found = []
    for criterion in (CRITERIA[KIND.loss], torch.nn.functional.cross_entropy):
        given = logits.clone().requires_grad_()
        with Named() if criterion is CRITERIA[KIND.loss] else nullcontext():
            loss = criterion(given, labels)
            loss.backward()
        found.append((loss, given.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert any("nll_loss" in name for name in Named.names)
    assert not any("nll_loss2d" in name for name in Named.names)


@pytest.mark.parametrize(("ranks", "micro_batch"), [(1, 1), (1, 3), (1, 5), (2, 0), (4, 0), (2, 2), (12, 0)])
def test_a_batch_split_over_ranks_and_micro_batches_is_the_batch(
    ranks: int, micro_batch: int, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A micro-batch has whole examples, of different numbers of windows; the loss stays the mean over all windows. The ranks run one after
    another, as the mean of their gradients that DistributedDataParallel takes; with twelve for nine examples some have none."""
    monkeypatch.setattr("harness.training.forward_backward.DistributedDataParallel", lambda module, **_: module)
    examples, labels = windows(bert, 9)
    found = []
    for size, at_once in ((1, 0), (ranks, micro_batch)):
        module, loss = built(bert), 0.0
        module.no_sync = nullcontext
        for rank in range(size):
            run = ForwardBackward(module, tiny.optim(), 1, Placement(CPU, ProcessGroup(rank, size), at_once))
            loss += float(run.run(module.prepare(examples, labels, tiny.draw_of()), 1)["loss"])
        parameters = dict(module.named_parameters())
        found.append((loss, {name: p.grad / size for name, p in parameters.items() if p.grad is not None}))
    (loss, whole), (added, parts) = found
    assert added == pytest.approx(loss, rel=1e-6)
    assert parts.keys() == whole.keys() > {"head.start.weight"}
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, rtol=1e-4, atol=1e-6)


def test_predictions_do_not_depend_on_how_windows_are_batched(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples, labels = windows(bert, 20)
    module = built(bert)
    whole, _ = predict(module, (examples, labels), "fp32", CPU)
    monkeypatch.setattr("harness.encoders.tokens.EVALUATION_TOKENS", 30)
    again, _ = predict(module, (examples, labels), "fp32", CPU)
    assert whole.decoded.tolist() == again.decoded.tolist()
    np.testing.assert_allclose(whole.arrays["null"], again.arrays["null"], atol=1e-5)
    offsets, starts = examples.tokens.offsets, examples.starts
    assert starts is not None
    raw = outputs_of(module, examples)
    null = [min(raw[offsets[w]].sum() for w in range(starts[i], starts[i + 1])) for i in range(len(examples))]
    np.testing.assert_allclose(whole.arrays["null"], null, atol=1e-5)
