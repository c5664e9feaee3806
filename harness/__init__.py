"""harness: contrastive objectives for language encoders, trained and compared under one protocol.

In Python: `harness.plan`, `harness.bench`, `harness.tune`, `harness.results` and others (see `harness.api`), loaded when they
are first used, so that `import harness` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = [
    "RESULT_DTYPES",
    "bench",
    "compare",
    "embeddings",
    "export",
    "merge",
    "misclassified",
    "plan",
    "predict",
    "publish",
    "record",
    "report",
    "results",
    "runs",
    "studies",
    "tune",
    "tune_plan",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'harness' has no attribute '{name}'")
    return getattr(import_module("harness.api"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
