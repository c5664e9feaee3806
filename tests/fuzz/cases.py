"""Cases by kind: a command line, and the mutated files that it names."""

from __future__ import annotations

import argparse
import io
import json
import lzma
import math
import random
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fuzz.inputs import POINT, SPACE, TABLE, TASK, encoder_files, model_files, rows
from fuzz.mutation import NASTY, Raw, block, changed, emitted, noise

from harness.cli.parser import build_parser
from harness.store.tables import RECORDS, REQUEST_STAGES, REQUESTS, RUNS, SNAPSHOTS

READING = ["plan", "bench", "report"]


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
    words = [rng.choice(READING), *["--table", "small.yaml", "--tasks", "own.yaml", "--sizes", "20", "--data", "data"]]
    return Case([*words, *flags(rng, words[0], 0.3)], {"own.yaml": changed(rng, TASK)})


def point(rng: random.Random, _: Any) -> Case:
    words = [rng.choice(READING), "--with", "own.yaml", *rng.choice([[], [], ["--table", "small.yaml"]])]
    return Case([*words, *flags(rng, words[0], 0.3)], {"own.yaml": changed(rng, POINT)})


def data(rng: random.Random, _: Any) -> Case:
    name = rng.choice(["train", "validation"])
    count = 240 if name == "train" else 60
    body: list[Any] = [{"sentence": row["text"], "label": row["label"]} for row in rows(count, 0)]
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
    if rng.random() < 0.3:
        files["e/model.safetensors"] = renamed(rng, files["e/model.safetensors"])
    elif name.endswith(".json") and name in files:
        files[name] = changed(rng, json.loads(files[name]), plain=True)
    elif rng.random() < 0.2:
        files.pop(name, None)
    else:
        files[name] = noise(rng, files.get(name, b"[UNK]\nthe\n{}"))
    words = [rng.choice(READING), "--table", "small.yaml"]
    return Case([*words, "--encoder", rng.choice(["e", "./e", "new:tiny@e"]), *flags(rng, words[0], 0.2)], files)


def renamed(rng: random.Random, raw: bytes) -> bytes:
    """Weights of which some are left out, have other names, or are there twice."""
    from safetensors.torch import load, save

    tensors = load(raw)
    for name in rng.sample(sorted(tensors), rng.choice([1, 1, 3, 12])):
        tensor = tensors[name] if rng.random() < 0.3 else tensors.pop(name)
        number = name.replace("layer.0", f"layer.{rng.randrange(3)}")
        other = rng.choice(["", name.removeprefix("bert."), f"lm_predictions.{name}", number, rng.choice(NASTY)])
        tensors |= {str(other).encode("utf-8", "replace").decode(): tensor.clone()} if other else {}
    return save(tensors)


def text(rng: random.Random, _: Any) -> Case:
    """Corpora and translations."""
    if rng.random() < 0.6:
        name = rng.choice(["c.txt", "c.jsonl", "c.txt.gz", "c.parquet", "c", "c.txt:x", "c.jsonl:text"])
        lines = [json.dumps(row) if "json" in name else str(row["text"]) for row in rows(20, 1)]
        raw = "\n".join(lines).encode()
        raw = parquet(rng, [{"sentence": "a b", "label": 1}] * 5) if "parquet" in name else raw
        corpus = rng.choice([name, name, ".", "*", "c*", "**", "c.txt:"])
        words = ["plan", "--table", "small.yaml", "--methods", "Pre", "--corpus", corpus]
    else:
        name = rng.choice(["v.jsonl", "v.csv", "v.parquet", "v"])
        raw = (b'{"text": "a", "view_1": "b"}\n' * 5) if "csv" not in name else b"text,view_1\na,b\n"
        words = ["plan", "--table", "small.yaml", "--methods", "cssl", "--translator", f"file:{name}"]
    return Case([*words, *flags(rng, "plan", 0.2)], {name.partition(":")[0]: noise(rng, raw)})


def results(rng: random.Random, packaged: list[Any]) -> Case:
    """A published file, and the store that it was printed from."""
    kind = rng.choice(["csv", "json", "parquet"])
    raw: bytes = packaged[3][kind]
    if kind == "json" and rng.random() < 0.7:
        raw = changed(rng, json.loads(raw), plain=True)
    elif kind == "parquet" and rng.random() < 0.7:
        raw = nested(rng, raw)
    else:
        raw = noise(rng, raw)
    return Case(["verify", f"own.{kind}", *flags(rng, "verify", 0.1)], {f"own.{kind}": raw})


def nested(rng: random.Random, raw: bytes) -> bytes:
    """A Parquet file with other values in one column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(raw))
    values = rng.choice(
        [[1, 2], {"a": 1}, [], math.nan, math.inf, None, b"\xff", 2**62, -1, 1e300, "x", True, [[None]]]
    )
    column, sink = pa.array([values] * table.num_rows), io.BytesIO()
    at = rng.randrange(table.num_columns)
    pq.write_table(table.set_column(at, table.column_names[at], column), sink)
    return sink.getvalue()


def arguments(rng: random.Random, _: Any) -> Case:
    name = rng.choice(["plan", "plan", "bench", "report", "tune", "show", "list"])
    small = ["--table", "small.yaml"]
    words = {
        "tune": ["tune", rng.choice(["cmlm", "ft", "scl", "CMLM", "cmlm+scl", "x"]), "--space", "space.yaml"],
        "show": ["show", rng.choice(["", "0", "abc", "%", "_", "é", "\udcff", "x" * 300, "*", "'", "\0a"])],
        "list": ["list", rng.choice(["methods", "tasks", "encoders", "corpora", "translators", "task", ""])],
    }.get(name, [name, *small])
    words += ["--data", "data"] if name in (*READING, "tune") else []
    words += ["--encoder", "encoder"] if name == "tune" else []
    words += flags(rng, name, 1.5)
    if rng.random() < 0.1:
        at = rng.randrange(len(words) + 1)
        words.insert(at, rng.choice(["--", "-x", "--nothing", "", "-", "--table", "\udcff", "bench"]))
    if rng.random() < 0.1:
        words.pop(rng.randrange(len(words)))
    return Case(words)


TITLES = [
    r"$\frac{1}$", "$", "$_", "\x07", "\x1b[31m", "\ufffe", "<b>&amp;", "| a", "\\textbf{", "a\nb", "é\u202e", "", " ", "x" * 300, "{}", "%s",
]  # fmt: skip


def titled(rng: random.Random, keys: list[Any]) -> Case:
    """A recorded table whose texts are anything, as a page, a file and a figure."""
    tree = json.loads(json.dumps({key: value for key, value in TABLE.items() if key != "paper"}))  # it names rows
    for place, key in ((tree, "title"), (tree["columns"]["sst2"], "title"), (tree["rows"][0], "name"), (tree["rows"][1], "name"),
                       (tree["notes"], 0), (tree["source"], "citation"), (tree["presets"]["quick"], "description")):  # fmt: skip
        if rng.random() < 0.4:
            place[key] = rng.choice(TITLES)
    own = changed(rng, tree) if rng.random() < 0.2 else block(tree)
    words = ["--table", "own.yaml", "--data", "data"]
    if rng.random() < 0.4:
        words = ["compare", *words, "--format", rng.choice(["text", "md", "latex", "csv", "json"])]
    elif rng.random() < 0.5:
        figure = ["--view", rng.choice(["cost", "variance", "differences", "context", "figure"])]
        words = ["report", *words, *figure, "--format", rng.choice(["svg", "png", "pdf", "csv"])]
    else:
        words = ["report", *words, "--format", rng.choice(["html", "latex", "md", "json", "csv", "text"])]
    return Case(
        [*words, *rng.choice([[], ["--out", "written"], ["--out", "own.yaml"]]), *flags(rng, words[0], 0.3)],
        {"own.yaml": own},
    )


def model(rng: random.Random, _: Any) -> Case:
    """Predictions by a damaged folder, or of a damaged file."""
    files = {f"m/{name}": raw for name, raw in MODEL.items()}
    given = b"\n".join([b"text,label", *(f"{row['text']},{row['label']}".encode() for row in rows(5, 1))])
    name = rng.choice([*files, "m/config.json", "m/config.json", "m/classifier.safetensors", "i.csv"])
    if name.endswith(".json"):
        files[name] = changed(rng, json.loads(files[name]), plain=True)
        if rng.random() < 0.1:
            files[name] = rng.choice([b"[" * 100_000, b"7", b"null", b"[]", b'"x"'])
    elif name == "i.csv":
        given = noise(rng, given)
    elif rng.random() < 0.1:
        files.pop(name, None)
    else:
        files[name] = noise(rng, files.get(name, MODEL["model.safetensors"]))
    source = rng.choice(["m"] * 8 + ["./m", "~nobody_x/m", "\0", "m/config.json", "x" * 300])
    words = [
        "predict", source, "--input", "i.csv", "--output", rng.choice(["o.csv", "o.jsonl", "o.parquet", "i.csv", "o"]),
    ]  # fmt: skip
    return Case([*words, *flags(rng, "predict", 0.2)], files | {"i.csv": given})


def own_file(rng: random.Random, _: Any) -> Case:
    """A file of labelled rows, planned or described."""
    lines = [b"text,label", *(f"{row['text']},{row['label']}".encode() for row in rows(120, 0))]
    if rng.random() < 0.5:
        at = rng.randrange(len(lines))
        odd = [
            b"", b",", b'"', b"a,", b",1", b"a,b,c", b"\xff,1", b"a,nan", b"a,1e400", b"$x$,1", "é,☃".encode(), b"\0,0", b"x" * 200_000 + b",1",
        ]  # fmt: skip
        lines[at] = rng.choice(odd)
    lines[:1] = rng.choice([lines[:1]] * 5 + [[], [b"sep=;", b"text;label"], [b"", *lines[:1]], [b"x" * 200_000]])
    raw = b"\n".join(lines)
    raw = noise(rng, raw) if rng.random() < 0.6 else raw
    name = rng.choice(["f.csv"] * 5 + ["f.tsv", "f.jsonl", "f.csv.gz", "f.parquet", "$x$.csv", "\x07.csv", "f"])
    if rng.random() < 0.5:
        more = rng.choice([[], ["--text", "text"], ["--text", "text", "--label", "label"], ["--out", "o.yaml"]])
        words = ["init", name, *more]
    else:
        words = [rng.choice(["plan", "bench"]), "--tasks", name, "--encoder", "encoder"]
        words += rng.choice([[], ["--text", "text"]])
    return Case([*words, *flags(rng, words[0], 0.4)], {name: raw})


def recorded(rng: random.Random, packaged: list[Any]) -> Case:
    """Runs by their keys; what is trained again ends the case."""
    key = rng.choice(packaged[2])
    key = rng.choice([key, key[:12], key[:3], key[:1], key.upper(), "", "%", "\0", "0" * 32])
    words = {
        "export": ["export", key, "--out", rng.choice(["o", "model", "small.yaml", "small.yaml/x", "\0"])],
        "errors": ["errors", key, *rng.choice([[], ["--split", rng.choice(["dev", "test", "validation", "x", ""])]])],
        "predict": ["predict", key, "--input", "own.csv", "--output", "o.csv"],
        "compare": ["compare", "--table", "small.yaml", "--data", "data"],
        "report": ["report", "--table", "small.yaml", "--data", "data"],
        "bench": ["bench", "--table", "small.yaml", "--data", "data"],
    }[rng.choice(["export", "export", "errors", "errors", "predict", "compare", "report", "bench"])]
    return Case([*words, *flags(rng, words[0], 1)])


KEPT = [
    (table.name, column.name)
    for table in (RECORDS, RUNS, REQUESTS, REQUEST_STAGES, SNAPSHOTS)
    for column in table.columns
]
KEPT += [
    ("trials", "state"),
    ("trial_params", "param_value"),
    ("trial_params", "distribution_json"),
    ("trial_values", "value"),
    ("studies", "study_name"),
]
DOORS = ["report", "report", "compare", "report --view examples", "errors KEY", "show KEY", "export KEY --out o", "predict KEY --row a", "list runs", "list benches",
         "list studies", "report --study s", "merge f --store sqlite:///new.db", "verify p", "plan --table small.yaml --data data"]  # fmt: skip
SCHEMAS = [
    "CREATE VIEW records AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT old.* FROM old, n WHERE i < 0",
    "CREATE VIEW records AS SELECT * FROM old", "CREATE TABLE records AS SELECT * FROM old", "CREATE TABLE records (key TEXT, status TEXT)",
    "CREATE TABLE records (status TEXT, key TEXT AS (hex(zeroblob(100000000))))",
    "CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM old; END", "CREATE VIRTUAL TABLE records USING fts4(x)",
]  # fmt: skip


def foreign(rng: random.Random, packaged: list[Any]) -> Case:
    """A store that somebody else changed, as a file and as a published folder."""
    made = sqlite3.connect(":memory:")
    made.deserialize(packaged[4])
    act, table = rng.randrange(8), rng.choice(["requests"] * 3 + ["snapshots"])
    odd = [None, 0, -1, 2**62, 1e308, math.inf, "", "x", b"", b"\xff", "[" * 100_000, '{"a": 1e400}', "NaN"]
    if act == 0:
        made.execute("ALTER TABLE records RENAME TO old")
        made.execute(rng.choice(SCHEMAS))
    elif act == 1:
        kept, column = rng.choice(KEPT)
        made.execute(f'UPDATE OR IGNORE {kept} SET "{column}" = ?', (rng.choice(odd),))
    elif act == 2:
        (blob,) = made.execute("SELECT predictions FROM records").fetchone()
        made.execute("UPDATE records SET predictions = ?", (arrays(rng, blob),))
    else:
        body = json.loads(made.execute(f"SELECT body FROM {table}").fetchone()[0])
        made.execute(f"UPDATE {table} SET body = ?", (changed(rng, body, plain=True).decode("utf-8", "replace"),))
    made.commit()
    raw = made.serialize()
    raw = noise(rng, raw) if rng.random() < 0.1 else raw
    place = rng.choice(["sqlite:///f.db", "p"])
    words = [{"KEY": packaged[2][0], "f": place}.get(word, word) for word in rng.choice(DOORS).split()]
    words += ["--store", place] if words[0] not in ("merge", "verify") else []
    files = {"f.db": raw, "p/records.db.xz": lzma.compress(raw, preset=0), "p/results.csv": packaged[3]["csv"]}
    return Case([*words, *flags(rng, words[0], 0.1)], files)


def arrays(rng: random.Random, raw: bytes) -> bytes:
    """Predictions with other arrays, or with other bytes."""
    if rng.random() < 0.4:
        return noise(rng, raw)
    with np.load(io.BytesIO(raw)) as found:
        kept = dict(found)
    name = rng.choice([*kept])
    kept[name] = rng.choice([kept[name][:-1], kept[name][:, None], kept[name].T, kept[name] * math.nan, kept[name] - 1000, kept[name].astype(bool),
                             np.zeros(0), np.zeros(()), np.array(["x"]), np.zeros(20_000_000, np.int8), np.full_like(kept[name], 7)])  # fmt: skip
    if rng.random() < 0.3:
        kept[rng.choice(["x", "a/b", "gold", name + "x"])] = kept.pop(name)
    sink = io.BytesIO()
    np.savez_compressed(sink, **kept)
    return sink.getvalue()


VALUES: dict[str, list[str]] = {
    "--table": ["small.yaml", "few_shot", "objectives", "fewshot", "nowhere.yaml", "data", "task.yaml"],
    "--space": ["space.yaml", "cmlm", "ft", "small.yaml", "x"],
    "--with": ["point.yaml", "space.yaml", "nowhere.yaml", "data"],
    "--tasks": ["sst2", "task.yaml", "sst2,task.yaml", "movies", "stsb", "nowhere.yaml", "sst2,sst2"],
    "--methods": ["ft", "FT", "cmlm+scl", "CMLM,Both", "Not", "cmlm+cmlm", "taco", "coco_lm", "electra", "cssl", "mlm", "Pre", "scl+"],
    "--encoder": ["encoder", "new:tiny", "new:tiny@encoder", "new:tiny@", "new:x", "bert-tiny", "bert-base-uncased", "a/b", "a/b/c", "data", "small.yaml"],
    "--data": ["data", "hub", "encoder", "small.yaml", "."],
    "--corpus": ["corpus.txt", "boolq_prose", "small.yaml", "hub:a/b", "hub:", "data", "*.txt", "[", "corpus.txt:x", "views.jsonl:view_1", "/dev/zero"],
    "--translator": ["file:views.jsonl", "apertium:xx", "opus-mt:de,zh", "opus-mt:", "a+b", "wmt19:de@T=x", "file:", "encoder+encoder", "file:data"],
    "--store": ["sqlite:///h.db", "sqlite:////tmp/nowhere/h.db", "sqlite:///data", "sqlite:///small.yaml", "sqlite://", "x", "postgresql://a:b@127.0.0.1:1/x", "mysql://x", "sqlite:///a%20b?x=1"],
    "--storage": ["artifacts", "file:///tmp/nowhere", "file://x", "s3://", "s3://a:b", "gs://x?y=1", "small.yaml", "ftp://a/b", "s3:x"],
    "--preset": ["quick", "paper", "laptop", "quik"],
    "--set": ["optim.lr=1e-4", "fine_tune.steps=3", "fine_tune.epochs={20: 2}", "post_train.batch_size=4", "cmlm.alpha=0.1", "scl.lam=2", "max_length=16",
              "mlm_head.steps=3", "encoder.relative_buckets=8", "pre_train.corpus=corpus.txt", "pre_train.seed=1", "cmlm.num_views=3", "ft.x=1", "=", "x", "optim=", "optim.lr", "taco.window=3",
              "cmlm.alpha={[a]: 1}", "coco_lm.crop=1.0", "optim.steps=1000000000", "fine_tune.epochs=.inf", "fine_tune.lr=!!set {}"],
    "--sizes": ["20", "100", "20,100"],
    "--subsets": ["0", "1", "0,1"],
    "--seeds": ["31", "42", "1,2"],
    "--format": ["text", "md", "latex", "csv", "json", "html"],
    "--address": ["local", "auto", "127.0.0.1:1", "x y"],
    "--sampler": ["tpe", "gp", "random", "grid", "x"],
    "--racing": ["paired", "asha", "median", "none", "x"],
    "--metric": ["accuracy", "flops", "accuracy,flops", "mcc", "accuracy,accuracy"],
    "--out": ["out", "small.yaml", "small.yaml/x", "/dev/null/x"],
    "--track": ["tensorboard", "mlflow,wandb", "tensorboard,tensorboard", "x", ""],
    "--view": ["cost", "variance", "context", "examples", "figure", "ranks"],
    "--against": ["FT", "SCL", "Not", "x", "FT,SCL"],
    "--region": ["0.5", "1,2", "-1", "x"],
    "--split": ["dev", "test", "validation", "x"],
    "--update": ["10", "selected", "last", "0"],
    "--text": ["text", "label", "text,label", "text,text", "x", ""],
    "--label": ["label", "text", "x", "stars=1"],
    "--kind": ["classes", "regression", "number", "x"],
    "--test": ["own.csv", "views.jsonl", "data", "x"],
    "--dev": ["own.csv", "small.yaml", "x"],
    "--unlabelled": ["corpus.txt", "own.csv", "views.jsonl", "data", "hub:a/b", "x"],
    "--output": ["o.csv", "o.parquet", "own.csv", "x", "data/o.jsonl"],
    "--license": ["apache-2.0", "x y", "", "A"],
    "--push": ["a/b", "a", "a/b/c", "x y"],
}  # fmt: skip
NUMBERS = [
    *("0", "1", "2", "20", "31", "100", "-1", "1.5", "1e3", "1e400", "nan", "inf", "", ",", "0,1", "1,1", "20,100", "x"),
    *("9" * 30, "9" * 5000, "4294967295", "4294967296", " 1", "1_0", "٣"),
]  # fmt: skip


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
    """The flags of each command, from its own parser; --help where it has no other."""
    commands = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    found = {}
    for name, parser in commands.choices.items():
        own = [(action.option_strings[-1], action) for action in parser._actions if action.option_strings]
        found[name] = [pair for pair in own if pair[0] != "--help"] or own
    return found


def set_keys() -> list[str]:
    from harness.methods import METHODS
    from harness.planning.recipe import Phase

    phases = ("optim", "fine_tune", "post_train", "pre_train")
    keys = [f"{phase}.{name}" for phase in phases for name in Phase.model_fields]
    keys += [f"{name}.{key}" for name, method in METHODS.items() for key in method.model_fields]
    return [*keys, "max_length", "mlm_head.steps", "encoder.relative_buckets", "encoder.relative_distance"]


MAKERS = (table, space, task, point, data, encoder, text, results, arguments, titled, model, own_file, recorded, foreign)  # fmt: skip
KINDS: dict[str, Callable[[random.Random, Any], Case]] = {each.__name__: each for each in MAKERS}
FLAGS = flags_of()
MODEL = model_files()
SET_KEYS = set_keys()
