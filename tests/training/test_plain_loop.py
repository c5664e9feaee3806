"""The training loop against a deliberately plain one: padded batches, logits everywhere, the whole vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.encoders.tokens import Tokens, Vocabulary
from harness.objectives import build
from harness.specs import Stage
from harness.streams import stream
from harness.training import loop
from harness.training.loop import Inputs, Outcome, train


class Plain:
    """The library's padded model, heads of its own, and the losses spelled out."""

    def __init__(self, folder: Path, stage: Stage, vocabulary: Vocabulary, heads: dict[str, Tensor]) -> None:
        self.model = tiny.plain_model(folder, "sdpa")
        self.stage, self.name, self.params = stage, stage.objective.name, dict(stage.objective.params)
        self.vocabulary = vocabulary
        self.heads = {name: tensor.clone().requires_grad_() for name, tensor in heads.items()}

    @property
    def parameters(self) -> list[Tensor]:
        return [*self.model.parameters(), *self.heads.values()]

    def classify(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        first = self.model.bert(**tiny.padded(tokens))[0][:, 0]
        pooled = torch.tanh(F.linear(first, self.heads["dense.weight"], self.heads["dense.bias"]))
        return first, F.linear(pooled, self.heads["out.weight"], self.heads["out.bias"])

    def corrupted(
        self, tokens: Tokens, step: int, view: int, p: float, taboo: Any = False
    ) -> tuple[Any, dict[str, Tensor]]:
        """(selected [T], padded batch of the corrupted view)."""
        draws = [stream(self.stage.seed, name, step, view) for name in ("mask", "mask_action", "mask_random")]
        size = len(tokens.ids)
        selected = (draws[0].random(size) < p) & ~tokens.special & ~np.asarray(taboo)
        action, other = draws[1].random(size), draws[2].integers(0, self.vocabulary.size, size)
        replaced = np.select([action < 0.8, action < 0.9], [self.vocabulary.mask_id, other], tokens.ids)
        return selected, tiny.padded(tokens, np.where(selected, replaced, tokens.ids))

    def loss(self, tokens: Tokens, labels: Any, step: int) -> Tensor:
        if self.name in tiny.SUPERVISED:
            first, logits = self.classify(tokens)
            plain = F.cross_entropy(logits, torch.as_tensor(labels))
            if self.name == "cross_entropy":
                return plain
            return (1 - self.params["lam"]) * plain + self.params["lam"] * self.contrast_classes(first, labels)
        selected, batch = self.corrupted(tokens, step, 0, self.params["p_m"])
        targets = tiny.padded(tokens)["input_ids"]
        chosen = tiny.padded(tokens, selected.astype(np.int64))["input_ids"].bool()
        out = self.model(**batch, output_hidden_states=True)
        mlm = F.cross_entropy(out.logits.flatten(0, 1), torch.where(chosen, targets, -100).flatten(), ignore_index=-100)
        if self.name == "mlm":
            return mlm
        h0, terms = out.hidden_states[-1][:, 0], []
        for view in range(1, self.params["num_views"] + 1):
            _, batch = self.corrupted(tokens, step, view, self.params["p_c"], selected)
            hk = self.model.bert(**batch)[0][:, 0]
            terms.append(self.contrast_views(h0, hk))
        return mlm + self.params["alpha"] * torch.stack(terms).mean()

    def contrast_views(self, h0: Tensor, hk: Tensor) -> Tensor:
        if self.params["contrast"] == "simsiam":
            z0, zk = (F.gelu(h @ self.heads["inner.weight"].T) @ self.heads["outer.weight"].T for h in (h0, hk))
            distance = F.cosine_similarity(zk, h0.detach()) + F.cosine_similarity(z0, hk.detach())
            return torch.exp(-distance / 2).mean()
        losses = []
        for a, b in zip(h0.split(self.params["contrast_group"]), hk.split(self.params["contrast_group"]), strict=True):
            scores = F.cosine_similarity(a[:, None], b[None], dim=-1) / self.params["temperature"]
            losses.append(F.cross_entropy(scores, torch.arange(len(a)), reduction="sum"))
        return torch.stack(losses).sum() / len(h0)

    def contrast_classes(self, first: Tensor, labels: Any) -> Tensor:
        total = first.sum() * 0
        for i in range(len(labels)):
            others = [j for j in range(len(labels)) if j != i]
            scores = F.cosine_similarity(first[i][None], first[others]) / self.params["temperature"]
            same = torch.as_tensor([labels[j] == labels[i] for j in others])
            if same.any():
                total = total - scores.log_softmax(0)[same].mean()
        return total / len(labels)

    def run(self, inputs: Inputs) -> Iterator[tuple[int, float]]:
        """(step, loss) with the model in the state after the step."""
        optim, step = self.stage.optim, 0
        adam = torch.optim.AdamW(self.parameters, lr=optim.lr, weight_decay=0.0, foreach=False, fused=False)
        while step < optim.steps:
            order = stream(self.stage.seed, "order", step // -(-len(inputs.train) // optim.batch_size))
            permutation = order.permutation(len(inputs.train))
            for rows in np.split(permutation, range(optim.batch_size, len(inputs.train), optim.batch_size)):
                step += 1
                labels = None if inputs.labels is None else inputs.labels[rows]
                loss = self.loss(inputs.train.take(rows), labels, step)
                adam.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.parameters, optim.clip)
                adam.param_groups[0]["lr"] = optim.lr * (1 - (step - 1) / optim.steps)
                adam.step()
                yield step, loss.item()
                if step == optim.steps:
                    return

    def logits(self, tokens: Tokens) -> Any:
        with torch.no_grad():
            return self.classify(tokens)[1].numpy()


def made(folder: Path, stage: Stage, inputs: Inputs) -> tuple[Plain, Outcome]:
    """The plain loop, ready to run from the same heads, and what the harness's found."""
    vocabulary = tiny.vocabulary(folder)
    objective = build(stage.objective, tiny.encoder(folder), vocabulary, stage.data.num_labels, 0.0, stage.seed)
    heads = {n: t.detach() for n, t in objective.state_dict().items() if not n.startswith("encoder.")}
    plain = Plain(folder, stage, vocabulary, heads)
    dev = stage.data.dev.digest if stage.data.dev else None
    outcome = train(
        objective, inputs, stage.optim, stage.seed, selection=stage.selection, dev=dev, metrics=tiny.METRICS
    )
    return plain, outcome


@pytest.mark.parametrize("name", tiny.OBJECTIVES)
def test_the_same_losses(name: str, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LOG_EVERY", 1)
    spec = tiny.OBJECTIVES[name]
    if spec.name in tiny.SUPERVISED:
        stage, inputs = tiny.fine_tuning(bert, spec, every=1, pairs=True, lr=2e-4, steps=10, dropout=0.0)
    else:
        stage, inputs = tiny.post_training(bert, spec, lr=2e-4, steps=10, dropout=0.0)
    plain, outcome = made(bert, stage, inputs)
    found = [entry["loss"] for entry in outcome.history]
    expected = [loss for _, loss in plain.run(inputs)]
    assert len(found) == 10
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert max(found) - min(found) > 1e-2  # something was learned, or at least moved


@pytest.mark.parametrize("name", tiny.SUPERVISED)
def test_the_same_selection_and_predictions(name: str, bert: Path) -> None:
    stage, inputs = tiny.fine_tuning(bert, tiny.OBJECTIVES[name], every=10, steps=40, dropout=0.0)
    plain, outcome = made(bert, stage, inputs)
    dev, test = inputs.evaluations["dev"], inputs.evaluations["test"]
    best, chosen, kept = -1.0, 0, None
    for step, _ in plain.run(inputs):
        if step % 10 == 0 and (accuracy := (plain.logits(dev[0]).argmax(1) == dev[1]).mean()) > best:
            best, chosen, kept = accuracy, step, (plain.logits(dev[0]), plain.logits(test[0]))
    assert kept is not None
    assert outcome.selected_step == chosen
    assert outcome.dev_scores == {"accuracy": best}
    for digest, logits in zip(("dev", "test"), kept, strict=True):
        assert (outcome.predictions[digest].logits.argmax(1) == logits.argmax(1)).all()
        np.testing.assert_allclose(outcome.predictions[digest].logits, logits, rtol=0, atol=1e-4)
