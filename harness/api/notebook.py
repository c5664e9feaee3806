"""Progress below a cell of a notebook: one line that counts the stages of a call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.planning.lifecycle import Event


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
