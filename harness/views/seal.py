"""A sealed comparison: what was planned before the first run, in words, and which comparisons follow it. Pure.

`docs/statistics.md` says what a seal proves and what it does not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from harness.errors import UserError
from harness.planning.aggregation import AVERAGE
from harness.specs import Run, Stage
from harness.statistics.power import LEVEL, POWER
from harness.store import StoredSeal
from harness.views.cells import Grid, Place, reference_of
from harness.views.differences import Difference
from harness.views.power import resolutions
from harness.wording import counted, in_points, listed

SHOWN = 12
"""Characters of a digest that are shown; any number that no other digest begins with will do."""
ALONE = (
    "A seal in a store of your own shows others nothing: who has the store can make it again. Publish the digest before the first run, in a commit, a mail or a "
    "registry; 'harness verify FILE --seal DIGEST' checks it. Even then runs may have been tried elsewhere before."
)


def plan_of(
    grid: Grid, runs: Sequence[Run], against: str, region: float, items: bool, wanted: float | None
) -> dict[str, Any]:
    """What is sealed, as JSON: rows, columns, design, the key of every run, the decision rule and its power. `region`, `wanted`: on the metric's own scale.
    Raises UserError where there is nothing to compare."""
    r = grid.resolved
    named, _ = reference_of(r, against)
    _, family, shown = resolutions(grid, against)
    if len(r.printed_rows) < 2:
        raise UserError(f"plan --seal: table {r.table.name} has one row here; name two or more with --methods.")
    # four digits, which are the same on every machine
    detects = [[e["size"], e["column"], None if e["detects"] is None else round(e["detects"], 4)] for e in shown]
    return {
        "table": r.table.name,
        "rows": list(r.printed_rows),
        "columns": {column: _column(grid, column) for column in grid.compared},
        **{name: list(getattr(r, name)) for name in ("sizes", "subsets", "seeds")},
        "places": sorted([size, row, column] for size, row, column in grid.places),
        "rule": rule_of(grid, named, region, items)
        | {"test": "crossed t, two-sided", "correction": "Holm", "family": family},
        "power": {"probability": POWER, "wanted": wanted, "detects": detects},
        "runs": [[r.titles[e.row], e.row, e.task, e.size, e.subset, e.seed, e.stage.key] for e in runs],
    }


def rule_of(grid: Grid, against: str, region: float, items: bool) -> dict[str, Any]:
    """What has to be as it was sealed; collapsed runs count."""
    rule = {"against": against, "region": region, "items": items, "collapsed": True, "level": LEVEL}
    return {**rule, "aggregate": grid.resolved.aggregate.model_dump(mode="json")}


def _column(grid: Grid, column: str) -> dict[str, Any]:
    """What is scored in a column, and the tasks whose runs are in it."""
    columns = grid.resolved.columns
    if column == AVERAGE:
        tasks = dict.fromkeys(columns[each].task for each in grid.resolved.made_of(AVERAGE))
        return {"metric": AVERAGE, "tasks": list(tasks)}
    spec = columns[column]
    return {"metric": spec.metric, "evaluation": spec.evaluation, "tasks": [spec.task]}


def sealed_places(plan: Mapping[str, Any]) -> set[Place]:
    return {(size, row, column) for size, row, column in plan["places"]}


def name_of(seal: StoredSeal) -> str:
    """'6f1c... (sealed 2026-11-25 03:50 UTC)'."""
    return f"{seal.digest[:SHOWN]} (sealed {time_of(seal)})"


def time_of(seal: StoredSeal) -> str:
    """'2026-11-25 03:50 UTC', by the clock of the machine that sealed."""
    return datetime.fromtimestamp(seal.sealed_at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def seal_lines(seal: StoredSeal) -> Iterator[str]:
    """What is sealed: digest, design, decision rule, power."""
    plan = seal.plan
    rule, runs, power = plan["rule"], plan["runs"], plan["power"]
    yield f"Sealed: {seal.digest}, sealed {time_of(seal)} by this machine's clock."
    drawn = sorted({run[4] for run in runs})  # of a full training set one, whatever was asked for
    named = plan["rows"], plan["columns"], plan["sizes"], drawn, plan["seeds"]
    rows, columns, sizes, subsets, seeds = (listed(map(str, names)) for names in named)
    yield f"Rows {rows}; columns {columns}; sizes {sizes}; subsets {subsets}; seeds {seeds}: {counted(len(runs), 'run')}."
    yield (
        f"Decision: each difference from {rule['against']}, {rule['test']}, over {'subsets, seeds and test items' if rule['items'] else 'subsets and seeds'}; "
        f"{100 * rule['level']:g} % by {rule['correction']} over {counted(rule['family'], 'comparison')}; equivalent within ±{in_points(rule['region'])} points."
    )
    if detects := sorted({in_points(each[2]) for each in power["detects"] if each[2] is not None}, key=float):
        sought = "" if power["wanted"] is None else f"; sought: {in_points(power['wanted'])}"
        yield f"Detects with {100 * power['probability']:g} % power, by the defaults of 'plan --detect': {' to '.join(dict.fromkeys((detects[0], detects[-1])))} points, by column and size{sought}."


def followed(
    grid: Grid,
    comparisons: Sequence[Difference],
    rule: Mapping[str, Any],
    runs: Sequence[Run],
    seals: Sequence[StoredSeal],
    began: Mapping[str, float],
) -> tuple[StoredSeal | None, set[int], str]:
    """The seal that most comparisons follow, the first of these; which of the comparisons do; and a sentence. `rule`: of the comparisons; `runs`: of the table as it is shown; `seals`: of its name; `began`: when the recorded
    runs did, by key."""
    shown = (each.digest[:SHOWN] for each in seals if not each.intact)
    damaged = "".join(f" Seal {digest} is not as it was sealed and counts for nothing." for digest in shown)
    titles = grid.resolved.titles
    ours = {(titles[e.row], e.row, e.task, e.size, e.subset, e.seed): e.stage for e in runs}

    def follow(seal: StoredSeal) -> set[int]:
        """Which comparisons have the sealed rule, and the sealed runs and no others, each begun after the seal."""
        plan, places = seal.plan, sealed_places(seal.plan)
        sealed = {tuple(run[:6]): run[6] for run in plan["runs"]}
        kept = {name for name, stage in ours.items() if name in sealed and _fits(sealed[name], stage)}
        kept = {name for name in kept if began.get(ours[name].key, 0.0) >= seal.sealed_at}
        others = {(row, task, size) for row, _, task, size, *_ in (sealed.keys() | ours.keys()) - kept}
        found = set()
        for k, c in enumerate(comparisons if rule.items() <= plan["rule"].items() else ()):
            size, column, rows = c["size"], c["column"], (c["row"], c["against"])
            spec, needed = _column(grid, column), {(size, row, column) for row in rows}
            runs_needed = itertools.product(rows, spec["tasks"], [size])
            if needed <= places and plan["columns"][column] == spec and others.isdisjoint(runs_needed):
                found.add(k)
        return found

    intact = [(seal, follow(seal)) for seal in seals if seal.intact]
    if not intact:
        said = "Exploratory: no plan of this table was sealed before its runs ('harness plan --seal')."
        return None, set(), f"{said}{damaged}"
    best, planned = max(intact, key=lambda each: len(each[1]))
    said = f"Planned: {len(planned)} of {counted(len(comparisons), 'comparison')}, by seal {name_of(best)}"
    if len(planned) < len(comparisons):
        said += "; the others have other runs or another rule, or runs from before it or not done"
    return best, planned, f"{said}.{damaged}"


def _fits(sealed: str | list[str], stage: Stage) -> bool:
    """By its key; in an earlier seal by the settings of its chain, or by name alone (''), where no key was known yet."""
    return sealed in ("", stage.key) if isinstance(sealed, str) else tuple(sealed) == stage.settings[: len(sealed)]
