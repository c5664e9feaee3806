"""The command `harness`: parses arguments and calls a handler. Handlers import heavy packages themselves, so that --help is fast."""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from traceback import extract_tb

from harness.cli.parser import build_parser
from harness.cli.terminal import BROKEN_PIPE, OutputError, interruptible, printable, standard_streams
from harness.errors import KEPT, UserError
from harness.paths import PYTHON

EXIT_INCOMPLETE, EXIT_USER = 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. 0: complete, and all of it written to standard output; 1: the table is incomplete, or
    memory is full; 2: a mistake of the user's, or the machine failed; 141: the reader of standard output left; 128 and the signal's number: interrupted."""
    with standard_streams(), interruptible() as received:
        try:
            try:
                return _run(list(sys.argv[1:] if argv is None else argv))
            finally:
                sys.stdout.flush()
        except OutputError as error:
            if error.errno == errno.EPIPE:  # its reader closed the pipe, as 'head' does
                return BROKEN_PIPE
            print(f"harness: standard output cannot be written ({error.strerror}); {KEPT}.", file=sys.stderr)
            return EXIT_INCOMPLETE
        except (UserError, KeyboardInterrupt) as error:
            return _ended(error, *received[:1])
        except OSError as error:
            if error.filename is None:
                raise
            print(printable(f"harness: {error.filename}: cannot be used ({error.strerror}); {KEPT}."), file=sys.stderr)
            return EXIT_USER
        except MemoryError:
            print(f"harness: the memory that this process may use is full; {KEPT}.", file=sys.stderr)
            return EXIT_INCOMPLETE


def _run(arguments: list[str]) -> int:
    """Parse and run. Raises UserError for what is wrong in the arguments."""
    for text in arguments:
        try:
            text.encode()
        except UnicodeEncodeError:
            raw = text.encode(errors="backslashreplace").decode().replace("\\udc", "\\x")
            raise UserError(f"the argument '{raw}' is not UTF-8 text; type it as UTF-8, or rename the file.") from None
    args = build_parser().parse_args(arguments or ["--help"])
    for name in (*(getattr(args, "methods", None) or ()), getattr(args, "method", "")):
        if PYTHON in name:
            from harness.methods import read_methods

            read_methods(name)
    module, name = args.handler.split(":")
    try:
        status: int = getattr(import_module(module), name)(args)
        return status
    except SystemExit as error:  # nothing of ours raises one
        at = extract_tb(error.__traceback__)[-1]
        raise UserError(f"{at.filename}, line {at.lineno}: SystemExit({error}); its code may not end Python.") from None


def _ended(error: UserError | KeyboardInterrupt, number: int = 0) -> int:
    """Print why the command ends. Returns its exit status, of a signal by the shell's convention."""
    wrong = isinstance(error, UserError) and not number  # a signal may have ended what we need first
    by = f" by {signal.Signals(number).name}" if number else ""
    reason = str(error) if wrong or isinstance(error, KeyboardInterrupt) else ""
    with suppress(OSError):
        lines = f"harness: {reason or f'interrupted{by}; {KEPT}.'}".split("\n")  # of a YAML file three mistakes
        print("\n".join(map(printable, lines)), file=sys.stderr, flush=True)
    return EXIT_USER if wrong else 128 + (number or signal.SIGINT)
