"""What a plan knows of each objective: its typed parameters, its version, what a step of it costs, and what it requires.

No torch: plans use this before anything is loaded. A family of objectives has a file here and a module of the same name in
harness.objectives; an objective is a subclass of `Definition` with a name.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from harness.errors import UserError
from harness.objectives.definitions.base import Config, Definition, StepSize
from harness.objectives.definitions.outside import definitions_in, module_of
from harness.specs import Objective

HEAD = "classifier"
"""The part of a classifier's weights that holds its head."""
WORD_EMBEDDINGS = "word_embeddings"
"""What a stage may take of its parent's encoder instead of all of it."""

DEFINITIONS: dict[str, type[Definition]] = {}
"""Every objective by name: those of the package, and those of the files from outside that were read."""
for _module in iter_modules(__path__):
    DEFINITIONS |= definitions_in(import_module(f"{__name__}.{_module.name}"))


def defined(spec: Objective) -> type[Definition]:
    """The class that defines a stage's objective. A worker process learns one from outside by the stage itself.

    Raises KeyError for an unknown objective, and UserError for one from outside whose file is not at hand or has changed.
    """
    known = DEFINITIONS.get(spec.name)
    if spec.source and (known is None or known.source != spec.source):
        if not spec.code:
            now = f"the file that was read now has {known.source}" if known else "no file was read that defines it"
            raise UserError(
                f"objective {spec.name}: the stage was recorded with the source {spec.source}, and {now}; "
                "name that file with --methods as it was then."
            )
        known = definitions_in(module_of(spec.code, f"the source of objective {spec.name}"))[spec.name]
        DEFINITIONS[spec.name] = known
    return known or DEFINITIONS[spec.name]


def definition_of(spec: Objective) -> Definition:
    """The definition with the parameters of a stage's objective.

    Raises TypeError for a parameter that it does not have and for one that is missing, and as `defined` does.
    """
    known = defined(spec)
    params = tuple((name, value) for name, value in spec.params.items() if name not in known.retired)
    return _definition(known, params)  # type: ignore[arg-type]  # a class is hashable


@lru_cache(4096, typed=True)  # plans ask for that of each stage
def _definition(known: type[Definition], params: tuple[tuple[str, Any], ...]) -> Definition:
    return known(**dict(params))


__all__ = ["DEFINITIONS", "HEAD", "WORD_EMBEDDINGS", "Config", "Definition", "StepSize", "defined", "definition_of"]
