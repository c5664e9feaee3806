"""`bench`, `plan` and `report`: prepare a request, then train and print, or print."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from harness.cli import EXIT_INCOMPLETE
from harness.cli.figure import (
    print_costs,
    print_embeddings,
    print_figure,
    print_probe,
    print_variance,
    table_of_figure,
)
from harness.cli.output_file import BINARY, LONG, deliver, settle_output
from harness.cli.parser import FIGURE_FORMATS, REPORT_FORMATS
from harness.cli.printing import duration, magnitude, print_lines, print_table, size_of, time_range, timestamp
from harness.cli.request import read, recalled
from harness.commands.compare import detections_of
from harness.commands.execution import storage_of
from harness.commands.glue_submission import FORMAT as SUBMISSION
from harness.commands.glue_submission import write_submissions
from harness.commands.page import page_of
from harness.commands.prepare import MADE_LATER, Prepared, prepare, shared_runs
from harness.commands.report import (
    grid_of,
    overlap_sentences,
    own_data,
    own_tasks,
    start_sentences,
    unreached_sentences,
)
from harness.commands.stored import command, variants
from harness.commands.track import Tracking, check_trackers, projection_of, sentences, track_recorded
from harness.commands.train import train, translated
from harness.encoders import locate
from harness.encoders.flops import weights_bytes
from harness.errors import UserError
from harness.tables.caption import counted
from harness.tables.cost_figure import COST
from harness.tables.embedding_figure import EMBEDDINGS
from harness.tables.plan import Plan, make_plan
from harness.tables.probe_figure import FIGURES
from harness.tables.render import render
from harness.tables.render_power import detection_lines
from harness.tables.request import Request
from harness.tables.resolve import ResolvedTable, resolve
from harness.tables.schema import parquet_bytes
from harness.tables.task_reader import Translation
from harness.tables.values import listed, sizes_text
from harness.tables.variance_figure import VARIANCE
from harness.tracking.writer import Outcome
from harness.yaml_files import format_value

if TYPE_CHECKING:
    from harness.specs import Run
    from harness.tables.lifecycle import Event

ASK_ABOVE_HOURS = 1.0
VARIANTS = 5
"""Benches of other values that `report` names."""


# ---------------------------------------------------------------- plan


def plan(args: argparse.Namespace) -> int:
    """Print what would run; train nothing, write nothing."""
    prepared = prepare(read(args), train=False)
    shared = [
        f"{runs:,} of these runs are runs of table {name}, preset {prepared.resolved.preset}: they are trained once, for both."
        for name, runs in shared_runs(prepared).items()
        if runs
    ]
    print_lines([*preset_line(prepared), *describe(prepared), *shared], sys.stdout)
    print("\n".join(["", *_rows(prepared)]))
    if args.detect is not None:
        found = detections_of(prepared, args.detect / 100)
        print_table("\n".join(["", *detection_lines(found, duration)]), sys.stdout)
    return 0


def _rows(prepared: Prepared) -> list[str]:
    """A line for each printed row: its methods and settings, its runs, their stages, and how many of these are to be trained. A stage
    of several rows is counted as to be trained in the first of them, so that the column adds up to the plan's number."""
    resolved, left = prepared.resolved, {item.stage.key for item in prepared.items}
    titles = resolved.titles
    runs: dict[str, list[Run]] = {title: [] for title in resolved.printed_rows}
    for run in prepared.plan.runs:
        runs[titles[run.row]].append(run)
    lines = []
    for title, (row, *more) in resolved.printed_rows.items():
        stages = {stage.key for run in runs[title] for stage in run.stage.chain}
        method = f"{row.pre_train} (pre-trained) > {row.method}" if row.pre_train else row.method
        run_here = [each for each in (row, *more) if any(resolved.takes(each, task) for task in resolved.tasks)]
        settings = _settings([resolved.hyperparameters(each) for each in run_here])
        lines.append((title, method or "-", len(runs[title]), len(stages), len(stages & left), settings))
        left -= stages
    headers = ("Row", "Method", "Runs", "Stages", "To train", "Set")
    return [*tabulate(lines, headers=headers, intfmt=",", disable_numparse=[0, 1, 5]).splitlines()]


def _settings(configurations: Sequence[Mapping[str, Any]]) -> str:
    """'alpha=0.3, fine_tune.lr=1e-5|2e-5': each value once, in the order of the configurations."""
    found: dict[str, dict[str, None]] = {}
    for name, value in [each for settings in configurations for each in settings.items()]:
        found.setdefault(name, {})[format_value(value)] = None
    return ", ".join(f"{name}={'|'.join(values)}" for name, values in found.items())


def preset_line(prepared: Prepared) -> list[str]:
    """The estimated cost of the other presets, where the request names none."""
    if prepared.request.preset:
        return []
    table = prepared.named.table
    if not table.tasks:
        about = {name: preset.description.rstrip(".") for name, preset in table.presets.items()}
        mine = prepared.resolved.preset
        others = [f"{name} ({text})" for name, text in about.items() if name != mine]
        return [f"Preset {mine}: {about[mine]}. Others: {', '.join(others)}; choose one with --preset NAME."]

    def cost(preset: str) -> tuple[str, float]:
        other = unread_plan(resolve(table, Request(preset=preset)))
        return counted(len(other.stages), "stage"), prepared.hours_of(other.flops, len(other.stages))

    return [default_preset(prepared.resolved.preset, table.presets, cost)]


def unread_plan(resolved: ResolvedTable) -> Plan:
    """A plan for its cost alone: nothing is read. Raises UserError where the encoder is not at hand."""
    return make_plan(resolved, None, locate(resolved.encoder), translation=Translation())


def default_preset(default: str, presets: Iterable[str], cost: Callable[[str], tuple[str, float]]) -> str:
    """A line that names the preset in use and the others with their cost: how much there is to do, and its hours."""
    costs = []
    for name in presets:
        if name != default:
            with suppress(UserError):  # of an encoder that is not at hand the cost is unknown
                amount, hours = cost(name)
                costs.append(f"{name} ({amount}, {magnitude(hours)} on this machine)")
    others = f" Others: {', '.join(costs)}; choose one with --preset NAME." if costs else ""
    return f"Preset {default}, the default.{others}"


def describe(prepared: Prepared) -> list[str]:
    """The plan in lines: cells, runs, stages, what is done, shared, skipped, unresolved, and what the rest costs."""
    plan, resolved = prepared.plan, prepared.resolved
    titles = resolved.titles
    rows = len({titles[run.row] for run in plan.runs})
    cells = rows * len(resolved.columns) * len(resolved.sizes)
    one = any(resolved.sizes) and len(resolved.subsets_at(0)) < len(resolved.subsets) and 0 in resolved.sizes
    lines = [
        f"Table {resolved.table.name}, preset {resolved.preset}: {counted(rows, 'row')} x "
        f"{counted(len(resolved.columns), 'column')} x {counted(len(resolved.sizes), 'size')} = {counted(cells, 'cell')}, each "
        f"from {counted(len(resolved.subsets), 'subset')} x {counted(len(resolved.seeds), 'seed')}"
        f"{'; the full training set is one subset' if one else ''}.",
        *([] if resolved.table.sizes else [f"Sizes: {sizes_text(resolved.sizes)}."]),
        f"Encoder {resolved.encoder} ({plan.located.encoder.digest[:10]}), data: {plan.source}, store {prepared.store.shown}.",
        *_work_lines(prepared),
    ]
    for name, task, reason in plan.skipped:
        lines.append(f"Skipped: {name}{' on ' + task if task else ''}: {reason}.")
    lines += unreached_sentences(prepared)
    lines += [f"{name}: {found.note}" for name, found in plan.tasks.items() if found.note]
    lines += [*own_tasks(plan), *own_data(plan)]
    lines += [f"Overlap: {sentence}." for sentence in overlap_sentences(plan)]
    if plan.untranslated:
        sets = [rows for each in plan.untranslated.values() for rows in each]
        names = listed(map(resolved.translator_of, plan.untranslated))
        lines.append(
            f"Before that {sum(map(len, sets)):,} rows (row sets: {len(sets)}) are back-translated by {names}; until then the keys of "
            "the rows that read them are provisional."
        )
    lines += [f"{sentence}." for sentence in start_sentences(plan)]
    missing = [name for name in plan.unresolved if not name.startswith(MADE_LATER)]
    if missing:
        shown = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        lines.append(f"Unresolved (not at hand; keys are provisional): {shown}.")
    flops, speed = sum(item.cost for item in prepared.items), prepared.calibration
    lines.append(
        f"To do: {counted(len(prepared.items), 'stage')}, {flops:.2g} FLOPs, about {time_range(prepared.expected)} on "
        f"{counted(prepared.slots, 'slot')} of this machine, at {speed.flops / 1e9:.0f} GFLOP/s a slot, {speed.known_by}."
        if prepared.items
        else "To do: nothing."
    )
    return [*lines, *_kept_lines(prepared)]


def _kept_lines(prepared: Prepared) -> Iterator[str]:
    """The space of the weights that stay, where some are asked for."""
    request, plan = prepared.request, prepared.plan
    if request.keep == "none":
        return
    cells = len({(run.row, run.task, run.size) for run in plan.runs})
    count, what = (cells, "the best run of each cell") if request.keep == "best" else (len(plan.stages), "all stages")
    space = size_of(count * weights_bytes(plan.located.config))
    where = storage_of(request, prepared.store).shown
    yield f"Weights: those of {what} stay, {counted(count, 'file')}, about {space} in {where}; runs recorded before without theirs keep none."


def _work_lines(prepared: Prepared) -> list[str]:
    """How many runs and stages there are, and what became of the stages so far."""
    plan, statuses = prepared.plan, Counter(status for status, _ in prepared.statuses.values())
    distinct = len({run.stage.key for run in plan.runs})
    same = f" ({distinct:,} distinct: equal ones are trained once)" if distinct < len(plan.runs) else ""
    several = sum(1 for names in plan.names().values() if len(names) > 1)
    shared = f" ({several:,} of them used by several runs, trained once)" if several else ""
    remade = sum(item.remake for item in prepared.items)
    again = f" ({remade:,} of them done, but their weights are deleted and needed again)" if remade else ""
    blocked = len(prepared.blocked)
    waits = f", {blocked:,} blocked because the stage before diverged (--retry trains both)" if blocked else ""
    return [
        f"Runs: {len(plan.runs):,}, one for each row, task, size, subset and seed{same}. Stages: {len(plan.stages):,}, the "
        f"training phases of these runs{shared}.",
        f"Stages done: {statuses['done']:,}, failed: {statuses['failed']:,}, diverged: {statuses['diverged']:,}, to train: "
        f"{len(prepared.items):,}{again}{waits}.",
    ]


# ---------------------------------------------------------------- report


def report(args: argparse.Namespace) -> int:
    """Print the table from the store. Where none of its runs is recorded, say in what the benches of the store differ."""
    settle_output(args, REPORT_FORMATS)
    check_format(args.format, args.figure, args.out)
    if args.figure:
        args.table = table_of_figure(args.figure, args.table)
    request = recalled(args)
    check_trackers(request)
    prepared = prepare(request, train=False)
    recorded = any(run.stage.key in prepared.statuses for run in prepared.plan.runs)
    if prepared.plan.runs and not recorded and (lines := [*_variant_lines(prepared, args.store)]):
        print_lines(lines)
    if args.format == SUBMISSION:
        print_lines(write_submissions(prepared, Path(args.out), live), sys.stdout)
        status = 0
    elif args.figure == EMBEDDINGS:
        status = print_embeddings(prepared, args, live)
    elif args.figure == COST:
        status = print_costs(prepared, args)
    elif args.figure == VARIANCE:
        status = print_variance(prepared, args)
    elif args.figure in FIGURES:
        status = print_probe(prepared, FIGURES[args.figure], args, live)
    else:
        status = print_figure(prepared, args) if args.figure else print_grid(prepared, args)
    say_tracked(track_recorded(prepared))
    return status


def _variant_lines(prepared: Prepared, url: str | None) -> Iterator[str]:
    """The benches of the same table with other values, the newest first, and the command that prints each."""
    found = variants(prepared.store, replace(prepared.request, preset=prepared.resolved.preset))
    if found:
        yield f"None of these runs is recorded. The store {prepared.store.shown} holds benches of this table with other values:"
    for variant in found[:VARIANTS]:
        yield f"  {', '.join(variant.differs)} ({timestamp(variant.stored.asked_at)}): {command(variant.request, 'report', url)}"
    if len(found) > VARIANTS:
        yield f"  and {len(found) - VARIANTS} more: 'harness list benches' names all."


def check_format(format: str, figure: str | None = None, out: str | None = None) -> None:
    """Raises UserError for a format that goes with a figure only, or not with one, and for a file that no terminal shows."""
    if figure and format not in (*FIGURE_FORMATS, "csv", *(["text"] if figure in FIGURES else [])):
        raise UserError(f"--figure {figure}: a figure is png, svg, pdf or csv; add --format png, for example.")
    if format in FIGURE_FORMATS and not figure:
        raise UserError(f"--format {format}: a table has no picture; name a figure with --figure NAME.")
    if format in LONG and not out and sys.stdout.isatty():
        what, name = (f"--figure {figure} ", figure) if figure else ("", "results")
        why = "the file is binary" if format in BINARY else "a page is for a browser"
        raise UserError(
            f"--format {format}: {why} and standard output is a terminal; redirect it, as in harness report {what}--format "
            f"{format} > {name}.{format}."
        )


def print_grid(prepared: Prepared, args: argparse.Namespace) -> int:
    if args.format == "html":
        complete, page = page_of(prepared, args.store)
        deliver(page, args)
        return 0 if complete else EXIT_INCOMPLETE
    grid, caption = grid_of(prepared)
    deliver(parquet_bytes(grid.results) if args.format == "parquet" else render(grid, caption, args.format), args)
    return 0 if grid.complete else EXIT_INCOMPLETE


# ---------------------------------------------------------------- bench


def bench(args: argparse.Namespace) -> int:
    """Show the plan, train what is missing, print the table. 1 when a cell stays incomplete."""
    check_format(args.format)
    request = read(args)
    check_trackers(request)
    if args.until is not None:
        from harness.cli.until import until  # it is a loop of benches

        return until(args, request)
    if args.max_replicates is not None:
        raise UserError("--max-replicates: is for --until POINTS; add that, or leave it out.")
    prepared = prepare(request, train=True)
    print_lines([*preset_line(prepared), *describe(prepared)])
    prepared, tracking = trained(prepared, args.yes)
    status = print_grid(prepared, args)
    say_tracked(tracking.finish(lambda: projection_of(prepared)))
    return status


def trained(prepared: Prepared, yes: bool) -> tuple[Prepared, Tracking]:
    """The table with what was missing trained, its request kept, and what follows it in trackers."""
    tracking = Tracking(prepared.request, prepared.store.url, warn)
    if prepared.items:
        agree(yes, prepared.hours, "--tasks, --sizes, --subsets, --seeds or --methods")
        prepared = back_translated(prepared)
    if prepared.items:
        prepared = train(prepared, tracking.watched(live))
    if prepared.plan.runs:
        prepared.remember()
    return prepared, tracking


def say_tracked(outcomes: dict[str, Outcome]) -> None:
    """Say what trackers hold now."""
    if lines := sentences(outcomes):
        print_lines(lines)


def warn(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def agree(yes: bool, expected: float, narrow: str) -> None:
    """Ask before a plan of more than an hour; without a terminal it wants --yes. `expected` in hours."""
    if yes or expected <= ASK_ABOVE_HOURS:
        return
    if not sys.stdin.isatty():
        raise UserError(
            f"This plan takes about {duration(expected)} here; add --yes to run it, or narrow it with {narrow}."
        )
    print(f"This takes about {duration(expected)} here. Continue? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UserError("Nothing was trained.")


def back_translated(prepared: Prepared) -> Prepared:
    """The table with its back-translations made; says how many came back empty."""
    prepared, empty = translated(prepared, counting)
    if empty:
        print(f"Empty back-translations: {empty}; the text itself is used instead.", file=sys.stderr)
    return prepared


@contextmanager
def counting(translator: str, texts: int) -> Iterator[Callable[[int], Callable[[int, int], None]]]:
    """The progress of back-translation on standard error."""
    from harness.cli.progress import ProgressCounter

    with ProgressCounter(f"texts back-translated by {translator}", texts) as counter:
        yield counter.part


@contextmanager
def live(prepared: Prepared, dashboard: str) -> Iterator[Callable[[Event], None]]:
    """The progress of a bench on standard error."""
    from harness.cli.progress import StageProgress

    reused = sum(status == "done" for status, _ in prepared.statuses.values())
    slots = prepared.slots if prepared.request.address == "local" else prepared.request.slots
    with StageProgress(prepared.items, reused, dashboard, prepared.expected, slots) as view:
        yield view.show
