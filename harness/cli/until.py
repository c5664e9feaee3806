"""`bench --until`: benches of a growing grid of subsets and seeds, until intervals are narrow enough."""

from __future__ import annotations

import argparse

from harness.cli import EXIT_INCOMPLETE
from harness.cli.bench import agree, describe, preset_line, print_grid, say_tracked, trained
from harness.cli.printing import print_lines, time_range
from harness.commands.prepare import Prepared, prepare
from harness.commands.sequential import rounds, widths
from harness.commands.track import projection_of
from harness.tables.caption import counted
from harness.tables.request import Request

MAX_REPLICATES = 50
"""Of a cell: four looks, at 5 subsets x 3 seeds to 8 x 6."""


def until(args: argparse.Namespace, request: Request) -> int:
    """Train the rounds one after another; print the last one's table. 1 also where the budget is used up first."""
    every = list(rounds(request, args.max_replicates or MAX_REPLICATES))
    largest = prepare(every[-1], train=True)
    for look, each in enumerate(every, start=1):
        prepared = prepare(each, train=True)
        if look == 1:
            print_lines([*preset_line(prepared), *describe(prepared), _budget(largest, len(every), args.until)])
            if prepared.items:
                agree(args.yes, largest.hours, "--max-replicates, --tasks, --sizes or --methods")
        prepared, tracking = trained(prepared, True)
        reached, line = looked(prepared, look, args.until)
        print_lines([line])
        if reached:
            break
    else:
        print_lines(["The budget is used up; --max-replicates allows more."])
    status = print_grid(prepared, args)
    say_tracked(tracking.finish(lambda: projection_of(prepared)))
    return status if reached else EXIT_INCOMPLETE


def _budget(largest: Prepared, looks: int, points: float) -> str:
    return (
        f"Looks at ±{points:g} points: {looks}, the last at {_grid(largest)}; all of it would be {counted(len(largest.items), 'stage')}, "
        f"about {time_range(largest.expected)}."
    )


def _grid(prepared: Prepared) -> str:
    return f"{counted(len(prepared.resolved.subsets), 'subset')} x {counted(len(prepared.resolved.seeds), 'seed')}"


def looked(prepared: Prepared, look: int, points: float) -> tuple[bool, str]:
    """Whether all intervals are within ± `points`, and a sentence about the widest."""
    found, where = widths(prepared), f"Look {look}, {_grid(prepared)}"
    if not found:
        return False, f"{where}: no run of these cells is done."
    if early := [each for each in found if each.half is None]:
        return False, f"{where}: {early[0].name} has no interval yet."
    widest = max(found, key=lambda each: each.half or 0.0)
    wide = sum(100 * (each.half or 0.0) > points for each in found)
    outcome = f"{wide} of {len(found)} wider than" if wide else f"all {len(found)} within"
    flat = [each.name for each in found if not each.half]
    same = f"; {flat[0]} is the same in all replicates, which shows no spread" if flat else ""
    half = f"±{100 * (widest.half or 0.0):.2f} points ({widest.name})"
    return not wide, f"{where}: the widest interval is {half}; {outcome} ±{points:g}{same}."
