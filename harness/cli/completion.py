"""Completion of `harness` in bash and zsh, by argcomplete. Imported only while a shell completes a line, and for its script."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from importlib import import_module
from typing import Any

import argcomplete
from argcomplete.completers import DirectoriesCompleter, FilesCompleter, SuppressCompleter
from argcomplete.shell_integration import shellcode


def script() -> str:
    """The text that bash or zsh evaluates to complete `harness`."""
    return shellcode(["harness"], use_defaults=False)


def complete(parser: argparse.ArgumentParser) -> None:
    """Write the completions of the line that the shell gave, and end the process."""
    attach(parser)
    argcomplete.autocomplete(parser, always_complete_options="long", default_completer=SuppressCompleter())


def attach(parser: argparse.ArgumentParser) -> None:
    """Give each argument its completer, by its name or by its metavar."""
    for action in parser._actions:
        for command in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            attach(command)
        name, metavar = (action.option_strings or [action.dest])[-1], str(action.metavar)
        choices = Names(metavar.split("|")) if "|" in metavar else None
        if completer := choices or COMPLETERS.get(name, METAVARS.get(metavar)):
            action.completer = completer  # type: ignore[attr-defined]


class Names:
    """Completes names, or those of a table 'MODULE:NAME' that is imported only then. `separators`: characters between several of them;
    `files`: a completer of paths, offered too."""

    def __init__(self, names: Iterable[str] | str, separators: str = "", files: Any = None) -> None:
        self.names, self.separators, self.files = names, separators, files

    def __call__(self, prefix: str, **_: Any) -> list[str]:
        names: Any = self.names
        if isinstance(names, str):
            module, name = names.split(":")
            found: Any = getattr(import_module(module), name)
            names = found("benchmarks") if callable(found) else found
        start = max((prefix.rfind(mark) for mark in self.separators), default=-1) + 1
        return [prefix[:start] + name for name in names] + (
            [] if self.files is None or start else [*self.files(prefix)]
        )


_YAML, _FOLDERS = FilesCompleter(("yaml", "yml")), DirectoriesCompleter()
METAVARS: dict[str, Any] = {"FILE": FilesCompleter(), "FOLDER": _FOLDERS, "URI": _FOLDERS}
COMPLETERS: dict[str, Any] = {
    "--table": Names("harness.yaml_files:packaged_files", files=_YAML),
    "--methods": Names("harness.methods:METHODS", ",+"),
    "method": Names("harness.methods:METHODS", "+"),
    "--tasks": Names("harness.tasks.task:TASKS", ",", _YAML),
    "--with": _YAML,
    "model": _FOLDERS,
}
