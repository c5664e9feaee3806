"""The valid inputs that cases begin with: a small table, search space, task, point, encoder, corpus and data set."""

from __future__ import annotations

import contextlib
import json
import os
import random
from functools import cache
from pathlib import Path
from typing import Any

from fuzz.mutation import block

TABLE: dict[str, Any] = {
    "name": "small",
    "title": "A small table",
    "source": {"paper": "None", "table": "1", "citation": "nobody"},
    "protocol": "cmlm_few_shot",
    "recipe": {
        "fine_tune": {"lr": 1e-5, "batch_size": 16, "epochs": {20: 3, 100: 2}, "schedule": "linear", "warmup": 0, "weight_decay": 0, "dropout": 0.1},
        "post_train": {"lr": 1e-5, "batch_size": 8, "steps": 5, "clip": 1.0, "beta1": 0.9, "eps": 1e-8, "precision": "fp32"},
        "pre_train": {"lr": 1e-4, "batch_size": 8, "steps": 3},
    },
    "pre_train": {"corpus": "corpus.txt", "blocks": "packed", "max_length": 32, "seed": 0},
    "max_length": 32,
    "selection_every": 10,
    "sizes": [20, 100],
    "subsets": 2,
    "seeds": [31, 42],
    "tasks": ["sst2"],
    "columns": {"sst2": {"task": "sst2", "metric": "accuracy", "title": "SST-2"}},
    "rows": [
        {"name": "FT", "method": "ft"},
        {"name": "SCL", "method": "scl", "set": {"lam": 0.5, "temperature": 0.3}},
        {"name": "CMLM", "method": "cmlm", "set": {"contrast": "simclr"}},
        {"name": "Both", "method": "cmlm+scl", "set": {"cmlm.p_c": 0.7}},
        {"name": "Pre", "pre_train": "mlm", "method": "ft"},
    ],
    "aggregate": {"center": "mean", "spread": "std", "ddof": 1, "average": "per_replicate"},
    "paper": {20: {"FT": {"sst2": [0.7, 0.02]}}},
    "notes": ["a note"],
    "default_preset": "quick",
    "presets": {"quick": {"description": "all of it", "encoder": "encoder", "data": "data", "sizes": [20], "subsets": 2, "comparable": True}},
}  # fmt: skip
TASK = {"name": "reviews", "columns": ["text"], "metrics": ["accuracy", "f1"], "classes": ["bad", "good"], "title": "Reviews",
        "version": 1, "splits": {"train": "train", "validation": "validation", "test": "other"}}  # fmt: skip
POINT = {
    "method": "cmlm",
    "set": {"alpha": 0.3, "p_c": 0.5, "fine_tune.lr": 1e-5, "max_length": 32},
    "target": {"table": "small.yaml", "preset": "quick", "row": "CMLM", "tasks": ["sst2"], "sizes": [20], "subsets": [0], "seeds": [31],
               "encoder": "encoder", "data": "data", "set": ["optim.clip=1"]},
    "chosen": {"by": "tune"},
}  # fmt: skip
SPACE: dict[str, Any] = {
    "name": "own", "title": "A space", "method": "cmlm", "table": "small.yaml", "row": "CMLM", "target": {"sizes": [20], "subsets": 2, "seeds": [31]},
    "trials": 4, "sampler": "tpe", "racing": "paired",
    "defaults": {"alpha": 0.3, "p_c": 0.5, "fine_tune.lr": 1e-5, "num_views": 1, "temperature": 0.07},
    "grid": {"alpha": [0.1, 0.3], "p_c": [0.5, 0.7]},
    "search": {"alpha": {"low": 0.1, "high": 1.0, "log": True}, "p_c": {"low": 0.1, "high": 0.9, "step": 0.1}, "num_views": {"low": 1, "high": 3},
               "fine_tune.lr": {"choice": [1e-5, 2e-5]}, "temperature": {"low": 0.02, "high": 0.5, "when": {"fine_tune.lr": [1e-5]}}},
    "presets": {"quick": {"description": "some", "trials": 3}},
}  # fmt: skip
WORDS = [
    "the",
    "film",
    "was",
    "good",
    "bad",
    "a",
    "very",
    "long",
    "story",
    "and",
    "nothing",
    "else",
    "happened",
    "in",
    "it",
]


def rows(count: int, start: int) -> list[dict[str, Any]]:
    words = random.Random(start)
    return [{"text": f"{' '.join(words.choices(WORDS, k=8))} {i}", "label": i % 2} for i in range(start, start + count)]


@cache
def weights(model: str, **config: Any) -> bytes:
    """Random ones of a model of transformers."""
    import transformers
    from safetensors.torch import save

    state = getattr(transformers, model)(transformers.BertConfig(**config)).state_dict()
    return save({name: tensor for name, tensor in state.items() if ".decoder." not in name}, metadata={"format": "pt"})


def encoder_files() -> dict[str, bytes]:
    """A BERT that nothing trains."""
    config = {"model_type": "bert", "vocab_size": 32, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
              "intermediate_size": 16, "max_position_embeddings": 512, "pad_token_id": 0, "hidden_act": "gelu"}  # fmt: skip
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: i for i, word in enumerate([*special, *WORDS, *(f"##{i}" for i in range(12))])}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": word, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
                         for i, word in enumerate(special)],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {"type": "TemplateProcessing",
                           "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                           "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}}},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocabulary},
    }  # fmt: skip
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": True,
        "mask_token": "[MASK]",
        "model_max_length": 64,
    }
    return {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": json.dumps(tokenizer).encode(),
        "tokenizer_config.json": json.dumps(settings).encode(),
        "model.safetensors": weights("BertForMaskedLM", **config),
    }


def model_files() -> dict[str, bytes]:
    """A classifier as `harness export` writes it, of the encoder above with random weights."""
    files = encoder_files()
    config = json.loads(files["config.json"])
    labels = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}
    settings = {"columns": ["text"], "max_length": 32, "precision": "fp32", "task": "reviews", "form": "classifier"}
    return files | {
        "config.json": json.dumps({**config, **labels}).encode(),
        "model.safetensors": weights("BertForSequenceClassification", **config),
        "harness.json": json.dumps(settings).encode(),
    }


def record(folder: Path) -> list[str]:
    """Records of all stages of two rows of the small table in the store of `folder`, with random predictions. Returns their keys."""
    import numpy as np
    import optuna
    from optuna.distributions import FloatDistribution

    from harness.commands.prepare import prepare as prepared_of
    from harness.kinds import Predictions
    from harness.planning.request import Request
    from harness.specs import Record
    from harness.store import Owner, Store, StoredRequest

    draw, before = np.random.default_rng(0), os.getcwd()
    os.chdir(folder)
    try:
        request = Request(table="small.yaml", methods=("FT", "SCL"), data="data", encoder="encoder")
        prepared = prepared_of(request, train=True)
        prepared.store = Store(prepared.store.url)
        prepared.remember()
        owner, stages = Owner.current(), list(prepared.plan.stages.values())
        for stage in stages:
            sets = [each for each in (stage.data.dev, *stage.data.tests) if each]
            predictions = {
                each.digest: Predictions(
                    {"logits": draw.normal(size=(each.rows, 2)).astype(np.float32)}, draw.integers(0, 2, each.rows)
                )
                for each in sets
            }
            done = Record(stage.key, "done", selected_step=10, dev_scores={"accuracy": float(draw.uniform())}, flops=1e9, seconds=2.0,
                          histogram=[3, 3], history=[{"step": 10, "loss": 0.5}], predictions=predictions)  # fmt: skip
            assert prepared.store.lease(stage.key, owner) == "granted"
            assert prepared.store.commit(stage, done, owner)
        search = {
            "method": "scl",
            "space": "space.yaml",
            "mode": "grid",
            "seed": 0,
            "metric": "accuracy",
            "metrics": None,
            "set": ["optim.clip=1"],
        }
        study = StoredRequest("small", {**prepared.kept.values, "search": search}, "s")
        prepared.store.keep_request(study, [stages[0].key])
        kept = optuna.create_study(study_name="s", storage=prepared.store.url, direction="maximize")
        kept.add_trial(
            optuna.create_trial(params={"scl.lam": 0.5}, distributions={"scl.lam": FloatDistribution(0, 1)}, value=0.5)
        )
        prepared.remember()  # the last request is again the bench
    finally:
        os.chdir(before)
    return [stage.key for stage in stages]


def prepare(folder: Path) -> None:
    """All valid inputs, in `folder`."""
    for task, column in (("sst2", "sentence"), ("reviews", "text")):
        for split, count, start in (("train", 240, 0), ("validation", 60, 1000), ("other", 30, 2000)):
            path = folder / "data" / task / f"{split}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = [f"{column},label", *(f"{row['text']},{row['label']}" for row in rows(count, start))]
            path.write_text("\n".join(lines) + "\n")
    (folder / "encoder").mkdir()
    for name, raw in encoder_files().items():
        (folder / "encoder" / name).write_bytes(raw)
    (folder / "corpus.txt").write_text("\n".join(row["text"] for row in rows(50, 3000)))
    views = [json.dumps({"text": row["text"], "view_1": row["text"].upper(), "view_2": "x"}) for row in rows(240, 0)]
    (folder / "views.jsonl").write_text("\n".join(views))
    (folder / "own.csv").write_text(
        "\n".join(["text,label", *(f"{row['text']},{row['label']}" for row in rows(120, 0))])
    )
    (folder / "model").mkdir()
    for name, raw in model_files().items():
        (folder / "model" / name).write_bytes(raw)
    for name, tree in {"small": TABLE, "task": TASK, "point": POINT, "space": SPACE}.items():
        (folder / f"{name}.yaml").write_bytes(block(tree))


def published(folder: Path) -> dict[str, bytes]:
    """The results of the bench that `record` recorded in the store of `folder`, by format."""
    from views.runs import render

    from harness.commands.prepare import prepare as planned
    from harness.commands.report import caption_of, grid_of
    from harness.planning.request import Request
    from harness.scores import parquet_bytes

    with contextlib.chdir(folder):
        request = Request(table="small.yaml", methods=("FT", "SCL"), data="data", encoder="encoder")
        grid = grid_of(prepared := planned(request, train=False))
        texts = {name: render(grid, caption_of(prepared, grid), name).encode() for name in ("csv", "json")}
    return texts | {"parquet": parquet_bytes(grid.results)}
