"""What commands show on standard error while they work: progress as a bar on a terminal, else a line every ten seconds; warnings,
trackers, and the question before hours of training."""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from harness.cli.terminal import duration, print_lines, printable
from harness.commands.bench import Callbacks
from harness.commands.prepare import Prepared
from harness.errors import UserError
from harness.planning.estimate import Timed, remaining
from harness.planning.work import Item
from harness.search.trials import Trial, best_trial
from harness.wording import in_points

if TYPE_CHECKING:
    from harness.commands.study import Opened
    from harness.planning.lifecycle import Event, Running

ASK_ABOVE_HOURS = 1.0
LINE_EVERY_SECONDS = 10.0
ESTIMATE_EVERY_SECONDS = 1.0
LEARNED_FROM = 200
"""Number of last stages that an estimate is learned from."""
_ENDS = ("done", "failed", "diverged", "elsewhere")


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


class _Bar(Progress):
    """A bar with a line below it."""

    below = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.below:
            yield Text(self.below, no_wrap=True, overflow="ellipsis")


class _ProgressView:
    """Progress of `total` things (0: not known), as a context manager. Prints the address of Ray's dashboard, where there is one, and a summary
    last. `_ended`: how many have ended."""

    def __init__(self, what: str, total: int, dashboard: str = "") -> None:
        self._what, self._total, self._dashboard = what, total, dashboard
        self._ended = 0
        self._started = self._last_printed = time.monotonic()
        self._progress: _Bar | None = None
        console = Console(stderr=True)
        if console.is_terminal:
            columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
            self._progress = _Bar(*columns, TimeElapsedColumn(), console=console)
            self._task = self._progress.add_task("", total=total or None)

    def _state(self) -> str:
        """Counts for the end of a line."""
        return ""

    def _now_running(self) -> str:
        """What runs now, for the line below the bar."""
        return ""

    def _slowest(self) -> str:
        """What runs for long, for a line."""
        return ""

    def __enter__(self) -> Self:
        if self._dashboard:
            self._line(f"Ray dashboard: http://{self._dashboard} (its token: ray get-auth-token)")
        if self._progress:
            self._progress.start()
            self._update()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress:
            self._progress.stop()
            self._progress = None
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        hours, minutes = divmod(minutes, 60)
        self._line(self._summary(f" in {hours}:{minutes:02}:{seconds:02}" if hours else f" in {minutes}:{seconds:02}"))

    def _update(self) -> None:
        if self._progress:
            self._progress.below = printable(self._now_running())
            self._progress.update(self._task, completed=self._ended, description=self._state())
        elif time.monotonic() - self._last_printed > LINE_EVERY_SECONDS:
            self._last_printed = time.monotonic()
            self._line("; ".join(filter(None, (self._summary(), self._slowest()))))

    def _summary(self, when: str = "") -> str:
        count = f"{self._ended:,}/{self._total:,}" if self._total else f"{self._ended:,}"
        state = self._state()
        return f"{count} {self._what}{when}{': ' if state else ''}{state}"

    def _line(self, text: str) -> None:
        if self._progress:
            self._progress.console.print(Text(printable(text)))
        else:
            print_lines([text])


class StageProgress(_ProgressView):
    """Counts stages as they start and end. `hours`: what all of them take, where that is known; `slots` of 0: as
    many as run at once."""

    def __init__(self, items: Sequence[Item], reused: int, dashboard: str, hours: float = 0.0, slots: int = 0) -> None:
        super().__init__("stages", len(items), dashboard)
        self._reused, self._hours, self._slots = reused, hours, slots
        self._counts = dict.fromkeys((*_ENDS, "retried"), 0)
        self._waiting = {item.stage.key: item for item in items}
        self._running: dict[str, tuple[Item, float]] = {}
        self._speeds: dict[str, Running] = {}
        self._timed: deque[Timed] = deque(maxlen=LEARNED_FROM)
        self._most = 1
        self._left, self._left_at = "", -ESTIMATE_EVERY_SECONDS

    def __call__(self, event: Event) -> None:
        """Count one event of the pool."""
        item, now = event.item, time.monotonic()
        key = item.stage.key
        if event.kind == "started":
            self._waiting.pop(key, None)
            self._running[key] = item, now
            self._most = max(self._most, len(self._running))
        elif event.kind in self._counts:
            began = self._running.pop(key, None)
            self._speeds.pop(key, None)
            self._counts[event.kind] += 1
            self._ended = sum(self._counts[kind] for kind in _ENDS)
            if event.kind == "retried":
                self._waiting[key] = item
            else:
                self._waiting.pop(key, None)
            if event.kind == "done" and began:
                self._timed.append(Timed(item.cost, now - began[1]))
        if event.running:
            self._speeds[key] = event.running
        if event.kind in ("failed", "diverged", "retried"):
            self._line(f"{event.kind}: {item.name}: {event.reason}")
        elif event.kind == "notice":
            self._line(event.reason)
        self._update()

    def _state(self) -> str:
        parts = [f"{self._counts['done']} done", f"{len(self._running)} running"]
        parts += [f"{self._reused} done before"] if self._reused else []
        parts += [f"{self._counts[k]} {k}" for k in ("failed", "diverged", "elsewhere", "retried") if self._counts[k]]
        if self._ended < self._total:
            parts.append(self._estimate())
        return ", ".join(filter(None, parts))

    def _estimate(self) -> str:
        """The remaining time in words, computed at most once a second: there may be thousands of stages."""
        now = time.monotonic()
        if now - self._left_at >= ESTIMATE_EVERY_SECONDS:
            self._left_at = now
            running = [Timed(item.cost, now - began) for item, began in self._running.values()]
            waiting = [Timed(item.cost) for item in self._waiting.values()]
            left = remaining(self._timed or self._at_present(), running, waiting, self._slots or self._most)
            self._left = f"about {duration(left / 3600)} left" if left else ""
        if not self._left and self._hours:
            return f"about {duration(self._hours)} in all"
        return self._left

    def _at_present(self) -> list[Timed]:
        """The running stages, as if each took its whole time at its present speed: what is known before the first one has ended."""
        speeds = [(self._running[key][0], speed.flops) for key, speed in self._speeds.items() if key in self._running]
        return [Timed(item.cost, item.cost / flops) for item, flops in speeds if flops > 0]

    def _now_running(self) -> str:
        names = [f"{item.name}{self._speed(key)}" for key, (item, _) in self._running.items()]
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        return f"running: {', '.join(names[:2])}{more}" if names else ""

    def _slowest(self) -> str:
        if not self._speeds:
            return ""
        key = max(self._speeds, key=lambda key: self._speeds[key].seconds_left)
        return f"{self._running[key][0].name}{self._speed(key)}" if key in self._running else ""

    def _speed(self, key: str) -> str:
        """How far a running stage is, in brackets; '' before it has said so."""
        speed = self._speeds.get(key)
        if speed is None:
            return ""
        left = f", about {duration(speed.seconds_left / 3600)} left"
        return f" (update {speed.step:,} of {speed.steps:,}, {speed.tokens:,.0f} tokens/s{left})"


class TrialProgress(_ProgressView):
    """Counts the trials of a study and their replicates, and names the best so far."""

    def __init__(
        self,
        trials: int,
        replicates: int,
        seen: Iterable[Trial],
        dashboard: str,
    ) -> None:
        super().__init__("trials", trials, dashboard)
        self._replicates = replicates
        self._trials = {trial.number: trial for trial in seen}
        self._count()

    def _count(self) -> None:
        self._ended = sum(trial.state != "running" for trial in self._trials.values())

    def __call__(self, kind: str, trial: Trial) -> None:
        """Count one event of a trial; see `Watch` in cluster/proposals.py."""
        self._trials[trial.number] = trial
        self._count()
        if kind == "replicate":
            outcome = trial.outcomes[-1]
            if outcome.status != "done":
                self._line(f"{outcome.status}: trial {trial.number}: {outcome.reason}")
        elif kind == "ended" and trial.state == "failed":
            self._line(f"failed: trial {trial.number}: {trial.reason}")
        self._update()

    def _state(self) -> str:
        states = Counter(trial.state for trial in self._trials.values())
        done = sum(len(trial.outcomes) for trial in self._trials.values())
        parts = [f"{states['complete']} complete", f"{states['running']} running"]
        parts += [f"{states[state]} {state}" for state in ("dropped", "failed") if states[state]]
        parts.append(f"{done}/{self._total * self._replicates} replicates")
        best = best_trial(self._trials.values())
        if best is not None:
            parts.append(f"best {in_points(best.mean() or 0.0)} (trial {best.number})")
        return ", ".join(parts)


class TextProgress(_ProgressView):
    """Counts texts as they are back-translated."""

    def __call__(self, size: int) -> Callable[[int, int], None]:
        """A callback for the next `size` texts: `done` of their `total` pieces are finished."""
        before = self._ended

        def progress(done: int, total: int) -> None:
            self._ended = before + (size if done >= total else size * done // total)
            if self._progress or self._ended < self._total:  # the last line is the summary
                self._update()

        return progress


class RowProgress(_ProgressView):
    """Counts rows."""

    def __call__(self, done: int) -> None:
        self._ended = done
        self._update()


def count_texts(translator: str, texts: int) -> TextProgress:
    return TextProgress(f"texts back-translated by {translator}", texts)


def show_stages(prepared: Prepared, dashboard: str) -> StageProgress:
    reused = sum(status == "done" for status, _ in prepared.statuses.values())
    slots = prepared.slots if prepared.request.address == "local" else prepared.request.slots or 0
    return StageProgress(prepared.items, reused, dashboard, prepared.hours, slots)


def show_trials(opened: Opened, dashboard: str) -> TrialProgress:
    space, trials = opened.points.space, opened.found.found
    return TrialProgress(space.trials, len(opened.points.replicates), trials, dashboard)


def _warn(sentence: str) -> None:
    print_lines([sentence])


def _say_empty(number: int) -> None:
    _warn(f"Empty back-translations: {number}; the text itself is used instead.")


ON_TERMINAL = Callbacks(show_stages, count_texts, _say_empty, _warn)
"""What a command shows on standard error."""
