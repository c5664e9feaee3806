"""The last layer of a packed encoder at some positions only: what an objective does not read is not computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from harness.encoders.families import Family, Layer
from harness.encoders.kernels.packing import Packing, filled


@contextmanager
def only_positions(family: Family, last: Any, positions: Tensor, packing: Packing) -> Iterator[None]:
    """In this context a library's last layer runs what follows its attention only at `positions` [M] (M rounded as `filled`
    does). Where these are the first tokens, its attention too computes only those."""
    rows, first = filled(positions), positions is packing.first
    if family.layer is not None:
        last.forward = _at_rows(family.layer, last, rows, first)
        try:
            yield
        finally:
            del last.forward  # that of its class again
        return

    def first_tokens_only(_: nn.Module, arguments: Any, named: dict[str, Any]) -> Any:
        return arguments, {**named, "packing": named["packing"].only_first()}

    hooks = [last.attention.output.register_forward_pre_hook(_selected(rows))]
    if first:
        hooks.append(last.attention.self.register_forward_pre_hook(first_tokens_only, with_kwargs=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _selected(rows: Tensor) -> Any:
    """A hook that lets a module see only these rows of its inputs [1, T', ...]."""
    return lambda _, inputs: tuple(states.index_select(1, rows) for states in inputs)


def _at_rows(parts: Layer, layer: Any, rows: Tensor, first: bool) -> Any:
    """The forward pass of a layer with its own output projection in its attention: [1, T', d] -> [1, M, d]."""
    attention, projection, attention_norm, feed_forward, feed_forward_norm = (
        layer.get_submodule(name)
        for name in (
            parts.attention,
            parts.projection,
            parts.attention_norm,
            parts.feed_forward,
            parts.feed_forward_norm,
        )
    )

    def forward(hidden: Tensor, *given: Any, packing: Packing, **named: Any) -> Tensor:
        packing = packing.only_first() if first else packing
        hook = projection.register_forward_pre_hook(_selected(rows))
        try:
            read = attention_norm(hidden) if parts.pre_norm else hidden
            attended = attention(read, *given, packing=packing, **named)[0]
        finally:
            hook.remove()
        hidden = hidden.index_select(1, rows)
        if parts.pre_norm:
            hidden = hidden + attended
            return hidden + feed_forward(feed_forward_norm(hidden))  # type: ignore[no-any-return]
        hidden = attention_norm(attended + hidden)
        return feed_forward_norm(feed_forward(hidden) + hidden)  # type: ignore[no-any-return]

    return forward
