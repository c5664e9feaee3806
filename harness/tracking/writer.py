"""Writes what a store holds to trackers: all at once, and in the background of a command that trains."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from harness.errors import first_line
from harness.store import Store
from harness.tracking.projection import Projection, TrackedRun, digest, final_scores, tracked
from harness.tracking.trackers import MakeTracker, Tracker


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

    def write(self, run: TrackedRun) -> None:
        """Write a run that the tracker does not hold as it is now."""
        assert self._tracker is not None
        if self._written.get(run.key) != run.digest:
            self._tracker.write(run)
            self._written[run.key] = run.digest
            self.new += 1


class Writer:
    """Writes the recorded stages of a projection, and its cells. A tracker that raises is left alone until everything is written the
    next time; the others go on.

    `url`: of the store; `warn`: called once for each tracker that cannot be written, with its name and why. `put` is for a command that
    trains: a thread writes, which ends with `finish`.
    """

    def __init__(
        self, url: str, trackers: Mapping[str, MakeTracker], warn: Callable[[str, str], None] = lambda name, why: None
    ) -> None:
        self._url, self._make, self._warn = url, trackers, warn
        self._warned: set[str] = set()
        self._jobs: queue.SimpleQueue[tuple[Projection, str] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.outcomes = {name: Outcome() for name in trackers}

    def put(self, projection: Projection, key: str = "") -> None:
        """A stage has ended; without a key, everything that is recorded is to be written."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="trackers", daemon=True)
            self._thread.start()
        self._jobs.put((projection, key))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self.write(*job)

    def finish(self, projection: Projection) -> dict[str, Outcome]:
        """Wait for what was put, then write what is missing; also to a tracker that was away."""
        self.wait()
        self.write(projection)
        return self.outcomes

    def wait(self) -> None:
        """Until all that was put is written."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def write(self, projection: Projection, key: str = "") -> None:
        """Write what is recorded of a stage to the trackers that can be written; without a key what is recorded of all stages, then
        the cells, to all trackers."""
        for name, outcome in self.outcomes.items():
            if key and outcome.error:
                continue
            try:
                self._write(name, outcome, projection, key)
                outcome.error = ""
            except Exception as error:  # a server, a disk, a package of others: nothing of a tracker may end a bench
                outcome._tracker = None
                outcome.error = f"{type(error).__name__}: {first_line(error)}"
                if name not in self._warned:
                    self._warned.add(name)
                    self._warn(name, outcome.error)

    def _write(self, name: str, outcome: Outcome, projection: Projection, key: str) -> None:
        store = Store(self._url, create=False)
        if outcome._tracker is None:
            outcome._tracker = self._make[name](projection.experiment, store.artifacts.parent)
            outcome.place = outcome._tracker.place
            outcome._written = outcome._tracker.written()
        ends = {member.run.stage.key: member for member in projection.members}
        records = store.records([key] if key else projection.stages)
        new = {stage_key for stage_key, record in records.items() if outcome._written.get(stage_key) != digest(record)}
        # The cells need the scores of all runs, whose predictions are read a part at a time.
        read = [stage_key for stage_key in records if stage_key in new or (not key and stage_key in ends)]
        scores: dict[str, dict[str, float]] = {}
        for stage_key, record in store.each(read, predictions=True):
            if stage_key in ends and record.status == "done":
                scores[stage_key] = final_scores(ends[stage_key], record)
            if stage_key in new:
                outcome.write(tracked(projection, stage_key, record))
        if not key:
            cells = list(projection.cells(scores))
            outcome.total = len(records) + len(cells)
            for cell in cells:
                outcome.write(cell)
