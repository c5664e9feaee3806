"""`publish`: a table as a folder of its own. `merge`: what other stores and published folders hold, taken over."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from typing import Any

from harness.cli import EXIT_INCOMPLETE
from harness.cli.request import recalled
from harness.cli.terminal import print_lines
from harness.commands.prepare import prepare_recorded
from harness.commands.publish import open_other
from harness.commands.publish import publish as write
from harness.commands.verify import place_of
from harness.paths import named_path
from harness.specs import Record
from harness.store import DEFAULT_URL, Store
from harness.store import merge as take_over
from harness.store.exchange import Conflict, Merged
from harness.wording import counted, some_of

SHOWN = 5
"""Conflicts of one store that are named."""


def publish(args: argparse.Namespace) -> int:
    """Write the folder. 1 where runs of the table are missing in it."""
    folder = named_path(args.folder)
    published = write(prepare_recorded(recalled(args)), folder, gold=not args.without_labels)
    rows, typed = counted(published.rows, "row"), shlex.quote(str(folder))
    lines = [
        f"Published {counted(published.records, 'record')} and {rows} of results in {folder}{'' if published.complete else ', of an unfinished table'}.",
        f"'harness merge {typed} --data DATA' takes it over with the labels of the data."
        if args.without_labels
        else f"'harness report --store {typed}' prints it, 'harness verify {typed}' checks it, 'harness merge {typed}' takes it over.",
    ]
    print_lines(lines, sys.stdout)
    return 0 if published.complete else EXIT_INCOMPLETE


def merge(args: argparse.Namespace) -> int:
    """Take over from each store in turn. 1 where something differs and stays as it is here."""
    others = [open_other(other, args.data) for other in args.others]
    store, agree = Store(args.store or DEFAULT_URL), True
    for other in others:
        merged = take_over(store, other.store, other.labels)
        agree = agree and merged.agrees
        print_lines(_lines(merged, other.shown, store), sys.stdout)
    return 0 if agree else EXIT_INCOMPLETE


def _lines(merged: Merged, there: str, store: Store) -> Iterator[str]:
    here = store.shown
    yield (
        f"{there}: {counted(merged.added, 'record')} taken over into {here}, {merged.replaced:,} in place of a failed one; "
        f"{merged.known:,} were there already."
    )
    if merged.other_weights:
        yield (
            f"{counted(merged.other_weights, 'stage')} of these ended with other weights there, by another machine or version; those of {here} stay. Captions "
            "count the runs that started from the others, and 'harness verify' confirms such runs in a store of their own alone."
        )
    if merged.conflicts:
        yield f"{counted(len(merged.conflicts), 'record')} differ and stay as they are in {here}:"
        yield from (f"  {_conflict(each, store.labels(each.key))}" for each in merged.conflicts[:SHOWN])
        yield from [f"  and {len(merged.conflicts) - SHOWN:,} more"] if len(merged.conflicts) > SHOWN else []
    if merged.studies:
        yield f"Studies with other trials, which stay as they are in {here}: {some_of(merged.studies, SHOWN)}."


def _conflict(conflict: Conflict, labels: list[dict[str, Any]]) -> str:
    run = f" ({place_of(labels[0])})" if labels else ""
    return f"{conflict.key[:12]}{run}: {_outcome(conflict.ours)} here, {_outcome(conflict.theirs)} there"


def _outcome(record: Record) -> str:
    scores = ", ".join(f"{name} {value:.4f}" for name, value in record.dev_scores.items())
    return f"{scores or 'other predictions'} on dev at update {record.selected_step} on {record.provenance.get('device', '?')}"
