"""Files of rows for the tests of `harness.tasks`, and what protocols make of them."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.tasks.inferred import infer_task
from harness.tasks.overlap import normalised
from harness.tasks.protocol import Protocol
from harness.tasks.reading import read_labelled, read_rows
from harness.tasks.rows import Rows
from harness.tasks.sources import TextSource, open_source
from harness.tasks.task import Task


def inferred(path: Path | str, **said: Any) -> Task:
    return infer_task(str(path), lambda name: f"--{name}", open_source(), **said)


def read(path: Path, task: Task) -> Rows:
    return read_rows([read_labelled(path, task.columns, task.label)], task)


def write_file(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Rows as Parquet, CSV or JSONL, by the ending of `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    elif path.suffix in (".csv", ".tsv"):
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_coded(path: Path, rows: Sequence[dict[str, Any]], label: str, names: Sequence[str]) -> Path:
    """Rows as `datasets` writes them into Parquet: codes, and in the schema the name of each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    features = {label: {"names": [*names], "_type": "ClassLabel"}}
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(list(rows))
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})}), path)
    return path


def single(count: int, classes: int = 2, start: int = 0) -> list[dict[str, Any]]:
    """Rows of a single-text task: different sentences, labels in turn."""
    return [{"sentence": f"Sentence number {i}, told.", "label": i % classes} for i in range(start, start + count)]


def pairs(count: int, first: str, second: str, classes: int = 2) -> list[dict[str, Any]]:
    """Rows of a pair task; every third first sentence is repeated."""
    return [{first: f"First {i // 3}.", second: f"Second {i}.", "label": i % classes} for i in range(count)]


def forms(rows: Rows) -> set[tuple[str, ...]]:
    """The rows by their normalised texts."""
    return {tuple(map(normalised, texts)) for texts in rows.texts}


def cut(protocol: Protocol, task: Task, source: TextSource, size: int = 0, subset: int = 0) -> tuple[Rows, Rows, Rows]:
    """(train, dev, test), as a run reads them."""
    tests = protocol.evaluation_sets(task, source).tests
    train, dev = protocol.training_set(task, source, size, subset), protocol.dev_set(task, source, size, subset)
    return train, dev, next(iter(tests.values()))


def skewed(folder: Path, order: int, train: int = 240) -> TextSource:
    """SST-2 with three positive rows of four, every fifth training text three times in other letters, and five training texts that are in
    validation too; in an order and a format of its own."""
    rows: list[dict[str, Any]] = []
    for i in range(train):
        rows.append({"sentence": f"Train {i}.", "label": int(i % 4 > 0)})
        rows += [{"sentence": f"train {i}", "label": int(i % 4 > 0)}, {"sentence": f"TRAIN {i}!", "label": 0}] * (
            i % 5 == 0
        )
    rows += [{"sentence": f"Validation {i}", "label": i % 2} for i in range(5)]
    test = [{"sentence": f"validation {i}", "label": i % 2} for i in range(90)]
    for name, each in (("train", rows), ("validation", test)):
        random.Random(order).shuffle(each)
        write_file(folder / f"sst2/{name}.{('csv', 'jsonl')[order]}", each)
    return open_source(folder)
