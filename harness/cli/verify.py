"""`verify`: a published file of results compared with the records of a store."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from harness.cli import EXIT_INCOMPLETE
from harness.cli.progress import show_stages
from harness.cli.terminal import print_lines
from harness.commands.rerun import Rerun, rerun
from harness.commands.stored import command
from harness.commands.verify import Verification
from harness.commands.verify import verify as verified
from harness.errors import UserError
from harness.wording import counted

SHOWN = 5
"""Places of one kind that are printed."""


def verify(args: argparse.Namespace) -> int:
    """Print what was compared and what differs. 0 only where all was compared and nothing differs."""
    if args.seed is not None and not args.rerun:
        raise UserError("verify: --seed draws the stages of --rerun K; add --rerun, or leave --seed out.")
    verification = verified(Path(args.file), args.store, args.seal)
    _print(_report(verification))
    reruns: list[Rerun] = []
    if args.rerun:
        reruns = rerun(verification, args.rerun, args.seed or 0, show_stages, storage=args.storage)
    _print(_rerun_report(reruns))
    return _verdict(verification.wrong or not all(rerun.agrees for rerun in reruns), verification.unchecked)


def _verdict(wrong: bool, unchecked: Mapping[str, Sequence[str]]) -> int:
    if wrong:
        verdict = "NOT confirmed."
    elif unchecked:
        parts = [f"{len(places):,} {what}" if places else what for what, places in unchecked.items()]
        verdict = f"Confirmed in part, without {'; '.join(parts)}."
    else:
        verdict = "Confirmed."
    _print([verdict])
    return 0 if verdict == "Confirmed." else EXIT_INCOMPLETE


def _print(lines: Iterable[str]) -> None:
    print_lines(lines, sys.stdout)


def _report(verification: Verification) -> Iterator[str]:
    published = verification.published
    yield f"{published.path}: {counted(len(published.rows), 'row')} of {counted(len(published.keys), 'run')}, store {verification.store.shown}."
    for bench in verification.benches:
        yield f"Compared with the plan of {counted(len(bench.runs), 'run')} of: {command(bench.request)}"
    yield f"Differences from what plan and records give: {len(verification.differing):,}."
    yield from _first(verification.differing)
    yield f"Records checked against their predictions, history and parents: {verification.checked:,}."
    yield from verification.seals
    if verification.problems:
        yield f"Contradictions: {len(verification.problems):,}."
        yield from _first(verification.problems)
    for what, places in verification.unchecked.items():
        yield f"Not confirmed: {f'{len(places):,} ' if places else ''}{what}."
        yield from _first(places)


def _first(sentences: Sequence[str]) -> Iterator[str]:
    yield from (f"  {sentence}" for sentence in sentences[:SHOWN])
    if len(sentences) > SHOWN:
        yield f"  and {len(sentences) - SHOWN:,} more"


def _rerun_report(reruns: Sequence[Rerun]) -> Iterator[str]:
    if not reruns:
        yield "Taken as recorded: predictions, losses, FLOPs, times and hardware; --rerun K trains K stages again."
        return
    yield f"Stages trained again: {len(reruns):,}, of which {sum(rerun.agrees for rerun in reruns):,} agree with their records."
    yield from (f"  {rerun.sentence}" for rerun in reruns)
