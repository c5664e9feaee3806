"""`compare`: rows of a table against one of them, and the variance of its cells, from the store."""

from __future__ import annotations

import argparse

from harness.cli import EXIT_INCOMPLETE
from harness.cli.output_file import deliver, settle_output
from harness.cli.parser import FORMATS
from harness.cli.printing import print_lines
from harness.cli.request import recalled
from harness.commands.compare import comparisons_of, variance_of
from harness.commands.prepare import prepare
from harness.errors import UserError
from harness.tables.render_comparison import rendered, rendered_variance


def compare(args: argparse.Namespace) -> int:
    """Print the comparisons, or the variances. 1 where a cell is incomplete."""
    if args.variance and (args.against or args.items or args.region is not None):
        flag = "--against" if args.against else "--items" if args.items else "--region"
        raise UserError(
            f"{flag} is for comparisons, and --variance prints the variance of each cell; leave one of them out."
        )
    settle_output(args, FORMATS)
    prepared = prepare(recalled(args), train=False)
    if args.variance:
        grid, found = variance_of(prepared)
        text = rendered_variance(found, grid, args.format)
    else:
        region = 1.0 if args.region is None else args.region
        comparisons = comparisons_of(prepared, args.against or "", region / 100, args.items)
        grid, text = comparisons.grid, rendered(comparisons, args.format)
    if not grid.complete:
        done, expected = (
            sum(getattr(cell, name) for cell in grid.cells.values() if not cell.skip) for name in ("done", "expected")
        )
        print_lines([f"{done} of {expected} runs of these cells are done: each comparison says what it leaves out."])
    deliver(text, args)
    return 0 if grid.complete else EXIT_INCOMPLETE
