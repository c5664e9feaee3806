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
from harness.planning.task_reader import Translation
from harness.tasks.sources import TextSource, open_source

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
    plan = make_plan(resolved, source, encoder, translations=lambda augment: Translation())
    keys: dict[str, list[str]] = {}
    for run in plan.runs:
        keys.setdefault(run.row.partition(", ")[0].partition(" on ")[0], []).append(f"{run.name} {run.stage.key}")
    return {row: f"{len(own)} {hashed(own)}" for row, own in keys.items()}


def hashed(keys: list[str]) -> str:
    return hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest()[:16]


def moved(frozen: Digests, now: Digests) -> list[str]:
    """What differs, a sentence for each row."""
    new = [f"row {row!r} is not frozen: add {json.dumps({row: now[row]})}" for row in now.keys() - frozen.keys()]
    gone = [f"row {row!r} is frozen and not planned any more" for row in frozen.keys() - now.keys()]
    keys = [
        f"keys of row {row!r} moved: '{frozen[row]}' is now '{now[row]}'"
        for row in frozen.keys() & now.keys()
        if frozen[row] != now[row]
    ]
    return sorted(keys + gone + new)


def test_every_table_and_preset_is_frozen() -> None:
    tables = Path(__file__).resolve().parent.parent / "benchmarks"
    assert {(path.stem, p) for path in tables.glob("*.yaml") for p in table_named(path.stem).presets} == set(PLANNED)


@pytest.mark.parametrize(("table", "preset"), PLANNED)
def test_no_key_moved(table: str, preset: str) -> None:
    assert moved(FROZEN[table][preset], digests(table, preset, None)) == []


@pytest.mark.parametrize("table", [table for table, presets in FROZEN.items() if WITH_DATA in presets])
def test_no_key_of_packaged_data_moved(packaged: dict[str, Path], table: str) -> None:
    assert moved(FROZEN[table][WITH_DATA], digests(table, "quick", open_source(None))) == []


def test_a_new_row_moves_no_other() -> None:
    assert moved({"A": "1 a", "B": "1 b"}, {"A": "1 a", "B": "1 c", "C": "1 d"}) == [
        "keys of row 'B' moved: '1 b' is now '1 c'",
        """row 'C' is not frozen: add {"C": "1 d"}""",
    ]
