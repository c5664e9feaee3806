"""Experiment trackers: what is recorded of a table, written to them while it is trained and afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.prepare import Prepared
from harness.commands.train import View
from harness.errors import UserError
from harness.planning.request import FILTERS, Request
from harness.specs import digest_of
from harness.tracking import Outcome, Projection, Writer, of_plan

if TYPE_CHECKING:
    from harness.planning.lifecycle import Event


def check_trackers(request: Request) -> None:
    """Raises UserError for an unknown tracker, and for one whose package is not installed."""
    Writer("", request.track, request.origin("track"))


def writer_of(request: Request, url: str, warn: Callable[[str], None]) -> Writer:
    """What writes to the trackers of a request beside a command that trains. `warn`: one sentence for each that cannot be written."""

    def say(name: str, why: str) -> None:
        warn(
            f"Tracker {name} cannot be written ({why}); training goes on. The same command with --track {name} writes what is missing later."
        )

    return Writer(url, request.track, request.origin("track"), say)


def projection_of(prepared: Prepared) -> Projection:
    """A table as trackers show it. Its cells are told from those under other values by preset, encoders, and a digest of the rest."""
    resolved, kept = prepared.resolved, prepared.named.kept.values
    left_out = (*FILTERS, "table", "folder", "preset", "encoder", "data")
    rest = {name: value for name, value in kept.items() if name not in left_out and value}
    encoders = (Path(each.name).name for each in resolved.encoders)
    named = [resolved.preset, *encoders, *([digest_of(rest)[:6]] if rest else [])]
    return of_plan(prepared.plan, ", ".join(named))


def tracked_view(view: View, writer: Writer) -> View:
    """The same view of a table, whose stages are written as they end."""

    @contextmanager
    def both(prepared: Prepared, dashboard: str) -> Iterator[Callable[[Event], None]]:
        projection = projection_of(prepared)
        writer.put(projection)
        with view(prepared, dashboard) as show:

            def shown(event: Event) -> None:
                show(event)
                if event.ended:
                    writer.put(projection, event.item.stage.key)

            yield shown

    return both if writer.outcomes else view


def track_recorded(prepared: Prepared) -> dict[str, Outcome]:
    """Write what is recorded of a table. Raises UserError where a tracker cannot be written."""
    request = prepared.request
    writer = Writer(prepared.store.url, request.track, request.origin("track"))
    for name, outcome in writer.finish(projection_of(prepared)).items():
        if outcome.error:
            raise UserError(
                f"{request.origin('track')} {name}: cannot be written ({outcome.error}); what was written stays, and the same command "
                "writes the rest."
            )
    return writer.outcomes


def sentences(outcomes: dict[str, Outcome]) -> list[str]:
    """What each tracker holds, for people."""
    return [
        f"Tracker {name}: {outcome.total:,} runs, {outcome.new:,} of them new; {outcome.place}."
        for name, outcome in outcomes.items()
        if not outcome.error
    ]
