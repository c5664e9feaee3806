"""What a plan knows of each objective: its typed parameters, its version, what a step of it costs, and what it requires.

No torch: plans use this before anything is loaded. A family of objectives has a file here and a module of the same name in
harness.objectives; an objective is a subclass of `Definition` with a name.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from harness.objectives.definitions.base import Config, Definition, StepSize
from harness.specs import Objective

HEAD = "classifier"
"""The part of a classifier's weights that holds its head."""
WORD_EMBEDDINGS = "word_embeddings"
"""What a stage may take of its parent's encoder instead of all of it."""

_MODULES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
DEFINITIONS: dict[str, type[Definition]] = {
    value.name: value
    for module in _MODULES
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, Definition) and "name" in vars(value)
}


def definition_of(spec: Objective) -> Definition:
    """The definition with the parameters of a stage's objective.

    Raises KeyError for an unknown objective and TypeError for a parameter that it does not have and for one that is missing.
    """
    return _definition(spec.name, tuple(spec.params.items()))


@lru_cache(4096, typed=True)  # plans ask for that of each stage
def _definition(name: str, params: tuple[tuple[str, Any], ...]) -> Definition:
    return DEFINITIONS[name](**dict(params))


__all__ = ["DEFINITIONS", "HEAD", "WORD_EMBEDDINGS", "Config", "Definition", "StepSize", "definition_of"]
