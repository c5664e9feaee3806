"""Training objectives: pure losses, pure masking, and the modules. This file imports no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from harness.methods import DEFINITIONS, definition_of
from harness.methods.definition import defined
from harness.specs import Objective

if TYPE_CHECKING:
    from harness.encoders.models.text_encoder import TextEncoder
    from harness.encoders.tokens import Vocabulary
    from harness.kinds import Kind
    from harness.objectives.base import TrainingObjective


def build(
    spec: Objective, encoder: TextEncoder | None, vocabulary: Vocabulary, kind: Kind | None, seed: int
) -> TrainingObjective:
    """The module that trains `encoder` (None for one that reads none) with this objective; its heads are drawn from the seed's own streams. `kind`: what it predicts,
    None without labels.

    Raises ValueError when the stage was recorded by another version of the objective, and TypeError for parameters that it cannot have.
    """
    known = defined(spec) if spec.source or spec.name in DEFINITIONS else None
    if known is None or known.version != spec.version:
        version = known.version if known else None
        raise ValueError(f"objective {spec.name} is version {version} here, the stage was recorded by {spec.version}")
    if gone := [name for name, value in known.retired.items() if spec.params.get(name, value) != value]:
        raise ValueError(
            f"objective {spec.name} has only {gone[0]} {known.retired[gone[0]]} here, the stage was recorded with {spec.params[gone[0]]}"
        )
    home, _, network = known.network.rpartition(":")
    module = import_module(f"{__name__}.{home}" if home else known.__module__)
    made: TrainingObjective = getattr(module, network)(encoder, vocabulary, kind, seed, definition_of(spec))
    return made
