"""A published file of results, held against a store: its bench is planned again, the file is compared with what plan and records give, and
the records are checked against themselves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from harness.analysis.schema import PLACE, records
from harness.analysis.scores import results_of
from harness.commands.prepare import Prepared, prepare_recorded
from harness.commands.report import grid_of
from harness.commands.seal import recorded_runs_of
from harness.commands.stored import check_exists
from harness.errors import UserError
from harness.planning.request import BESIDE, Request, from_json
from harness.specs import Record, Stage, starts_elsewhere
from harness.store import DEFAULT_URL, Store, StoredRequest
from harness.store.published import is_published
from harness.store.rows import predicted_by
from harness.tasks import score
from harness.views.numbers.seal import SHOWN, Member, SealedRun, name_of, sealed_runs
from harness.views.published import Published, Values, differences, read_published, same, where
from harness.views.table import render
from harness.wording import counted, listed

RUN = ("size", "row", "task", "subset", "seed")
"""What names a run of a bench."""

Place = tuple[Any, ...]


def run_of(row: Values) -> Place:
    return tuple(row[name] for name in RUN)


def _score_of(row: Values) -> Place:
    return tuple(row[name] for name in (*PLACE, "metric"))


@dataclass(frozen=True)
class Bench:
    """A bench that the store remembers. `runs`: the keys of its runs, by its plan; by their labels in the store where it cannot be planned
    here. `reason`: why it cannot, or is planned by what the store keeps of its data. `paths`: how the user wrote those that are absolute in `request`."""

    published: Published
    request: Request
    runs: Mapping[Place, str]
    paths: Mapping[str, str]
    prepared: Prepared | None = None
    reason: str = ""

    @cached_property
    def rows(self) -> dict[Place, Values]:
        """What the records give, by place and metric; nothing where the bench cannot be planned."""
        derived = records(results_of(self.prepared.plan, self.prepared.store)) if self.prepared else []
        return {_score_of(row): self.as_written(row) for row in derived}

    def as_written(self, value: Any) -> Any:
        """A JSON value with the paths of the request as the user wrote them."""
        text = json.dumps(value) if self.paths else ""
        for path, written in self.paths.items():
            text = text.replace(json.dumps(path)[1:-1], json.dumps(written)[1:-1])
        return json.loads(text) if text else value

    @property
    def has_whole(self) -> bool:
        """Whether the file is JSON of the whole bench, whose other fields can be held against the report."""
        whole = self.prepared and {*self.prepared.store.statuses(self.runs.values())} <= {*self.published.keys}
        return bool(self.published.body and whole and not self.reason)

    @cached_property
    def differing(self) -> list[str]:
        """In which fields the JSON file differs from the report of the bench; nothing where it is no JSON of that."""
        if not self.prepared or not self.has_whole:
            return []
        derived = json.loads(render(*grid_of(self.prepared), "json"))
        del derived["results"]
        body = self.as_written(self.published.body)
        return [*differences(_without_marks(body), _without_marks(self.as_written(derived)))]


def _without_marks(report: Any) -> Any:
    """Without what depends on the other benches of a store, whose comparisons are in one family: marks and ranks."""
    with suppress(AttributeError, KeyError, TypeError):  # a file of another form has none
        cells = [{**cell, "in_best_set": None, "rank_low": None, "rank_high": None} for cell in report["cells"]]
        lines = [line for line in report["caption"]["lines"] if not line.startswith(("Bold: ", "No cell is bold"))]
        return {**report, "cells": cells, "caption": {**report["caption"], "lines": lines}}
    return report


@dataclass
class Verification:
    """What came out. `benches`: those that the file was compared with; `differing`: figures that differ, and `problems`: everything
    else that is wrong, a sentence each; `unchecked`: what is not in the file or was not compared, with its places;
    `checked`: records that were checked against themselves; `seals`: a sentence for each seal of the file's tables."""

    published: Published
    store: Store
    benches: list[Bench]
    checked: int = 0
    differing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unchecked: dict[str, list[str]] = field(default_factory=dict)
    seals: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> bool:
        return bool(self.differing or self.problems)

    def absent(self, key: str) -> str:
        """Why a key has no record; '' where it has one."""
        return "" if self.store.statuses([key]) else f"the store has no record {key[:12]}"

    def leave_out(self, reason: str, place: str) -> None:
        self.unchecked.setdefault(reason, []).append(place)


def verify(path: Path, url: str | None, seal: str | None = None) -> Verification:
    """Compare a file with the plan of its bench and with what the records give; the results of a published folder by default with its
    own records, where these have labels; and the order of seals and runs. `seal`: the digest of one that the store has to hold. Raises UserError for a file that is not one of results, and
    where there is no store."""
    if seal is not None and len(seal) < SHOWN:
        raise UserError(
            f"verify: --seal {seal} has fewer than {SHOWN} characters; give the digest as it was published."
        )
    published = read_published(path)
    store = Store(url or (str(path) if is_published(str(path)) else DEFAULT_URL), create=False)
    if url:
        check_exists(store)
    if not store.statuses(published.keys):
        raise UserError(
            f"{published.path}: none of its {counted(len(published.keys), 'record')} is in {store.shown}, and without records nothing can be checked; take "
            "them over with 'harness merge RECORDS', a file or an URL, or name their store with --store."
        )
    benches = _benches(published, store)
    outcome = Verification(published, store, benches)
    _compare_rows(outcome)
    _compare_runs(outcome)
    _check_seals(outcome, seal)
    for bench in benches:
        if bench.prepared:
            _check_records(outcome, bench.prepared)
            if bench.reason:
                outcome.unchecked[f"the data behind the keys, and labels ({bench.reason})"] = []
    if benches and benches[0].has_whole:
        outcome.differing += benches[0].differing
    elif published.body:
        outcome.unchecked["all of the JSON but its results"] = []
    if columns := [*published.unknown, *(f"{name} (missing)" for name in published.absent)]:
        outcome.unchecked[f"columns of the file: {', '.join(columns)}"] = []
    return outcome


# ------------------------------------------------------------------------------------------------------- benches


def _benches(published: Published, store: Store) -> list[Bench]:
    """The benches that have the runs of the file: first the one with the most of them, of these the smallest, or of a JSON file the one from
    whose report it differs least; then those that have others."""
    labels = {key: {(label["table"], run_of(label)) for label in store.labels(key)} for key in published.keys}
    candidates = []
    for stored, keys, total in store.requests_for(published.keys):
        if not stored.study:
            held = [(row["key"], (stored.table, run_of(row))) for row in published.rows]
            rows = {k for k, (key, label) in enumerate(held) if key in keys and label in labels[key]}
            candidates.append(((-len(rows), -len(keys), total), rows, stored))
    candidates.sort(key=lambda candidate: candidate[0])
    benches: list[Bench] = []
    covered: set[int] = set()
    for _, rows, stored in candidates:
        if rows - covered or not benches:
            rivals = [stored]
            if published.body and not benches:
                rivals = [other for _, others, other in candidates if others == rows]
            planned = [_planned(rival, store, published) for rival in rivals]
            benches.append(min(planned, key=lambda bench: (bench.prepared is None, len(bench.differing))))
            covered |= rows
    return benches


def _planned(stored: StoredRequest, store: Store, published: Published) -> Bench:
    """A remembered bench with its plan, or with its labels where something that the plan needs is not at hand."""
    request = replace(from_json(stored.values), store=store.url)
    absolute = [
        (getattr(request, name), stored.values.get(name)) for name in ("table", "encoder", "data", "corpus", *BESIDE)
    ]
    absolute += zip(request.tasks or (), stored.values.get("tasks", ()), strict=True)
    paths = {path: written for path, written in absolute if path and written and path != written}
    try:
        prepared = prepare_recorded(request, texts=True)
        if not (gone := prepared.plan.unresolved):
            runs = {run_of(vars(run)): run.stage.key for run in prepared.plan.runs}
            return Bench(published, request, runs, paths, prepared, prepared.unread)
        reason = f"{', '.join(gone[:3])} is not at hand"
    except UserError as error:
        reason = str(error).rstrip(".")
    labels = store.labels_of(store.stages_of(stored))
    runs = {run_of(label): label["key"] for label in labels if label["table"] == stored.table}
    return Bench(published, request, runs, paths, reason=reason)


# ------------------------------------------------------------------------------------------------------- rows


def _compare_rows(outcome: Verification) -> None:
    """Each row of the file with the row that the records give at its place."""
    derived = {place: row for bench in reversed(outcome.benches) for place, row in bench.rows.items()}
    runs = {run: (key, bench) for bench in reversed(outcome.benches) for run, key in bench.runs.items()}
    first: dict[Place, int] = {}
    for number, row in enumerate(outcome.published.rows, start=1):
        place, (key, bench) = _score_of(row), runs.get(run_of(row), ("", None))
        words = f"row {number} ({where(row)})"
        problem = ""
        if first.setdefault(place, number) != number:
            problem = f" repeats row {first[place]}"
        elif place in derived:
            written = {name: derived[place][name] for name in row}
            outcome.differing += [f"{words}: {sentence}" for sentence in differences(dict(row), written)]
        elif bench is None:
            others = "; ".join(where(label) for label in outcome.store.labels(row["key"])[:2])
            known = f"its key {row['key'][:12]} is the run of {others}" if others else outcome.absent(row["key"])
            problem = f" is no run of the bench; {known}"
        elif key != row["key"]:
            problem = f": its key is {row['key'][:12]}, and that of the run is {key[:12]}"
        elif why := outcome.absent(key):
            problem = f": {why}"
        elif not bench.prepared:
            outcome.leave_out(f"rows whose bench cannot be planned here ({bench.reason})", words)
        else:
            problem = ": its run has no score of this metric in this column"
        outcome.problems += [words + problem] if problem else []


def _compare_runs(outcome: Verification) -> None:
    """The runs that the benches plan and the file does not have. One that is recorded, of the subsets and seeds of the file, is left out wrongly;
    others make the file a part of its bench."""
    rows = outcome.published.rows
    scores, there = {_score_of(row) for row in rows}, {run_of(row) for row in rows}
    design = [{run[k] for run in there} for k in range(len(RUN))]
    for bench in outcome.benches:
        outcome.problems += [
            f"the file leaves out {where(row)}"
            for place, row in bench.rows.items()
            if run_of(row) in there and place not in scores
        ]
        of_bench = f"of the {len(bench.runs):,} runs of the bench"
        for run, key in bench.runs.items():
            words = where(dict(zip(RUN, run, strict=True)))
            if run in there:
                continue
            if why := outcome.absent(key):
                outcome.leave_out(f"{of_bench}, which have no record (never trained, or deleted)", f"{words}: {why}")
            elif all(value in values for value, values in zip(run, design, strict=True)):
                outcome.problems.append(f"the file leaves out the run {words}, {key[:12]}")
            else:
                outcome.leave_out(f"{of_bench}, which the file leaves out", f"{words}, {key[:12]}")


# ------------------------------------------------------------------------------------------------------- seals


def _check_seals(outcome: Verification, wanted: str | None) -> None:
    """Whether each seal of the file's tables is as it was sealed and older than its runs, and the one that is `wanted` is there with runs of the file."""
    store, keys = outcome.store, outcome.published.keys
    tables = dict.fromkeys(label["table"] for label in store.labels_of(keys))
    seals = [seal for table in tables for seal in store.seals(table)]
    if wanted and not any(seal.digest.startswith(wanted) for seal in seals):
        outcome.problems.append(f"the store has no seal {wanted} of this table")
    for seal in seals:
        if not seal.intact:
            outcome.problems.append(f"seal {seal.digest[:SHOWN]} is not as it was sealed")
            continue
        sealed = sealed_runs(seal.plan)
        provisional = {member: run for member, run in sealed.items() if not run.key}
        of_member = {member: run.key for member, run in sealed.items() if run.key}
        of_member |= _recorded_since(outcome, seal.plan["table"], provisional)
        recorded = recorded_runs_of(store, of_member.values())
        ended = {member: recorded[key] for member, key in of_member.items() if key in recorded}
        early = {m: seal.sealed_at - run.began_at for m, run in ended.items() if run.began_at < seal.sealed_at}
        there = len({*keys} & {*of_member.values()})
        outcome.seals.append(
            f"Seal {name_of(seal)}: {counted(len(sealed), 'run')} sealed, {len(ended) - len(early):,} begun after it, {len(early):,} before it, "
            f"{len(sealed) - len(ended):,} not recorded{_by_name(provisional.values())}; {there:,} of the {counted(len(keys), 'run')} of the file are in it."
        )
        outcome.problems += [
            f"the run {_member(member)} began {seconds / 60:,.1f} minutes before seal {seal.digest[:SHOWN]}"
            for member, seconds in early.items()
        ]
        if wanted and seal.digest.startswith(wanted) and not there:
            outcome.problems.append(f"no run of the file is in seal {seal.digest[:SHOWN]}")


def _recorded_since(outcome: Verification, table: str, provisional: Mapping[Member, SealedRun]) -> dict[Member, str]:
    """Of runs whose keys were not known when they were sealed, the keys of the recorded ones that fit."""
    found: dict[Member, str] = {}
    for label in outcome.store.recorded_runs() if provisional else ():
        member, key = tuple(label[name] for name in ("row", "task", "size", "subset", "seed")), label["key"]
        if label["table"] == table and member in provisional and member not in found and not outcome.absent(key):
            stage = outcome.store.stage(key)
            if stage and provisional[member].fits(stage):
                found[member] = key
    return found


def _by_name(runs: Iterable[SealedRun]) -> str:
    """Which of a seal's runs were not sealed by their keys."""
    known = Counter(bool(run.settings) for run in runs)
    words = {True: "by settings, as their keys were not known", False: "by name alone"}
    said = [f"{known[settings]:,} sealed {text}" for settings, text in words.items() if known[settings]]
    return f" ({listed(said)})" if said else ""


def _member(member: Member) -> str:
    return where(dict(zip(("row", "task", "size", "subset", "seed"), member, strict=True)))


# ------------------------------------------------------------------------------------------------------- records


def _check_records(outcome: Verification, prepared: Prepared) -> None:
    """The records of the file's runs and of the stages before them."""
    keys = set(outcome.published.keys)
    chains = [run.stage.chain for run in prepared.plan.runs if run.stage.key in keys]
    _check_stages(outcome, RecordChecks(prepared), {stage.key: stage for chain in chains for stage in chain})


def _check_stages(outcome: Verification, checks: RecordChecks, stages: Mapping[str, Stage]) -> None:
    keys = set(outcome.published.keys)
    for key, stage in stages.items():
        if key not in keys and (why := outcome.absent(key)):
            outcome.problems.append(f"the {stage.phase} stage before runs of the file: {why}")
    for key, record in outcome.store.each(stages, predictions=True):
        if record.status == "done":
            outcome.checked += 1
            outcome.problems += [f"record {key[:12]}: {wrong}" for wrong in checks(stages[key], record)]


# ---------------------------------------------------------------------------------------------- a record against itself


class RecordChecks:
    """What contradicts what in the finished records of a plan, without training: predictions, losses, FLOPs and times are taken as recorded."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared

    def __call__(self, stage: Stage, record: Record) -> Iterator[str]:
        """A sentence for each contradiction in the finished record of a stage."""
        earlier = self._prepared.store.records([stage.parent.key]) if stage.parent else {}
        if starts_elsewhere(stage, {**earlier, stage.key: record}):
            yield "the weights that it says it started from are not those that the stage before it recorded"
        if stage.selection is None or stage.data.dev is None:
            return
        yield from self._predictions(stage, record)
        yield from _selection(stage, record)

    def _predictions(self, stage: Stage, record: Record) -> Iterator[str]:
        assert stage.data.dev is not None
        for rows in (stage.data.dev, *stage.data.tests):
            there = self._prepared.plan.library.get(rows.digest)
            if there is not None and not np.array_equal(predicted_by(record, rows.digest).gold, there.gold):
                yield f"the labels of {rows.name} that it keeps are not those of the data"
        predicted = predicted_by(record, stage.data.dev.digest)
        for metric, recorded in record.dev_scores.items():
            computed = score(metric, predicted)
            if not same(recorded, computed):
                yield f"it says {recorded!r} for {metric} on dev, and its predictions give {computed!r}"
        if (record.histogram, record.collapsed) != (predicted.histogram, predicted.collapsed):
            yield "the classes that it says are predicted on dev are not those of its predictions"


def _selection(stage: Stage, record: Record) -> Iterator[str]:
    """The selected update, its scores and ties against the evaluations of the history."""
    assert stage.selection is not None
    evaluated = {entry["step"]: entry["dev"] for entry in record.history if "dev" in entry}
    steps = [*range(stage.selection.every, stage.optim.steps, stage.selection.every), stage.optim.steps]
    if [*evaluated] != steps:
        yield f"its history has evaluations after updates {[*evaluated]}, and its stage after {steps}"
        return
    scores = {step: dev[stage.selection.metric] for step, dev in evaluated.items()}
    best = max(scores.values())
    first = next(step for step, value in scores.items() if value == best)
    if first != record.selected_step:
        yield f"it selects update {record.selected_step}, and its history is best on dev at update {first}"
    elif evaluated[first] != record.dev_scores:
        yield f"its dev scores are {record.dev_scores}, and those of its history at update {first} are {evaluated[first]}"
    elif record.tied != [*scores.values()].count(best):
        yield f"it says that {record.tied} evaluations share its dev score, and its history has {[*scores.values()].count(best)}"
