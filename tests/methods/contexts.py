"""The built-in methods and their hyperparameters, as parameters of tests."""

from __future__ import annotations

import pytest

from harness.contract.methods import chain
from harness.methods import METHODS
from harness.objectives import definition_of

TRAINED = [method for method in METHODS.values() if not definition_of(chain(method)[-1].objective).fitted]
"""What scikit-learn fits is held to laws of its own, in tests/methods/test_reference.py."""
every_method = pytest.mark.parametrize("method", TRAINED, ids=[method.name for method in TRAINED])
every_hyperparameter = pytest.mark.parametrize(
    ("method", "name"),
    [pytest.param(m, name, id=f"{m.name}.{name}") for m in METHODS.values() for name in m.Hyperparameters.model_fields],
)
