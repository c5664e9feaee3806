"""The built-in methods and their hyperparameters, as parameters of tests."""

from __future__ import annotations

import pytest

from harness.methods import METHODS

every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
every_hyperparameter = pytest.mark.parametrize(
    ("method", "name"),
    [pytest.param(m, name, id=f"{m.name}.{name}") for m in METHODS.values() for name in m.Hyperparameters.model_fields],
)
