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
from harness.statistics.power import POWER
from harness.store import StoredSeal
from harness.views.cells import Grid, Place
from harness.views.differences import LEVEL, Difference
from harness.views.power import resolutions
from harness.views.runs import columns_of, reference_of, run_places
from harness.wording import counted, in_points, listed

SHOWN = 12
"""Characters of a digest that are shown; any number that no other digest begins with will do."""
DIGITS = 4
"""Of what a design detects, on the metric's own scale: the same on every machine."""
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
        raise UserError(
            f"plan --seal: table {r.table.name} has one row here, and a comparison has two; name more with --methods."
        )
    detects = [[e["size"], e["column"], None if e["detects"] is None else round(e["detects"], DIGITS)] for e in shown]
    rule = rule_of(grid, named, region, items, True)
    return {
        "table": r.table.name,
        "rows": list(r.printed_rows),
        "columns": {column: _column(grid, column) for column in columns_of(grid)},
        "sizes": list(r.sizes),
        "subsets": list(r.subsets),
        "seeds": list(r.seeds),
        "places": sorted([size, row, column] for size, row, column in run_places(grid)),
        "rule": {**rule, "test": "crossed t, two-sided", "correction": "Holm", "family": family},
        "power": {"probability": POWER, "wanted": wanted, "detects": detects},
        "runs": [[r.titles[e.row], e.row, e.task, e.size, e.subset, e.seed, e.stage.key] for e in runs],
    }


def rule_of(grid: Grid, against: str, region: float, items: bool, collapsed: bool) -> dict[str, Any]:
    """What has to be as it was sealed. `collapsed`: with the runs that collapsed."""
    rule = {"against": against, "region": region, "items": items, "collapsed": collapsed, "level": LEVEL}
    return {**rule, "aggregate": grid.resolved.aggregate.model_dump(mode="json")}


def _column(grid: Grid, column: str) -> dict[str, Any]:
    """What is scored in a column, and the tasks whose runs are in it."""
    columns = grid.resolved.columns
    if column == AVERAGE:
        tasks = dict.fromkeys(columns[each].task for each in itertools.chain(*grid.resolved.average_over))
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
    rows, columns, sizes, subsets, seeds = (
        listed(map(str, names)) for names in (plan["rows"], plan["columns"], plan["sizes"], drawn, plan["seeds"])
    )
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
    best: StoredSeal | None = None
    planned: set[int] = set()
    for seal in (seal for seal in seals if seal.intact):
        same = all(seal.plan["rule"][name] == value for name, value in rule.items())
        mine = {k for k, c in enumerate(comparisons) if same and _is_planned(c, grid, runs, seal, began)}
        if best is None or len(mine) > len(planned):
            best, planned = seal, mine
    damaged = "".join(
        f" Seal {each.digest[:SHOWN]} is not as it was sealed and counts for nothing."
        for each in seals
        if not each.intact
    )
    if best is None:
        return (
            None,
            planned,
            f"Exploratory: no plan of this table was sealed before its runs ('harness plan --seal').{damaged}",
        )
    number = len(comparisons)
    rest = "; the others have other runs or another rule, or runs from before it or not done"
    said = f"Planned: {len(planned)} of {counted(number, 'comparison')}, by seal {name_of(best)}"
    return best, planned, f"{said}{rest if len(planned) < number else ''}.{damaged}"


def _is_planned(c: Difference, grid: Grid, runs: Sequence[Run], seal: StoredSeal, began: Mapping[str, float]) -> bool:
    """Whether the runs of a comparison are the sealed ones and no others, and began after the seal."""
    plan, rows, size, column = seal.plan, {c["row"], c["against"]}, c["size"], c["column"]
    if not {(size, row, column) for row in rows} <= sealed_places(plan):
        return False
    if (scored := plan["columns"][column]) != _column(grid, column):
        return False
    titles, tasks = grid.resolved.titles, scored["tasks"]
    sealed = {tuple(run[1:6]): run[6] for run in plan["runs"] if run[0] in rows and run[3] == size and run[2] in tasks}
    ours = {
        (run.row, run.task, run.size, run.subset, run.seed): run.stage
        for run in runs
        if titles[run.row] in rows and run.size == size and run.task in tasks
    }
    return sealed.keys() == ours.keys() and all(
        _fits(sealed[name], stage) and began.get(stage.key, 0.0) >= seal.sealed_at for name, stage in ours.items()
    )


def _fits(sealed: str | list[str], stage: Stage) -> bool:
    """By its key; in an earlier seal by the settings of its chain, or by name alone (''), where no key was known yet."""
    return sealed in ("", stage.key) if isinstance(sealed, str) else tuple(sealed) == stage.settings[: len(sealed)]
