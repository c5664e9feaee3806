"""Scores of another system on the examples of a table, as rows of the same table: read from a CSV with a line for each run and test set, whose sets of examples
are matched by their digests. They are marked, and never mixed with records: no store holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from harness.errors import UserError, unknown
from harness.planning.resolved import ResolvedRow, ResolvedTable
from harness.planning.table import Row
from harness.scores import Result
from harness.tasks.reading import existing_file, rows_of
from harness.wording import listed

Name = Annotated[str, Field(min_length=1)]


class Line(BaseModel):
    """Of the file, whose columns `docs/results.md` documents; `seconds` may be left out."""

    model_config = ConfigDict(str_strip_whitespace=True)

    system: Name
    row: Name
    task: str
    size: int
    subset: int
    seed: int
    evaluation: str
    metric: str
    test: Annotated[FiniteFloat, Field(ge=-1, le=1)]
    train_digest: str
    test_digest: str
    seconds: FiniteFloat | None = None


COLUMNS = tuple(name for name, of in Line.model_fields.items() if of.is_required())


@dataclass(frozen=True)
class OtherSystem:
    """`rows` after the table's own, and their `results`; `note`: a sentence about them for the caption."""

    rows: tuple[ResolvedRow, ...]
    results: tuple[Result, ...]
    note: str


Digests = Mapping[tuple[str, ...], str]
"""Of a table's training sets by (task, size, subset) as texts, and of its test sets by (task, evaluation)."""


def read_other_system(path: Path, resolved: ResolvedTable, digests: Digests) -> OtherSystem:
    """The rows of a file. Raises UserError for a file that cannot be read or has nothing of this table, and where a line names an unknown place, other
    examples or another metric than the table's, or repeats a place."""
    if len(resolved.encoders) > 1:
        raise UserError(f"{path}: rows of another system stand beside those of one encoder; name it with --encoder.")
    rule = resolved.aggregate
    if rule.scores == "dev" or rule.center in ("best", "top_k"):
        raise UserError(f"{path}: {resolved.table.name} has cells by scores on dev; take a table of means on test.")
    results: dict[str, Result] = {}
    for number, texts in rows_of(existing_file(path, "--other-system", (".csv",))):
        place = f"{path}, line {number}"
        if missing := [name for name in COLUMNS if name not in texts]:
            raise UserError(f"{path}: has no column {listed(missing)}; its first line should be {','.join(COLUMNS)}.")
        try:
            line = Line.model_validate({name: text for name, text in texts.items() if text or name in COLUMNS})
        except ValidationError as error:
            ((name, *_), why) = error.errors()[0]["loc"], error.errors()[0]["msg"]
            wrong = f"{place}, column {name}: '{texts[str(name)]}' is wrong: {why}"
            raise UserError(f"{wrong} (a score of 1 is 100 %).") from None
        if (result := _result(resolved, digests, place, line)) is None:
            continue
        at = f"{result.row}, {result.column}, size {result.size}, subset {result.subset}, seed {result.seed}"
        if result.row in resolved.titles or results.setdefault(at, result) is not result:
            raise UserError(f"{place}: there is a score of {at} already; leave one out, or give the row another name.")
    if not results:
        raise UserError(f"{path}: has no score at a task, size, subset and seed of this table; see 'harness plan'.")
    tasks: dict[tuple[str, str], dict[str, None]] = {}
    for each in results.values():
        tasks.setdefault((each.row, each.method), {})[each.task] = None
    rows = (ResolvedRow.of(Row(name=name, method=method, tasks=tuple(of))) for (name, method), of in tasks.items())
    names = listed(name for name, _ in tasks)
    note = f"Not trained by harness: {names}, from {path.name}: scores of another system on the same examples (by their digests), without records."
    return OtherSystem(tuple(rows), tuple(results.values()), note)


def _result(resolved: ResolvedTable, digests: Digests, place: str, line: Line) -> Result | None:
    """The score of a line; None of one that filters leave out."""
    every = {**resolved.table.columns, **resolved.columns}
    columns = {(of.task, of.evaluation, of.metric): name for name, of in every.items()}
    if (found := (line.task, line.evaluation, line.metric)) not in columns:
        raise unknown("score", " ".join(found), map(" ".join, columns), place)
    name, size, replicate = columns[found], line.size, (line.subset, line.seed)
    if name not in resolved.columns or size not in resolved.sizes or replicate not in resolved.replicates_at(size):
        return None
    for what, of, theirs in (
        ("trained", (line.task, size, line.subset), line.train_digest),
        ("tested", found[:2], line.test_digest),
    ):
        if (mine := digests.get(tuple(map(str, of)))) != theirs:
            differ = f"digest {theirs[:10] or 'missing'}, here {(mine or 'unknown')[:10]}"
            raise UserError(f"{place}: was {what} on other examples ({differ}); take those of harness.plan(...).rows.")
    same = line.model_dump(include={"task", "evaluation", "size", "subset", "seed", "metric", "test", "seconds"})
    return Result(row=f"{line.row} [{line.system}]", method=line.system, column=name, **same)
