"""The values of a table by path (recipe.fine_tune.lr, max_length, ...), and where each comes from.

An origin is 'P' (the paper), 'R' (read in released code), 'C' (chosen here, where the paper is silent) or 'D' (departs
from what the paper says), with what the table says behind it: a place ('P 4.3': section 4.3), or the paper's value and its place
('D fp16, Table 5'). Origins are no part of a key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from harness.encoders.sources import NEW, NEW_TOKENIZER
from harness.methods import METHODS
from harness.planning.recipe import EXCLUSIVE
from harness.planning.row import Row
from harness.specs import Optim
from harness.wording import value_text
from harness.yaml_files import parse_value

if TYPE_CHECKING:
    from harness.planning.resolved import ResolvedTable
    from harness.planning.table import Table

TASK_RECIPES = "task_recipes"
TOKENIZER = "encoder.tokenizer"
WHOLE = ("fraction", 1.0)


@dataclass(frozen=True)
class Use:
    """A value in use, by its `path`. `tasks`: of a recipe's value those on which a row takes it. `changed`: our value and the table's as texts,
    where they differ; `origin`: what the table says of where its own comes from; `encoder`: under which it is in use."""

    path: str
    value: Any
    tasks: tuple[str, ...]
    changed: tuple[str, str] | None
    origin: str
    encoder: str

    @property
    def paper(self) -> str:
        """Of a value that departs in the table the paper's."""
        return self.origin[2:].rpartition(", ")[0]

    @property
    def where(self) -> str:
        return self.origin[2:].rpartition(", ")[2]

    @property
    def letter(self) -> str:
        """Of its origin, '' where the table names none or the value is not the table's own. Where the table departs from the paper, D, or P
        where the value in use is the paper's."""
        if self.origin[:1] == "D":
            return "P" if parse_value(self.paper) == self.value else "D"
        return "" if self.changed else self.origin[:1]

    @property
    def key(self) -> str:
        return self.path.removeprefix("recipe.")

    @property
    def flag(self) -> str:
        """What a user types for the paper's value: in full where it is a setting."""
        files = {
            "pre_train.corpus": "--corpus FILES",
            "translator": "--translator NAME",
            "grids": "",
            TOKENIZER: f"--encoder {self.encoder.partition('@')[0]}@FOLDER",
        }
        return files.get(self.path, f"--set {self.key}={self.paper}")

    def concerns(self, row: Row) -> bool:
        """Whether a row reads the value."""
        if self.path == "translator":
            return bool(row.augment) or any(METHODS[part].translates for part in row.parts if part in METHODS)
        return bool(row.pre_train) or not self.path.startswith(("pre_train.", "recipe.pre_train."))


def flat(
    of: Table | ResolvedTable, encoder: str, data: str, trained: Mapping[str, Any], translator: str | None, **more: Any
) -> dict[str, Any]:
    """What a table has, by path, in the order in which it is printed; `trained`: settings of the encoder and the recipe by path, `more`: of the design.
    All of a corpus goes without saying, and which weights are stored on the way changes no number."""
    found: dict[str, Any] = {"encoder": encoder}
    if encoder.startswith(NEW) and "," not in encoder:
        size, _, tokenizer = encoder.partition("@")
        found = {"encoder": size, TOKENIZER: tokenizer or NEW_TOKENIZER}
    found |= {"data": data, **trained}
    found |= {"grids": "of the rows"} if any(row.configuration_of for row in of.rows) else {}
    found |= {} if translator is None else {"translator": translator}
    for name, part in (("pre_train", of.pre_train), ("starts_from", of.starts_from)):
        found |= {f"{name}.{key}": value for key, value in part or () if key != "save_at" and (key, value) != WHOLE}
    found |= {name: getattr(of, name) for name in ("max_length", "selection_every", "sizes", "seeds")} | more
    return found | {f"aggregate.{name}": value for name, value in of.aggregate.stated.items()}


def changed(path: str, ours: Any, theirs: Mapping[str, Any], subsets: Sequence[int]) -> tuple[str, str] | None:
    """Our value and the table's as texts, where they differ. Fewer sizes are no change of a value; as many `subsets`, but others, are one."""
    other = theirs.get(path)
    if path == "subsets" and ours == other and sorted(subsets) != list(range(other)):
        return value_text(subsets), value_text(range(other))
    same = path == "sizes" or ours == other or (path == "seeds" and sorted(ours) == sorted(other or ()))
    if same or (ours, other) == ("", None) or (path, other) == (TOKENIZER, None):
        return None
    return value_text(ours), _unset(path, theirs) if other is None else value_text(other)


def _unset(path: str, theirs: Mapping[str, Any]) -> str:
    """The value that a table has where it states none: the other of a pair, or the default."""
    parent, _, name = path.rpartition(".")
    for pair in EXCLUSIVE:
        other = next((field for field in pair if name in pair and field != name), None)
        if other and f"{parent}.{other}" in theirs:
            return f"{other} {value_text(theirs[f'{parent}.{other}'])}"
    default = getattr(Optim, name, None) if path.startswith("recipe.") else None
    return "none" if default is None else f"{value_text(default)}, the default"


def matching(origin: Mapping[str, str], path: str) -> list[str]:
    """The patterns of `origin` ('recipe.*.lr') that a path fits; a table that gives origins has exactly one for each of its values."""
    return [pattern for pattern in origin if fnmatchcase(path, pattern)]
