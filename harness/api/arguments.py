"""The arguments of the Python API, the requests that they make, and the process that calls it: a call changes nothing in it that outlives the call, and in a
notebook shows its progress below the cell."""

from __future__ import annotations

import logging
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from importlib import import_module
from inspect import Parameter, signature
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, TypeVar

from harness.commands.recorded import last_bench, like_last
from harness.errors import UserError, naming_arguments
from harness.methods import read_methods
from harness.planning.point import with_points
from harness.planning.recipe import Value
from harness.planning.request import PLAIN, Amount, Request, overrides_of, read, value_of, with_default_table
from harness.search.request import SEARCH_FIELDS, TuneRequest
from harness.store import DEFAULT_URL, Store

if TYPE_CHECKING:
    from harness.planning.work import Event

Set = Mapping[str, Value]
"""Values by key ('fine_tune.lr'), as `--set` takes them."""
Name = str | PathLike[str]
Files = Name | Sequence[Name]
"""A name, or the path of a file or folder."""
T = TypeVar("T")


@contextmanager
def undisturbed(*libraries: str) -> Iterator[None]:
    """Afterwards the environment, random generators, warning filters, log levels, the hook for exceptions, and the settings of torch and
    transformers are as before; errors name arguments. `libraries`: those that the call imports and sets."""
    loaded: dict[str, Any] = {name: import_module(name) for name in libraries}
    torch: Any = sys.modules.get("torch")
    before = dict(os.environ)
    with ExitStack() as after:
        after.callback(os.environ.update, before)
        after.callback(lambda: [os.environ.pop(name) for name in os.environ.keys() - before.keys()])
        after.callback(random.setstate, random.getstate())
        after.callback(setattr, sys, "excepthook", sys.excepthook)
        names = ("ray", "ray.data", "ray.train", "ray.tune", "ray._private", *logging.root.manager.loggerDict)
        for logger in map(logging.getLogger, names):
            after.callback(logger.setLevel, logger.level)
        if torch:
            after.callback(torch.set_num_threads, torch.get_num_threads())
            after.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
            after.enter_context(torch.random.fork_rng(gpus))
        shown: Any = loaded.get("transformers.utils.logging")
        if shown and shown.is_progress_bar_enabled():
            after.callback(shown.enable_progress_bar)
        after.enter_context(warnings.catch_warnings())
        after.enter_context(naming_arguments())
        yield


def in_notebook(stages: int) -> Callable[[Event], None] | None:
    """What shows the events of so many stages, in one line below the cell of a notebook; None where this process runs none."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    if not shell or "IPKernelApp" not in shell.config:
        return None
    ended = 0

    def show(event: Event) -> None:
        nonlocal ended
        ended += event.ended
        print(f"\r{ended} of {stages} stages: {event.item.name} {event.kind}".ljust(100), end="", flush=True)

    return show


def _taken_by(
    make: Callable[..., Any], leading: Parameter, names: Iterable[str], *libraries: str
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Makes a function of the API from one of a request: in its place it takes what `make` reads the request from, `leading` first."""
    annotations = {**Request.__annotations__, "set": Set}
    named = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotations.get(name, Any)) for name in names
    ]

    def decorated(function: Callable[..., T]) -> Callable[..., T]:
        own = [*signature(function).parameters.values()][1:]
        shape = signature(function).replace(parameters=sorted([*own, leading, *named], key=lambda each: each.kind))

        @wraps(function)
        def called(*args: Any, **given: Any) -> T:
            values = shape.bind(*args, **given).arguments
            mine = {each.name: values.pop(each.name) for each in own if each.name in values}
            with undisturbed(*libraries):
                return function(make(**values), **mine)

        called.__signature__ = shape  # type: ignore[attr-defined]
        return called

    return decorated


def request_from(table: Name = "", set: Set | None = None, with_file: Files | None = None, **fields: Any) -> Request:
    """`fields`: those of `Request`; a filter may be one value or several. Raises UserError."""
    given = {name: value for name, value in fields.items() if value is not None}
    given["overrides"] = overrides_of(value_of(Mapping[str, Any], set or {}, "set"))
    request = read(Request, {"table": table, **given})
    for name in request.methods or ():
        read_methods(name)
    files = [with_file] if isinstance(with_file, (str, PathLike)) else with_file or []
    return with_points(request, [fspath(file) for file in files])


def _table_request(**arguments: Any) -> Request:
    request = with_default_table(request_from(**arguments))
    if not request.table:
        raise UserError(
            "table: name a table, such as 'few_shot', a file of labelled rows in tasks, or a file with a target in with_file."
        )
    return request


def _recalled_request(**arguments: Any) -> Request:
    """Without a table, that of the last bench in its store."""
    request = request_from(**arguments)
    if request.table:
        return request
    last = last_bench(Store(request.store or DEFAULT_URL, create=False))
    if last is None:
        raise UserError("table: the store holds no bench yet; name a table, or a store with one.")
    return like_last(request, last[1])


def _tune_request(method: str, set: Set | None = None, **arguments: Any) -> TuneRequest:
    read_methods(method)
    own = {name: value for name in SEARCH_FIELDS if (value := arguments.pop(name, None)) is not None}
    return read(TuneRequest, {"method": method, "base": request_from(set=set, **arguments), **own})


_TABLE = Parameter("table", Parameter.POSITIONAL_OR_KEYWORD, default="", annotation=Name)
_METHOD = Parameter("method", Parameter.POSITIONAL_OR_KEYWORD, annotation=Name)
_SHARED = (name for name in PLAIN if name not in ("preset", "reference", "methods", "keep"))
of_table = _taken_by(_table_request, _TABLE, ("set", "with_file", *PLAIN))
of_recorded = _taken_by(_recalled_request, _TABLE, ("set", "with_file", *PLAIN))
of_search = _taken_by(_tune_request, _METHOD, ("set", *SEARCH_FIELDS, *_SHARED), "optuna")


def share(name: str, value: Any) -> float:
    """A number of points as a share. Raises UserError, which names the argument."""
    return float(value_of(Amount, value, name)) / 100
