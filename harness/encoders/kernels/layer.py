"""A layer of BERT as one operator of autograd, forward and backward, over packed batches on a CPU.

It computes what the library's modules compute, in the same order. What is saved is the work between the products: modules, hooks,
a node of autograd for each of some thirty steps, casts of the same states for each product in half precision, sums of gradients.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.activations import GELUActivation

from harness.encoders.kernels import cpu
from harness.encoders.kernels.attention import attended, attended_backward, refuse
from harness.encoders.kernels.cpu import dropout_mask
from harness.encoders.kernels.packing import Packing, PaddedLayout
from harness.private import gelu_backward, layer_norm_backward


@dataclass(frozen=True)
class _Call:
    """What a pass of a layer needs beside states and parameters. `rows` [M]: the tokens whose states it computes (None: all T');
    `first`: these are the first tokens, and the layout has their queries alone, in that order. `low`: the precision of products."""

    layout: PaddedLayout
    heads: int
    scale: float
    dropout: tuple[float, float, float]
    eps: tuple[float, float]
    rows: Tensor | None
    first: bool
    low: torch.dtype


class WholeLayer(nn.Module):
    """Mixed into the class of a library's layer: its forward pass, as one operator where that computes the same.

    `only` is set while just some tokens' states are computed: their rows [M], and whether these are the first tokens."""

    only: tuple[Tensor, bool] | None = None

    def forward(self, hidden_states: Tensor, *given: Any, packing: Packing, **named: Any) -> Tensor:
        parts: Any = self
        if (
            not cpu.kernels().whole_layers
            or hidden_states.device.type != "cpu"
            or packing.bias is not None
            or any(each is not None for each in given)
        ):
            return super().forward(hidden_states, *given, packing=packing, **named)  # type: ignore[no-any-return]
        attention, projection, inner, last = (
            parts.attention.self,
            parts.attention.output,
            parts.intermediate,
            parts.output,
        )
        refuse(attention, named)
        rows, first = self.only or (None, False)
        call = _Call(
            packing.first_layout(attention.num_attention_heads)
            if first
            else packing.layout(attention.num_attention_heads),
            attention.num_attention_heads,
            attention.scaling,
            (attention.dropout.p, projection.dropout.p, last.dropout.p) if self.training else (0.0, 0.0, 0.0),
            (projection.LayerNorm.eps, last.LayerNorm.eps),
            rows,
            first,
            torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else hidden_states.dtype,
        )
        modules = (
            attention.query, attention.key, attention.value, projection.dense, projection.LayerNorm, inner.dense, last.dense,
            last.LayerNorm,
        )  # fmt: skip
        parameters = [each for module in modules for each in (module.weight, module.bias)]
        states = hidden_states[0].to(
            torch.promote_types(hidden_states.dtype, torch.float32)
        )  # a projection's are in half precision
        with torch.autocast("cpu", enabled=False):
            found: Tensor = _Layer.apply(states, call, *parameters)  # type: ignore[no-untyped-call]
        return found[None]


@cache
def _whole(kind: Any) -> Any:
    """The class of a library's layer with `WholeLayer` mixed in."""
    return type(kind.__name__, (WholeLayer, kind), {})


def use_whole_layers(layers: Iterable[nn.Module]) -> None:
    """Give BERT's layers this forward pass; their parameters stay the same objects."""
    for layer in layers:
        if isinstance(getattr(layer.intermediate, "intermediate_act_fn", None), GELUActivation):
            kind: Any = type(layer)
            layer.__class__ = _whole(kind)


class _Layer(torch.autograd.Function):
    """States [T', d] -> [T', d] or [M, d], with weight and bias of each step in turn.

    In half precision a weight is cast just before its product, and its gradient just after: both are still in the cache then.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, call: _Call, *parameters: Tensor) -> Tensor:
        wq, bq, wk, bk, wv, bv, wo, bo, g1, e1, wi, bi, wf, bf, g2, e2 = parameters
        low, layout, rows = call.low, call.layout, call.rows
        width, depth = x.shape[1], x.shape[1] // call.heads
        states = x.to(low)
        seen = x if rows is None else x.index_select(0, rows)
        asked = seen.to(low) if call.first else states
        queries, wq = _product(asked, wq, bq)
        keys, wk = _product(states, wk, bk)
        values, wv = _product(states, wv, bv)
        q = layout.queries.padded(queries.view(-1, depth)).to(x.dtype)
        k = layout.keys.padded(keys.view(-1, depth)).to(x.dtype)
        v = layout.keys.padded(values.view(-1, depth)).to(x.dtype)
        out, *kept = attended(q, k, v, layout, call.scale, call.dropout[0], None)
        mixed = layout.queries.taken(out, len(asked) * call.heads).view(-1, width)
        mixed = (mixed if rows is None or call.first else mixed.index_select(0, rows)).to(low)
        more, wo = _product(mixed, wo, bo)
        sum1, mask1 = _residual(seen, more, call.dropout[1])
        middle, mean1, rstd1 = torch.native_layer_norm(sum1, (width,), g1, e1, call.eps[0])
        middle_low = middle.to(low)
        inner, wi = _product(middle_low, wi, bi)
        active = nn.functional.gelu(inner)
        more, wf = _product(active, wf, bf)
        sum2, mask2 = _residual(middle, more, call.dropout[2])
        found, mean2, rstd2 = torch.native_layer_norm(sum2, (width,), g2, e2, call.eps[1])
        ctx.call = call
        ctx.save_for_backward(
            states, asked, q, k, v, *kept, mixed, sum1, mask1, mean1, rstd1, middle_low, inner, active, sum2, mask2, mean2, rstd2,
            wq, wk, wv, wo, g1, e1, wi, wf, g2, e2,
        )  # fmt: skip
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (
            states, asked, q, k, v, weights, dropped, mask0, mixed, sum1, mask1, mean1, rstd1, middle_low, inner, active, sum2,
            mask2, mean2, rstd2, wq, wk, wv, wo, g1, e1, wi, wf, g2, e2,
        ) = ctx.saved_tensors  # fmt: skip
        call: _Call = ctx.call
        layout, heads, low, rows, shape = call.layout, call.heads, call.low, call.rows, (sum1.shape[1],)
        for_sum2, *for_norm2 = layer_norm_backward(gradients[0], sum2, shape, mean2, rstd2, g2, e2)
        given = _masked(for_sum2, mask2, low)
        for_f = _of_parameters(given, active, sum2.dtype)
        given = gelu_backward(given @ wf, inner)
        for_i = _of_parameters(given, middle_low, sum2.dtype)
        for_sum1, *for_norm1 = layer_norm_backward(_plus(for_sum2, given, wi), sum1, shape, mean1, rstd1, g1, e1)
        given = _masked(for_sum1, mask1, low)
        for_o = _of_parameters(given, mixed, sum1.dtype)
        given = (given @ wo).to(q.dtype)
        if rows is not None and not call.first:
            given = given.new_zeros(states.shape).index_add_(0, rows, given)
        own = layout.queries.scattered(given.view(-1, q.shape[1]))
        found = attended_backward(own, (q, k, v), (weights, dropped, mask0), layout, call.scale)
        for_x = for_sum1
        if rows is not None and not call.first:
            for_x = for_sum1.new_zeros(states.shape).index_add_(0, rows, for_sum1)
        for_attention: list[Tensor] = []
        for index, each, read, weight in zip(
            (layout.queries, layout.keys, layout.keys), found, (asked, states, states), (wq, wk, wv), strict=True
        ):
            given = index.taken(each, len(read) * heads).view(read.shape).to(low)
            for_attention += _of_parameters(given, read, sum1.dtype)
            for_x = _plus(for_x, given, weight)
            if rows is not None and call.first and each is found[0]:
                for_x = for_x.new_zeros(states.shape).index_add_(0, rows, for_x)
        return (for_x, None, *for_attention, *for_o, *for_norm1, *for_i, *for_f, *for_norm2)


def _product(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """(x w^T + b, the weight in the precision of x)."""
    weight = weight.to(x.dtype)
    return torch.addmm(bias.to(x.dtype), x, weight.t()), weight


def _of_parameters(gradient: Tensor, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The gradients of a product's weight and bias."""
    return (gradient.t() @ x).to(dtype), gradient.sum(0, dtype=dtype)


def _residual(x: Tensor, more: Tensor, dropout: float) -> tuple[Tensor, Tensor | None]:
    """(x + dropout(more), the mask), in the precision of x."""
    if not dropout:
        return x + more, None
    mask = dropout_mask(x, dropout)
    return torch.addcmul(x, more, mask), mask


def _masked(gradient: Tensor, mask: Tensor | None, low: torch.dtype) -> Tensor:
    return (gradient if mask is None else gradient * mask).to(low)


def _plus(into: Tensor, gradient: Tensor, weight: Tensor) -> Tensor:
    """into + gradient @ weight, in place."""
    if into.dtype == gradient.dtype:
        return into.addmm_(gradient, weight)
    return into.add_(gradient @ weight)
