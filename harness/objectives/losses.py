"""The contrastive losses as pure functions of tensors.

Shape letters: B sequences of one contrast group, K further views of each, M selected tokens, V vocabulary, d width.

Laws held by every function here: any float dtype; half-precision inputs are computed and returned in float32 (also
inside an autocast region), float64 stays float64. No branch depends on data, only on shapes and options. Vectors are
l2-normalised here, and a zero vector has cosine 0 with everything and zero gradient. On degenerate batches value and
gradient are finite, and a loss of zero stays connected to its inputs. A NaN in the inputs is never hidden.
"""

from __future__ import annotations

import contextlib
import math

import torch
from torch import Tensor

REDUCTIONS = ("mean", "mean_valid", "sum")

_ZERO = 1e-12  # a vector with no larger entry counts as zero: its true gradient, of order 1/norm, could overflow


def supervised_contrastive(features: Tensor, labels: Tensor, *, temperature: float, reduction: str = "mean") -> Tensor:
    """Pulls together the examples of one class: the SCL loss.

    features [B, d], labels [B] -> scalar. Anchor i contributes the mean, over its positives j != i of the same label,
    of -log softmax_j(cos(i, k) / temperature) over all k != i; an anchor without a positive contributes 0.
    reduction: "mean" divides the sum over anchors by B, "mean_valid" by the number of anchors with a positive, "sum"
    by nothing.

    Source: SCL (Gunel et al., 2021), equation 3.
    Elsewhere: the paper prints the *sum* over anchors beside a cross-entropy that is a mean (papers.md S1); SupContrast
    takes the mean over all anchors, the default here, so that the weight against the cross-entropy does not grow with
    the batch. A class with one example is 1/0 in the paper (S2); SupContrast gives it 0 and still divides by all
    anchors ("mean"), others leave it out ("mean_valid").
    """
    _check_temperature(temperature)
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got '{reduction}'.")
    _check_floats(features=features)
    if features.ndim != 2:
        raise ValueError(f"features must be [B, d], got shape {tuple(features.shape)}.")
    num_anchors = features.shape[0]
    if labels.shape != (num_anchors,):
        raise ValueError(f"labels must be [B] = [{num_anchors}] like features, got shape {tuple(labels.shape)}.")

    with _no_autocast(features):
        unit = _unit(features.to(_dtype(features)))
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


def masked_lm(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of the original tokens at the selected positions: the MLM loss.

    logits [M, V], targets [M] (integers in [0, V)) -> scalar, the mean over the M tokens, 0 if M = 0. There is no ignored
    index: a target out of range is an error.

    Source: CMLM equation 6, on view 0 only (C5).
    Elsewhere: equation 6 prints a mean over sequences of MLM(H), whose own reduction is not stated; the mean over the
    selected tokens of the batch, as in Hugging Face's and TAPT's code, is taken here (papers.md C10). They differ where
    the sequences have different numbers of selected tokens.
    """
    _check_floats(logits=logits)
    if logits.ndim != 2:
        raise ValueError(f"logits must be [M, V], got shape {tuple(logits.shape)}.")
    num_tokens = logits.shape[0]
    if targets.shape != (num_tokens,):
        raise ValueError(f"targets must be [M] = [{num_tokens}] like logits, got shape {tuple(targets.shape)}.")
    with _no_autocast(logits):
        log_probabilities = logits.to(_dtype(logits)).log_softmax(dim=1)
        return (-log_probabilities.gather(1, targets.long()[:, None])).sum() / max(num_tokens, 1)


def simclr(h0: Tensor, hk: Tensor, *, temperature: float) -> Tensor:
    """Tells, for each sequence's view 0, its own view k among those of the batch: the SimCLR form of CMLM.

    h0 [B, d] (view 0), hk [K, B, d] (views 1..K) -> scalar, the mean over K * B of
    -log softmax_b(cos(hk[k, i], h0[b]) / temperature) over i.

    Source: CMLM equations 7 and 8, as printed: the anchor is view 0, the positive is in the denominator, one direction.
    Elsewhere: SimCLR's NT-Xent takes both directions and all 2B - 1 other views as negatives. The paper gives no
    temperature; CERT and TACO use 0.07 (papers.md C1).
    """
    _check_temperature(temperature)
    _check_views(h0=h0, hk=hk)
    with _no_autocast(h0):
        dtype = _dtype(h0, hk)
        anchors, candidates = _unit(h0.to(dtype)), _unit(hk.to(dtype))
        scores = anchors @ candidates.transpose(1, 2) / temperature  # [K, B, B], one row per anchor
        own = scores.log_softmax(dim=2).diagonal(dim1=1, dim2=2)
        return (-own).sum() / max(own.numel(), 1)


def simsiam(h0: Tensor, hk: Tensor, z0: Tensor, zk: Tensor) -> Tensor:
    """Predicts each view from the other, without negatives: the SimSiam form of CMLM.

    h0, z0 [B, d] and hk, zk [K, B, d] -> scalar, the mean over K * B of exp(-(D(zk, h0) + D(z0, hk)) / 2), where
    D(z, h) = cos(z, stopgrad(h)) and z is the predictor's output for h (equation 10; it lives with the objective).

    Source: CMLM equations 9 and 11, as printed: values in [1/e, e], never 0, and a gradient scaled by the loss itself.
    Elsewhere: SimSiam's own loss is -(D + D) / 2; the exponential is CMLM's, to make it positive (papers.md C2).
    """
    _check_views(h0=h0, hk=hk)
    _check_views(h0=h0, zk=zk)
    if z0.shape != h0.shape:
        raise ValueError(f"z0 must have the shape of h0, {tuple(h0.shape)}, got {tuple(z0.shape)}.")
    if zk.shape != hk.shape:
        raise ValueError(f"zk must have the shape of hk, {tuple(hk.shape)}, got {tuple(zk.shape)}.")
    _check_floats(z0=z0)
    with _no_autocast(h0):
        dtype = _dtype(h0, hk, z0, zk)
        target0, targets = _unit(h0.detach().to(dtype)), _unit(hk.detach().to(dtype))
        agreement = (_unit(zk.to(dtype)) * target0).sum(dim=-1) + (_unit(z0.to(dtype)) * targets).sum(dim=-1)
        return (-0.5 * agreement).exp().sum() / max(agreement.numel(), 1)


def _unit(vectors: Tensor) -> Tensor:
    """l2-normalises the last dimension; a zero vector stays zero, with zero gradient.

    The division by the largest entry keeps the squares from under- and overflowing. It carries no gradient of its own
    because the direction does not depend on it.
    """
    largest = vectors.detach().abs().amax(dim=-1, keepdim=True)
    is_zero = largest <= _ZERO  # false for NaN, which therefore comes through
    scaled = vectors.masked_fill(is_zero, 0.0) / largest.masked_fill(is_zero, 1.0)
    return scaled / scaled.square().sum(dim=-1, keepdim=True).masked_fill(is_zero, 1.0).sqrt()


def _dtype(*tensors: Tensor) -> torch.dtype:
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32


def _no_autocast(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """Autocast would run the matrix products below in half precision again."""
    device_type = tensor.device.type
    if not torch.amp.is_autocast_available(device_type):
        return contextlib.nullcontext()
    return torch.autocast(device_type, enabled=False)


def _check_temperature(temperature: float) -> None:
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be a finite number above 0, got {temperature}.")


def _check_floats(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must be a tensor of floats, got {tensor.dtype}.")
        if tensor.ndim == 0 or tensor.shape[-1] == 0:
            raise ValueError(f"{name} needs a last dimension of at least 1, got shape {tuple(tensor.shape)}.")


def _check_views(**tensors: Tensor) -> None:
    """The first is view 0, [B, d]; the second the other views, [K, B, d]."""
    _check_floats(**tensors)
    (name0, view0), (name, views) = tensors.items()
    if view0.ndim != 2:
        raise ValueError(f"{name0} must be [B, d], got shape {tuple(view0.shape)}.")
    if views.ndim != 3 or views.shape[1:] != view0.shape:
        raise ValueError(
            f"{name} must be [K, B, d] with the B and d of {name0}, {tuple(view0.shape)}, got shape {tuple(views.shape)}."
        )
