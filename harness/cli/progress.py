"""What commands show on standard error while they work, and the question before hours of training."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from harness.cli.terminal import duration, printable, say
from harness.commands.prepare import Prepared
from harness.errors import UserError
from harness.planning.work import Event, Item
from harness.search.points import Trial, best_trial
from harness.wording import in_points

if TYPE_CHECKING:
    from harness.training.result import Speed


def confirm(yes: bool, expected: float, narrow: str) -> None:
    """Ask before a plan of more than an hour; without a terminal it wants --yes. `expected` in hours."""
    if yes or expected <= 1:
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
    """Progress of `total` things (0: not known), as a context manager: one line that changes on a terminal, else a line every ten seconds. Prints the
    address of Ray's dashboard, where there is one, and a summary last, unless an error came before the first thing ended."""

    ended = 0

    def __init__(self, what: str, total: int, dashboard: str = "") -> None:
        self._what, self._total, self._dashboard, self._printed = what, total, dashboard, time.monotonic()
        console = Console(stderr=True)
        text = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
        self._bar = Progress(
            *(TextColumn(what), MofNCompleteColumn(), text, TimeElapsedColumn()),
            console=console,
            disable=not console.is_terminal,
            get_time=time.monotonic,
            speed_estimate_period=3600,
        )
        self._count = self._bar.add_task("", total=total or None)

    def state(self) -> str:
        return ""

    running = state

    def __enter__(self) -> Self:
        if self._dashboard:
            self.line(f"Ray dashboard: http://{self._dashboard} (its token: ray get-auth-token)")
        self._bar.start()
        self.update()
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self._bar.stop()
        if self.ended or not error:
            say(self._summary(f" in {duration((self._bar.tasks[0].elapsed or 0) / 3600)}"))

    def update(self) -> None:
        said = "; ".join(filter(None, (self.state(), self.running())))
        self._bar.update(self._count, completed=self.ended, description=escape(printable(said)))
        if self._bar.disable and time.monotonic() - self._printed > 10:
            self._printed = time.monotonic()
            say("; ".join(filter(None, (self._summary(), self.running()))))

    def _summary(self, when: str = "") -> str:
        state = self.state()  # which counts what has ended
        count = f"{self.ended:,}/{self._total:,}" if self._total else f"{self.ended:,}"
        return ": ".join(filter(None, (f"{count} {self._what}{when}", state)))

    def line(self, text: str) -> None:
        if self._bar.disable:
            say(text)
        else:
            self._bar.console.print(Text(printable(text)))


class StageProgress(_Progress):
    """Counts stages as they start and end. `hours`: what all of them take, where that is known."""

    def __init__(self, items: Sequence[Item], reused: int, dashboard: str, hours: float = 0.0) -> None:
        super().__init__("stages", len(items), dashboard)
        self._hours, self._counts = hours, Counter({"done before": reused})
        self._running: dict[str, tuple[Item, Speed | None]] = {}
        self._spent = 0.0  # FLOPs of the stages that have ended
        self._cost = self._bar.add_task("", total=sum(item.cost for item in items), visible=False)

    def __call__(self, event: Event) -> None:
        """Count one event of the pool."""
        item, key = event.item, event.item.stage.key
        if event.kind == "started" or (event.running and key in self._running):
            self._running[key] = item, event.running
        elif event.ended or event.kind == "retried":
            self._running.pop(key, None)
            self._counts[event.kind] += 1
            self._spent += item.cost * event.ended
        if event.kind in ("failed", "diverged", "retried"):
            self.line(f"{event.kind}: {item.name}: {event.reason}")
        elif event.kind == "notice":
            self.line(event.reason)
        self.ended += event.ended
        begun = sum(item.cost * speed.step / speed.steps for item, speed in self._running.values() if speed)
        self._bar.update(self._cost, completed=self._spent + begun)
        self.update()

    def state(self) -> str:
        parts = [f"{self._counts['done']} done", f"{len(self._running)} running"]
        others = ("done before", "failed", "diverged", "elsewhere", "retried")
        parts += [f"{self._counts[kind]} {kind}" for kind in others if self._counts[kind]]
        if self.ended < self._total:
            left, whole = self._bar.tasks[self._cost].time_remaining, self._hours
            parts += (
                [f"about {duration(left / 3600)} left"] if left else [f"about {duration(whole)} in all"] * (whole > 0)
            )
        return ", ".join(parts)

    def running(self) -> str:
        """The stage that takes longest and how far it is; before any has said so, the first."""
        if not self._running:
            return ""
        item, speed = max(self._running.values(), key=lambda each: each[1].seconds_left if each[1] else 0.0)
        if speed is None:
            return item.name
        left = f"about {duration(speed.seconds_left / 3600)} left"
        return f"{item.name} (update {speed.step:,} of {speed.steps:,}, {speed.tokens:,.0f} tokens/s, {left})"


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
        self.update()


def show(subject: Any, dashboard: str) -> StageProgress | TrialProgress | RowProgress:
    """Progress on standard error of a table, a study, or texts: see `harness.commands.train.Show`."""
    if isinstance(subject, tuple):
        translator, texts = subject
        return RowProgress(f"texts back-translated by {translator}", texts)
    if not isinstance(subject, Prepared):
        points = subject.points
        return TrialProgress(points.space.trials, len(points.replicates), subject.trials, dashboard)
    reused = sum(status == "done" for status, _ in subject.statuses.values())
    return StageProgress(subject.items, reused, dashboard, subject.hours)
