"""The page of a study: the best point, all points, the margins of a grid, plots, replicates with their keys, commands. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.paths import without_folders
from harness.search.results import Study
from harness.search.trials import ReplicateOutcome
from harness.specs import Record
from harness.views.document import Block, Commands, Folded, Lines, Picture, Section, Table
from harness.views.margins import margin_lines, margin_tables
from harness.views.page import page
from harness.views.provenance import SHORT_KEY, machine_lines, machines_of
from harness.views.study import caption, conclusion, footnotes, points, row_title, shown_value, title_of
from harness.wording import in_points, letter


@dataclass(frozen=True)
class StudyResults:
    """What the page shows. `whole`: the study with the points of a grid that repeat another, for its margins; `best`: the text of
    best.yaml, '' where no point is the best; `test`: sentences of the final test; `notes`: why a plot is missing; `keys`: of the runs of each
    replicate, by trial; `records`: of these runs; `commands`: that make the study and run its best point."""

    study: Study
    whole: Study
    best: str
    test: Sequence[str]
    plots: Sequence[Picture]
    notes: Sequence[str]
    keys: Mapping[int, Sequence[Sequence[str]]]
    records: Mapping[str, Record]
    commands: Sequence[str]


def study_page(results: StudyResults) -> str:
    study, notes = results.study, map(without_folders, results.notes)
    about = [*machine_lines(machines_of(results.records.values()))]
    sections = [
        Section("best", "Best point", _best(results)),
        Section("points", "Points", _points(study)),
        *_margins(results.whole),
        Section("plots", "Plots", [*results.plots, Lines([*notes])]),
        Section("runs", "Replicates, versions and hardware", [Lines(about), *_replicates(results)]),
        Section("again", "How to make it again", [Commands([*map(without_folders, results.commands)])]),
    ]
    subtitle = f"{row_title(study)}, {study.mode} over {', '.join(study.paths)}."
    return page(f"Study {study.name}", subtitle, sections, conclusion(study))


def _best(results: StudyResults) -> list[Block]:
    study, best = results.study, results.study.best
    if best is None:
        return [Lines(["There is no best point: no point has all its replicates done."])]
    values = [f"{path} = {shown_value(best.point.get(path))}" for path in study.paths]
    spread = best.spread(study.replicates)
    around = "" if spread is None else f" ± {in_points(spread)}"
    score = f"{title_of(study.metric)} {in_points(best.mean() or 0.0)}{around}"
    chosen = f"Trial {best.number}: {', '.join(values)}; {score}."
    return [Lines([chosen, *results.test]), Folded("best.yaml", [Commands([without_folders(results.best.rstrip())])])]


def _points(study: Study) -> list[Block]:
    table = replace(points(study), title="All points, best first")
    return [table, Lines([*footnotes(study), *caption(study, bold=True)])]


def _margins(study: Study) -> list[Section]:
    tables = margin_tables(study)
    return [Section("margins", "Margins", [*tables, Lines([*margin_lines(study, bold=True)])])] if tables else []


def _replicates(results: StudyResults) -> list[Block]:
    study = results.study
    reasons: dict[str, str] = {}
    rows = []
    for trial in study.trials:
        keys = results.keys.get(trial.number, ())
        for index, ((subset, seed), outcome) in enumerate(zip(study.replicates, trial.outcomes, strict=False)):
            mine = ", ".join(key[:SHORT_KEY] for key in keys[index]) if index < len(keys) else ""
            hours, flops = f"{outcome.seconds / 3600:.3f}", f"{outcome.flops:.3g}"
            rows.append(
                [
                    str(trial.number),
                    str(subset),
                    str(seed),
                    in_points(outcome.value),
                    _status(outcome, reasons),
                    hours,
                    flops,
                    mine,
                ]
            )
    if not rows:
        return [Lines(["No replicate has ended."])]
    head = ["Trial", "Subset", "Seed", title_of(study.metric), "Status", "Hours", "FLOPs", "Runs"]
    left = frozenset({len(head) - 4, len(head) - 1})
    lines = [f"Runs: the first {SHORT_KEY} characters of their keys, which harness show takes."]
    lines += [f"[{mark}]: {reason}." for reason, mark in reasons.items()]
    table = Table("Replicates", head, rows, left, headed=False)
    return [Lines(lines), Folded(f"Replicates: {len(rows):,}", [table])]


def _status(outcome: ReplicateOutcome, reasons: dict[str, str]) -> str:
    if outcome.status == "done":
        return "done"
    reason = " ".join(outcome.reason.split()) or "no reason recorded"
    return f"{outcome.status} [{reasons.setdefault(reason, letter(len(reasons)))}]"
