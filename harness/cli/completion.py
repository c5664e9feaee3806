"""Completion of `harness` in bash and zsh, by argcomplete. Imported only while a shell completes a line, and for its script."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import fields
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


def attach(parser: argparse.ArgumentParser) -> set[str]:
    """Give each argument its completer, by its name or by its metavar; the names that have one of their own."""
    named: set[str] = set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                named |= attach(command)
        name = (action.option_strings or [action.dest])[-1]
        named |= {name} & COMPLETERS.keys()
        metavar = str(action.metavar)
        by_metavar = _choices if "|" in metavar else METAVARS.get(metavar)
        if completer := COMPLETERS.get(name, by_metavar):
            action.completer = completer  # type: ignore[attr-defined]
    return named


def _words(names: Callable[[], Iterable[str]], *, separators: str = "", files: Any = None) -> Completer:
    """Completes a name. `separators`: characters between several of them; `files`: a completer of paths, offered too."""

    def completer(prefix: str, **_: Any) -> list[str]:
        start = max((prefix.rfind(mark) for mark in separators), default=-1) + 1
        given = set(re.split(f"[{re.escape(separators)}]", prefix[:start])) if separators else set()
        offered = [prefix[:start] + name for name in names() if name not in given]
        return offered + ([] if files is None or start else [*files(prefix)])

    return completer


def _in(module: str, name: str) -> Callable[[], Iterable[str]]:
    """The names that a module lists; it is imported when they are needed."""
    return lambda: getattr(import_module(module), name)


def _packaged(folder: str) -> Callable[[], Iterable[str]]:
    return lambda: import_module("harness.yaml_files").packaged_files(folder)


def _presets(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """The presets of the table that the line names; without one, those of all packaged tables."""
    from harness.planning.table import load_table

    named = getattr(parsed_args, "table", None)
    return sorted(
        {preset for name in ([named] if named else _packaged("benchmarks")()) for preset in load_table(name).presets}
    )


def _choices(action: argparse.Action, **_: Any) -> list[str]:
    """Those that the argument's help lists."""
    return str(action.metavar).split("|")


def _encoders() -> Iterable[str]:
    from harness.encoders import PACKAGED, SIZES

    return [*PACKAGED, *(f"new:{size}" for size in SIZES)]


def _settings() -> Iterable[str]:
    """The keys of --set, with the '=' that follows: each phase's recipe and each method's hyperparameters."""
    from harness.methods import METHODS
    from harness.specs import Optim

    for phase in ("optim", "pre_train", "post_train", "fine_tune"):
        yield from (f"{phase}.{field.name}=" for field in fields(Optim))
    for name, method in METHODS.items():
        yield from (f"{name}.{key}=" for key in method.Hyperparameters.model_fields)


_YAML, _FOLDERS, _FILES = FilesCompleter(("yaml", "yml")), DirectoriesCompleter(), FilesCompleter()

METAVARS: dict[str, Completer] = {"FILE": _FILES, "FOLDER": _FOLDERS, "URI": _FOLDERS}
COMPLETERS: dict[str, Completer] = {
    "--table": _words(_packaged("benchmarks"), files=_YAML),
    "--preset": _presets,
    "--methods": _words(_in("harness.methods", "METHODS"), separators=",+"),
    "method": _words(_in("harness.methods", "METHODS"), separators="+"),
    "--tasks": _words(_in("harness.tasks", "TASKS"), separators=",", files=_YAML),
    "--space": _words(_packaged("search_spaces"), files=_YAML),
    "--encoder": _words(_encoders, separators=",", files=_FOLDERS),
    "--corpus": _words(_in("harness.tasks", "CORPORA"), files=_FILES),
    "--data": _words(lambda: ["hub"], files=_FOLDERS),
    "--set": _words(_settings),
    "--metric": _words(_in("harness.tasks", "METRICS")),
    "--sampler": _words(_in("harness.search.space", "SAMPLERS")),
    "--racing": _words(_in("harness.search.space", "RACINGS")),
    "--with": _YAML,
    "model": _FOLDERS,
}
