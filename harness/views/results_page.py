"""The page of a table: its views one after another. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.methods import METHODS
from harness.specs import Record, Run
from harness.views.caption import Caption, title_lines
from harness.views.cells import Grid
from harness.views.classes import classes_view
from harness.views.figures import curves
from harness.views.figures.figure import figure_view
from harness.views.page import Commands, Section, page
from harness.views.provenance import COST_LINES, cost_table, machine_lines, machines_of
from harness.views.settings import settings_view
from harness.views.table import notes_view, results_view
from harness.views.view import View

NO_VARIANCE = "No cell has two runs or more that are done, so there is no variance to split."


@dataclass(frozen=True)
class Results:
    """What the page shows. `comparisons`: a sentence where rows cannot be compared. `runs`: of the table; `records`: of their stages;
    `curves`: of their dev scores; `commands`: that make the table and the page again; `examples`: of the test sets, None where no predictions of classes are stored."""

    grid: Grid
    caption: Caption
    comparisons: View | str
    variances: View
    runs: Sequence[Run]
    records: Mapping[str, Record]
    curves: curves.Curves
    commands: Sequence[str]
    examples: View | None = None


def results_page(results: Results) -> str:
    grid, caption, r = results.grid, results.caption, results.grid.resolved
    title, *subtitle = title_lines(grid)
    last = [results.records[run.stage.key] for run in results.runs if run.stage.key in results.records]
    parts = dict.fromkeys(part for row in r.trained_rows for part in (*row.pre_train.split("+"), *row.parts) if part)
    methods = [f"{METHODS[part].title}: {METHODS[part].full_name}. {METHODS[part].citation}." for part in parts]
    found = results.comparisons
    sections = [
        Section("results", "Results", [results_view(grid, caption)]),
        Section("comparisons", "Comparisons", [[found] if isinstance(found, str) else found]),
        Section("variance", "Variance", [results.variances if len(results.variances.frame) else [NO_VARIANCE]]),
        *([Section("figure", "Figure", [figure_view(grid)])] if r.table.figure else []),
        Section("curves", "Learning curves", [curves.curves_view(grid, results.runs, results.curves)]),
    ]
    if results.examples is not None:
        sections.append(Section("examples", "Test examples", [results.examples]))
    if caption.class_reports:
        sections.append(Section("classes", "Classes", [classes_view(caption.class_reports, r.size_unit)]))
    machines = machine_lines(machines_of(last)) or ["No run is recorded."]
    sections += [
        Section("cost", "Cost", [cost_table(grid, results.runs, results.records), [*COST_LINES, *machines]]),
        Section("methods", "Methods", [methods]),
        Section("notes", "Notes", [notes_view(grid, caption)]),
        Section("settings", "Settings", [settings_view(r)]),
        Section("again", "How to make it again", [Commands(results.commands)]),
    ]
    lead = found if isinstance(found, str) else found.lines[0]
    return page(f"{r.table.name}: {title.rstrip('.')}", " ".join(subtitle), sections, lead)
