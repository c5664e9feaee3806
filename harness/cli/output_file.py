"""`--format`, `--out` and `--standalone` of `report` and `compare`: what a command prints, or writes to a file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import cast

from harness.cli.output import Stream
from harness.cli.parser import SUBMISSION
from harness.cli.printing import print_lines, print_table
from harness.errors import UserError
from harness.paths import named_path, replace_file
from harness.tables.render import latex_document

ENDINGS = {".txt": "text", ".md": "md", ".tex": "latex", ".htm": "html"}
"""Formats by the ending of a file, where they do not have its name."""
BINARY = ("parquet", "png", "pdf")
LONG = ("html", *BINARY)
"""Formats that no terminal shows."""


def settle_output(args: argparse.Namespace, formats: tuple[str, ...]) -> None:
    """Checks --out and --standalone before anything is read, and sets the format where none is given. Raises UserError."""
    path = named_path(args.out, "--out") if args.out else None
    if args.format is None:
        ending = path.suffix.lower() if path else ""
        args.format = ENDINGS.get(ending, ending.removeprefix(".") or "text")
        if args.format not in formats:
            raise UserError(
                f"--out {args.out}: '{ending}' is the ending of no format; add --format, one of {', '.join(formats)}."
            )
    if args.standalone and args.format != "latex":
        raise UserError("--standalone makes a whole document of a LaTeX table; add --format latex.")
    if args.format == SUBMISSION and path is None:
        raise UserError(f"--format {SUBMISSION}: name a new folder, or a .zip, with --out.")
    if path is None or args.format == SUBMISSION:
        return
    if path.is_dir():
        raise UserError(f"--out {args.out}: is a folder; name a file in it, such as {path / f'report.{args.format}'}.")
    if not path.parent.is_dir():
        raise UserError(f"--out {args.out}: there is no folder {path.parent}; make it, or name a file elsewhere.")


def deliver(content: str | bytes, args: argparse.Namespace) -> None:
    """Print what a command has made, or write it to its file, as a whole."""
    if args.standalone and isinstance(content, str):
        content = latex_document(content)
    if args.out:
        path = Path(args.out).expanduser()
        try:
            replace_file(path, content.encode() if isinstance(content, str) else content)
        except OSError as error:
            raise UserError(f"--out {args.out}: cannot be written ({error.strerror}); name another file.") from None
        print_lines([f"Written: {path}"])
    elif isinstance(content, bytes):
        cast(Stream, sys.stdout).write_bytes(content)
    elif args.format == "text":
        print_table(content, sys.stdout)
    else:
        print(content, end="")
