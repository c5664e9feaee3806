"""The methods that can be compared, and the objectives that they train with: frozen models of their parameters. No torch."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from harness.errors import UserError, unknown
from harness.methods.base import Method, RunContext, UnlabelledPhase, chain, hyperparameters, mlm_head_stage
from harness.methods.definition import DEFINITIONS, Definition, classes_in, definition_of, objective, run_outside
from harness.methods.reference import REFERENCE
from harness.paths import PYTHON, named_path
from harness.specs import digest_of

METHODS: dict[str, type[Method]] = {}
"""Every method that a module of this package defines, first those that fine-tune; then those of files that were read."""
for _found in iter_modules(__path__):
    _module = import_module(f"{__name__}.{_found.name}")
    METHODS |= classes_in(_module, Method)
    DEFINITIONS |= classes_in(_module, Definition)
METHODS = {m.name: m for m in sorted(METHODS.values(), key=lambda m: (not m.labelled, m.name))}
_FILES: dict[str, Path] = {}
"""Of each method from outside its file."""


def read_method(path: Path) -> type[Method]:
    """The method that a file defines, which `METHODS` has from now on; its objectives can be built.

    Raises UserError for a file that cannot be read or run, without a method, with several, and for the name of a method or an objective that
    there is already.
    """
    try:
        code = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"methods: {path} cannot be read ({getattr(error, 'strerror', None) or error}); name a Python file that defines a method."
        ) from None
    module = run_outside(code, str(path))
    own = list(classes_in(module, Method).values())
    if len(own) != 1:
        count = "no Method" if not own else f"{len(own)} methods ({', '.join(method.name for method in own)})"
        raise UserError(f"{path}: defines {count}; a file defines one, a subclass of Method with a name.")
    (method,) = own
    if method.name in METHODS and _FILES.get(method.name, Path()).resolve() != path.resolve():
        raise UserError(f"{path}: method '{method.name}' has the name of another one; give it a name of its own.")
    if not method.name.isidentifier() or method.name != method.name.lower():
        raise UserError(f"{path}: method '{method.name}' should be named in small letters, digits and '_'.")
    definitions = classes_in(module, Definition)
    for name in definitions:
        if name in DEFINITIONS and not DEFINITIONS[name].source:
            raise UserError(f"{path}: objective '{name}' has the name of another one; give it a name of its own.")
    DEFINITIONS.update(definitions)
    method.file = f"{path.name}, digest {digest_of(code)}"
    METHODS[method.name], _FILES[method.name] = method, path
    return method


def read_methods(name: str) -> str:
    """'./my_method.py+scl' as 'my_method+scl': the files in it are run, which is for what a command line or a call names and for nothing else."""
    parts = name.split("+")
    return "+".join(read_method(named_path(p)).name if p.endswith(PYTHON) else p for p in parts)


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
    if any(method.labelled for method in found[:-1]):
        raise UserError(f"{place}'{name}' trains after fine-tuning; only the last method may use labels.")
    if len(set(found)) < len(found):
        raise UserError(f"{place}'{name}' names a method twice; keep one of them.")
    return tuple(found)


__all__ = [
    "DEFINITIONS",
    "METHODS",
    "REFERENCE",
    "Method",
    "RunContext",
    "UnlabelledPhase",
    "chain",
    "definition_of",
    "hyperparameters",
    "known_methods",
    "methods_named",
    "mlm_head_stage",
    "objective",
    "read_method",
    "read_methods",
]
