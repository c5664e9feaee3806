"""The valid inputs that cases begin with, in one folder: a table, search space, task, point, encoder, classifier, corpus, labelled
files, and a store of records with what is published of it."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path

import numpy as np
import optuna
import tiny

from harness.cli import main
from harness.commands.prepare import prepare as prepared_of
from harness.kinds import Predictions
from harness.planning.request import Request
from harness.specs import Record, Stage
from harness.store import Owner, Store, StoredRequest

YAML_FILES = {
    "small": """
name: small
title: A small table
source: {paper: None, table: '1', citation: nobody}
protocol: cmlm_few_shot
recipe:
  fine_tune: {lr: 1.0e-5, batch_size: 16, epochs: {20: 3, 100: 2}, schedule: linear, warmup: 0, dropout: 0.1}
  post_train: {lr: 1.0e-5, batch_size: 8, steps: 5, clip: 1.0, beta1: 0.9, eps: 1.0e-8, precision: fp32}
  pre_train: {lr: 1.0e-4, batch_size: 8, steps: 3}
pre_train: {corpus: corpus.txt, blocks: packed, max_length: 32, seed: 0}
max_length: 32
selection_every: 10
sizes: [20, 100]
subsets: 2
seeds: [31, 42]
tasks: [sst2]
columns: {sst2: {task: sst2, metric: accuracy, title: SST-2}}
rows:
- {name: FT, method: ft}
- {name: SCL, method: scl, set: {lam: 0.5, temperature: 0.3}}
- {name: CMLM, method: cmlm, set: {contrast: simclr}}
- {name: Both, method: cmlm+scl, set: {cmlm.p_c: 0.7}}
- {name: Pre, pre_train: mlm, method: ft}
aggregate: {center: mean, spread: std, ddof: 1, average: per_replicate}
paper: {20: {FT: {sst2: [0.7, 0.02]}}}
notes: [a note]
default_preset: quick
presets: {quick: {description: all of it, encoder: encoder, data: data, sizes: [20], subsets: 2, comparable: true}}
""",
    "task": """
name: reviews
columns: [text]
metrics: [accuracy, f1]
classes: [bad, good]
title: Reviews
version: 1
splits: {train: train, validation: validation, test: other}
""",
    "point": """
method: cmlm
set: {alpha: 0.3, p_c: 0.5, fine_tune.lr: 1.0e-5, max_length: 32}
target: {table: small.yaml, preset: quick, row: CMLM, tasks: [sst2], sizes: [20], subsets: [0], seeds: [31],
  encoder: encoder, data: data, set: [optim.clip=1]}
chosen: {by: tune}
""",
    "space": """
name: own
title: A space
method: cmlm
table: small.yaml
row: CMLM
target: {sizes: [20], subsets: 2, seeds: [31]}
trials: 4
racing: paired
defaults: {alpha: 0.3, p_c: 0.5, fine_tune.lr: 1.0e-5, num_views: 1, temperature: 0.07}
grid: {alpha: [0.1, 0.3], p_c: [0.5, 0.7]}
search: {alpha: {low: 0.1, high: 1.0, log: true}, p_c: {low: 0.1, high: 0.9, step: 0.1}, num_views: {low: 1, high: 3},
  fine_tune.lr: {choice: [1.0e-5, 2.0e-5]}, temperature: {low: 0.02, high: 0.5, when: {fine_tune.lr: [1.0e-5]}}}
presets: {quick: {description: some, trials: 3}}
""",
}


def texts(count: int, start: int) -> list[str]:
    words = random.Random(start)
    return [f"{' '.join(words.choices(tiny.WORDS, k=8))} {i}" for i in range(start, start + count)]


def labelled(path: Path, column: str, count: int, start: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{column},label", *(f"{text},{i % 2}" for i, text in enumerate(texts(count, start)))]
    path.write_text("\n".join(lines) + "\n")


def prepare(folder: Path) -> list[str]:
    """All valid inputs, in `folder`. Returns the keys of the records in its store."""
    for task, column in (("sst2", "sentence"), ("reviews", "text")):
        for split, count, start in (("train", 240, 0), ("validation", 60, 1000), ("other", 30, 2000)):
            labelled(folder / "data" / task / f"{split}.csv", column, count, start)
    labelled(folder / "own.csv", "text", 120, 0)
    tiny.encoder_folder(folder, "bert").rename(folder / "encoder")
    classifier(folder / "model")
    (folder / "corpus.txt").write_text("\n".join(texts(50, 3000)))
    views = [json.dumps({"text": text, "view_1": text.upper(), "view_2": "x"}) for text in texts(240, 0)]
    (folder / "views.jsonl").write_text("\n".join(views))
    for name, text in YAML_FILES.items():
        (folder / f"{name}.yaml").write_text(text)
    with contextlib.chdir(folder):
        stages = recorded()
        for kind in ("csv", "json", "parquet"):
            assert main(["report", "--out", f"results.{kind}"]) == 0
    return [stage.key for stage in stages]


def classifier(folder: Path) -> None:
    """A folder as `harness export` writes it, with random weights."""
    from transformers import BertForSequenceClassification

    config = tiny.config("bert")
    config.id2label, config.label2id = {0: "bad", 1: "good"}, {"bad": 0, "good": 1}
    BertForSequenceClassification(config).save_pretrained(folder)
    tiny.tokenizer("bert").save_pretrained(folder)
    settings = {"columns": ["text"], "max_length": 32, "precision": "fp32", "task": "reviews", "form": "classifier"}
    (folder / "harness.json").write_text(json.dumps(settings))


def recorded() -> list[Stage]:
    """Records of all stages of two rows of the small table, with random predictions, a study, and last the bench."""
    draw, owner = np.random.default_rng(0), Owner.current()
    request = Request(table="small.yaml", methods=("FT", "SCL"), data="data", encoder="encoder")
    prepared = prepared_of(request, train=True)
    prepared.store = store = Store(prepared.store.url)
    stages = list(prepared.plan.stages.values())
    for stage in stages:
        found = {
            rows.digest: Predictions(
                {"logits": draw.normal(size=(rows.rows, 2)).astype(np.float32)}, draw.integers(0, 2, rows.rows)
            )
            for rows in filter(None, (stage.data.dev, *stage.data.tests))
        }
        done = Record(stage.key, "done", selected_step=10, dev_scores={"accuracy": float(draw.uniform())}, flops=1e9)
        done.seconds, done.histogram, done.history, done.predictions = 2.0, [3, 3], [{"step": 10, "loss": 0.5}], found
        assert store.lease(stage.key, owner) == "granted"
        assert store.commit(stage, done, owner)
    search = {"method": "scl", "space": "space.yaml", "mode": "grid", "seed": 0, "metric": "accuracy", "metrics": None}
    values = {**prepared.kept.values, "search": {**search, "set": ["optim.clip=1"]}}
    store.keep_request(StoredRequest("small", values, "s"), [stages[0].key])
    study = optuna.create_study(study_name="s", storage=store.url, direction="maximize")
    drawn = {"scl.lam": optuna.distributions.FloatDistribution(0, 1)}
    study.add_trial(optuna.create_trial(params={"scl.lam": 0.5}, distributions=drawn, value=0.5))
    prepared.remember()
    return stages
