"""The page of a table: its views one after another. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from harness.methods import METHODS
from harness.specs import Record, Run
from harness.views.caption import Caption, title_lines
from harness.views.cells import Grid
from harness.views.classes import classes_view
from harness.views.comparison import comparison_document, conclusion, variance_document
from harness.views.document import Block, Commands, Lines, Section, view_of
from harness.views.examples import examples_document
from harness.views.figures import curves, forest
from harness.views.figures.figure import figure_view
from harness.views.numbers.comparison import Comparisons
from harness.views.numbers.examples import ExampleFrames
from harness.views.page import page
from harness.views.provenance import COST_LINES, cost_table, machine_lines, machines_of
from harness.views.settings import settings_view
from harness.views.table import notes_view, results_view
from harness.views.variance import CellVariance
from harness.views.view import View


@dataclass(frozen=True)
class Results:
    """What the page shows. `comparisons`: a sentence where rows cannot be compared. `runs`: of the table; `records`: of their stages;
    `curves`: of their dev scores; `commands`: that make the table and the page again; `examples`: of the test sets, None where no predictions are stored."""

    grid: Grid
    caption: Caption
    comparisons: Comparisons | str
    variances: Sequence[CellVariance]
    runs: Sequence[Run]
    records: Mapping[str, Record]
    curves: curves.Curves
    commands: Sequence[str]
    examples: ExampleFrames | None = None


def results_page(results: Results) -> str:
    grid, caption, r = results.grid, results.caption, results.grid.resolved
    title, *subtitle = title_lines(grid)
    last = [results.records[run.stage.key] for run in results.runs if run.stage.key in results.records]
    parts = dict.fromkeys(part for row in r.trained_rows for part in (*row.pre_train.split("+"), *row.parts) if part)
    methods = [f"{METHODS[part].title}: {METHODS[part].full_name}. {METHODS[part].citation}." for part in parts]
    found = results.comparisons
    if isinstance(found, str):
        compared: Block = Lines([found])
    else:
        compared = replace(view_of(comparison_document(found)), name="Differences", picture=forest.picture_of(found))
    split: Block = Lines(["No cell has two runs or more that are done, so there is no variance to split."])
    if results.variances:
        split = view_of(variance_document(results.variances, grid))
    sections = [
        Section("results", "Results", [results_view(grid, caption)]),
        Section("comparisons", "Comparisons", [compared]),
        Section("variance", "Variance", [split]),
        *([Section("figure", "Figure", [figure_view(grid)])] if r.table.figure else []),
        Section("curves", "Learning curves", [curves.curves_view(grid, results.runs, results.curves)]),
    ]
    if results.examples is not None and len(results.examples.rows):
        sections.append(Section("examples", "Test examples", [view_of(examples_document(results.examples))]))
    if caption.class_reports:
        sections.append(Section("classes", "Classes", [classes_view(caption.class_reports, r.size_unit)]))
    machines = machine_lines(machines_of(last)) or ["No run is recorded."]
    costs = [cost_table(grid, results.runs, results.records)]
    sections += [
        Section("cost", "Cost", [View("cost", pd.DataFrame(), costs, [*COST_LINES, *machines])]),
        Section("methods", "Methods", [Lines(methods)]),
        Section("notes", "Notes", [notes_view(grid, caption)]),
        Section("settings", "Settings", [settings_view(r)]),
        Section("again", "How to make it again", [Commands(results.commands)]),
    ]
    lead = found if isinstance(found, str) else conclusion(found)
    return page(f"{r.table.name}: {title.rstrip('.')}", " ".join(subtitle), sections, lead)
