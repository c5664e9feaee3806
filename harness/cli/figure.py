"""`report --figure`: the figure of a table, drawn from the store."""

from __future__ import annotations

import argparse

from tabulate import tabulate

from harness.cli import EXIT_INCOMPLETE
from harness.cli.output_file import deliver
from harness.cli.printing import print_lines
from harness.commands.compare import costs_of, variance_of
from harness.commands.embeddings import embeddings_of
from harness.commands.prepare import Prepared
from harness.commands.probe import probed
from harness.commands.report import grid_of
from harness.commands.trained import View
from harness.errors import UserError, unknown
from harness.tables import cost_figure, embedding_figure, probe_figure
from harness.tables.cost_figure import COST
from harness.tables.embedding_figure import EMBEDDINGS, MOST, NEIGHBOURS
from harness.tables.figure import csv_of, drawn, figure_of, points_of
from harness.tables.probe_figure import FIGURES, ProbeFigure
from harness.tables.render_comparison import rendered_variance
from harness.tables.request import YAML
from harness.tables.table import load_table, table_names
from harness.tables.variance_figure import VARIANCE, drawn_variance


def table_of_figure(figure: str, table: str | None) -> str | None:
    """The table of a figure: a figure has the name of its table, or is a file; costs, variance, embeddings and probes are of any. Raises UserError
    for an unknown one, and for another table beside it."""
    if figure in (COST, EMBEDDINGS, VARIANCE) or figure in FIGURES:
        return table
    if table not in (None, figure):
        raise UserError(f"--figure {figure} is the figure of table {figure}; leave --table {table} out.")
    if not figure.endswith(YAML) and (figure not in table_names() or load_table(figure).figure is None):
        known = [name for name in table_names() if load_table(name).figure]
        raise unknown("figure", figure, [*known, COST, EMBEDDINGS, VARIANCE, *FIGURES], "--figure")
    return figure


def print_embeddings(prepared: Prepared, args: argparse.Namespace, view: View) -> int:
    """Write the figure of embeddings, or its points as CSV; numbers and runs to standard error."""
    found, sentences = embeddings_of(prepared, view)
    (data,) = prepared.plan.tasks.values()
    cells = len(prepared.resolved.sizes) * len(prepared.resolved.rows)
    missing = (
        [f"{len(found)} of {cells} panels are drawn: the other cells have no finished run."]
        if len(found) < cells
        else []
    )
    count = len(found[0].gold)
    some = f" (of more the first {MOST:,})" if count == MOST else ""
    about = (
        f"{data.task.title}, {count:,} test examples{some}: the state of the first token after the last layer, which the classifier's "
        f"head reads. Silhouette of the true classes by cosine distance; purity: the share of the {NEIGHBOURS} nearest examples by "
        "cosine that have the same class."
    )
    print_lines([about, *sentences, *missing])
    if args.format == "csv":
        deliver(embedding_figure.csv_of(found, data.task.classes), args)
    else:
        deliver(embedding_figure.drawn(found, data.task.classes, args.format), args)
    return EXIT_INCOMPLETE if missing else 0


def print_probe(prepared: Prepared, figure: ProbeFigure, args: argparse.Namespace, view: View) -> int:
    """Write a probe of pre-trained rows as a table, CSV or picture; what was measured to standard error."""
    found, sentences, missing = probed(prepared, figure, view)
    print_lines([f"{figure.source}. {sentences[0]}", *sentences[1:]])
    if args.format == "text":
        header, *lines = probe_figure.table_of(figure, found)
        left = ["left", *["right"] * (len(header) - 1)]
        deliver(tabulate(lines, headers=header, disable_numparse=True, colalign=left) + "\n", args)
    elif args.format == "csv":
        deliver(probe_figure.csv_of(figure, found), args)
    else:
        deliver(probe_figure.drawn(figure, found, args.format), args)
    return EXIT_INCOMPLETE if missing else 0


def print_costs(prepared: Prepared, args: argparse.Namespace) -> int:
    """Write the figure of costs, or its points as CSV. Raises UserError where no run is done."""
    grid, found, _ = costs_of(prepared)
    if not found:
        raise UserError(f"--figure {COST}: no run of this table is done; run its bench first.")
    deliver(cost_figure.csv_of(found) if args.format == "csv" else cost_figure.drawn(found, args.format), args)
    return 0 if grid.complete else EXIT_INCOMPLETE


def print_variance(prepared: Prepared, args: argparse.Namespace) -> int:
    """Write the figure of the cells' variance, or its numbers as CSV. Raises UserError where no cell shows a variance."""
    grid, found = variance_of(prepared)
    if not found:
        raise UserError(
            f"--figure {VARIANCE}: no cell has two runs that are done; run a bench of two subsets and two seeds first."
        )
    drawn = rendered_variance(found, grid, "csv") if args.format == "csv" else drawn_variance(found, args.format)
    deliver(drawn, args)
    return 0 if grid.complete else EXIT_INCOMPLETE


def print_figure(prepared: Prepared, args: argparse.Namespace) -> int:
    """Write the figure, or its points as CSV."""
    figure_of(prepared.resolved)
    grid, _ = grid_of(prepared)
    points = points_of(grid)
    missing = [point for point in points if point.value is None]
    if missing:
        first = missing[0]
        print_lines(
            [
                f"{len(points) - len(missing)} of {len(points)} points are drawn: the others' runs are not all done (the first: "
                f"{first.column}, {first.row}, {first.done} of {first.expected})."
            ]
        )
    deliver(csv_of(points) if args.format == "csv" else drawn(grid, args.format), args)
    return 0 if grid.complete else EXIT_INCOMPLETE
