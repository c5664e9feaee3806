"""Requests on the command line: read from its words, or recalled from a store."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from harness.cli.parser import build_parser
from harness.cli.terminal import say, timestamp
from harness.commands.recorded import command, last_bench, like_last
from harness.errors import UserError
from harness.planning.point import with_points
from harness.planning.request import FIELDS, PLAIN, Request, flag_of, parse_override, with_default_table
from harness.planning.request import read as read_fields
from harness.search.request import SEARCH_FIELDS, TuneRequest
from harness.store import DEFAULT_URL, Store


def read(args: argparse.Namespace) -> Request:
    """The request of `bench`, `plan` or `report`. Raises UserError where neither a flag nor the file names a table."""
    request = with_default_table(with_points(_flags(args), getattr(args, "with") or []))
    if not request.table:
        raise UserError(
            f"{args.command}: name a table with --table, a file of labelled rows with --tasks, or a file with a target with --with; see "
            f"'harness {args.command} --help'."
        )
    return request


def read_words(words: Sequence[str]) -> Request:
    """The request of a whole command line."""
    return read(build_parser().parse_args(words))


def read_tune(args: argparse.Namespace) -> TuneRequest:
    """The request of `tune`."""
    given = {name: getattr(args, name) for name in (*SEARCH_FIELDS, "out")}
    return read_fields(TuneRequest, {"method": args.method, "base": _flags(args), **given}, flag_of)


def _flags(args: argparse.Namespace) -> Request:
    values = {name: value for name in PLAIN if (value := getattr(args, name, None)) is not None}
    overrides = tuple(parse_override(text, "--set") for text in args.set)
    return Request(getattr(args, "table", None) or "", **values, overrides=overrides)


def recalled(args: argparse.Namespace) -> Request:
    """The request of `report` or `compare`: that of an earlier bench where the command names no table, nothing but its table, or `--last`.

    Flags that are given win, `--set` key by key. Says on standard error what it took.
    """
    given = with_default_table(_flags(args))
    changed = given.overrides or any(getattr(given, name) is not None for name in FIELDS)
    if not args.last and (getattr(args, "with") or (given.table and changed)):
        return read(args)
    store = Store(given.store or DEFAULT_URL, create=False)
    last = last_bench(store, given.table)
    if last is None:
        if args.last:
            of = f" of {given.table}" if given.table else ""
            raise UserError(
                f"{args.command} --last: the store {store.shown} holds no bench{of} yet; run one first, or leave --last out."
            )
        return read(args)
    stored, bench = last
    request = like_last(given, bench)
    of = f" of {args.table}" if args.table else ""
    say(f"As in the last bench{of} ({timestamp(stored.asked_at)}): {command(request, args.command, args.store)}")
    return request


def preset_line(named: str | None, preset: str, presets: Mapping[str, Any]) -> list[str]:
    """What the preset in use and the others are, where the request names none and there are some."""
    if named or not presets:
        return []
    about = {name: other.description.rstrip(".") for name, other in presets.items()}
    others = [f"{name} ({text})" for name, text in about.items() if name != preset]
    choice = f" Others: {', '.join(others)}; choose one with --preset NAME." if others else ""
    return [f"Preset {preset}: {about[preset]}.{choice}"]
