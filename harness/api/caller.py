"""The process that calls the API: a call changes nothing in it that outlives the call, and in a notebook shows its progress below the cell."""

from __future__ import annotations

import logging
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
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
    environment, generator, hook = dict(os.environ), random.getstate(), sys.excepthook
    loggers = [logger for logger in logging.root.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    levels = [logger.level for logger in loggers]
    torch: Any = sys.modules.get("torch")
    shown: Any = loaded.get("transformers.utils.logging")
    bars = shown and shown.is_progress_bar_enabled()
    threads, precision = (torch.get_num_threads(), torch.get_float32_matmul_precision()) if torch else (0, "")
    gpus = range(torch.cuda.device_count()) if torch and torch.cuda.is_initialized() else ()
    try:
        with naming_arguments(), warnings.catch_warnings(), torch.random.fork_rng(gpus) if torch else nullcontext():
            yield
    finally:
        if torch:
            torch.set_num_threads(threads)
            torch.set_float32_matmul_precision(precision)
        if bars:
            shown.enable_progress_bar()
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        random.setstate(generator)
        sys.excepthook = hook


def in_notebook(stages: int) -> Callable[[Event], None] | None:
    """What shows the events of so many stages in the notebook that this process runs; None where it runs none."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None or "IPKernelApp" not in shell.config:
        return None
    handle: Any = None
    ended = 0

    def show(event: Event) -> None:
        nonlocal handle, ended
        ended += event.ended
        line = {"text/plain": f"{ended} of {stages} stages: {event.item.name} {event.kind}"}
        if handle is None:
            handle = ipython.display.display(line, raw=True, display_id=True)
        else:
            handle.update(line, raw=True)

    return show
