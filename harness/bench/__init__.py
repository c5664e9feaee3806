"""Tables as data, plans, selection, aggregation and rendering: pure code over records; no torch, no ray."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """`harness.bench` names this package and, called, the function of the Python API."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return import_module("harness.api").bench(*arguments, **named)


sys.modules[__name__].__class__ = _Package
