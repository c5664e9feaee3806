"""The methods that can be compared. A method is a frozen model of its hyperparameters, with a citation, and the stages or the objective it makes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from harness.errors import UserError, unknown
from harness.methods.base import Method, RunContext, UnlabelledPhase, chain, hyperparameters, mlm_head_stage
from harness.methods.outside import add_installed, method_in, methods_of
from harness.methods.reference import REFERENCE
from harness.paths import PYTHON, named_path

_FOUND = [
    method for module in iter_modules(__path__) for method in methods_of(import_module(f"{__name__}.{module.name}"))
]
METHODS: dict[str, type[Method]] = {m.name: m for m in sorted(_FOUND, key=lambda m: (not m.supervised, m.name))}
"""Every method that a module of this package defines, first those that fine-tune; then those of entry points, and of files that were read."""
_FILES: dict[str, Path] = {}
"""Of each method from outside its file."""


def read_method(path: Path) -> type[Method]:
    """The method that a file defines, which `METHODS` has from now on. Raises UserError as `method_in` does."""
    names = [name for name in METHODS if name not in _FILES or _FILES[name].resolve() != path.resolve()]
    method = method_in(path, names)
    METHODS[method.name], _FILES[method.name] = method, path
    return method


add_installed(read_method)


def read_methods(name: str) -> str:
    """'./my_method.py+scl' as 'my_method+scl': the files in it are run, which is for what a command line or a call names and for nothing else."""
    parts = name.split("+")
    return "+".join(read_method(named_path(p, "methods")).name if p.endswith(PYTHON) else p for p in parts)


def known_methods(name: str, among: Sequence[str] = ()) -> str:
    """The same without running anything: of the file that was read from that path, else under that name. Raises UserError where none was; `among`: the methods
    that are to be named with it."""
    return "+".join(_read_from(part, among or [name]) if part.endswith(PYTHON) else part for part in name.split("+"))


def _read_from(file: str, among: Sequence[str]) -> str:
    path, read = Path(file), {method: path for method, path in _FILES.items() if method in METHODS}
    same = [method for method, other in read.items() if other == path] or [m for m in read if read[m].name == path.name]
    if not same:
        raise UserError(
            f"methods: {file} is not run, since this command does not name it and code that a store or a file names is never run; add "
            f"--methods {shlex.quote(','.join(among))} (in Python first harness.methods.read_methods({file!r}))."
        )
    return same[0]


def methods_named(name: str, where: str = "") -> tuple[type[Method], ...]:
    """The methods of 'cmlm' or 'cmlm+scl': those without labels in their order, then at most one that fine-tunes.

    Raises UserError for an unknown part (with the closest name) and for an order that cannot be.
    """
    found = []
    for part in name.split("+"):
        if part not in METHODS:
            raise unknown("method", part, METHODS, where)
        found.append(METHODS[part])
    place = f"{where}: " if where else ""
    if any(method.supervised for method in found[:-1]):
        raise UserError(f"{place}'{name}' trains after fine-tuning; only the last method may use labels.")
    if len(set(found)) < len(found):
        raise UserError(f"{place}'{name}' names a method twice; keep one of them.")
    return tuple(found)


__all__ = [
    "METHODS",
    "REFERENCE",
    "Method",
    "RunContext",
    "UnlabelledPhase",
    "chain",
    "hyperparameters",
    "known_methods",
    "methods_named",
    "mlm_head_stage",
    "read_method",
    "read_methods",
]
