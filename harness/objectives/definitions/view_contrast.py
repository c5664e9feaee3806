"""Objectives that contrast views of a text by their first tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.objectives.definitions.base import Definition, StepSize


@dataclass(frozen=True, kw_only=True)
class ViewContrastDefinition(Definition):
    """`num_views`: K, the views besides view 0. `temperature` and `contrast_group` are SimCLR's alone."""

    num_views: int
    contrast: Literal["simsiam", "simclr"]
    temperature: float = 0.0
    contrast_group: int = 0

    def expected(self, rows: float, length: float) -> StepSize:
        return StepSize.of(rows, length, views=1 + self.num_views)


@dataclass(frozen=True, kw_only=True)
class CsslDefinition(ViewContrastDefinition):
    """Views that the data hold side by side."""

    name = "cssl"
    version = 1
    module = "TranslatedContrast"


@dataclass(frozen=True, kw_only=True)
class SimcseDefinition(ViewContrastDefinition):
    """Dropout passes of the same text as views; `projection`: they are contrasted after dense and tanh."""

    name = "simcse"
    version = 1
    module = "DropoutContrast"

    projection: bool
