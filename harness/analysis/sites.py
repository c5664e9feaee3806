"""A comparison by hardware: the difference of two rows within each kind that their runs were trained on, and whether the kinds differ. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.analysis.cells import Grid
from harness.analysis.comparison import (
    NO_RUNS,
    REGION,
    Comparison,
    Pair,
    Runs,
    columns_of,
    metric_of,
    paired,
    reference_of,
    runs_of,
)
from harness.errors import UserError
from harness.statistics.design import full_grid
from harness.statistics.difference import Difference, Interval, difference
from harness.statistics.groups import group_test
from harness.statistics.sign_flip import holm


@dataclass(frozen=True)
class Site:
    """The pairs that ran on one kind of hardware: the difference over their largest full grid."""

    hardware: str
    difference: Difference


@dataclass(frozen=True)
class SiteComparison:
    """`sites`: those with pairs, by name; `across`: how many pairs are of two kinds and in none of them; `unit`: what is drawn anew for each site, subsets
    or seeds; `gap` and `interval`: the first site's difference minus the second's, of two sites; `p`: of the test that all have one, `p_holm`: adjusted for
    all such tests here. `why`: the reason why there is no test, as the end of a sentence."""

    comparison: Comparison
    sites: tuple[Site, ...]
    across: int
    unit: str = ""
    gap: float | None = None
    interval: Interval | None = None
    p: float | None = None
    p_holm: float | None = None
    why: str = ""


def by_hardware(
    grid: Grid, against: str = "", option: Callable[[str], str] = "--{}".format
) -> tuple[str, list[SiteComparison]]:
    """What rows are compared with, and every comparison of the grid by hardware. Raises UserError as `compared`."""
    titles = list(grid.resolved.printed_rows)
    if len(titles) < 2:
        raise UserError(
            f"compare: table {grid.resolved.table.name} has one row here; name two with {option('methods')}."
        )
    named, reference = reference_of(grid.resolved, against, option)
    runs = runs_of(grid)
    found = []
    for size in grid.resolved.sizes:
        for column in columns_of(grid):
            for row in (row for row in titles if row != reference(row)):
                ours, theirs = (runs.get((size, name, column), NO_RUNS) for name in (row, reference(row)))
                title, metric = grid.title(column), metric_of(grid, column)
                base = Comparison(size, column, title, metric, row, reference(row), None)
                found.append(_compared(base, ours, theirs))
    tested = [k for k, each in enumerate(found) if each.p is not None]
    for k, p in zip(tested, holm([found[k].p or 0.0 for k in tested], len(tested)), strict=True):
        found[k] = replace(found[k], p_holm=float(p))
    return named, found


def _compared(base: Comparison, ours: Runs, theirs: Runs) -> SiteComparison:
    pairs: dict[str, list[Pair]] = {}
    across = 0
    for pair in ours.scores.keys() & theirs.scores.keys():
        one, other = (each.hardware.get(pair, set()) for each in (ours, theirs))
        if not (one and other):
            continue
        if len(kinds := one | other) == 1:
            pairs.setdefault(next(iter(kinds)), []).append(pair)
        else:
            across += 1
    sites = []
    for hardware in sorted(pairs):
        subsets, seeds = full_grid(pairs[hardware])
        sites.append(Site(hardware, difference(paired(ours, theirs, subsets, seeds), REGION)))
    found = SiteComparison(base, tuple(sites), across)
    if len(sites) < 2:
        return replace(found, why=_one_site(found))
    return _tested(found, pairs, ours, theirs)


def _one_site(comparison: SiteComparison) -> str:
    if comparison.sites:
        return "all pairs that ran on one kind of hardware ran on the same"
    if comparison.across:
        return (
            "each pair is of two kinds of hardware, so that the difference may be one of them; train both rows on one"
        )
    return "no replicate is done in both rows with its hardware recorded"


def _tested(
    comparison: SiteComparison, pairs: Mapping[str, Sequence[Pair]], ours: Runs, theirs: Runs
) -> SiteComparison:
    """With the test over whole subsets of each site, or over whole seeds."""
    for unit, side in (("subsets", 0), ("seeds", 1)):
        units = [{pair[side] for pair in pairs[site.hardware]} for site in comparison.sites]
        if sum(map(len, units)) > len(set.union(*units)):
            continue  # a subset of two sites: its effect is in both
        common = sorted(
            set.intersection(*({pair[1 - side] for pair in pairs[site.hardware]} for site in comparison.sites))
        )
        others = "seeds" if side == 0 else "subsets"
        if not common:
            return replace(
                comparison, why=f"the kinds have no {others} in common, so that a gap may be one of the {others}"
            )
        groups = []
        for site, there in zip(comparison.sites, units, strict=True):
            have = set(pairs[site.hardware])
            whole = [u for u in sorted(there) if all(((u, o) if side == 0 else (o, u)) in have for o in common)]
            if not whole:
                return replace(
                    comparison, why=f"no {unit[:-1]} of {site.hardware} has all the {others} that the kinds share"
                )
            values = paired(ours, theirs, whole, common) if side == 0 else paired(ours, theirs, common, whole).T
            groups.append(values)
        if sum(map(len, groups)) <= len(groups):
            return replace(comparison, why=f"one of the {unit} on each kind has no spread to judge a gap by")
        tested = group_test(groups)
        gap, half = float(tested.gap), float(tested.half_width)
        two = len(groups) == 2
        return replace(
            comparison,
            unit=unit,
            gap=gap if two else None,
            interval=Interval(gap - half, gap + half) if two else None,
            p=float(tested.p),
        )
    return replace(comparison, why="the kinds share subsets and seeds; train whole subsets on each")
