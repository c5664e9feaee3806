"""What a planned table can detect, and the cheapest design for a wanted difference: from recorded variances, or from defaults.

Pure. `docs/statistics.md` has the method.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from harness.planning.runs import Plan
from harness.statistics.crossed import mean_squares
from harness.statistics.power import (
    CONFIDENCE,
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
from harness.views.cells import Grid, Place, family_sizes, no_runs, on_grid, reference_of
from harness.views.view import DASH, Table, View
from harness.wording import counted, in_points

DEFAULT = Components(subset=8.3e-4, seed=1e-4, interaction=7.3e-4)
"""Variances of a paired difference of accuracies. Of subset and run: the means of the upper limits of five recorded differences (SST-2, 100 examples,
MiniLM and bert-tiny, in docs/results). Of the seed, 1 point: its five estimates are below 0, and the upper 80 % limit of their mean is
1.3 points, so that 0 is not known either."""


DEFAULTS = (
    "Defaults: by subset and run as of five recorded differences (SST-2, 100 examples, MiniLM and bert-tiny), by seed 1 point. They are a guess "
    "for other tasks, sizes and metrics: run 5 subsets x 3 seeds of two rows first, and the plan takes their variances."
)


def resolutions(grid: Grid, against: str = "") -> tuple[str, int, list[dict[str, Any]]]:
    """What a table's design can tell from its first row, or from `against`: that row ('' where it has no other), how many comparisons Holm's correction is over,
    and of each size and column its `components`, `recorded`: how many recorded differences they come from, 0 for the defaults, and `detects`: the smallest
    true difference that the design finds with 80 % power, None for a single run. Rows are paired as `harness compare` does, without reference rows."""
    r, runs = grid.resolved, grid.scores
    titles = [title for title in r.printed_rows if title not in r.reference_titles] or [*r.printed_rows]
    against, reference = reference_of(r, against) if titles else ("", str)
    pairs = [(title, reference(title)) for title in titles if title != reference(title)]
    own, further = family_sizes(grid.places, reference, r.reference_titles)
    comparisons = own or further or 1

    @cache
    def detected(components: Components, a: int, b: int) -> float | None:
        return detectable(precision(components, a, b, LEVEL / comparisons)) if a * b > 1 else None

    found = []
    for size, column in itertools.product(r.sizes, grid.compared):
        parts, recorded = recorded_components(runs, (size, column), pairs)
        detects = detected(parts, len(r.subsets_at(size)), len(r.seeds))
        found.append({"size": size, "column": column, "components": parts, "recorded": recorded, "detects": detects})
    return against, comparisons, found


def detections(
    grid: Grid, wanted: float, hours: Callable[[int, int], float], duration: Callable[[float], str] = "{:.1f} h".format
) -> View:
    """What the planned table detects, and the cheapest design for a difference `wanted`, on the metric's own scale. `hours`: of a design of subsets x seeds,
    from its beginning; `duration`: hours in words. The first row is compared with the others, as `harness compare` does."""
    r, (against, comparisons, shown) = grid.resolved, resolutions(grid)
    level = LEVEL / comparisons  # of the strictest of Holm's steps
    cheapest_for = cache(lambda components: cheapest([components], wanted, hours, level=level))
    found, body, redrawn = [], [], dict[Components, None]()
    for each in shown:
        components, enough = each.pop("components"), None
        if each["size"] > 0 or len(r.subsets_at(each["size"])) > 1:
            redrawn[components], enough = None, cheapest_for(components)
        design = (enough.num_subsets, enough.num_seeds, enough.cost) if enough else (None, None, None)
        proposed = dict(zip(("enough_subsets", "enough_seeds", "enough_hours"), design, strict=True))
        variances = {f"{name}_variance": value for name, value in vars(components).items()}
        found.append({**each, **variances, **proposed})
        sds = [in_points(value**0.5) for value in variances.values()]
        source = counted(each["recorded"], "recorded difference") if each["recorded"] else "defaults"
        detects = DASH if each["detects"] is None else in_points(each["detects"])
        best = [_text(enough), duration(enough.cost)] if enough else [DASH] * 2
        size = f"{each['size']:,}" if each["size"] else "full"
        body.append([grid.title(each["column"]), size, *sds, source, detects, *best])
    sources = ["Subset sd", "Seed sd", "Run sd"]
    head = ["Column", "Examples", *sources, "From", "Detects", f"For {in_points(wanted)}", "Time"]
    subsets, seeds, points = len(r.subsets), len(r.seeds), in_points(wanted)
    lines = [
        f"Detects: the smallest true difference from {against}, in points, that {counted(subsets, 'subset')} x {counted(seeds, 'seed')} can find with 80 % "
        f"power (crossed t test, two-sided 5 %, by Holm over {counted(comparisons, 'comparison')}, at its first step {level:.3g}). The whole table in "
        f"this design takes about {duration(hours(subsets, seeds))} from its beginning. Sd: of a paired difference by source, in points; of recorded differences "
        f"the upper {100 * CONFIDENCE:.0f} % confidence limit."
    ]
    if not redrawn:
        lines.append("The full training set is one subset: other designs are proposed for sizes that are drawn.")
    elif best_design := cheapest([*redrawn], wanted, hours, level=level):
        takes = f"{_text(best_design)}, about {duration(best_design.cost)} for the whole table"
        lines.append(f"The cheapest design that detects {points} points in all columns and sizes: {takes}.")
    else:
        largest = max(detectable(precision(each, MOST_SUBSETS, MOST_SEEDS, level)) for each in redrawn)
        most = f"{MOST_SUBSETS} subsets x {MOST_SEEDS} seeds"
        none = f"No design of up to {most} detects {points} points in all columns and sizes"
        lines.append(f"{none}; the largest detects {in_points(largest)}.")
    lines += [] if all(each["recorded"] for each in shown) else [DEFAULTS]
    about = {"table": r.table.name, "against": against, "comparisons": comparisons}
    return View("detections", pd.DataFrame(found), [Table("", head, body, {0, 5})], lines, about=about)


def _text(design: Design) -> str:
    return f"{design.num_subsets} x {design.num_seeds}"


def recorded_components(
    runs: Mapping[Place, pd.DataFrame], place: tuple[int, str], pairs: Sequence[tuple[str, str]]
) -> tuple[Components, int]:
    """The mean of the upper limits over all pairs of a row and the one that it is compared with that have at least two subsets and two seeds in common, and how many
    these are; the defaults where there is none."""
    size, column = place
    found = []
    for pair in pairs:
        scores, _ = on_grid(*(runs.get((size, name, column), no_runs()) for name in pair))
        if min(scores.shape) > 1:
            components = upper_components(mean_squares(scores[0] - scores[1]))
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
