"""`compare`: rows of a table against one of them, and the variance of its cells, from the store."""

from __future__ import annotations

import argparse

from harness.cli import EXIT_INCOMPLETE
from harness.cli.output_file import deliver, settle_output
from harness.cli.parser import FORMATS
from harness.cli.printing import print_lines
from harness.cli.request import recalled
from harness.commands.compare import comparisons_of, costs_of, optimism_of, variance_of
from harness.commands.prepare import prepare
from harness.errors import UserError
from harness.tables.costs import rendered_costs
from harness.tables.optimism import rendered_optimism
from harness.tables.render_comparison import rendered, rendered_variance

VIEWS = {"variance": "the variance", "optimism": "dev minus test", "cost": "the cost"}
"""What is printed instead of comparisons, by flag."""


def compare(args: argparse.Namespace) -> int:
    """Print the comparisons, or another view of the cells. 1 where a cell is incomplete."""
    views = [name for name in VIEWS if getattr(args, name)]
    if len(views) > 1:
        raise UserError(f"--{views[0]} and --{views[1]} each print a table of their own; leave one of them out.")
    if views and (args.against or args.items or args.region is not None):
        flag = "--against" if args.against else "--items" if args.items else "--region"
        raise UserError(
            f"{flag} is for comparisons, and --{views[0]} prints {VIEWS[views[0]]} of each cell; leave one of them out."
        )
    settle_output(args, FORMATS)
    prepared, collapsed = prepare(recalled(args), train=False), not args.without_collapsed
    if args.variance:
        grid, found = variance_of(prepared, collapsed)
        text = rendered_variance(found, grid, args.format)
    elif args.optimism:
        grid, gaps, left_out = optimism_of(prepared, collapsed)
        text = rendered_optimism(gaps, grid, left_out, args.format)
    elif args.cost:
        grid, spent, left_out = costs_of(prepared, collapsed)
        text = rendered_costs(spent, grid, left_out, args.format)
    else:
        region = 1.0 if args.region is None else args.region
        comparisons = comparisons_of(prepared, args.against or "", region / 100, args.items, collapsed)
        grid, text = comparisons.grid, rendered(comparisons, args.format)
    if not grid.complete:
        done, expected = (
            sum(getattr(cell, name) for cell in grid.cells.values() if not cell.skip) for name in ("done", "expected")
        )
        print_lines([f"{done} of {expected} runs of these cells are done: each comparison says what it leaves out."])
    deliver(text, args)
    return 0 if grid.complete else EXIT_INCOMPLETE
