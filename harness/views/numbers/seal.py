"""A sealed comparison: what was planned before the first run, and in what a comparison departs from it.

Pure. `docs/statistics.md` says what a seal proves and what it does not.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from harness.errors import UserError
from harness.planning.aggregation import AVERAGE
from harness.specs import Run, Stage
from harness.statistics.power import POWER
from harness.store import StoredSeal
from harness.views.cells import Grid
from harness.views.numbers.comparison import LEVEL, Comparison, Comparisons, Place, columns_of, reference_of, run_places
from harness.views.numbers.power import resolutions
from harness.wording import counted, listed, some_of

SHOWN = 12
"""Characters of a digest that are shown; any number that no other digest begins with will do."""
DIGITS = 4
"""Of what a design detects, on the metric's own scale: the same on every machine."""

Member = tuple[str, str, int, int, int]
"""(row that is run, task, size, subset, seed)."""


@dataclass(frozen=True)
class Recorded:
    """Of a run: how it ended, and when it began (Unix time of its record less the seconds that its last stage took). One whose earlier stage failed or diverged
    ended with that."""

    status: str
    began_at: float


def plan_of(
    grid: Grid,
    runs: Sequence[Run],
    unknown: Iterable[str],
    against: str,
    region: float,
    items: bool,
    wanted: float | None,
) -> dict[str, Any]:
    """What is sealed, as JSON: rows, columns, design, the key of every run, the decision rule and its power. `unknown`: keys that are provisional, whose runs
    are sealed by their settings. `region`, `wanted`: on the metric's own scale. Raises UserError where there is nothing to compare."""
    r = grid.resolved
    named, _ = reference_of(r, against)
    shown, provisional = resolutions(grid, against), {*unknown}
    if len(r.printed_rows) < 2:
        raise UserError(
            f"plan --seal: table {r.table.name} has one row here, and a comparison has two; name more with --methods."
        )
    return {
        "table": r.table.name,
        "rows": list(r.printed_rows),
        "columns": {column: _column(grid, column) for column in columns_of(grid)},
        "sizes": list(r.sizes),
        "subsets": list(r.subsets),
        "seeds": list(r.seeds),
        "places": sorted([size, row, column] for size, row, column in run_places(grid)),
        "rule": {
            **rule_of(named, region, items, True),
            "level": LEVEL,
            "test": "crossed t, two-sided",
            "correction": "Holm",
            "family": shown.comparisons,
            "aggregate": r.aggregate.model_dump(mode="json"),
        },
        "power": {
            "probability": POWER,
            "wanted": wanted,
            "detects": [
                [each.size, each.column, None if each.detects is None else round(each.detects, DIGITS)]
                for each in shown.by_column
            ],
        },
        "runs": [
            [
                r.titles[run.row],
                *_member(run),
                [*run.stage.settings] if run.stage.key in provisional else run.stage.key,
            ]
            for run in runs
        ],
    }


def rule_of(against: str, region: float, items: bool, collapsed: bool) -> dict[str, Any]:
    """The part of a decision rule that the flags of `compare` choose."""
    return {"against": against, "region": region, "items": items, "collapsed": collapsed}


def _column(grid: Grid, column: str) -> dict[str, Any]:
    """What is scored in a column, and the tasks whose runs are in it."""
    columns = grid.resolved.columns
    if column == AVERAGE:
        tasks = dict.fromkeys(columns[each].task for each in itertools.chain(*grid.resolved.average_over))
        return {"metric": AVERAGE, "tasks": list(tasks)}
    spec = columns[column]
    return {"metric": spec.metric, "evaluation": spec.evaluation, "tasks": [spec.task]}


def _member(run: Run) -> Member:
    return run.row, run.task, run.size, run.subset, run.seed


@dataclass(frozen=True)
class SealedRun:
    """A run of a sealed plan: its printed row, and its key, or where that was provisional its settings (`Stage.settings`), none in a seal of an earlier version."""

    title: str
    key: str
    settings: tuple[str, ...] = ()

    def fits(self, stage: Stage) -> bool:
        """Whether this is the stage that was sealed, as far as the seal knows it."""
        return self.key == stage.key if self.key else self.settings == stage.settings[: len(self.settings)]


def sealed_runs(plan: Mapping[str, Any]) -> dict[Member, SealedRun]:
    """The runs of a sealed plan."""
    return {
        (row, task, size, subset, seed): SealedRun(title, key)
        if isinstance(key, str)
        else SealedRun(title, "", tuple(key))
        for title, row, task, size, subset, seed, key in plan["runs"]
    }


def sealed_places(plan: Mapping[str, Any]) -> set[Place]:
    return {(size, row, column) for size, row, column in plan["places"]}


def name_of(seal: StoredSeal) -> str:
    """'6f1c... (sealed 2026-11-25 03:50 UTC)'."""
    return f"{seal.digest[:SHOWN]} (sealed {time_of(seal)})"


def time_of(seal: StoredSeal) -> str:
    """'2026-11-25 03:50 UTC', by the clock of the machine that sealed."""
    return datetime.fromtimestamp(seal.sealed_at, UTC).strftime("%Y-%m-%d %H:%M UTC")


# --------------------------------------------------------------------------------------------------------- departures


def against_the_plan(
    comparisons: Comparisons,
    collapsed: bool,
    runs: Sequence[Run],
    seals: Sequence[StoredSeal],
    recorded: Mapping[str, Recorded],
) -> Comparisons:
    """Each comparison planned or exploratory, with its departures from the plan. `runs`: of the table as it is shown; `seals`: of its name, the first one
    first; `recorded`: by the key of a run. Of several seals that one counts of which the most comparisons are planned, of these the first."""
    intact = [seal for seal in seals if seal.intact]
    damaged = [
        f"Seal {seal.digest[:SHOWN]} is not as it was sealed and counts for nothing."
        for seal in seals
        if not seal.intact
    ]
    if not intact:
        none = "Exploratory: no plan of this table was sealed before its runs ('harness plan --seal')."
        return replace(comparisons, plan=(none, *damaged))
    judged = [
        [_judged(c, comparisons, collapsed, runs, seal, recorded) for c in comparisons.comparisons] for seal in intact
    ]
    followed = max(range(len(intact)), key=lambda k: (sum(c.planned for c in judged[k]), -k))
    found, seal = judged[followed], intact[followed]
    others = [each for each in intact if each is not seal]
    lines = [*_summary(found, seal), *_table_departures(comparisons, seal), *damaged]
    if others:
        lines.append(
            f"Not the only seal of this table in the store: {some_of([*map(name_of, others)], 3)}. Who seals several plans and shows one has chosen."
        )
    return replace(comparisons, comparisons=tuple(found), seal=seal.digest, plan=tuple(lines))


def _judged(
    c: Comparison,
    comparisons: Comparisons,
    collapsed: bool,
    runs: Sequence[Run],
    seal: StoredSeal,
    recorded: Mapping[str, Recorded],
) -> Comparison:
    """`planned` where nothing departs but runs that failed; `departures`: clauses."""
    grid, plan = comparisons.grid, seal.plan
    if not {(c.size, c.row, c.column), (c.size, c.against, c.column)} <= sealed_places(plan):
        return replace(c, planned=False, departures=("the seal does not have it",))
    rows, tasks, titles = {c.row, c.against}, plan["columns"][c.column]["tasks"], grid.resolved.titles
    ours = {
        _member(run): run.stage for run in runs if titles[run.row] in rows and run.size == c.size and run.task in tasks
    }
    sealed = {
        member: run
        for member, run in sealed_runs(plan).items()
        if run.title in rows and member[2] == c.size and member[1] in tasks
    }
    both = [member for member in ours if member in sealed]
    ended = [recorded[ours[member].key] for member in both if ours[member].key in recorded]
    why = [
        *_rule_departures(comparisons, collapsed, plan),
        *(["what is scored in the column differs"] if _column(grid, c.column) != plan["columns"][c.column] else []),
        *_counted(len(ours) - len(both), "run", "beyond the seal"),
        *_counted(len(sealed) - len(both), "sealed run", "left out"),
        *_counted(sum(not sealed[m].fits(ours[m]) for m in both), "run", "of other data, settings or code than sealed"),
        *_counted(sum(each.began_at < seal.sealed_at for each in ended), "run", "begun before the seal"),
        *_counted(len(both) - len(ended), "run", "not recorded yet"),
    ]
    beside = [
        *_counted(sum(each.status != "done" for each in ended), "run", "failed or diverged"),
        *_counted(
            sum(not (sealed[m].key or sealed[m].settings) for m in both),
            "run",
            "sealed by name alone, settings not known",
        ),
    ]
    return replace(c, planned=not why, departures=(*why, *beside))


def _counted(number: int, noun: str, what: str) -> list[str]:
    return [f"{counted(number, noun)} {what}"] if number else []


def _rule_departures(comparisons: Comparisons, collapsed: bool, plan: Mapping[str, Any]) -> list[str]:
    sealed = plan["rule"]
    ours = rule_of(comparisons.against, comparisons.region, comparisons.items, collapsed)
    ours |= {"aggregate": comparisons.grid.resolved.aggregate.model_dump(mode="json"), "level": LEVEL}
    names = {
        "against": "the row that is compared with",
        "region": "the region of equivalence",
        "items": "whether test items are a factor",
        "collapsed": "whether collapsed runs count",
        "aggregate": "the aggregation rule",
        "level": "the level",
    }
    return [f"{words} differs from the seal's" for name, words in names.items() if ours[name] != sealed[name]]


def _summary(comparisons: Sequence[Comparison], seal: StoredSeal) -> list[str]:
    """How many comparisons are planned, and why the others are not."""
    planned = sum(c.planned for c in comparisons)
    lines = [f"Planned: {planned} of {counted(len(comparisons), 'comparison')}, by seal {name_of(seal)}."]
    for word, part in (
        ("Exploratory", [c for c in comparisons if not c.planned]),
        ("Departures", [c for c in comparisons if c.planned]),
    ):
        reasons = Counter("; ".join(c.departures) for c in part if c.departures)
        lines += [f"{word}: {counted(number, 'comparison')}: {reason}." for reason, number in reasons.items()]
    return lines


def _table_departures(comparisons: Comparisons, seal: StoredSeal) -> list[str]:
    """What the seal has and this view leaves out, and a family of another size."""
    r, lines = comparisons.grid.resolved, []
    here: dict[str, Sequence[object]] = {
        "rows": [*r.printed_rows],
        "columns": [*columns_of(comparisons.grid)],
        "sizes": [*r.sizes],
    }
    left_out = [
        f"{name} {listed(missing)}"
        for name, shown in here.items()
        if (missing := [str(each) for each in seal.plan[name] if each not in shown])
    ]
    if left_out:
        lines.append(f"Sealed and not shown here: {'; '.join(left_out)}.")
    if (family := seal.plan["rule"]["family"]) != comparisons.family:
        lines.append(f"p is adjusted for {counted(comparisons.family, 'comparison')}; the seal has {family:,}.")
    return lines
