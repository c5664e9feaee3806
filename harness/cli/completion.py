"""Completion of `harness` in bash and zsh, by argcomplete. Imported only while a shell completes a line, and for its script."""

from __future__ import annotations

import argparse
from functools import partial
from importlib import import_module
from typing import Any

import argcomplete
from argcomplete.completers import FilesCompleter
from argcomplete.shell_integration import shellcode

NAMES = {
    "--table": ("harness.planning.table", "table_names", "", True),
    "--methods": ("harness.methods", "METHODS", ",+", False),
    "method": ("harness.methods", "METHODS", "+", False),
    "--tasks": ("harness.tasks.task", "TASKS", ",", True),
}
"""By flag: the module and the name of what it takes, characters between several, and whether a file may be named too."""
SCRIPT = shellcode(["harness"], use_defaults=False)
"""What bash or zsh evaluates to complete `harness`."""


def complete(parser: argparse.ArgumentParser) -> None:
    """Write the completions of the line that the shell gave, and end the process."""
    attach(parser)
    argcomplete.autocomplete(parser, always_complete_options="long")


def attach(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        for command in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            attach(command)
        name, metavar = (action.option_strings or [action.dest])[-1], str(action.metavar)
        if name in NAMES or "|" in metavar:
            action.completer = partial(_names, name, metavar.split("|"))  # type: ignore[attr-defined]


def _names(flag: str, choices: list[str], prefix: str, **_: Any) -> list[str]:
    """What an argument of names takes, looked up only now, and paths where it takes them."""
    if flag not in NAMES:
        return choices
    module, name, separators, files = NAMES[flag]
    start = max((prefix.rfind(mark) for mark in separators), default=-1) + 1
    names: Any = getattr(import_module(module), name)
    found = [prefix[:start] + each for each in (names() if callable(names) else names)]
    return found + ([*FilesCompleter(("yaml", "yml"))(prefix)] if files and not start else [])
