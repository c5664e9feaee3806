"""No key moves: a digest for each row of each table and preset over the keys of its runs, in frozen_keys.json.

Commit b36b579 computed digests of whole tables; those of rows replaced them while every one of these still held. A new row
needs an entry of its own, which the failure prints, and leaves every other entry as it is.

Most plans read nothing: a fixed digest stands for the encoder and each row set is unresolved. What is frozen is everything
else that a key hashes: recipes, presets, chains, parameters, objective versions. The plans of packaged data and encoder
freeze the digests of texts, subsets and weights too. A change that moves a key on purpose bumps a version and a digest here.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path

import pytest
from requested import located

from harness.encoders import locate
from harness.planning.request import Request
from harness.planning.resolve import resolve
from harness.planning.runs import make_plan
from harness.planning.table import Table, load_table
from harness.tasks.sources import TextSource, open_source
from harness.tasks.translation import Translator

Digests = dict[str, str]
"""By row of a table: the number of runs, and a digest over their names and keys."""
FROZEN: dict[str, dict[str, Digests]] = json.loads((Path(__file__).parent / "frozen_keys.json").read_text())
WITH_DATA = "quick with packaged data"
PLANNED = [(table, preset) for table, presets in FROZEN.items() for preset in presets if preset != WITH_DATA]


@lru_cache
def table_named(name: str) -> Table:
    return load_table(name)


def digests(table: str, preset: str, source: TextSource | None) -> Digests:
    """Of the runs of each row. The points of a grid and the tasks of a tuned row count as one row."""
    loaded = table_named(table)
    request = Request(preset=preset, tasks=None if loaded.tasks else ("sst2",))
    resolved = resolve(loaded, request)
    encoder = locate(resolved.encoder) if source else located(resolved.encoder)
    plan = make_plan(resolved, source, encoder, translator_of=lambda it: Translator(resolved.translator_of(it)))
    keys: dict[str, list[str]] = {}
    for run in plan.runs:
        keys.setdefault(run.row.partition(", ")[0].partition(" on ")[0], []).append(f"{run.name} {run.stage.key}")
    return {row: f"{len(own)} {hashed(own)}" for row, own in keys.items()}


def hashed(keys: list[str]) -> str:
    return hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest()[:16]


def test_every_table_and_preset_is_frozen() -> None:
    tables = Path(__file__).resolve().parent.parent / "benchmarks"
    assert {(path.stem, p) for path in tables.glob("*.yaml") for p in table_named(path.stem).presets} == set(PLANNED)


@pytest.mark.parametrize(("table", "preset"), PLANNED)
def test_no_key_moved(table: str, preset: str) -> None:
    assert digests(table, preset, None) == FROZEN[table][preset]


@pytest.mark.parametrize("table", [table for table, presets in FROZEN.items() if WITH_DATA in presets])
def test_no_key_of_packaged_data_moved(packaged: dict[str, Path], table: str) -> None:
    assert digests(table, "quick", open_source(None)) == FROZEN[table][WITH_DATA]
