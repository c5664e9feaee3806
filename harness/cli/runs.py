"""`list runs`: the recorded runs of a store. `errors`: the examples that a run got wrong, with their texts."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from harness.cli.printing import columns, duration, escaped, print_lines, wrapped
from harness.commands.recorded import recorded_runs
from harness.commands.row_files import kind_of, writer
from harness.errors import UserError
from harness.store import DEFAULT_URL, Store
from harness.tables.caption import counted, in_points
from harness.tables.request import Request

if TYPE_CHECKING:
    import pandas as pd

KEY = 12
"""Characters of a key that are shown; any number that no other key begins with will do."""


def print_runs(args: argparse.Namespace) -> int:
    """Print a line a run, the newest last, where a terminal ends."""
    store = Store(args.store or DEFAULT_URL, create=False)
    named = ("methods", "tasks", "sizes", "subsets", "seeds")
    request = Request(args.table or "", **{name: getattr(args, name) for name in named})
    found = recorded_runs(store, request)
    if not found:
        every = len(recorded_runs(store, Request()))
        raise UserError(
            f"list runs: no run of the {counted(every, 'recorded run')} in {store.shown} fits; leave a filter out."
        )
    now = time.time()
    lines = [
        (
            run["key"][:KEY],
            escaped(run["table"]),
            escaped(run["row"]),
            escaped(run["task"]),
            run["size"] or "full",
            run["subset"],
            run["seed"],
            run["status"],
            f"{in_points(run['dev'])} {run['metric']}" if run["dev"] is not None else "",
            duration(run["seconds"] / 3600),
            f"{duration((now - run['recorded_at']) / 3600)} ago",
        )
        for run in reversed(found)
    ]
    headers = ("Key", "Table", "Row", "Task", "N", "Subset", "Seed", "Status", "Dev", "Took", "Recorded")
    print(
        tabulate(lines, headers=headers, disable_numparse=True, colalign=("left",) * 4 + ("right",) * 3 + ("left",) * 4)
    )
    return 0


def errors(args: argparse.Namespace) -> int:
    """Print the examples of one split that a run got wrong, those of which it was surest first."""
    from harness.api.models import misclassified

    if args.output:
        kind_of(Path(args.output), "--output")
        if Path(args.output).exists():
            raise UserError(f"--output {args.output}: is there already; name a new file, or delete that one.")
    found = misclassified(args.key, split=args.split, store=args.store or DEFAULT_URL)
    wrong, rows = found.attrs["wrong"], found.attrs["rows"]
    said = f"{wrong:,} of {counted(rows, 'example')} of {args.split} are misclassified"
    if found.attrs["regression"]:
        said = f"The {counted(rows, 'example')} of {args.split} by how far the prediction is off"
    if args.output and wrong:
        with writer(Path(args.output)) as write:
            write([{str(name): value for name, value in row.items()} for row in found.to_dict("records")])
        print_lines([f"{said}; written to {args.output}."], sys.stdout)
        return 0
    shown = found.head(args.limit)
    rest = f"; the first {len(shown)}, the surest first" if len(shown) < wrong else ""
    print_lines([f"{said}{rest}{':' if len(shown) else '.'}"], sys.stdout)
    for _, row in shown.iterrows():
        _print_example(row)
    return 0


def _print_example(row: pd.Series[Any]) -> None:
    values = {str(name): value for name, value in row.items()}
    given, predicted = values.pop("gold"), values.pop("predicted")
    share = values.pop("confidence", None)
    sure = f" ({100 * share:.0f} %)" if share is not None else f" (off by {values.pop('difference'):.3f})"
    texts = [str(value) for name, value in values.items() if not name.startswith("logit.") and name != "split"]
    print(f"\n{escaped(str(given))} predicted as {escaped(str(predicted))}{sure}")
    for text in texts:
        print("\n".join(wrapped(f"  {escaped(' '.join(text.split()))}", columns(sys.stdout), 2)))
