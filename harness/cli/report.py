"""`report` and `compare`: a table, its figures, pages and comparisons from the store; nothing is trained but weights that a submission lacks."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

from harness.analysis.scores import answers
from harness.cli import EXIT_INCOMPLETE
from harness.cli.parser import COMPARE_FORMATS, FIGURE_FORMATS, FORMATS, REPORT_FORMATS, SUBMISSION
from harness.cli.progress import show
from harness.cli.request import given_flags, recalled
from harness.cli.terminal import Stream, print_lines, print_table
from harness.commands.bench import trackers_of
from harness.commands.compare import comparisons_of, costs_of, counted_grid, variance_of
from harness.commands.glue_submission import write_submissions
from harness.commands.prepare import Prepared, prepare, prepare_recorded
from harness.commands.recorded import learning_curve
from harness.commands.report import grid_of, with_other_system
from harness.commands.stored import command
from harness.errors import UserError, unknown
from harness.paths import named_path, replace_file, without_folders
from harness.planning.request import FIELDS, YAML, Request
from harness.planning.table import load_table, table_names
from harness.tracking import check_trackers
from harness.views.classes import classes_view
from harness.views.comparison import rendered, rendered_variance
from harness.views.cost import rendered_costs
from harness.views.figures import cost as cost_figure
from harness.views.figures import forest
from harness.views.figures.cost import COST
from harness.views.figures.figure import csv_of, drawn, figure_of, points_of
from harness.views.figures.variance import VARIANCE, drawn_variance
from harness.views.numbers.comparison import Comparisons
from harness.views.numbers.examples import example_frames
from harness.views.ranks import rendered_ranks
from harness.views.results_page import Results, results_page
from harness.views.settings import settings_view
from harness.views.table import notes_view, results_view
from harness.views.variance import decomposed
from harness.views.view import latex_document
from harness.wording import listed

ENDINGS = {".txt": "text", ".md": "md", ".tex": "latex", ".htm": "html"}
"""Formats by the ending of a file, where they do not have its name."""
BINARY = ("parquet", "png", "pdf")
LONG = ("html", *BINARY)
"""Formats that no terminal shows."""
VIEWS = ("variance", "cost", "ranks")
"""What `compare` prints instead of comparisons, by flag; the parser takes one of them."""

OF_ANY_TABLE = (COST, VARIANCE)
"""Figures that have no table of their own."""

Made = tuple[str | bytes, bool]
"""What a command prints or writes, and whether nothing is missing in it."""


def report(args: argparse.Namespace) -> int:
    """Print the table from the store."""
    if args.study:
        return _study(args)
    settle_output(args, REPORT_FORMATS)
    if args.figure:
        args.table = _table_of(args.figure, args.table)
    check_format(args.format, args.figure, args.out)
    if args.other_system and (args.figure or args.format == SUBMISSION):
        raise UserError("--other-system: its rows have scores alone, for the table and its page; leave it out here.")
    request = recalled(args)
    check_trackers(request.track, request.origin("track"))
    if args.format == SUBMISSION:
        prepared = prepare(request, train=False)
    else:
        prepared = _recorded(request, args.other_system, args.format == "html" or args.figure == VARIANCE)
    benches = [] if prepared.recorded or not prepared.plan.runs else prepared.store.requests()
    if any(each.table == prepared.resolved.table.name for each in benches):
        print_lines(["None of these runs is recorded; 'harness list benches' names what this store holds."])
    status = 0
    if args.format == SUBMISSION:
        print_lines(write_submissions(prepared, Path(args.out), show), sys.stdout)
    elif args.figure:
        status = deliver(_figure(prepared, args.figure, args.format), args)
    else:
        status = print_grid(prepared, args)
    print_lines((trackers := trackers_of(prepared)).finish())
    for name, why in trackers.errors.items():
        raise UserError(f"{request.origin('track')} {name}: cannot be written ({why}); the same command tries again.")
    return status


def _recorded(request: Request, other_system: str | None, texts: bool) -> Prepared:
    """The request prepared for its records, with the rows of a file beside; says on standard error where `texts` are asked for and not at hand."""
    prepared = prepare_recorded(request, texts=texts)
    print_lines([prepared.note] if prepared.note else [])
    return with_other_system(prepared, named_path(other_system, "--other-system")) if other_system else prepared


def _table_words(args: argparse.Namespace) -> list[str]:
    """The flags that were given and are those of a table."""
    return given_flags(args, "with_files", "table", *FIELDS, "set", "last", "figure", "other_system")


def _study(args: argparse.Namespace) -> int:
    """The points of a study. Raises UserError for flags that are those of a table."""
    from harness.cli.tune import report_study  # imports optuna

    if given := [*_table_words(args), *(["--out"] if args.out else [])]:
        raise UserError(f"--study prints a study as it was run, which {listed(given)} cannot change; leave that out.")
    format = args.format or "text"
    if format not in FORMATS:
        raise UserError(
            f"--study: points are printed as {', '.join(FORMATS)}; the study's page is written beside them as HTML."
        )
    return report_study(args.store, args.study, format)


def print_grid(prepared: Prepared, args: argparse.Namespace) -> int:
    """Print a table. Returns the exit status."""
    name = getattr(args, "view", None) or "results"
    if args.format == "html" and name == "results":
        complete, page = _page_of(prepared, args.store)
        return deliver((page, complete), args)
    grid, caption = grid_of(prepared)
    views = {
        "results": lambda: results_view(grid, caption),
        "notes": lambda: notes_view(grid, caption),
        "settings": lambda: settings_view(grid.resolved),
        "classes": lambda: classes_view(caption.class_reports, grid.resolved.size_unit),
    }
    status = deliver((views[name]().written(args.format), grid.complete), args)
    if name == "results" and args.format == "text":
        more = ["notes", "settings", *(["classes"] if caption.class_reports else [])]
        print_lines([f"More: harness report --view {' | '.join(more)}; differences between rows: harness compare."])
    return status


def _page_of(prepared: Prepared, url: str | None) -> tuple[bool, str]:
    """Whether the table is complete, and its page. `url`: the store as the user named it."""
    plan, store = prepared.plan, prepared.store
    grid, caption = grid_of(prepared)
    comparisons: Comparisons | str
    try:
        comparisons = comparisons_of(prepared, grid=grid)
    except UserError as error:
        comparisons = f"No comparison: {str(error).removeprefix('compare: ')}"
    records, curves = {}, {}
    stages = {stage.key: stage for run in plan.runs for stage in run.stage.chain}
    last = {run.stage.key for run in plan.runs}
    for key, record in store.each(stages):
        if key in last:
            curves[key] = learning_curve(record, stages[key])[1]
        records[key] = replace(record, history=[])
    request = replace(prepared.request, preset=prepared.resolved.preset)
    table = Path(request.table).stem
    commands = [command(request, "bench", url), f"{command(request, 'report', url)} --format html --out {table}.html"]
    found = Results(
        grid,
        caption,
        comparisons,
        decomposed(grid, answers(plan, store, grid.results)),
        plan.runs,
        records,
        curves,
        [*map(without_folders, commands)],
        example_frames(plan, store, grid),
    )
    return grid.complete, results_page(found)


def compare(args: argparse.Namespace) -> int:
    """Print the comparisons, or another view of the cells. 1 where a cell is incomplete."""
    view = next((name for name in VIEWS if getattr(args, name)), "")
    if view and (args.against or args.items or args.region is not None):
        flag = "--against" if args.against else "--items" if args.items else "--region"
        raise UserError(f"{flag} is for comparisons, and --{view} prints none; leave one of them out.")
    settle_output(args, COMPARE_FORMATS)
    if args.format in FIGURE_FORMATS and view:
        raise UserError(f"--format {args.format}: comparisons are drawn; take another format for --{view}.")
    _check_printed(args.format, args.out, "compare", "comparisons")
    if args.other_system and (args.items or args.cost):
        flag = "--items" if args.items else "--cost"
        raise UserError(
            f"--other-system: its rows have scores alone, without which {flag} says nothing; leave one of them out."
        )
    prepared, collapsed = (
        _recorded(recalled(args), args.other_system, args.items or args.variance),
        not args.without_collapsed,
    )
    text: str | bytes
    if args.variance:
        grid, found = variance_of(prepared, collapsed)
        text = rendered_variance(found, grid, args.format)
    elif args.cost:
        grid, spent, left_out = costs_of(prepared, collapsed)
        text = rendered_costs(spent, grid, left_out, args.format)
    elif args.ranks:
        grid, _ = counted_grid(prepared, collapsed)
        text = rendered_ranks(grid, args.format)
    else:
        region = 1.0 if args.region is None else args.region
        comparisons = comparisons_of(prepared, args.against or "", region / 100, args.items, collapsed)
        grid, text = comparisons.grid, _drawn_or_written(comparisons, args.format)
    if not grid.complete:
        done, expected = grid.num_runs
        print_lines([f"{done} of {expected} runs of these cells are done: each comparison says what it leaves out."])
    return deliver((text, grid.complete), args)


def _drawn_or_written(comparisons: Comparisons, format: str) -> str | bytes:
    if format not in FIGURE_FORMATS:
        return rendered(comparisons, format)
    if not any(c.difference and c.difference.interval for c in comparisons.comparisons):
        raise UserError(
            f"--format {format}: no comparison has an interval to draw; run two subsets or seeds of two rows first."
        )
    return forest.drawn(comparisons, format)


# ------------------------------------------------------------------------------------------------------------- figures


def _table_of(figure: str, table: str | None) -> str | None:
    """The table of a figure: a figure has the name of its table, or is a file; costs and variance are of any. Raises UserError
    for an unknown one, and for another table beside it."""
    if figure in OF_ANY_TABLE:
        return table
    if table not in (None, figure):
        raise UserError(f"--figure {figure} is the figure of table {figure}; leave --table {table} out.")
    if not figure.endswith(YAML) and (figure not in table_names() or load_table(figure).figure is None):
        known = [name for name in table_names() if load_table(name).figure]
        raise unknown("figure", figure, [*known, *OF_ANY_TABLE], "--figure")
    return figure


def _figure(prepared: Prepared, figure: str, format: str) -> Made:
    """A figure as a picture, or its numbers as CSV. Says on standard error what it shows and what is missing."""
    if figure == COST:
        grid, costs, _ = costs_of(prepared)
        if not costs:
            raise UserError(f"--figure {COST}: no run of this table is done; run its bench first.")
        return cost_figure.csv_of(costs) if format == "csv" else cost_figure.drawn(
            costs, format, grid.resolved.size_unit
        ), grid.complete
    if figure == VARIANCE:
        grid, variances = variance_of(prepared)
        if not variances:
            raise UserError(
                f"--figure {VARIANCE}: no cell has two runs that are done; run a bench of two subsets and two seeds first."
            )
        if format == "csv":
            return rendered_variance(variances, grid, "csv"), grid.complete
        return drawn_variance(variances, format, grid.resolved.size_unit), grid.complete
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
    return csv_of(points) if format == "csv" else drawn(grid, format), grid.complete


# -------------------------------------------------------------------------------------------------------------- output


def settle_output(args: argparse.Namespace, formats: tuple[str, ...]) -> None:
    """Checks --out and --standalone before anything is read, and sets the format where none is given. Raises UserError."""
    path = named_path(args.out, "--out") if args.out else None
    if args.format is None:
        ending = path.suffix.lower() if path else ""
        args.format = ENDINGS.get(ending, ending.removeprefix(".") or "text")
        if args.format not in formats:
            raise UserError(
                f"--out {args.out}: no format has the ending '{ending}'; add --format, one of {', '.join(formats)}."
            )
    if args.standalone and args.format != "latex":
        raise UserError("--standalone makes a whole document of a LaTeX table; add --format latex.")
    if args.format == SUBMISSION:
        if path is None:
            raise UserError(f"--format {SUBMISSION}: name a new folder with --out.")
    elif path and path.is_dir():
        raise UserError(f"--out {args.out}: is a folder; name a file in it, such as {path / f'report.{args.format}'}.")
    elif path and not path.parent.is_dir():
        raise UserError(f"--out {args.out}: there is no folder {path.parent}; make it, or name a file elsewhere.")


def check_format(format: str, figure: str | None = None, out: str | None = None) -> None:
    """Raises UserError for a format that goes with a figure only, or not with one, and for a file that no terminal shows."""
    if figure and format not in (*FIGURE_FORMATS, "csv"):
        raise UserError(f"--figure {figure}: a figure is png, svg, pdf or csv; add --format png, for example.")
    if format in FIGURE_FORMATS and not figure:
        raise UserError(f"--format {format}: a table has no picture; name a figure with --figure NAME.")
    _check_printed(format, out, *(f"report --figure {figure}", figure) if figure else ("report", "results"))


def _check_printed(format: str, out: str | None, command: str, name: str) -> None:
    """Raises UserError for a file that no terminal shows."""
    if format in LONG and not out and sys.stdout.isatty():
        why = "the file is binary" if format in BINARY else "a page is for a browser"
        raise UserError(
            f"--format {format}: {why} and standard output is a terminal; redirect it, as in harness {command} --format "
            f"{format} > {name}.{format}."
        )


def deliver(made: Made, args: argparse.Namespace) -> int:
    """Print what a command has made, or write it to its file, as a whole. Returns the exit status."""
    content, complete = made
    if args.standalone and isinstance(content, str):
        content = latex_document(content)
    if args.out:
        path = Path(args.out).expanduser()
        replace_file(path, content)
        print_lines([f"Written: {path}"])
    elif isinstance(content, bytes) or (args.format == "csv" and not sys.stdout.isatty()):  # data, whatever is in them
        cast(Stream, sys.stdout).write_bytes(content if isinstance(content, bytes) else content.encode())
    elif args.format == "text":
        print_table(content, sys.stdout)
    else:
        print(content, end="")
    return 0 if complete else EXIT_INCOMPLETE
