"""What a store remembers: the record of a key, the last bench, and the request and command that make a run again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harness.commands.prepare import name_of_task
from harness.errors import UserError, masked, unknown
from harness.methods import METHODS, methods_named
from harness.paths import PYTHON
from harness.planning.request import (
    FIELDS,
    LABELLED,
    Request,
    flag_of,
    from_json,
    has_rows,
    is_own,
    same_table,
)
from harness.planning.table import load_table
from harness.search.request import SEARCH_FLAGS, TuneRequest
from harness.store import Store, StoredRequest
from harness.tasks.task import TASKS


def check_exists(store: Store) -> None:
    """Raises UserError where there is no store."""
    if not store.exists:
        raise UserError(f"There is no store at {store.shown}; run a bench first, or name another one with --store.")


def last_bench(store: Store, table: str = "", finished: bool = False) -> tuple[StoredRequest, Request] | None:
    """The last bench that was run, of `table` where one is named; the last one whose stages have all ended, where it has to be `finished`."""
    for stored in store.requests():
        if not stored.study:
            request = from_json(stored.values)
            if not table or same_table(request.table, table):
                keys = store.stages_of(stored) if finished else []
                if len(store.statuses(keys)) == len(keys):
                    return stored, request
    return None


def like_last(request: Request, last: Request) -> Request:
    """The request with the values of the last bench in what it leaves out, and its overrides after that one's. A task of the user's may be
    named as the table names it, instead of by its file."""
    if unread := [task for task in request.tasks or () if not is_own(task) and task not in TASKS]:
        files = {name_of_task(text): text for text in last.tasks or () if is_own(text)}
        if missing := next((task for task in unread if task not in files), None):
            raise unknown("task", missing, [*TASKS, *files], request.origin("tasks"))
        request = replace(request, tasks=tuple(files.get(task, task) for task in request.tasks or ()))
    if request.tasks and not any(map(has_rows, request.tasks)):
        left_out: dict[str, Any] = dict.fromkeys(LABELLED)  # they describe files that are not among its tasks
        last = replace(last, **left_out)
    if request.methods is not None:  # they are all the rows that are wanted
        last = replace(last, reference=None)
    given = [name for name in ("table", *FIELDS) if getattr(request, name) not in (None, "")]
    taken = {name: getattr(last, name) for name in ("table", *FIELDS) if name not in given}
    origins = {name: last.origin(name) for name in taken}
    overrides = (*last.overrides, *request.overrides)
    return replace(request, **taken, overrides=overrides, origins={**request.origins, **origins})


def of_run(stored: StoredRequest, label: Mapping[str, Any], cell: bool = False) -> Request:
    """The part of a stored request that makes one run, by the run's label in the store (without one all of it); all subsets and seeds of its `cell`, where that is
    wanted or the table takes the best of several. A row that the table does not have, and gets for its method, goes by the method."""
    request = from_json(stored.values)
    if not label:
        return request
    task, row, method = (str(label[name]) for name in ("task", "row", "method"))
    try:
        table = load_table(request.table)
        cell = cell or (table.aggregate.k or 1) > 1
        added = set(method.split("+")) <= METHODS.keys() and row == "+".join(m.title for m in methods_named(method))
        row = method if added and row not in {each.name for each in table.rows} else row
    except UserError:  # the user's file is gone or changed
        pass
    files = [name for name in request.methods or () if PYTHON in name and _is_of(name, method)]
    named = request.tasks is None or task in request.tasks
    return replace(
        request,
        reference=None,
        methods=(files[0] if files else row,),
        seeds=request.seeds if cell else (label["seed"],),
        subsets=request.subsets if cell else (label["subset"],),
        tasks=(task,) if named else tuple(text for text in request.tasks or () if is_own(text)),
        sizes=(label["size"],) if label["size"] else request.sizes,
    )


def _is_of(name: str, method: str) -> bool:
    """Whether a method may be what files in a name define: what stands beside them is the same, and no other method has their part."""
    parts, known = name.split("+"), method.split("+")
    return len(parts) == len(known) and all(
        part == each or (part.endswith(PYTHON) and (each not in METHODS or METHODS[each].file))
        for part, each in zip(parts, known, strict=True)
    )


def tune_command(request: TuneRequest) -> str:
    """The command line of a search, for a shell."""
    words = ["harness", "tune", *(request.base.methods or (request.method,))]
    words += [f"--{request.mode}"] if request.mode else []
    for name in SEARCH_FLAGS:
        words += [f"--{name}", str(value)] if (value := getattr(request, name)) else []
    words += _words(replace(request.base, methods=None, preset=None), request.base.store)
    return masked(shlex.join(words))


def command(request: Request, verb: str = "bench", store: str | None = None) -> str:
    """The command line of a request, for a shell."""
    return masked(shlex.join(["harness", verb, "--table", request.table, *_words(request, store)]))


def _words(request: Request, store: str | None) -> list[str]:
    words: list[str] = []
    for name in FIELDS:
        value = getattr(request, name)
        if value not in (None, False):
            words += [flag_of(name)] if value is True else [flag_of(name), _listed(value)]
    for override in request.overrides:
        words += ["--set", override.text]
    return words + (["--store", store] if store else [])


def _listed(value: Any) -> str:
    """As a flag reads it: several values between commas."""
    if not isinstance(value, tuple):
        return str(value)
    return ",".join('"{}"'.format(text.replace('"', '""')) if "," in text else text for text in map(str, value))
