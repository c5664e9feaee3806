"""What a CUDA graph does, on a CPU: the operators of a function are recorded and repeated on the same tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map


class Replay:
    """A recorder as `harness.training.update` takes one. As with a CUDA graph nothing is computed while it records; a tensor keeps its place; what
    Python decides is decided once."""

    def record(self, function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        with _Operators() as seen:
            result = function()
        seen.restore()
        return result, seen.replay

    @contextmanager
    def active(self) -> Iterator[None]:
        yield


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _places(values: Any) -> set[int]:
    return {_place(each) for each in tree_leaves(values) if isinstance(each, Tensor)}


def _there(value: Any) -> Any:
    """A tensor at the same place, which stays there whatever becomes of the object."""
    return value.detach() if isinstance(value, Tensor) else value


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The calls in order, as (operator, arguments, keywords, results)."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[tuple[Any, Any, Any, list[Any]]] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        self._made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for argument, value in zip(func._schema.arguments, args, strict=False):
            for each in tree_leaves(value) if argument.alias_info and argument.alias_info.is_write else ():
                self._keep(each)
        for each in tree_leaves(kwargs) if func._schema.is_mutable else ():  # `out`
            self._keep(each)
        results = func(*args, **kwargs)
        leaves = tree_leaves(results)
        self._calls.append((func, *(tree_map(_there, each) for each in (args, kwargs, leaves))))
        self._made |= _places(leaves) - _places((args, kwargs))
        return results

    def _keep(self, tensor: Any) -> None:
        if isinstance(tensor, Tensor) and _place(tensor) not in self._made | self._before.keys():
            whole = tensor.detach().as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0)
            self._before[_place(tensor)] = whole, whole.clone()

    def restore(self) -> None:
        for tensor, before in self._before.values():
            tensor.copy_(before)

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, kept in self._calls:
            made = _places(kept) - _places((args, kwargs))
            if not made and not func._schema.is_mutable:
                continue  # a view
            for each, result in zip(kept, tree_leaves(func(*args, **kwargs)), strict=True):
                if _places(each) & made:
                    each.copy_(result)
