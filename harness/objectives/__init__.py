"""Training objectives: pure losses, pure masking, and one module an objective. This file imports no torch.

`VERSIONS` is part of every stage's key: bump an objective's number by hand when its code changes a value.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from harness import specs

if TYPE_CHECKING:
    from harness.encoders.models.text_encoder import TextEncoder
    from harness.encoders.tokens import Vocabulary
    from harness.objectives.base import TrainingObjective

VERSIONS = {
    "cross_entropy": 1,
    "scl": 1,
    "mlm": 1,
    "mlm_head": 1,
    "cmlm": 1,
    "cssl": 1,
    "taco": 1,
    "electra": 1,
    "coco_lm": 1,
    "auxiliary_mlm": 1,
}

_MODULES = {
    "cross_entropy": ("harness.objectives.classification", "CrossEntropy"),
    "scl": ("harness.objectives.classification", "SupervisedContrast"),
    "mlm": ("harness.objectives.masked", "MaskedLM"),
    "mlm_head": ("harness.objectives.masked", "MaskedLMHead"),
    "cmlm": ("harness.objectives.masked", "ContrastiveMaskedLM"),
    "cssl": ("harness.objectives.translated", "TranslatedContrast"),
    "taco": ("harness.objectives.alignment", "TokenAlignment"),
    "electra": ("harness.objectives.replaced", "ReplacedTokenDetection"),
    "coco_lm": ("harness.objectives.replaced", "CorrectiveContrast"),
    "auxiliary_mlm": ("harness.objectives.replaced", "AuxiliaryMaskedLM"),
}


def objective(name: str, **params: float | int | str | bool) -> specs.Objective:
    """The objective's identity: its name, its version, and those parameters that have an effect."""
    return specs.Objective(name, VERSIONS[name], params)


def build(
    spec: specs.Objective, encoder: TextEncoder, vocabulary: Vocabulary, num_labels: int, dropout: float, seed: int
) -> TrainingObjective:
    """The module that trains `encoder` with this objective; its heads are drawn from the seed's own streams.

    Raises ValueError when the stage was recorded by another version of the objective.
    """
    if VERSIONS.get(spec.name) != spec.version:
        raise ValueError(
            f"objective {spec.name} is version {VERSIONS.get(spec.name)} here, the stage asks {spec.version}"
        )
    module, name = _MODULES[spec.name]
    made: TrainingObjective = getattr(import_module(module), name)(
        encoder, vocabulary, num_labels, dropout, seed, spec.params
    )
    return made
