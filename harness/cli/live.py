"""What is seen while a bench runs: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

LINE_EVERY_SECONDS = 10.0
_ENDS = ("done", "failed", "diverged", "elsewhere")


class Live:
    """Counts stages as they start and end. Use as a context manager; give it every event of the pool."""

    def __init__(self, total: int, reused: int, dashboard: str, expected_hours: float) -> None:
        self._total, self._reused = total, reused
        self._expected = expected_hours * 3600
        self._counts = dict.fromkeys((*_ENDS, "retried"), 0)
        self._running: dict[str, str] = {}
        self._spent = 0.0
        self._cost = 0.0
        self._console = Console(stderr=True)
        self._started = self._spoke = time.monotonic()
        self._total_cost = 0.0
        self._progress: Progress | None = None
        self._dashboard = dashboard

    def __enter__(self) -> Self:
        where = f"http://{self._dashboard} (log in with the token that 'ray get-auth-token' prints)"
        self._console.print(f"Ray dashboard: {where if self._dashboard else 'none'}", highlight=False, markup=False)
        if self._console.is_terminal:
            self._progress = Progress(
                TextColumn("stages"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                console=self._console,
            )
            self._task = self._progress.add_task(self._state(), total=self._total)
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress:
            self._progress.stop()
        self._line(f"{self._state()}, {time.monotonic() - self._started:.0f} s")

    def show(self, event: Any) -> None:
        """Take in one event of the pool."""
        key = event.item.stage.key
        if event.kind == "started":
            self._running[key] = event.item.name
        elif event.kind in self._counts:
            self._running.pop(key, None)
            self._counts[event.kind] += 1
            self._cost += event.item.cost if event.kind in _ENDS else 0
        if event.kind in ("failed", "diverged", "retried"):
            self._line(f"{event.kind}: {event.item.name}: {event.reason}")
        ended = sum(self._counts[kind] for kind in _ENDS)
        if self._progress:
            self._progress.update(self._task, completed=ended, description=self._state())
        elif time.monotonic() - self._spoke > LINE_EVERY_SECONDS:
            self._spoke = time.monotonic()
            self._line(f"{ended}/{self._total} stages: {self._state()}")

    def _state(self) -> str:
        parts = [f"{self._counts['done']} done", f"{len(self._running)} running", f"{self._reused} reused"]
        parts += [f"{self._counts[k]} {k}" for k in ("failed", "diverged", "elsewhere", "retried") if self._counts[k]]
        ended = sum(self._counts[kind] for kind in _ENDS)
        if 0 < ended < self._total:
            elapsed = time.monotonic() - self._started
            parts.append(f"about {_clock(elapsed * (self._total - ended) / ended)} left")
        elif not ended:
            parts.append(f"about {_clock(self._expected)} in all")
        return ", ".join(parts)

    def _line(self, text: str) -> None:
        if self._progress:
            self._progress.console.print(Text(text))
        else:
            print(text, file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
