"""What `compare` prints, what a plan detects, and until when `bench` adds replicates. Imports the standard library alone."""

from __future__ import annotations

import argparse

from harness.cli.flag_types import number, positive


def comparison_flags(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("comparison")
    what.add_argument("--against", metavar="ROW", help="row that the others are compared with (default: the first)")
    what.add_argument(
        "--region",
        type=number("points such as 1 or 0.5", above_zero=True),
        default=None,
        metavar="POINTS",
        help="rows are equivalent within this difference (default: 1)",
    )
    what.add_argument(
        "--items", action="store_true", help="take the test items as a third factor: would it hold on another test set?"
    )
    what.add_argument(
        "--variance",
        action="store_true",
        help="the variance of each cell by subset, seed, interaction and test items, instead of comparisons",
    )
    what.add_argument(
        "--optimism",
        action="store_true",
        help="dev minus test score of each cell's selected checkpoints, instead of comparisons",
    )
    what.add_argument(
        "--cost",
        action="store_true",
        help="each cell's score beside the FLOPs and hours of a run, post-training and search included",
    )
    what.add_argument(
        "--without-collapsed", action="store_true", help="leave out runs that predict one class only on dev"
    )


def detect_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--detect",
        type=number("points such as 1 or 0.5", above_zero=True),
        default=None,
        metavar="POINTS",
        help="the smallest difference between rows that the plan detects with 80 %% power, and the cheapest design for this one",
    )


def until_flags(parser: argparse.ArgumentParser) -> None:
    more = parser.add_argument_group("replicates until intervals are narrow enough")
    more.add_argument(
        "--until",
        type=number("points such as 1 or 0.5", above_zero=True),
        metavar="POINTS",
        help="add subsets and seeds until each row's difference from the first is known to within so many points",
    )
    more.add_argument(
        "--max-replicates", type=positive, metavar="R", help="for --until: replicates of a cell at most (default: 50)"
    )
