"""Scores of another system on the examples of a table, as rows of the same table: read from a CSV with a line for each run and test set, whose sets of examples
are matched by their digests. They are marked, and never mixed with records: no store holds them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import UserError, unknown
from harness.planning.resolved import ResolvedTable
from harness.planning.row import ResolvedRow, Row, resolved_row
from harness.scores import Result
from harness.tasks.reading import existing_file, rows_of
from harness.wording import listed

COLUMNS = (
    *("system", "row", "task", "size", "subset", "seed", "evaluation", "metric", "test"),
    *("train_digest", "test_digest"),
)
"""Of the file; `seconds` may stand there too. `docs/results.md` documents them."""


@dataclass(frozen=True)
class OtherSystem:
    """`rows` after the table's own, and their `results`; `note`: a sentence about them for the caption."""

    rows: tuple[ResolvedRow, ...]
    results: tuple[Result, ...]
    note: str

    def joined(self, resolved: ResolvedTable) -> ResolvedTable:
        return replace(resolved, rows=(*resolved.rows, *self.rows))


@dataclass(frozen=True)
class Digests:
    """The digests of a table's training sets by (task, size, subset), and of its test sets by (task, evaluation)."""

    training: Mapping[tuple[str, int, int], str]
    tests: Mapping[tuple[str, str], str]


def read_other_system(path: Path, resolved: ResolvedTable, digests: Digests) -> OtherSystem:
    """The rows of a file. Raises UserError for a file that cannot be read or has nothing of this table, and where a line names an unknown place, other
    examples or another metric than the table's, or repeats a place."""
    if len(resolved.encoders) > 1:
        raise UserError(f"{path}: rows of another system stand beside those of one encoder; name it with --encoder.")
    rule = resolved.aggregate
    if rule.scores == "dev" or rule.center in ("best", "top_k"):
        raise UserError(
            f"{path}: table {resolved.table.name} judges its runs by scores on dev, which rows of another system do not have; take a table whose cells are "
            "means of test scores."
        )
    results: dict[tuple[object, ...], Result] = {}
    tasks: dict[str, list[str]] = {}
    systems: dict[str, str] = {}
    for place, line in _lines(path):
        result = _result(resolved, digests, place, line)
        if result is None:
            continue
        if systems.setdefault(result.row, line["system"]) != line["system"] or result.row in resolved.titles:
            raise UserError(f"{place}: a row '{result.row}' is there already; give this one another name.")
        where = tuple(getattr(result, name) for name in ("row", "column", "size", "subset", "seed"))
        if where in results:
            raise UserError(
                f"{place}: a second score of {result.row}, {result.column}, size {result.size}, subset {result.subset}, seed {result.seed}; leave one out."
            )
        results[where] = result
        if result.task not in tasks.setdefault(result.row, []):
            tasks[result.row].append(result.task)
    if not results:
        raise UserError(f"{path}: has no score at a task, size, subset and seed of this table; see 'harness plan'.")
    rows = tuple(
        resolved_row(Row(name=name, method=systems[name], tasks=tuple(found))) for name, found in tasks.items()
    )
    note = f"Not trained by harness: {listed([*tasks])}, from {path.name}: scores of another system on the same examples (by their digests), without records."
    return OtherSystem(rows, tuple(results.values()), note)


def _lines(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Each line with its place in the file."""
    for number, line in rows_of(existing_file(path, "--other-system", (".csv",))):
        if missing := [name for name in COLUMNS if name not in line]:
            raise UserError(f"{path}: has no column {listed(missing)}; its first line should be {','.join(COLUMNS)}.")
        yield f"{path}, line {number}", line


def _result(resolved: ResolvedTable, digests: Digests, place: str, line: Mapping[str, str]) -> Result | None:
    """The score of a line; None of one that filters leave out."""
    size, subset, seed = (_whole(place, line, name) for name in ("size", "subset", "seed"))
    task, evaluation = line["task"], line["evaluation"]
    known = {column.task for column in resolved.table.columns.values()} | {*resolved.tasks}
    if task not in known:
        raise unknown("task", task, known, place)
    columns = {name: c for name, c in resolved.columns.items() if (c.task, c.evaluation) == (task, evaluation)}
    if (subset, seed) not in resolved.replicates_at(size) or size not in resolved.sizes or task not in resolved.tasks:
        return None
    if not columns:
        raise unknown(
            "evaluation", evaluation, {c.evaluation for c in resolved.columns.values() if c.task == task}, place
        )
    name = next((name for name, c in columns.items() if c.metric == line["metric"]), None)
    if name is None:
        raise UserError(
            f"{place}: metric '{line['metric']}' is not that of {task}; the table has {listed(sorted({c.metric for c in columns.values()}))}."
        )
    for what, mine, theirs in (
        ("training", digests.training.get((task, size, subset)), line["train_digest"]),
        ("test", digests.tests.get((task, evaluation)), line["test_digest"]),
    ):
        if mine != theirs:
            raise UserError(
                f"{place}: was {'trained' if what == 'training' else 'tested'} on other examples than this table's {what} set (digest {theirs[:10] or 'missing'}, here "
                f"{(mine or 'unknown')[:10]}); take the sets of harness.plan(...).rows."
            )
    if not line["system"].strip() or not line["row"].strip():
        raise UserError(f"{place}: names no system or no row; write both.")
    seconds = _number(place, line, "seconds") if line.get("seconds") else None
    return Result(
        row=f"{line['row'].strip()} [{line['system'].strip()}]",
        method=line["system"].strip(),
        task=task,
        column=name,
        evaluation=evaluation,
        size=size,
        subset=subset,
        seed=seed,
        metric=line["metric"],
        test=_number(place, line, "test"),
        seconds=seconds,
    )


def _whole(place: str, line: Mapping[str, str], name: str) -> int:
    try:
        return int(line[name])
    except ValueError:
        raise UserError(f"{place}: {name} '{line[name]}' is not a whole number.") from None


def _number(place: str, line: Mapping[str, str], name: str) -> float:
    """A finite number; of a score on the metric's own scale."""
    try:
        number = float(line[name])
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or (name == "test" and abs(number) > 1):
        scale = ", on the metric's own scale: 1 is 100 %" if name == "test" else ""
        raise UserError(f"{place}: {name} '{line[name]}' is not a number{scale}.")
    return number
