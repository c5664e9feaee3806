"""Attention over packed batches, registered with transformers in place of the models' own: it pads queries, keys and
values, attends, and packs the result. In training on a CPU, sequences of similar length are padded together and dropout
draws integers, which costs less than torch's padded path and agrees with it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from harness.encoders.kernels.cpu import dropout_mask
from harness.encoders.kernels.packing import PaddedLayout
from harness.encoders.models.batch import Batch
from harness.private import softmax_backward

with patch(
    "transformers.utils.is_scipy_available", lambda: False
):  # losses of object detection: half a second of every worker's start
    from transformers import AttentionInterface

NAME = "harness_packed"
_NEUTRAL = ("position_ids", "use_cache", "deterministic", "output_attentions", "output_hidden_states")
"""What models pass on that changes nothing here: positions are in the states already, and there is no cache."""
_FAR = -1e30
"""The score of a key outside a window. Not minus infinity: a query at padding may have nothing but padding in its window, and a row
without a finite score has no softmax."""


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    batch: Batch,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """q, k, v [1, H, T', D] -> [1, T', H, D]: the T tokens, then rows that fill them up to a rounded number. With
    `sliding_window` a token sees those less than so many tokens away. Raises ValueError for whatever in a model's call
    would change what is computed."""
    refuse(module, {"attention_mask": attention_mask, **others})
    if sliding_window is not None and batch.shape[1] <= sliding_window:
        sliding_window = None  # no two tokens of a sequence are further apart
    _, heads, tokens, depth = query.shape
    scale = depth**-0.5 if scaling is None else scaling
    # In training also without gradient: the pass that gathers rows has to draw the same dropout as the pass with gradient.
    grouped = (query.requires_grad or module.training) and query.device.type == "cpu" and not batch.width
    if grouped and batch.bias is None:
        found: Tensor = _Grouped.apply(query, key, value, batch.layout(heads), scale, dropout, sliding_window)  # type: ignore[no-untyped-call]
        return found, None
    rows, width = batch.shape

    def pad(x: Tensor) -> Tensor:
        return batch.padded(x[0].transpose(0, 1)[: len(batch.ids)]).transpose(1, 2)

    mask = batch.mask if batch.bias is None else batch.bias.to(query.dtype)
    if sliding_window is not None:
        if batch.bias is not None:
            raise ValueError("packed attention does not compute a window with relative positions")
        near = ~too_far(width, width, sliding_window, query.device)
        mask = near if mask is None else (mask & near) | ~mask.transpose(-1, -2)  # at padding whatever is finite
    out = nn.functional.scaled_dot_product_attention(
        pad(query), pad(key), pad(value), attn_mask=mask, dropout_p=dropout, scale=scale
    )
    flat = out.transpose(1, 2).reshape(rows * width, heads, depth)
    return batch.gathered(flat, tokens)[None], None


def refuse(module: nn.Module, options: dict[str, Any]) -> None:
    """Raises ValueError where a model passes what packed attention does not compute, or looks only backwards."""
    wrong = [
        name for name, value in options.items() if name not in _NEUTRAL and value is not None and value is not False
    ]
    wrong += ["is_causal"] if getattr(module, "is_causal", False) else []
    if wrong:
        raise ValueError(f"packed attention does not compute {wrong[0]} (of {type(module).__name__})")


class _Grouped(torch.autograd.Function):
    """softmax(scale q k^T) v within each sequence: q, k, v [1, H, T', D] -> [1, T', H, D]."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layout: PaddedLayout,
        scale: float,
        dropout: float,
        window: int | None,
    ) -> Tensor:
        ctx.layout, ctx.scale, ctx.dtype = layout, scale, query.dtype
        # Only linear layers run in half precision: scores and weights are float32, as in torch's own attention.
        single = torch.promote_types(query.dtype, torch.float32)
        indices = (layout.queries, layout.keys, layout.keys)
        q, k, v = (
            index.padded(_rows(each.transpose(1, 2))).to(single)
            for index, each in zip(indices, (query, key, value), strict=True)
        )
        weights, mask = q.new_empty(layout.area), None
        with torch.autocast("cpu", enabled=False):
            for group in layout.groups:
                queries, keys = group.queries_of(q), group.keys_of(k).transpose(1, 2)
                if group.bias is None:
                    scores = torch.bmm(queries, keys).mul_(scale)
                else:
                    scores = torch.baddbmm(group.bias.to(q.dtype), queries, keys, alpha=scale)
                if window is not None and group.shape[2] > window:
                    scores.masked_fill_(too_far(*group.shape[1:], window, q.device), _FAR)
                torch.softmax(scores, dim=-1, out=group.weights_of(weights))
            dropped = weights
            if dropout > 0:
                mask = dropout_mask(weights, dropout)
                dropped = weights * mask
            out = torch.empty_like(q)
            for group in layout.groups:
                torch.bmm(group.weights_of(dropped), group.keys_of(v), out=group.queries_of(out))
        ctx.save_for_backward(q, k, v, weights, dropped, mask)
        _, heads, tokens, depth = query.shape
        ctx.shape = (1, tokens, heads, depth)
        return layout.queries.unpad(out, tokens * heads).view(ctx.shape).to(ctx.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, dropped, mask = ctx.saved_tensors
        layout: PaddedLayout = ctx.layout
        given = layout.queries.pad_gradient(_rows(gradients[0]).to(q.dtype))
        for_q, for_k, for_v, for_weights = (torch.empty_like(each) for each in (q, k, v, weights))
        for group in layout.groups:
            own = group.queries_of(given)
            torch.bmm(group.weights_of(dropped).transpose(1, 2), own, out=group.keys_of(for_v))
            torch.bmm(own, group.keys_of(v).transpose(1, 2), out=group.weights_of(for_weights))
        if mask is not None:
            for_weights.mul_(mask)
        for group in layout.groups:
            scores = softmax_backward(group.weights_of(for_weights), group.weights_of(weights)).mul_(ctx.scale)
            torch.bmm(scores, group.keys_of(k), out=group.queries_of(for_q))
            torch.bmm(scores.transpose(1, 2), group.queries_of(q), out=group.keys_of(for_k))
        _, tokens, heads, _ = ctx.shape
        indices = (layout.queries, layout.keys, layout.keys)
        found = (
            index.unpad(each, tokens * heads).view(ctx.shape).transpose(1, 2).to(ctx.dtype)
            for index, each in zip(indices, (for_q, for_k, for_v), strict=True)
        )
        return (*found, None, None, None, None)


@lru_cache(maxsize=256)
def too_far(queries: int, keys: int, window: int, device: torch.device) -> Tensor:
    """[queries, keys]: whether a key is `window` tokens or more away from a query."""
    with torch.inference_mode(False):  # what an evaluation caches, training may keep for its backward pass
        place = torch.arange(keys, device=device)
        return (place[None, :] - place[:queries, None]).abs() >= window


def _rows(states: Tensor) -> Tensor:
    return states.reshape(-1, states.shape[-1])


AttentionInterface.register(NAME, packed_attention)
