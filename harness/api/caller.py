"""The process that calls the API: a call changes nothing in it that outlives the call, and in a notebook shows its progress below the cell."""

from __future__ import annotations

import logging
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from harness.errors import naming_arguments

if TYPE_CHECKING:
    from harness.planning.work import Event


@contextmanager
def undisturbed(*libraries: str) -> Iterator[None]:
    """Afterwards the environment, random generators, warning filters, log levels, the hook for exceptions, and the settings of torch and
    transformers are as before; errors name arguments. `libraries`: those that the call imports and sets."""
    loaded: dict[str, Any] = {name: import_module(name) for name in libraries}
    torch: Any = sys.modules.get("torch")
    before = dict(os.environ)
    with ExitStack() as after:
        after.callback(os.environ.update, before)
        after.callback(lambda: [os.environ.pop(name) for name in os.environ.keys() - before.keys()])
        after.callback(random.setstate, random.getstate())
        after.callback(setattr, sys, "excepthook", sys.excepthook)
        names = ("ray", "ray.data", "ray.train", "ray.tune", "ray._private", *logging.root.manager.loggerDict)
        for logger in map(logging.getLogger, names):
            after.callback(logger.setLevel, logger.level)
        if torch:
            after.callback(torch.set_num_threads, torch.get_num_threads())
            after.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
            after.enter_context(torch.random.fork_rng(gpus))
        shown: Any = loaded.get("transformers.utils.logging")
        if shown and shown.is_progress_bar_enabled():
            after.callback(shown.enable_progress_bar)
        after.enter_context(warnings.catch_warnings())
        after.enter_context(naming_arguments())
        yield


def in_notebook(stages: int) -> Callable[[Event], None] | None:
    """What shows the events of so many stages, in one line below the cell of a notebook; None where this process runs none."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    if not shell or "IPKernelApp" not in shell.config:
        return None
    ended = 0

    def show(event: Event) -> None:
        nonlocal ended
        ended += event.ended
        print(f"\r{ended} of {stages} stages: {event.item.name} {event.kind}".ljust(100), end="", flush=True)

    return show
