"""`errors`: the examples that a run got wrong, with their texts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli.terminal import print_lines
from harness.commands.recorded import misclassified
from harness.commands.row_files import check_new, writer
from harness.store import DEFAULT_URL
from harness.wording import counted

if TYPE_CHECKING:
    import pandas as pd


def errors(args: argparse.Namespace) -> int:
    """Print the examples of one split that a run got wrong, those of the highest confidence first."""
    out = Path(args.output) if args.output else None
    if out:
        check_new(out)
    split = args.split or "dev"
    frame = misclassified(args.key, split=split, store=args.store or DEFAULT_URL)
    wrong, examples = frame.attrs["wrong"], counted(frame.attrs["rows"], "example")
    worded, order, _ = _MEASURES[frame.attrs["measure"]]
    what = worded.format(wrong=f"{wrong:,} of ", examples=f"{examples} of {split}")
    shown = frame.head(args.limit)
    if out and not wrong:
        end = "; no file is written."
    elif out:
        with writer(out) as write:
            write([{str(name): value for name, value in row.items()} for row in frame.to_dict("records")])
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
