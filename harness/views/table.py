"""The results of a table as a view, its notes, and its page.

CSV, JSON and Parquet hold every number unrounded on the metric's own scale: the results of single runs, JSON the cells too. The other formats
show cells in points (x100) with two decimals. `docs/results.md` documents them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from harness.methods import METHODS
from harness.paths import without_folders
from harness.planning.aggregation import AVERAGE, RULES
from harness.planning.recipe import LAST
from harness.planning.resolved import ResolvedRow, ResolvedTable
from harness.views.cells import Cell, Grid, Note, family, has_average, means_lines
from harness.views.differences import BEST, sets_of_the_best
from harness.views.settings import about_paper
from harness.views.view import DASH, Table, View, best, commands, folded, html_of, noted, page, with_spread
from harness.wording import counted, in_points, letter, listed, shortened, sizes_text, some_of


def results_view(grid: Grid, caption: Caption) -> View:
    """A table for each size, of one column one table with the sizes side by side."""
    r = grid.resolved
    letters, notes = footnotes(grid)
    leading = sets_of_the_best(grid)

    def rows(columns: Sequence[tuple[int, str]]) -> list[list[str]]:
        found = []
        for title in (*r.printed_rows, *r.averages):
            places = [(size, title, column) for size, column in columns]
            cells = [grid.cells[place] for place in places]
            marks = [",".join(letters[note] for note in cell.notes) for cell in cells]
            texts = [_text(grid, cell, place in leading) for cell, place in zip(cells, places, strict=True)]
            found.append([title, *map(noted, texts, marks)])
            if r.comparable and any(cell.paper is not None for cell in cells):
                found.append([f"{title} (paper)", *(_score(cell.paper, cell.paper_spread) for cell in cells)])
        return found

    if len(grid.columns) == 1 < len(r.sizes):
        (column,) = grid.columns
        head = ["Method", *(grid.size_name(size) for size in r.sizes)]
        tables = [Table(grid.column_name(column), head, rows([(size, column) for size in r.sizes]))]
    else:
        head = ["Method", *(grid.column_name(column) for column in grid.columns)]
        parts = {size: rows([(size, column) for column in grid.columns]) for size in r.sizes}
        tables = [Table(grid.size_name(size), head, part) for size, part in parts.items()]
    about: dict[str, Any] = {"protocol": r.protocol.name, "preset": r.preset, "comparable": r.comparable}
    about |= {name: [*getattr(r, name)] for name in ("sizes", "subsets", "seeds")}
    about |= {name: without_folders(getattr(r, name)) for name in ("encoder", "data")}
    about |= {"incomparable": [*map(without_folders, r.incomparable)], "footnotes": notes, "cells": cell_records(grid)}
    about = {"table": r.table.name, "title": r.table.title, **about}
    return View("results", grid.results, tables, caption_lines(grid, caption), about=about, notes=notes)


def notes_view(grid: Grid, caption: Caption) -> View:
    """What a reader of a paper asks of the table: terms, examples, selection, verdicts and what its plan says of the data."""
    lines = note_lines(grid, caption)
    return View("notes", pd.DataFrame({"note": lines}), [], lines, about={"table": grid.resolved.table.name})


def _text(grid: Grid, cell: Cell, leads: bool) -> str:
    """A cell: its value, how many of its runs are done, or a dash."""
    if cell.skip:
        return DASH
    if not cell.complete or cell.value is None:
        return f"{cell.done}/{cell.expected}"
    text = _score(cell.value, cell.spread if grid.resolved.aggregate.spread != "none" else None)
    return best(text) if leads else text


def _score(value: float | None, spread: float | None) -> str:
    return "" if value is None else with_spread(in_points(value), "" if spread is None else in_points(spread))


def cell_records(grid: Grid) -> list[dict[str, Any]]:
    """Cells as flat records, in the order of the grid."""
    cells, leading = [], sets_of_the_best(grid)
    for place, cell in grid.cells.items():
        spec = grid.resolved.columns.get(place[2])
        found: dict[str, Any] = dict(zip(("size", "row", "column"), place, strict=True))
        found |= {name: getattr(spec, name, "") for name in ("task", "metric", "evaluation")}
        found |= {**asdict(cell), "notes": [f"{note.kind}: {note.reason}" for note in cell.notes]}
        cells.append(found | {"in_best_set": place in leading})
    return cells


def results_page(grid: Grid, caption: Caption, views: Mapping[str, View | str], again: Sequence[str]) -> str:
    """The page of a table: its conclusion, then its views one after another. `views`: those after the table by their titles, or why there is none; the first
    sentence of the first is the conclusion. `again`: the commands that make the table and the page again."""
    r, (title, *subtitle) = grid.resolved, title_lines(grid)
    methods = [f"{METHODS[part].title}: {METHODS[part].full_name}. {METHODS[part].citation}." for part in r.methods]
    found = next(iter(views.values()))
    named = {name: html_of((), [view]) if isinstance(view, str) else view.html for name, view in views.items()}
    sections = [
        ("results", "Results", results_view(grid, caption).html),
        *((name.split()[-1].lower(), name, body) for name, body in named.items()),
        ("notes", "Notes", folded("Methods, terms and data", html_of((), methods) + notes_view(grid, caption).html)),
        ("again", "How to make it again", commands(again)),
    ]
    lead = found if isinstance(found, str) else found.lines[0]
    return page(f"{r.table.name}: {title.rstrip('.')}", " ".join(subtitle), sections, lead)


@dataclass(frozen=True)
class Caption:
    """What a caption says besides the grid. `num_runs`: distinct training runs; `data_source`: where the text came from.

    `examples`: of each column, how many; `hardware`: every distinct provenance of the runs; `others`: whose rows another system trained.
    """

    num_runs: int
    data_source: str = ""
    examples: Sequence[str] = ()
    hardware: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def title_lines(grid: Grid) -> list[str]:
    """The least that a caption says: what the table shows, for how many training examples and runs, and what ± is."""
    r = grid.resolved
    sizes, source = sizes_text(r.sizes, r.protocol.size_unit), r.table.source if about_paper(r) else None
    columns = listed(dict.fromkeys(column.title for column in r.columns.values()))
    title = f"{r.table.title}, {sizes} ({source.paper}, {source.table})." if source else f"{columns}, {sizes}."
    design, label = counted(len(r.seeds), "seed"), r.aggregate.label
    subsets, runs = (max(map(len, map(at, r.sizes))) for at in (r.subsets_at, r.replicates_at))
    design = f"{counted(subsets, 'subset')} x {design}" if any(r.sizes) or subsets > 1 else design
    configurations = {count for rows in r.printed_rows.values() for count in _configurations(r, rows)}
    if r.aggregate.select == "none" and (most := max(configurations)) > 1:
        design, runs = f"{'up to ' * (len(configurations) > 1)}{most} configurations x {design}", runs * most
    if any(r.sizes) and 0 in r.sizes and len(r.subsets_at(0)) < len(r.subsets):
        design += f" (full training set: {counted(len(r.seeds), 'seed')})"
    ddof = r.aggregate.ddof
    label += f" ± standard deviation (ddof {ddof})" if r.aggregate.spread == "std" and runs > ddof else ""
    scored = "Test" if r.scored_set == "test set" else "Dev"
    return [title, f"{scored} scores in points (x100): {f'{label} over {design}' if runs > 1 else 'one run a cell'}."]


def _configurations(r: ResolvedTable, rows: Iterable[ResolvedRow]) -> set[int]:
    """Of how many configurations the cells of a printed row have runs."""
    return {sum(task in row.tasks for row in rows) for task in r.tasks} - {0} or {1}


def caption_lines(grid: Grid, caption: Caption) -> list[str]:
    """What stands below the table, a sentence a line: the title, what ± and marks are, data and hardware, verdicts."""
    r, rows = grid.resolved, [*grid.resolved.printed_rows]
    lines = title_lines(grid)
    filled = Counter(place[::2] for place, cell in grid.cells.items() if cell.value is not None)
    if sets_of_the_best(grid):
        lines.append(BEST)
    elif len(rows) > 1 and max(filled.values(), default=0) > 1:
        lines.append("No cell is marked: in no column does 'harness compare' find a row below the best.")
    if partial := next((cell for cell in grid.cells.values() if not cell.complete and not cell.skip), None):
        done = f"{partial.done} of {counted(partial.expected, 'run')} done"
        lines.append(f"{partial.done}/{partial.expected} in a cell: {done}, no {r.aggregate.label} yet.")
    machines = sorted(set(caption.hardware))
    where = f" on {len(machines)} kinds of machines" if len(machines) > 1 else f" on {machines[0]}" if machines else ""
    lines.append(f"Data: {caption.data_source or r.data}. {counted(caption.num_runs, 'training run')}{where}.")
    lines += caption.others
    if about_paper(r) and r.table.paper:
        lines += _verdict_lines(grid)[:1]
    return [*map(without_folders, lines)]


def note_lines(grid: Grid, caption: Caption) -> list[str]:
    """The rest, a sentence a line: terms, examples, selection, verdicts, machines and the notes of table and plan."""
    r = grid.resolved
    lines = [*_term_lines(grid), *_data_lines(r, caption)]
    lines += _verdict_lines(grid)[1 if r.table.paper else 0 :] if about_paper(r) else []
    machines = sorted(set(caption.hardware))
    if len(machines) > 1:
        why = "Run on different machines, which round differently; training can amplify that to a few test examples"
        lines.append(f"{why}: {'; '.join(machines)}.")
    return [*map(without_folders, (*lines, *(r.table.notes if about_paper(r) else ()), *caption.notes))]


def _term_lines(grid: Grid) -> Iterator[str]:
    """What Avg, means of rows and selected configurations are, each only where it occurs."""
    r = grid.resolved
    yield from means_lines(grid, "marks")
    if has_average(r) and any(not cell.skip for (_, _, column), cell in grid.cells.items() if column == AVERAGE):
        names = "; ".join(listed(r.columns[column].title for column in group) for group in r.average_over)
        over = "the columns" if r.aggregate.average_over is None else names
        within = f"{over} within each replicate, then the {r.aggregate.label} over replicates"
        yield f"Avg: the mean over {f'the cells of {over}' if r.aggregate.average == 'of_cells' else within}."
    for title, rows in r.averages.items():
        spread = "; ±: of all runs of which these are made" if r.aggregate.spread == "std" else ""
        yield f"{title}: the mean over the cells of {listed(rows)}{spread}."
    yield from _selection_lines(grid)


def _selection_lines(grid: Grid) -> Iterator[str]:
    """Which configurations count, where rows have several."""
    r = grid.resolved
    several = [title for title, rows in r.printed_rows.items() if max(_configurations(r, rows)) > 1]
    if not several:
        return
    if r.aggregate.select == "none":
        yield f"{listed(several)}: all runs of several configurations count."
        return
    rule = RULES[r.aggregate.selected_by].format(k=r.aggregate.k)
    each = "task" if r.aggregate.select == "per_task" else "task and subset"
    selected = {place: cell.selected for place, cell in grid.cells.items() if cell.selected}
    found = [f"{row} {grid.title(column)} {_short_size(n)}: {listed(of)}" for (n, row, column), of in selected.items()]
    chosen = f" ({'; '.join(found)})" if found else ""
    yield f"{listed(several)}: for each {each} the configuration with the highest {rule} of dev scores counts{chosen}."


def _data_lines(r: ResolvedTable, caption: Caption) -> Iterator[str]:
    if caption.examples:
        yield f"Examples: {'; '.join(caption.examples)}."
    last, scored = r.selection_every == LAST, " and scored once on test"
    if r.protocol.scores_dev:
        which = "The last checkpoint is scored" if last else "The checkpoint is selected by its score, and scored,"
        yield f"{which} on the development set."
    else:
        which = "The last checkpoint is evaluated on dev" if last else "The checkpoint is selected by its dev score"
        yield f"{which}{scored if r.aggregate.scores == 'test' else ', which is the score shown'}."


def _verdict_lines(grid: Grid) -> list[str]:
    """Counts of verdicts, the cells outside the interval, and each reason for no verdict with its number of cells."""
    table = grid.resolved.table
    if not table.paper:
        ours = table.source is None or table.source.values_of
        what = "No paper prints this table" if ours else "The paper draws this figure and prints no number of it"
        return [f"{what}, so no cell is compared with one."]
    if grid.resolved.incomparable:
        return [f"Not comparable with the paper's numbers because {'; '.join(grid.resolved.incomparable)}."]
    cells = [(place, cell) for place, cell in grid.cells.items() if cell.verdict]
    if not cells:
        return []
    counts = Counter[str](cell.verdict for _, cell in cells)
    order = ("agrees", "higher", "lower", "incomplete", "not comparable")
    lines = ["Against the paper: " + ", ".join(f"{counts[v]} {v}" for v in order if counts[v]) + "."]
    if halves := [cell.half_width for _, cell in cells if cell.half_width is not None]:
        lines.append(
            f"Agrees: the difference lies within its interval over crossed subsets and seeds, ±{in_points(max(halves))} points at most; all intervals hold "
            f"together with 95 % for the {counted(family(grid.resolved), 'number')} of the paper that can be compared, for this test set."
        )
    apart: dict[str, list[str]] = {"higher": [], "lower": []}
    for (size, row, column), cell in cells:
        if cell.verdict in apart and cell.value is not None and cell.paper is not None and cell.half_width is not None:
            ends = f"{in_points(cell.value - cell.paper, sign=True)}, interval ±{in_points(cell.half_width)}"
            apart[cell.verdict].append(f"{row} {grid.title(column)} {_short_size(size)} ({ends})")
    lines += [f"{verdict.capitalize()} than the paper: {'; '.join(of)}." for verdict, of in apart.items() if of]
    why = Counter(reason for _, cell in cells for reason in cell.why)
    reasons = "; ".join(f"{reason} ({counted(n, 'cell')})" for reason, n in why.items())
    return [*lines, *([f"Not comparable: {reasons}."] if why else [])]


def footnotes(grid: Grid) -> tuple[dict[Note, str], list[str]]:
    """A letter for each reason in order of first appearance, and its line: how many runs, and which; of what is not run, the rows and columns."""
    notes = dict.fromkeys(note for cell in grid.cells.values() for note in cell.notes)
    letters, lines = {note: letter(k) for k, note in enumerate(notes)}, []
    for note, mark in letters.items():
        if note.kind == "skipped":
            columns: dict[str, list[str]] = {}
            for (_, row, column), cell in grid.cells.items():
                if note in cell.notes:
                    columns.setdefault(row, []).append(grid.title(column))
            every = {row for (_, row, _), cell in grid.cells.items() if not cell.skip}
            rows = [f"{row} on {listed(dict.fromkeys(of))}" if row in every else row for row, of in columns.items()]
            lines.append(f"{mark}: {some_of(rows)} not run: {shortened(note.reason)}.")
            continue
        runs = grid.runs[grid.runs["note"] == note]
        places = zip(*(runs[name] for name in ("configuration", "task", "size", "subset", "seed")), strict=True)
        names = [f"{row} {task} {_short_size(size)} subset{a} seed{b}" for row, task, size, a, b in places]
        names = [*dict.fromkeys(names)]
        lines.append(f"{mark}: {counted(len(names), 'run')} {note.kind} ({shortened(note.reason)}): {some_of(names)}.")
    return letters, lines


def _short_size(size: int) -> str:
    return f"n{size}" if size else "full"
