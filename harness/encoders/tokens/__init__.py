"""Texts as token ids, in memory and on disk. Imports no torch."""

from harness.encoders.tokens.cloze import ClozeExamples
from harness.encoders.tokens.reading import Cloze, Packed, Plain, Reading, Windows, reading_of
from harness.encoders.tokens.tokeniser import Examples, Tokeniser, Tokens, Vocabulary, joined

__all__ = [
    "Cloze",
    "ClozeExamples",
    "Examples",
    "Packed",
    "Plain",
    "Reading",
    "Tokeniser",
    "Tokens",
    "Vocabulary",
    "Windows",
    "joined",
    "reading_of",
]
