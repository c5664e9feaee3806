"""`translate`: training texts of a table beside their back-translations (SCL's Table 6)."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence

from harness.cli.bench import counting
from harness.cli.printing import escaped, print_lines
from harness.cli.request import read
from harness.commands.prepare import prepare
from harness.commands.texts import Sample, samples
from harness.store import Store

ORIGINAL = "Original"


def translate(args: argparse.Namespace) -> int:
    """Print examples of each task with their back-translations. Trains nothing."""
    prepared = prepare(read(args), train=False)
    found = samples(prepared.resolved, prepared.plan, Store(prepared.store.url), args.limit, counting)
    if args.format == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(["task", "example", "column", "translator", "copy", "original", "back_translation"])
        writer.writerows(_records(found))
        return 0
    titles = {name: data.task.title for name, data in prepared.plan.tasks.items()}
    types = [ORIGINAL, *(_type(*pair) for each in found for pair in _copies(each))]
    width = max(map(len, types))
    print_lines([*_lines(found, titles, width)], sys.stdout, indent=width + 4)
    return 0


def _copies(sample: Sample) -> Iterator[tuple[str, int, int]]:
    """Of each back-translation its translator, its number among those of this translator, and how many these are."""
    names = [name for name, _ in sample.translations]
    for index, name in enumerate(names):
        yield name, names[:index].count(name) + 1, names.count(name)


def _type(translator: str, copy: int, copies: int) -> str:
    return f"{translator} ({copy})" if copies > 1 else translator


def _lines(found: Sequence[Sample], titles: dict[str, str], width: int) -> Iterator[str]:
    columns = {name: len({each.column for each in found if each.task == name}) for name in titles}
    for sample in found:
        yield f"{titles[sample.task]} {sample.example}" + (f", {sample.column}" if columns[sample.task] > 1 else "")
        yield f"  {ORIGINAL:<{width}}  {_line(sample.original)}"
        for copy, (_, text) in zip(_copies(sample), sample.translations, strict=True):
            yield f"  {_type(*copy):<{width}}  {_line(text)}"
        yield ""


def _line(text: str) -> str:
    return escaped(" ".join(text.split()))


def _records(found: Sequence[Sample]) -> Iterator[list[str | int]]:
    for sample in found:
        for (name, copy, _), (_, text) in zip(_copies(sample), sample.translations, strict=True):
            yield [sample.task, sample.example, sample.column, name, copy, sample.original, text]
