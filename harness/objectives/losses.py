"""Losses as pure functions of tensors: B sequences of one contrast group, L positions of each, K further views or
negatives of each, M selected tokens, N pairs, V vocabulary, d width. "Elsewhere" names the rows of docs/papers.md that
say what papers and released code do otherwise.

Half precision is computed and returned in float32, also inside autocast; float64 stays float64. No branch depends on
data. A zero vector has cosine 0 with everything and zero gradient. On degenerate batches value and gradient are finite,
and a loss of zero stays connected to its inputs. A NaN is never hidden, but where `real` is false inputs affect neither
value nor gradient. Shapes and options are the caller's to get right."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any, ParamSpec

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid
from torch.utils.checkpoint import checkpoint

P = ParamSpec("P")
_ZERO = 1e-12  # a vector with no larger entry counts as zero: its true gradient, of order 1/norm, could overflow
_SLICE = 2**24  # numbers gathered at a time for the pairs of token_alignment: 64 MiB in float32


def _single(loss: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Computes it in float32, or in float64 where any tensor is, and outside autocast, which would run matrix products in half precision again."""

    @wraps(loss)
    def computed(*given: P.args, **named: P.kwargs) -> Tensor:
        found = [each for each in given if isinstance(each, Tensor) and each.is_floating_point()]
        dtype = torch.float64 if any(each.dtype == torch.float64 for each in found) else torch.float32
        cast: Any = [
            each.to(dtype) if isinstance(each, Tensor) and each.is_floating_point() else each for each in given
        ]
        kind = found[0].device.type
        with torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext():
            return loss(*cast, **named)

    return computed


@_single
def supervised_contrastive(features: Tensor, labels: Tensor, *, temperature: float, reduction: str = "mean") -> Tensor:
    """Pulls together the examples of one class: SCL, equation 3.

    features [B, d], labels [B] -> scalar. Anchor i contributes the mean, over its positives j != i of the same label,
    of -log softmax_j(cos(i, k) / temperature) over all k != i; an anchor without a positive contributes 0. reduction:
    "mean" divides the sum over anchors by B, "mean_valid" by the number of anchors with a positive, "sum", as printed,
    by nothing. Elsewhere: S1, S2."""
    num_anchors = features.shape[0]

    unit = _unit(features)
    itself = torch.eye(num_anchors, dtype=torch.bool, device=features.device)
    # The lowest finite number, not -inf: with B = 1 the row has nothing else, and would be NaN on its way to 0.
    scores = (unit @ unit.T / temperature).masked_fill(itself, torch.finfo(unit.dtype).min)
    positive = (labels[:, None] == labels[None, :]) & ~itself
    num_positives = positive.sum(dim=1)
    terms = (-scores.log_softmax(dim=1)).masked_fill(~positive, 0.0)
    total = (terms.sum(dim=1) / num_positives.clamp(min=1)).sum()
    if reduction == "mean":
        return total / max(num_anchors, 1)
    if reduction == "mean_valid":
        return total / (num_positives > 0).sum().clamp(min=1)
    return total


@_single
def masked_lm(logits: Tensor, targets: Tensor, counted: Tensor | None = None) -> Tensor:
    """Cross-entropy of the original tokens at the selected positions: CMLM, equation 6, on view 0 only (C5).

    logits [M, V], targets [M] (in [0, V); no index is ignored), counted [M] booleans (default: all) -> scalar, the mean
    over the tokens that count, 0 if there is none. Elsewhere: C10."""
    return _mean(cross_entropy(logits, targets.long(), reduction="none", ignore_index=-(2**63)), counted)


@_single
def simclr(h0: Tensor, hk: Tensor, *, temperature: float) -> Tensor:
    """Tells, for each sequence's view 0, its own view k among those of the batch: CMLM, equations 7 and 8.

    h0 [B, d] (view 0), hk [K, B, d] (views 1..K) -> scalar, the mean over K * B of -log softmax_i(cos(h0[b], hk[k, i])
    / temperature) at i = b: the anchor is view 0, the positive is in the denominator, one direction. Elsewhere: C1;
    SimCLR's NT-Xent takes both directions."""
    anchors, candidates = _unit(h0), _unit(hk)
    scores = anchors @ candidates.transpose(1, 2) / temperature  # [K, B, B], one row per anchor
    own = scores.log_softmax(dim=2).diagonal(dim1=1, dim2=2)
    return (-own).sum() / max(own.numel(), 1)


@_single
def simsiam(h0: Tensor, hk: Tensor, z0: Tensor, zk: Tensor) -> Tensor:
    """Predicts each view from the other, without negatives: CMLM, equations 9 and 11.

    h0, z0 [B, d] and hk, zk [K, B, d] -> scalar, the mean over K * B of exp(-(D(zk, h0) + D(z0, hk)) / 2), where D(z,
    h) = cos(z, stopgrad(h)) and z is the predictor's output for h (equation 10; it lives with the objective).
    Elsewhere: C2; SimSiam's own loss is -(D + D) / 2."""
    target0, targets = _unit(h0.detach()), _unit(hk.detach())
    agreement = (_unit(zk) * target0).sum(dim=-1) + (_unit(z0) * targets).sum(dim=-1)
    return (-0.5 * agreement).exp().sum() / max(agreement.numel(), 1)


@_single
def token_alignment(
    h: Tensor,
    e: Tensor,
    positives: Tensor,
    negatives: Tensor,
    real: Tensor,
    *,
    temperature: float,
    anchors: Tensor | None = None,
) -> Tensor:
    """Tells the context of a nearby token from those of other sequences: TACO, equations 3 and 6 to 8.

    h, e [B, L, d] (last hidden states, embeddings), positives [B, L] (a position of the same sequence, -1: none),
    negatives [B, L, K, 2] (sequence and position, -1: none), real and anchors [B, L] booleans -> scalar. With g = h -
    e, anchor i contributes -log(exp(s+) / (exp(s+) + sum_k exp(s_k))), where s = cos(g_i, g) / temperature of its
    positive and of its negatives, which carry no gradient. The sum is divided by the number of anchors (default: all
    real tokens; padding never is one). An anchor without a positive, or without any negative, contributes 0; a pair
    with padding counts as none. Elsewhere: T1, T2, T7, T9."""
    unit = _unit((h - e).masked_fill(~real[:, :, None], 0.0))
    counted = real if anchors is None else real & anchors
    sequences, positions, present = _pairs(positives, negatives)
    present = present & real[sequences, positions]
    # The lowest finite number, not -inf: a row without any pair would be NaN on its way to 0.
    scores = _pair_cosines(unit, unit.detach(), sequences, positions) / temperature
    scores = scores.masked_fill(~present, torch.finfo(unit.dtype).min)
    # Without a negative the positive has probability 1, and the term is 0.
    terms = (-scores.log_softmax(dim=2)[:, :, 0]).masked_fill(~(counted & present[:, :, 0]), 0.0)
    return _connected(terms.sum() / counted.sum().clamp(min=1), unit)


@_single
def sequence_contrastive(s_corrupted: Tensor, s_cropped: Tensor, *, temperature: float) -> Tensor:
    """Tells, for each view of a sequence, its other view among all views of the batch: COCO-LM, equation 3.

    s_corrupted, s_cropped [N, d] -> scalar, the mean over the 2N anchors of -log softmax(cos / temperature) at the
    anchor's partner, over the other 2N - 1 vectors: the positive is in the denominator. One sequence alone gives 0.
    Elsewhere: L3, L4."""
    num_pairs = s_corrupted.shape[0]
    unit = _unit(torch.cat([s_corrupted, s_cropped]))
    itself = torch.eye(2 * num_pairs, dtype=torch.bool, device=unit.device)
    scores = (unit @ unit.T / temperature).masked_fill(itself, torch.finfo(unit.dtype).min)
    partners = scores.log_softmax(dim=1).roll(num_pairs, dims=1).diagonal()
    return (-partners).sum() / max(2 * num_pairs, 1)


@_single
def corrective_lm(
    copy_logits: Tensor,
    lm_logits: Tensor,
    targets: Tensor,
    same: Tensor,
    counted: Tensor | None = None,
    *,
    stop_gradient: bool = True,
) -> Tensor:
    """Predicts the original ids at the masked positions: COCO-LM, equation 2's LM term (`replaced_token_detection` is
    the copy term).

    copy_logits [M] (p_copy(1) is their sigmoid), lm_logits [M, V], targets [M] the original ids, same [M] booleans:
    x_original = x_corrupted, counted [M] booleans (default: all) -> scalar, the mean over the positions that count, 0
    if there is none, of -log(1[same] p_copy(1) + p_copy(0) softmax(lm_logits)[target]). With stop_gradient, as in L_LM,
    it gives copy_logits a gradient of exactly 0. In log space a probability too small for a float still has its finite
    loss (about the logits' gap) and gradient; one that is 0, of a word whose logit is -inf, has the largest finite
    number for its loss, and no gradient. Elsewhere: L1, L14."""
    z = copy_logits
    log_q = lm_logits.log_softmax(dim=1).gather(1, targets.long()[:, None])[:, 0]
    gate = z.detach() if stop_gradient else z
    # The lowest finite number, not -inf: where softmax is 0 too, the gradient of logaddexp would be NaN.
    copied = logsigmoid(gate).masked_fill(~same, torch.finfo(gate.dtype).min)
    terms = -torch.logaddexp(copied, logsigmoid(-gate) + log_q)
    return _connected(_mean(terms, counted), z)


@_single
def replaced_token_detection(logits: Tensor, x_original: Tensor, x_corrupted: Tensor, real: Tensor) -> Tensor:
    """Says of every token whether it is the original: the RTD loss of ELECTRA, the copy term of COCO-LM's equation 2.

    logits [B, L] (their sigmoid is the probability of "original"; ELECTRA's own say "replaced"), x_original,
    x_corrupted [B, L] ids, real [B, L] booleans -> scalar: the mean over real tokens of the binary cross-entropy.
    Elsewhere: L2, L14."""
    logits = logits.masked_fill(~real, 0.0)
    terms = -logsigmoid(torch.where(x_original == x_corrupted, logits, -logits))
    return terms.masked_fill(~real, 0.0).sum() / real.sum().clamp(min=1)


def _pairs(positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Indices of each token's contrast: sequences, positions [B, L, 1 + K], the positive first, and which exist. Those
    that do not point at 0, where every other tensor may be read without harm."""
    own = torch.arange(positives.shape[0], device=positives.device)[:, None].expand_as(positives)
    pairs = torch.cat([torch.stack([own, positives.long()], dim=2)[:, :, None], negatives.long()], dim=2)
    present = (pairs >= 0).all(dim=3)
    sequences, positions = pairs.masked_fill(~present[..., None], 0).unbind(dim=3)
    return sequences, positions, present


def _pair_cosines(unit: Tensor, contrast: Tensor, sequences: Tensor, positions: Tensor) -> Tensor:
    """Dot products of unit [B, L, d] with contrast[sequences, positions] -> [B, L, n], without making that one: TACO's
    80 x 256 tokens with 51 pairs each are 2 GB at d = 512. Slices are gathered one after the other, and again for the
    gradient."""

    def products(anchors: Tensor, sequence: Tensor, position: Tensor) -> Tensor:
        return (contrast[sequence, position] @ anchors[:, :, None])[:, :, 0]

    size = max(_SLICE // max(sequences.shape[2] * unit.shape[2], 1), 1)
    slices = list(
        zip(*(torch.split(tensor.flatten(0, 1), size) for tensor in (unit, sequences, positions)), strict=True)
    )
    if len(slices) == 1:  # nothing to save by computing it twice
        made = [products(*slices[0])]
    else:
        made = [checkpoint(products, *parts, use_reentrant=False, preserve_rng_state=False) for parts in slices]
    return torch.cat(made).reshape(sequences.shape)


def _mean(terms: Tensor, counted: Tensor | None) -> Tensor:
    """[M] -> the mean of those that count, 0 without one."""
    if counted is None:
        return terms.sum() / max(len(terms), 1)
    return terms.masked_fill(~counted, 0.0).sum() / counted.sum().clamp(min=1)


def _connected(loss: Tensor, part: Tensor) -> Tensor:
    """The same loss; `part` has a gradient, 0 where the loss does not depend on it, and its NaN comes through."""
    return loss + (part * 0.0).sum()


def _unit(vectors: Tensor) -> Tensor:
    """l2-normalises the last dimension; a zero vector stays zero, with zero gradient. Dividing by the largest entry,
    without gradient since the direction does not depend on it, keeps the squares from under- and overflowing."""
    largest = vectors.detach().abs().amax(dim=-1, keepdim=True)
    is_zero = largest <= _ZERO  # false for NaN, which therefore comes through
    scaled = vectors.masked_fill(is_zero, 0.0) / largest.masked_fill(is_zero, 1.0)
    return scaled / scaled.square().sum(dim=-1, keepdim=True).masked_fill(is_zero, 1.0).sqrt()
