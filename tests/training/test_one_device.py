"""A training step keeps to its device: nothing that it computes with is left on the host, and no value is read back from the
device before the step has ended. Shown with a device that stores nothing ('meta'), so without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harness.methods import DEFINITIONS
from harness.training.forward_backward import ForwardBackward, Placement, repeatable_kernels

META = torch.device("meta")
TRANSFERS = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class OneDevice(TorchDispatchMode):
    """Raises AssertionError for an operator with tensors of both devices, unless it is a transfer to META. Of itself, META
    refuses to give a value or a shape that depends on one, and some of the mixed operators."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor) and each.dim()]
        if func not in TRANSFERS and len({each.device.type for each in given}) > 1:
            raise AssertionError(f"{func} with tensors on {[str(each.device) for each in given]}")
        return func(*args, **(kwargs or {}))


CASES = [*((name, (0, 0)) for name in tiny.OBJECTIVES), ("mlm", (8, 16)), ("coco_lm", (8, 16))]


@pytest.mark.parametrize(
    ("name", "relative", "micro_batch"),
    [(*case, (0, 3)[number % 2]) for number, case in enumerate(CASES)],  # whole batches and cut groups by turns
)
def test_a_step_of_every_objective(name: str, relative: tuple[int, int], micro_batch: int, bert: Path) -> None:
    spec, rows = tiny.OBJECTIVES[name], np.arange(8)
    supervised = DEFINITIONS[spec.name].labelled
    _, inputs = (tiny.fine_tuning if supervised else tiny.post_training)(bert, spec)
    objective = tiny.built(bert, spec, dropout=0.1, relative=relative).to(META)
    labels = None if inputs.labels is None else inputs.labels[rows]
    views = objective.prepare(inputs.train.take(rows), labels, tiny.draw_of())
    batches = ForwardBackward(objective, tiny.optim(), 1, Placement(META, micro_batch=micro_batch))
    with OneDevice():
        terms = batches.run(views, 1)
    assert {term.device for term in terms.values()} == {META}
    trained = [parameter for parameter in objective.parameters() if parameter.grad is not None]
    assert len(trained) > 3
    assert {parameter.grad.device for parameter in trained} == {META}


def test_what_it_would_see(bert: Path) -> None:
    """A step that leaves its positions on the host, and one that asks the device where they are."""
    states, positions = torch.empty(6, 4, device=META), torch.arange(3)
    with OneDevice():
        states.index_select(0, positions.to(META))
        with pytest.raises(AssertionError, match="index_select"):
            states.index_select(0, positions)
        with pytest.raises(NotImplementedError, match="nonzero"):
            (states > 0).nonzero()
        with pytest.raises(RuntimeError, match="meta"):
            float(states.sum())


def _settings() -> tuple[Any, ...]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.backends.cuda.cudnn_sdp_enabled(),
    )


def test_a_cpu_changes_nothing() -> None:
    before = _settings()
    with repeatable_kernels(torch.device("cpu")):
        assert _settings() == before


@pytest.mark.parametrize("warns", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_what_was_set_before_stands_again(own: bool, warns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    torch.use_deterministic_algorithms(own, warn_only=warns)
    try:
        before = _settings()
        with pytest.raises(RuntimeError, match="an error of the stage"):
            _fail()
        assert _settings() == before
    finally:
        torch.use_deterministic_algorithms(False)


def _fail() -> None:
    with repeatable_kernels(torch.device("cuda")):
        assert _settings() == (True, False, False, False)
        raise RuntimeError("an error of the stage")
