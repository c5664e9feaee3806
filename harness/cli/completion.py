"""Completion of `harness` in bash and zsh, by argcomplete. Imported only while a shell completes a line, and for its script."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from functools import partial
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
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                attach(command)
        name, metavar = (action.option_strings or [action.dest])[-1], str(action.metavar)
        choices = _names(partial(metavar.split, "|")) if "|" in metavar else None
        if completer := choices or COMPLETERS.get(name, METAVARS.get(metavar)):
            action.completer = completer  # type: ignore[attr-defined]


def _names(named: Callable[[], Iterable[str]], separators: str = "", files: Any = None) -> Callable[..., list[str]]:
    """Completes a name, which is looked up only then. `separators`: characters between several of them; `files`: a completer of paths, offered too."""

    def completer(prefix: str, **_: Any) -> list[str]:
        start = max((prefix.rfind(mark) for mark in separators), default=-1) + 1
        return [prefix[:start] + name for name in named()] + ([] if files is None or start else [*files(prefix)])

    return completer


def _methods() -> Iterable[str]:
    return list(import_module("harness.methods").METHODS)


def _tasks() -> Iterable[str]:
    return list(import_module("harness.tasks.task").TASKS)


def _tables() -> Iterable[str]:
    return list(import_module("harness.yaml_files").packaged_files("benchmarks"))


_YAML, _FOLDERS = FilesCompleter(("yaml", "yml")), DirectoriesCompleter()
METAVARS: dict[str, Any] = {"FILE": FilesCompleter(), "FOLDER": _FOLDERS, "URI": _FOLDERS}
COMPLETERS: dict[str, Any] = {
    "--table": _names(_tables, files=_YAML),
    "--methods": _names(_methods, ",+"),
    "method": _names(_methods, "+"),
    "--tasks": _names(_tasks, ",", _YAML),
    "--with": _YAML,
    "model": _FOLDERS,
}
