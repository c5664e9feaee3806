"""`bench`: trains what a table lacks and prints it. `plan`: what that would run, what is done and what the rest costs."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.filesize import decimal
from tabulate import tabulate

from harness.cli.request import preset_line, read
from harness.cli.terminal import duration, print_lines, print_view, say
from harness.commands.prepare import Prepared, lacking, prepare, storage_of
from harness.encoders.flops import parameters, weights_bytes
from harness.errors import UserError
from harness.views.notes import own_tasks, plan_notes
from harness.views.settings import varied
from harness.wording import counted, listed, sizes_text, some_of
from harness.yaml_files import format_value

if TYPE_CHECKING:
    from harness.planning.runs import Plan


def bench(args: argparse.Namespace) -> int:
    """Show the plan, train what is missing, print the table. 1 when a cell stays incomplete."""
    # A plan does without what trains and prints.
    from harness.cli.progress import confirm, show
    from harness.cli.report import check_printed, print_grid
    from harness.commands.train import bench as run_bench

    check_printed(args.format)
    request = read(args)

    def agree(prepared: Prepared) -> None:
        say(*describe(prepared))
        confirm(args.yes, prepared.hours, "--tasks, --sizes, --subsets, --seeds or --methods")

    prepared, trackers = run_bench(request, show, say, agree)
    status = print_grid(prepared, args)
    if prepared.stopped:
        left = len(prepared.plan.pending(prepared.statuses, request.retry))
        say(f"Ended because {prepared.stopped}: {counted(left, 'stage')} left; the same command goes on.")
    say(*trackers.finish())
    return status


def plan(args: argparse.Namespace) -> int:
    """Print what would run; train nothing, and write nothing but the seal that --seal asks for."""
    if not args.seal and (given := [f"--{name}" for name in ("against", "region", "items") if getattr(args, name)]):
        raise UserError(f"plan: {given[0]} is part of a sealed comparison; add --seal, or leave it out.")
    prepared, said = prepare(read(args), train=False), list[str]()
    if args.seal:
        from harness.commands.views import seal  # imports pandas
        from harness.views.seal import ALONE, seal_lines

        wanted = None if args.detect is None else args.detect / 100
        region = {} if args.region is None else {"region": args.region / 100}
        said = ["", *seal_lines(seal(prepared, args.against or "", items=args.items, wanted=wanted, **region)), ALONE]
    print_lines([*describe(prepared), ""])
    print(_rows(prepared))
    if args.detect is not None:
        from harness.commands.views import detections_of

        print()
        print_view(detections_of(prepared, args.detect / 100, duration))
    print_lines(said)
    return 0


def _rows(prepared: Prepared) -> str:
    """A line for each printed row: its methods and settings, its runs, their stages, and how many of these are to be trained. A stage
    of several rows is counted as to be trained in the first of them, so that the column adds up to the plan's number."""
    resolved, left = prepared.resolved, {item.stage.key for item in prepared.items}
    lines = []
    for title, rows in resolved.printed_rows.items():
        runs = [run for run in prepared.plan.runs if resolved.titles[run.row] == title]
        stages = {stage.key for run in runs for stage in run.stage.chain}
        method = f"{rows[0].pre_train} (pre-trained) > {rows[0].method}" if rows[0].pre_train else rows[0].method
        settings = varied((resolved.hyperparameters(row) for row in rows if row.tasks), format_value)
        lines.append((title, method or "-", len(runs), len(stages), len(stages & left), settings))
        left -= stages
    headers = ("Row", "Method", "Runs", "Stages", "To train", "Set")
    return tabulate(lines, headers=headers, intfmt=",", disable_numparse=[0, 1, 5])


def describe(prepared: Prepared) -> list[str]:
    """The plan in lines: what the rest costs, cells, runs, stages, what is done, shared, skipped and unresolved, and presets."""
    plan, resolved = prepared.plan, prepared.resolved
    rows = len({resolved.titles[run.row] for run in plan.runs})
    design = [(rows, "row"), (len(resolved.columns), "column"), (len(resolved.sizes), "size")]
    subsets = max(len(resolved.subsets_at(size)) for size in resolved.sizes)
    one = 0 in resolved.sizes and len(resolved.subsets_at(0)) < subsets
    lines = [
        *_cost_lines(prepared),
        f"Table {resolved.table.name}, preset {resolved.preset}: {' x '.join(counted(*each) for each in design)} = "
        f"{counted(math.prod(count for count, _ in design), 'cell')}, each from {counted(subsets, 'subset')} x "
        f"{counted(len(resolved.seeds), 'seed')}{'; the full training set is one subset' if one else ''}.",
        *([] if resolved.table.sizes else [f"Sizes: {sizes_text(resolved.sizes, resolved.protocol.size_unit)}."]),
        f"Encoder {_encoders(plan)}, data: {plan.table_data.source}, store {prepared.store.shown}.",
        *_work_lines(prepared),
        *(f"Skipped: {name}{' on ' + task if task else ''}: {reason}." for name, task, reason in plan.skipped),
        *(f"{name}: {found.note}" for name, found in plan.tasks.items() if found.note),
        *own_tasks(plan),
        *plan_notes(plan),
    ]
    if plan.untranslated:
        sets = [rows for each in plan.untranslated.values() for rows in each]
        names = listed(each.name for each in plan.untranslated)
        lines.append(
            f"Before that {sum(map(len, sets)):,} rows (row sets: {len(sets)}) are back-translated by {names}; until then the keys of "
            "the rows that read them are provisional."
        )
    if missing := lacking(plan):
        lines.append(f"Unresolved (not at hand; keys are provisional): {some_of(missing, 4)}.")
    presets = preset_line(prepared.request.preset, resolved.preset, resolved.table.presets)
    return [*lines, *_kept_lines(prepared), *presets]


def _cost_lines(prepared: Prepared) -> Iterator[str]:
    """What is left and what it takes; of several encoders also what is left of each."""
    plan, speed = prepared.plan, prepared.calibration
    if not prepared.items:
        yield "To do: nothing."
    else:
        flops, slots = sum(item.cost for item in prepared.items), counted(prepared.slots, "slot")
        takes = f"{flops:.2g} FLOPs, about {duration(prepared.hours)}" if flops else "of a cost that is not known,"
        at = f", at {speed.flops / 1e9:.0f} GFLOP/s a slot, {speed.known_by}" if flops else ""
        yield f"To do: {counted(len(prepared.items), 'stage')}, {takes} on {slots} of this machine{at}."
    for encoder, located in plan.table_data.located.items() if len(plan.encoders) > 1 else ():
        work = prepared.work_of(located)
        runs = sum(row.encoder == encoder for run in plan.runs for row in prepared.resolved.rows if row.name == run.row)
        flops = sum(item.cost for item in work)
        yield f"{encoder}: {counted(runs, 'run')}, {counted(len(work), 'stage')} to train, {flops:.2g} FLOPs."


def _encoders(plan: Plan) -> str:
    """The encoders with the beginnings of their digests and how large they are."""
    located = plan.table_data.located.items()
    sizes = [parameters(each.config) / 1e6 for _, each in located]
    about = [f", about {size:.1f} million parameters" if size else "" for size in sizes]
    return listed(f"{k} ({v.encoder.digest[:10]}{said})" for (k, v), said in zip(located, about, strict=True))


def _kept_lines(prepared: Prepared) -> Iterator[str]:
    """The space of the weights that stay, where some are asked for."""
    request, plan = prepared.request, prepared.plan
    if request.keep == "none":
        return
    cells = len({(plan.resolved.titles[run.row], run.task, run.size) for run in plan.runs})
    count, what = (cells, "the best run of each cell") if request.keep == "best" else (len(plan.stages), "all stages")
    sizes = [weights_bytes(each.config) for each in plan.encoders]
    space = decimal(round(count * sum(sizes) / len(sizes)))
    where = storage_of(request, prepared.store).shown
    yield f"Weights: those of {what} stay, {counted(count, 'file')}, about {space} in {where}; runs that were recorded without their weights are not trained again for them."


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
