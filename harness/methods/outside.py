"""Code from outside the package: a Python file is run as a module whose name holds the digest of its source."""

from __future__ import annotations

import linecache
import sys
import traceback
from types import ModuleType
from typing import Any, TypeVar

from harness.errors import UserError, first_line
from harness.specs import digest_of

PREFIX = "harness_outside_"
T = TypeVar("T")


def classes_in(module: ModuleType, kind: type[T]) -> dict[str, type[T]]:
    """The named classes of a kind that a module defines."""
    found: list[Any] = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, kind)]
    return {each.name: each for each in found if "name" in vars(each) and each.__module__ == module.__name__}


def module_of(code: str, file: str) -> ModuleType:
    """The module of a source, run once in a process: another source is another module. `file`: what errors and tracebacks call it.

    Raises UserError for a source that is no Python, and for one that raises an error while it is run.
    """
    name = PREFIX + digest_of(code)
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module  # pydantic looks up the annotations of a module while it is run
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    try:
        exec(compile(code, file, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if isinstance(error, SyntaxError):
            raise UserError(f"{file}, line {error.lineno}: is no Python ({error.msg}).") from None
        if isinstance(error, UserError):
            raise
        lines = [0, *(frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file)]
        raise UserError(f"{file}, line {lines[-1]}: {type(error).__name__}: {first_line(error)}") from None
    return module
