"""The driver of a bench: prepare, back-translate, train wave after wave, remember, track; once, or over a grid of replicates that grows
until its intervals are narrow enough. What its caller shows comes in as callbacks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness.analysis.comparison import candidates_of, columns_of, runs_of
from harness.commands.execution import deadline_of
from harness.commands.prepare import Prepared, prepare, read_named
from harness.commands.report import grid_of
from harness.commands.texts import Counting, translate
from harness.commands.track import check_trackers, projection_of, tracked_view, writer_of
from harness.commands.train import View, train, unshown
from harness.errors import UserError
from harness.planning.request import Request
from harness.statistics.design import full_grid
from harness.statistics.sequential import look_width, path
from harness.store import Store
from harness.tasks import protocol_named
from harness.tracking.writer import Outcome, Writer
from harness.wording import counted, examples

MAX_REPLICATES = 50
"""Of a cell of a bench with `until`: four looks, at 5 subsets x 3 seeds to 8 x 6."""


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
    """A table after its training. `reached`: whether the intervals that the bench was asked for are reached."""

    prepared: Prepared
    writer: Writer
    reached: bool = True

    def track(self) -> dict[str, Outcome]:
        """Write to the request's trackers what they miss. What each holds now, by name."""
        return self.writer.finish(projection_of(self.prepared)) if self.writer.outcomes else {}


def bench(request: Request, callbacks: Callbacks, agree: Callable[[Prepared], None] = lambda prepared: None) -> Benched:
    """Train what the table of a request lacks. `agree`: called before anything is trained; raises an error to train nothing."""
    check_trackers(request)
    prepared, deadline = prepare(request, train=True), deadline_of(request)
    agree(prepared)
    return _trained(prepared, callbacks, deadline)


def bench_until(
    request: Request,
    points: float,
    most: int | None,
    callbacks: Callbacks,
    agree: Callable[[Prepared, Prepared, int], None],
    looked: Callable[[Prepared, int, Sequence[Width]], None],
) -> Benched:
    """Benches of a growing grid of subsets and seeds, until all intervals are within ± `points` or a cell has `most` replicates.

    `agree`: called with the first bench, the largest, and the number of looks before anything is trained; `looked`: called after each
    bench with its number from 1 and its intervals.
    """
    check_trackers(request)
    every, deadline = list(rounds(request, most or MAX_REPLICATES)), deadline_of(request)
    largest = prepare(every[-1], train=True)
    for look, grown in enumerate(every, start=1):
        prepared = prepare(grown, train=True)
        if look == 1:
            agree(prepared, largest, len(every))
        done = _trained(prepared, callbacks, deadline)
        if done.prepared.over:
            break
        intervals = widths(done.prepared)
        looked(done.prepared, look, intervals)
        if narrow(intervals, points):
            return done
    return Benched(done.prepared, done.writer, reached=False)


def _trained(prepared: Prepared, callbacks: Callbacks, deadline: float) -> Benched:
    writer = writer_of(prepared.request, prepared.store.url, callbacks.warn)
    if prepared.items:
        prepared = callbacks.translated(prepared)
    if prepared.items:
        prepared = train(prepared, tracked_view(callbacks.stages, writer), deadline=deadline)
    if prepared.plan.runs:
        prepared.remember()
    return Benched(prepared, writer)


# ----------------------------------------------------------------------------------------- the rounds of a growing grid


@dataclass(frozen=True)
class Width:
    """Half the width of one interval at a look, on the metric's own scale; None where too few runs are done. `name`: what it is of."""

    name: str
    half: float | None


def rounds(request: Request, most: int) -> Iterator[Request]:
    """The same bench over each grid of the path, with its subsets and seeds written out. Raises UserError where `most` replicates do not hold
    the first one."""
    resolved = read_named(request).resolve()
    fixed = protocol_named(resolved.protocol).num_subsets
    two = replace(resolved, subsets=(0, 1))  # is there more than one training set?
    one = all(len(two.subsets_at(size)) == 1 for size in resolved.sizes)
    limit = 1 if one else fixed
    grids = list(path(len(resolved.subsets), len(resolved.seeds), most, limit))
    if not grids:
        (subsets, seeds), *_ = path(len(resolved.subsets), len(resolved.seeds), 2**32, limit)
        raise UserError(
            f"--max-replicates {most}: the first look is at {counted(subsets, 'subset')} x {counted(seeds, 'seed')}; allow {subsets * seeds} or more."
        )
    for subsets, seeds in grids:
        mine = _continued(resolved.subsets, tuple(range(subsets)), subsets)
        yield replace(request, subsets=mine, seeds=_continued(resolved.seeds, resolved.table.seeds, seeds))


def _continued(first: tuple[int, ...], further: tuple[int, ...], count: int) -> tuple[int, ...]:
    """`count` whole numbers: those of `first`, then others of `further`, then those above the largest of all."""
    known = tuple(dict.fromkeys((*first, *further)))
    return (*known, *range(max(known) + 1, max(known) + 1 + count))[:count]


def narrow(intervals: Sequence[Width], points: float) -> bool:
    """Whether there are intervals and all are within ± `points`."""
    return bool(intervals) and all(width.half is not None and 100 * width.half <= points for width in intervals)


def widths(prepared: Prepared) -> list[Width]:
    """Of every row minus the first one, without reference rows, in each column and size; of the mean of the single row where there is one. Cells that are not run, and
    rows of which nothing is done, have none."""
    grid, _ = grid_of(prepared)
    runs = runs_of(grid)
    titles = candidates_of(grid)
    found = []
    for size in grid.resolved.sizes:
        for column in columns_of(grid):
            place = f"{grid.title(column)}, {examples(size, grid.resolved.size_unit)}"
            first = runs.get((size, titles[0], column)) if titles else None
            for title in titles[1:] or titles:
                mine = runs.get((size, title, column))
                if mine is None or first is None:
                    continue
                base = first.scores if title != titles[0] else dict.fromkeys(mine.scores, 0.0)
                subsets, seeds = full_grid([pair for pair in mine.scores if pair in base])
                scores = np.array([[mine.scores[s, r] - base[s, r] for r in seeds] for s in subsets])
                name = f"{title} - {titles[0]}" if title != titles[0] else title
                found.append(Width(f"{name}, {place}", look_width(scores)))
    return found
