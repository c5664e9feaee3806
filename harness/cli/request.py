"""Requests on the command line: read from its words, or recalled from a store."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields

from harness.cli.parser import build_parser
from harness.cli.printing import print_lines, timestamp
from harness.commands.stored import command, last_bench, like_last
from harness.errors import UserError
from harness.search.request import TuneRequest
from harness.store import DEFAULT_URL, Store
from harness.tables.point import with_point
from harness.tables.request import FIELDS, Request, parse_override, with_default_table


def read(args: argparse.Namespace) -> Request:
    """The request of `bench`, `plan` or `report`. Raises UserError where neither a flag nor the file names a table."""
    request = _flags(args)
    if getattr(args, "with_file", None):
        request = with_point(request, args.with_file)
    request = with_default_table(request)
    if not request.table:
        with_file = getattr(args, "with_file", None)
        rest = f"{with_file} has none" if with_file else f"see 'harness {args.command} --help'"
        raise UserError(
            f"{args.command}: name a table with --table, a file of labelled rows with --tasks, or a file with a target with --with; {rest}."
        )
    return request


def read_words(words: Sequence[str]) -> Request:
    """The request of a whole command line."""
    return read(build_parser().parse_args(words))


def read_tune(args: argparse.Namespace) -> TuneRequest:
    """The request of `tune`."""
    return TuneRequest(
        method=args.method,
        base=_flags(args),
        space=args.space or "",
        preset=args.preset,
        mode="grid" if args.grid else "search" if args.search else None,
        trials=args.trials,
        sampler=args.sampler,
        racing=args.racing,
        metrics=args.metric,
        seed=args.seed,
        out=args.out,
    )


def _flags(args: argparse.Namespace) -> Request:
    given = vars(args)
    named = [f.name for f in fields(Request) if f.name in given]
    overrides = tuple(parse_override(text, "--set") for text in args.set)
    values = {name: given[name] for name in named if given[name] is not None}
    return Request(**values, overrides=overrides, flags=True)


# ------------------------------------------------------------------------------------------------------------ recalling


def recalled(args: argparse.Namespace) -> Request:
    """The request of `report` or `compare`: that of an earlier bench where the command names no table, nothing but its table, or `--last`.

    Flags that are given win, `--set` key by key. Says on standard error what it took.
    """
    given = with_default_table(_flags(args))
    changed = given.overrides or any(getattr(given, name) is not None for name in FIELDS)
    if not args.last and (args.with_file or (given.table and changed)):
        return read(args)
    store = Store(given.store or DEFAULT_URL, create=False)
    found = last_bench(store, given.table)
    if found is None:
        if args.last:
            of = f" of {given.table}" if given.table else ""
            raise UserError(
                f"{args.command} --last: the store {store.shown} holds no bench{of} yet; run one first, or leave --last out."
            )
        return read(args)
    stored, last = found
    request = like_last(given, last)
    print_lines(
        [
            f"As in the last bench{f' of {args.table}' if args.table else ''} ({timestamp(stored.asked_at)}): "
            f"{command(request, args.command, args.store)}",
            "For another one give --table with its flags; 'harness list benches' names those of this store.",
        ]
    )
    return request
