"""Probes of an encoder: cosines of its representations as the papers measure them, without dropout and without gradient.

They tell what was learnt and train nothing. What they draw comes from streams of their own. A mean over no pair is NaN.
Shapes: N pairs or rows, T tokens, d hidden size, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.encoders.models.text_encoder import Batch, TextEncoder
from harness.encoders.tokens import Tokens
from harness.objectives.base import Draw, Measures

PROBED = 32
"""Sequences of a batch that a probe looks at."""


@torch.no_grad()
def context_cosines(encoder: TextEncoder, tokens: Tokens, draw: Draw, device: torch.device) -> Measures:
    """Cosines of tokens of one text and of different texts: -> "intra_context_cosine", "inter_context_cosine", scalars.

    Each token w_i of the text has one other token w_j of its sequence, drawn uniformly from all of them, and one token w_k of
    the other sequences: the means of cos(h_i, h_j) and of cos(h_i, h_k) over the last hidden states. Special tokens are no
    tokens of the text, and the text is not masked, so that encoders of all objectives can be compared.

    Source: TACO, appendix A.3 and Figures 3(b) and 6(a), whose context is a sentence (docs/papers.md T23). The encoder is taken in the mode that it is in.
    """
    places = np.flatnonzero(~tokens.special)
    sequence = np.searchsorted(tokens.offsets, places, side="right") - 1
    counts = np.bincount(sequence, minlength=len(tokens))
    start, count = (np.cumsum(counts) - counts)[sequence], counts[sequence]
    own, others = np.arange(len(places)) - start, len(places) - count
    near = start + (own + 1 + (draw("near").random(len(places)) * (count - 1)).astype(np.int64)) % np.maximum(count, 1)
    far = (draw("far").random(len(places)) * others).astype(np.int64)
    far += np.where(far >= start, count, 0)
    hidden = encoder(Batch.of(tokens, device))
    unit = torch.nn.functional.normalize(hidden.index_select(0, torch.from_numpy(places).to(device)).float(), dim=1)

    def cosine(partner: NDArray[np.int64], there: NDArray[np.bool_]) -> Tensor:
        pairs = (torch.from_numpy(each[there]).to(device) for each in (np.arange(len(places)), partner))
        one, other = (unit.index_select(0, each) for each in pairs)
        return (one * other).sum(dim=1).mean()

    return {"intra_context_cosine": cosine(near, count > 1), "inter_context_cosine": cosine(far, others > 0)}


@torch.no_grad()
def sequence_cosines(corrupted: Tensor, cropped: Tensor) -> Measures:
    """Cosines of contrastive pairs by their first tokens [N, d] twice: -> "positive_sequence_cosine", the mean over the pairs
    of one text, "negative_sequence_cosine", that over all other pairs of the 2N sequences.

    Source: COCO-LM, Figure 7(a) and (b), with the pairs of section 3.3.
    """
    unit = torch.nn.functional.normalize(torch.cat([corrupted, cropped]).float(), dim=1)
    text = torch.arange(len(unit), device=unit.device) % len(corrupted)
    same = text[:, None] == text[None, :]
    positive = (unit[: len(corrupted)] * unit[len(corrupted) :]).sum(dim=1).mean()
    return {"positive_sequence_cosine": positive, "negative_sequence_cosine": (unit @ unit.T)[~same].mean()}


@torch.no_grad()
def paired_cosines(one: Tensor, other: Tensor) -> Tensor:
    """[N, d] twice -> [N]: the cosine of each row with the row beside it, in single precision. A zero vector has cosine 0."""
    pairs = (torch.nn.functional.normalize(each.float(), dim=1) for each in (one, other))
    return torch.stack([*pairs]).prod(dim=0).sum(dim=1).clamp(-1, 1)


@torch.no_grad()
def alignment(one: Tensor, other: Tensor) -> Tensor:
    """[N, d] twice -> scalar: the mean squared distance of the two members of a pair on the sphere, 0 to 4.

    Source: Wang and Isola (2020), section 4.1, alpha = 2.
    """
    return (2 - 2 * paired_cosines(one, other)).mean()


@torch.no_grad()
def uniformity(vectors: Tensor) -> Tensor:
    """[N, d] -> scalar: the log of the mean of exp(-2 x squared distance) over all pairs of different rows on the sphere, 0 where all
    rows have one direction; the lower, the more evenly they spread.

    Source: Wang and Isola (2020), section 4.1, t = 2.
    """
    unit = torch.nn.functional.normalize(vectors.float(), dim=1)
    return torch.nn.functional.pdist(unit).square().mul(-2).exp().mean().log()


@torch.no_grad()
def corrected(copy_logits: Tensor, words: Tensor, corrupted: Tensor) -> Tensor:
    """The most likely word at each token by COCO-LM's language model, p_LM of section 3.3: [T], [T, V] and ids [T] -> ids [T].

    p(x) = 1[x is the token that is read] p_copy + (1 - p_copy) softmax(words)[x], with p_copy the sigmoid of `copy_logits`.
    """
    p_copy = copy_logits.float().sigmoid()
    probabilities = (1 - p_copy)[:, None] * words.float().softmax(dim=1)
    return probabilities.scatter_add_(1, corrupted[:, None], p_copy[:, None]).argmax(dim=1)


@torch.no_grad()
def replaced_and_original(right: Tensor, original: Tensor, corrupted: Tensor, name: str) -> Measures:
    """Booleans `right` [T] -> "<name>_replaced" and "<name>_original", their means over tokens that were replaced and over the others.

    Source: COCO-LM, Figure 8.
    """
    same = original == corrupted
    counted = {"replaced": ~same, "original": same}
    return {f"{name}_{which}": (right & there).sum() / there.sum() for which, there in counted.items()}
