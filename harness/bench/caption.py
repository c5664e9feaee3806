"""What stands around a table: the caption's sentences and the footnotes, as text without markup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.bench.aggregate import Grid, Note, has_average, notes_of

SHOWN_MEMBERS = 6


@dataclass(frozen=True)
class Caption:
    """What the grid does not know. `num_runs`: distinct training runs behind it; `data_source`: where the text came from.

    `shared_texts`: by task, how many texts stand in both train and test; `hardware`: every distinct provenance of the runs.
    """

    num_runs: int
    data_source: str = ""
    shared_texts: Mapping[str, int] = field(default_factory=dict)
    hardware: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def caption_lines(grid: Grid, caption: Caption, bold: bool = True) -> list[str]:
    """The caption, a sentence a line, without markup: source, what ± is, protocol, deviations, verdicts, provenance."""
    r = grid.resolved
    design = f"{counted(len(r.subsets), 'subset')} x {counted(len(r.seeds), 'seed')}"
    if r.aggregate.spread == "std":
        what = f"mean ± standard deviation (ddof {r.aggregate.ddof}) over {design}"
        what += "; replicates of one subset are one cluster" if len(r.subsets) > 1 else ""
    else:
        what = f"mean over {design}"
    lines = [
        f"{r.table.title} ({r.table.source.paper}, {r.table.source.table}).",
        f"Values are in points (x100): {what}.",
        f"{'Bold' if bold else 'Star'}: the best complete cell of its column; 7/15 would mean that 7 of 15 runs are done "
        "and no mean is shown yet.",
    ]
    if has_average(r):
        lines.append("Avg is the mean over the columns within each replicate, then over replicates.")
    lines.append(
        f"Protocol {r.table.protocol}, encoder {r.encoder}, preset {r.preset}, data {caption.data_source or r.data}; "
        f"the checkpoint is selected on dev every {r.selection_every} updates and at the end, and scored on test."
    )
    whose = "the paper" if r.table.paper else "the preset paper"
    if r.deviations:
        lines.append(f"Differs from {whose}: {'; '.join(r.deviations)}.")
    else:
        lines.append(f"Encoder, data and recipe are {whose}'s.")
    lines += _verdict_lines(grid)
    shared = ", ".join(f"{task} {count}" for task, count in sorted(caption.shared_texts.items()))
    if shared:
        lines.append(f"Texts that stand in both train and test: {shared}.")
    hardware = sorted(set(caption.hardware))
    if len(hardware) > 1:
        lines.append(f"Mixed provenance, numbers agree to rounding only: {'; '.join(hardware)}.")
    elif hardware:
        lines.append(f"Run on {hardware[0]}.")
    lines.append(f"Runs: {caption.num_runs}.")
    about_paper = r.table.notes if set(r.tasks) & set(r.table.tasks) else ()
    return [*lines, *about_paper, *caption.notes]


def _verdict_lines(grid: Grid) -> list[str]:
    """Counts of verdicts, the cells outside the interval, and each reason for no verdict with its number of cells."""
    if not grid.resolved.table.paper:
        return ["No paper prints this table, so no cell is held against one."]
    if grid.resolved.incomparable:
        return [f"Not comparable with the paper's numbers because {'; '.join(grid.resolved.incomparable)}."]
    cells = [(place, cell) for place, cell in grid.cells.items() if cell.verdict]
    if not cells:
        return []
    counts = Counter[str](cell.verdict for _, cell in cells)
    order = ("agrees", "higher", "lower", "incomplete", "not comparable")
    lines = [
        "Against the paper: "
        + ", ".join(f"{counts[v]} {v}" for v in order if counts[v])
        + " (agrees: within the 95 % interval of the difference from the spread between subsets, or between seeds where "
        "there is one subset; the draw of the test set is not in it)."
    ]
    for verdict in ("higher", "lower"):
        found = [
            f"{row} {grid.title(column)} {_short_size(size)} ({points(cell.value - cell.paper, sign=True)}, "
            f"interval ±{points(cell.half_width)})"
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
    """A letter for each reason in order of first appearance, and a line for each: how many runs, and which."""
    letters: dict[Note, str] = {}
    for cell in grid.cells.values():
        for note in cell.notes:
            letters.setdefault(note, letter(len(letters)))
    members: dict[Note, list[str]] = {note: [] for note in letters}
    for r in grid.replicates:
        task = grid.resolved.columns[r.column].task
        for note in notes_of(r):
            members[note].append(f"{r.row} {task} {_short_size(r.size)} subset{r.subset} seed{r.seed}")
    for row in grid.resolved.rows:
        if row.skip:
            members[Note("skipped", row.skip)].append(row.name)
    lines = []
    for note, mark in letters.items():
        runs = list(dict.fromkeys(members[note]))
        named = ", ".join(runs[:SHOWN_MEMBERS]) + (
            f", and {len(runs) - SHOWN_MEMBERS} more" if len(runs) > SHOWN_MEMBERS else ""
        )
        kind = "row" if note.kind == "skipped" else "run"
        reason = note.reason if len(note.reason) <= 200 else note.reason[:197] + "..."
        lines.append(f"{mark}: {counted(len(runs), kind)} {note.kind} ({reason}): {named}.")
    return letters, lines


def points(value: float, sign: bool = False) -> str:
    """A value with 1 for 100 % in points with two decimals, never -0.00."""
    text = f"{100 * value:+.2f}" if sign else f"{100 * value:.2f}"
    return text.replace("-", "") if float(text) == 0 else text


def letter(index: int) -> str:
    """a, b, ..., z, aa, ab, ..."""
    text = chr(ord("a") + index % 26)
    return text if index < 26 else letter(index // 26 - 1) + text


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _short_size(size: int) -> str:
    return f"n{size}" if size else "full"
