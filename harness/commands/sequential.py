"""A bench whose grid of replicates grows until its intervals are narrow enough: the grid of each round, and the widths at a look."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from harness.commands.prepare import Prepared, read_named
from harness.commands.report import grid_of
from harness.errors import UserError
from harness.statistics.design import full_grid
from harness.statistics.sequential import look_width, path
from harness.tables.caption import counted, examples
from harness.tables.comparison import columns_of, runs_of
from harness.tables.request import Request
from harness.tasks import protocol_named


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


def widths(prepared: Prepared) -> list[Width]:
    """Of every row minus the first one, in each column and size; of the mean of the single row where there is one. Cells that are not run, and
    rows of which nothing is done, have none."""
    grid, _ = grid_of(prepared)
    runs = runs_of(grid)
    titles = [title for title, rows in grid.resolved.printed_rows.items() if not all(row.skip for row in rows)]
    found = []
    for size in grid.resolved.sizes:
        for column in columns_of(grid):
            place = f"{grid.title(column)}, {examples(size)}"
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
