"""`publish`: a table as a folder of its own. `verify`: it, or a file of results, compared with the records of a store. `merge`: what other stores and published folders hold, taken over."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.cli import EXIT_INCOMPLETE
from harness.cli.progress import show
from harness.cli.request import recalled
from harness.cli.terminal import print_lines
from harness.commands.prepare import prepare_recorded
from harness.commands.publish import open_other, place_of, rerun
from harness.commands.publish import publish as write
from harness.commands.publish import verify as verified
from harness.commands.recorded import command
from harness.paths import named_path
from harness.specs import Record
from harness.store import DEFAULT_URL, Store
from harness.store import merge as take_over
from harness.store.exchange import Merged
from harness.wording import counted, some_of

SHOWN = 5
"""Conflicts of one store, and places of one kind, that are named."""


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
    print_lines(lines)
    return 0 if published.complete else EXIT_INCOMPLETE


def merge(args: argparse.Namespace) -> int:
    """Take over from each store in turn. 1 where something differs and stays as it is here."""
    others = [open_other(other, args.data) for other in args.others]
    store, agree = Store(args.store or DEFAULT_URL), True
    for other, labels in others:
        merged = take_over(store, other, labels)
        agree = agree and merged.agrees
        print_lines(_lines(merged, other.shown, store))
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
    labels = reversed(store.labels(ours.key for ours, _ in merged.conflicts))  # the first of each key stays
    places = {label["key"]: f" ({place_of(label)})" for label in labels}
    sentences = [
        f"{a.key[:12]}{places.get(a.key, '')}: {_outcome(a)} here, {_outcome(b)} there" for a, b in merged.conflicts
    ]
    if sentences:
        yield from _first(f"{counted(len(sentences), 'record')} differ and stay as they are in {here}:", sentences)
    if merged.studies:
        yield f"Studies with other trials, which stay as they are in {here}: {some_of(merged.studies, SHOWN)}."


def _outcome(record: Record) -> str:
    scores = ", ".join(f"{name} {value:.4f}" for name, value in record.dev_scores.items())
    return f"{scores or 'other predictions'} on dev at update {record.selected_step} on {record.provenance.get('device', '?')}"


# --------------------------------------------------------------------------------------------------------- verifying


def verify(args: argparse.Namespace) -> int:
    """Print what was compared and what differs. 0 only where all was compared and nothing differs."""
    found, again = verified(Path(args.file), args.store, args.seal or ""), []
    rows, runs = counted(len(found.results), "row"), counted(len(found.keys), "run")
    lines = [f"{found.path}: {rows} of {runs}, store {found.store.shown}."]
    for bench in found.benches:
        lines.append(f"Compared with the plan of {counted(len(bench.plan.runs), 'run')} of: {command(bench.request)}")
    lines += _first(f"Differences from what plan and records give: {len(found.differing):,}.", found.differing)
    lines += found.seals
    lines += _first(f"Contradictions: {len(found.problems):,}.", found.problems) if found.problems else []
    for what, places in found.unchecked.items():
        lines += _first(f"Not confirmed: {f'{len(places):,} ' if places else ''}{what}.", places)
    print_lines(lines)
    lines = ["Not checked: predictions, losses, times; --rerun K trains K stages again."]
    if args.rerun:
        again = rerun(found, args.rerun, show, storage=args.storage)
        agree = sum(agrees for agrees, _ in again)
        lines = [f"Stages trained again: {len(again):,}, of which {agree:,} agree with their records."]
        lines += [f"  {sentence}" for _, sentence in again]
    verdict = "Confirmed."
    if found.differing or found.problems or not all(agrees for agrees, _ in again):
        verdict = "NOT confirmed."
    elif found.unchecked:
        parts = [f"{len(places):,} {what}" if places else what for what, places in found.unchecked.items()]
        verdict = f"Confirmed in part, without {'; '.join(parts)}."
    print_lines([*lines, verdict])
    return 0 if verdict == "Confirmed." else EXIT_INCOMPLETE


def _first(title: str, sentences: Sequence[str]) -> list[str]:
    more = [f"  and {len(sentences) - SHOWN:,} more"] if len(sentences) > SHOWN else []
    return [title, *(f"  {sentence}" for sentence in sentences[:SHOWN]), *more]
