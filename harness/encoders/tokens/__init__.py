"""Texts as token ids, in memory and on disk. Imports no torch."""

from harness.encoders.tokens.cloze import ClozeExamples
from harness.encoders.tokens.reading import Cloze, Packed, Plain, Reading, TextExamples, Windows, reading_of
from harness.encoders.tokens.tokeniser import (
    CUDA_EVALUATION_TOKENS,
    EVALUATION_TOKENS,
    Examples,
    Tokeniser,
    Tokens,
    Vocabulary,
    by_length,
    joined,
)

__all__ = [
    "CUDA_EVALUATION_TOKENS",
    "EVALUATION_TOKENS",
    "Cloze",
    "ClozeExamples",
    "Examples",
    "Packed",
    "Plain",
    "Reading",
    "TextExamples",
    "Tokeniser",
    "Tokens",
    "Vocabulary",
    "Windows",
    "by_length",
    "joined",
    "reading_of",
]
