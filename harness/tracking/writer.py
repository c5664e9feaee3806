"""Writes what a store holds to trackers: all at once, and in the background of a command that trains."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from harness.errors import first_line
from harness.store import Store
from harness.tracking.projection import Projection, TrackedRun, digest, final_scores, tracked
from harness.tracking.tracker import MakeTracker, Tracker

CHUNK = 50
"""Records with predictions that are held in memory at a time."""


@dataclass
class Outcome:
    """What one tracker holds: `total` runs of the projection (stages and cells), `new` of them written by this command. `place`: where, for
    people; `error`: why it was left alone, '' where all was written."""

    place: str = ""
    total: int = 0
    new: int = 0
    error: str = ""
    _tracker: Tracker | None = None
    _written: dict[str, str] = field(default_factory=dict)


class Writer:
    """Writes the recorded stages of a projection, and its cells. A tracker that raises is left alone until everything is written the
    next time; the others go on."""

    def __init__(self, url: str, trackers: Mapping[str, MakeTracker]) -> None:
        """`url`: of the store."""
        self._url, self._make = url, trackers
        self.outcomes = {name: Outcome() for name in trackers}

    def write_all(self, projection: Projection) -> None:
        """Write what is recorded and not written yet, then the cells."""
        for name in self._make:
            self._guarded(name, projection, projection.stages, cells=True)

    def write_some(self, projection: Projection, keys: Collection[str]) -> None:
        """Write what is recorded of these stages to the trackers that can be written."""
        for name, outcome in self.outcomes.items():
            if not outcome.error:
                self._guarded(name, projection, keys, cells=False)

    def _guarded(self, name: str, projection: Projection, keys: Collection[str], *, cells: bool) -> None:
        outcome = self.outcomes[name]
        try:
            self._write(name, outcome, projection, keys, cells=cells)
            outcome.error = ""
        except Exception as error:  # a server, a disk, a package of others: nothing of a tracker may end a bench
            outcome._tracker = None
            outcome.error = f"{type(error).__name__}: {first_line(error)}"

    def _write(
        self, name: str, outcome: Outcome, projection: Projection, keys: Collection[str], *, cells: bool
    ) -> None:
        store = Store(self._url, create=False)
        if outcome._tracker is None:
            outcome._tracker = self._make[name](projection.experiment, store.artifacts.parent)
            outcome.place = outcome._tracker.place
            outcome._written = outcome._tracker.written()
        stages, serves = projection.stages, projection.by_stage
        ends = {member.run.stage.key: member for member in projection.members}
        records = store.records([key for key in keys if key in stages])
        outcome.total = len(records) if cells else outcome.total
        todo = [key for key, record in records.items() if outcome._written.get(key) != digest(record)]
        scores: dict[str, dict[str, float]] = {}
        read = [key for key in records if key in ends or key in todo] if cells else todo
        for start in range(0, len(read), CHUNK):
            part = read[start : start + CHUNK]
            for key, record in store.records(part, predictions=True).items():
                if key in ends and record.status == "done":
                    scores[key] = final_scores(ends[key], record)
                if key in todo:
                    self._write_run(outcome, tracked(projection.experiment, stages[key], serves[key], record))
        for cell in projection.cells(scores) if cells else ():
            outcome.total += 1
            if outcome._written.get(cell.key) != cell.digest:
                self._write_run(outcome, cell)

    def _write_run(self, outcome: Outcome, run: TrackedRun) -> None:
        assert outcome._tracker is not None
        outcome._tracker.write(run)
        outcome._written[run.key] = run.digest
        outcome.new += 1


Job = tuple[Projection, str]
"""A stage of a projection that has ended; '': all that is recorded."""


class BackgroundWriter:
    """A thread that writes stages as they end. `warn`: called once for each tracker that cannot be written, with its name and why."""

    def __init__(self, writer: Writer, warn: Callable[[str, str], None]) -> None:
        self._writer, self._warn = writer, warn
        self._warned: set[str] = set()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="trackers", daemon=True)
        self._thread.start()

    def put(self, projection: Projection, key: str = "") -> None:
        """A stage has ended; without a key, everything that is recorded is to be written."""
        self._jobs.put((projection, key))

    def finish(self, projection: Projection) -> dict[str, Outcome]:
        """Wait for what was put, then write what is missing; also to a tracker that was away."""
        self._jobs.put(None)
        self._thread.join()
        self._writer.write_all(projection)
        self._warn_of_errors()
        return self._writer.outcomes

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            projection, key = job
            if key:
                self._writer.write_some(projection, [key])
            else:
                self._writer.write_all(projection)
            self._warn_of_errors()

    def _warn_of_errors(self) -> None:
        for name, outcome in self._writer.outcomes.items():
            if outcome.error and name not in self._warned:
                self._warned.add(name)
                self._warn(name, outcome.error)
