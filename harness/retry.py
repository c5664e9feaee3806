"""One retry for calls that a database or a bucket cannot answer at the moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from harness.errors import UserError

WAITS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before each further try: a minute, for a restart, a cut connection or a full disk."""
MOST = 120.0
"""Seconds from which on there is no further try: a silent bucket takes 100 to fail."""

P = ParamSpec("P")
R = TypeVar("R")


class TransientError(UserError):
    """An error that may pass, of a place that answered before."""


def retried(act: Callable[P, R]) -> Callable[P, R]:
    """The same function, called again after each TransientError, and after the last of WAITS once more, for MOST seconds."""

    @wraps(act)
    def retrying(*args: P.args, **options: P.kwargs) -> R:
        began = time.monotonic()
        for seconds in WAITS:
            try:
                return act(*args, **options)
            except TransientError:
                if time.monotonic() - began > MOST:
                    raise
                time.sleep(seconds)
        return act(*args, **options)

    return retrying
