"""Experiment trackers: what is recorded of a table or a study, written to them while it is trained and afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.prepare import Prepared
from harness.commands.train import View
from harness.errors import UserError
from harness.specs import digest_of
from harness.tables.request import FILTERS, Request
from harness.tracking.projection import Member, Projection, member_of, of_plan, size_name
from harness.tracking.tracker import trackers_named
from harness.tracking.writer import BackgroundWriter, Outcome, Writer

if TYPE_CHECKING:  # a plan needs no Optuna
    from harness.commands.study import Opened, TrialView, Watcher
    from harness.search.trials import Trial
    from harness.tables.lifecycle import Event

ENDED = frozenset(("done", "failed", "diverged", "elsewhere"))


def check_trackers(request: Request) -> None:
    """Raises UserError for an unknown tracker, and for one whose package is not installed."""
    trackers_named(request.track, request.origin("track"))


def projection_of(prepared: Prepared) -> Projection:
    """A table as trackers show it. Its cells are told from those under other values by preset, encoder, and a digest of the rest."""
    resolved, kept = prepared.resolved, prepared.named.kept.values
    left_out = (*FILTERS, "table", "folder", "preset", "encoder", "data")
    rest = {name: value for name, value in kept.items() if name not in left_out and value}
    named = [resolved.preset, Path(resolved.encoder).name, *([digest_of(rest)[:6]] if rest else [])]
    return of_plan(prepared.plan, ", ".join(named))


class Tracking:
    """The trackers of a request beside a command that trains. `warn`: one sentence for each tracker that cannot be written."""

    def __init__(self, request: Request, url: str, warn: Callable[[str], None]) -> None:
        self._writer: BackgroundWriter | None = None
        if request.track:
            trackers = trackers_named(request.track, request.origin("track"))

            def say(name: str, why: str) -> None:
                warn(
                    f"Tracker {name} cannot be written ({why}); training goes on, and the same again with {request.option('track', name)} writes what is missing."
                )

            self._writer = BackgroundWriter(Writer(url, trackers), say)

    def watched(self, view: View) -> View:
        """The same view of a table, whose stages are written as they end."""
        writer = self._writer
        if writer is None:
            return view

        @contextmanager
        def both(prepared: Prepared, dashboard: str) -> Iterator[Callable[[Event], None]]:
            projection = projection_of(prepared)
            writer.put(projection)
            with view(prepared, dashboard) as show:

                def shown(event: Event) -> None:
                    show(event)
                    if {event.kind} & ENDED:
                        writer.put(projection, event.item.stage.key)

                yield shown

        return both

    def watched_trials(self, view: TrialView) -> TrialView:
        """The same view of a study, whose stages are written as the replicates end."""
        writer = self._writer
        if writer is None:
            return view

        @contextmanager
        def both(opened: Opened, dashboard: str) -> Iterator[Watcher]:
            with view(opened, dashboard) as show:

                def shown(kind: str, trial: Trial) -> None:
                    show(kind, trial)
                    if kind == "replicate":
                        members = _members(opened, trial)
                        projection = Projection(_study(opened), members)
                        for key in projection.stages:
                            writer.put(projection, key)

                yield shown

        return both

    def finish(self, projection: Callable[[], Projection]) -> dict[str, Outcome]:
        """Write everything that is recorded and not written yet. What each tracker holds now, by name; empty without trackers."""
        return self._writer.finish(projection()) if self._writer else {}


def track_recorded(prepared: Prepared) -> dict[str, Outcome]:
    """Write what is recorded of a table. Raises UserError where a tracker cannot be written."""
    request = prepared.request
    writer = Writer(prepared.store.url, trackers_named(request.track, request.origin("track")))
    writer.write_all(projection_of(prepared))
    for name, outcome in writer.outcomes.items():
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


# ------------------------------------------------------------------------------------------------------------- studies


def study_projection(opened: Opened) -> Projection:
    """A study as trackers show it: a group a trial, without test scores, which the study does not look at."""
    members = [member for trial in opened.proposals.history.trials for member in _members(opened, trial)]
    return Projection(_study(opened), tuple(members))


def _study(opened: Opened) -> str:
    return f"harness-{opened.name}"


def _members(opened: Opened, trial: Trial) -> tuple[Member, ...]:
    points = opened.points
    try:
        replicates = points.runs(trial.point)
    except UserError:  # a point that cannot be run: its trial failed
        return ()
    labels = {"study": opened.name, "trial": trial.number, **trial.point}
    runs = {run.name: run for replicate in replicates for run in replicate}
    return tuple(
        member_of(
            run,
            f"trial {trial.number}/{run.task}/{size_name(run)}",
            labels,
            points.table_data.tasks[run.task],
            tests=False,
        )
        for run in runs.values()
    )
