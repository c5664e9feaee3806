"""The flags of `compare`, and `--detect` of `plan`. Imports the standard library alone, so that --help is fast."""

from __future__ import annotations

import argparse

from harness.cli.flag_types import number, one_of

COMPARISON_FORMATS = ("text", "md", "csv", "json")


def compare_flags(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument(
        "--format",
        type=one_of(COMPARISON_FORMATS),
        default="text",
        metavar="|".join(COMPARISON_FORMATS),
        help="output format (default: text)",
    )


def detect_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--detect",
        type=number("points such as 1 or 0.5", above_zero=True),
        default=None,
        metavar="POINTS",
        help="the smallest difference between rows that the plan detects with 80 %% power, and the cheapest design for this one",
    )
