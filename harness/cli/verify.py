"""`verify`: a published file of results compared with the records of a store."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.cli import EXIT_INCOMPLETE
from harness.cli.progress import show_stages
from harness.cli.terminal import print_lines
from harness.commands.rerun import rerun
from harness.commands.stored import command
from harness.commands.verify import Verified
from harness.commands.verify import verify as verified
from harness.errors import UserError
from harness.wording import counted

SHOWN = 5
"""Places of one kind that are printed."""


def verify(args: argparse.Namespace) -> int:
    """Print what was compared and what differs. 0 only where all was compared and nothing differs."""
    if args.seed is not None and not args.rerun:
        raise UserError("verify: --seed draws the stages of --rerun K; add --rerun, or leave --seed out.")
    found = verified(Path(args.file), args.store, args.seal)
    print_lines(_report(found), sys.stdout)
    again = rerun(found, args.rerun, args.seed or 0, show_stages, storage=args.storage) if args.rerun else []
    lines = ["Not checked: predictions, losses, times; --rerun K trains K stages again."]
    if again:
        agree = sum(each.agrees for each in again)
        lines = [f"Stages trained again: {len(again):,}, of which {agree:,} agree with their records."]
        lines += [f"  {each.sentence}" for each in again]
    verdict = "Confirmed."
    if found.differing or found.problems or not all(each.agrees for each in again):
        verdict = "NOT confirmed."
    elif found.unchecked:
        parts = [f"{len(places):,} {what}" if places else what for what, places in found.unchecked.items()]
        verdict = f"Confirmed in part, without {'; '.join(parts)}."
    print_lines([*lines, verdict], sys.stdout)
    return 0 if verdict == "Confirmed." else EXIT_INCOMPLETE


def _report(found: Verified) -> Iterator[str]:
    rows, runs = counted(len(found.results), "row"), counted(len(found.keys), "run")
    yield f"{found.path}: {rows} of {runs}, store {found.store.shown}."
    for bench in found.benches:
        yield f"Compared with the plan of {counted(len(bench.plan.runs), 'run')} of: {command(bench.request)}"
    yield f"Differences from what plan and records give: {len(found.differing):,}."
    yield from _first(found.differing)
    yield from found.seals
    if found.problems:
        yield f"Contradictions: {len(found.problems):,}."
        yield from _first(found.problems)
    for what, places in found.unchecked.items():
        yield f"Not confirmed: {f'{len(places):,} ' if places else ''}{what}."
        yield from _first(places)


def _first(sentences: Sequence[str]) -> Iterator[str]:
    yield from (f"  {sentence}" for sentence in sentences[:SHOWN])
    if len(sentences) > SHOWN:
        yield f"  and {len(sentences) - SHOWN:,} more"
