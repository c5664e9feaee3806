"""A bench's request between the command line and the store: kept when it runs, taken again by `report`, printed by `show`."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.bench.table import load_table
from harness.cli.printing import print_lines, timestamp
from harness.errors import UserError
from harness.methods import METHODS, methods_named
from harness.store import DEFAULT_URL, Request, Store, masked

LISTS = ("methods", "tasks", "sizes", "subsets", "seeds")
FLAGS = ("preset", *LISTS, "encoder", "data", "corpus", "translator")
"""Flags beside --table and --set that decide what is computed; where and how it runs is no part of a request."""
YAML = (".yaml", ".yml")


def request_of(table: str, named: str, values: Mapping[str, Any], settings: tuple[str, ...]) -> Request:
    """What is kept of a bench of `table`, which the command names as `named`. `values`: by flag, with those that a `--with`
    file gives; `settings`: every KEY=VALUE."""
    kept: dict[str, Any] = {"table": named, "folder": str(Path.cwd())}
    for flag in FLAGS:
        if values[flag] is not None:
            kept[flag] = list(values[flag]) if flag in LISTS else values[flag]
    return Request(table, kept | {"set": list(settings)})


def command(request: Request, verb: str = "bench", store: str | None = None) -> str:
    """The command line that asks the same again, for a shell."""
    values = _placed(request.values)
    words = ["harness", verb, "--table", values["table"]]
    for flag in FLAGS:
        if flag in values:
            words += [f"--{flag}", ",".join(map(str, values[flag])) if flag in LISTS else values[flag]]
    for text in values["set"]:
        words += ["--set", text]
    return shlex.join([*words, *(["--store", masked(store)] if store else [])])


def _placed(values: Mapping[str, Any]) -> dict[str, Any]:
    """In another folder than the request's, its paths are told from the root."""
    folder = Path(values["folder"])
    if folder == Path.cwd():
        return dict(values)

    def there(text: Any) -> Any:
        relative = isinstance(text, str) and not text.startswith(("/", "~"))
        return str(folder / text) if relative and text and (folder / text).exists() else text

    placed = {flag: there(text) for flag, text in values.items() if flag in ("encoder", "data", "corpus", "preset")}
    placed["table"] = there(values["table"]) if values["table"].endswith(YAML) else values["table"]
    if "tasks" in values:
        placed["tasks"] = [there(text) if text.endswith(YAML) else text for text in values["tasks"]]
    return {**values, **placed}


def of_run(request: Request, label: Mapping[str, Any]) -> Request:
    """The part of a request that makes one run, by the run's label in the store."""
    values = dict(request.values) | {"methods": [_method(request, label)], "seeds": [label["seed"]]}
    values["subsets"] = [label["subset"]]
    tasks = values.get("tasks", [label["task"]])
    values["tasks"] = [label["task"]] if label["task"] in tasks else [text for text in tasks if text.endswith(YAML)]
    if label["size"]:
        values["sizes"] = [label["size"]]
    return Request(request.table, values, request.study, request.asked_at)


def _method(request: Request, label: Mapping[str, Any]) -> str:
    """A row by its name; one that the table does not have, and gets for its method, by the method."""
    row, method = str(label["row"]), str(label["method"])
    added = set(method.split("+")) <= METHODS.keys() and row == "+".join(m.title for m in methods_named(method))
    try:
        rows = {each.name for each in load_table(_placed(request.values)["table"]).rows}
    except UserError:  # the user's file is gone or changed
        return row
    return method if added and row not in rows else row


def recalled(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments of `report` with those of an earlier bench where it names no table, or nothing but its table.

    Flags that are given win, `--set` key by key. Says on standard error what it took.
    """
    given = {flag: value for flag in FLAGS if (value := getattr(args, flag)) is not None}
    if args.with_file or (args.table and (given or args.set)):
        return args
    store = Store(args.store or DEFAULT_URL, create=False)
    kept = (each for each in store.requests() if not each.study)
    last = next(
        (each for each in kept if not args.table or same_table(_placed(each.values)["table"], args.table)), None
    )
    if last is None:
        return args
    values = _placed(last.values) | {flag: list(v) if flag in LISTS else v for flag, v in given.items()}
    values["set"] = [*values["set"], *args.set]
    shown = command(Request(last.table, values | {"folder": str(Path.cwd())}), "report", args.store)
    print_lines(
        [
            f"As in the last bench{f' of {args.table}' if args.table else ''} ({timestamp(last.asked_at)}): {shown}",
            "For another one give --table with its flags; 'harness list benches' names those of this store.",
        ]
    )
    flags = {flag: tuple(values[flag]) if flag in LISTS else values[flag] for flag in FLAGS if flag in values}
    return argparse.Namespace(**{**vars(args), "table": values["table"], **flags, "set": values["set"]})


def same_table(name: str, other: str) -> bool:
    """Two names of one table: a packaged one by name, or one file however its path is written."""
    if name.endswith(YAML) and other.endswith(YAML):
        return Path(name).expanduser().resolve() == Path(other).expanduser().resolve()
    return name == other
