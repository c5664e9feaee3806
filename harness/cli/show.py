"""`list`: methods, tasks, tables, recorded runs and the like, a line each. `show`: one record in full."""

from __future__ import annotations

import argparse
import time
import typing
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from tabulate import tabulate

from harness.cli.terminal import duration, print_lines, say, timestamp
from harness.commands.prepare import storage_of
from harness.commands.recorded import StageRecord, command, recorded, recorded_runs
from harness.errors import UserError
from harness.methods import definition_of
from harness.planning.request import FILTERS, Request, from_json
from harness.specs import Parent, Record, Stage
from harness.storage import weights_of
from harness.store import DEFAULT_URL, Store
from harness.wording import counted, in_points, value_text

Rows = Iterator[tuple[str, str]]
"""(name, description) of what `list` prints."""
LABEL = 16
"""Width of the first column of `show`."""


def listing(args: argparse.Namespace) -> int:
    """Print a line for each method, task, table, space, encoder, corpus, translator, bench, study or run, as `args.what` says."""
    what, given = args.what, next((n for n in ("table", *FILTERS) if getattr(args, n) is not None), None)
    if given and what != "runs":
        raise UserError(f"list {what}: --{given} is for 'list runs'; leave it out.")
    if what in STORED:
        store = Store(args.store or DEFAULT_URL, create=False)
        rows, head = STORED[what](store, args)
        if rows:  # the newest last, where a terminal ends
            print(tabulate(rows[::-1], head, disable_numparse=True))
        else:
            say(f"The store {store.shown} holds no such {what}.")
        return 0
    if args.store:
        raise UserError(f"list {what}: only 'list benches', 'list studies' and 'list runs' take --store; leave it out.")
    found = [*PACKAGED[what]()]
    width = max(len(name) for name, _ in found)
    print_lines([f"{name:<{width}}  {text}" for name, text in found], indent=width + 2)
    return 0


def _methods() -> Rows:
    from harness.methods import METHODS

    for name, method in METHODS.items():
        yield name, f"{method.title}: {method.citation}"
        for field, info in method.model_fields.items():
            default = str(info.default).lower() if isinstance(info.default, bool) else info.default
            choices = typing.get_args(info.annotation) if typing.get_origin(info.annotation) is typing.Literal else ()
            said = [f"default {default}", f"one of {', '.join(choices)}" if choices else "", info.description]
            yield f"  {name}.{field}", "; ".join(filter(None, said))


def _tasks() -> Rows:
    from harness.tasks.task import TASKS

    for name, task in TASKS.items():
        about = (task.kind.description, *task.metrics, f"texts {' + '.join(task.columns)}")
        yield name, f"{task.title}: {', '.join(about)}, {'packaged' if task.package else task.published}"


def _tables() -> Rows:
    from harness.planning.table import load_table, table_names

    for name in table_names():
        table = load_table(name)
        source = f" ({table.source.paper}, {table.source.table})" if table.source else ""
        yield name, f"{table.title}{source}; --preset {', '.join(table.presets)}"


def _spaces() -> Rows:
    from harness.search.space import load_space, space_names

    for name in space_names():
        space = load_space(name)
        yield name, f"{space.title} (method {space.method}); --preset {', '.join(space.presets)}"


def _encoders() -> Rows:
    from harness.encoders import PACKAGED, SIZES
    from harness.encoders.families import FAMILIES

    for name, packaged in PACKAGED.items():
        yield name, f"{packaged.note}; from {packaged.requirement} (make packaged)"
    for name, size in SIZES.items():
        yield f"new:{name}", f"random weights, {size.layers} layers, hidden {size.hidden}: {size.note}"
    yield "new:SIZE@ENCODER", "the same with that encoder's tokenizer and vocabulary (default: bert-tiny's)"
    yield "FOLDER", "an encoder in a folder, of one of the model types below"
    yield "ORG/NAME", "an encoder on the hub, of one of the model types below"
    for name, family in FAMILIES.items():
        takes = "all methods" if family.transform else "all methods but ELECTRA and COCO-LM with an auxiliary network"
        run = "packed" if family.packed else "padded, by transformers"
        yield f"  {name}", "; ".join(filter(None, (family.title, run, takes, family.seen)))
    yield "  others", "what AutoModelForMaskedLM takes; padded; all methods but ELECTRA and COCO-LM as above"


def _corpora() -> Rows:
    from harness.tasks.corpora import CORPORA

    yield from ((name, (made.__doc__ or "").partition("\n")[0]) for name, made in CORPORA.items())
    yield "FILE", "one text a line (.txt, .txt.gz), or .jsonl or .parquet with a column text or PATH:COLUMN"
    yield "FOLDER", "such files of one kind, sorted by name; also a pattern, 'wiki/**/*.txt'"
    yield "hub:OWNER/NAME", "the train split of a data set of the hub; hub:OWNER/NAME:CONFIG@REVISION"


def _translators() -> Rows:
    yield "opus-mt:de,zh", "Helsinki-NLP's models (hub, or its cache), one view for each pivot language"
    yield "wmt19:de", "facebook's WMT'19 models; wmt19:de@T=0.7 samples at that temperature"
    yield "THERE+BACK", "a pair of Hugging Face translation models, folders or ids; several pairs, comma-separated"
    yield "file:PATH", "translations of your own: .jsonl, .csv or .parquet with columns text, view_1, view_2"


PACKAGED: dict[str, Callable[[], Rows]] = {
    "methods": _methods,
    "tasks": _tasks,
    "tables": _tables,
    "spaces": _spaces,
    "encoders": _encoders,
    "corpora": _corpora,
    "translators": _translators,
}

Listed = tuple[list[tuple[Any, ...]], tuple[str, ...]]
"""Lines, the newest first, and their head."""


def _benches(store: Store, args: argparse.Namespace) -> Listed:
    sizes = store.sizes()
    rows = [
        (
            *(bench.digest[:8], timestamp(bench.asked_at), f"{sizes.get(bench.digest, 0) / 1e6:,.1f}"),
            command(from_json(bench.values), store=args.store),
        )
        for bench in store.requests()
        if not bench.study
    ]
    return rows, ("Bench", "Asked", "MB", "Command")


def _runs(store: Store, args: argparse.Namespace) -> Listed:
    rows = [
        (
            *(run["key"][:12], run["table"], run["row"], run["task"], run["size"] or "full"),
            *(run[name] for name in ("subset", "seed", "status")),
            f"{in_points(run['dev'])} {run['metric']}" if run["dev"] is not None else "",
            *(duration(run["seconds"] / 3600), _ago(run["recorded_at"])),
        )
        for run in recorded_runs(store, Request(args.table or "", **{name: getattr(args, name) for name in FILTERS}))
    ]
    return rows, ("Key", "Table", "Row", "Task", "N", "Subset", "Seed", "Status", "Dev", "Took", "Recorded")


def _studies(store: Store, _: argparse.Namespace) -> Listed:
    from harness.commands.study import recorded_studies  # imports optuna
    from harness.search.points import STATES

    rows = [
        (
            *(study[name] for name in ("study", "table", "row", *STATES)),
            "" if study["best"] is None else f"{in_points(study['best'])} {study['metric']}",
            _ago(study["started_at"]) if study["started_at"] else "",
        )
        for study in recorded_studies(store)
    ]
    return rows, ("Study", "Table", "Row", *map(str.capitalize, STATES), "Best dev", "Last trial")


STORED: dict[str, Callable[[Store, argparse.Namespace], Listed]] = {
    "benches": _benches,
    "studies": _studies,
    "runs": _runs,
}


def _ago(seconds: float) -> str:
    return f"{duration((time.time() - seconds) / 3600)} ago"


# ---------------------------------------------------------------------------------------------------------- a record


def show(args: argparse.Namespace) -> int:
    """Print one record: what was trained, its scores, the stages before it, the runs it serves and how to reproduce them."""
    found = recorded(args.store, args.key)
    stage, record, history = found.stage, found.record, found.history
    lines = [f"{record.key}  {stage.phase}  {record.status}{f': {record.reason}' if record.reason else ''}"]
    lines += [f"{label:<{LABEL}}{text}" for label, text in _stage_lines(stage, record)]
    print_lines(lines, indent=LABEL)
    if len(history):
        print(history.to_string(index=False, na_rep="", float_format="{:.4f}".format, max_rows=6))
    lines = [f"{label:<{LABEL}}{text}" for label, text in _provenance(stage, record)]
    lines += ["parents", *_parent_lines(found.store, args.storage, stage), *_run_lines(found)]
    print_lines(lines, indent=LABEL)
    return 0


def _stage_lines(stage: Stage, record: Record) -> Rows:
    """The best checkpoint and its dev scores, of a stage that selects one; what was trained on what, and how."""
    if stage.selection:
        every = f"among evaluations every {counted(stage.selection.every, 'step')} and at the end"
        same = f", the first of {record.tied} with this score" if record.tied > 1 else ""
        yield "selected", f"step {record.selected_step}: best dev {stage.selection.metric} {every}{same}"
        yield "dev scores", ", ".join(f"{name} {value:.4f}" for name, value in record.dev_scores.items())
        if record.histogram:
            classes = stage.data.classes or [f"class {code}" for code in range(len(record.histogram))]
            counts = ", ".join(f"{count:,} x {name}" for name, count in zip(classes, record.histogram, strict=False))
            yield "dev output", f"predicted classes: {counts}{' (collapsed: one class only)' * record.collapsed}"
    objective, data, optim = stage.objective, stage.data, stage.optim
    settings = ", ".join(f"{name}={value}" for name, value in sorted(objective.params.items()))
    yield "objective", f"{objective.name} v{objective.version}{'  ' + settings if settings else ''}"
    for role, rows in [("train", data.train), ("dev", data.dev), *(("test", rows) for rows in data.tests)]:
        if rows:
            yield role, f"{rows.name}, {rows.rows:,} rows, digest {rows.digest[:12]}"
    if definition_of(objective).fitted:
        yield "fitted", f"by scikit-learn; {counted(optim.steps, 'candidate')}, each a step of the history"
    else:
        yield "AdamW", ", ".join(f"{name} {value_text(value)}" for name, value in asdict(optim).items())
        yield "seed", str(stage.seed)


def _provenance(stage: Stage, record: Record) -> Rows:
    """What the stage took, where and with what it was trained, and what is stored of it."""
    yield "cost", f"{record.flops:.3g} FLOPs in {duration(record.seconds / 3600)}"
    made = list[str]()
    for name, value in sorted(record.provenance.items()):
        if name == "started_at" and isinstance(value, (int, float)):
            yield "started", timestamp(value)
        elif name not in ("saved_at", "saved_digests"):  # the former of earlier versions
            made.append(f"{name} {value:,.4g}" if name.endswith("_per_second") else f"{name} {value}")
    yield "made with", ", ".join(made)
    if record.weights_digest:
        yield "weights", f"digest {record.weights_digest[:12]}"
    if record.predictions:
        names = {rows.digest: rows.name for rows in stage.row_sets}
        sets = [f"{names.get(key, key[:10])} ({len(found.gold):,} rows)" for key, found in record.predictions.items()]
        yield "predictions", f"stored for {', '.join(sets)}; 'harness report' computes test scores from them"


def _parent_lines(store: Store, storage: str | None, stage: Stage) -> Iterator[str]:
    """The stages before this one, down to the encoder."""
    known, kept = store.statuses([s.key for s in stage.chain]), storage_of(Request(storage=storage), store)
    current = stage
    while isinstance(current.init, Parent):
        init, parent = current.init, current.init.stage
        stored = kept.exists(weights_of(parent.key, init.step))
        weights = "weights stored" if stored else "weights deleted; a stage that needs them trains it again"
        status = known.get(parent.key, ("not recorded", 0))[0]
        parts = " and ".join(part.replace("_", " ") for part in init.parts)
        after = "".join(f" after update {step:,} of {parent.optim.steps:,}" for step in init.save_at)
        what = f"{parent.key}  {parent.phase}  {parent.objective.name}  {status}"
        yield f"  {what}; the next stage starts from its {parts}{after}; {weights}"
        current = parent
    yield f"  encoder {stage.encoder.name}, digest {stage.encoder.digest[:12]}"


def _run_lines(found: StageRecord) -> Iterator[str]:
    """The runs that end with a stage, each with the command that reproduces it."""
    labelled = any(run.label for run in found.runs)
    yield "runs" if labelled else f"{'runs':<{LABEL}}no run ends with this stage; later stages start from it"
    for label, _, again in found.runs:
        if label:
            size = f"n{label['size']}" if label["size"] else "full size"
            place = f"{label['task']}, {size}, subset {label['subset']}, seed {label['seed']}"
            yield f"  table {label['table']}, row {label['row']}: {place}"
        lost = "the command that reproduces it is unknown: the store has lost the request of this run"
        yield f"    reproduce: {again}" if again else f"    {lost}"
