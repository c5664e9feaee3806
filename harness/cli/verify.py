"""`verify`: a published file of results held against the records of a store."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.cli import EXIT_INCOMPLETE
from harness.cli.bench import live
from harness.cli.printing import escaped, print_lines
from harness.commands.rerun import Rerun, rerun
from harness.commands.verify import Verification
from harness.commands.verify import verify as verified
from harness.errors import UserError
from harness.tables.caption import counted
from harness.tables.values import listed

SHOWN = 5
"""Differences of one kind that are printed."""


def verify(args: argparse.Namespace) -> int:
    """Print what was compared and what differs. 1 where anything does."""
    if args.seed is not None and not args.rerun:
        raise UserError("verify: --seed draws the stages of --rerun K; add --rerun, or leave --seed out.")
    found = verified(Path(args.file), args.store)
    print_lines([escaped(line) for line in _report(found)], sys.stdout)
    confirmed = found.confirmed
    if args.rerun:
        again = rerun(found, args.rerun, args.seed or 0, live, storage=args.storage)
        print_lines([escaped(line) for line in _rerun_report(again)], sys.stdout)
        confirmed = confirmed and all(each.agrees for each in again)
    elif confirmed:
        print_lines(["Predictions are taken as recorded; --rerun K trains K stages again."], sys.stdout)
    print_lines(["Confirmed." if confirmed else "NOT confirmed."], sys.stdout)
    return 0 if confirmed else EXIT_INCOMPLETE


def _report(found: Verification) -> list[str]:
    rows = found.published.rows
    table = f" of table {listed(found.tables)}" if found.tables else ""
    lines = [
        f"{found.published.path}: {counted(len(rows), 'row')} of {counted(len(found.published.keys), 'run')}{table}, held against the store "
        f"{found.store.shown}.",
        f"Figures derived again from the records: {found.figures:,}, of which {len(found.differences):,} differ.",
        *_first([each.sentence for each in found.differences]),
        f"Records whose scores were computed again from their predictions: {found.rescored:,}.",
    ]
    if found.missing:
        lines += [f"Runs without a record that gives them: {len(found.missing):,}.", *_first(found.missing)]
    if found.problems:
        lines += [f"Further contradictions: {len(found.problems):,}.", *_first(found.problems)]
    return [*lines, *found.notes]


def _first(sentences: Sequence[str]) -> list[str]:
    more = len(sentences) - SHOWN
    return [*(f"  {each}" for each in sentences[:SHOWN]), *([f"  and {more:,} more"] if more > 0 else [])]


def _rerun_report(again: Sequence[Rerun]) -> list[str]:
    agreeing = sum(each.agrees for each in again)
    return [
        f"Stages trained again: {len(again):,}, of which {agreeing:,} agree with their records.",
        *(f"  {each.sentence}" for each in again),
    ]
