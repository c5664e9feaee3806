"""`bench`: shows the plan, trains what is missing, prints the table; with --until over a growing grid of subsets and seeds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from harness.cli import EXIT_INCOMPLETE
from harness.cli.plan import describe
from harness.cli.progress import ON_TERMINAL, confirm, print_tracked
from harness.cli.report import check_format, print_grid
from harness.cli.request import read
from harness.cli.terminal import print_lines, time_range
from harness.commands.bench import Benched, Width, bench_until
from harness.commands.bench import bench as run_bench
from harness.commands.prepare import Prepared
from harness.errors import UserError
from harness.planning.request import Request
from harness.wording import counted


def bench(args: argparse.Namespace) -> int:
    """Show the plan, train what is missing, print the table. 1 when a cell stays incomplete, or intervals stay too wide."""
    check_format(args.format)
    request = read(args)
    if args.until is None and args.max_replicates is not None:
        raise UserError("--max-replicates: is for --until POINTS; add that, or leave it out.")

    def agree(prepared: Prepared) -> None:
        print_lines(describe(prepared))
        confirm(args.yes, prepared.hours, "--tasks, --sizes, --subsets, --seeds or --methods")

    done = run_bench(request, ON_TERMINAL, agree) if args.until is None else _until(args, request)
    status = print_grid(done.prepared, args)
    if done.prepared.over:
        left = len(done.prepared.plan.pending(done.prepared.statuses, request.retry))
        print_lines([f"Ended because {done.prepared.over}: {counted(left, 'stage')} left; the same command goes on."])
    print_tracked(done.track())
    return status if done.reached else EXIT_INCOMPLETE


def _until(args: argparse.Namespace, request: Request) -> Benched:
    """The rounds of a bench, one after another; says what each look shows."""

    def agree(prepared: Prepared, largest: Prepared, looks: int) -> None:
        print_lines([*describe(prepared), _budget(largest, looks, args.until)])
        if prepared.items:
            confirm(args.yes, largest.hours, "--max-replicates, --tasks, --sizes or --methods")

    def looked(prepared: Prepared, look: int, intervals: Sequence[Width]) -> None:
        print_lines([f"Look {look}, {_grid(prepared)}: {_widest(intervals, args.until)}"])

    done = bench_until(request, args.until, args.max_replicates, ON_TERMINAL, agree, looked)
    if not done.reached and not done.prepared.over:
        print_lines(["The budget is used up; --max-replicates allows more."])
    return done


def _budget(largest: Prepared, looks: int, points: float) -> str:
    return (
        f"Looks at ±{points:g} points: {looks}, the last at {_grid(largest)}; all of it would be {counted(len(largest.items), 'stage')}, "
        f"about {time_range(largest.expected)}."
    )


def _grid(prepared: Prepared) -> str:
    return f"{counted(len(prepared.resolved.subsets), 'subset')} x {counted(len(prepared.resolved.seeds), 'seed')}"


def _widest(intervals: Sequence[Width], points: float) -> str:
    """A sentence about the widest interval, and how many are wider than ± `points`."""
    if not intervals:
        return "no run of these cells is done."
    if early := [width.name for width in intervals if width.half is None]:
        return f"{early[0]} has no interval yet."
    widest = max(intervals, key=lambda width: width.half or 0.0)
    wide = sum(100 * (width.half or 0.0) > points for width in intervals)
    outcome = f"{wide} of {len(intervals)} wider than" if wide else f"all {len(intervals)} within"
    flat = [width.name for width in intervals if not width.half]
    same = f"; {flat[0]} is the same in all replicates, which shows no spread" if flat else ""
    half = f"±{100 * (widest.half or 0.0):.2f} points ({widest.name})"
    return f"the widest interval is {half}; {outcome} ±{points:g}{same}."
