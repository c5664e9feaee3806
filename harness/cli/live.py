"""What is seen while a bench runs: a progress bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from harness.bench.work import Item

if TYPE_CHECKING:
    from harness.cluster.pool import Event

LINE_EVERY_SECONDS = 10.0
_ENDS = ("done", "failed", "diverged", "elsewhere")


class Live:
    """Counts stages as they start and end, on standard error. Use as a context manager; give it every event."""

    def __init__(self, items: Sequence[Item], reused: int, dashboard: str, expected_seconds: float) -> None:
        self._total, self._reused = len(items), reused
        self._whole_cost = sum(item.cost for item in items)
        self._expected = expected_seconds
        self._counts = dict.fromkeys((*_ENDS, "retried"), 0)
        self._running: dict[str, str] = {}
        self._cost = 0.0
        self._started = self._spoke = time.monotonic()
        self._progress: Progress | None = None
        self._dashboard = dashboard

    def __enter__(self) -> Self:
        if self._dashboard:
            self._line(f"Ray dashboard: http://{self._dashboard} (its token: ray get-auth-token)")
        console = Console(stderr=True)
        if console.is_terminal:
            columns = (TextColumn("stages"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
            self._progress = Progress(*columns, TimeElapsedColumn(), console=console)
            self._task = self._progress.add_task(self._state(), total=self._total)
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress:
            self._progress.stop()
            self._progress = None
        self._line(f"{self._ended}/{self._total} stages in {_clock(self._elapsed)}: {self._state()}")

    @property
    def _ended(self) -> int:
        return sum(self._counts[kind] for kind in _ENDS)

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def show(self, event: Event) -> None:
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
        if self._progress:
            self._progress.update(self._task, completed=self._ended, description=self._state())
        elif time.monotonic() - self._spoke > LINE_EVERY_SECONDS:
            self._spoke = time.monotonic()
            self._line(f"{self._ended}/{self._total} stages: {self._state()}")

    def _state(self) -> str:
        parts = [f"{self._counts['done']} done", f"{len(self._running)} running", f"{self._reused} reused"]
        parts += [f"{self._counts[k]} {k}" for k in ("failed", "diverged", "elsewhere", "retried") if self._counts[k]]
        if not self._ended:
            parts.append(f"about {_clock(self._expected)} in all")
        elif self._ended < self._total and self._cost:
            # Stages differ a hundredfold in cost, so what is left is judged by cost and not by count.
            parts.append(f"about {_clock(self._elapsed * (self._whole_cost - self._cost) / self._cost)} left")
        return ", ".join(parts)

    def _line(self, text: str) -> None:
        if self._progress:
            self._progress.console.print(Text(text))
        else:
            print(text, file=sys.stderr, flush=True)


class Counting:
    """Counts many small things on standard error: a bar on a terminal, a plain line now and then elsewhere."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._now = what, total, 0
        self._started = self._spoke = time.monotonic()
        console = Console(stderr=True)
        self._progress = None
        if console.is_terminal:
            columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._progress = Progress(*columns, console=console)
            self._task = self._progress.add_task(what, total=total)

    def __enter__(self) -> Self:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress:
            self._progress.stop()
        elapsed = _clock(time.monotonic() - self._started)
        print(f"{self._now:,}/{self._total:,} {self._what} in {elapsed}", file=sys.stderr, flush=True)

    def part(self, size: int) -> Callable[[int, int], None]:
        """How to tell that `done` of the `total` pieces of the next `size` things are done."""
        before = self._now

        def progress(done: int, total: int) -> None:
            self._now = before + (size if done >= total else size * done // total)
            if self._progress:
                self._progress.update(self._task, completed=self._now)
            elif self._now < self._total and time.monotonic() - self._spoke > LINE_EVERY_SECONDS:
                self._spoke = time.monotonic()
                print(f"{self._now:,}/{self._total:,} {self._what}", file=sys.stderr, flush=True)

        return progress


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
