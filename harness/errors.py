"""Errors for people, one sentence that names the place and the fix; and one retry for calls that a database or a bucket cannot answer at the moment."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import wraps
from typing import ParamSpec, TypeVar

KEPT = "recorded stages are kept, and the same command resumes"
"""What every command that ends early says last."""

_LOGIN = re.compile(
    r"""(?<![\w+.-])(?:
    (?P<bucket>(?:s3|gs):/{1,2})(?:\S*@|[^\s/]*:[^\s/]*)
    | (?P<user>postgresql[\w+]*:/{1,2}[^\s:/?\#@]*:)\S*@
    | (?P<other>(?!postgresql)[a-z][\w+.-]+:/{1,2})(?:[^\s:/?\#@]*:(?!\d+(?:[/?\#\s]|$))\S*|[^\s/?\#]*)@
    )""",
    re.IGNORECASE | re.VERBOSE,
)
"""What stands before the host of a URL, whole where a '/' or '@' in a password was not quoted; a port is none."""
_SECRET = re.compile(
    r"([?&][^\s=&]*(?:password|passwd|pwd|secret|token|credential|signature|access_?key|api_?key)[^\s=&]*=)[^\s&'\"]+",
    re.IGNORECASE,
)


def masked(text: str) -> str:
    """A text without the passwords of the URLs in it, which every error, sentence, command line and page shows so."""

    def hidden(found: re.Match[str]) -> str:
        return f"{next(filter(None, found.groups()))}***{'@' * found[0].endswith('@')}"

    return _SECRET.sub(r"\1***", _LOGIN.sub(hidden, text)) if ":/" in text else text


class UserError(Exception):
    """Something the user wrote, or the machine lacks, with the fix in the message, which shows no password. The command exits with status 2."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*(masked(part) if isinstance(part, str) else part for part in parts))


class NotAtHand(UserError):  # noqa: N818 - a state of the data that a plan shows, not only an error
    """Data that this machine has not got and cannot get now. A plan shows it as unresolved."""


class NotFetched(NotAtHand):
    """Data on the hub that this machine has not asked for yet. A plan goes on without it, a run fetches it."""


_FLAG = re.compile(r"('harness [^']*')|--([a-z][a-z-]+)")
"""A flag where it is no part of a whole command."""


@contextmanager
def naming_arguments() -> Iterator[None]:
    """Errors name an argument of the Python API where the command's name its flag: accept_difference for --accept-difference."""

    def named(found: re.Match[str]) -> str:
        name = (found[2] or "").replace("-", "_")
        return found[1] or ("with_file" if name == "with" else name)

    try:
        yield
    except UserError as error:
        error.args = (_FLAG.sub(named, str(error)),)
        raise


class DivergedError(Exception):
    """Training ended because a number is not finite: a result of the stage, not a failure of the machine."""


class StoppedError(Exception):
    """Training stopped on request between two updates; what it kept lets another process go on from there."""


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> UserError:
    """An unknown name, answered with the full list, and with the known name that is spelled nearly like it, if one is."""
    choices = sorted({*known}, key=lambda text: (int(text), "") if text.isdecimal() else (-1, text))
    place = f"{where}: " if where else ""
    return UserError(f"{place}unknown {kind} '{name}'.{hint(name, choices)} Known: {', '.join(choices) or 'none'}.")


def hint(name: str, known: Iterable[str]) -> str:
    """A sentence with the name in `known` that `name` most likely misspells, after a space; '' where none is close, whatever the case. No number
    is close to another one: 30 is no misspelling of 20."""
    close = {choice.casefold(): choice for choice in known}
    best = [] if name.isdecimal() else get_close_matches(name.casefold()[:100], close, n=1, cutoff=0.65)
    return f" Did you mean '{close[best[0]]}'?" if best else ""


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else "no message"


def quoted(value: object) -> str:
    """A value as errors show it: its beginning, where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


WAITS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before each further try: a minute, for a restart, a cut connection or a full disk."""
MOST = 120.0
"""Seconds from which on there is no further try: a silent bucket takes 100 to fail."""
P = ParamSpec("P")
R = TypeVar("R")


class TransientError(UserError):
    """An error that may pass, of a place that answered before."""


def retried(act: Callable[P, R]) -> Callable[P, R]:
    """The same function, called again after each TransientError, and after the last of WAITS once more, for MOST seconds."""

    @wraps(act)
    def retrying(*args: P.args, **options: P.kwargs) -> R:
        began = time.monotonic()
        for seconds in WAITS:
            try:
                return act(*args, **options)
            except TransientError:
                if time.monotonic() - began > MOST:
                    raise
                time.sleep(seconds)
        return act(*args, **options)

    return retrying
