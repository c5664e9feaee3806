"""A published file of results held against a store: its benches are planned again, and the file is compared with what plan and records give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.commands.prepare import Prepared, prepare_recorded
from harness.commands.seal import began
from harness.commands.stored import check_exists
from harness.errors import UserError, first_line
from harness.planning.request import from_json
from harness.scores import PLACE, RESULT_DTYPES, results_of
from harness.specs import Stage
from harness.store import DEFAULT_URL, Store
from harness.store.published import is_published
from harness.views.seal import SHOWN, name_of
from harness.wording import counted, examples

if TYPE_CHECKING:
    import pandas as pd

RESULTS_FILE = "results.csv"
"""That of a published folder."""
RUN = ["size", "row", "task", "subset", "seed"]
SCORE = [*PLACE, "metric"]
NEEDED = (*SCORE, "task", "test", "status", "key")
"""Columns without which a row names no run, or claims nothing of it."""


@dataclass
class Verified:
    """What came out. `results`: the rows of the file; `benches`: those that they were compared with. `differing`: values that differ, and `problems`: all else that is wrong, a sentence
    each; `unchecked`: what was not compared, with its places; `seals`: a sentence for each seal of the tables."""

    path: Path
    store: Store
    results: pd.DataFrame
    benches: list[Prepared]
    differing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unchecked: dict[str, list[str]] = field(default_factory=dict)
    seals: list[str] = field(default_factory=list)

    @property
    def keys(self) -> list[str]:
        return list(dict.fromkeys(self.results["key"]))


def read_results(path: Path) -> pd.DataFrame:
    """The rows of a file of results, or of that in a folder. Raises UserError for one that cannot be read or is not of the schema."""
    import pandas as pd
    from pyarrow import ArrowException

    path = path / RESULTS_FILE if path.is_dir() else path
    try:
        if path.suffix == ".csv":
            frame = pd.read_csv(path, dtype=RESULT_DTYPES, keep_default_na=False, na_values="", encoding="utf-8-sig")
            if not isinstance(frame.index, pd.RangeIndex):
                raise ValueError("it has rows with more values than columns")
        elif path.suffix == ".parquet":
            frame = pd.read_parquet(path)
        else:
            raise ValueError("it should be a .csv or .parquet file")
        frame = frame.astype({name: kind for name, kind in RESULT_DTYPES.items() if name in frame})
        if missing := [name for name in NEEDED if name not in frame or (name != "test" and frame[name].isna().any())]:
            raise ValueError(f"it has no column {', '.join(missing)}, or rows without a value there")
        if frame.empty:
            raise ValueError("it has no row; its bench had no finished run")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or first_line(error)}).") from None
    except (ValueError, TypeError, KeyError, OverflowError, ArrowException) as error:
        raise UserError(
            f"{path}: is not a file of results, as 'harness report --format csv' writes it ({first_line(error).rstrip('.')})."
        ) from None
    return frame


def verify(path: Path, url: str | None, seal: str | None = None) -> Verified:
    """Compare a file with what the plans of its benches and the records give, those of a published folder by default with its own; and the order of
    seals and runs. `seal`: the digest of one that the store has to hold. Raises UserError for a file that is not one of results, and without records."""
    if seal is not None and len(seal) < SHOWN:
        raise UserError(
            f"verify: --seal {seal} has fewer than {SHOWN} characters; give the digest as it was published."
        )
    results = read_results(path)
    store = Store(url or (str(path) if is_published(str(path)) else DEFAULT_URL), create=False)
    if url:
        check_exists(store)
    verified = Verified(path, store, results, [])
    if not store.statuses(verified.keys):
        raise UserError(
            f"{path}: none of its {counted(len(verified.keys), 'record')} is in {store.shown}, and without records nothing can be checked; take "
            "them over with 'harness merge RECORDS', a file or an URL, or name their store with --store."
        )
    reason = _plan(verified)
    _compare(verified, reason)
    _check_seals(verified, seal)
    columns = [str(name) for name in results if name not in RESULT_DTYPES]
    columns += [f"{name} (missing)" for name in RESULT_DTYPES if name not in results]
    if columns:
        verified.unchecked[f"columns of the file: {', '.join(columns)}"] = []
    return verified


def _plan(verified: Verified) -> str:
    """Plan the benches again that have the runs of the file: the one with most of them first, of these the smallest. Why some cannot be planned; '' where all can."""
    store, keys = verified.store, {*verified.keys}
    runs = {(*row,) for row in verified.results[["key", "task", "size", "subset", "seed"]].itertuples(index=False)}
    tables: dict[str, set[str]] = {}
    for label in store.labels_of(keys):
        if tuple(label[name] for name in ("key", "task", "size", "subset", "seed")) in runs:
            tables.setdefault(label["table"], set()).add(label["key"])
    found = [(needed & tables.get(each.table, set()), total, each) for each, needed, total in store.requests_for(keys)]
    found = [each for each in found if each[0] and not each[2].study]
    found.sort(key=lambda each: (-len(each[0]), each[1]))
    covered: set[str] = set()
    reason = "" if found else f"{store.shown} remembers no bench that has these runs"
    for mine, _, stored in found:
        if mine <= covered:
            continue
        covered |= mine
        try:
            prepared = prepare_recorded(replace(from_json(stored.values), store=store.url), texts=True)
        except UserError as error:
            reason = str(error).rstrip(".")
            continue
        if prepared.plan.unresolved:
            reason = f"{', '.join(prepared.plan.unresolved[:3])} is not at hand"
            continue
        verified.benches.append(prepared)
        if prepared.unread:
            verified.unchecked[f"the data behind the keys, and labels ({prepared.unread})"] = []
    return reason


def place_of(row: Mapping[str, Any]) -> str:
    """The run of a row, or of a label, for people."""
    metric = f", {row['metric']}" if "metric" in row else ""
    return f"{row['row']}, {row.get('column', row['task'])}, {examples(row['size'])}, subset {row['subset']}, seed {row['seed']}{metric}"


def _compare(verified: Verified, reason: str) -> None:
    """Each row of the file with the row that plan and records give at its place, and the runs that the file leaves out."""
    import pandas as pd

    store, written = verified.store, verified.results.assign(number=range(1, len(verified.results) + 1))
    repeated = written[written.duplicated(SCORE)]
    verified.problems += [f"row {row['number']} ({place_of(row)}) repeats an earlier one" for row in _rows(repeated)]
    derived = [results_of(prepared.plan, store) for prepared in verified.benches]
    again = pd.concat(derived or [verified.results[:0]], ignore_index=True).drop_duplicates(SCORE)
    both = written.drop_duplicates(SCORE).merge(again, "outer", SCORE, suffixes=("", " again"), indicator="side")
    matched = both[both["side"] == "both"].sort_values("number")
    for name in (name for name in RESULT_DTYPES if f"{name} again" in both):
        differs = ~_same(matched[name], matched[f"{name} again"])
        for row in _rows(matched[differs]):
            values = " in the file and ".join(
                "missing" if pd.isna(row[n]) else repr(row[n]) for n in (name, f"{name} again")
            )
            verified.differing.append(f"row {row['number']} ({place_of(row)}): {name} is {values} by the records")
    recorded = store.statuses(verified.keys)
    for row in _rows(both[both["side"] == "left_only"].sort_values("number")):
        words = f"row {row['number']} ({place_of(row)})"
        if row["key"] not in recorded:
            verified.problems.append(f"{words}: the store has no record {row['key'][:12]}")
        elif reason:
            verified.unchecked.setdefault(f"rows whose bench cannot be planned here ({reason})", []).append(words)
        else:
            verified.problems.append(f"{words}: the bench has no such run and score")
    _compare_runs(verified, again)


def _compare_runs(verified: Verified, again: pd.DataFrame) -> None:
    """What the benches plan and the file leaves out, and stages before its runs without a record. One that is recorded, of the subsets and seeds of the file, is left out wrongly; others make
    the file a part of its bench."""
    results, store = verified.results, verified.store
    runs, design = {*results[RUN].itertuples(index=False, name=None)}, [{*results[name]} for name in RUN]
    scores = {*results[SCORE].itertuples(index=False, name=None)}
    for row in _rows(again):
        if tuple(row[name] for name in RUN) in runs and tuple(row[name] for name in SCORE) not in scores:
            verified.problems.append(f"the file leaves out {place_of(row)}")
    for plan in (prepared.plan for prepared in verified.benches):
        known, of_bench = store.statuses(plan.stages), f"of the {len(plan.runs):,} runs of the bench"
        earlier: dict[str, Stage] = {}
        for run in plan.runs:
            place = tuple(getattr(run, name) for name in RUN)
            if place in runs:
                earlier |= {stage.key: stage for stage in run.stage.chain[:-1] if stage.key not in known}
            elif run.stage.key not in known:
                what = f"{of_bench}, which have no record (never trained, or deleted)"
                verified.unchecked.setdefault(what, []).append(place_of(vars(run)))
            elif all(value in values for value, values in zip(place, design, strict=True)):
                verified.problems.append(f"the file leaves out the run {place_of(vars(run))}, {run.stage.key[:12]}")
            else:
                verified.unchecked.setdefault(f"{of_bench}, which the file leaves out", []).append(place_of(vars(run)))
        verified.problems += [
            f"the {stage.phase} stage before runs of the file: the store has no record {key[:12]}"
            for key, stage in earlier.items()
        ]


def _rows(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for row in frame.to_dict("records"):
        yield {str(name): int(value) if name == "number" else value for name, value in row.items()}


def _same(one: pd.Series, other: pd.Series) -> Any:
    """Where values are equal: numbers to 12 digits, which any sum of a metric keeps on any machine."""
    import numpy as np

    if RESULT_DTYPES[str(one.name)] == "float64":
        return np.isclose(one.astype(float), other.astype(float), rtol=1e-12, atol=1e-15, equal_nan=True)
    return ((one == other).fillna(False) | (one.isna() & other.isna())).to_numpy(bool)


def _check_seals(verified: Verified, wanted: str | None) -> None:
    """Whether each seal of the tables is as it was sealed and older than its runs, and the one that is `wanted` is there with runs of the file."""
    store, keys = verified.store, {*verified.keys}
    tables = dict.fromkeys(label["table"] for label in store.labels_of(keys))
    seals = [seal for table in tables for seal in store.seals(table)]
    if wanted and not any(seal.digest.startswith(wanted) for seal in seals):
        verified.problems.append(f"the store has no seal {wanted} of this table")
    for seal in seals:
        if not seal.intact:
            verified.problems.append(f"seal {seal.digest[:SHOWN]} is not as it was sealed")
            continue
        runs = [
            (row, task, size, subset, seed, str(key)) for _, row, task, size, subset, seed, key in seal.plan["runs"]
        ]
        starts, there = began(store, {run[-1] for run in runs}), len(keys & {run[-1] for run in runs})
        early = [run for run in runs if starts.get(run[-1], seal.sealed_at) < seal.sealed_at]
        verified.seals.append(
            f"Seal {name_of(seal)}: {counted(len(runs), 'run')} sealed, {sum(run[-1] in starts for run in runs) - len(early):,} begun after it, {len(early):,} before it; "
            f"{there:,} of the {counted(len(keys), 'run')} of the file are in it."
        )
        for *run, key in early:
            place = place_of(dict(zip(("row", "task", "size", "subset", "seed"), run, strict=True)))
            minutes = (seal.sealed_at - starts[key]) / 60
            verified.problems.append(f"the run {place} began {minutes:,.1f} minutes before seal {seal.digest[:SHOWN]}")
        if wanted and seal.digest.startswith(wanted) and not there:
            verified.problems.append(f"no run of the file is in seal {seal.digest[:SHOWN]}")
