"""What commands show on standard error while they work: progress, warnings, and the question before hours of training."""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from harness.cli.terminal import duration, print_lines, printable
from harness.commands.prepare import Prepared
from harness.errors import UserError
from harness.planning.estimate import WINDOW
from harness.planning.work import Event, Item
from harness.search.points import Trial, best_trial
from harness.wording import in_points

if TYPE_CHECKING:
    from harness.training.result import Speed

ASK_ABOVE_HOURS = 1.0
LINE_EVERY_SECONDS = 10.0
ESTIMATE_EVERY_SECONDS = 1.0


def confirm(yes: bool, expected: float, narrow: str) -> None:
    """Ask before a plan of more than an hour; without a terminal it wants --yes. `expected` in hours."""
    if yes or expected <= ASK_ABOVE_HOURS:
        return
    if not sys.stdin.isatty():
        raise UserError(
            f"This plan takes about {duration(expected)} here; add --yes to run it, or narrow it with {narrow}."
        )
    if not agreed(f"This takes about {duration(expected)} here. Continue?"):
        raise UserError("Nothing was trained.")


def agreed(question: str) -> bool:
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


class _Progress:
    """Progress of `total` things (0: not known), as a context manager: one line that changes on a terminal, else a line every ten seconds.
    Prints the address of Ray's dashboard, where there is one, and a summary last, unless an error came before the first thing ended."""

    ended = 0

    def __init__(self, what: str, total: int, dashboard: str = "") -> None:
        self._what, self._total, self._dashboard = what, total, dashboard
        self._started = self._last_printed = time.monotonic()
        self._bar: Progress | None = None
        console = Console(stderr=True)
        if console.is_terminal:
            text = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
            self._bar = Progress(TextColumn(what), MofNCompleteColumn(), text, TimeElapsedColumn(), console=console)
            self._task = self._bar.add_task("", total=total or None)

    def state(self) -> str:
        return ""

    running = state

    def __enter__(self) -> Self:
        if self._dashboard:
            self.line(f"Ray dashboard: http://{self._dashboard} (its token: ray get-auth-token)")
        if self._bar:
            self._bar.start()
            self.update()
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None
        if error and not self.ended:
            return
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        hours, minutes = divmod(minutes, 60)
        self.line(self._summary(f" in {hours}:{minutes:02}:{seconds:02}" if hours else f" in {minutes}:{seconds:02}"))

    def update(self) -> None:
        said = "; ".join(filter(None, (self.state(), self.running()))) if self._bar else ""
        if self._bar:
            self._bar.update(self._task, completed=self.ended, description=escape(printable(said)))
        elif time.monotonic() - self._last_printed > LINE_EVERY_SECONDS:
            self._last_printed = time.monotonic()
            self.line("; ".join(filter(None, (self._summary(), self.running()))))

    def _summary(self, when: str = "") -> str:
        state = self.state()  # which counts what has ended
        count = f"{self.ended:,}/{self._total:,}" if self._total else f"{self.ended:,}"
        return ": ".join(filter(None, (f"{count} {self._what}{when}", state)))

    def line(self, text: str) -> None:
        if self._bar:
            self._bar.console.print(Text(printable(text)))
        else:
            print_lines([text])


class StageProgress(_Progress):
    """Counts stages as they start and end. `hours`: what all of them take, where that is known; `slots` of 0: as
    many as run at once."""

    def __init__(self, items: Sequence[Item], reused: int, dashboard: str, hours: float = 0.0, slots: int = 0) -> None:
        super().__init__("stages", len(items), dashboard)
        self._hours, self._slots = hours, slots
        self._counts = Counter({"done before": reused})
        self._waiting = {item.stage.key: item for item in items}
        self._running: dict[str, tuple[Item, float]] = {}
        self._speeds: dict[str, Speed] = {}
        self._timed: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        """The costs of the last stages and their seconds."""
        self._most = 1
        self._left, self._left_at = "", -ESTIMATE_EVERY_SECONDS

    def __call__(self, event: Event) -> None:
        """Count one event of the pool."""
        item, now, key = event.item, time.monotonic(), event.item.stage.key
        if event.kind == "started":
            self._running[key] = item, now
            self._most = max(self._most, len(self._running))
        elif event.ended or event.kind == "retried":
            began = self._running.pop(key, None)
            self._speeds.pop(key, None)
            self._counts[event.kind] += 1
            if event.kind == "done" and began:
                self._timed.append((item.cost, now - began[1]))
        if event.kind == "retried":
            self._waiting[key] = item
        elif event.kind == "started" or event.ended:
            self._waiting.pop(key, None)
        if event.running and key in self._running:
            self._speeds[key] = event.running
        if event.kind in ("failed", "diverged", "retried"):
            self.line(f"{event.kind}: {item.name}: {event.reason}")
        elif event.kind == "notice":
            self.line(event.reason)
        self.ended += event.ended
        self.update()

    def state(self) -> str:
        parts = [f"{self._counts['done']} done", f"{len(self._running)} running"]
        others = ("done before", "failed", "diverged", "elsewhere", "retried")
        parts += [f"{self._counts[kind]} {kind}" for kind in others if self._counts[kind]]
        return ", ".join(filter(None, [*parts, self._estimate() if self.ended < self._total else ""]))

    def _estimate(self) -> str:
        """The remaining time in words, by the last stages, computed at most once a second: there may be thousands of stages."""
        now = time.monotonic()
        if now - self._left_at >= ESTIMATE_EVERY_SECONDS and (cost := sum(cost for cost, _ in self._timed)):
            self._left_at, rate = now, sum(seconds for _, seconds in self._timed) / cost
            left = sum(max(0.0, item.cost * rate - (now - began)) for item, began in self._running.values())
            left += sum(item.cost * rate for item in self._waiting.values())
            self._left = f"about {duration(left / max(1, self._slots or self._most) / 3600)} left"
        return self._left or (f"about {duration(self._hours)} in all" if self._hours else "")

    def running(self) -> str:
        """The stage that takes longest and how far it is; before any has said so, the first."""
        if not self._running:
            return ""
        key = max(self._running, key=lambda key: self._speeds[key].seconds_left if key in self._speeds else 0.0)
        speed, name = self._speeds.get(key), self._running[key][0].name
        if speed is None:
            return name if self._bar else ""
        left = f"about {duration(speed.seconds_left / 3600)} left"
        return f"{name} (update {speed.step:,} of {speed.steps:,}, {speed.tokens:,.0f} tokens/s, {left})"


class TrialProgress(_Progress):
    """Counts the trials of a study and their replicates, and names the best so far."""

    def __init__(self, trials: int, replicates: int, seen: Iterable[Trial], dashboard: str) -> None:
        super().__init__("trials", trials, dashboard)
        self._replicates = trials * replicates
        self._trials = {trial.number: trial for trial in seen}

    def __call__(self, kind: str, trial: Trial) -> None:
        """Count one event of a trial; see `Watch` in search/points.py."""
        self._trials[trial.number] = trial
        if kind == "replicate" and trial.outcomes[-1].status != "done":
            self.line(f"{trial.outcomes[-1].status}: trial {trial.number}: {trial.outcomes[-1].reason}")
        elif kind == "ended" and trial.state == "failed":
            self.line(f"failed: trial {trial.number}: {trial.reason}")
        self.update()

    def state(self) -> str:
        states = Counter(trial.state for trial in self._trials.values())
        self.ended = len(self._trials) - states["running"]
        done = sum(len(trial.outcomes) for trial in self._trials.values())
        parts = [f"{states['complete']} complete", f"{states['running']} running"]
        parts += [f"{states[state]} {state}" for state in ("dropped", "failed") if states[state]]
        parts.append(f"{done}/{self._replicates} replicates")
        if best := best_trial(self._trials.values()):
            parts.append(f"best {in_points(best.mean())} (trial {best.number})")
        return ", ".join(parts)


class RowProgress(_Progress):
    """Counts rows and texts."""

    def __call__(self, done: int) -> None:
        self.ended = done
        if self._bar or done != self._total:  # the last line is the summary
            self.update()


def show(subject: Any, dashboard: str) -> StageProgress | TrialProgress | RowProgress:
    """Progress on standard error of a table, a study, or texts: see `harness.commands.train.Show`."""
    if isinstance(subject, tuple):
        translator, texts = subject
        return RowProgress(f"texts back-translated by {translator}", texts)
    if not isinstance(subject, Prepared):
        points, trials = subject.points, subject.found.found
        return TrialProgress(points.space.trials, len(points.replicates), trials, dashboard)
    reused = sum(status == "done" for status, _ in subject.statuses.values())
    slots = subject.slots if subject.request.address == "local" else subject.request.slots or 0
    return StageProgress(subject.items, reused, dashboard, subject.hours, slots)


def warn(sentence: str) -> None:
    print_lines([sentence])
