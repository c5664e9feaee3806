"""Seconds of the parts of a run, ours beside the library's plain ones, by turns in one process with one thread.

python scripts/measure/speed/parts.py CASE.json REPEATS FOLDER      (started by scripts/measure/speed; prints JSON)
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from case import MAX_LENGTH, Case, Opened
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

from harness.encoders.models.compact_embedding import compact
from harness.encoders.tokens import Examples, Tokens
from harness.specs import Stage
from harness.streams import stream
from harness.training.forward_backward import ForwardBackward
from harness.training.loop import predict
from harness.training.update import decay_groups, trainable

CPU = torch.device("cpu")
STEPS = 3
Part = Callable[[], object]


def plain_step(opened: Opened, stage: Stage, model: Any, loss: Callable[[Tokens, Any, int], Tensor]) -> Part:
    """Updates of a library's model: forward, backward, clipping, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=stage.optim.lr, fused=True)
    tokens, labels = opened.tokens(stage.data.train, stage.data)
    model.train()

    def run() -> None:
        for step, rows in enumerate(_batches(len(tokens), stage)):
            loss(tokens.take(rows), None if labels is None else labels[rows], step).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return run


def our_step(opened: Opened, stage: Stage) -> Part:
    """The same updates as `harness.training.loop.train` makes them."""
    objective, inputs = opened.objective(stage), opened.inputs(stage)
    if objective.has_classifier:
        compact(objective.encoder.base, torch.from_numpy(inputs.train.tokens.ids.astype(np.int64)))
    trained = trainable(objective)
    optimizer = torch.optim.AdamW(decay_groups(trained, stage.optim), lr=stage.optim.lr, fused=True)
    batches = ForwardBackward(objective, stage.optim, 0)
    objective.train()

    def run() -> None:
        for step, rows in enumerate(_batches(len(inputs.train), stage)):
            labels = None if inputs.labels is None else inputs.labels[rows]
            views = objective.prepare(inputs.train.take(rows), labels, lambda purpose, *more: stream(0, purpose, *more))
            batches.run(views, step)
            torch.nn.utils.clip_grad_norm_(list(trained.values()), 1.0, foreach=True)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return run


def padded(tokens: Tokens, width: int, ids: Any = None) -> dict[str, Tensor]:
    """[B, width] as the library takes it; 0: to the longest."""
    width = width or int(tokens.lengths.max())
    real = np.arange(width)[None, :] < tokens.lengths[:, None]
    filled = np.zeros(real.shape, dtype=np.int64)
    filled[real] = tokens.ids if ids is None else ids
    return {"input_ids": torch.from_numpy(filled), "attention_mask": torch.from_numpy(real.astype(np.int64))}


def measured(case: Case, folder: Path) -> dict[str, dict[str, Part]]:
    """By part, by who does it: what is timed."""
    fine = Opened(case, folder)
    posts = {name: Opened(replace(case, method=name), folder).runs[0].parent for name in ("tapt", "cmlm")}
    assert all(posts.values())
    found: dict[str, dict[str, Part]] = {}
    stage, where = fine.runs[0], str(fine.folder)

    def classify(width: int) -> Part:
        model = AutoModelForSequenceClassification.from_pretrained(where, num_labels=2, dtype=torch.float32)

        def loss(tokens: Tokens, labels: Any, _: int) -> Tensor:
            return model(**padded(tokens, width), labels=torch.as_tensor(labels)).loss  # type: ignore[no-any-return]

        return plain_step(fine, stage, model, loss)

    found["update of FT, batch 16"] = {
        "padded to 128": classify(MAX_LENGTH),
        "dynamic padding": classify(0),
        "harness": our_step(fine, stage),
    }
    for name, title in (("tapt", "update of MLM, batch 8"), ("cmlm", "update of CMLM, batch 8")):
        post = posts[name]
        assert post is not None
        found[title] = {
            "padded to 128": plain_step(fine, post, *masked(fine, post, MAX_LENGTH)),
            "dynamic padding": plain_step(fine, post, *masked(fine, post, 0)),
            "harness": our_step(fine, post),
        }
    assert stage.data.dev is not None
    examples, gold = fine.tokens(stage.data.dev, stage.data)
    dev = examples.tokens
    objective = fine.objective(stage)
    plain = AutoModelForSequenceClassification.from_pretrained(where, num_labels=2, dtype=torch.float32).eval()

    def evaluate(width: int) -> Part:
        def run() -> None:
            with torch.no_grad():
                for start in range(0, len(dev), 8):
                    plain(**padded(dev.take(np.arange(start, min(start + 8, len(dev)))), width))

        return run

    found[f"evaluation of {len(dev)} rows"] = {
        "padded to 128": evaluate(MAX_LENGTH),
        "dynamic padding": evaluate(0),
        "harness": lambda: predict(objective, (examples, gold), case.precision, CPU),
    }
    optimizer = torch.optim.AdamW(plain.parameters())
    for parameter in plain.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    compact(objective.encoder.base, torch.from_numpy(fine.inputs(stage).train.tokens.ids.astype(np.int64)))
    trained = trainable(objective)

    def checkpoint() -> None:
        plain.save_pretrained(folder / "checkpoint")
        torch.save(optimizer.state_dict(), folder / "checkpoint" / "optimizer.pt")

    found["best state kept"] = {
        "padded to 128": checkpoint,
        "dynamic padding": checkpoint,
        "harness": lambda: [parameter.detach().clone() for parameter in trained.values()],
    }
    texts = fine.plan.library[stage.data.dev.digest].texts

    def encode(padding: Any) -> Part:
        tokenizer = fine.tokeniser.tokenizer
        columns = [list(column) for column in zip(*texts, strict=True)]
        return lambda: tokenizer(*columns, padding=padding, truncation=True, max_length=MAX_LENGTH)

    found[f"tokenising {len(texts)} rows (harness: once a bench)"] = {
        "padded to 128": encode("max_length"),
        "dynamic padding": encode(False),
        "harness": lambda: fine.tokeniser(texts, MAX_LENGTH),
    }
    found["model of the next run, in a warm process"] = {
        "padded to 128": lambda: AutoModelForSequenceClassification.from_pretrained(where, num_labels=2),
        "dynamic padding": lambda: AutoModelForSequenceClassification.from_pretrained(where, num_labels=2),
        "harness": lambda: fine.objective(stage),
    }
    return found


def masked(fine: Opened, post: Stage, width: int) -> tuple[Any, Callable[[Tokens, Any, int], Tensor]]:
    """MLM and CMLM the plain way: a pass a view, padded, logits at every position."""
    objective = fine.objective(post)
    model: Any = AutoModelForMaskedLM.from_pretrained(str(fine.folder), dtype=torch.float32)
    contrast: Any = getattr(objective, "contrast", None)

    def loss(tokens: Tokens, _: Any, step: int) -> Tensor:
        views = objective.prepare(Examples(tokens), None, lambda purpose, *more: stream(0, purpose, step, *more))
        size = len(tokens.ids)
        labels = np.where(views.placed["predicted"], views.placed["targets"], -100)
        batch = padded(tokens, width, views.tokens.ids[:size])
        wanted = padded(tokens, width, labels)["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        out = model(**batch, labels=wanted, output_hidden_states=contrast is not None)
        if contrast is None:
            return out.loss  # type: ignore[no-any-return]
        firsts = [out.hidden_states[-1][:, 0]]
        for view in range(1, len(views.tokens.ids) // size):
            batch = padded(tokens, width, views.tokens.ids[view * size : (view + 1) * size])
            firsts.append(model.base_model(**batch)[0][:, 0])
        return out.loss + objective.weights["contrast"] * contrast(torch.stack(firsts), views)  # type: ignore[no-any-return]

    return model, loss


def _batches(size: int, stage: Stage) -> list[Any]:
    random, count = np.random.default_rng(0), min(stage.optim.batch_size, size)
    return [random.permutation(size)[:count] for _ in range(STEPS)]


def main() -> None:
    torch.set_num_threads(1)
    case = Case.read(sys.argv[1])
    repeats, folder = int(sys.argv[2]), Path(sys.argv[3])
    found: dict[str, dict[str, list[float]]] = {}
    for part, ways in measured(case, folder).items():
        share = 1 / STEPS if part.startswith("update") else 1.0
        found[part] = {way: [] for way in ways}
        for turn in range(repeats + 1):
            for way, run in ways.items():
                started = time.perf_counter()
                run()
                if turn:  # the first one makes kernels and caches
                    found[part][way].append(share * (time.perf_counter() - started))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
