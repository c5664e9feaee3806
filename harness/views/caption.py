"""Caption and footnotes of a table, as text without markup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.paths import without_folders
from harness.planning.aggregation import AVERAGE, RULES
from harness.planning.recipe import LAST
from harness.planning.resolved import ResolvedTable
from harness.planning.row import ResolvedRow
from harness.scores import Examples
from harness.views.cells import Cell, Grid, Note, family, has_average, own_scores
from harness.views.ranks import BEST, sets_of_the_best
from harness.views.runs import means_lines
from harness.views.settings import about_paper
from harness.wording import counted, in_points, letter, listed, shortened, sizes_text, some_of

SHOWN_CLASSES = 6


@dataclass(frozen=True)
class Caption:
    """What a caption says besides the grid. `num_runs`: distinct training runs; `data_source`: where the text came from.

    `examples` by column; `hardware`: every distinct provenance of the runs; `others`: whose rows another system trained.
    """

    num_runs: int
    data_source: str = ""
    examples: Mapping[str, Examples] = field(default_factory=dict)
    hardware: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def title_lines(grid: Grid) -> list[str]:
    """The least that a caption says: what the table shows, for how many training examples and runs, and what ± is."""
    r = grid.resolved
    sizes = sizes_text(r.sizes, r.size_unit)
    source = r.table.source
    if source and about_paper(r):
        title = f"{r.table.title}, {sizes} ({source.paper}, {source.table})."
    else:
        title = f"{listed(dict.fromkeys(column.title for column in r.columns.values()))}, {sizes}."
    design = counted(len(r.seeds), "seed")
    subsets, runs = (max(map(len, map(at, r.sizes))) for at in (r.subsets_at, r.replicates_at))
    design = f"{counted(subsets, 'subset')} x {design}" if any(r.sizes) or subsets > 1 else design
    counts = {count for rows in r.printed_rows.values() for count in _configurations(r, rows)}
    if r.aggregate.select == "none" and max(counts) > 1:
        design = f"{'up to ' if len(counts) > 1 else ''}{max(counts)} configurations x {design}"
        runs *= max(counts)
    if any(r.sizes) and 0 in r.sizes and len(r.subsets_at(0)) < len(r.subsets):
        design += f" (full training set: {counted(len(r.seeds), 'seed')})"
    if r.aggregate.spread == "std" and runs > r.aggregate.ddof:
        what = f"{r.aggregate.label} ± standard deviation (ddof {r.aggregate.ddof}) over {design}"
    else:
        what = f"{r.aggregate.label} over {design}" if runs > 1 else "one run a cell"
    scored = "Test" if r.scored_set == "test set" else "Dev"
    return [title, f"{scored} scores in points (x100): {what}."]


def _configurations(r: ResolvedTable, rows: Iterable[ResolvedRow]) -> set[int]:
    """Of how many configurations the cells of a printed row have runs."""
    return {sum(r.takes(row, task) for row in rows) for task in r.tasks} - {0} or {1}


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
    """What the terms of the table mean, each only where it occurs."""
    r = grid.resolved
    several = any(len(r.subsets_at(size)) > 1 for size in r.sizes)
    terms = ["subset: one draw of the training examples, the same for all methods"] if several else []
    terms += [f"seed: fixes all {'other ' if terms else ''}randomness of a run"] if len(r.seeds) > 1 else []
    if terms:
        yield f"{'; '.join(terms).capitalize()}."
    yield from means_lines(grid, "marks and ranks")
    if has_average(r) and any(not cell.skip for (_, _, column), cell in grid.cells.items() if column == AVERAGE):
        yield _average_line(r)
    for title, rows in r.averages.items():
        spread = "; ±: of all runs of which these are made" if r.aggregate.spread == "std" else ""
        yield f"{title}: the mean over the cells of {listed(rows)}{spread}."
    yield from _selection_lines(grid)


def _average_line(r: ResolvedTable) -> str:
    names = [listed(r.columns[column].title for column in group) for group in r.average_over]
    columns = "the columns" if r.aggregate.average_over is None else "; ".join(names)
    if r.aggregate.average == "of_cells":
        return f"Avg: the mean over the cells of {columns}."
    return f"Avg: the mean over {columns} within each replicate, then the {r.aggregate.label} over replicates."


def _selection_lines(grid: Grid) -> Iterator[str]:
    """Which configurations count, where rows have several."""
    r = grid.resolved
    several = [title for title, rows in r.printed_rows.items() if max(_configurations(r, rows)) > 1]
    if not several:
        return
    if r.aggregate.select == "none":
        yield f"{listed(several)}: all runs of several configurations count."
        return
    rule = RULES[r.aggregate.select_by or r.aggregate.center].label.format(k=r.aggregate.k)
    each = "task" if r.aggregate.select == "per_task" else "task and subset"
    found = [
        f"{row} {grid.title(column)} {_short_size(size)}: {listed(cell.selected)}"
        for (size, row, column), cell in grid.cells.items()
        if cell.selected
    ]
    chosen = f" ({'; '.join(found)})" if found else ""
    yield f"{listed(several)}: for each {each} the configuration with the highest {rule} of dev scores counts{chosen}."


def _data_lines(r: ResolvedTable, caption: Caption) -> Iterator[str]:
    found = [_examples(r.columns[name].title, each) for name, each in caption.examples.items()]
    if found:
        yield f"Examples: {'; '.join(found)}."
    last, scored = r.selection_every == LAST, " and scored once on test"
    if r.scores_dev:
        which = "The last checkpoint is scored" if last else "The checkpoint is selected by its score, and scored,"
        yield f"{which} on the development set."
    else:
        which = "The last checkpoint is evaluated on dev" if last else "The checkpoint is selected by its dev score"
        yield f"{which}{scored if r.aggregate.scores == 'test' else ', which is the score shown'}."


def _examples(title: str, examples: Examples) -> str:
    several = f"{examples.least:,} to " if 0 < examples.least < examples.full else ""
    train = f"train {several}{examples.full:,}, " if examples.full else ""
    dev, test = (shares(each) for each in (examples.dev_classes, examples.test_classes))
    return f"{title} {train}dev {examples.dev:,}{dev}, test {examples.test:,}{test}"


def shares(classes: Mapping[str, int]) -> str:
    """' (good 49 %, bad 51 %)'; of many classes the largest."""
    total = sum(classes.values())
    if not total:
        return ""
    shown = classes.items() if len(classes) <= SHOWN_CLASSES else [max(classes.items(), key=lambda pair: pair[1])]
    text = ", ".join(f"{name} {100 * count / total:.0f} %" for name, count in shown)
    return f" ({text})" if len(shown) == len(classes) else f" ({len(classes)} classes, the largest {text})"


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
    halves = [cell.half_width for _, cell in cells if cell.half_width is not None]
    if halves:
        lines.append(
            f"Agrees: the difference lies within its interval over crossed subsets and seeds, ±{in_points(max(halves))} points at most; all intervals hold "
            f"together with 95 % for the {counted(family(grid.resolved), 'number')} of the paper that can be compared, for this test set."
        )
    for verdict in ("higher", "lower"):
        found = [
            f"{row} {grid.title(column)} {_short_size(size)} ({in_points((cell.value or 0) - (cell.paper or 0), sign=True)}, "
            f"interval ±{in_points(cell.half_width or 0)})"
            for (size, row, column), cell in cells
            if cell.verdict == verdict
        ]
        lines += [f"{verdict.capitalize()} than the paper: {'; '.join(found)}."] if found else []
    why = Counter(reason for _, cell in cells for reason in cell.why)
    reasons = "; ".join(f"{reason} ({counted(n, 'cell')})" for reason, n in why.items())
    return [*lines, *([f"Not comparable: {reasons}."] if why else [])]


def footnotes(grid: Grid) -> tuple[dict[Note, str], list[str]]:
    """A letter for each reason in order of first appearance, and its line: how many runs, and which."""
    letters: dict[Note, str] = {}
    for cell in grid.cells.values():
        for note in cell.notes:
            letters.setdefault(note, letter(len(letters)))
    members: dict[Note, list[str]] = {note: [] for note in letters}
    scores = own_scores(grid.resolved, grid.results)
    run: Any
    for run in scores[scores["note"].isin(list(members))].itertuples():
        place = f"{run.task} {_short_size(run.size)} subset{run.subset} seed{run.seed}"
        members[run.note].append(f"{run.configuration} {place}")
    lines = []
    for note, mark in letters.items():
        if note.kind == "skipped":
            lines.append(f"{mark}: {_skipped(grid, note)} not run: {shortened(note.reason)}.{_no_average(grid, note)}")
            continue
        runs = list(dict.fromkeys(members[note]))
        lines.append(f"{mark}: {counted(len(runs), 'run')} {note.kind} ({shortened(note.reason)}): {some_of(runs)}.")
    return letters, lines


def _skipped(grid: Grid, note: Note) -> str:
    """'SCL on STS-B and QQP', 'CSSL' where none of its cells is run."""
    places: dict[str, dict[str, Cell]] = {}
    for (_, row, column), cell in grid.cells.items():
        if column != AVERAGE:
            places.setdefault(row, {})[grid.title(column)] = cell
    found = []
    for row, cells in places.items():
        titles = [title for title, cell in cells.items() if note in cell.notes]
        if titles:
            found.append(row if len(titles) == len(cells) else f"{row} on {listed(titles)}")
    return some_of(found)


def _no_average(grid: Grid, note: Note) -> str:
    """A sentence for a row that has scores in some columns but no Avg."""
    for (_, row, column), cell in grid.cells.items():
        others = [c for (_, name, _), c in grid.cells.items() if name == row and not c.skip]
        if column == AVERAGE and note in cell.notes and others:
            return " It has no Avg either: a mean over fewer columns is not comparable."
    return ""


def _short_size(size: int) -> str:
    return f"n{size}" if size else "full"
