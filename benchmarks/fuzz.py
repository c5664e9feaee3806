"""Mutated inputs for the command's entry, in this process: no case may end in a traceback, a hang or a false status.

    python benchmarks/fuzz.py [--cases 5000] [--seed 0] [--kinds table,space,...] [--case NUMBER]

A case is a command line and the files that it names. The files begin as valid ones (the packaged tables and search spaces, and a small
table, task, point, encoder, corpus, data set, translation and runtime environment made here), and then change: values, keys and parts
of YAML and JSON by their structure, any file by its bytes. Nothing trains: what would start Ray ends the case. A case passes when

- the status is 0, 1 or 2, and 0 or 1 come without an error;
- status 2 comes with one message on standard error, which begins with 'harness: ' and has at most four lines;
- it takes less than 10 s of this process's time, and five minutes by the clock, and 4 GiB more than the process has;
- no FLOPs of a plan are negative, infinite or no number.

Cases are numbered; each depends on the seed and its number alone. `--case NUMBER` runs one again, shows its command and output, and
keeps its folder. Exit status 1 when a case failed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import random
import re
import resource
import shlex
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HARNESS_OUTAGE_SECONDS": "0"}

from harness import cli
from harness.cli.parser import build_parser
from harness.yaml_files import packaged_files

CPU_SECONDS, WALL_SECONDS, MEMORY = 10.0, 300.0, 4 << 30
OTHERS = [str(Path(text).resolve()) for text in ("/dev/null", "/dev/zero", "/proc/self/mem", "/")]


class Raw(str):
    """YAML text that is written unchanged."""


NASTY: list[Any] = [
    *(0, 1, -1, 2, 7, 2**31, 2**32, 2**63, 10**30, -(10**30), 10**400),
    *(0.0, 0.5, -0.5, 1.5, 1e-320, 1e-12, 1e6, 1e300, -1e300, math.inf, -math.inf, math.nan),
    *(None, True, False, [], {}, [[]], [None], [{}], {"": 1}, {"a": {"b": []}}, [1, 2, 3], ["a", "b"]),
    *("", " ", "a", "x" * 300, "x" * 5000, "~nobody_x", "~nobody_x/a.yaml", "\0", "\ud800", "é", "\u202e", "a\nb", "%s", "{}", "{0}"),
    *("../..", ".", "..", "/dev/null", "/dev/zero", "null", "[", "0", "1e5", "1e-5", "true", "no", "hub", "hub:a/b", "${HOME}", "a:b"),
    *("ft", "scl", "cmlm", "tapt", "mlm", "taco", "coco_lm", "cssl", "electra", "cmlm+scl", "scl+scl", "cmlm+", "+", "cmlm.alpha"),
    *("accuracy", "mcc", "f1", "spearman", "flops", "sst2", "movies", "stsb", "mnli", "quick", "paper", "test", "new:tiny", "few_shot"),
    *(Raw(text) for text in ("*a", "&a [*a]", "!!set {a}", "!!set {? [a]}", "!!python/object:os.system x", "{[a]: 1}", "{? {b: 1} : 2}")),
    *(Raw(text) for text in ("!!binary aGk=", "2020-01-01", "0x1F", "0o17", "1_000", "~", ".inf", "-.inf", ".nan", "1e400", "<<", "!x 1")),
    *(Raw(text) for text in ("{<<: 1}", "{<<: [1]}", "!!int x", "!!float []", "!!timestamp x", "!!omap [a: 1]", "'''", '"', "|", "? ", "@")),
    *(Raw("[" * 150 + "]" * 150), Raw("[" * 3000), Raw("{a: " * 3000), Raw("x, " * 2000)),
    Raw("[&a [x,x,x,x,x,x,x,x,x], &b [*a,*a,*a,*a,*a,*a,*a,*a,*a], &c [*b,*b,*b,*b,*b,*b,*b,*b,*b], &d [*c,*c,*c,*c,*c,*c,*c,*c,*c], *d, *d]"),
]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ mutation


def slots(tree: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key or index) of every value below `tree`."""
    pairs = list(tree.items() if isinstance(tree, dict) else enumerate(tree)) if isinstance(tree, (dict, list)) else []
    for key, value in pairs:
        yield tree, key
        yield from slots(value)


def scaled(rng: random.Random, value: Any) -> Any:
    """Another number, word or truth value, similar to `value`."""
    if isinstance(value, bool) or value is None:
        return rng.choice([not value, str(value), 1])
    if isinstance(value, (int, float)):
        return rng.choice([-value, value + 1, value * 10**6, value / 3, float(value), str(value), [value]])
    if isinstance(value, str):
        at = rng.randrange(len(value) + 1)
        return rng.choice(
            [value[:at], value[:at] + rng.choice("xé.+:/, \n") + value[at:], value.upper(), value * 2, [value]]
        )
    return [value]


def mutate(rng: random.Random, tree: Any) -> None:
    """Change one value or key of a tree of dicts and lists in place."""
    places = list(slots(tree))
    if not places:
        return
    node, key = rng.choice(places)
    act = rng.randrange(8)
    if act <= 1:
        node[key] = rng.choice(NASTY)
    elif act == 2:
        node[key] = scaled(rng, node[key])
    elif act == 3:
        del node[key]
    elif act == 4 and isinstance(node, dict):
        new = rng.choice([scaled(rng, str(key)), rng.choice(NASTY)])
        node[new if isinstance(new, (str, int, float)) else str(new)] = node.pop(key)
    elif act == 5:
        other, place = rng.choice(places)
        node[key] = json.loads(
            json.dumps(other.get(place) if isinstance(other, dict) else (other[place:] or [0])[0], default=str)
        )
    elif act == 6 and isinstance(node, list):
        node.extend(node[:] * rng.choice([1, 1, 30]))
    elif isinstance(node[key], dict):
        node[key][rng.choice(["", "a", "name", "steps", 1, -1, 2.5, True])] = rng.choice(NASTY)
    else:
        node[key] = rng.choice(NASTY)


def noise(rng: random.Random, raw: bytes) -> bytes:
    """Flip, insert, delete or repeat some bytes."""
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(len(raw) + 1)
        end = min(len(raw), at + rng.choice([1, 1, 4, 40]))
        act = rng.randrange(5)
        if act == 0:
            raw = raw[:at] + bytes([rng.randrange(256)]) + raw[end:]
        elif act == 1:
            raw = (
                raw[:at]
                + rng.choice(
                    [
                        b"\0",
                        b"\xff",
                        b"\n",
                        b"\t",
                        b"#",
                        b": ",
                        b"- ",
                        b"[",
                        b"}",
                        b'"',
                        b",",
                        b"\xef\xbb\xbf",
                        b"&a ",
                        b"*a",
                    ]
                )
                + raw[at:]
            )
        elif act == 2:
            raw = raw[:at] + raw[end:]
        elif act == 3:
            raw = raw[:at] + raw[at:end] * rng.choice([2, 50]) + raw[end:]
        else:
            raw = raw[:at]
    return raw


def emitted(value: Any) -> str:
    """YAML in flow style."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{emitted(key)}: {emitted(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(emitted, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    with unlimited_digits():
        return json.dumps(value)


@contextlib.contextmanager
def unlimited_digits() -> Iterator[None]:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        yield
    finally:
        sys.set_int_max_str_digits(before)


def changed(rng: random.Random, tree: Any, *, plain: bool = False) -> bytes:
    """A mutated tree as a file: its first level a key a line, as YAML has it; with `plain` as JSON."""
    tree = json.loads(json.dumps(tree)) if plain else copied(tree)
    if rng.random() < 0.9:
        for _ in range(rng.choice([1, 1, 2, 3])):
            mutate(rng, tree)
    if plain:
        with unlimited_digits():
            raw = json.dumps(tree, default=str).encode("utf-8", "surrogatepass")
    else:
        raw = "\n".join(f"{emitted(key)}: {emitted(value)}" for key, value in tree.items()).encode(
            "utf-8", "surrogatepass"
        )
    return noise(rng, raw) if rng.random() < 0.2 else raw


def copied(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: copied(value) for key, value in tree.items()}
    return [copied(value) for value in tree] if isinstance(tree, list) else tree


# -------------------------------------------------------------------------------------------------------- valid inputs

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
        {"name": "Not", "skip": "for a reason"},
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
RUNTIME_ENV = {"env_vars": {"A": "b"}, "pip": ["numpy"], "working_dir": ".", "excludes": ["x"]}
WORDS = (
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
)


def rows(count: int, start: int) -> list[dict[str, Any]]:
    words = random.Random(start)
    return [{"text": f"{' '.join(words.choices(WORDS, k=8))} {i}", "label": i % 2} for i in range(start, start + count)]


def encoder_files() -> dict[str, bytes]:
    """A BERT that nothing trains: its weights are zeros."""
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
    header = json.dumps(
        {"bert.embeddings.word_embeddings.weight": {"dtype": "F32", "shape": [32, 8], "data_offsets": [0, 1024]}}
    ).encode()
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
        "model.safetensors": struct.pack("<Q", len(header)) + header + bytes(1024),
    }


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
    for name, tree in {"small": TABLE, "task": TASK, "point": POINT, "space": SPACE, "env": RUNTIME_ENV}.items():
        (folder / f"{name}.yaml").write_bytes(
            "\n".join(f"{key}: {emitted(value)}" for key, value in tree.items()).encode()
        )


# --------------------------------------------------------------------------------------------------------------- cases


@dataclass
class Case:
    """A command line, and the files in its folder besides the valid inputs."""

    words: list[str]
    files: dict[str, bytes] = field(default_factory=dict)


def table(rng: random.Random, packaged: list[Any]) -> Case:
    own = rng.random() < 0.85
    tree = TABLE if own else rng.choice(packaged[0])
    words = [rng.choice(["plan", "plan", "report", "bench"]), "--table", "own.yaml", "--data", "data"]
    words += [] if own else ["--encoder", "encoder", *rng.choice([[], ["--tasks", "sst2", "--sizes", "20"]])]
    return Case([*words, *flags(rng, words[0], 0.3)], {"own.yaml": changed(rng, tree)})


def space(rng: random.Random, packaged: list[Any]) -> Case:
    own = rng.random() < 0.9
    tree = SPACE if own else rng.choice(packaged[1])
    words = ["tune", str(tree["method"]), "--space", "own.yaml", "--data", "data", "--encoder", "encoder"]
    return Case([*words, *flags(rng, "tune", 0.3)], {"own.yaml": changed(rng, tree)})


def task(rng: random.Random, _: Any) -> Case:
    words = [
        rng.choice(["plan", "bench", "report"]),
        "--table",
        "small.yaml",
        "--tasks",
        "own.yaml",
        "--sizes",
        "20",
        "--data",
        "data",
    ]
    return Case([*words, *flags(rng, words[0], 0.3)], {"own.yaml": changed(rng, TASK)})


def point(rng: random.Random, _: Any) -> Case:
    words = [
        rng.choice(["plan", "bench", "report"]),
        "--with",
        "own.yaml",
        *rng.choice([[], [], ["--table", "small.yaml"]]),
    ]
    return Case([*words, *flags(rng, words[0], 0.3)], {"own.yaml": changed(rng, POINT)})


def data(rng: random.Random, _: Any) -> Case:
    name = rng.choice(["train", "validation"])
    body: list[Any] = [
        {"sentence": row["text"], "label": row["label"]} for row in rows(240 if name == "train" else 60, 0)
    ]
    kind = rng.choice(["csv", "jsonl", "parquet"])
    if kind == "csv":
        raw = "\n".join(["sentence,label", *(f"{row['sentence']},{row['label']}" for row in body)]).encode()
    elif kind == "jsonl":
        at = rng.randrange(len(body))
        lines = [json.dumps(row).encode() for row in body]
        lines[at] = changed(rng, body[at], plain=True)
        raw = b"\n".join(lines)
    else:
        raw = parquet(rng, body)
    raw = noise(rng, raw) if rng.random() < 0.8 else raw
    kept = "validation" if name == "train" else "train"
    files = {f"d/sst2/{name}.{kind}": raw, f"d/sst2/{kept}.csv": b"sentence,label\n" + b"a b,0\nb c,1\n" * 100}
    words = [rng.choice(["plan", "bench"]), "--table", "small.yaml", "--data", "d"]
    return Case([*words, *flags(rng, words[0], 0.1)], files)


def parquet(rng: random.Random, body: list[Any]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    column = rng.choice([[row["label"] for row in body], [float(row["label"]) for row in body], [str(row["label"]) for row in body],
                         [None for _ in body], [[1] for _ in body], [math.nan for _ in body], [b"\xff" for _ in body]])  # fmt: skip
    sink = io.BytesIO()
    pq.write_table(pa.table({"sentence": [row["sentence"] for row in body], "label": column}), sink)
    return sink.getvalue()


def encoder(rng: random.Random, _: Any) -> Case:
    files = {f"e/{name}": raw for name, raw in encoder_files().items()}
    name = rng.choice([*files, *files, "e/vocab.txt", "e/special_tokens_map.json", "e/model.safetensors.index.json"])
    if name.endswith(".json") and name in files:
        files[name] = changed(rng, json.loads(files[name]), plain=True)
    elif rng.random() < 0.2:
        files.pop(name, None)
    else:
        files[name] = noise(rng, files.get(name, b"[UNK]\nthe\n{}"))
    words = [rng.choice(["plan", "bench", "report"]), "--table", "small.yaml"]
    return Case([*words, "--encoder", rng.choice(["e", "./e", "new:tiny@e"]), *flags(rng, words[0], 0.2)], files)


def text(rng: random.Random, _: Any) -> Case:
    """Corpora and translations."""
    if rng.random() < 0.6:
        name = rng.choice(["c.txt", "c.jsonl", "c.txt.gz", "c.parquet", "c", "c.txt:x", "c.jsonl:text"])
        raw = b"\n".join(
            json.dumps(row).encode() if "json" in name else str(row["text"]).encode() for row in rows(20, 1)
        )
        raw = parquet(rng, [{"sentence": "a b", "label": 1}] * 5) if "parquet" in name else raw
        words = [
            "plan",
            "--table",
            "small.yaml",
            "--methods",
            "Pre",
            "--corpus",
            rng.choice([name, name, ".", "*", "c*", "**", "c.txt:"]),
        ]
    else:
        name = rng.choice(["v.jsonl", "v.csv", "v.parquet", "v"])
        raw = (b'{"text": "a", "view_1": "b"}\n' * 5) if "csv" not in name else b"text,view_1\na,b\n"
        words = ["plan", "--table", "small.yaml", "--methods", "cssl", "--translator", f"file:{name}"]
    return Case([*words, *flags(rng, "plan", 0.2)], {name.partition(":")[0]: noise(rng, raw)})


def job(rng: random.Random, _: Any) -> Case:
    kept = ["--store", "sqlite:////tmp/nowhere/h.db", "--storage", "/tmp/nowhere"]
    words = [
        "submit",
        "--runtime-env",
        "own.yaml",
        *flags(rng, "submit", 0.2),
        "bench",
        "--table",
        "small.yaml",
        *kept,
        *flags(rng, "bench", 0.3),
    ]
    return Case(words, {"own.yaml": changed(rng, RUNTIME_ENV)})


def arguments(rng: random.Random, _: Any) -> Case:
    name = rng.choice(["plan", "plan", "bench", "report", "tune", "show", "list", "submit"])
    words = {
        "tune": ["tune", rng.choice(["cmlm", "ft", "scl", "CMLM", "cmlm+scl", "x"]), "--space", "space.yaml"],
        "show": ["show", rng.choice(["", "0", "abc", "%", "_", "é", "\udcff", "x" * 300, "*", "'", "\0a"])],
        "list": ["list", rng.choice(["methods", "tasks", "encoders", "corpora", "translators", "task", ""])],
        "submit": [
            "submit",
            *flags(rng, "submit", 0.5),
            rng.choice(["bench", "tune", "plan", "x"]),
            "--table",
            "small.yaml",
        ],
    }.get(name, [name, "--table", "small.yaml"])
    words += (
        ["--data", "data", *(["--encoder", "encoder"] if name == "tune" else [])]
        if name in ("plan", "bench", "report", "tune")
        else []
    )
    words += flags(rng, "bench" if name == "submit" else name, 1.5)
    if rng.random() < 0.1:
        words.insert(
            rng.randrange(len(words) + 1), rng.choice(["--", "-x", "--nothing", "", "-", "--table", "\udcff", "bench"])
        )
    if rng.random() < 0.1:
        words.pop(rng.randrange(len(words)))
    return Case(words)


VALUES: dict[str, list[str]] = {
    "--table": ["small.yaml", "few_shot", "objectives", "fewshot", "nowhere.yaml", "data", "task.yaml", "/dev/zero"],
    "--space": ["space.yaml", "cmlm", "ft", "small.yaml", "x"],
    "--with": ["point.yaml", "space.yaml", "nowhere.yaml", "data"],
    "--tasks": ["sst2", "task.yaml", "sst2,task.yaml", "movies", "stsb", "nowhere.yaml", "sst2,sst2"],
    "--methods": ["ft", "FT", "cmlm+scl", "CMLM,Both", "Not", "cmlm+cmlm", "taco", "coco_lm", "electra", "cssl", "mlm", "Pre", "scl+"],
    "--encoder": ["encoder", "new:tiny", "new:tiny@encoder", "new:tiny@", "new:x", "bert-tiny", "bert-base-uncased", "a/b", "a/b/c", "data", "small.yaml"],
    "--data": ["data", "hub", "encoder", "small.yaml", "."],
    "--corpus": ["corpus.txt", "boolq_prose", "small.yaml", "hub:a/b", "hub:", "data", "*.txt", "[", "corpus.txt:x", "views.jsonl:view_1", "/dev/zero"],
    "--translator": ["file:views.jsonl", "apertium:xx", "opus-mt:de,zh", "opus-mt:", "a+b", "wmt19:de@T=x", "file:", "encoder+encoder", "file:data"],
    "--store": ["sqlite:///h.db", "sqlite:////tmp/nowhere/h.db", "sqlite:///data", "sqlite:///small.yaml", "sqlite://", "x", "postgresql://a:b@127.0.0.1:1/x", "mysql://x", "sqlite:///a%20b?x=1"],
    "--storage": ["products", "file:///tmp/nowhere", "file://x", "s3://", "s3://a:b", "gs://x?y=1", "small.yaml", "ftp://a/b", "s3:x"],
    "--preset": ["quick", "paper", "laptop", "quik"],
    "--set": ["optim.lr=1e-4", "fine_tune.steps=3", "fine_tune.epochs={20: 2}", "post_train.batch_size=4", "cmlm.alpha=0.1", "scl.lam=2", "max_length=16",
              "warm_up.steps=3", "encoder.relative_buckets=8", "pre_train.corpus=corpus.txt", "pre_train.seed=1", "cmlm.num_views=3", "ft.x=1", "=", "x", "optim=", "optim.lr", "taco.window=3",
              "cmlm.alpha={[a]: 1}", "coco_lm.crop=1.0", "optim.steps=1000000000", "fine_tune.epochs=.inf", "fine_tune.lr=!!set {}"],
    "--sizes": ["20", "100", "20,100"],
    "--subsets": ["0", "1", "0,1"],
    "--seeds": ["31", "42", "1,2"],
    "--format": ["text", "md", "latex", "csv", "json", "html"],
    "--address": ["local", "auto", "127.0.0.1:1", "x y"],
    "--sampler": ["tpe", "random", "grid", "cmaes", "nsga2", "x"],
    "--racing": ["paired", "asha", "median", "none", "x"],
    "--metric": ["accuracy", "flops", "accuracy,flops", "mcc", "accuracy,accuracy"],
    "--out": ["out", "small.yaml", "small.yaml/x", "/dev/null/x"],
    "--runtime-env": ["env.yaml", "small.yaml", "nowhere.yaml"],
    "--id": ["a", "a b", "-", "x" * 300],
}  # fmt: skip
NUMBERS = [
    "0",
    "1",
    "2",
    "20",
    "31",
    "100",
    "-1",
    "1.5",
    "1e3",
    "1e400",
    "nan",
    "inf",
    "",
    ",",
    "0,1",
    "1,1",
    "20,100",
    "x",
    "9" * 30,
    "9" * 5000,
    "4294967295",
    "4294967296",
    " 1",
    "1_0",
    "٣",
]


def flags(rng: random.Random, name: str, mean: float) -> list[str]:
    """About `mean` flags of a command, with values that may be right or wrong."""
    found: list[str] = []
    while rng.random() < mean / (1 + mean):
        flag, action = rng.choice(FLAGS[name])
        found.append(flag)
        if action.nargs == 0:
            continue
        value = rng.choice(VALUES.get(flag, ["1", "2"]) if rng.random() < 0.7 else NUMBERS)
        if rng.random() < 0.1:
            value = str(rng.choice([each for each in NASTY if isinstance(each, str) and not isinstance(each, Raw)]))
        if flag == "--set" and rng.random() < 0.3:
            value = f"{rng.choice(SET_KEYS)}={emitted(rng.choice(NASTY))}"
        found.append(value)
    return found


def flags_of() -> dict[str, list[tuple[str, argparse.Action]]]:
    """The flags of each command, from its own parser."""
    commands = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return {
        name: [
            (a.option_strings[-1], a) for a in parser._actions if a.option_strings and a.option_strings[-1] != "--help"
        ]
        or [("--help", argparse.Action([], "", nargs=0))]
        for name, parser in commands.choices.items()
    }


def set_keys() -> list[str]:
    from harness.methods import METHODS
    from harness.tables.table import Phase

    keys = [
        f"{phase}.{name}" for phase in ("optim", "fine_tune", "post_train", "pre_train") for name in Phase.model_fields
    ]
    keys += [f"{name}.{key}" for name, method in METHODS.items() for key in method.Hyperparameters.model_fields]
    return [*keys, "max_length", "warm_up.steps", "encoder.relative_buckets", "encoder.relative_distance"]


KINDS: dict[str, Callable[[random.Random, Any], Case]] = {
    each.__name__: each for each in (table, space, task, point, data, encoder, text, job, arguments)
}
FLAGS = flags_of()
SET_KEYS = set_keys()


# ------------------------------------------------------------------------------------------------------------- running


class StoppedError(BaseException):
    """Raised instead of starting Ray or a translator; it ends the case."""


class HangError(BaseException):
    """The case took too long."""


def no_training() -> None:
    import harness.cli.bench
    import harness.cli.tune

    def stop(*_: Any, **__: Any) -> Any:
        raise StoppedError

    harness.cli.bench.train = stop
    harness.cli.bench.back_translated = harness.cli.tune.back_translated = stop
    harness.cli.tune.open_study = stop
    sys.modules["harness.cluster.jobs"] = type("Jobs", (), {"Jobs": stop})  # type: ignore[assignment]


def late(number: int, _: Any) -> None:
    raise HangError("CPU time" if number == signal.SIGVTALRM else "time by the clock")


def run(case: Case, folder: Path, valid: Path) -> tuple[int | str | None, str, str]:
    """Run the case in `folder`. Returns its status (None: it raised), the fault ('' for none), and its output."""
    shutil.copytree(valid, folder, symlinks=True)
    for name, raw in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
    before = os.getcwd()
    os.chdir(folder)
    out, err = io.StringIO(), io.StringIO()
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
    status: int | str | None
    trouble = ""
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = cli.main(case.words)
    except SystemExit as error:
        status = error.code
    except StoppedError:
        status = 0
    except HangError as error:
        status, trouble = None, f"hang ({error}) at {place(error)}"
    except BaseException as error:
        status, trouble = None, f"{type(error).__name__}: {str(error)[:200]} at {place(error)}"
        err.write(traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.chdir(before)
    printed = out.getvalue() + err.getvalue()
    return status, trouble or verdict(status, out.getvalue(), err.getvalue()), printed


def verdict(status: int | str | None, out: str, err: str) -> str:
    if status not in (0, 1, 2):
        return f"status {status}"
    message = err[err.find("harness: ") :] if "harness: " in err else ""
    if (status == 2) != bool(message):
        return f"status {status} with {'a' if message else 'no'} message: {message[:200]}"
    if message.rstrip("\n").count("\n") > 3:
        return f"a message of {message.count(chr(10))} lines: {message[:200]}"
    if "this process may use is full" in err:
        return "memory"
    flops = re.search(r"stages, (\S+) FLOPs", out + err)
    if flops and not 0 <= float(flops[1]) < math.inf:
        return f"{flops[1]} FLOPs"
    return ""


def place(error: BaseException) -> str:
    """The innermost line of the harness, and the innermost line of all."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = next((f for f in reversed(frames) if f"{os.sep}harness{os.sep}" in f.filename), frames[-1])
    return " < ".join(dict.fromkeys(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in (ours, frames[-1])))


def case_of(seed: int, number: int, kinds: list[str], packaged: Any) -> tuple[str, Case]:
    rng = random.Random(f"{seed}/{number}")
    kind = kinds[number % len(kinds)]
    return kind, KINDS[kind](rng, packaged)


def plain_files(folder: str) -> list[Any]:
    from ruamel.yaml import YAML

    reader = YAML(typ="safe", pure=True)
    return [reader.load(path.read_text(encoding="utf-8")) for path in packaged_files(folder).values()]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--case", type=int, help="run this one alone and show it")
    args = parser.parse_args()
    kinds = args.kinds.split(",")
    signal.signal(signal.SIGVTALRM, late)
    signal.signal(signal.SIGALRM, late)
    sys.stdin = io.StringIO()
    no_training()
    packaged = [plain_files("benchmarks"), plain_files("search_spaces")]
    with tempfile.TemporaryDirectory(prefix="harness-fuzz-") as root:
        valid = Path(root) / "valid"
        valid.mkdir()
        prepare(valid)
        if args.case is not None:
            return show(args.seed, args.case, kinds, packaged, valid)
        resource.setrlimit(resource.RLIMIT_DATA, (mapped() + MEMORY, resource.RLIM_INFINITY))
        started, failed, ends = time.monotonic(), Counter[str](), Counter[str]()
        for number in range(args.cases):
            kind, case = case_of(args.seed, number, kinds, packaged)
            folder = Path(root) / "case"
            status, trouble, _ = run(case, folder, valid)
            shutil.rmtree(folder)
            ends[f"status {status}"] += 1
            if trouble:
                failed[re.sub(r"\d+", "N", trouble)[:80]] += 1
                print(
                    f"case {number} ({kind}): harness {shlex.join(case.words)}: {trouble}"[:1000]
                    .encode("ascii", "backslashreplace")
                    .decode(),
                    flush=True,
                )
        print(f"{args.cases:,} cases ({', '.join(f'{n} with {end}' for end, n in sorted(ends.items()))}), seed {args.seed}, in "
              f"{time.monotonic() - started:.0f} s: {failed.total()} failed, {len(failed)} kinds.")  # fmt: skip
    return 1 if failed else 0


def mapped() -> int:
    """Bytes of address space, more than what the limit counts."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def show(seed: int, number: int, kinds: list[str], packaged: Any, valid: Path) -> int:
    kind, case = case_of(seed, number, kinds, packaged)
    folder = Path(tempfile.mkdtemp(prefix=f"harness-fuzz-{number}-")) / "case"
    _, trouble, printed = run(case, folder, valid)
    print(
        f"case {number} ({kind}) in {folder}:\nharness {shlex.join(case.words)}\n{printed}\n{trouble or 'passes'}".encode(
            "ascii", "backslashreplace"
        ).decode()
    )
    return 1 if trouble else 0


if __name__ == "__main__":
    sys.exit(main())
