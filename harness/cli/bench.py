"""`bench`, `plan` and `report`: one preparation (table, data, encoder, plan, what is done), three ends."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from tabulate import tabulate

from harness.bench.aggregate import Grid, aggregate
from harness.bench.caption import Caption, counted
from harness.bench.estimate import Calibration, Estimate, calibrate, estimated, hours
from harness.bench.plan import COMPARED_TEXTS, Plan, Translation, make_plan
from harness.bench.point import value_text
from harness.bench.render import render
from harness.bench.resolve import ResolvedTable
from harness.bench.results import examples, hardware, replicates
from harness.bench.work import Blocked, Item, work
from harness.cli import EXIT_INCOMPLETE
from harness.cli.asked import Asked, ask
from harness.cli.places import check_gpus, execution_of, storage_of, worker_setup_of
from harness.cli.printing import duration, magnitude, print_lines, print_table, time_range
from harness.cli.request import recalled
from harness.cli.texts import corpus_of, reader, translate, translation_of
from harness.encoders import Located, locate
from harness.encoders.sources import check_vocabulary
from harness.errors import UserError
from harness.specs import Status
from harness.storage import weights_of
from harness.store import DEFAULT_URL, Store
from harness.tasks import TASKS, Task, Translator, open_source, protocol_named

ASK_ABOVE_HOURS = 1.0
UNTRANSLATED = "data back-translation of "
"""How the plan names rows that are not back-translated yet."""


@dataclass
class Prepared:
    """A table ready to be run or shown."""

    asked: Asked
    resolved: ResolvedTable
    plan: Plan
    store: Store
    statuses: dict[str, tuple[Status, int]]
    items: list[Item]
    blocked: list[Blocked]
    calibration: Calibration
    slots: int
    translator: Translator | None = None

    @property
    def hours(self) -> float:
        return self.hours_of(sum(item.cost for item in self.items), len(self.items))

    @property
    def expected(self) -> Estimate:
        return estimated(3600 * self.hours, self.calibration.spread)

    def hours_of(self, flops: float, stages: int) -> float:
        """What `stages` stages of `flops` in all take here."""
        return hours(flops, self.calibration, self.slots * self.resolved.num_workers, stages)


def prepare(args: argparse.Namespace, *, train: bool) -> Prepared:
    """Read and check everything that the command names. With `train`, what a hub holds is fetched."""
    asked = ask(args)
    with asked.naming_places():
        return _prepare(asked, args, train)


def _prepare(asked: Asked, args: argparse.Namespace, train: bool) -> Prepared:
    user_tasks = asked.user_tasks
    resolved = asked.table.resolve(asked.preset, asked.overrides, tasks={**TASKS, **user_tasks})
    source = open_source(asked.overrides.data)
    located = locate(resolved.encoder, download=train)
    check_lengths(resolved, located)
    store = Store(args.store or DEFAULT_URL, create=False)  # made only once there is something to train
    storage = storage_of(args, store)
    translator, translation = translation_of(resolved, store, train)
    corpus = corpus_of(resolved, store, train)
    plan = make_plan(resolved, source, located, user_tasks=user_tasks, translation=translation, corpus=corpus)
    if train and any(not name.startswith(UNTRANSLATED) for name in plan.unresolved):
        raise UserError(_not_at_hand(plan, source, user_tasks))
    statuses = store.statuses(plan.stages)
    items, blocked = work(plan, statuses, cache(lambda key: storage.exists(weights_of(key))), args.retry)
    calibration = calibrate(store.speeds(), located.encoder.digest)
    cores = os.cpu_count() or 1
    if train and items and args.address == "local" and resolved.num_workers > cores:
        place = "--num-workers" if args.num_workers else f"table {resolved.table.name}, num_workers"
        raise UserError(
            f"{place} {resolved.num_workers}: this machine has {counted(cores, 'CPU core')}; give --num-workers {cores} or "
            "fewer, or a cluster with --address."
        )
    slots = args.slots or cores // resolved.num_workers or 1
    return Prepared(asked, resolved, plan, store, statuses, items, blocked, calibration, slots, translator)


def _not_at_hand(plan: Plan, source: Any, user_tasks: Mapping[str, Task]) -> str:
    """The reason why the first missing thing is missing, asked again of what holds it."""
    for name, found in plan.tasks.items():
        if not found.dev.resolved:
            task = user_tasks.get(name) or TASKS[name]
            try:
                protocol_named(plan.resolved.table.protocol).evaluation_sets(task, source)
            except UserError as error:
                return str(error)
    return f"Not at hand: {', '.join(plan.unresolved)}."


# ---------------------------------------------------------------- plan


def plan(args: argparse.Namespace) -> int:
    """Print what would run; train nothing, write nothing."""
    prepared = prepare(args, train=False)
    print_lines([*_first_line(prepared), *describe(prepared)], sys.stdout)
    print("\n".join(["", *_rows(prepared)]))
    return 0


def _rows(prepared: Prepared) -> list[str]:
    """A line for each row: its methods and settings, its runs, and how many stages it needs that no row above does."""
    seen: set[str] = set()
    lines = []
    for row in prepared.resolved.rows:
        runs = [run for run in prepared.plan.runs if run.row == row.name]
        stages = {stage.key for run in runs for stage in run.stage.chain}
        method = f"{row.pre_train} (pre-trained) > {row.method}" if row.pre_train else row.method
        settings = ", ".join(f"{k}={value_text(v)}" for k, v in prepared.resolved.hyperparameters(row).items())
        lines.append((row.name, method or "-", len(runs), len(stages), len(stages - seen), settings))
        seen |= stages
    headers = ("Row", "Method", "Runs", "Stages", "New", "Set")
    return [*tabulate(lines, headers=headers, intfmt=",", disable_numparse=[0, 1, 5]).splitlines()]


def _first_line(prepared: Prepared) -> list[str]:
    """What the other presets would cost here, said when none was asked for."""
    if prepared.asked.preset:
        return []
    costs = []
    for name, preset in prepared.asked.table.presets.items():
        if name == prepared.resolved.preset:
            continue
        try:
            located = locate(preset.encoder)
        except UserError:
            continue
        other = make_plan(prepared.asked.table.resolve(name), None, located, translation=Translation())
        flops = sum(other.stage_flops(stage) for stage in other.stages.values())
        spent = prepared.hours_of(flops, len(other.stages))
        costs.append(f"{name} ({counted(len(other.stages), 'stage')}, {magnitude(spent)} on this machine)")
    others = f" Others: {', '.join(costs)}; choose one with --preset NAME." if costs else ""
    return [f"Preset {prepared.resolved.preset}, the default.{others}"]


def describe(prepared: Prepared) -> list[str]:
    """The plan in lines: cells, runs, stages, what is done, shared, skipped, unresolved, and what the rest costs."""
    plan, resolved = prepared.plan, prepared.resolved
    rows = len({run.row for run in plan.runs})
    cells = rows * len(resolved.columns) * len(resolved.sizes)
    lines = [
        f"Table {resolved.table.name}, preset {resolved.preset}: {counted(rows, 'row')} x "
        f"{counted(len(resolved.columns), 'column')} x {counted(len(resolved.sizes), 'size')} = {counted(cells, 'cell')}, each "
        f"from {counted(len(resolved.subsets), 'subset')} x {counted(len(resolved.seeds), 'seed')}.",
        f"Encoder {resolved.encoder} ({plan.located.encoder.digest[:10]}), data: {plan.source}, store {prepared.store.shown}.",
        *_work_lines(prepared),
    ]
    for name, task, reason in plan.skipped:
        lines.append(f"Skipped: {name}{' on ' + task if task else ''}: {reason}.")
    lines += [f"{name}: {found.note}" for name, found in plan.tasks.items() if found.note]
    lines += own_data(plan)
    lines += [f"Overlap: {sentence}." for sentence in overlap_sentences(plan)]
    if plan.untranslated:
        texts = sum(len(rows) for rows in plan.untranslated)
        lines.append(
            f"Before that {texts:,} rows (row sets: {len(plan.untranslated)}) are back-translated by "
            f"{resolved.translator}; until then the keys of CSSL are provisional."
        )
    missing = [name for name in plan.unresolved if not name.startswith(UNTRANSLATED)]
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
    return lines


def own_data(plan: Plan) -> list[str]:
    """What dev and test of the user's own tasks were cut from, a sentence each."""
    return [f"{found.task.title}: {found.origin}." for found in plan.tasks.values() if found.task.own and found.origin]


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


def overlap_sentences(plan: Plan) -> list[str]:
    """Which evaluation rows have a text that also stands in training text."""
    found = [s for s in plan.overlaps if s.most]
    sentences = []
    for each in found:
        training = "one of the training sets" if each.training == "training sets" else f"the corpus {each.training}"
        sentences.append(f"{each.most} of {each.rows:,} rows of {each.evaluation} share a text with {training}")
    if not found and plan.overlaps:
        sentences.append("no text of a dev or test set of this table stands in training text")
    if plan.corpus and plan.corpus.rows > COMPARED_TEXTS:
        sentences.append(f"not looked for in the {plan.corpus.rows:,} texts of {plan.corpus.name}")
    return sentences


# ---------------------------------------------------------------- report


def report(args: argparse.Namespace) -> int:
    """Print the table from the store."""
    return _print_table(prepare(recalled(args), train=False), args.format)


def grid_of(prepared: Prepared) -> tuple[Grid, Caption]:
    """The table's cells and caption from what the store holds now."""
    plan, store, resolved = prepared.plan, prepared.store, prepared.resolved
    found = examples(plan)
    test_rows = {name: each.test for name, each in found.items()}
    not_comparable = {
        name: plan.tasks[column.task].note for name, column in resolved.columns.items() if plan.tasks[column.task].note
    }
    skipped = {(row, task): reason for row, task, reason in plan.skipped if task}
    grid = aggregate(resolved, replicates(plan, store), test_rows, not_comparable, skipped)
    notes = own_data(plan) + [f"Overlap: {sentence}." for sentence in overlap_sentences(plan)]
    if any(stage.data.views > 1 for stage in plan.stages.values()):
        notes.append(f"CSSL contrasts back-translations made by {resolved.translator}.")
    corpora = {stage.data.train.name: stage.data.train for stage in plan.stages.values() if stage.phase == "pre-train"}
    notes += [f"Pre-trained on {name} ({rows.rows:,} texts)." for name, rows in corpora.items()]
    notes += mlm_head_notes(plan)
    seen = sorted(set(plan.located.contaminated) & set(resolved.tasks))
    if seen:
        notes.append(f"The encoder {resolved.encoder} saw labelled pairs of {', '.join(seen)} in its own training.")
    keys = {run.stage.key for run in plan.runs}
    return grid, Caption(len(keys), plan.source, found, hardware(plan, store), tuple(notes))


def mlm_head_notes(plan: Plan) -> list[str]:
    """Which rows start from a trained MLM head, where the encoder has no usable one of its own."""
    rows: dict[str, None] = {}
    for run in plan.runs:
        root = run.stage.chain[0]
        if root.phase == "mlm-head":
            rows[run.row] = None
            stage = root
    if not rows:
        return []
    what = "its MLM head trained alone" if stage.objective.name == "mlm_head" else "MLM of the whole model"
    return [
        f"{plan.located.name} has no usable MLM head: {', '.join(rows)} start{'s' * (len(rows) == 1)} from {stage.optim.steps:,} updates of {what} on "
        f"{stage.data.train.name}; the other rows start from the encoder as it is."
    ]


def _print_table(prepared: Prepared, format: str) -> int:
    grid, caption = grid_of(prepared)
    text = render(grid, caption, format)
    if format == "text":
        print_table(text, sys.stdout)
    else:
        print(text, end="")
    return 0 if grid.complete else EXIT_INCOMPLETE


# ---------------------------------------------------------------- bench


def bench(args: argparse.Namespace) -> int:
    """Show the plan, train what is missing, print the table. 1 when a cell stays incomplete."""
    prepared = prepare(args, train=True)
    print_lines([*_first_line(prepared), *describe(prepared)])
    if prepared.items:
        agree(args.yes, prepared.hours, "--tasks, --sizes, --subsets, --seeds or --methods")
        if prepared.plan.untranslated:
            assert prepared.translator is not None  # without it nothing waits to be translated
            translate(prepared.plan.untranslated, prepared.translator, Store(prepared.store.url))
            prepared = prepare(args, train=True)  # what was translated has its identity now
        _train(args, prepared)
        prepared.statuses = prepared.store.statuses(prepared.plan.stages)
    if prepared.plan.runs:
        _remember(prepared)
    return _print_table(prepared, args.format)


def _remember(prepared: Prepared) -> None:
    """Keep which runs the stages are for and what asked for them: `show` and `report` tell it again."""
    plan = prepared.plan
    prepared.store.label(prepared.resolved.table.name, plan.runs)
    prepared.store.keep_request(prepared.asked.request, plan.stages)


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


def _train(args: argparse.Namespace, prepared: Prepared) -> None:
    """Everything that needs ray and torch."""
    from harness.cli.progress import StageProgress
    from harness.cluster.session import session
    from harness.encoders.tokens import Tokeniser

    plan, located = prepared.plan, prepared.plan.located
    assert located.folder is not None  # unresolved encoders were refused
    tokeniser = Tokeniser(located.folder)
    check_masks(prepared.items, tokeniser, located)
    check_gpus(args)

    execution = execution_of(args, prepared.resolved)
    name = prepared.resolved.table.name
    metadata = {"table": name, "preset": prepared.resolved.preset, "encoder": located.name, "runs": str(len(plan.runs))}
    prepared.store = Store(prepared.store.url)
    _remember(prepared)
    storage = storage_of(args, prepared.store)
    storage.probe()
    with session(execution, metadata) as (dashboard, settled):
        from harness.cluster.pool import Pool

        setup = worker_setup_of(args, located, storage, settled)
        pool = Pool(prepared.store, setup, tokeniser.vocabulary, reader(plan, tokeniser, prepared.store), settled, name)
        try:
            slots = prepared.slots if args.address == "local" else args.slots
            with StageProgress(prepared.items, _reused(prepared), dashboard, prepared.expected, slots) as live:
                for event in pool.run(prepared.items):
                    live.show(event)
        finally:
            pool.close()


def _reused(prepared: Prepared) -> int:
    return sum(1 for status, _ in prepared.statuses.values() if status == "done")


def check_lengths(resolved: ResolvedTable, located: Located) -> None:
    """Sequences must fit the encoder's positions."""
    config = located.config
    positions = int(config.get("max_position_embeddings", 512))
    usable = (
        positions
        if config.get("model_type") in ("bert", "electra")
        else positions - int(config.get("pad_token_id", 1)) - 1
    )
    lengths = {"max_length": resolved.max_length}
    if resolved.pre_train:
        lengths["pre_train.max_length"] = resolved.pre_train.max_length
    for name, length in lengths.items():
        if length > usable:
            raise UserError(
                f"{name} is {length}, but {located.name} has {usable} positions; use --set {name}={usable}."
            )


def check_masks(items: Iterable[Item], tokeniser: Any, located: Located) -> None:
    """An objective that masks needs a mask token, and every token a row of the embedding."""
    check_vocabulary(tokeniser.vocabulary.size, located.config, f"The encoder {located.name}")
    masking = next((item for item in items if "p_m" in item.stage.objective.params), None)
    if masking and tokeniser.vocabulary.mask_id is None:
        raise UserError(f"{masking.name} masks tokens, but the tokenizer of {located.name} has no mask token.")
