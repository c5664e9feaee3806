"""`report` and `compare`: the views of a table from the store; nothing is trained but weights that a submission lacks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import cast

from harness.cli import EXIT_INCOMPLETE
from harness.cli.parser import COMPARE_FORMATS, REPORT_FORMATS, SUBMISSION
from harness.cli.progress import show
from harness.cli.request import recalled
from harness.cli.terminal import Stream, print_lines, print_view, say
from harness.commands.glue_submission import write_submissions
from harness.commands.prepare import Prepared, prepare, prepare_recorded
from harness.commands.tracking import check_trackers
from harness.commands.train import trackers_of
from harness.commands.views import VIEWS, WITH_TEXTS, caption_of, differences_of, grid_of, page_of, with_other_system
from harness.errors import UserError
from harness.paths import named_path, replace_file
from harness.planning.request import Request
from harness.views.view import View, page

ENDINGS = {".txt": "text", ".md": "md", ".tex": "latex", ".htm": "html"}
"""Formats by the ending of a file, where they do not have its name."""
BINARY = ("parquet", "png", "pdf")
LONG = ("html", *BINARY)
"""Formats that no terminal shows."""


def report(args: argparse.Namespace) -> int:
    """Print a view of the table from the store."""
    settle_output(args, REPORT_FORMATS)
    request = recalled(args)
    check_trackers(request.track, request.origin("track"))
    status = 0
    if args.format == SUBMISSION:
        prepared = prepare(request, train=False)
        print_lines(write_submissions(prepared, Path(args.out), show))
    else:
        prepared = _recorded(request, args.other_system, args.format == "html" or args.view in WITH_TEXTS)
        benches = [] if prepared.recorded or not prepared.plan.runs else prepared.store.requests()
        if any(each.table == prepared.resolved.table.name for each in benches):
            say("None of these runs is recorded; 'harness list benches' names what this store holds.")
        status = print_grid(prepared, args)
    say(*(trackers := trackers_of(prepared)).finish())
    for name, why in trackers.errors.items():
        raise UserError(f"{request.origin('track')} {name}: cannot be written ({why}); the same command tries again.")
    return status


def _recorded(request: Request, other_system: str | None, texts: bool) -> Prepared:
    """The request prepared for its records, with the rows of a file beside; says on standard error where `texts` are asked for and not at hand."""
    prepared = prepare_recorded(request, texts=texts)
    say(*filter(None, [prepared.note]))
    return with_other_system(prepared, named_path(other_system)) if other_system else prepared


def print_grid(prepared: Prepared, args: argparse.Namespace) -> int:
    """Print a view of a table, its results unless another is asked for. Returns the exit status."""
    name, grid = getattr(args, "view", None) or "results", grid_of(prepared)
    if name == "results" and args.format == "html":
        return deliver(page_of(prepared, grid, caption_of(prepared), args.store), grid.complete, args)
    status = deliver(VIEWS[name](prepared, grid), grid.complete, args)
    if name == "results" and args.format == "text":
        own = any(data.task.own and data.task.classes for data in prepared.plan.tasks.values())
        more = ["notes", "settings", *(["classes"] if own else []), "ranks", "variance", "cost"]
        say(f"More: harness report --view {' | '.join(more)}; differences between rows: harness compare.")
    return status


def compare(args: argparse.Namespace) -> int:
    """Print the differences between rows. 1 where a cell is incomplete."""
    settle_output(args, COMPARE_FORMATS)
    prepared = _recorded(recalled(args), args.other_system, args.items)
    grid = grid_of(prepared)
    region = 1.0 if args.region is None else args.region
    view = differences_of(prepared, grid, args.against or "", region / 100, args.items)
    if not grid.complete:
        runs, known = prepared.plan.runs, prepared.statuses
        done = sum(known.get(run.stage.key, ("",))[0] == "done" for run in runs)
        say(f"{done} of {len(runs)} runs of these cells are done: each comparison says what it leaves out.")
    return deliver(view, grid.complete, args)


# -------------------------------------------------------------------------------------------------------------- output


def settle_output(args: argparse.Namespace, formats: tuple[str, ...]) -> None:
    """Checks --out before anything is read, and sets the format where none is given. Raises UserError."""
    path = named_path(args.out) if args.out else None
    if args.format is None:
        ending = path.suffix.lower() if path else ""
        args.format = ENDINGS.get(ending, ending.removeprefix(".") or "text")
        if args.format not in formats:
            wrong = f"--out {args.out}: no format has the ending '{ending}'"
            raise UserError(f"{wrong}; add --format, one of {', '.join(formats)}.")
    check_printed(args.format, args.out, args.command)
    if args.format == SUBMISSION:
        if path is None:
            raise UserError(f"--format {SUBMISSION}: name a new folder with --out.")
    elif path and (path.is_dir() or not path.parent.is_dir()):
        wrong = "is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise UserError(f"--out {args.out}: {wrong}; name a file in a folder that there is.")


def check_printed(format: str, out: str | None = None, command: str = "report") -> None:
    """Raises UserError for a file that no terminal shows."""
    if format in LONG and not out and sys.stdout.isatty():
        why = "the file is binary" if format in BINARY else "a page is for a browser"
        again = f"harness {command} --format {format} > {command}.{format}"
        raise UserError(f"--format {format}: {why} and standard output is a terminal; redirect it, as in {again}.")


def deliver(view_or_page: View | str, complete: bool, args: argparse.Namespace) -> int:
    """Print a view or a page, or write it to its file, as a whole. Returns the exit status. `complete`: nothing is missing in it."""
    content = view_or_page if isinstance(view_or_page, str) else _written(view_or_page, args)
    if args.out:
        path = Path(args.out).expanduser()
        replace_file(path, content)
        say(f"Written: {path}")
    elif isinstance(content, bytes) or (args.format == "csv" and not sys.stdout.isatty()):  # data, whatever is in them
        cast(Stream, sys.stdout).write_bytes(content if isinstance(content, bytes) else content.encode())
    elif args.format == "text" and isinstance(view_or_page, View):
        print_view(view_or_page)
    else:
        print(content, end="")
    return 0 if complete else EXIT_INCOMPLETE


def _written(view: View, args: argparse.Namespace) -> str | bytes:
    if args.format != "html":
        return view.written(args.format)
    title = f"{view.about.get('table', view.name)}: {view.name}"
    return page(title, "", [(view.name, view.name.capitalize(), view.html)], "".join(view.lines[:1]))
