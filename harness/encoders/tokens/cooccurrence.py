"""Pairs of words that occur in the same texts more often than by chance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.encoders.tokens.tokeniser import Tokens

FREQUENT = 2000
"""Words that are paired: the most frequent ones."""
LEAST = 10
"""Sequences that hold both words of a pair, at least."""
_ROWS = 4096


def cooccurring_words(tokens: Tokens, words: NDArray[np.bool_], pairs: int) -> NDArray[np.int64]:
    """The `pairs` pairs of different ids with the highest normalised pointwise mutual information [n, 2], lower id first; fewer where
    fewer co-occur.

    Two words co-occur where one sequence holds both. Counted are the FREQUENT ids that stand in most sequences among those that
    `words` [V] marks, and pairs with LEAST sequences or more. Equal values: the lower ids first. Source: Bouma (2009).
    """
    sequence = np.repeat(np.arange(len(tokens)), tokens.lengths)
    held = np.unique(np.stack([sequence, tokens.ids.astype(np.int64)])[:, words[tokens.ids] & ~tokens.special], axis=1)
    counts = np.bincount(held[1], minlength=len(words))
    frequent = np.sort(np.argsort(-counts, kind="stable")[: min(FREQUENT, np.count_nonzero(counts))])
    place = np.full(len(words), -1)
    place[frequent] = np.arange(len(frequent))
    row, column = held[0], place[held[1]]
    row, column = row[column >= 0], column[column >= 0]
    together = np.zeros((len(frequent), len(frequent)))
    for start in range(0, len(tokens), _ROWS):
        inside = (row >= start) & (row < start + _ROWS)
        present = np.zeros((_ROWS, len(frequent)), dtype=np.float32)
        present[row[inside] - start, column[inside]] = 1.0
        together += present.T @ present
    one, other = np.triu_indices(len(frequent), 1)
    both, alone = together[one, other], counts[frequent] / len(tokens)
    often = both >= LEAST
    one, other, share = one[often], other[often], both[often] / len(tokens)
    # Of words that stand together in every sequence the measure is 0 / 0: chance explains them.
    information = np.log(share / (alone[one] * alone[other])) / np.maximum(-np.log(share), 1e-12)
    best = np.argsort(-information, kind="stable")[:pairs]
    return np.stack([frequent[one[best]], frequent[other[best]]], axis=1)
