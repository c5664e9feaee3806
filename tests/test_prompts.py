"""Templates: what stands in a cloze, and one sentence for each that cannot be read."""

from __future__ import annotations

import pytest

from harness.errors import UserError
from harness.prompts import Prompt

PAIR = "{first|chop}? [MASK], {second|lower}"


def filled(template: str, *row: str) -> str:
    return "".join(piece.of(row, "<mask>") for piece in Prompt(template, ("a", "b")).pieces)


def test_what_stands_in_a_cloze() -> None:
    assert filled("{first} It was [MASK].", " a fine film ") == "a fine film It was <mask>."
    assert filled(PAIR, "Is it so.", "It Is") == "Is it so? <mask>, it Is"
    assert filled(PAIR, "", "") == "? <mask>, "
    assert filled("[MASK]: {second|chop|lower} {first}", "x", "ÄB!") == "<mask>: äB x"
    # braces of a text are text
    assert filled("{first} It was [MASK].", "{second} [MASK]") == "{second} [MASK] It was <mask>."


@pytest.mark.parametrize(
    ("template", "columns", "words", "problem"),
    [
        ("{first} It was.", 1, "ab", "no [MASK]"),
        ("{first} [MASK] [MASK]", 1, "ab", "2 [MASK]"),
        ("It was [MASK].", 1, "ab", "{first}"),
        ("{first} [MASK]", 2, "ab", "{first} and {second}"),
        ("{first} {second} [MASK]", 1, "ab", "{first} once"),
        ("{first} {first} [MASK]", 1, "ab", "{first} once"),
        ("{first} [MASK]", 1, "aa", "the same label word"),
        ("{frist} [MASK]", 1, "ab", "Did you mean 'first'"),
        ("{first|lowr} [MASK]", 1, "ab", "Did you mean 'lower'"),
    ],
)
def test_what_does_not_fit_is_one_sentence(template: str, columns: int, words: str, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        Prompt(template, tuple(words)).check(columns)
    assert problem in str(caught.value)
