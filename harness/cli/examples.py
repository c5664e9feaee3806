"""`errors`: the examples that a run got wrong, with their texts; or the test examples of a table over all its runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli.request import given_flags, recalled
from harness.cli.terminal import print_lines, print_table
from harness.commands.prepare import prepare_recorded
from harness.commands.recorded import misclassified
from harness.commands.report import examples_of
from harness.commands.row_files import check_new, writer
from harness.errors import UserError
from harness.planning.request import FIELDS
from harness.store import DEFAULT_URL
from harness.views.document import written
from harness.views.examples import examples_document
from harness.wording import counted

if TYPE_CHECKING:
    import pandas as pd


def errors(args: argparse.Namespace) -> int:
    """Of a key the examples that its run got wrong; of a table its test examples over all runs."""
    out = Path(args.output) if args.output else None
    if out:
        check_new(out)
    if not args.key:
        return _of_table(args, out)
    if given := given_flags(args, "with_files", "table", "set", *FIELDS, "last"):
        raise UserError(f"errors: {given[0]} is for a table's runs, and {args.key} is one run; leave one of them out.")
    return _of_run(args, out)


def _of_table(args: argparse.Namespace, out: Path | None) -> int:
    """Print what replicates agree on, and labels in doubt; of one column at one size also examples."""
    if args.split:
        raise UserError(
            "errors: --split is for one run (errors KEY --split test); a table's runs are compared on its test sets."
        )
    prepared = prepare_recorded(recalled(args), texts=True)
    print_lines([prepared.note] if prepared.note else [])
    found = examples_of(prepared)
    if not len(found.rows):
        raise UserError(" ".join(["errors: no finished run of this table predicts classes.", *found.skipped]))
    print_table(written(examples_document(found), "text"), sys.stdout)
    if out:
        _write(found.examples, out)
        print_lines(
            [f"{counted(len(found.examples), 'row')}, one an example, column and size, written to {out}."], sys.stdout
        )
    elif len(found.labels) > 1:
        print_lines(
            ["One task at one size also lists its examples (--tasks, --sizes); --output FILE has all."], sys.stdout
        )
    else:
        _print_lists(found.examples, args.limit)
    return 0


LISTS: dict[str, tuple[str, Callable[[pd.DataFrame], pd.DataFrame]]] = {
    "doubted": (
        "Labels in doubt, the least probable first",
        lambda frame: frame[frame["doubted"]].sort_values("gold_probability", kind="stable"),
    ),
    "wrong": (
        "Wrong in every row and not in doubt, the least probable first",
        lambda frame: frame[frame["all_rows_wrong"] & ~frame["doubted"]].sort_values("gold_probability", kind="stable"),
    ),
    "flips": (
        "Flipped most between the runs of a row",
        lambda frame: frame[frame["flips"] > 0].sort_values("flips", ascending=False, kind="stable"),
    ),
}


def _print_lists(frame: pd.DataFrame, limit: int) -> None:
    texts = [name for name in map(str, frame) if name.startswith("text.")]
    for title, chosen in LISTS.values():
        rows = chosen(frame)
        print(f"\n{title}: {min(limit, len(rows)):,} of {len(rows):,}")
        for row in rows.head(limit).to_dict("records"):
            flips = "" if row["flips"] != row["flips"] else f", flips {100 * row['flips']:.0f} %"
            print(
                f"\nexample {row['example']}: label {row['gold']}, which {100 * row['right']:.0f} % of {row['runs']} runs predict, most "
                f"{row['consensus']}{flips}"
            )
            print_lines((f"  {' '.join(row[name].split())}" for name in texts), sys.stdout)


def _write(frame: pd.DataFrame, out: Path) -> None:
    with writer(out) as write:
        write([{str(name): value for name, value in row.items()} for row in frame.to_dict("records")])


def _of_run(args: argparse.Namespace, out: Path | None) -> int:
    """Print the examples of one split that a run got wrong, those of the highest confidence first."""
    split = args.split or "dev"
    frame = misclassified(args.key, split=split, store=args.store or DEFAULT_URL)
    wrong, examples = frame.attrs["wrong"], counted(frame.attrs["rows"], "example")
    worded, order, _ = _MEASURES[frame.attrs["measure"]]
    what = worded.format(wrong=f"{wrong:,} of ", examples=f"{examples} of {split}")
    shown = frame.head(args.limit)
    if out and not wrong:
        end = "; no file is written."
    elif out:
        _write(frame, out)
        end, shown = f"; written to {args.output}.", frame.head(0)
    elif len(shown) < wrong:
        end = f"; the {len(shown)} of the {order}:"
    else:
        end = ":" if len(shown) else "."
    print_lines([f"{what}{end}"], sys.stdout)
    if textless := frame.attrs["textless"]:
        print_lines([f"Texts are missing ({textless}): rows are numbered in the split's own order."], sys.stdout)
    for _, row in shown.iterrows():
        _print_example(row, frame.attrs["measure"], f"row {row['row']}: " if textless else "")
    return 0


_MEASURES: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "confidence": ("{wrong}{examples} are misclassified", "highest confidence", lambda share: f"{100 * share:.0f} %"),
    "difference": ("{examples}, scored by a regression", "largest errors", lambda value: f"off by {value:.3f}"),
    "f1": ("{wrong}{examples} are not answered exactly", "lowest F1", lambda f1: f"F1 {100 * f1:.0f}"),
}
"""By what orders mistakes: how many there are, which come first, and the measure of one, in words."""


def _print_example(row: pd.Series[Any], measure: str, place: str) -> None:
    values = {str(name): value for name, value in row.items()}
    given, predicted = values.pop("gold"), values.pop("predicted")
    sure = f" ({_MEASURES[measure][2](values.pop(measure))})"
    texts = [value for name, value in values.items() if isinstance(value, str) and name != "split"]
    gold, answer = (str(value) or "no answer" for value in (given, predicted))
    print(f"\n{place}{gold} predicted as {answer}{sure}")
    print_lines((f"  {' '.join(text.split())}" for text in texts), sys.stdout)
