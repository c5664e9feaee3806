"""Numbers on a GPU are those of the CPU within a tolerance; on a CPU the device is compared with itself, and each measure says where
a number is wrong. docs/gpu.md explains the figures."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
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


def test_a_loss_that_is_nan_or_another_term() -> None:
    assert too_large({"worst": math.nan}, {"worst": 1.0})
    assert numerics.differences([{"loss": 1.0}], [{"loss": 1.0, "rtd": 0.0}]) == [math.inf]
    assert numerics.differences([{"loss": 1.0}], []) == [math.inf]
