"""`list`: methods, tasks, tables, recorded runs and the like, a line each. `show`: one record in full."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tabulate import tabulate

from harness.cli.parser import LISTED
from harness.cli.terminal import duration, print_lines, timestamp
from harness.commands.execution import storage_of
from harness.commands.recorded import class_names, learning_curve, recorded_runs, requests_needing
from harness.commands.stored import command, find_key, of_run
from harness.errors import UserError, unknown
from harness.objectives import definition_of
from harness.planning.request import FILTERS, Request, from_json
from harness.specs import Parent, Record, Stage
from harness.storage import Storage, weights_of
from harness.store import DEFAULT_URL, Store
from harness.wording import counted, in_points, value_text

Rows = Iterator[tuple[str, str]]
"""(name, description) of what `list` prints."""
BARS = "▁▂▃▄▅▆▇█"
KEY = 12
"""Characters of a key that are shown; any number that no other key begins with will do."""
LABEL = 16
"""Width of the first column of `show`."""


def listing(args: argparse.Namespace) -> int:
    """Print a line for each method, task, table, space, encoder, corpus, translator, bench or run, as `args.what` says."""
    if args.what not in LISTED:
        raise unknown("list", args.what, LISTED)
    if args.what == "runs":
        return _print_runs(args)
    if args.what == "studies" and not any(getattr(args, name) is not None for name in ("table", *FILTERS)):
        return _print_studies(args.store)
    if given := next((name for name in ("table", *FILTERS) if getattr(args, name) is not None), None):
        raise UserError(f"list {args.what}: --{given} is for 'list runs'; leave it out.")
    if args.store and args.what != "benches":
        raise UserError(
            f"list {args.what}: only 'list benches', 'list studies' and 'list runs' take --store; leave it out."
        )
    rows = [*(_benches(args.store) if args.what == "benches" else MAKERS[args.what]())]
    width = max(len(name) for name, _ in rows)
    print_lines([f"{name:<{width}}  {text}" for name, text in rows], sys.stdout, indent=width + 2)
    return 0


def _methods() -> Rows:
    from harness.methods import METHODS

    for name, method in METHODS.items():
        yield name, f"{method.title}: {method.citation}"
        for field, info in method.Hyperparameters.model_fields.items():
            default = str(info.default).lower() if isinstance(info.default, bool) else info.default
            choices = typing.get_args(info.annotation) if typing.get_origin(info.annotation) is typing.Literal else ()
            what = "; ".join(filter(None, (f"one of {', '.join(choices)}" if choices else "", info.description)))
            yield f"  {name}.{field}", f"default {default}; {what}"


def _tasks() -> Rows:
    from harness.hub import HUB
    from harness.tasks import TASKS
    from harness.tasks.sources import HUB_DATASET, OTHER_DATASETS

    for name, task in TASKS.items():
        origin = "packaged" if task.packaged else OTHER_DATASETS.get(name, HUB_DATASET).removeprefix(HUB)
        about = (task.kind.description, *task.metrics, f"texts {' + '.join(task.columns)}", origin)
        yield name, f"{task.title}: {', '.join(about)}"


def _tables() -> Rows:
    from harness.planning.table import load_table, table_names

    for name in table_names():
        table = load_table(name)
        yield name, table.title + (f" ({table.source.paper}, {table.source.table})" if table.source else "")
        yield from ((f"  --preset {preset}", text.description) for preset, text in table.presets.items())


def _spaces() -> Rows:
    from harness.search.request import TuneRequest
    from harness.search.space import load_space, resolve_space, space_names

    for name in space_names():
        space = load_space(name)
        yield name, f"{space.title} (method {space.method})"
        for preset, text in space.presets.items():
            shown = space.under(preset)
            has = ["search"] if shown.search else []
            if shown.grid:
                grid = resolve_space(space, TuneRequest(space.method, preset=preset, mode="grid"))
                has.insert(0, f"grid of {grid.trials}")
            yield f"  --preset {preset}", f"{' and '.join(has)}: {text.description}"


def _encoders() -> Rows:
    from harness.encoders import PACKAGED, SIZES
    from harness.encoders.families import FAMILIES

    for name, packaged in PACKAGED.items():
        here = "" if importlib.util.find_spec(packaged.module) else " (not installed: make packaged)"
        yield name, f"{packaged.note}; from {packaged.requirement}{here}"
    for name, size in SIZES.items():
        about = [f"random weights, {size.layers} layers, hidden {size.hidden}: {size.note}"]
        if any(size.relative_positions):
            about.append("relative positions {} / {}".format(*size.relative_positions))
        if size.vocabulary != 30_522:
            about.append(f"its paper's vocabulary has {size.vocabulary:,} entries")
        yield f"new:{name}", "; ".join(about)
    yield from {
        "new:SIZE@ENCODER": "the same with that encoder's tokenizer and vocabulary (default: bert-tiny's, 30,522 entries)",
        "FOLDER": "an encoder in a folder, of one of the model types below",
        "ORG/NAME": "an encoder on the hub, of one of the model types below",
    }.items()
    for name, family in FAMILIES.items():
        run = "packed" if family.packed else "padded, by transformers"
        takes = "all methods" if family.transform else "all methods but ELECTRA and COCO-LM with an auxiliary network"
        takes = takes if family.mlm else "no MLM head: methods that train one are skipped"
        yield f"  {name}", "; ".join(filter(None, (family.title, run, takes, family.seen)))
    yield "  others", "what AutoModelForMaskedLM takes; padded; all methods but ELECTRA and COCO-LM as above"


def _corpora() -> Rows:
    from harness.tasks import CORPORA

    yield from ((name, (made.__doc__ or "").partition("\n")[0]) for name, made in CORPORA.items())
    yield from {
        "FILE": "one text a line (.txt, also .gz), or .jsonl or .parquet with a column text; PATH:COLUMN names another",
        "FOLDER": "such files of one kind, sorted by name; also a pattern, 'wiki/**/*.txt'",
        "hub:OWNER/NAME": "the train split of a data set of the hub; hub:OWNER/NAME:CONFIG@REVISION",
    }.items()


def _translators() -> Rows:
    yield from {
        "opus-mt:de,zh": "Helsinki-NLP's models (hub, or its cache), one view for each pivot language",
        "wmt19:de": "facebook's WMT'19 models; wmt19:de@T=0.7 samples at that temperature",
        "THERE+BACK": "a pair of Hugging Face translation models, folders or ids; several pairs, comma-separated",
        "file:PATH": "translations of your own: .jsonl, .csv or .parquet with columns text, view_1, view_2",
    }.items()


def _benches(url: str | None) -> Rows:
    store = Store(url or DEFAULT_URL, create=False)
    benches = [request for request in store.requests() if not request.study]
    if not benches:
        raise UserError(
            f"The store {store.shown} holds no bench yet; run 'harness bench' first, or name another with --store."
        )
    yield from ((timestamp(bench.asked_at), command(from_json(bench.values), store=url)) for bench in benches)


MAKERS: dict[str, Callable[[], Rows]] = {
    "methods": _methods,
    "tasks": _tasks,
    "tables": _tables,
    "spaces": _spaces,
    "encoders": _encoders,
    "corpora": _corpora,
    "translators": _translators,
}


def _print_runs(args: argparse.Namespace) -> int:
    """Print a line a run, the newest last, where a terminal ends."""
    store = Store(args.store or DEFAULT_URL, create=False)
    request = Request(args.table or "", **{name: getattr(args, name) for name in FILTERS})
    runs = recorded_runs(store, request)
    if not runs:
        every = len(recorded_runs(store, Request()))
        raise UserError(
            f"list runs: no run of the {counted(every, 'recorded run')} in {store.shown} fits; leave a filter out."
        )
    now = time.time()
    lines = [
        (
            run["key"][:KEY],
            *(run[name] for name in ("table", "row", "task")),
            run["size"] or "full",
            *(run[name] for name in ("subset", "seed", "status")),
            f"{in_points(run['dev'])} {run['metric']}" if run["dev"] is not None else "",
            duration(run["seconds"] / 3600),
            f"{duration((now - run['recorded_at']) / 3600)} ago",
        )
        for run in reversed(runs)
    ]
    headers = ("Key", "Table", "Row", "Task", "N", "Subset", "Seed", "Status", "Dev", "Took", "Recorded")
    align = ("left",) * 4 + ("right",) * 3 + ("left",) * 4
    print(tabulate(lines, headers=headers, disable_numparse=True, colalign=align))
    return 0


def _print_studies(url: str | None) -> int:
    """Print a line a study, the newest last, where a terminal ends."""
    from harness.commands.study import recorded_studies  # imports optuna

    store, states = Store(url or DEFAULT_URL, create=False), ("complete", "dropped", "failed", "running")
    studies = recorded_studies(store)
    if not studies:
        raise UserError(
            f"The store {store.shown} holds no study yet; run 'harness tune' first, or name another with --store."
        )
    lines = [
        (
            study["study"],
            study["table"],
            study["row"],
            *(study[state] for state in states),
            "" if study["best"] is None else f"{in_points(study['best'])} {study['metric']}",
            f"{duration((time.time() - study['started_at']) / 3600)} ago" if study["started_at"] else "",
        )
        for study in reversed(studies)
    ]
    headers = ("Study", "Table", "Row", *map(str.capitalize, states), "Best dev", "Last trial")
    align = ("left",) * 3 + ("right",) * len(states) + ("left",) * 2
    print(tabulate(lines, headers=headers, disable_numparse=True, colalign=align))
    return 0


# ---------------------------------------------------------------------------------------------------------- a record


def show(args: argparse.Namespace) -> int:
    """Print one record: what was trained, its scores, the stages before it, the runs it serves and how to reproduce them."""
    store = Store(args.store or DEFAULT_URL, create=False)
    key = find_key(store, args.key)
    storage = storage_of(Request(storage=args.storage), store)
    stage, record = store.stage(key), store.records([key], predictions=True)[key]
    assert stage is not None
    lines = [
        f"{key}  {stage.phase}  {record.status}" + (f": {record.reason}" if record.reason else ""),
        *_stage_lines(stage),
        *_score_lines(stage, record, class_names(stage, store.labels(key))),
        *_curve_lines(stage, record),
        *_history_lines(record),
        *_provenance_lines(stage, record),
        *_parent_lines(store, storage, stage),
        *_run_lines(store, key, args.store),
    ]
    print_lines(lines, sys.stdout, indent=LABEL)
    return 0


def _labelled(label: str, text: str) -> str:
    return f"{label:<{LABEL}}{text}"


def _stage_lines(stage: Stage) -> Iterator[str]:
    """What was trained on what, and how."""
    objective, data, optim = stage.objective, stage.data, stage.optim
    settings = ", ".join(f"{name}={value}" for name, value in sorted(objective.params.items()))
    yield _labelled("objective", f"{objective.name} v{objective.version}{'  ' + settings if settings else ''}")
    for role, rows in [("train", data.train), ("dev", data.dev), *(("test", rows) for rows in data.tests)]:
        if rows:
            yield _labelled(role, f"{rows.name}, {rows.rows:,} rows, digest {rows.digest}")
    if definition_of(objective).fitted:
        yield _labelled("fitted", f"by scikit-learn; {counted(optim.steps, 'candidate')}, each a step of the history")
        return
    decay = f"decay {value_text(optim.weight_decay)}{', biases and norms too' if optim.decay_biases_and_norms else ''}"
    steps = f"batch {optim.batch_size}, {optim.steps} steps, {optim.schedule}, warm-up {value_text(optim.warmup)}"
    rest = f"clip {value_text(optim.clip)}, dropout {value_text(optim.dropout)}, {optim.precision}"
    yield _labelled("optimizer", f"AdamW lr {value_text(optim.lr)}, {steps}, {decay}, {rest}")
    yield _labelled("seed", str(stage.seed))


def _score_lines(stage: Stage, record: Record, classes: Sequence[str]) -> Iterator[str]:
    """The best checkpoint and its dev scores, of a stage that selects one."""
    if not stage.selection:
        return
    best = f"best dev {stage.selection.metric} among evaluations every {counted(stage.selection.every, 'step')} and at the end"
    same = f", the first of {record.tied} with this score" if record.tied > 1 else ""
    yield _labelled("selected", f"step {record.selected_step}: {best}{same}")
    yield _labelled("dev scores", _scores(record.dev_scores))
    if record.histogram:
        counts = ", ".join(f"{count:,} x {name}" for name, count in zip(classes, record.histogram, strict=True))
        yield _labelled("dev output", f"predicted classes: {counts}{' (collapsed: one class only)' * record.collapsed}")


def _curve_lines(stage: Stage, record: Record) -> Iterator[str]:
    """The learning curve as two lines of bars."""
    metric = stage.selection.metric if stage.selection else ""
    for name, points in zip(("loss", f"dev {metric}"), learning_curve(record, stage), strict=True):
        if len(points) > 1:
            (first, before), (last, after) = points[0], points[-1]
            bars = _bars([value for _, value in points])
            yield _labelled(name, f"{before:.4f} {bars} {after:.4f}, steps {first:,} to {last:,}")


def _bars(values: Sequence[float], most: int = 50) -> str:
    """A bar a value, or a mean of neighbours: the lowest the shortest."""
    width = -(-len(values) // most)
    means = [sum(part) / len(part) for i in range(0, len(values), width) if (part := values[i : i + width])]
    low, high = min(means), max(means)
    return "".join(BARS[int((value - low) / (high - low or 1.0) * (len(BARS) - 1))] for value in means)


def _history_lines(record: Record) -> Iterator[str]:
    for entry in record.history:
        terms = {k: v for k, v in entry.items() if k not in ("step", "dev", "measures", "curve", "held_out")}
        parts = [f"step {entry['step']:>6}", _scores(terms)]
        parts += [f"{k.replace('_', ' ')} {_scores(entry[k])}" for k in ("held_out", "measures", "dev") if k in entry]
        yield f"  {'  '.join(parts)}"


def _scores(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in values.items())


def _provenance_lines(stage: Stage, record: Record) -> Iterator[str]:
    """What the stage took, where and with what it was trained, and what is stored of it."""
    yield _labelled("cost", f"{record.flops:.3g} FLOPs in {duration(record.seconds / 3600)}")
    provenance = record.provenance
    for name, value in sorted(provenance.items()):
        if name == "started_at" and isinstance(value, (int, float)):
            yield _labelled("started", timestamp(value))
        elif name == "tokens_per_second":
            flops = provenance["flops_per_second"]
            yield _labelled("speed", f"{value:,.0f} tokens a second while it trained, {flops:.3g} FLOP/s")
        elif name == "saved_at":
            export = f"'harness export {record.key[:12]} --update N --out FOLDER' writes them"
            yield _labelled("saved", f"weights after update {', '.join(f'{step:,}' for step in value)}; {export}")
        elif name not in ("flops_per_second", "saved_digests"):  # beside those above
            yield _labelled(name, str(value))
    if record.weights_digest:
        yield _labelled("weights", f"digest {record.weights_digest}")
    if record.predictions:
        names = {rows.digest: rows.name for rows in stage.row_sets}
        sets = [f"{names.get(key, key[:10])} ({len(found.gold):,} rows)" for key, found in record.predictions.items()]
        yield _labelled("predictions", f"stored for {', '.join(sets)}; 'harness report' computes test scores from them")


def _parent_lines(store: Store, storage: Storage, stage: Stage) -> Iterator[str]:
    """The stages before this one, down to the encoder."""
    yield "parents"
    known = store.statuses([s.key for s in stage.chain])
    current = stage
    while isinstance(current.init, Parent):
        init, parent = current.init, current.init.stage
        stored = storage.exists(weights_of(parent.key, init.step))
        weights = "weights stored" if stored else "weights deleted; a stage that needs them trains it again"
        status = known.get(parent.key, ("not recorded", 0))[0]
        parts = " and ".join(part.replace("_", " ") for part in init.parts)
        after = "".join(f" after update {step:,} of {parent.optim.steps:,}" for step in init.save_at)
        what = f"{parent.key}  {parent.phase}  {parent.objective.name}  {status}"
        yield f"  {what}; the next stage starts from its {parts}{after}; {weights}"
        current = parent
    yield f"  encoder {stage.encoder.name}, digest {stage.encoder.digest}"


def _run_lines(store: Store, key: str, url: str | None) -> Iterator[str]:
    """The runs that end with a stage, each with the command that reproduces it."""
    labels, requests = store.labels(key), [*requests_needing(store, key)]
    if not labels:
        yield _labelled("runs", "no run ends with this stage; later stages start from it")
        yield from (f"  reproduce: {command(from_json(request.values), store=url)}" for request in requests[:1])
        return
    yield "runs"
    for label in labels:
        size = f"n{label['size']}" if label["size"] else "full size"
        place = f"{label['task']}, {size}, subset {label['subset']}, seed {label['seed']}"
        yield f"  table {label['table']}, row {label['row']}: {place}"
        request = next((request for request in requests if request.table == label["table"]), None)
        if request:
            yield f"    reproduce: {command(of_run(request, label), store=url)}"
        else:
            yield (
                "    the command that reproduces it is unknown: the store has lost the request of this run; "
                f"bench table {label['table']} with the settings above"
            )
