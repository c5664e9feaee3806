"""Which tokens are masked and what is put in their place; pure functions of the ids and of injected randomness.

Both functions take numpy arrays or torch tensors (all of one call of the same kind) of any one shape, packed [T]
included, and never modify them. The uniforms are the caller's, drawn from a named stream, so a mask can be replayed.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch

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
    select a fixed count, int(p * length + u) without replacement (papers.md C8). Which tokens are maskable is the
    caller's: CMLM does not say, TAPT's code leaves out special and padding tokens (C7).
    """
    if not 0.0 <= probability <= 1.0:
        raise ValueError(f"probability must lie in [0, 1], got {probability}.")
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
    mask alone (papers.md C6; default here 80/10/10 for all views); COCO-LM's auxiliary uses the mask alone.
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
