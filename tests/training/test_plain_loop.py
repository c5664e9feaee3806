"""The training loop against a deliberately plain one: padded batches, logits everywhere, the whole vocabulary."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModel

from harness.encoders.families import family_of
from harness.encoders.models.batch import Batch
from harness.encoders.tokens import Tokens, Vocabulary
from harness.methods import DEFINITIONS
from harness.specs import Stage
from harness.streams import stream
from harness.training import loop
from harness.training.loop import Inputs, train
from harness.training.result import Scoring, TrainingResult


class Plain:
    """The library's padded model, heads of its own, and the losses spelled out."""

    def __init__(
        self, folder: Path, stage: Stage, vocabulary: Vocabulary, heads: dict[str, Tensor], attention: str = "sdpa"
    ) -> None:
        self.model = tiny.plain_model(folder, attention)
        self.base = self.model.base_model
        self.family = family_of({"model_type": self.model.config.model_type})
        self.stage, self.name, self.params = stage, stage.objective.name, dict(stage.objective.params)
        self.vocabulary = vocabulary
        self.heads = {name: tensor.clone().requires_grad_() for name, tensor in heads.items()}
        self.auxiliary: Any = None
        self.training: Any = None
        self.word_ids: list[int] = []
        if self.name in ("mlm_head", "frozen_head"):
            self.base.requires_grad_(False)
        if self.params.get("fixed_embeddings"):
            self.base.get_input_embeddings().requires_grad_(False)
        if stage.encoder.relative_buckets:
            self.heads["encoder"] = torch.zeros(32, 4, requires_grad=True)
        if self.name in ("electra", "coco_lm", "auxiliary_mlm"):
            self.begin_replacing()

    def begin_replacing(self) -> None:
        """The auxiliary network: the library's model with the encoder's first layer alone, which is a third of two."""
        if "encoder" in self.heads:
            self.heads["auxiliary"] = torch.zeros(32, 4, requires_grad=True)
        replacements = self.params.get("replacements", "auxiliary")
        if replacements == "random":
            return
        self.auxiliary = copy.deepcopy(self.model)
        stack = self.auxiliary.base_model.get_submodule(self.family.stack)
        stack.layer = stack.layer[:1]
        if replacements == "converged":
            self.auxiliary.requires_grad_(False)
        elif self.name != "auxiliary_mlm":
            self.auxiliary.base_model.embeddings = self.base.embeddings
            self.auxiliary.get_output_embeddings().weight = self.base.get_input_embeddings().weight

    @property
    def parameters(self) -> list[Tensor]:
        models = [self.model] if self.auxiliary is None else [self.model, self.auxiliary]
        every = [*(p for model in models for p in model.parameters()), *self.heads.values()]
        return list({id(p): p for p in every if p.requires_grad}.values())

    def classify(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        if self.name == "prompt":
            return self.at_masks(tokens)
        first = self.base(**self.seen(tiny.padded(tokens)))[0][:, 0]
        pooled = torch.tanh(F.linear(first, self.heads["head.dense.weight"], self.heads["head.dense.bias"]))
        return first, F.linear(pooled, self.heads["head.out.weight"], self.heads["head.out.bias"])

    def at_masks(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """The MLM head's logits of 'bad' and 'good' at the one mask of each sequence."""
        padded = tiny.padded(tokens)
        masked = padded["input_ids"] == self.vocabulary.mask_id
        assert (masked.sum(dim=1) == 1).all()
        logits = self.model(**self.seen(padded)).logits[masked]
        return logits, logits[:, self.word_ids]

    def shown(self, tokens: Tokens, generators: Sequence[np.random.Generator], exclude: bool) -> Tokens:
        """Each cloze, then one of a 'bad' and one of a 'good' training text with its word, a separator between two."""
        training, labels = self.training
        ids: list[list[int]] = []
        for row, generator in enumerate(generators):
            own = tokens.take([row]).ids.tolist()
            for code in (0, 1):
                others = [training.take([i]).ids.tolist() for i in range(len(training)) if labels[i] == code]
                others = [other for other in others if not exclude or other != tokens.take([row]).ids.tolist()]
                drawn = others[generator.choice(np.arange(len(others)))]
                own += [self.word_ids[code] if i == self.vocabulary.mask_id else i for i in drawn[1:]]
            ids.append(own)
        lengths = np.cumsum([0, *map(len, ids)])
        flat = np.array([i for own in ids for i in own], np.int32)
        return Tokens(flat, np.zeros(len(flat), np.int8), np.zeros(len(flat), np.bool_), lengths)

    def corrupted(
        self, tokens: Tokens, step: int, view: int, p: float, taboo: Any = False
    ) -> tuple[Any, dict[str, Tensor]]:
        """(selected [T], padded batch of the corrupted view)."""
        draws = [stream(self.stage.seed, name, step, view) for name in ("mask", "mask_action", "mask_random")]
        size = len(tokens.ids)
        maskable = ~tokens.special
        if self.params.get("mask_special_tokens"):  # RoBERTa: all but the first
            maskable = np.array([t not in tokens.offsets for t in range(size)])
        selected = (draws[0].random(size) < p) & maskable & ~np.asarray(taboo)
        action, other = draws[1].random(size), draws[2].integers(0, self.vocabulary.size, size)
        replaced = np.select([action < 0.8, action < 0.9], [self.vocabulary.mask_id, other], tokens.ids)
        return selected, tiny.padded(tokens, np.where(selected, replaced, tokens.ids))

    def loss(self, tokens: Tokens, labels: Any, step: int) -> Tensor:
        if self.name == "prompt":
            tokens = self.shown(tokens, [stream(self.stage.seed, "demonstrations", step)] * len(tokens), exclude=True)
        if DEFINITIONS[self.name].labelled:
            first, logits = self.classify(tokens)
            plain = F.cross_entropy(logits, torch.as_tensor(labels))
            if self.name in ("cross_entropy", "frozen_head", "prompt"):
                return plain
            assert self.name == "scl", f"spell out the loss of objective {self.name} in Plain.loss"
            return (1 - self.params["lam"]) * plain + self.params["lam"] * self.contrast_classes(first, labels)
        if self.name == "cssl":
            halves = np.split(np.arange(len(tokens)), 2)
            h0, h1 = (self.base(**self.seen(tiny.padded(tokens.take(half))))[0][:, 0] for half in halves)
            return self.contrast_views(h0, h1)
        if self.name == "simcse":  # two equal passes: without dropout
            first = self.base(**self.seen(tiny.padded(tokens)))[0][:, 0]
            first = torch.tanh(F.linear(first, self.heads["projection.0.weight"], self.heads["projection.0.bias"]))
            return self.contrast_views(first, first)
        if self.name in ("electra", "coco_lm", "auxiliary_mlm"):
            return self.replaced(tokens, step)
        assert "p_m" in self.params, f"spell out the loss of objective {self.name} in Plain.loss"
        selected, batch = self.corrupted(tokens, step, 0, self.params["p_m"])
        targets = tiny.padded(tokens)["input_ids"]
        chosen = tiny.padded(tokens, selected.astype(np.int64))["input_ids"].bool()
        if self.params.get("token_prediction"):
            chosen = tiny.padded(tokens, (~tokens.special).astype(np.int64))["input_ids"].bool()
        out = self.model(**self.seen(batch), output_hidden_states=True)
        mlm = F.cross_entropy(out.logits.flatten(0, 1), torch.where(chosen, targets, -100).flatten(), ignore_index=-100)
        if self.name in ("mlm", "mlm_head"):
            return mlm
        if self.name == "taco":
            embedded = out.hidden_states[0]
            anchors = chosen if self.params["concentrated"] else batch["attention_mask"].bool()
            return mlm + self.params["weight"] * self.align(out.hidden_states[-1] - embedded, anchors, tokens, step)
        assert self.name == "cmlm", f"spell out the loss of objective {self.name} in Plain.loss"
        h0, terms = out.hidden_states[-1][:, 0], []
        for view in range(1, self.params["num_views"] + 1):
            _, batch = self.corrupted(tokens, step, view, self.params["p_c"], selected)
            hk = self.base(**self.seen(batch))[0][:, 0]
            terms.append(self.contrast_views(h0, hk))
        return mlm + self.params["alpha"] * torch.stack(terms).mean()

    def contrast_views(self, h0: Tensor, hk: Tensor) -> Tensor:
        if self.params["contrast"] == "simsiam":
            z0, zk = (
                F.gelu(h @ self.heads["contrast.inner.weight"].T) @ self.heads["contrast.outer.weight"].T
                for h in (h0, hk)
            )
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

    # ------------------------------------------------------------ TACO

    def align(self, g: Tensor, anchors: Tensor, tokens: Tokens, step: int) -> Tensor:
        """Mean over the anchors of -log softmax of a neighbour among itself and three tokens of other texts."""
        rows, width, lengths, reach = len(tokens), g.shape[1], tokens.lengths.tolist(), self.params["window"] // 2

        def draws(name: str, *more: int) -> Any:
            return stream(self.stage.seed, name, step).random((rows, width, *more))

        near, row, column = draws("positives"), draws("negatives_row", 3), draws("negatives_column", 3)
        others = g.detach()
        total = g.sum() * 0
        for b, i in anchors.nonzero().tolist():
            offsets = [d for d in range(-reach, reach + 1) if d and 0 <= i + d < lengths[b]]
            j = i + offsets[int(near[b, i] * len(offsets))]
            group = [s for s in range(b // 4 * 4, min(b // 4 * 4 + 4, rows)) if s != b]
            if not group:
                continue
            drawn = [group[int(u * len(group))] for u in row[b, i]]
            pairs = [(b, j), *((s, int(u * lengths[s])) for s, u in zip(drawn, column[b, i], strict=True))]
            scores = F.cosine_similarity(g[b, i][None], torch.stack([others[s, t] for s, t in pairs]))
            total = total - (scores / self.params["temperature"]).log_softmax(0)[0]
        return total / anchors.sum()

    # ------------------------------------------------------------ relative positions, ELECTRA and COCO-LM

    def seen(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """A padded batch as the encoder gets it, with its relative positions in the mask."""
        if getattr(self.model.config, "type_vocab_size", 0) < 2:
            batch = {name: tensor for name, tensor in batch.items() if name != "token_type_ids"}
        if self.family.after_padding:
            batch = {**batch, "position_ids": self.positions(batch["input_ids"])}
        if "encoder" not in self.heads:
            return batch
        return {**batch, "attention_mask": self.bias("encoder", batch["attention_mask"])}

    def bias(self, net: str, real: Tensor) -> Tensor:
        """[B, H, L, L] for the scores of every layer: T5's 32 buckets up to distance 128, nothing at padding."""

        def bucket(key_minus_query: int) -> int:
            n = abs(key_minus_query)
            grown = n if n < 8 else min(15, 8 + int(math.log(n / 8) / math.log(128 / 8) * 8))
            return grown + 16 * (key_minus_query > 0)

        width = real.shape[1]
        buckets = torch.tensor([[bucket(k - q) for k in range(width)] for q in range(width)])
        scores = self.heads[net][buckets].permute(2, 0, 1)[None]
        return scores.masked_fill(~real[:, None, None, :].bool(), torch.finfo(torch.float32).min)

    def states(self, net: str, ids: Tensor, real: Tensor, head: bool = False) -> Tensor:
        """Last hidden states [B, L, d] of the encoder or of the auxiliary network; with its MLM `head` logits [B, L, V]."""
        model = self.model if net == "encoder" else self.auxiliary
        mask = self.bias(net, real) if net in self.heads else real
        more = {"position_ids": self.positions(ids)} if self.family.after_padding else {}
        return (model if head else model.base_model)(input_ids=ids, attention_mask=mask, **more)[0]  # type: ignore[no-any-return]

    def positions(self, ids: Tensor) -> Tensor:
        """Of RoBERTa's kind; the library would not count a token that was drawn to be the padding id."""
        return (torch.arange(ids.shape[1]) + self.model.config.pad_token_id + 1).expand(ids.shape)

    def replaced(self, tokens: Tokens, step: int) -> Tensor:
        p, seed, batch = self.params, self.stage.seed, tiny.padded(tokens)
        original, real = batch["input_ids"], batch["attention_mask"]
        uniforms, rounding = stream(seed, "mask", step, 0).random(len(tokens.ids)), stream(seed, "mask_count", step)
        masked = torch.zeros_like(real, dtype=torch.bool)
        for b, (start, u) in enumerate(zip(tokens.offsets, rounding.random(len(tokens)), strict=False)):
            length = int(tokens.lengths[b])
            after_first = np.argsort(uniforms[start + 1 : start + length]) + 1
            masked[b, after_first[: int(p["p_m"] * length + u)]] = True
        targets, terms = original[masked], []
        if self.auxiliary is None:
            drawn = stream(seed, "random_replacement", step).integers(0, self.vocabulary.size, len(targets))
        else:
            ids = original.masked_fill(masked, self.vocabulary.mask_id or 0)
            logits = self.states("auxiliary", ids, real, head=True)[masked]
            if p.get("replacements", "auxiliary") == "auxiliary":
                terms.append(F.cross_entropy(logits, targets))
            drawn, laws = np.zeros(len(targets), dtype=np.int64), logits.detach().double().softmax(1).numpy()
            for m, u in enumerate(stream(seed, "replacement", step).random(len(targets))):
                drawn[m] = np.searchsorted(laws[m].cumsum(), u * laws[m].cumsum()[-1], side="right")
        if self.name == "auxiliary_mlm":
            return terms[0]
        corrupted = original.masked_scatter(masked, torch.as_tensor(drawn))
        hidden = self.states("encoder", corrupted, real)
        same, copy_logits = corrupted == original, hidden @ self.heads["detector.weight"][0]
        if p.get("rtd", True):
            weight = p["lambda_rtd"] if self.name == "electra" else p["lambda_copy"]
            chosen = real.bool()
            terms.append(weight * F.binary_cross_entropy_with_logits(copy_logits[chosen], same[chosen].float()))
        if p.get("lm", "none") != "none":
            asked = real.bool() if p["lm"] == "all_token" else masked
            law = (hidden[asked] @ self.base.get_input_embeddings().weight.T).softmax(1)
            q = law[torch.arange(len(law)), original[asked]]
            keep = copy_logits[asked].sigmoid()
            keep = keep.detach() if p.get("stop_gradient", True) else keep
            mixture = -(same[asked] * keep + (1 - keep) * q).log()
            terms.append((-q.log() if p["lm"] == "softmax" else mixture).mean())
        if p.get("contrast"):
            terms.append(self.contrast_crops(hidden[:, 0], tokens, step))
        return torch.stack(terms).sum()

    def contrast_crops(self, first: Tensor, tokens: Tokens, step: int) -> Tensor:
        """Every view picks its other view among those of its group of four texts."""
        uniforms = stream(self.stage.seed, "crop", step).random(len(tokens))
        texts = [tokens.ids[a:b].tolist() for a, b in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)]
        width = max(map(len, texts))
        ids, real = torch.zeros(len(texts), width, dtype=torch.long), torch.zeros(len(texts), width, dtype=torch.long)
        for b, (begin, *rest) in enumerate(texts):
            span = max(1, int(0.9 * len(rest)))
            start = int(uniforms[b] * (len(rest) - span + 1))
            ids[b, : span + 1] = torch.tensor([begin, *rest[start : start + span]])
            real[b, : span + 1] = 1
        views = [first, self.states("encoder", ids, real)[:, 0]]
        losses = []
        for a, b in zip(views[0].split(4), views[1].split(4), strict=True):
            both, n = torch.cat([a, b]), len(a)
            scores = F.cosine_similarity(both[:, None], both[None], dim=-1) / self.params["temperature"]
            scores = scores.masked_fill(torch.eye(2 * n, dtype=torch.bool), -1e9)
            partner = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
            losses.append(F.cross_entropy(scores, partner) * n / len(first))
        return torch.stack(losses).sum()

    # ------------------------------------------------------------ training

    def run(self, inputs: Inputs) -> Iterator[tuple[int, float]]:
        """(step, loss) with the model in the state after the step."""
        optim, step = self.stage.optim, 0
        adam = torch.optim.AdamW(self.parameters, lr=optim.lr, weight_decay=0.0, foreach=False, fused=False)
        size = len(inputs.train)
        while step < optim.steps:
            order = stream(self.stage.seed, "order", step // -(-size // optim.batch_size))
            permutation = order.permutation(size)
            for rows in np.split(permutation, range(optim.batch_size, size, optim.batch_size)):
                step += 1
                labels = None if inputs.labels is None else inputs.labels[rows]
                loss = self.loss(inputs.train.take(rows).side_by_side()[0], labels, step)
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
            if self.name == "prompt":  # the mean over draws, one after another from each text's own stream
                streams = [stream(self.stage.seed, "demonstrations_of_evaluation", row) for row in range(len(tokens))]
                draws = [self.classify(self.shown(tokens, streams, exclude=False))[1] for _ in range(tiny.PROMPT.draws)]
                return torch.stack(draws).mean(dim=0).numpy()
            return self.classify(tokens)[1].numpy()


def made(folder: Path, stage: Stage, inputs: Inputs, attention: str = "sdpa") -> tuple[Plain, TrainingResult]:
    """The plain loop, ready to run from the same heads, and what the harness's found."""
    vocabulary = tiny.vocabulary(folder)
    root = stage.encoder
    relative = (root.relative_buckets, root.relative_distance)
    objective = tiny.built(
        folder, stage.objective, seed=stage.seed, num_labels=stage.data.num_labels, relative=relative
    )
    heads = {n: t.detach() for n, t in objective.state_dict().items() if not n.startswith(("encoder.", "auxiliary."))}
    plain = Plain(folder, stage, vocabulary, heads, attention)
    plain.training = inputs.train.tokens, inputs.labels
    plain.word_ids = [tiny.tokens(folder, [(word,)]).ids[1] for word in tiny.PROMPT.words]
    outcome = train(objective, inputs, stage.optim, stage.seed, scoring=Scoring.of(stage, tiny.METRICS))
    return plain, outcome


# A narrow auxiliary has no plain counterpart in the library; tests/encoders/test_auxiliary.py has it layer by layer.
PLAIN = [name for name in tiny.OBJECTIVES if name != "electra-narrow"]
FAMILIES = ("roberta", "electra", "mpnet", "distilbert", *tiny.MORE)
"""Families besides BERT's."""


def pairs() -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Each objective on BERT, by turns with relative positions (a third of the objectives) and without, and in one other family that it trains; each
    family with objectives of all kinds."""
    for number, name in enumerate(PLAIN):
        yield name, "bert", ((32, 128) if number % 3 == 1 else (0, 0))
        kinds = [kind for kind in FAMILIES if tiny.trains(kind, name)]
        if kinds:
            yield name, kinds[number % len(kinds)], (0, 0)


@pytest.mark.parametrize(("name", "kind", "relative"), [*pairs(), ("mlm-fixed", "bert", (0, 0))])
def test_the_same_losses(
    name: str, kind: str, relative: tuple[int, int], folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "LOG_EVERY", 1)
    spec = tiny.of_method("mlm", embeddings="fixed") if name == "mlm-fixed" else tiny.OBJECTIVES[name]
    recipe: dict[str, Any] = {"lr": 2e-4, "steps": 10, "dropout": 0.0, "relative": relative}
    if DEFINITIONS[spec.name].labelled:
        stage, inputs = tiny.fine_tuning(folders[kind], spec, every=1, pairs=True, **recipe)
    else:
        stage, inputs = tiny.post_training(folders[kind], spec, **recipe)
    plain, outcome = made(folders[kind], stage, inputs, "sdpa" if kind == "bert" else "eager")
    found = [entry["loss"] for entry in outcome.history]
    expected = [loss for _, loss in plain.run(inputs)]
    assert len(found) == 10
    table = plain.heads.get("encoder")  # a frozen encoder's table stays as it is, as the rest of it does
    frozen = ("auxiliary_mlm", "mlm_head", "frozen_head")
    assert table is None or name in frozen or table.abs().max() > 1e-4, "no relative positions were trained"
    # With a weight of 50 the loss is near 40, where neighbouring floats lie 4e-6 apart: two of them, below 1e-5. TACO's is a sum of
    # two terms that reaches 11, where they lie 1e-6 apart; MLM's lies above 4, where they lie 5e-7 apart.
    rtol = 2.4e-7 if kind != "bert" or spec.name in ("electra", "coco_lm", "taco", "mlm") else 0
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-6 if kind == "bert" else 1e-5)
    assert max(found) - min(found) > 1e-2  # something was learned, or at least moved


@pytest.mark.parametrize("name", tiny.SUPERVISED)
def test_the_same_selection_and_predictions(name: str, bert: Path) -> None:
    stage, inputs = tiny.fine_tuning(bert, tiny.OBJECTIVES[name], every=5, steps=20, dropout=0.0)
    plain, outcome = made(bert, stage, inputs)
    dev, test = inputs.evaluations["dev"], inputs.evaluations["test"]
    best, chosen, kept = -1.0, 0, None
    for step, _ in plain.run(inputs):
        if step % 5 == 0 and (accuracy := (plain.logits(dev[0].tokens).argmax(1) == dev[1]).mean()) > best:
            best, chosen, kept = accuracy, step, (plain.logits(dev[0].tokens), plain.logits(test[0].tokens))
    assert kept is not None
    assert outcome.selected_step == chosen
    assert outcome.dev_scores == {"accuracy": best}
    for digest, logits in zip(("dev", "test"), kept, strict=True):
        assert (outcome.predictions[digest].logits.argmax(1) == logits.argmax(1)).all()
        np.testing.assert_allclose(outcome.predictions[digest].logits, logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "places"),
    [("bert", ("",)), ("bert", (".self.dropout",)), ("mpnet", ("",))],
    ids=["bert", "attention", "mpnet"],
)
def test_dropout_has_the_librarys_distribution(kind: str, places: tuple[str, ...], folders: dict[str, Path]) -> None:
    """In the same places with the same probability: 1,500 draws a text give logits of the same mean and variance."""
    p, repeats, rounds = 0.1, 300, 5
    rows, _ = tiny.texts(6)
    objective = tiny.built(folders[kind], tiny.OBJECTIVES["cross_entropy"], dropout=p)
    model = AutoModel.from_pretrained(folders[kind], attn_implementation="eager", dtype=torch.float32).train()
    for name, module in (*objective.named_modules(), *model.named_modules()):
        if isinstance(module, torch.nn.Dropout):
            module.p = p if name.endswith(places) else 0.0
    tokens = tiny.tokens(folders[kind], [row for row in rows for _ in range(repeats)])
    batch, padded = Batch.of(tokens, torch.device("cpu")), tiny.padded(tokens, pad=model.config.pad_token_id)
    taken = inspect.signature(model.forward).parameters
    padded = {name: tensor for name, tensor in padded.items() if name in taken}
    of_head = p if places == ("",) else 0.0

    def plain() -> Tensor:
        pooled = torch.tanh(objective.head.dense(F.dropout(model(**padded)[0][:, 0], of_head)))
        return objective.head.out(F.dropout(pooled, of_head))  # type: ignore[no-any-return]

    moments = []
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(1)
        for logits_of in (lambda: objective.predict(batch), plain):
            logits = torch.stack([logits_of().view(len(rows), repeats, 2) for _ in range(rounds)], dim=1).flatten(1, 2)
            moments.append((logits.mean(dim=1), logits.var(dim=1)))
    (mean, variance), (expected, spread) = moments
    assert (spread > 0).all()
    assert ((mean - expected).abs() < 4 * (2 * spread / (repeats * rounds)).sqrt()).all()
    assert variance.sum() / spread.sum() == pytest.approx(1, abs=0.05)
