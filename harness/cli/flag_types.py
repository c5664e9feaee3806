"""What the values of flags may be: each reads a word, or raises what argparse or the user is told."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from harness.errors import UserError, unknown


def names(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise argparse.ArgumentTypeError(f"'{text}' names nothing; leave the flag out for all")
    return found


def numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in names(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of whole numbers such as 20,100") from None


def count(text: str) -> int:
    try:
        found = int(text)
    except ValueError:
        found = -1
    if found < 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number such as 2")
    return found


def positive(text: str) -> int:
    if not (found := count(text)):
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of 1 or more")
    return found


def number(what: str, *, above_zero: bool = False) -> Callable[[str], float]:
    """Reads a finite number of 0 or more, or above 0."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf") or (above_zero and number == 0):
            raise argparse.ArgumentTypeError(f"'{text}' is not a number of {what}")
        return number

    return read


def store(text: str) -> str:
    """The URL of a store, without a password: every user of the machine sees the words of a command."""
    from harness.store import has_password

    if has_password(text):
        raise UserError(
            "--store: a password in the URL can be seen by every user of this machine; put it into PGPASSWORD or ~/.pgpass."
        )
    return text


def keep(text: str) -> str:
    """Which weights stay."""
    from harness.tables.request import KEPT

    if text not in KEPT:
        raise unknown("choice", text, KEPT, "--keep")
    return text


def one_of(formats: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in formats:
            raise unknown("format", text, formats, "--format")
        return text

    return read
