"""The driver of a bench: prepare, back-translate, train, remember, track. What its caller shows comes in as callbacks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.commands.execution import deadline_of
from harness.commands.prepare import Prepared, prepare
from harness.commands.texts import Counting, translate
from harness.commands.train import View, train, unshown
from harness.planning.request import Request
from harness.store import Store
from harness.tracking import Trackers, check_trackers

if TYPE_CHECKING:
    from harness.planning.lifecycle import Event


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
    trackers: Trackers


def trackers_of(prepared: Prepared) -> Trackers:
    """The request's trackers, with the runs of its table."""
    name = f"harness-{prepared.resolved.table.name}"
    return Trackers(prepared.request.track, name, prepared.store.url).add_plan(prepared.plan)


def bench(request: Request, callbacks: Callbacks, agree: Callable[[Prepared], None] = lambda prepared: None) -> Benched:
    """Train what the table of a request lacks. `agree`: called before anything is trained; raises an error to train nothing."""
    check_trackers(request.track, request.origin("track"))
    prepared, deadline = prepare(request, train=True), deadline_of(request)
    agree(prepared)
    if prepared.items:
        prepared = callbacks.translated(prepared)
    trackers = trackers_of(prepared)

    @contextmanager
    def tracked(prepared: Prepared, dashboard: str) -> Iterator[Callable[[Event], None]]:
        with callbacks.stages(prepared, dashboard) as show:

            def both(event: Event) -> None:
                show(event)
                if event.ended:
                    trackers.write([event.item.stage.key], callbacks.warn)

            yield both

    if prepared.items:
        prepared = train(prepared, tracked, deadline=deadline)
    if prepared.plan.runs:
        prepared.remember()
    return Benched(prepared, trackers)
