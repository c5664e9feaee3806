"""Numbers on a GPU are those of the CPU within a tolerance; on a CPU the device is compared with itself, and each measure says where
a number is wrong. docs/gpu.md explains the figures."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpu import numerics
from gpu.models import Setting, too_large, trained

from harness.encoders.families import FAMILIES
from harness.methods import DEFINITIONS

Measured = Callable[..., None]


def test_float32_product(setting: Setting, measured: Measured) -> None:
    measured({"error": numerics.product(setting)}, {"error": numerics.PRODUCT})


@pytest.mark.parametrize("name", trained())
def test_losses(name: str, setting: Setting, measured: Measured) -> None:
    """The CPU against itself is the same code: equal bits."""
    values = numerics.losses(setting, name)
    measured(values, numerics.LOSSES if setting.cuda else dict.fromkeys(numerics.LOSSES, 0.0))
    assert len(values["cpu"]) == setting.steps


@pytest.mark.parametrize("kind", numerics.KINDS)
def test_block(kind: str, setting: Setting, measured: Measured) -> None:
    measured(numerics.blocked(setting, kind), numerics.BLOCKED)


@pytest.mark.parametrize("name", numerics.SPLIT)
def test_micro_batches(name: str, setting: Setting, measured: Measured) -> None:
    measured(numerics.micro_batches(setting, name), numerics.MICRO_BATCHES)


@pytest.mark.parametrize("precision", numerics.DROPOUT)
def test_dropout(precision: str, setting: Setting, measured: Measured) -> None:
    measured({"difference": numerics.dropout(setting, precision)}, {"difference": numerics.DROPOUT[precision]})


@pytest.mark.parametrize("precision", numerics.HALF)
@pytest.mark.parametrize("name", numerics.COMPARED)
def test_half_precision(name: str, precision: str, setting: Setting, measured: Measured) -> None:
    measured(numerics.half(setting, name, precision), numerics.HALF[precision])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", numerics.COMPARED)
def test_repeated(name: str, precision: str, setting: Setting, measured: Measured) -> None:
    measured(numerics.repeated(setting, name, precision), numerics.REPEATED)


def test_process_group_of_one(setting: Setting, measured: Measured) -> None:
    measured(numerics.group_of_one(setting), numerics.GROUP)


def test_every_objective_and_family_is_compared() -> None:
    assert {what.spec.name for what in trained().values()} == {
        name for name, definition in DEFINITIONS.items() if not definition.fitted
    }
    packed = {kind for kind, family in FAMILIES.items() if family.packed}
    assert set(numerics.KINDS) == (packed - {"camembert", "xlm-roberta"}) | {"mpnet"}


# ------------------------------------------------------------------------------------------------- each of them can fail


def spoil_every_second(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Every second training starts from other weights."""
    train, count = numerics.train, iter(range(10**6))

    def wrong(objective: Any, *given: Any, **named: Any) -> Any:
        if next(count) % 2:
            with torch.no_grad():
                for parameter in objective.encoder.base.encoder.parameters():
                    parameter.mul_(factor)
        return train(objective, *given, **named)

    monkeypatch.setattr(numerics, "train", wrong)


@pytest.mark.parametrize(
    ("measure", "words", "factor", "tolerances"),
    [
        (numerics.losses, ["ft"], 1.01, numerics.LOSSES),
        (numerics.losses, ["coco_lm-relative"], 1.01, numerics.LOSSES),
        (numerics.micro_batches, ["scl"], 1.01, numerics.MICRO_BATCHES),
        (numerics.repeated, ["taco", "fp32"], 1.0001, numerics.REPEATED),
        (numerics.half, ["ft", "bf16"], 10.0, numerics.HALF["bf16"]),
        (numerics.half, ["ft", "fp16"], 10.0, numerics.HALF["fp16"]),
    ],
    ids=["losses ft", "losses coco_lm-relative", "micro-batches", "repeated", "bf16", "fp16"],
)
def test_wrong_weights(
    measure: Callable[..., dict[str, Any]],
    words: list[str],
    factor: float,
    tolerances: dict[str, float],
    cpu: Setting,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spoil_every_second(monkeypatch, factor)
    assert too_large(measure(cpu, *words), tolerances)


def test_a_loss_that_is_nan_or_another_term() -> None:
    assert too_large({"worst": math.nan}, {"worst": 1.0})
    assert numerics.differences([{"loss": 1.0}], [{"loss": 1.0, "rtd": 0.0}]) == [math.inf]
    assert numerics.differences([{"loss": 1.0}], []) == [math.inf]


@pytest.mark.parametrize("kind", numerics.KINDS)
def test_a_block_that_is_another(kind: str, cpu: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tokens of one sequence change places in the block alone."""

    class Swapped(numerics.Batch):
        @classmethod
        def of(cls, tokens: Any, device: Any, ids: Any = None, *, block: bool = False) -> Any:
            swapped = tokens.ids.copy()
            swapped[[1, 2]] = swapped[[2, 1]]
            assert swapped[1] != swapped[2]
            return super().of(tokens, device, swapped, block=block)

    monkeypatch.setattr(numerics, "Batch", Swapped)
    assert set(too_large(numerics.blocked(cpu, kind), numerics.BLOCKED)) == {"states", "gradient"}


@pytest.mark.parametrize("precision", numerics.DROPOUT)
def test_another_mask_of_dropout(precision: str, cpu: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    seed_dropout, count = numerics.seed_dropout, iter(range(10**6))
    monkeypatch.setattr(numerics, "seed_dropout", lambda _, device: seed_dropout(next(count), device))
    assert numerics.dropout(cpu, precision) > numerics.DROPOUT[precision]


def test_another_gradient_in_a_group(cpu: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that left out the division by the number of its ranks would double it."""

    def doubled(objective: Any, **_: Any) -> Any:
        for parameter in objective.parameters():
            if parameter.requires_grad:
                parameter.register_hook(lambda gradient: 2 * gradient)
        return objective

    monkeypatch.setattr(numerics, "DistributedDataParallel", doubled)
    values = numerics.group_of_one(cpu)
    assert too_large(values, numerics.GROUP)
    assert values["mlm"] == pytest.approx(1.0)
