"""Cases by kind: a command line, and one of the files that it reads, changed."""

from __future__ import annotations

import argparse
import io
import json
import lzma
import math
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz.mutation import NASTY, Raw, changed, emitted, noise
from ruamel.yaml import YAML

from harness.cli.parser import build_parser
from harness.methods import METHODS
from harness.planning.recipe import Phase
from harness.store.tables import RECORDS, REQUEST_STAGES, REQUESTS, RUNS, SNAPSHOTS

KINDS = {
    "table": (
        "small.yaml",
        "plan TABLE; bench TABLE; report TABLE --format html; report TABLE --view cost --format svg; "
        "compare TABLE --format latex",
    ),
    "packaged": (
        "benchmarks/*.yaml",
        "plan --table FILE --encoder encoder; plan --table FILE --tasks sst2 --sizes 20 --data data",
    ),
    "space": ("space.yaml", "tune cmlm --space FILE; tune cmlm --space FILE --plan"),
    "task": ("task.yaml", "plan TABLE --tasks FILE; bench TABLE --tasks FILE --sizes 20"),
    "point": ("point.yaml", "plan --with FILE; report --with FILE; bench TABLE --with FILE"),
    "data": ("data/sst2/*", "plan TABLE; bench TABLE"),
    "encoder": ("encoder/*", "plan TABLE; bench TABLE; plan TABLE --encoder new:tiny@encoder"),
    "text": (
        "corpus.txt views.jsonl",
        "plan TABLE --methods Pre --corpus FILE; plan TABLE --methods cssl --translator file:FILE",
    ),
    "results": ("results.*", "verify FILE"),
    "model": ("model/* own.csv", "predict model --input own.csv --output o.csv; predict ./model --row text"),
    "rows": (
        "own.csv",
        "init FILE; init FILE --text text --label label; plan --tasks FILE --encoder encoder; "
        "bench --tasks FILE --encoder encoder",
    ),
    "store": (
        ".harness/harness.db",
        "report; compare; report --view examples; errors KEY; show KEY; export KEY --out o; "
        "predict KEY --row a; list runs; list benches; list studies; "
        "merge p --store sqlite:///new.db; verify p; plan TABLE; report --store p",
    ),
    "arguments": (
        "",
        "plan TABLE; bench TABLE; report TABLE; compare TABLE; tune scl --space space.yaml; show KEY; "
        "list runs; errors KEY; export KEY --out o; predict model --input own.csv --output o.csv; "
        "init own.csv; publish p; doctor --clean",
    ),
}
"""The files of which one changes, and the command lines that read it: FILE; TABLE is the small table, KEY a record."""

VALUES: dict[str, str] = {
    "--table": "small.yaml | few_shot | fewshot | nowhere.yaml | data | task.yaml",
    "--space": "space.yaml | cmlm | ft | small.yaml | x",
    "--with": "point.yaml | space.yaml | nowhere.yaml | data",
    "--tasks": "sst2 | task.yaml | own.csv | movies | stsb | sst2,sst2",
    "--methods": "ft | FT | cmlm+scl | CMLM,Both | Not | cmlm+cmlm | taco | electra | mlm | scl+",
    "--encoder": "encoder | new:tiny@encoder | new:x | bert-tiny | bert-base-uncased | a/b/c | small.yaml",
    "--data": "data | hub | encoder | small.yaml | .",
    "--corpus": "corpus.txt | boolq_prose | hub: | data | * | [ | corpus.txt:x | views.jsonl:view_1 | /dev/zero",
    "--translator": "file:views.jsonl | apertium:xx | opus-mt: | a+b | wmt19:de@T=x | file: | file:data",
    "--store": "sqlite:///h.db | sqlite:///data | sqlite:// | x | postgresql://a:b@127.0.0.1:1/x | sqlite:///a%20b?x=1",
    "--storage": "artifacts | file:///tmp/nowhere | s3:// | s3://a:b | gs://x?y=1 | small.yaml | ftp://a/b",
    "--preset": "quick | paper | quik",
    "--set": "optim.lr=1e-4 | fine_tune.epochs={20: 2} | cmlm.alpha={[a]: 1} | optim.steps=1000000000 | "
    "fine_tune.epochs=.inf | fine_tune.lr=!!set {}",
    "--sizes": "20 | 100 | 20,100",
    "--format": "text | md | latex | csv | json | html",
    "--address": "local | auto | 127.0.0.1:1 | x y",
    "--metric": "accuracy | accuracy,flops | mcc | accuracy,accuracy",
    "--out": "out | small.yaml | small.yaml/x | /dev/null/x",
    "--track": "tensorboard | mlflow,wandb | x | ",
    "--against": "FT | SCL | Not | FT,SCL",
    "--split": "dev | test | validation | x",
    "--text": "text | text,label | text,text | x | ",
    "--unlabelled": "corpus.txt | own.csv | views.jsonl | data | hub:a/b | x",
    "--output": "o.csv | o.parquet | own.csv | x | data/o.jsonl",
}
WORDS = [
    *("0", "1", "2", "20", "100", "-1", "1.5", "1e400", "nan", "inf", "", ",", "0,1", "x", "9" * 5000),
    *(str(each) for each in NASTY if isinstance(each, str) and not isinstance(each, Raw)),
]  # fmt: skip
SET_KEYS = [f"{phase}.{name}" for phase in ("optim", "fine_tune", "post_train") for name in Phase.model_fields]
SET_KEYS += [f"{name}.{key}" for name, method in METHODS.items() for key in method.model_fields]
SET_KEYS += ["max_length", "mlm_head.steps", "encoder.relative_buckets"]
COMMANDS = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)).choices
COLUMNS = [
    (table.name, column.name)
    for table in (RECORDS, RUNS, REQUESTS, REQUEST_STAGES, SNAPSHOTS)
    for column in table.columns
]
COLUMNS += [
    ("trials", "state"),
    ("trial_params", "param_value"),
    ("trial_params", "distribution_json"),
    ("trial_values", "value"),
]
ODD = [None, 0, -1, 2**62, 1e308, math.inf, "", "x", b"", b"\xff", "[" * 100_000, '{"a": 1e400}', "NaN"]


def case(rng: random.Random, kind: str, folder: Path, keys: list[str]) -> list[str]:
    """Changes a file in `folder`, a copy of the valid inputs. Returns the words of the command."""
    patterns, lines = KINDS[kind]
    files = sorted(path for pattern in patterns.split() for path in folder.glob(pattern))
    path = rng.choice(files) if files else folder
    if files:
        path.write_bytes(damaged(rng, path))
        if kind == "store":
            (folder / "p").mkdir()
            (folder / "p/records.db.xz").write_bytes(lzma.compress(path.read_bytes(), preset=0))
            (folder / "p/results.csv").write_bytes((folder / "results.csv").read_bytes())
    named = {"FILE": str(path.relative_to(folder)), "KEY": rng.choice([*keys, keys[0][:12], "", "%", "\0"])}
    words = rng.choice(lines.split("; ")).replace("TABLE", "--table small.yaml --data data").split()
    words = [word.replace("FILE", named["FILE"]) if word != "KEY" else named["KEY"] for word in words]
    return [*words, *flags(rng, words[0], 1.5 if kind == "arguments" else 0.3)]


def damaged(rng: random.Random, path: Path) -> bytes:
    raw = path.read_bytes()
    structured: dict[str, Callable[[], bytes]] = {
        ".yaml": lambda: changed(rng, YAML(typ="safe", pure=True).load(raw.decode())),
        ".json": lambda: changed(rng, json.loads(raw), plain=True),
        ".jsonl": lambda: b"\n".join([changed(rng, json.loads(raw.splitlines()[0]), plain=True), raw]),
        ".parquet": lambda: nested(rng, raw),
        ".db": lambda: foreign(rng, raw),
    }
    return structured[path.suffix]() if path.suffix in structured and rng.random() < 0.8 else noise(rng, raw)


def nested(rng: random.Random, raw: bytes) -> bytes:
    """A Parquet file with other values in one column."""
    table = pq.read_table(io.BytesIO(raw))
    value = rng.choice([[1, 2], {"a": 1}, [], math.nan, math.inf, None, b"\xff", 2**62, -1, 1e300, "x", True, [[None]]])
    column, sink, at = pa.array([value] * table.num_rows), io.BytesIO(), rng.randrange(table.num_columns)
    pq.write_table(table.set_column(at, table.column_names[at], column), sink)
    return sink.getvalue()


def foreign(rng: random.Random, raw: bytes) -> bytes:
    """A store that somebody else changed."""
    made = sqlite3.connect(":memory:")
    made.deserialize(raw)
    act, table = rng.randrange(6), rng.choice(["requests", "requests", "snapshots"])
    if act == 0:
        kept, column = rng.choice(COLUMNS)
        made.execute(f'UPDATE OR IGNORE {kept} SET "{column}" = ?', (rng.choice(ODD),))
    elif act == 1:
        (blob,) = made.execute("SELECT predictions FROM records").fetchone()
        made.execute("UPDATE records SET predictions = ?", (arrays(rng, blob),))
    else:
        body = json.loads(made.execute(f"SELECT body FROM {table}").fetchone()[0])
        made.execute(f"UPDATE {table} SET body = ?", (changed(rng, body, plain=True).decode("utf-8", "replace"),))
    made.commit()
    return made.serialize()


def arrays(rng: random.Random, raw: bytes) -> bytes:
    """Predictions with other arrays."""
    with np.load(io.BytesIO(raw)) as found:
        kept = dict(found)
    name = rng.choice([*kept])
    kept[name] = rng.choice([kept[name][:-1], kept[name][:, None], kept[name].T, kept[name] * math.nan, kept[name] - 9,
                             np.zeros(0), np.zeros(()), np.array(["x"]), np.zeros(20_000_000, np.int8)])  # fmt: skip
    if rng.random() < 0.3:
        kept[rng.choice(["x", "a/b", "gold", name + "x"])] = kept.pop(name)
    sink = io.BytesIO()
    np.savez_compressed(sink, **kept)
    return sink.getvalue()


def flags(rng: random.Random, name: str, mean: float) -> list[str]:
    """About `mean` flags of a command, with values that may be right or wrong."""
    known = [action for action in COMMANDS[name]._actions if action.option_strings and action.dest != "help"]
    found: list[str] = []
    while known and rng.random() < mean / (1 + mean):
        action = rng.choice(known)
        flag = action.option_strings[-1]
        value = rng.choice(VALUES.get(flag, "1 | 2").split(" | ") if rng.random() < 0.6 else WORDS)
        if flag == "--set" and rng.random() < 0.5:
            value = f"{rng.choice(SET_KEYS)}={emitted(rng.choice(NASTY))}"
        found += [flag] if action.nargs == 0 else [flag, value]
    return found
