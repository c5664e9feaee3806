"""Errors for people: one sentence that names the place and the fix."""

from __future__ import annotations

from collections.abc import Iterable

SHORTEST_BEGINNING = 3
"""Characters of a name that stand for the longer name which they begin."""


class UserError(Exception):
    """Something the user wrote, or the machine lacks, with the fix in the message. The command exits with status 2."""


class NotAtHand(UserError):  # noqa: N818 - a state of the data that a plan shows, not only an error
    """Data that this machine has not got and cannot get now. A plan shows it as unresolved."""


class NotFetched(NotAtHand):
    """Data on the hub that this machine has not fetched yet. A plan goes on without it, a run fetches it."""


class SessionLostError(UserError):
    """A process of Ray's that this one depends on is dead. What Ray does at the interpreter's end would crash or set a status
    of its own: the command has to end without it."""


class DivergedError(Exception):
    """Training ended because a number is not finite: a result of the stage, not a failure of the machine."""


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> UserError:
    """An unknown name, answered with the full list, and with the known name that is spelled nearly like it, if one is."""
    choices = sorted(known, key=lambda text: (int(text), "") if text.isdecimal() else (-1, text))
    close = nearest(name, choices)
    hint = f" Did you mean '{close}'?" if close else ""
    place = f"{where}: " if where else ""
    return UserError(f"{place}unknown {kind} '{name}'.{hint} Known: {', '.join(choices) or 'none'}.")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The name in `known` that `name` most likely misspells, None where none is near.

    Near is a name within one edit, or one for each four characters where it has eight or more. An edit inserts, deletes or
    replaces a character or swaps two neighbours; case counts for nothing. Near is also a name that `name` abbreviates by its
    first characters, at least three of them. In a dotted name ('fine_tune.lr') each part has to be near. A number is near
    to nothing: 30 is no misspelling of 20. Of two that are as near the one with the same letters is meant: --tabel is --table, not
    --label.
    """
    if name.isdecimal():
        return None
    letters = sorted(name.casefold())
    ranked = [
        (rank, sorted(choice.casefold()) != letters, choice)
        for choice in known
        if (rank := _rank(name.casefold(), choice.casefold())) is not None
    ]
    return min(ranked)[2] if ranked else None


def _rank(name: str, choice: str) -> tuple[int, int] | None:
    """How far `choice` lies from `name`: (0, edits) for a misspelling, (1, characters left out) for a beginning, else None."""
    parts, theirs = name.split("."), choice.split(".")
    if len(parts) == len(theirs) > 1:
        ranks = [_rank(mine, other) for mine, other in zip(parts, theirs, strict=True)]
        found = [rank for rank in ranks if rank is not None]
        return (max(found)[0], sum(rank[1] for rank in found)) if len(found) == len(parts) else None
    longest = max(len(name), len(choice))
    limit = max(1, longest // 4)
    if abs(len(name) - len(choice)) <= limit and (edits := _edits(name, choice)) <= limit and edits < longest:
        return 0, edits
    if choice.startswith(name) and len(name) >= SHORTEST_BEGINNING:
        return 1, len(choice) - len(name)
    return None


def _edits(a: str, b: str) -> int:
    """Optimal string alignment distance: insertions, deletions, replacements and swaps of neighbours."""
    rows = [list(range(len(b) + 1))]
    for i, left in enumerate(a, start=1):
        row = [i]
        for j, right in enumerate(b, start=1):
            cost = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (left != right))
            if i > 1 and j > 1 and left == b[j - 2] and right == a[i - 2]:
                cost = min(cost, rows[-2][j - 2] + 1)
            row.append(cost)
        rows.append(row)
    return rows[-1][-1]


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else "no message"
