"""What a command line asks for: its flags, and for those left out the target of a `--with` file."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.bench.point import Point, PointTarget, load_point, settings
from harness.bench.resolve import Overrides
from harness.bench.table import Table, load_table
from harness.cli.request import FLAGS, YAML, request_of, same_table
from harness.errors import UserError, unknown
from harness.methods import methods_named
from harness.store import Request
from harness.tasks import Task, load_user_task


@dataclass(frozen=True)
class Asked:
    """The table, its preset (None: the default, since none was named), what is changed, and the user's own tasks.

    `places`: where in a file a value comes from, by the flag that would have given it; `request`: what the store keeps.
    """

    table: Table
    preset: str | None
    overrides: Overrides
    user_tasks: Mapping[str, Task]
    places: Mapping[str, str]
    request: Request

    @contextmanager
    def naming_places(self) -> Iterator[None]:
        """What is wrong with a value from a file is told with the file's key, not with a flag that nobody typed."""
        try:
            yield
        except UserError as error:
            raise _placed(error, self.places) from None


def ask(args: argparse.Namespace) -> Asked:
    """Read what the command names. A file's target counts where `--table` and `--preset` are left out or say the same;
    else only its method and `set` are taken. Raises UserError for what is wrong in the files, or where no table is named.
    """
    file = args.with_file
    point = load_point(Path(file)) if file else None
    target = point.target if point else None
    if not args.table and not target:
        rest = f"{file} has none" if file else f"see 'harness {args.command} --help'"
        raise UserError(f"{args.command}: name a table with --table, or a file with a target with --with; {rest}.")
    name = args.table or (target.table if target else "")
    places = {} if args.table else {"--table": f"{file}, key target.table"}
    try:
        table = load_table(name)
    except UserError as error:
        raise _placed(error, places) from None
    if target and not (same_table(name, target.table) and args.preset in (None, target.preset)):
        target = None
    values: dict[str, Any] = {flag: getattr(args, flag) for flag in FLAGS}
    for flag, value in (_values(table, point, target, file) if point and target else {}).items():
        if values[flag] is None and value:
            values[flag] = value
            places[f"--{flag}"] = f"{file}, key target.{flag}"
    texts = settings(point) if point else ()
    shared = target.set if target else ()
    places |= {f"--set {text}": f"{file}, key target.set, {text}" for text in shared}
    places |= {f"--set {text}": f"{file}, key set, {text}" for text in texts}
    places |= _places_of_rows(table, name) if name.endswith(YAML) else {}
    places |= _places_of_point(table, point, {text: places[f"--set {text}"] for text in (*shared, *texts)})
    preset = values["preset"]
    known = table.presets.get(preset or table.default_preset)
    if known and values["data"] == known.data and not Path(known.data).is_dir():
        values["data"] = None  # the preset's name for where its tasks come from, which plans and captions print
    every = (*shared, *texts, *args.set)
    request = request_of(table.name, name, values | {"preset": preset or table.default_preset}, every)
    own = _own_tasks(values["tasks"] or ())
    if own:
        values["tasks"] = tuple(own[text].name if text in own else text for text in values["tasks"])
    values.pop("preset")
    overrides = Overrides(**values, set=every, num_workers=args.num_workers)
    return Asked(table, preset, overrides, {task.name: task for task in own.values()}, places, request)


def _own_tasks(texts: Iterable[str]) -> dict[str, Task]:
    """The user's own tasks by their YAML. Raises UserError for two of one name, of which one would be left out."""
    own: dict[str, Task] = {}
    for text in dict.fromkeys(texts):
        if text.endswith(YAML):
            task = load_user_task(text)
            twin = next((other for other, known in own.items() if known.name == task.name), None)
            if twin is not None:
                raise UserError(f"--tasks: {twin} and {text} both name their task '{task.name}'; rename one of them.")
            own[text] = task
    return own


def _values(table: Table, point: Point, target: PointTarget, file: str) -> dict[str, Any]:
    """A target's values by flag, as the flags would give them; empty where the preset's hold."""
    values = {flag: getattr(target, flag) for flag in FLAGS if flag != "methods"}
    preset = table.presets.get(target.preset)
    if preset and preset.data == target.data:
        values["data"] = ""  # a name for where the preset's tasks come from, nothing that --data takes
    names = {text.lower() for row in table.rows for text in (row.name, row.method)}
    title = "+".join(method.title for method in methods_named(point.method))
    if target.row.lower() not in names and target.row.lower() != title.lower():
        raise unknown("row", target.row, [row.name for row in table.rows], f"{file}, key target.row")
    # A method that the table has no row for gets one, but by the method's name, not by its title.
    values["methods"] = (target.row if target.row.lower() in names else point.method,)
    return values


def _places_of_rows(table: Table, file: str) -> dict[str, str]:
    """Where the file of a table says what `table_data` calls 'method cmlm (row w/o CL), key alpha'."""
    found = {}
    for index, row in enumerate(table.rows):
        for key in row.set:
            part, _, name = key.rpartition(".")
            found[f"method {part or row.parts[0]} (row {row.name}), key {name}"] = f"{file}, key rows.{index}.set.{key}"
    return found


def _places_of_point(table: Table, point: Point | None, places: Mapping[str, str]) -> dict[str, str]:
    """The same of a point's hyperparameters; `places`: of its texts. A row of the table that sets one itself keeps it."""
    rows = [(row.name, row.set) for row in table.rows]
    if point:
        rows.append(("+".join(method.title for method in methods_named(point.method)), {}))
    found = {}
    for text, place in places.items():
        part, _, name = text.partition("=")[0].partition(".")
        for row, own in rows:
            if name not in own and f"{part}.{name}" not in own:
                found[f"method {part} (row {row}), key {name}"] = place
    return found


def _placed(error: UserError, places: Mapping[str, str]) -> UserError:
    text = str(error)
    for flag, place in places.items():
        if text.startswith((f"{flag}:", f"{flag} ")):
            return UserError(place + text[len(flag) :])
    return error
