"""The page of a study: the best point, all points, the margins of a grid, plots, replicates with their keys, commands. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from harness.pages.layout import Block, Commands, Folded, Lines, Picture, Section, Table, page
from harness.pages.markup import HTML
from harness.pages.picture import picture
from harness.pages.provenance import SHORT_KEY, machine_lines, machines_of
from harness.search.marginals import margin_blocks, margin_lines
from harness.search.results import COSTS, Study, best_point
from harness.search.tables import caption, number_text, point_rows, row_title, shown_value, title_of
from harness.search.trials import ReplicateOutcome, Trial
from harness.specs import Record
from harness.tables.caption import letter
from harness.tables.render import STYLES

TEXT = STYLES["text"]


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


def study_page(found: StudyResults) -> str:
    study = found.study
    about = [*machine_lines(machines_of(found.records.values()))]
    sections = [
        Section("best", "Best point", _best(found)),
        Section("points", "Points", _points(study)),
        *_margins(found.whole),
        Section("plots", "Plots", [*found.plots, Lines(found.notes)]),
        Section("runs", "Replicates, versions and hardware", [Lines(about), *_replicates(found)]),
        Section("again", "How to make it again", [Commands(found.commands)]),
    ]
    return page(f"Study {study.name}", f"{row_title(study)}, {study.mode} over {', '.join(study.paths)}.", sections)


def _best(found: StudyResults) -> list[Block]:
    study, best = found.study, best_point(found.study)
    if best is None:
        return [Lines(["There is no best point: no point has all its replicates done."])]
    values = [f"{path} = {shown_value(best.point.get(path), TEXT)}" for path in study.paths]
    scores = []
    for k, metric in enumerate(study.metrics):
        center, spread = best.mean(k), best.spread(study.replicates, k)
        if center is not None:
            around = "" if spread is None or metric in COSTS else f" ± {number_text(metric, spread, TEXT)}"
            scores.append(f"{title_of(metric)} {number_text(metric, center, TEXT)}{around}")
    chosen = f"Trial {best.number}: {', '.join(values)}; {', '.join(scores)}."
    return [Lines([chosen, *found.test]), Folded("best.yaml", [Commands([found.best.rstrip()])])]


def _points(study: Study) -> list[Block]:
    rows = point_rows(study, HTML)
    body = [[Markup(cell) for cell in row] for row in rows.body]  # HTML.escape has escaped all of it
    table = Table("All points, best first", [Markup(name) for name in rows.header], body, frozenset(rows.left))
    return [table, Lines([*map(Markup, rows.notes), *caption(study, bold=True)])]


def _margins(study: Study) -> list[Section]:
    blocks: list[Block] = [
        Table(Markup(title), [*map(Markup, header)], [[*map(Markup, row)] for row in body])
        for title, header, body in margin_blocks(study, HTML)
    ]
    return [Section("margins", "Margins", [*blocks, Lines([*margin_lines(study, bold=True)])])] if blocks else []


def plot_of(study: Study, name: str, figure: Any) -> Picture:
    """A plot of Optuna's as a picture with its data: of importances the bars, of parallel coordinates the complete points."""
    anchor = name.partition(".")[0].replace("_", "-")
    axes = figure.axes[0]
    if anchor == "importances":
        names = [label.get_text() for label in axes.get_yticklabels()]
        rows = [[path, f"{bar.get_width():.3f}"] for path, bar in zip(names, axes.patches, strict=False)]
        data = Table("Importances", ["Parameter", "Importance"], rows)
        title, said = "Importances of the parameters", "; ".join(" ".join(row) for row in rows)
    else:
        complete = [trial for trial in study.trials if study.complete(trial)]
        rows = [_values(study, trial) for trial in complete]
        data = Table("Complete points", ["Trial", *study.paths, title_of(study.metrics[0])], rows)
        title, said = "Points as lines over their parameters", f"{len(rows)} complete points; the darker, the better"
    svg = picture(lambda: figure, anchor, title, f"{said}.", own_colours=True)
    return Picture(svg, title, data)


def _values(study: Study, trial: Trial) -> list[str]:
    metric, mean = study.metrics[0], trial.mean()
    values = [shown_value(trial.point.get(path), TEXT) for path in study.paths]
    return [str(trial.number), *values, "" if mean is None else number_text(metric, mean, TEXT)]


def _replicates(found: StudyResults) -> list[Block]:
    study = found.study
    reasons: dict[str, str] = {}
    rows = []
    for trial in study.trials:
        keys = found.keys.get(trial.number, ())
        for index, ((subset, seed), outcome) in enumerate(zip(study.replicates, trial.outcomes, strict=False)):
            mine = ", ".join(key[:SHORT_KEY] for key in keys[index]) if index < len(keys) else ""
            values = [
                number_text(metric, value, TEXT) for metric, value in zip(study.metrics, outcome.values, strict=True)
            ]
            hours, flops = f"{outcome.seconds / 3600:.3f}", f"{outcome.flops:.3g}"
            rows.append(
                [str(trial.number), str(subset), str(seed), *values, _status(outcome, reasons), hours, flops, mine]
            )
    if not rows:
        return [Lines(["No replicate has ended."])]
    head = ["Trial", "Subset", "Seed", *map(title_of, study.metrics), "Status", "Hours", "FLOPs", "Runs"]
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
