"""argparse as the command needs it: one sentence for a mistake, and the completion script. Imports the standard library alone."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from harness.errors import UserError, unknown


class Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    @property
    def _place(self) -> str:
        """'bench' of 'harness bench'."""
        return self.prog.partition(" ")[2]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Reports an unknown flag first, with the closest one: a missing flag is often a misspelt one."""
        for text in self._own(args):
            flag = text.partition("=")[0]
            if flag.startswith("--") and flag != "--" and flag not in self._option_string_actions:
                known = [name for name in self._option_string_actions if name.startswith("--")]
                raise unknown("flag", flag, known, self._place)
        return super().parse_known_args(args, namespace)

    def _own(self, args: Iterable[str]) -> Iterator[str]:
        """The words up to the command that follows, if one does: it has flags of its own."""
        leads = any(action.nargs == argparse.PARSER for action in self._actions)
        words = iter(args)
        for text in words:
            if leads and not text.startswith("-"):
                return
            yield text
            action = self._option_string_actions.get(text)
            if leads and action and action.nargs is None:
                next(words, None)  # its value

    def error(self, message: str) -> NoReturn:
        """Raises one sentence as every other error; argparse would print the whole usage."""
        from harness.store import masked

        shown = " ".join(masked(word) for word in message.split(" "))  # a URL without its flag is among them
        raise UserError(f"{self._place}{': ' if self._place else ''}{shown}; see '{self.prog} --help'.")


class Completion(argparse.Action):
    """Prints the completion script and ends."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from harness.cli.completion import script

        print(script())
        parser.exit()
