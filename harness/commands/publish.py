"""A table published: its results, its printed form, and the records behind them in a folder that commands read as a store. Such a file of results held against
a store: its benches are planned again and the file is compared with what plan and records give; and some of its stages are trained again in a scratch place. The
store and its weights are only read."""

from __future__ import annotations

import json
import random
import shlex
from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from harness.commands.prepare import Prepared, prepare, prepare_recorded, storage_of
from harness.commands.recorded import check_exists, command, last_bench
from harness.commands.train import Show
from harness.commands.trained import differences, trained_again
from harness.commands.views import caption_of, grid_of
from harness.errors import UserError, first_line
from harness.machine import on_cpu
from harness.paths import replace_file, without_folders
from harness.planning.request import from_json
from harness.scores import PLACE, RESULT_DTYPES, results_of
from harness.specs import Record, Stage
from harness.store import DEFAULT_URL, Store
from harness.store.exchange import Labels, publish_records
from harness.store.published import RECORDS_FILE, UNLABELLED_FILE, records_of
from harness.views.seal import SHOWN, name_of, time_of
from harness.views.settings import settings_view
from harness.views.table import notes_view, results_view
from harness.wording import counted, examples, listed

RESULTS_FILE, TABLE_FILE = "results.csv", "README.md"
FILES = (RESULTS_FILE, TABLE_FILE, RECORDS_FILE, UNLABELLED_FILE)


class Published(NamedTuple):
    """What was written. `complete`: no run of the table is missing."""

    folder: Path
    records: int
    rows: int
    complete: bool


def publish(prepared: Prepared, folder: Path, *, gold: bool = True) -> Published:
    """Write a folder of a table, or write it again with what the store has gained. No texts, no weights, and of paths the last part alone.
    `gold`: with the gold labels of dev and test, or without: `open_other` takes them from the data.

    Raises UserError where nothing is recorded, where the folder holds anything else, and where it holds records that the store lacks or the plan does not
    make.
    """
    plan, store, table = prepared.plan, prepared.store, prepared.resolved.table.name
    recorded = store.statuses(prepared.plan.stages).keys()
    if not recorded:
        raise UserError(f"publish: none of the {counted(len(plan.stages), 'stage')} is recorded in {store.shown}.")
    _check_folder(folder, store, recorded)
    grid = grid_of(prepared)
    caption = caption_of(prepared)
    request = replace(prepared.request, preset=prepared.resolved.preset, store=None)
    made = [f"Made by `{without_folders(command(request))}`."]
    made += [f"Plan sealed: {each.digest}, {time_of(each)}." for each in store.seals(table)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # they start from the current folder of whoever reads it
        values = json.loads(without_folders(json.dumps(dict(prepared.kept.values), ensure_ascii=False)))
        kept = replace(prepared.kept, values=values | {"folder": "."})
        count = publish_records(store, kept, plan.stages, folder, prepared.snapshot, gold)
        shown = results_view(grid, caption)
        replace_file(folder / RESULTS_FILE, shown.written("csv"))
        views = (shown, notes_view(grid, caption), settings_view(grid.resolved))
        replace_file(folder / TABLE_FILE, "\n".join([*(str(view.written("md")) for view in views), *made, ""]))
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}).") from None
    return Published(folder, count, len(grid.results), grid.complete)


def _check_folder(folder: Path, store: Store, recorded: Set[str]) -> None:
    """Raises UserError for a folder that cannot be read or holds anything else, and where records in it would be lost. `recorded`: what is to be published."""
    try:
        names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise UserError(f"{folder}: is no folder that can be read ({error.strerror}).") from None
    if others := [name for name in names if name not in FILES and not name.startswith(".")]:  # of the Finder, of git
        raise UserError(f"{folder}: holds {listed(others[:3])}, which is of no published table; name another folder.")
    # with other flags, without texts that runs depend on, or of a store that never had them
    for name in {RECORDS_FILE, UNLABELLED_FILE}.intersection(names):
        if lost := Store(str(folder / name), create=False).keys() - recorded:
            why = f"{counted(len(lost), 'record')} that would be lost, since {store.shown} lacks them or this plan does not make them"
            fix = f"publish with the flags in its {TABLE_FILE} after 'harness merge {shlex.quote(str(folder))}'"
            raise UserError(f"{folder}: holds {why}; {fix}, or into another folder.")


def open_other(name: str, data: str | None = None) -> tuple[Store, Labels | None]:
    """A store, a published folder, or the file of records of one (a path or an URL), for `harness.store.merge`, with the labels of one that was published
    without them. `data`: the folder with the data of such a one; None: where its bench had them. Raises UserError where it is not there, and where the data are not the rows that
    it predicts."""
    records = records_of(name)
    store = Store(records or name, create=False)
    check_exists(store)
    return store, _labels_of(store, name, data) if UNLABELLED_FILE in records else None


def _labels_of(there: Store, shown: str, data: str | None) -> Labels:
    stored = last_bench(there)
    if stored is None:
        raise UserError(f"{shown}: names no bench; publish it again.")
    request = replace(stored[1], store=there.url, data=data or stored[1].data)
    library = prepare(request, train=False).plan.library
    for stage in there.stages(there.keys()).values():
        for rows in (stage.data.dev, *stage.data.tests):
            if rows is not None and rows.digest not in library:
                lost = f"{rows.name} (digest {rows.digest[:10]}), which {request.data or 'its data'} does not hold"
                raise UserError(f"{shown}: predicts {lost}; name the data that it was made from with --data.")
    return lambda digest: library[digest].gold


RUN = ["size", "row", "task", "subset", "seed"]
SCORE = [*PLACE, "metric"]
HARDWARE = ("device", "kernels", "torch", "threads", "workers", "micro_batch")
"""What a record's provenance says of the kind of hardware: where all are equal, numbers are bit-identical."""


@dataclass
class Verified:
    """What came out. `results`: the rows of the file; `benches`: those that they were compared with. `differing`: values that differ, and `problems`: all else that is wrong, a sentence
    each; `unchecked`: what was not compared, with its places; `seals`: a sentence for each seal of the tables."""

    path: Path
    store: Store
    results: pd.DataFrame
    benches: list[Prepared] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unchecked: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    seals: list[str] = field(default_factory=list)

    @property
    def keys(self) -> list[str]:
        return list(dict.fromkeys(self.results["key"]))


def read_results(path: Path) -> pd.DataFrame:
    """The rows of a file of results, or of that in a folder, by the schema. Raises UserError for another file."""
    from pyarrow import ArrowException

    path = path / RESULTS_FILE if path.is_dir() else path
    how: dict[str, Any] = {"dtype": RESULT_DTYPES, "keep_default_na": False, "na_values": "", "encoding": "utf-8-sig"}
    try:
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path, **how)
        if other := sorted({*frame} ^ {*RESULT_DTYPES}):
            raise ValueError(f"missing or unknown columns: {', '.join(other)}")
        frame = frame.astype(RESULT_DTYPES)
        if frame[[*SCORE, "task", "status", "key"]].isna().any(axis=None):
            raise ValueError("a row names no run")
    except (OSError, ValueError, TypeError, KeyError, OverflowError, ArrowException) as error:
        wrong = f"is not a file of results, as 'harness report --format csv' writes it ({first_line(error).strip('.')})"
        raise UserError(f"{path}: {wrong}.") from None
    return frame


def verify(path: Path, url: str | None, seal: str = "") -> Verified:
    """Compare a file with what the plans of its benches and the records give, those of a published folder by default with its own; and the order of
    seals and runs. `seal`: the digest of one that the store has to hold. Raises UserError for a file that is not one of results, and without records."""
    if seal and len(seal) < SHOWN:
        raise UserError(f"verify: --seal {seal} has fewer than {SHOWN} characters; give it as it was published.")
    results = read_results(path)
    own = str(path) if (path / RECORDS_FILE).is_file() else DEFAULT_URL
    store = Store(url or own, create=False)
    if url:
        check_exists(store)
    verified = Verified(path, store, results)
    if not store.statuses(verified.keys):
        none = f"none of its {counted(len(verified.keys), 'record')} is in {store.shown}"
        raise UserError(f"{path}: {none}; take them over with 'harness merge RECORDS' (file or URL), or name --store.")
    _compare(verified, _plan(verified))
    _check_seals(verified, seal)
    return verified


def _plan(verified: Verified) -> str:
    """Plan the benches again that have the runs of the file: the one with most of them first, of these the smallest. Why some cannot be planned; '' where all can."""
    store, tables = verified.store, defaultdict[str, set[str]](set)
    for label in store.labels(verified.keys):
        tables[label["table"]].add(label["key"])
    found = [
        (needed & tables[bench.table], len(store.stages_of(bench)), bench)
        for bench, needed in store.requests_for({*verified.keys})
        if not bench.study and needed & tables[bench.table]
    ]
    reason, covered = "" if found else f"{store.shown} remembers no bench that has these runs", set[str]()
    for mine, _, bench in sorted(found, key=lambda each: (-len(each[0]), each[1])):
        if mine <= covered:
            continue
        covered |= mine
        try:
            prepared = prepare_recorded(replace(from_json(bench.values), store=store.url), texts=True)
        except UserError as error:
            reason = str(error).rstrip(".")
            continue
        if prepared.plan.unresolved:
            reason = f"{', '.join(prepared.plan.unresolved[:3])} is not at hand"
            continue
        verified.benches.append(prepared)
        if prepared.textless:
            verified.unchecked[f"the data behind the keys, and labels ({prepared.textless})"] = []
    return reason


def place_of(row: Mapping[Any, Any]) -> str:
    """The run of a row, or of a label, for people."""
    number, metric = (f"row {row['number']:.0f} (", ")") if "number" in row else ("", "")
    metric = (f", {row['metric']}" if "metric" in row else "") + metric
    place = f"{row['row']}, {row.get('column', row['task'])}, {examples(row['size'])}, subset {row['subset']}, seed {row['seed']}"
    return f"{number}{place}{metric}"


def _compare(verified: Verified, reason: str) -> None:
    """Each row of the file with the row that plan and records give at its place; and what the benches plan and the file leaves out."""
    results, plans, problems = verified.results, [prepared.plan for prepared in verified.benches], verified.problems
    written = results.assign(number=range(1, len(results) + 1))
    derived = [results_of(plan, verified.store) for plan in plans]
    again = pd.concat(derived or [results[:0]], ignore_index=True).drop_duplicates(SCORE)
    both = written.drop_duplicates(SCORE).merge(again, "outer", SCORE, suffixes=("", " again"), indicator="side")
    sides = (both[both["side"] == side].sort_values("number") for side in ("both", "left_only", "right_only"))
    matched, only, left_out = sides
    problems += [f"{place_of(row)} repeats an earlier one" for row in _rows(written[written.duplicated(SCORE)])]
    for name in (name for name in RESULT_DTYPES if name not in SCORE):
        names = name, f"{name} again"
        for row in _rows(matched[~_same(*(matched[each] for each in names))]):
            values = " in the file and ".join("missing" if pd.isna(row[each]) else repr(row[each]) for each in names)
            verified.differing.append(f"{place_of(row)}: {name} is {values} by the records")
    recorded = verified.store.statuses({*results["key"]}.union(*(plan.stages for plan in plans)))
    for row in _rows(only):
        if row["key"] not in recorded:
            problems.append(f"{place_of(row)}: the store has no record {row['key'][:12]}")
        elif reason:
            verified.unchecked[f"rows whose bench cannot be planned here ({reason})"].append(place_of(row))
        else:
            problems.append(f"{place_of(row)}: the bench has no such run and score")
    runs, design = {*results[RUN].itertuples(index=False, name=None)}, [{*results[name]} for name in RUN]
    for row in _rows(left_out.drop(columns="number").assign(task=left_out["task again"])):
        if all(row[name] in values for name, values in zip(RUN, design, strict=True)):
            problems.append(f"the file leaves out {place_of(row)}")
        else:
            verified.unchecked["scores of the bench, which the file leaves out"].append(place_of(row))
    earlier, untrained = dict[str, Stage](), "runs of the bench, which have no record (never trained, or deleted)"
    for run in (run for plan in plans for run in plan.runs):
        if tuple(getattr(run, name) for name in RUN) in runs:
            earlier |= {stage.key: stage for stage in run.stage.chain[:-1] if stage.key not in recorded}
        elif run.stage.key not in recorded:
            verified.unchecked[untrained].append(place_of(vars(run)))
    before = "stage before runs of the file: the store has no record"
    problems += [f"the {stage.phase} {before} {key[:12]}" for key, stage in earlier.items()]


def _rows(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    return frame.to_dict("records")


def _same(one: pd.Series, other: pd.Series) -> Any:
    """Where values are equal: numbers to 12 digits, which any sum of a metric keeps on any machine."""
    if RESULT_DTYPES[str(one.name)] == "float64":
        return np.isclose(one.astype(float), other.astype(float), rtol=1e-12, atol=1e-15, equal_nan=True)
    return ((one == other).fillna(False) | (one.isna() & other.isna())).to_numpy(bool)


def _check_seals(verified: Verified, wanted: str) -> None:
    """Whether each seal of the tables is as it was sealed and older than its runs, and the one that is `wanted` is there with runs of the file."""
    store, keys = verified.store, {*verified.keys}
    tables = dict.fromkeys(label["table"] for label in store.labels(keys))
    seals = [seal for table in tables for seal in store.seals(table)]
    if wanted and not any(seal.digest.startswith(wanted) for seal in seals):
        verified.problems.append(f"the store has no seal {wanted} of this table")
    for seal in seals:
        shown = seal.digest[:SHOWN]
        if not seal.intact:
            verified.problems.append(f"seal {shown} is not as it was sealed")
            continue
        names = ("row", "task", "size", "subset", "seed", "key")
        runs = [dict(zip(names, [*run[1:-1], str(run[-1])], strict=True)) for run in seal.plan["runs"]]
        sealed = {run["key"] for run in runs}
        starts, there = store.began(sealed), len(keys & sealed)
        early = [run for run in runs if starts.get(run["key"], seal.sealed_at) < seal.sealed_at]
        verified.seals.append(
            f"Seal {name_of(seal)}: {counted(len(runs), 'run')} sealed, {sum(run['key'] in starts for run in runs) - len(early):,} begun after it, "
            f"{len(early):,} before it; {there:,} of the {counted(len(keys), 'run')} of the file are in it."
        )
        minutes = {run["key"]: (seal.sealed_at - starts[run["key"]]) / 60 for run in early}
        late = f"minutes before seal {shown}"
        verified.problems += [f"the run {place_of(run)} began {minutes[run['key']]:,.1f} {late}" for run in early]
        if wanted and seal.digest.startswith(wanted) and not there:
            verified.problems.append(f"no run of the file is in seal {shown}")


# ------------------------------------------------------------------------------------------------------ training again


def rerun(verified: Verified, count: int, show: Show, *, storage: str | None = None) -> list[tuple[bool, str]]:
    """Train `count` stages again, drawn from the chains of the file's finished runs, and compare them with their records: whether
    each agrees, and a sentence (`judged`).

    `storage`: where weights are kept: those of a parent that are there as they were recorded are used, others are trained again. Raises UserError
    where no finished run of the file can be planned here.
    """
    keys, plans = {*verified.keys}, dict[str, Prepared]()
    for prepared in (prepare(each.request, train=True) for each in verified.benches if not each.textless):
        runs = [run.stage for run in prepared.plan.runs if run.stage.key in keys]
        plans |= {stage.key: prepared for run in runs for stage in run.chain if stage.key not in plans}
    done = sorted(key for key, (status, _) in verified.store.statuses(plans).items() if status == "done")
    if not done:
        raise UserError(f"--rerun: no finished run of {verified.path} can be planned here; name its --store.")
    drawn = random.Random(0).sample(done, min(count, len(done)))
    chains = {stage.key for key in drawn for stage in plans[key].plan.stages[key].chain}
    records = verified.store.records(chains, predictions=True)
    groups = defaultdict[tuple[Any, ...], list[str]](list)
    for key in drawn:
        origin = records[key].provenance
        groups[id(plans[key]), origin.get("workers"), origin.get("micro_batch"), on_cpu(origin)].append(key)
    found = []
    for group in groups.values():
        prepared = plans[group[0]]
        kept, names = storage_of(replace(prepared.request, storage=storage), prepared.store), prepared.plan.names()
        with TemporaryDirectory(prefix="harness-verify-") as folder:
            ended, _ = trained_again(prepared, records, group, kept, show, folder)
        for key in group:
            stage, (name, *others) = prepared.plan.stages[key], names[key]
            several = f" and {len(others)} more" if others else ""
            agrees, sentence = judged(stage, records[key], ended.get(key))
            found.append((agrees, f"{key[:12]}, {stage.phase} of {name}{several}: {sentence}"))
    return found


# ------------------------------------------------------------------------------------------------------ comparing


def judged(stage: Stage, record: Record, ended: Record | None) -> tuple[bool, str]:
    """Whether a stage that was trained again agrees with its record, and the sentence about it: bit for bit on the same kind of hardware, up to
    rounding in its first losses on another one (by its dev scores where it has no losses), whose scores are told."""
    if ended is None or ended.status != "done":
        return False, f"could not be trained again: {ended.reason if ended else 'no worker returned it'}"
    there, here = ({part: one.provenance.get(part) for part in HARDWARE} for one in (record, ended))
    if there == here:
        of = f" (the same kind of hardware: {here['device']})"
        if differs := differences(record, ended):
            return False, f"DIFFERS from its record in {', '.join(differs)}{of}"
        rows = sum(len(predicted.gold) for predicted in record.predictions.values())
        weights = " and weights" if record.weights_digest else ""
        losses = sum("loss" in entry for entry in record.history)
        return True, f"bit-identical: {losses:,} mean losses, {rows:,} predictions{weights}{of}"
    start, again = (next((e["loss"] for e in each.history if "loss" in e), None) for each in (record, ended))
    apart = abs(start - again) / abs(start) if start and again is not None else float(start != again)
    # rounding has not grown yet; fp16 rounds more finely than bf16, but another device may skip another of its first updates
    limit = 1e-3 if stage.optim.precision == "fp32" else 2e-2
    pairs = [(name, ended.dev_scores[name], value) for name, value in record.dev_scores.items()]
    scores = [f"dev {name} {100 * now:.2f} instead of {100 * then:.2f}" for name, now, then in pairs]
    moved = ", ".join(f"{part} {here[part]} instead of {there[part]}" for part in HARDWARE if there[part] != here[part])
    first = f"first losses differ by {apart:.1e} of their value, tolerance {limit:.0e}"
    if start is None:  # fitted: it has scores alone
        apart, first = float(record.dev_scores != ended.dev_scores), "no losses, so dev scores have to be equal"
    return apart <= limit, f"{'; '.join([first, *scores])} (other hardware: {moved})"
