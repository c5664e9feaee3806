"""Probes of an encoder: cosines of its representations as the papers measure them, without dropout and without gradient.

They tell what was learnt and train nothing. What they draw comes from streams of their own. A mean over no pair is NaN.
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

    Source: TACO, appendix A.3 and Figures 3(b) and 6(a). The encoder is taken in the mode that it is in.
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

    Source: COCO-LM, Figure 7(a) and (b), with the pairs of section 3.2.
    """
    unit = torch.nn.functional.normalize(torch.cat([corrupted, cropped]).float(), dim=1)
    text = torch.arange(len(unit), device=unit.device) % len(corrupted)
    same = text[:, None] == text[None, :]
    positive = (unit[: len(corrupted)] * unit[len(corrupted) :]).sum(dim=1).mean()
    return {"positive_sequence_cosine": positive, "negative_sequence_cosine": (unit @ unit.T)[~same].mean()}
