"""What a planned table can detect, and the cheapest design for a wanted difference: from recorded variances, or from defaults.

Pure. `docs/statistics.md` has the method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from harness.planning.runs import Plan
from harness.statistics.crossed import mean_squares
from harness.statistics.design import full_grid
from harness.statistics.power import (
    LEVEL,
    MOST_SEEDS,
    MOST_SUBSETS,
    Components,
    Design,
    cheapest,
    detectable,
    precision,
    upper_components,
)
from harness.views.cells import Grid
from harness.views.numbers.comparison import (
    NO_RUNS,
    Place,
    Runs,
    columns_of,
    family_sizes,
    paired,
    reference_of,
    run_places,
    runs_of,
)

DEFAULT = Components(subset=8.3e-4, seed=1e-4, interaction=7.3e-4)
"""Variances of a paired difference of accuracies. Of subset and run: the means of the upper limits of five recorded differences (SST-2, 100 examples,
MiniLM and bert-tiny, in docs/results). Of the seed, 1 point: its five estimates are below 0, and the upper 80 % limit of their mean is
1.3 points, so that 0 is not known either."""


@dataclass(frozen=True)
class Resolution:
    """Of one column at one size, on the metric's own scale. `recorded`: how many recorded differences its `components` come from, 0 for
    the defaults; `detects`: the smallest true difference that the table's design finds with 80 % power, None for a single run."""

    size: int
    column: str
    title: str
    components: Components
    recorded: int
    detects: float | None


@dataclass(frozen=True)
class Resolutions:
    """What a table's design can tell from its first row, `against`; '' where it has no other. `comparisons`: the family that Holm's correction is over."""

    against: str
    comparisons: int
    by_column: tuple[Resolution, ...]

    @property
    def level(self) -> float:
        """Of the strictest of Holm's steps."""
        return LEVEL / self.comparisons


@dataclass(frozen=True)
class Detection(Resolution):
    """`enough`: the cheapest design for the wanted difference, with its hours, None where none of up to 30 subsets x 10 seeds is."""

    enough: Design | None


@dataclass(frozen=True)
class Detections:
    """`wanted`: the difference, on the metric's own scale; `comparisons`: the family that Holm's correction is over; `enough`: the
    cheapest design for all columns and sizes; `largest`: what the largest design that is proposed detects in all of them, None where the
    training set is the full one; `hours`: of the planned design, from its beginning."""

    wanted: float
    against: str
    num_subsets: int
    num_seeds: int
    comparisons: int
    hours: float
    by_column: tuple[Detection, ...]
    enough: Design | None
    largest: float | None

    @property
    def level(self) -> float:
        """Of the strictest of Holm's steps."""
        return LEVEL / self.comparisons

    @property
    def subsets_for_exact(self) -> int:
        """Subsets that the exact sign-flip test needs to reach this level: 2 / 2^k."""
        return math.ceil(math.log2(2 / self.level))


def resolutions(grid: Grid, against: str = "") -> Resolutions:
    """By the recorded pairs of the first row, or of `against`, and the others, without reference rows, as `harness compare` pairs them; by defaults where there is none."""
    r, runs = grid.resolved, runs_of(grid)
    titles = [title for title in r.printed_rows if title not in r.reference_titles] or [*r.printed_rows]
    against, reference = reference_of(r, against) if titles else ("", str)
    pairs = [(title, reference(title)) for title in titles if title != reference(title)]
    own, further = family_sizes(run_places(grid), reference, r.reference_titles)
    comparisons = own or further or 1
    detected = cache(
        lambda components, a, b: detectable(precision(components, a, b, LEVEL / comparisons)) if a * b > 1 else None
    )
    found = []
    for size in r.sizes:
        for column in columns_of(grid):
            components, count = recorded_components(runs, (size, column), pairs)
            detects = detected(components, len(r.subsets_at(size)), len(r.seeds))
            found.append(Resolution(size, column, grid.title(column), components, count, detects))
    return Resolutions(against, comparisons, tuple(found))


def detections(grid: Grid, wanted: float, hours: Callable[[int, int], float]) -> Detections:
    """`wanted`: a difference on the metric's own scale; `hours`: of a design of subsets x seeds. The first row is compared with the
    others, as `harness compare` does."""
    r = grid.resolved
    shown = resolutions(grid)
    level = shown.level
    cheapest_for = cache(lambda components: cheapest([components], wanted, hours, level=level))
    drawn = [each.size > 0 or len(r.subsets_at(each.size)) > 1 for each in shown.by_column]
    found = [
        Detection(**vars(each), enough=cheapest_for(each.components) if is_drawn else None)
        for each, is_drawn in zip(shown.by_column, drawn, strict=True)
    ]
    redrawn = list(dict.fromkeys(each.components for each, is_drawn in zip(found, drawn, strict=True) if is_drawn))
    enough = cheapest(redrawn, wanted, hours, level=level) if redrawn else None
    most = (precision(components, MOST_SUBSETS, MOST_SEEDS, level) for components in redrawn)
    largest = max(map(detectable, most), default=None)
    design = len(r.subsets), len(r.seeds)
    return Detections(wanted, shown.against, *design, shown.comparisons, hours(*design), tuple(found), enough, largest)


def recorded_components(
    runs: Mapping[Place, Runs], place: tuple[int, str], pairs: Sequence[tuple[str, str]]
) -> tuple[Components, int]:
    """The mean of the upper limits over all pairs of a row and the one that it is compared with that have at least two subsets and two seeds in common, and how many
    these are; the defaults where there is none."""
    size, column = place
    found = []
    for pair in pairs:
        ours, theirs = (runs.get((size, name, column), NO_RUNS) for name in pair)
        subsets, seeds = full_grid([pair for pair in ours.scores if pair in theirs.scores])
        if len(subsets) > 1 and len(seeds) > 1:
            components = upper_components(mean_squares(paired(ours, theirs, subsets, seeds)))
            found.append(tuple(vars(components).values()))
    if not found:
        return DEFAULT, 0
    return Components(*(float(mean) for mean in np.mean(found, axis=0))), len(found)


def cost_of(plan: Plan) -> Callable[[int, int], tuple[float, float]]:
    """(FLOPs, stages) of the plan with other numbers of subsets and seeds: a stage that several subsets share is counted once for all of
    them, and so for seeds; what is trained on a full training set has one subset in any design. What one subset or one seed cannot show counts for each run."""
    r = plan.resolved
    served: dict[str, set[tuple[int, int, int]]] = {}
    for run in plan.runs:
        for stage in run.stage.chain:
            served.setdefault(stage.key, set()).add((run.size, run.subset, run.seed))
    a, b = len(r.subsets), len(r.seeds)
    totals = {(x, y): np.zeros(2) for x in (0, 1) for y in (0, 1)}
    for key, runs in served.items():
        by_subset = len({subset for _, subset, _ in runs}) == 1 and any(r.is_drawn(size) for size, _, _ in runs)
        by_seed = len({seed for _, _, seed in runs}) == 1
        totals[by_subset, by_seed] += plan.stage_flops(plan.stages[key]), 1

    def cost(subsets: int, seeds: int) -> tuple[float, float]:
        parts = [total * (subsets / a) ** x * (seeds / b) ** y for (x, y), total in totals.items()]
        flops, stages = np.sum(parts, axis=0)
        return float(flops), float(stages)

    return cost
