"""How a row becomes a cloze: a template with one mask, a label word for each class, and demonstrations of them. No torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.errors import UserError, quoted, unknown

MASK = "[MASK]"
"""In a template: the encoder's mask token, whose prediction is read."""
COLUMNS = ("first", "second")
"""In braces, in a template: a row's texts."""
FORMS = {"chop": lambda text: text[:-1], "lower": lambda text: text[:1].lower() + text[1:]}
"""Behind a text's name and a bar: the text without its last character; with a small first letter."""
_FIELD = re.compile(r"(\{[^{}]*\}|\[MASK\])")


@dataclass(frozen=True)
class Piece:
    """A part of a template: a row's text (`column` 0 or 1) with `forms` applied, the mask (`mask`), or `text` that stands in each row."""

    text: str = ""
    column: int | None = None
    forms: tuple[str, ...] = ()
    mask: bool = False

    def of(self, row: Sequence[str], mask: str) -> str:
        """What stands here for a row; `mask`: the encoder's mask token, or a word in its place."""
        if self.column is None:
            return mask if self.mask else self.text
        text = row[self.column].strip()
        for form in self.forms:
            text = FORMS[form](text)
        return text


@dataclass(frozen=True)
class Prompt:
    """A task's template and its label words in the order of the classes' codes (Gao et al., LM-BFF, 2021).

    `demonstrations`: one training example of each class stands behind the text, in the order of the codes, drawn anew at each update; an
    evaluation takes the mean over `draws` of them (0 without demonstrations). `first_length`: tokens of the first text at most; 0: as many as fit. `bounds`: of a
    regression, the lowest and the highest score, for which the two words stand; the scores below the middle are one class of
    demonstrations, the others the second one.
    """

    template: str
    words: tuple[str, ...]
    demonstrations: bool = True
    draws: int = 16
    first_length: int = 0
    bounds: tuple[float, ...] = field(default=(), metadata={"neutral": ()})

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Raises UserError for a template with an unknown field."""
        return tuple(_piece(text) for text in _FIELD.split(self.template) if text)

    def check(self, columns: int) -> None:
        """Raises UserError, without a place, for a template that does not fit a task of so many text columns, and for a word that stands for
        two classes."""
        pieces = self.pieces
        if (masks := sum(piece.mask for piece in pieces)) != 1:
            raise UserError(
                f"the template has {masks or 'no'} {MASK}; write it once, where the label word is to stand."
            )
        read = sorted(piece.column for piece in pieces if piece.column is not None)
        if read != list(range(columns)):
            wanted = " and ".join(f"{{{name}}}" for name in COLUMNS[:columns])
            raise UserError(f"the template of a task with {columns} text columns should hold {wanted} once each.")
        if len(set(self.words)) < len(self.words):
            raise UserError("the same label word stands twice; give each class its own.")


def _piece(text: str) -> Piece:
    if text == MASK:
        return Piece(mask=True)
    if not text.startswith("{"):
        return Piece(text)
    name, *forms = text[1:-1].split("|")
    if name not in COLUMNS:
        raise unknown("text", name, COLUMNS, f"template {quoted(text)}")
    for form in forms:
        if form not in FORMS:
            raise unknown("form", form, FORMS, f"template {quoted(text)}")
    return Piece(column=COLUMNS.index(name), forms=tuple(forms))
