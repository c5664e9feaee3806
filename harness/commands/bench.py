"""The driver of a bench: prepare, back-translate, train, remember, track. What its caller shows comes in as callbacks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from harness.commands.execution import deadline_of
from harness.commands.prepare import Prepared, prepare
from harness.commands.texts import Counting, translate
from harness.commands.track import check_trackers, projection_of, tracked_view, writer_of
from harness.commands.train import View, train, unshown
from harness.planning.request import Request
from harness.store import Store
from harness.tracking import Outcome, Writer


@contextmanager
def _uncounted(*_: Any) -> Iterator[Callable[[int], Callable[[int, int], None]]]:
    yield lambda size: lambda done, total: None


@dataclass(frozen=True)
class Callbacks:
    """What the caller of a bench or a search shows; by default nothing.

    `stages`, `counting`: the progress of a bench and of a back-translation. `empty`: called with the number of
    back-translations that came back empty. `warn`: called with one sentence.
    """

    stages: View = unshown
    counting: Counting = _uncounted
    empty: Callable[[int], None] = lambda number: None
    warn: Callable[[str], None] = warnings.warn

    def translated(self, prepared: Prepared) -> Prepared:
        """The table with its back-translations made, whose stages have their keys now."""
        if not prepared.plan.untranslated:
            return prepared
        empty = 0
        for augment, rows in prepared.plan.untranslated.items():
            translator = prepared.translators[augment]
            with self.counting(translator.name, sum(map(len, rows))) as progress:
                empty += translate(rows, translator, Store(prepared.store.url), progress)
        if empty:
            self.empty(empty)
        return prepare(prepared.request, train=True)


@dataclass(frozen=True)
class Benched:
    """A table after its training."""

    prepared: Prepared
    writer: Writer

    def track(self) -> dict[str, Outcome]:
        """Write to the request's trackers what they miss. What each holds now, by name."""
        return self.writer.finish(projection_of(self.prepared)) if self.writer.outcomes else {}


def bench(request: Request, callbacks: Callbacks, agree: Callable[[Prepared], None] = lambda prepared: None) -> Benched:
    """Train what the table of a request lacks. `agree`: called before anything is trained; raises an error to train nothing."""
    check_trackers(request)
    prepared, deadline = prepare(request, train=True), deadline_of(request)
    writer = writer_of(prepared.request, prepared.store.url, callbacks.warn)
    if prepared.earlier and prepared.earlier.items:
        over = bench(prepared.earlier.request, callbacks, agree).prepared.over
        prepared = replace(prepare(request, train=True), over=over)
        if prepared.undecided:
            return Benched(prepared, writer)
    agree(prepared)
    if prepared.items:
        prepared = callbacks.translated(prepared)
    if prepared.items:
        prepared = train(prepared, tracked_view(callbacks.stages, writer), deadline=deadline)
    if prepared.plan.runs:
        prepared.remember()
    return Benched(prepared, writer)
