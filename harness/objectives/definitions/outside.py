"""Objectives from outside the package: a Python file is run as a module whose name holds the digest of its source."""

from __future__ import annotations

import linecache
import sys
from types import ModuleType
from typing import Any

from harness.errors import UserError, first_line
from harness.objectives.definitions.base import Definition
from harness.specs import digest_of

PREFIX = "harness_outside_"


def module_of(code: str, file: str) -> ModuleType:
    """The module of a source, run once in a process: another source is another module. `file`: what errors and tracebacks call it.

    Raises UserError for a source that is no Python, and for one that raises an error while it is run.
    """
    name = PREFIX + digest_of(code)
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module  # dataclasses look up the annotations of their module while it is run
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    try:
        exec(compile(code, file, "exec"), vars(module))
        for definition in definitions_in(module).values():
            definition.source, definition.code = digest_of(code), code
    except SyntaxError as error:
        del sys.modules[name]
        raise UserError(f"{file}, line {error.lineno}: is no Python ({error.msg}).") from None
    except UserError:
        del sys.modules[name]
        raise
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UserError(f"{file}, line {_line(error, file)}: {type(error).__name__}: {first_line(error)}") from None
    return module


def definitions_in(module: Any) -> dict[str, type[Definition]]:
    """The objectives that a module defines, by name."""
    return {
        value.name: value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Definition)
        and "name" in vars(value)
        and value.__module__ == module.__name__
    }


def _line(error: BaseException, file: str) -> int:
    """The last line of the file that the error passed."""
    line, trace = 0, error.__traceback__
    while trace:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == file else line
        trace = trace.tb_next
    return line
