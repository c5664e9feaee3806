"""`bench`: shows the plan, trains what is missing, prints the table."""

from __future__ import annotations

import argparse

from harness.cli.plan import describe
from harness.cli.progress import confirm, show, warn
from harness.cli.report import check_printed, print_grid
from harness.cli.request import read
from harness.cli.terminal import print_lines
from harness.commands.bench import bench as run_bench
from harness.commands.prepare import Prepared
from harness.wording import counted


def bench(args: argparse.Namespace) -> int:
    """Show the plan, train what is missing, print the table. 1 when a cell stays incomplete."""
    check_printed(args.format)
    request = read(args)

    def agree(prepared: Prepared) -> None:
        print_lines(describe(prepared))
        confirm(args.yes, prepared.hours, "--tasks, --sizes, --subsets, --seeds or --methods")

    done = run_bench(request, show, warn, agree)
    status = print_grid(done.prepared, args)
    if done.prepared.over:
        left = len(done.prepared.plan.pending(done.prepared.statuses, request.retry))
        print_lines([f"Ended because {done.prepared.over}: {counted(left, 'stage')} left; the same command goes on."])
    print_lines(done.trackers.finish())
    return status
