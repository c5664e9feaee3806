"""Caption and footnotes of a table, as text without markup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.methods import METHODS, hyperparameters
from harness.tables.aggregation import AVERAGE, RULES
from harness.tables.cells import Cell, Grid, Note, has_average, own_scores
from harness.tables.class_report import ClassReport
from harness.tables.recipe import LAST
from harness.tables.resolve import ResolvedTable
from harness.tables.row import Row
from harness.tables.values import PHASE_WORDS, by_origin, listed, phase_words, sizes_text, used, words
from harness.tasks import protocol_named

SHOWN_MEMBERS = 6
SHOWN_CLASSES = 6
MAX_REASON = 200


@dataclass(frozen=True)
class Examples:
    """Numbers of dev and test examples of a column; `full`: of its whole training set, 0 where that is not used; `least`: of the smallest
    one, where each subset has another.

    `dev_classes`, `test_classes`: counts by class name, for a task of the user's own; else empty.
    """

    dev: int
    test: int
    full: int = 0
    dev_classes: Mapping[str, int] = field(default_factory=dict)
    test_classes: Mapping[str, int] = field(default_factory=dict)
    least: int = 0


@dataclass(frozen=True)
class Caption:
    """What a caption says besides the grid. `num_runs`: distinct training runs; `data_source`: where the text came from.

    `examples` by column; `hardware`: every distinct provenance of the runs; `class_reports`: of the user's own tasks.
    """

    num_runs: int
    data_source: str = ""
    examples: Mapping[str, Examples] = field(default_factory=dict)
    hardware: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    class_reports: tuple[ClassReport, ...] = ()


def about_paper(resolved: ResolvedTable) -> bool:
    """Whether a task is one of the table's own. Otherwise only the table's protocol and recipe are used."""
    return resolved.table.source is not None and bool(set(resolved.tasks) & set(resolved.table.tasks))


def title_lines(grid: Grid) -> list[str]:
    """The least that a caption says: what the table shows, for how many training examples and runs, and what ± is."""
    r = grid.resolved
    sizes = sizes_text(r.sizes)
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
    return [title, f"{r.aggregate.scores.capitalize()} scores in points (x100): {what}."]


def _configurations(r: ResolvedTable, rows: Iterable[Row]) -> set[int]:
    """Of how many configurations the cells of a printed row have runs."""
    return {sum(r.takes(row, task) for row in rows) for task in r.tasks} - {0} or {1}


def note_lines(grid: Grid, caption: Caption, bold: bool = True) -> list[str]:
    """The rest of the caption, one sentence a line: terms, data, values and their origins, verdicts."""
    r = grid.resolved
    lines = [*_term_lines(grid, bold), *_data_lines(r, caption), *_value_lines(r)]
    if about_paper(r):
        lines += _verdict_lines(grid)
    hardware = sorted(set(caption.hardware))
    if len(hardware) > 1:
        lines.append(f"Run on different machines, between which numbers agree up to rounding: {'; '.join(hardware)}.")
    elif hardware:
        lines.append(f"Run on {hardware[0]}.")
    lines.append(f"Runs: {caption.num_runs}; rows that are one computation share runs.")
    return [*lines, *(r.table.notes if about_paper(r) else ()), *caption.notes]


def caption_lines(grid: Grid, caption: Caption, bold: bool = True) -> list[str]:
    """The whole caption, one sentence a line."""
    return [*title_lines(grid), *note_lines(grid, caption, bold)]


def _term_lines(grid: Grid, bold: bool) -> Iterator[str]:
    """What the marks and terms of the table mean, each only where it occurs."""
    r = grid.resolved
    several = any(len(r.subsets_at(size)) > 1 for size in r.sizes)
    terms = ["subset: one draw of the training examples, the same for all methods"] if several else []
    terms += [f"seed: fixes all {'other ' if terms else ''}randomness of a run"] if len(r.seeds) > 1 else []
    if terms:
        yield f"{'; '.join(terms).capitalize()}."
    if any(cell.best for cell in grid.cells.values()):
        yield f"{'Bold' if bold else 'Star'}: the highest {r.aggregate.label} of its column."
    partial = next((cell for cell in grid.cells.values() if not cell.complete and not cell.skip), None)
    if partial:
        yield f"{partial.done}/{partial.expected} in a cell: {partial.done} of {counted(partial.expected, 'run')} done, no {r.aggregate.label} yet."
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
    yield f"Data: {caption.data_source or r.data}."
    found = [_examples(r.columns[name].title, each) for name, each in caption.examples.items()]
    if found:
        yield f"Examples: {'; '.join(found)}."
    yield f"Protocol {r.protocol}, recipe of table {r.table.name}, preset {r.preset}. {_checkpoint_words(r)}"


def _checkpoint_words(r: ResolvedTable) -> str:
    last = r.selection_every == LAST
    if protocol_named(r.protocol).scores_dev:
        return f"{'The last checkpoint is scored' if last else 'The checkpoint is selected by its score, and scored,'} on the development set."
    which = "The last checkpoint is evaluated on dev" if last else "The checkpoint is selected by its dev score"
    return f"{which}{' and scored once on test' if r.aggregate.scores == 'test' else ', which is the score shown'}."


def _examples(title: str, found: Examples) -> str:
    several = f"{found.least:,} to " if 0 < found.least < found.full else ""
    train = f"train {several}{found.full:,}, " if found.full else ""
    dev, test = (shares(each) for each in (found.dev_classes, found.test_classes))
    return f"{title} {train}dev {found.dev:,}{dev}, test {found.test:,}{test}"


def shares(classes: Mapping[str, int]) -> str:
    """' (good 49 %, bad 51 %)'; of many classes the largest."""
    total = sum(classes.values())
    if not total:
        return ""
    shown = classes.items() if len(classes) <= SHOWN_CLASSES else [max(classes.items(), key=lambda pair: pair[1])]
    text = ", ".join(f"{name} {100 * count / total:.0f} %" for name, count in shown)
    return f" ({text})" if len(shown) == len(classes) else f" ({len(classes)} classes, the largest {text})"


def _value_lines(r: ResolvedTable) -> Iterator[str]:
    """The values in use, with their origins for a table that names origins and tasks of its paper."""
    by_letter = by_origin(r) if about_paper(r) else {}
    if by_letter:
        yield from _origin_lines(r, by_letter)
    else:
        values = {path: value for path, value in used(r).items() if not path.startswith(_ELSEWHERE)}
        yield f"Recipe: {words(r, values)}."
    own = {row.title: _row_settings(row) for row in r.rows if not row.configuration_of}
    if any(own.values()):
        yield f"Set by rows: {'; '.join(f'{name}: {text}' for name, text in own.items() if text)}."
    if about_paper(r) and r.deviations:
        yield f"Changed here from the table's own setting: {'; '.join(r.deviations)}."
    elif not about_paper(r) and (settings := _settings(r)):
        yield f"Set: {', '.join(settings)}."


def _origin_lines(r: ResolvedTable, by_letter: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    source = r.table.source
    if source and by_letter["P"]:
        yield f"From the {source.values_of or source.paper} paper: {words(r, by_letter['P'])}."
    if by_letter["R"]:
        reasons = dict.fromkeys(r.table.reason(path) for path in by_letter["R"])
        yield f"From released code ({listed(filter(None, reasons))}): {words(r, by_letter['R'])}."
    protocol = protocol_named(r.protocol).choices(r.tasks, any(r.sizes))
    chosen = [words(r, by_letter["C"]), ", ".join(protocol), *_method_choices(r)]
    yield f"Chosen here, where the paper leaves it open: {'; '.join(filter(None, chosen))}."


def _row_settings(row: Row) -> str:
    """What a row changes in the recipe, how many texts its post-training reads and how its labelled rows are augmented, in words."""
    found = [f"{phase_words(values)} in {PHASE_WORDS[phase]}" for phase, values in row.recipe_settings.items()]
    found += [f"{row.unlabelled:,} texts in post-training"] if row.unlabelled else []
    if row.augment:
        temperature = "" if row.augment.temperature is None else f", sampled at T = {row.augment.temperature:g}"
        copies = "back-translation" if row.augment.copies == 1 else "back-translations"
        found.append(f"{row.augment.copies} {copies} of each labelled row{temperature}")
    return ", ".join(found)


def _settings(r: ResolvedTable) -> list[str]:
    """'scl.temperature = 0.1' for each hyperparameter that the command line sets and a row has."""
    parts = dict.fromkeys(part for row in r.rows for part in row.parts)
    return [f"{part}.{name} = {value}" for part in parts for name, value in r.settings.get(part, {}).items()]


_ELSEWHERE = ("data", "sizes", "subsets", "seeds", "aggregate.", "translator")
"""Values that other lines of a caption give."""


def _method_choices(r: ResolvedTable) -> list[str]:
    """The methods' choices where papers are silent: 'SCL: lambda 0.9, temperature 0.3'. Of a method's later
    rows only what its first row does not say."""
    first: dict[str, tuple[str, ...]] = {}
    found: dict[str, dict[str, None]] = {}
    for row in r.rows:
        settings = {} if row.skip else r.settings_of(row)
        for part, values in settings.items():
            method = METHODS[part]
            choices = method.choices(hyperparameters(method, values, f"row {row.name}"))
            title = row.title if part in first else method.title
            new = [choice for choice in choices if choice not in first.get(part, ())]
            first.setdefault(part, choices)
            found.setdefault(title, {}).update(dict.fromkeys(new))
    return [f"{title}: {', '.join(choices)}" for title, choices in found.items() if choices]


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
    if counts.keys() & {"agrees", "higher", "lower"}:
        lines.append(
            "Agrees: the difference lies within its 95 % interval for crossed subsets and seeds; sampling of the test set is not "
            "included."
        )
    for verdict in ("higher", "lower"):
        found = [
            f"{row} {grid.title(column)} {_short_size(size)} ({in_points(cell.value - cell.paper, sign=True)}, "
            f"interval ±{in_points(cell.half_width)})"
            for (size, row, column), cell in cells
            if cell.verdict == verdict
            and cell.value is not None
            and cell.paper is not None
            and cell.half_width is not None
        ]
        if found:
            lines.append(f"{verdict.capitalize()} than the paper: {'; '.join(found)}.")
    why = Counter(reason for _, cell in cells for reason in cell.why)
    if why:
        lines.append(
            "Not comparable: " + "; ".join(f"{reason} ({counted(n, 'cell')})" for reason, n in why.items()) + "."
        )
    return lines


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


def shortened(reason: str) -> str:
    return reason if len(reason) <= MAX_REASON else reason[: MAX_REASON - 3] + "..."


def some_of(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = f", and {len(names) - SHOWN_MEMBERS} more" if len(names) > SHOWN_MEMBERS else ""
    return ", ".join(names[:SHOWN_MEMBERS]) + more


def in_points(value: float, sign: bool = False) -> str:
    """A value with 1 for 100 % in points with two decimals, never -0.00."""
    text = f"{100 * value:+.2f}" if sign else f"{100 * value:.2f}"
    return text.replace("-", "") if float(text) == 0 else text


def letter(index: int) -> str:
    """a, b, ..., z, aa, ab, ..."""
    text = chr(ord("a") + index % 26)
    return text if index < 26 else letter(index // 26 - 1) + text


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _short_size(size: int) -> str:
    return f"n{size}" if size else "full"


def examples(size: int) -> str:
    """For the title of a panel or a place: '1,000 examples'."""
    return f"{size:,} examples" if size else "all examples"


def training_examples(size: int) -> str:
    """For a sentence: '1,000 training examples'."""
    return f"{size:,} training examples" if size else "full training set"
