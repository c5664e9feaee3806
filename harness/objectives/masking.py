"""Which tokens are masked, cropped and contrasted; pure functions of the ids and lengths and of injected randomness.

The uniforms, in [0, 1), are the caller's, drawn from a named stream, so that a mask can be replayed. No argument is ever
modified. `select` and `corrupt` take numpy arrays or torch tensors (all of one call of the same kind) of any one shape,
packed [T] included. The others run on the host and take numpy arrays: `lengths` [B] are those of sequences that stand
end to end in the packed [T] tokens, T = sum(lengths), or one a row in [B, L], L = max(lengths).
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from harness.errors import hint

READINGS = ("half", "less", "at_most", "released")

Array = TypeVar("Array", np.ndarray[Any, Any], torch.Tensor)


def _check_alike(**arrays: Any) -> None:
    (first_name, first), *others = arrays.items()
    for name, other in others:
        if isinstance(other, torch.Tensor) != isinstance(first, torch.Tensor):
            raise ValueError(f"{name} and {first_name} must both be numpy arrays or both be torch tensors.")
        if tuple(other.shape) != tuple(first.shape):
            raise ValueError(
                f"{name} has shape {tuple(other.shape)} but {first_name} has {tuple(first.shape)}; they must be equal."
            )


def select(maskable: Array, probability: float, uniforms: Array, excluded: Array | None = None) -> Array:
    """Selects each maskable token independently with the given probability; returns booleans.

    maskable, uniforms, excluded: one shape. A token is selected where it is maskable, not excluded, and its uniform
    u in [0, 1) satisfies u < probability, strictly: so 0 selects nothing and 1 everything allowed. maskable and
    excluded are booleans, or numbers of which 0 is false.

    Source: CMLM equation 1 (dynamic random masking), with p_m; with `excluded` the tokens selected in view 0,
    equations 2 and 4 (complementary random masking), with p_c.
    Elsewhere: a Bernoulli draw per token, as printed and in Hugging Face's and TAPT's code; BERT's and fairseq's code
    select a fixed count, int(p * length + u) without replacement (docs/papers.md C8). Which tokens are maskable is the
    caller's: CMLM does not say, TAPT's code leaves out special and padding tokens (C7).
    """
    _check_probability(probability)
    _check_alike(uniforms=uniforms, maskable=maskable)
    selected: Array = (uniforms < probability) & (maskable != 0)
    if excluded is not None:
        _check_alike(uniforms=uniforms, excluded=excluded)
        selected = selected & (excluded == 0)
    return selected


def corrupt(
    input_ids: Array, selected: Array, actions: Array, random_ids: Array, mask_id: int, mask_only: bool = False
) -> Array:
    """Replaces the selected tokens: 80 % by the mask, 10 % by a random id, 10 % kept; returns new ids.

    input_ids, selected, actions, random_ids: one shape; the result has that shape and the dtype of input_ids. `actions`
    are uniforms in [0, 1): below 0.8 the mask, below 0.9 the token of random_ids, else the token itself. With
    `mask_only` every selected token becomes the mask, and actions and random_ids are not looked at.

    Source: BERT, quoted in CMLM section 3.1. Elsewhere: CMLM does not say whether its views T^k use 80/10/10 or the
    mask alone (docs/papers.md C6; default here 80/10/10 for all views); COCO-LM's auxiliary uses the mask alone.
    """
    _check_alike(input_ids=input_ids, selected=selected, actions=actions, random_ids=random_ids)
    chosen = selected != 0
    to_mask = chosen if mask_only else chosen & (actions < 0.8)
    to_random = chosen & ~to_mask & (actions < 0.9)
    if isinstance(input_ids, torch.Tensor):
        randomised = torch.where(to_random, random_ids.to(input_ids.dtype), input_ids)
        return torch.where(to_mask, torch.full_like(input_ids, mask_id), randomised)
    randomised = np.where(to_random, random_ids.astype(input_ids.dtype), input_ids)
    return np.where(to_mask, np.full_like(input_ids, mask_id), randomised)


def select_fixed(
    maskable: NDArray[Any], lengths: NDArray[Any], probability: float, uniforms: NDArray[Any], rounding: NDArray[Any]
) -> NDArray[np.bool_]:
    """Selects a fixed count of maskable tokens in each sequence, without replacement; returns booleans [T].

    maskable (booleans, or numbers of which 0 is false), uniforms [T], lengths, rounding [B]. Of sequence b the
    min(number of maskable tokens, int(probability * length + rounding)) maskable tokens of the smallest uniforms are
    selected, of equal ones the first. With a uniform `rounding` the expected count is probability * length.

    Source: COCO-LM's released code, which masks as fairseq does (docs/papers.md L7, L8).
    Elsewhere: the paper says "15 % random tokens"; BERT's and CMLM's masks here are draws per token (`select`).
    """
    _check_probability(probability)
    lengths = _checked_lengths(lengths)
    _check_shape((int(lengths.sum()),), maskable=maskable, uniforms=uniforms)
    _check_shape(lengths.shape, rounding=rounding)
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    counts = (probability * lengths + np.asarray(rounding, dtype=np.float64)).astype(np.int64)
    allowed = np.asarray(maskable) != 0
    order = np.lexsort((uniforms, ~allowed, sequence))  # by sequence, in it maskable first, of these the smallest first
    rank = np.arange(len(order)) - np.repeat(_starts(lengths), lengths)
    selected = np.zeros(len(order), dtype=np.bool_)
    selected[order] = rank < counts[sequence]
    chosen: NDArray[np.bool_] = selected & allowed
    return chosen


def crop(lengths: NDArray[Any], ratio: float, uniforms: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Keeps the first token of each sequence and a contiguous span of the rest.

    lengths, uniforms [B], ratio in (0, 1] -> (indices [T'] into the packed tokens, new lengths [B]). Of the n =
    length - 1 tokens after the first, max(1, int(ratio * n)) stay, none if n = 0; the places for the span are equally
    likely. The ratio 1 keeps everything.

    Source: COCO-LM section 3.3, with ratio 0.9. Elsewhere: the paper says nothing of the special tokens; the released
    crop may lose the first one, with a flag that seems to put it back (docs/papers.md L5).
    """
    if not 0.0 < ratio <= 1.0:
        raise ValueError(f"ratio must lie in (0, 1], got {ratio}.")
    lengths = _checked_lengths(lengths)
    _check_shape(lengths.shape, uniforms=uniforms)
    rest = np.maximum(lengths - 1, 0)
    span = np.minimum(np.maximum((ratio * rest).astype(np.int64), 1), rest)
    skipped = _drawn(uniforms, rest - span + 1)
    kept = np.minimum(lengths, 1) + span
    within = np.arange(kept.sum()) - np.repeat(_starts(kept), kept)
    indices = np.repeat(_starts(lengths), kept) + within + np.where(within > 0, np.repeat(skipped, kept), 0)
    return indices, kept


def sample_positives(
    lengths: NDArray[Any],
    window: int,
    uniforms: NDArray[Any],
    *,
    reading: str,
    fallback: NDArray[Any] | None = None,
) -> NDArray[np.int64]:
    """Draws for each token another one near it in its sequence; returns positions [B, L].

    lengths [B], uniforms, fallback [B, L]. -1 for padding, and where the sequence has no other token. By `reading` the
    offset d of the window W satisfies: "half" 0 < |d| <= floor(W / 2), "less" 0 < |d| < W, "at_most" 0 < |d| <= W, and
    the draw is uniform among the positions of the sequence that do. "released" (odd W only) draws uniformly among all
    offsets 0 < |d| <= floor(W / 2); one that leaves the sequence is replaced by a uniform draw over the whole sequence
    from `fallback`, which may hit the anchor itself, as in the released sampler.

    Source: TACO section 3.1, "nearby tokens ... within a window span where W is the window size".
    Elsewhere: the released sampler is "released"; its README says "less"; the paper's W = 10 and 50 are even, which the
    sampler refuses (docs/papers.md T5, T6).
    """
    if reading not in READINGS:
        raise ValueError(f"unknown reading '{reading}'.{hint(str(reading), READINGS)} Known: {', '.join(READINGS)}.")
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}.")
    if reading == "released" and window % 2 == 0:
        raise ValueError(f"window must be odd for the reading 'released', got {window}.")
    reach = {"half": window // 2, "less": window - 1, "at_most": window, "released": window // 2}[reading]
    if reach < 1:
        raise ValueError(f"window {window} reaches no neighbour by the reading '{reading}'; take a larger one.")
    lengths = _checked_lengths(lengths)
    shape = (len(lengths), int(lengths.max(initial=0)))
    _check_shape(shape, uniforms=uniforms)

    length, anchor = lengths[:, None], np.arange(shape[1])[None, :]
    if reading == "released":
        if fallback is None:
            raise ValueError("fallback must be given for the reading 'released': the uniforms for offsets outside.")
        _check_shape(shape, fallback=fallback)
        drawn = anchor - reach + _drawn(uniforms, np.int64(2 * reach))
        drawn = drawn + (drawn >= anchor)  # the anchor itself is stepped over
        drawn = np.where((drawn >= 0) & (drawn < length), drawn, _drawn(fallback, length))
    else:
        lowest = np.maximum(anchor - reach, 0)
        drawn = lowest + _drawn(uniforms, np.minimum(anchor + reach, length - 1) - lowest)
        drawn = drawn + (drawn >= anchor)
    return np.where((anchor < length) & (length > 1), drawn, -1)


def sample_negatives(
    lengths: NDArray[Any], num_negatives: int, rows: NDArray[Any], columns: NDArray[Any], *, group: int
) -> NDArray[np.int64]:
    """Draws for each token K tokens of other sequences, with replacement; returns (sequence, position) [B, L, K, 2].

    lengths [B], rows, columns [B, L, K]. A contrast group is `group` consecutive sequences, the last maybe fewer. Each
    draw takes another sequence of the anchor's group uniformly, then one of its tokens uniformly. (-1, -1) for padding
    anchors, where the group has no other sequence, and where the one drawn has no token.

    Source: TACO section 3.1, "K tokens from other sequences in this batch". Elsewhere: in the released sampler the batch
    is one GPU's (80 rows), every row is equally long, and one row alone fails (docs/papers.md T7, T8).
    """
    if num_negatives < 1:
        raise ValueError(f"num_negatives must be at least 1, got {num_negatives}.")
    if group < 2:
        raise ValueError(f"group must be at least 2, since negatives come from other sequences, got {group}.")
    lengths = _checked_lengths(lengths)
    _check_shape((len(lengths), int(lengths.max(initial=0)), num_negatives), rows=rows, columns=columns)

    own = np.arange(len(lengths))
    first = own // group * group
    others = np.minimum(first + group, len(lengths)) - first - 1
    sequence = first[:, None, None] + _drawn(rows, others[:, None, None])
    sequence = np.maximum(sequence + (sequence >= own[:, None, None]), 0)  # below 0 where there is no other
    position = _drawn(columns, lengths[sequence])
    missing = (np.arange(rows.shape[1])[None, :] >= lengths[:, None]) | (others == 0)[:, None]
    return np.where(missing[:, :, None, None] | (position < 0)[..., None], -1, np.stack([sequence, position], axis=-1))


def _drawn(uniforms: NDArray[Any], counts: NDArray[np.int64] | np.int64) -> NDArray[np.int64]:
    """Integers uniform in [0, counts); below 0 where there is nothing to draw from."""
    drawn: NDArray[np.int64] = (np.asarray(uniforms, dtype=np.float64) * counts).astype(np.int64)
    return np.minimum(drawn, counts - 1)


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.cumsum(lengths) - lengths


def _checked_lengths(lengths: NDArray[Any]) -> NDArray[np.int64]:
    lengths = np.asarray(lengths)
    if lengths.ndim != 1 or not np.issubdtype(lengths.dtype, np.integer) or (lengths < 0).any():
        raise ValueError("lengths must be [B] integers, none below 0.")
    return lengths.astype(np.int64)


def _check_shape(shape: tuple[int, ...], **arrays: NDArray[Any]) -> None:
    for name, array in arrays.items():
        if np.shape(array) != shape:
            raise ValueError(f"{name} must have the shape {shape} that lengths ask for, got {np.shape(array)}.")


def _check_probability(probability: float) -> None:
    if not 0.0 <= probability <= 1.0:
        raise ValueError(f"probability must lie in [0, 1], got {probability}.")
