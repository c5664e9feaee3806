"""Does fine-tuning by the harness's loop reach the scores of a plain loop of the same recipe? Pair by pair over subsets and seeds.

    harness bench --table few_shot --preset laptop --methods ft --tasks sst2 --sizes 100 --subsets 0,1,2,3,4 --data GLUE_FOLDER
    python scripts/measure/plain_loop.py --out plain.jsonl --table few_shot --preset laptop --methods ft ...        (the same words)

The plain loop is torch and transformers alone: padded batches, the library's tokenizer, model and dropout, torch.optim.AdamW, dev scored every so
many updates and at the end, the first best state kept, then the test set. Of the harness it takes the rows and the recipe of the plan, and the
recorded scores. Head, order and dropout come from one generator, seeded with the run's seed: a pair of runs has its rows in common, not its
draws. Runs that `--out` holds already are not trained again. Prints the pairs and the differences with their interval.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from tabulate import tabulate
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, get_linear_schedule_with_warmup

from harness.cli.request import read_words
from harness.commands.prepare import prepare
from harness.scores import results_of
from harness.specs import Stage
from harness.statistics.crossed import difference, full_grid

EVALUATED = 64
"""Texts of an evaluation batch."""


class Classifier(nn.Module):
    """The library's encoder with dropout, dense, tanh, dropout and linear on the first token (docs/papers.md, D1)."""

    def __init__(self, folder: Path, labels: int, dropout: float) -> None:
        super().__init__()
        self.encoder: Any = AutoModel.from_pretrained(folder, dtype=torch.float32, add_pooling_layer=False)
        width = self.encoder.config.hidden_size
        self.dense, self.out = nn.Linear(width, width), nn.Linear(width, labels)
        for layer in (self.dense, self.out):
            nn.init.normal_(layer.weight, std=self.encoder.config.initializer_range)
            nn.init.zeros_(layer.bias)
        self.head = nn.Sequential(nn.Dropout(), self.dense, nn.Tanh(), nn.Dropout(), self.out)
        for module in self.modules():
            if isinstance(module, nn.Dropout):
                module.p = dropout

    def forward(self, **batch: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(**batch).last_hidden_state[:, 0])
        return logits


class Texts:
    """Rows as the library's tokenizer has them."""

    def __init__(self, tokenizer: Any, rows: Any, max_length: int) -> None:
        columns = [list(column) for column in zip(*rows.texts, strict=True)]
        self.encoded = tokenizer(*columns, truncation=True, max_length=max_length)
        self.labels = torch.as_tensor(rows.labels)
        self.tokenizer = tokenizer

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: list[int]) -> dict[str, Tensor]:
        """[B, longest of them] each."""
        chosen = {name: [values[row] for row in rows] for name, values in self.encoded.items()}
        batch: dict[str, Tensor] = self.tokenizer.pad(chosen, return_tensors="pt").data
        return batch


def accuracy(model: nn.Module, texts: Texts) -> float:
    model.eval()
    by_length = sorted(range(len(texts)), key=lambda row: len(texts.encoded["input_ids"][row]))
    right = 0
    with torch.no_grad():
        for start in range(0, len(texts), EVALUATED):
            rows = by_length[start : start + EVALUATED]
            right += int((model(**texts.batch(rows)).argmax(dim=1) == texts.labels[rows]).sum())
    model.train()
    return right / len(texts)


def order(size: int, batch_size: int) -> Iterator[list[int]]:
    """Endless batches of rows: epochs in random order, the last small batch of each kept."""
    while True:
        for rows in torch.randperm(size).split(batch_size):
            yield rows.tolist()


def train(stage: Stage, folder: Path, library: Mapping[str, Any]) -> dict[str, Any]:
    """One run: its dev and test accuracy, the update that dev chose, and dev at each evaluation. `library`: rows by their digest."""
    optim, data, selection = stage.optim, stage.data, stage.selection
    kind: tuple[Any, ...] = (
        stage.objective.name,
        selection and selection.metric,
        optim.precision,
        optim.schedule,
        optim.weight_decay,
    )
    if kind != ("cross_entropy", "accuracy", "fp32", "linear", 0) or len(stage.chain) > 1:
        raise SystemExit("The plain loop knows FT, accuracy, fp32 and a linear schedule without weight decay.")
    assert selection is not None
    assert data.dev is not None
    torch.manual_seed(stage.seed)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    training, dev, test = (
        Texts(tokenizer, library[rows.digest], data.max_length) for rows in (data.train, data.dev, data.tests[0])
    )
    model = Classifier(folder, data.num_labels, optim.dropout).train()
    adam = torch.optim.AdamW(
        model.parameters(), optim.lr, (optim.beta1, optim.beta2), optim.eps, weight_decay=0, fused=True
    )
    schedule = get_linear_schedule_with_warmup(adam, round(optim.warmup * optim.steps), optim.steps)
    batches, curve, chosen, state = order(len(training), optim.batch_size), [], 0, {}
    for step in range(1, optim.steps + 1):
        rows = next(batches)
        loss = nn.functional.cross_entropy(model(**training.batch(rows)), training.labels[rows])
        adam.zero_grad()
        loss.backward()
        if optim.clip:
            nn.utils.clip_grad_norm_(model.parameters(), optim.clip)
        adam.step()
        schedule.step()
        if step % selection.every and step != optim.steps:
            continue
        curve.append(accuracy(model, dev))
        if curve[-1] > max(curve[:-1], default=-1):
            chosen, state = step, {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(state)
    return {"dev": max(curve), "test": accuracy(model, test), "selected": chosen, "curve": curve}


def compared(pairs: pd.DataFrame) -> list[list[Any]]:
    """[score, pairs, both means, plain minus harness in points, its 95 % interval for crossed subsets and seeds, p] of dev and
    test, over the largest full grid in `pairs`."""
    subsets, seeds = full_grid(list(zip(pairs["subset"], pairs["seed"], strict=True)))
    rows: list[list[Any]] = []
    for name in ("dev", "test"):
        wide = pairs.pivot(index="subset", columns="seed", values=[f"{name}_plain", f"{name}_harness"])
        plain, harness = (wide[f"{name}_{loop}"].loc[subsets, seeds].to_numpy() for loop in ("plain", "harness"))
        result = difference(plain - harness, region=0.01)
        means = [f"{100 * scores.mean():.2f}" for scores in (plain, harness)]
        interval, p = result.why, ""
        if result.low is not None and result.high is not None and result.p is not None:
            interval = f"{100 * result.low:+.2f} to {100 * result.high:+.2f}"
            p = f"{result.p:.3f}"
        rows.append([name, plain.size, *means, f"{100 * result.difference:+.2f}", interval, p])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines that keeps the plain runs")
    args, words = parser.parse_known_args()
    torch.set_num_threads(1)
    prepared = prepare(read_words(["bench", *words]), train=True)
    plan = prepared.plan
    assert plan.encoders[0].folder is not None
    plain = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    for number, run in enumerate(plan.runs, 1):
        if run.stage.key not in {each["key"] for each in plain}:
            plain.append({"key": run.stage.key, **train(run.stage, plan.encoders[0].folder, plan.library)})
            with args.out.open("a") as file:
                file.write(json.dumps(plain[-1]) + "\n")
        print(f"{number}/{len(plan.runs)} plain runs", file=sys.stderr, flush=True)
    recorded = results_of(plan, prepared.store)
    recorded = recorded[(recorded["status"] == "done") & (recorded["metric"] == "accuracy")]
    pairs = recorded.merge(pd.DataFrame(plain), on="key", suffixes=("_harness", "_plain"))
    shown = ["subset", "seed", "dev_plain", "dev_harness", "test_plain", "test_harness"]
    headers = ("score", "pairs", "plain", "harness", "plain - harness", "95 % interval", "p")
    for (column, size), cell in pairs.groupby(["column", "size"]):
        print(f"{column}, {size} training examples")
        print(tabulate(cell[shown].to_dict("list"), headers="keys", floatfmt=".3f"))
        print(tabulate(compared(cell), headers=headers, disable_numparse=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
