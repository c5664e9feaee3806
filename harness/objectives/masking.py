"""Which tokens are masked, cropped and contrasted: pure functions of ids and lengths and of uniforms in [0, 1), which
the caller draws from a named stream, so that a mask can be replayed. No argument is modified. `lengths` [B] are those
of sequences that stand end to end in T tokens, or one a row in [B, L], L = max(lengths). Rows of docs/papers.md say
what papers and released code do otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def select(maskable: Array, probability: float, uniforms: Array, excluded: Array | None = None) -> Array:
    """Selects each maskable token independently with the given probability; returns booleans.

    maskable, uniforms, excluded: one shape. A token is selected where it is maskable, not excluded, and its uniform u
    satisfies u < probability, strictly: 0 selects nothing and 1 everything allowed. CMLM equation 1, with p_m; with
    `excluded` the tokens selected in view 0, equations 2 and 4, with p_c. Elsewhere: C7, C8."""
    selected: Array = (uniforms < probability) & maskable
    return selected if excluded is None else selected & ~excluded


def corrupt(input_ids: Array, selected: Array, actions: Array, random_ids: Array, mask_id: int) -> Array:
    """Replaces the selected tokens: 80 % by the mask, 10 % by a random id, 10 % kept (BERT, quoted in CMLM section
    3.1); returns new ids.

    input_ids, selected, actions, random_ids: one shape. `actions` are uniforms: below 0.8 the mask, below 0.9 the token
    of random_ids, else the token itself. Elsewhere: C6."""
    to_mask, to_random = selected & (actions < 0.8), selected & (actions >= 0.8) & (actions < 0.9)
    randomised = np.where(to_random, random_ids.astype(input_ids.dtype), input_ids)
    return np.where(to_mask, np.full_like(input_ids, mask_id), randomised)


def select_fixed(maskable: Array, lengths: Array, probability: float, uniforms: Array, rounding: Array) -> Array:
    """Selects a fixed count of maskable tokens in each sequence, without replacement, as COCO-LM's released code does;
    returns booleans [T].

    maskable, uniforms [T], lengths, rounding [B]. Of sequence b the min(number of maskable tokens, int(probability *
    length + rounding)) maskable tokens of the smallest uniforms are selected, of equal ones the first. With a uniform
    `rounding` the expected count is probability * length. Elsewhere: L7, L8."""
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    counts = (probability * lengths + rounding).astype(np.int64)
    # By sequence, in it maskable first, of these the smallest first.
    order = np.lexsort((uniforms, ~maskable, sequence))
    rank = np.arange(len(order)) - np.repeat(_starts(lengths), lengths)
    selected = np.zeros(len(order), dtype=np.bool_)
    selected[order] = rank < counts[sequence]
    return selected & maskable


def crop(lengths: Array, ratio: float, uniforms: Array) -> tuple[Array, Array]:
    """Keeps the first token of each sequence and a contiguous span of the rest (COCO-LM section 3.3).

    lengths, uniforms [B], ratio in (0, 1] -> (indices [T'] into the packed tokens, new lengths [B]). Of the n = length
    - 1 tokens after the first, max(1, int(ratio * n)) stay, none if n = 0; the places for the span are equally likely.
    The ratio 1 keeps everything. Elsewhere: L5."""
    rest = np.maximum(lengths - 1, 0)
    span = np.minimum(np.maximum((ratio * rest).astype(np.int64), 1), rest)
    skipped = _drawn(uniforms, rest - span + 1)
    kept = np.minimum(lengths, 1) + span
    within = np.arange(kept.sum()) - np.repeat(_starts(kept), kept)
    indices = np.repeat(_starts(lengths), kept) + within + np.where(within > 0, np.repeat(skipped, kept), 0)
    return indices, kept


def sample_positives(lengths: Array, window: int, uniforms: Array) -> Array:
    """Draws for each token another one near it in its sequence (TACO section 3.1); returns positions [B, L].

    lengths [B], uniforms [B, L]. -1 for padding, and where the sequence has no other token. The draw is uniform among
    the positions of the sequence whose distance is at most floor(W / 2), W the window. Elsewhere: T5, T6."""
    length, anchor = lengths[:, None], np.arange(int(lengths.max(initial=0)))[None, :]
    lowest = np.maximum(anchor - window // 2, 0)
    drawn = lowest + _drawn(uniforms, np.minimum(anchor + window // 2, length - 1) - lowest)
    drawn = drawn + (drawn >= anchor)  # the anchor itself is stepped over
    return np.where((anchor < length) & (length > 1), drawn, -1)


def sample_negatives(lengths: Array, rows: Array, columns: Array, *, group: int) -> Array:
    """Draws for each token K tokens of other sequences, with replacement (TACO section 3.1); returns (sequence,
    position) [B, L, K, 2].

    lengths [B], rows, columns [B, L, K]. A contrast group is `group` consecutive sequences, the last maybe fewer. Each
    draw takes another sequence of the anchor's group uniformly, then one of its tokens uniformly. (-1, -1) for padding
    anchors, where the group has no other sequence, and where the one drawn has no token. Elsewhere: T7, T8."""

    own = np.arange(len(lengths))
    first = own // group * group
    others = np.minimum(first + group, len(lengths)) - first - 1
    sequence = first[:, None, None] + _drawn(rows, others[:, None, None])
    sequence = np.maximum(sequence + (sequence >= own[:, None, None]), 0)  # below 0 where there is no other
    position = _drawn(columns, lengths[sequence])
    missing = (np.arange(rows.shape[1])[None, :] >= lengths[:, None]) | (others == 0)[:, None]
    return np.where(missing[:, :, None, None] | (position < 0)[..., None], -1, np.stack([sequence, position], axis=-1))


def _drawn(uniforms: Array, counts: Array) -> Array:
    """Integers uniform in [0, counts); below 0 where there is nothing to draw from."""
    drawn: Array = np.minimum((uniforms * counts).astype(np.int64), counts - 1)
    return drawn


def _starts(lengths: Array) -> Array:
    starts: Array = np.cumsum(lengths) - lengths
    return starts
