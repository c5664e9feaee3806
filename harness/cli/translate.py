"""`translate`: training texts of a table beside their back-translations (SCL's Table 6)."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator

from harness.cli.progress import count_texts
from harness.cli.request import read
from harness.cli.terminal import escaped, print_lines
from harness.commands.prepare import prepare
from harness.commands.texts import Sample, samples
from harness.store import Store

ORIGINAL = "Original"


def translate(args: argparse.Namespace) -> int:
    """Print examples of each task with their back-translations. Trains nothing."""
    prepared = prepare(read(args), train=False)
    chosen = samples(prepared.resolved, prepared.plan, Store(prepared.store.url), args.limit, count_texts)
    if args.format == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(["task", "example", "column", "translator", "copy", "original", "back_translation"])
        for sample in chosen:
            place = (sample.task, sample.example, sample.column)
            writer.writerows([*place, name, copy, sample.original, text] for name, copy, text in _numbered(sample))
        return 0
    lines: list[tuple[str, str]] = []  # (type, text) of a text, ("", title) of an example
    for sample in chosen:
        columns = {other.column for other in chosen if other.task == sample.task}
        column = f", {sample.column}" if len(columns) > 1 else ""
        lines.append(("", f"{prepared.plan.tasks[sample.task].task.title} {sample.example}{column}"))
        lines.append((ORIGINAL, sample.original))
        several = {name for name, copy, _ in _numbered(sample) if copy > 1}
        for name, copy, text in _numbered(sample):
            lines.append((f"{name} ({copy})" if name in several else name, text))
        lines.append(("", ""))
    width = max(len(type) for type, _ in lines)
    printed = (f"  {type:<{width}}  {escaped(' '.join(text.split()))}" if type else text for type, text in lines)
    print_lines(printed, sys.stdout, indent=width + 4)
    return 0


def _numbered(sample: Sample) -> Iterator[tuple[str, int, str]]:
    """Of each back-translation its translator, its number among those of this translator, and its text."""
    names = [name for name, _ in sample.translations]
    for index, (name, text) in enumerate(sample.translations):
        yield name, names[: index + 1].count(name), text
