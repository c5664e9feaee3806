"""The driver of a bench: prepare, back-translate, train, remember, track."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from harness.commands.prepare import Prepared, prepare
from harness.commands.texts import translator_of
from harness.commands.train import Show, check_machine, deadline_of, train, unshown
from harness.planning.request import Request
from harness.planning.work import Event
from harness.store import Store
from harness.tasks.translation import translate
from harness.tracking import Trackers, check_trackers


def trackers_of(prepared: Prepared) -> Trackers:
    """The request's trackers, with the runs of its table."""
    name = f"harness-{prepared.resolved.table.name}"
    return Trackers(prepared.request.track, name, prepared.store.url).add_plan(prepared.plan)


def translated(prepared: Prepared, show: Show, warn: Callable[[str], None]) -> Prepared:
    """The table with its back-translations made, whose stages have their keys now."""
    if not prepared.plan.untranslated:
        return prepared
    empty = 0
    for augment, rows in prepared.plan.untranslated.items():
        translator = translator_of(prepared.resolved, augment)
        with show((translator.name, sum(map(len, rows))), "") as done:
            empty += translate(rows, translator, Store(prepared.store.url), done)
    if empty:
        warn(f"Empty back-translations: {empty}; the text itself is used instead.")
    return prepare(prepared.request, train=True)


def bench(
    request: Request,
    show: Show = unshown,
    warn: Callable[[str], None] = warnings.warn,
    agree: Callable[[Prepared], None] = lambda prepared: None,
) -> tuple[Prepared, Trackers]:
    """Train what the table of a request lacks: the table, and its trackers. `warn`: called with one sentence. `agree`: called before
    anything is trained; raises an error to train nothing."""
    check_trackers(request.track, request.origin("track"))
    prepared, deadline = prepare(request, train=True), deadline_of(request)
    agree(prepared)
    if prepared.items:
        prepared = translated(prepared, show, warn)
    trackers = trackers_of(prepared)

    def track(event: Event) -> None:
        if event.ended:
            trackers.write([event.item.stage.key], warn)

    if prepared.items:
        check_machine(request)
        prepared = train(prepared, show, deadline=deadline, watch=track)
    if prepared.plan.runs:
        prepared.remember()
    return prepared, trackers
