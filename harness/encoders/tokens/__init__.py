"""Texts as token ids, in memory and on disk. Imports no torch."""

from harness.encoders.tokens.tokeniser import Frame, Tokeniser, Tokens, Vocabulary, joined

__all__ = ["Frame", "Tokeniser", "Tokens", "Vocabulary", "joined"]
