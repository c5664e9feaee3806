"""Training objectives: definitions, pure losses, pure masking, and the modules. This file imports no torch."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

from harness.objectives.definitions import DEFINITIONS, Definition, defined, definition_of
from harness.specs import Objective

if TYPE_CHECKING:
    from harness.encoders.models.text_encoder import TextEncoder
    from harness.encoders.tokens import Vocabulary
    from harness.kinds import Kind
    from harness.objectives.base import TrainingObjective


def objective(name: str, **params: float | int | str | bool) -> Objective:
    """The objective's identity: its name, its version, and those parameters that have an effect.

    Raises KeyError for an unknown objective and TypeError for a parameter that it does not have and for one that is missing.
    """
    known = DEFINITIONS[name]
    return _identity(known, known.version, **params)  # type: ignore[arg-type]  # a class is hashable


@lru_cache(typed=True)  # one object for thousands of stages, whose canonical form is then computed once
def _identity(known: type[Definition], version: int, /, **params: float | int | str | bool) -> Objective:
    return known(**params).spec


def build(
    spec: Objective, encoder: TextEncoder | None, vocabulary: Vocabulary, kind: Kind | None, dropout: float, seed: int
) -> TrainingObjective:
    """The module that trains `encoder` (None for one that reads none) with this objective; its heads are drawn from the seed's own streams. `kind`: what it predicts,
    None without labels.

    Raises ValueError when the stage was recorded by another version of the objective, and TypeError for parameters as `objective` does.
    """
    known = defined(spec) if spec.source or spec.name in DEFINITIONS else None
    if known is None or known.version != spec.version:
        version = known.version if known else None
        raise ValueError(f"objective {spec.name} is version {version} here, the stage was recorded by {spec.version}")
    if gone := [name for name, value in known.retired.items() if spec.params.get(name, value) != value]:
        raise ValueError(
            f"objective {spec.name} has only {gone[0]} {known.retired[gone[0]]} here, the stage was recorded with {spec.params[gone[0]]}"
        )
    module = import_module(known.__module__.replace(".definitions", ""))
    made: TrainingObjective = getattr(module, known.module)(
        encoder, vocabulary, kind, dropout, seed, definition_of(spec)
    )
    return made


__all__ = ["DEFINITIONS", "build", "definition_of", "objective"]
