"""Completion of `harness` in bash and zsh, by argcomplete. Imported only while a shell completes a line, and for its script."""

from __future__ import annotations

import argparse
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


def script() -> str:
    """The text that bash or zsh evaluates to complete `harness`."""
    return shellcode(["harness"], use_defaults=False)


def complete(parser: argparse.ArgumentParser) -> None:
    """Write the completions of the line that the shell gave, and end the process."""
    attach(parser)
    argcomplete.autocomplete(parser, always_complete_options="long")


def attach(parser: argparse.ArgumentParser) -> None:
    """Give each argument of names its completer; any other value may be a file."""
    for action in parser._actions:
        for command in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            attach(command)
        name, metavar = (action.option_strings or [action.dest])[-1], str(action.metavar)
        if name in NAMES or "|" in metavar:
            action.completer = Names(name, metavar.split("|"))  # type: ignore[attr-defined]


class Names:
    """Completes the names that an argument takes, which are looked up only then, and paths where it takes them."""

    def __init__(self, name: str, choices: list[str]) -> None:
        self.name, self.choices = name, choices

    def __call__(self, prefix: str, **_: Any) -> list[str]:
        if self.name not in NAMES:
            return self.choices
        module, name, separators, files = NAMES[self.name]
        start = max((prefix.rfind(mark) for mark in separators), default=-1) + 1
        names: Any = getattr(import_module(module), name)
        found = [prefix[:start] + each for each in (names() if callable(names) else names)]
        return found + ([*FilesCompleter(("yaml", "yml"))(prefix)] if files and not start else [])
