"""The arguments of the Python API, and the request that they make."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import Parameter, signature
from os import PathLike, fspath
from typing import Any, TypeVar

from harness.errors import UserError
from harness.methods import read_methods
from harness.planning.point import with_points
from harness.planning.recipe import Value
from harness.planning.request import PLAIN, Amount, Request, overrides_of, read, value_of, with_default_table
from harness.search.request import TuneRequest

Set = Mapping[str, Value] | Mapping[tuple[str, ...], Value]
"""Values by key ('fine_tune.lr') or by path (('fine_tune', 'lr')), as `--set` takes them."""
Name = str | PathLike[str]
Files = Name | Sequence[Name]
"""A name, or the path of a file or folder."""
OWN_SEARCH = ("space", "preset", "mode", "trials", "sampler", "racing", "metric", "seed")
SEARCH = (*OWN_SEARCH, *(name for name in PLAIN if name not in ("preset", "reference", "methods", "keep")))
"""The arguments of a search: its own, and the fields of a request that it takes too."""
F = TypeVar("F", bound=Callable[..., Any])


def lists(*names: str) -> Callable[[F], F]:
    """`help` and notebooks list these arguments in place of those that the function takes by any name."""

    def listed(function: F) -> F:
        *own, _ = signature(function).parameters.values()
        kinds = {name: Request.__annotations__.get(name, Any) for name in names}
        more = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in kinds.items()]
        function.__signature__ = signature(function).replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return function

    return listed


def request_from(
    table: Name, set: Set | None, with_file: Files, arguments: Mapping[str, Any], known: Collection[str] = PLAIN
) -> Request:
    """`arguments`: the fields of `Request` that the caller named; a filter may be one value or several. Raises TypeError for another name than those `known`."""
    if wrong := [name for name in arguments if name not in known]:
        raise TypeError(
            f"unknown argument '{wrong[0]}'; known besides those of the signature are {', '.join(sorted(known))}"
        )
    given = {name: value for name, value in arguments.items() if value is not None}
    request = read(Request, {"table": table, "overrides": overrides_of(set or {}), **given})
    for name in request.methods or ():
        read_methods(name)
    files = [with_file] if isinstance(with_file, (str, PathLike)) else with_file
    return with_points(request, [fspath(file) for file in files if file])


def tune_request(method: str, set: Set | None, arguments: Mapping[str, Any]) -> TuneRequest:
    """Raises as `request_from` does."""
    read_methods(method)
    own = {name: value for name, value in arguments.items() if name in OWN_SEARCH and value is not None}
    shared = {name: value for name, value in arguments.items() if name not in OWN_SEARCH}
    base = request_from("", set, "", shared, SEARCH)
    return read(TuneRequest, {"method": method, "base": base, **own})


def share(name: str, value: Any) -> float:
    """A number of points as a share. Raises UserError, which names the argument."""
    return float(value_of(Amount, value, name)) / 100


def with_table(request: Request) -> Request:
    request = with_default_table(request)
    if not request.table:
        raise UserError(
            "table: name a table, such as 'few_shot', a file of labelled rows in tasks, or a file with a target in with_file."
        )
    return request
