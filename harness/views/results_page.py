"""The page of a table: its conclusion, then its views one after another. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.methods import METHODS
from harness.views.caption import Caption, title_lines
from harness.views.cells import Grid
from harness.views.page import Commands, Folded, Section, page
from harness.views.table import notes_view, results_view
from harness.views.view import View


def results_page(grid: Grid, caption: Caption, views: Mapping[str, View | str], commands: Sequence[str]) -> str:
    """`views`: those after the table by their titles, or why there is none; the first sentence of the first is the conclusion.
    `commands`: that make the table and the page again."""
    r, (title, *subtitle) = grid.resolved, title_lines(grid)
    parts = dict.fromkeys(part for row in r.trained_rows for part in (*row.pre_train.split("+"), *row.parts) if part)
    methods = [f"{METHODS[part].title}: {METHODS[part].full_name}. {METHODS[part].citation}." for part in parts]
    found = next(iter(views.values()))
    sections = [
        Section("results", "Results", [results_view(grid, caption)]),
        *(Section(name.split()[-1].lower(), name, [[v] if isinstance(v, str) else v]) for name, v in views.items()),
        Section("notes", "Notes", [Folded("Methods, terms and data", [methods, notes_view(grid, caption)])]),
        Section("again", "How to make it again", [Commands(commands)]),
    ]
    lead = found if isinstance(found, str) else found.lines[0]
    return page(f"{r.table.name}: {title.rstrip('.')}", " ".join(subtitle), sections, lead)
