"""Tables resolved for a test, in the words of a command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from harness.encoders import PACKAGED, HeadTraining, Located
from harness.planning.aggregation import Aggregation
from harness.planning.request import Request, parse_override
from harness.planning.resolve import resolve
from harness.planning.resolved import ResolvedTable
from harness.planning.table import Table, load_table
from harness.specs import Encoder
from harness.tasks.task import TASKS, Task

ROBERTA_BASE = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "intermediate_size": 3072,
    "vocab_size": 50265,
    "model_type": "roberta",
}
BERT_TINY = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 512,
    "vocab_size": 30522,
    "model_type": "bert",
}
SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 16, "vocab_size": 50, "model_type": "roberta"}
TINY = Located(Encoder("7" * 32, "tiny"), None, BERT_TINY, HeadTraining("boolq_prose", steps=100, lr=1e-3))
"""An encoder without a usable MLM head."""
UNREAD = Located(Encoder("7" * 32), None, SMALL, None)
"""An encoder that nothing reads."""


def located(name: str) -> Located:
    """An encoder of this name that is not at hand."""
    training = PACKAGED[name].head_training if name in PACKAGED else None
    return Located(Encoder("7" * 32, name), None, ROBERTA_BASE, training, new=name.startswith("new:"))


def request(preset: str | None = None, *, set: Iterable[str] = (), **fields: Any) -> Request:
    """`set`: KEY=VALUE texts; errors name the flags."""
    overrides = tuple(parse_override(text, "--set") for text in set)
    return Request(preset=preset, overrides=overrides, **fields)


def resolve_table(
    table: Table | str, preset: str | None = None, known: Mapping[str, Task] = TASKS, **fields: Any
) -> ResolvedTable:
    """A table by name or loaded; `known`: the tasks by name; `fields`: as of `request`."""
    found = load_table(table) if isinstance(table, str) else table
    return resolve(found, request(preset, **fields), known)


def aggregated(resolved: ResolvedTable, aggregate: Aggregation | None = None, **values: Any) -> ResolvedTable:
    """The table with another aggregation, its own."""
    table = resolved.table.model_copy(update={"aggregate": aggregate or Aggregation(**values)})
    return replace(resolved, table=table)


def by_letter(resolved: ResolvedTable) -> dict[str, dict[str, Any]]:
    """The values in use under the first encoder, by the letter of their origin and by path."""
    found: dict[str, dict[str, Any]] = {}
    for use in resolved.uses:
        found.setdefault(use.letter, {})[use.path] = use.value
    return found
