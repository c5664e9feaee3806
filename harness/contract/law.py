"""A law that does not hold, and the sentence that says how."""

from __future__ import annotations


class BrokenLawError(AssertionError):
    """What the laws of methods and objectives raise."""


def require(holds: bool, sentence: str) -> None:
    if not holds:
        raise BrokenLawError(sentence)
