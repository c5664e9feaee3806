"""Training objectives: definitions, pure losses, pure masking, and the modules. This file imports no torch."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

from harness import specs
from harness.objectives.definitions import DEFINITIONS

if TYPE_CHECKING:
    from harness.encoders.models.text_encoder import TextEncoder
    from harness.encoders.tokens import Vocabulary
    from harness.objectives.base import TrainingObjective


def objective(name: str, **params: float | int | str | bool) -> specs.Objective:
    """The objective's identity: its name, its version, and those parameters that have an effect."""
    return _identity(name, DEFINITIONS[name].version, **params)


@lru_cache(typed=True)  # one object for thousands of stages, whose canonical form is then computed once
def _identity(name: str, version: int, /, **params: float | int | str | bool) -> specs.Objective:
    return specs.Objective(name, version, params)


def build(
    spec: specs.Objective, encoder: TextEncoder, vocabulary: Vocabulary, num_labels: int, dropout: float, seed: int
) -> TrainingObjective:
    """The module that trains `encoder` with this objective; its heads are drawn from the seed's own streams.

    Raises ValueError when the stage was recorded by another version of the objective.
    """
    definition = DEFINITIONS.get(spec.name)
    version = definition.version if definition else None
    if definition is None or version != spec.version:
        raise ValueError(f"objective {spec.name} is version {version} here, the stage was recorded by {spec.version}")
    module, name = definition.module
    objective_class = getattr(import_module(f"harness.objectives.{module}"), name)
    made: TrainingObjective = objective_class(encoder, vocabulary, num_labels, dropout, seed, spec.params, definition)
    return made
