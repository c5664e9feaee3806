"""Completion of `harness` in bash and zsh, by argcomplete. Imported only while a shell completes a line, and for its script."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import argcomplete
from argcomplete.completers import DirectoriesCompleter, FilesCompleter, SuppressCompleter
from argcomplete.shell_integration import shellcode

Completer = Callable[..., Iterable[str]]
"""Called by argcomplete with the keywords prefix, action, parser and parsed_args; argcomplete drops what does not fit."""


def script() -> str:
    """The text that bash or zsh evaluates to complete `harness`."""
    return shellcode(["harness"], use_defaults=False)


def complete(parser: argparse.ArgumentParser) -> None:
    """Write the completions of the line that the shell gave in COMP_LINE, and end the process."""
    line = os.environ["COMP_LINE"]
    flags: Any = (
        "long" if re.match(r"\S+ +(bench|plan|report|compare|doctor|export|tune +\S+|predict +\S+) ", line) else False
    )
    attach(parser)
    argcomplete.autocomplete(parser, always_complete_options=flags, default_completer=SuppressCompleter())


def attach(parser: argparse.ArgumentParser) -> None:
    """Give each argument its completer, by its name or by its metavar."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                attach(command)
        name, metavar = (action.option_strings or [action.dest])[-1], str(action.metavar)
        if completer := _choices if "|" in metavar else COMPLETERS.get(name, METAVARS.get(metavar)):
            action.completer = completer  # type: ignore[attr-defined]


def _words(names: Callable[[], Iterable[str]], separators: str = "", files: Any = None) -> Completer:
    """Completes a name. `separators`: characters between several of them; `files`: a completer of paths, offered too."""

    def completer(prefix: str, **_: Any) -> list[str]:
        start = max((prefix.rfind(mark) for mark in separators), default=-1) + 1
        return [prefix[:start] + name for name in names()] + ([] if files is None or start else [*files(prefix)])

    return completer


def _in(module: str, name: str) -> Callable[[], Iterable[str]]:
    """The names that a module lists; it is imported when they are needed."""
    return lambda: getattr(import_module(module), name)


def _choices(action: argparse.Action, **_: Any) -> list[str]:
    """Those that the argument's help lists."""
    return str(action.metavar).split("|")


_YAML, _FOLDERS = FilesCompleter(("yaml", "yml")), DirectoriesCompleter()

METAVARS: dict[str, Completer] = {"FILE": FilesCompleter(), "FOLDER": _FOLDERS, "URI": _FOLDERS}
COMPLETERS: dict[str, Completer] = {
    "--table": _words(lambda: import_module("harness.yaml_files").packaged_files("benchmarks"), files=_YAML),
    "--methods": _words(_in("harness.methods", "METHODS"), separators=",+"),
    "method": _words(_in("harness.methods", "METHODS"), separators="+"),
    "--tasks": _words(_in("harness.tasks", "TASKS"), separators=",", files=_YAML),
    "--with": _YAML,
    "model": _FOLDERS,
}
