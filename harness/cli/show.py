"""`list`: methods, tasks, tables and the like, a line each. `show`: one record in full."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.cli.parser import LISTED
from harness.cli.printing import duration, escaped, print_lines, timestamp
from harness.cli.runs import print_runs
from harness.commands.execution import storage_of
from harness.commands.recorded import class_names, learning_curve
from harness.commands.stored import command, find_key, of_run
from harness.errors import UserError, unknown
from harness.specs import Parent, Record, Stage
from harness.storage import Storage, weights_of
from harness.store import DEFAULT_URL, Store
from harness.tables.request import Request, from_json

if TYPE_CHECKING:
    from harness.encoders import Size

BARS = "▁▂▃▄▅▆▇█"
LABEL = 16
"""Width of the first column of `show`."""


def listing(args: argparse.Namespace) -> int:
    """Print a line for each method, task, table, space, encoder, corpus, translator, bench or run, as `args.what` says."""
    filters = ("table", "methods", "tasks", "sizes", "subsets", "seeds")
    if args.what == "runs":
        return print_runs(args)
    if given := next((name for name in filters if getattr(args, name) is not None), None):
        raise UserError(f"list {args.what}: --{given} is for 'list runs'; leave it out.")
    makers: dict[str, Callable[[], list[tuple[str, str]]]] = {
        "methods": _methods,
        "tasks": _tasks,
        "tables": _tables,
        "spaces": _spaces,
        "encoders": _encoders,
        "corpora": _corpora,
        "translators": _translators,
        "benches": partial(_benches, args.store),
    }
    if args.what not in makers:
        raise unknown("list", args.what, LISTED)
    if args.store and args.what != "benches":
        raise UserError(f"list {args.what}: only 'list benches' and 'list runs' take --store; leave it out.")
    rows = makers[args.what]()
    width = max(len(name) for name, _ in rows)
    print_lines([escaped(f"{name:<{width}}  {text}") for name, text in rows], sys.stdout, indent=width + 2)
    return 0


def _methods() -> list[tuple[str, str]]:
    from harness.methods import METHODS

    rows = []
    for name, method in METHODS.items():
        rows.append((name, f"{method.title}: {method.citation}"))
        for field, info in method.Hyperparameters.model_fields.items():
            default = str(info.default).lower() if isinstance(info.default, bool) else info.default
            choices = typing.get_args(info.annotation) if typing.get_origin(info.annotation) is typing.Literal else ()
            what = "; ".join(filter(None, (f"one of {', '.join(choices)}" if choices else "", info.description)))
            rows.append((f"  {name}.{field}", f"default {default}; {what}"))
    return rows


def _tasks() -> list[tuple[str, str]]:
    from harness.tasks import TASKS

    rows = []
    for name, task in TASKS.items():
        kind = "regression" if task.regression else f"{len(task.classes)} classes"
        origin = "packaged" if task.packaged else "nyu-mll/glue"
        rows.append(
            (name, f"{task.title}: {kind}, {', '.join(task.metrics)}, texts {' + '.join(task.columns)}, {origin}")
        )
    return rows


def _tables() -> list[tuple[str, str]]:
    from harness.tables.table import load_table, table_names

    rows = []
    for name in table_names():
        table = load_table(name)
        rows.append((name, table.title + (f" ({table.source.paper}, {table.source.table})" if table.source else "")))
        rows += [(f"  --preset {preset}", text.description) for preset, text in table.presets.items()]
    return rows


def _spaces() -> list[tuple[str, str]]:
    from harness.search.request import TuneRequest
    from harness.search.space import load_space, resolve_space, space_names

    rows = []
    for name in space_names():
        space = load_space(name)
        rows.append((name, f"{space.title} (method {space.method})"))
        for preset, text in space.presets.items():
            has = ["search"] if (space.search if text.search is None else text.search) else []
            if space.grid if text.grid is None else text.grid:
                grid = resolve_space(space, TuneRequest(space.method, preset=preset, mode="grid"))
                has.insert(0, f"grid of {grid.trials}")
            rows.append((f"  --preset {preset}", f"{' and '.join(has)}: {text.description}"))
    return rows


def _published(size: Size) -> str:
    """What the source states of a size besides layers and width."""
    found = "; relative positions {} / {}".format(*size.relative_positions) if any(size.relative_positions) else ""
    return found + ("" if size.vocabulary == 30_522 else f"; its paper's vocabulary has {size.vocabulary:,} entries")


def _families() -> Iterator[tuple[str, str]]:
    """How the encoders of each `model_type` run, what trains them, and what is known of the texts that they saw."""
    from harness.encoders.families import FAMILIES

    for name, family in FAMILIES.items():
        run = "packed" if family.packed else "padded, by transformers"
        takes = "all methods" if family.transform else "all methods but ELECTRA and COCO-LM with an auxiliary network"
        takes = takes if family.mlm else "no MLM head: FT, SCL and CSSL"
        yield f"  {name}", "; ".join(filter(None, (family.title, run, takes, family.seen)))
    yield (
        "  others",
        "what transformers' AutoModelForMaskedLM takes; padded; all methods but ELECTRA and COCO-LM as above",
    )


def _encoders() -> list[tuple[str, str]]:
    from harness.encoders import PACKAGED, SIZES

    rows = []
    for name, packaged in PACKAGED.items():
        here = "" if importlib.util.find_spec(packaged.module) else " (not installed: make packaged)"
        rows.append((name, f"{packaged.note}; from {packaged.requirement}{here}"))
    rows += [
        (f"new:{name}", f"random weights, {size.layers} layers, hidden {size.hidden}: {size.note}{_published(size)}")
        for name, size in SIZES.items()
    ]
    return [
        *rows,
        (
            "new:SIZE@ENCODER",
            "the same with that encoder's tokenizer and vocabulary (default: bert-tiny's, 30,522 entries)",
        ),
        ("FOLDER", "an encoder in a folder, of one of the model types below"),
        ("ORG/NAME", "an encoder on the hub, of one of the model types below"),
        *_families(),
    ]


def _corpora() -> list[tuple[str, str]]:
    from harness.tasks import CORPORA

    rows = [(name, (made.__doc__ or "").partition("\n")[0]) for name, made in CORPORA.items()]
    return [
        *rows,
        (
            "FILE",
            "one text a line (.txt, also .gz), or .jsonl or .parquet with a column text; PATH:COLUMN names another",
        ),
        ("FOLDER", "such files of one kind, sorted by name; also a pattern, 'wiki/**/*.txt'"),
        ("hub:OWNER/NAME", "the train split of a data set of the hub; hub:OWNER/NAME:CONFIG@REVISION"),
    ]


def _translators() -> list[tuple[str, str]]:
    return [
        ("opus-mt:de,zh", "Helsinki-NLP's models (hub, or its cache), one view for each pivot language"),
        ("wmt19:de", "facebook's WMT'19 models; wmt19:de@T=0.7 samples at that temperature"),
        ("THERE+BACK", "a pair of Hugging Face translation models, folders or ids; several pairs, comma-separated"),
        (
            "apertium:spa,cat",
            "the program apertium, offline: apt-get install apertium apertium-eng-spa apertium-eng-cat",
        ),
        ("file:PATH", "translations of your own: .jsonl, .csv or .parquet with columns text, view_1, view_2"),
    ]


def _benches(url: str | None) -> list[tuple[str, str]]:
    store = Store(url or DEFAULT_URL, create=False)
    benches = [request for request in store.requests() if not request.study]
    if not benches:
        raise UserError(
            f"The store {store.shown} holds no bench yet; run 'harness bench' first, or name another with --store."
        )
    return [(timestamp(request.asked_at), command(from_json(request.values), store=url)) for request in benches]


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
    print_lines(map(escaped, lines), sys.stdout, indent=LABEL)
    return 0


def _labelled(label: str, text: str) -> str:
    return f"{label:<{LABEL}}{text}"


def _stage_lines(stage: Stage) -> Iterator[str]:
    """What was trained on what, and how."""
    settings = ", ".join(f"{k}={v}" for k, v in sorted(stage.objective.params.items()))
    yield _labelled(
        "objective", f"{stage.objective.name} v{stage.objective.version}{'  ' + settings if settings else ''}"
    )
    for role, rows in [("train", stage.data.train), ("dev", stage.data.dev), *(("test", t) for t in stage.data.tests)]:
        if rows:
            yield _labelled(role, f"{rows.name}, {rows.rows:,} rows, digest {rows.digest}")
    optim = stage.optim
    yield _labelled(
        "optimizer",
        f"AdamW lr {optim.lr:g}, batch {optim.batch_size}, {optim.steps} steps, {optim.schedule}, warm-up "
        f"{optim.warmup:g}, decay {optim.weight_decay:g}, clip {optim.clip:g}, dropout {optim.dropout:g}, {optim.precision}",
    )
    yield _labelled("seed", str(stage.seed))


def _score_lines(stage: Stage, record: Record, classes: Sequence[str]) -> Iterator[str]:
    """The best checkpoint and its dev scores, of a stage that selects one."""
    if not stage.selection:
        return
    every, metric, tied = stage.selection.every, stage.selection.metric, record.tied
    same = f", the first of {tied} with this score" if tied > 1 else ""
    yield _labelled(
        "selected",
        f"step {record.selected_step}: best dev {metric} among evaluations every {every} steps and at the end{same}",
    )
    yield _labelled("dev scores", _scores(record.dev_scores))
    if stage.data.num_labels < 2:
        yield _labelled("dev output", f"predictions on {sum(record.histogram):,} rows")
    else:
        counts = ", ".join(f"{count:,} x {name}" for name, count in zip(classes, record.histogram, strict=True))
        yield _labelled("dev output", f"predicted classes: {counts}{' (collapsed: one class only)' * record.collapsed}")


def _curve_lines(stage: Stage, record: Record) -> Iterator[str]:
    """The learning curve as two lines of bars."""
    metric = stage.selection.metric if stage.selection else ""
    for name, points in zip(("loss", f"dev {metric}"), learning_curve(record, stage), strict=True):
        if len(points) > 1:
            values = [value for _, value in points]
            yield _labelled(
                name, f"{values[0]:.4f} {_bars(values)} {values[-1]:.4f}, steps {points[0][0]:,} to {points[-1][0]:,}"
            )


def _bars(values: Sequence[float], most: int = 50) -> str:
    """A bar a value, or a mean of neighbours: the lowest the shortest."""
    width = -(-len(values) // most)
    means = [sum(part) / len(part) for i in range(0, len(values), width) if (part := values[i : i + width])]
    low, high = min(means), max(means)
    return "".join(BARS[int((value - low) / (high - low or 1.0) * (len(BARS) - 1))] for value in means)


def _history_lines(record: Record) -> Iterator[str]:
    for entry in record.history:
        terms = {k: v for k, v in entry.items() if k not in ("step", "dev", "measures", "curve", "held_out")}
        held_out = f"  held out {_scores(entry['held_out'])}" if "held_out" in entry else ""
        dev = f"  dev {_scores(entry['dev'])}" if "dev" in entry else ""
        measures = f"  measures {_scores(entry['measures'])}" if "measures" in entry else ""
        yield f"  step {entry['step']:>6}  {_scores(terms)}{held_out}{measures}{dev}"


def _scores(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in values.items())


def _provenance_lines(stage: Stage, record: Record) -> Iterator[str]:
    """What the stage took, where and with what it was trained, and what is stored of it."""
    yield _labelled("cost", f"{record.flops:.3g} FLOPs in {duration(record.seconds / 3600)}")
    for name, value in sorted(record.provenance.items()):
        if name == "started_at" and isinstance(value, (int, float)):
            yield _labelled("started", timestamp(value))
        elif name in ("flops_per_second", "peak_flops_per_second"):
            continue  # beside the tokens
        elif name == "tokens_per_second":
            yield _labelled("speed", _speed(record))
        elif name == "saved_at":
            export = f"'harness export {record.key[:12]} --update N --out FOLDER' writes them"
            yield _labelled("saved", f"weights after update {', '.join(f'{step:,}' for step in value)}; {export}")
        elif name == "saved_digests":
            continue  # of those
        else:
            yield _labelled(name, str(value))
    if record.weights_digest:
        yield _labelled("weights", f"digest {record.weights_digest}")
    if record.predictions:
        names = {rows.digest: rows.name for rows in stage.row_sets}
        stored = ", ".join(
            f"{names.get(digest, digest[:10])} ({len(p.gold):,} rows)" for digest, p in record.predictions.items()
        )
        yield _labelled("predictions", f"stored for {stored}; 'harness report' computes test scores from them")


def _speed(record: Record) -> str:
    """Tokens a second while it trained, and the share of the device's FLOP/s, where its most is known."""
    found = record.provenance
    flops, peak = found["flops_per_second"], found.get("peak_flops_per_second")
    share = f", {100 * flops / peak:.0f} % of the {peak:.3g} of a matrix product there" if peak else ""
    return f"{found['tokens_per_second']:,.0f} tokens a second while it trained, {flops:.3g} FLOP/s{share}"


def _parent_lines(store: Store, storage: Storage, stage: Stage) -> Iterator[str]:
    """The stages before this one, down to the encoder."""
    yield "parents"
    known = store.statuses([s.key for s in stage.chain])
    current = stage
    while isinstance(current.init, Parent):
        parent = current.init.stage
        stored = storage.exists(weights_of(parent.key, current.init.step))
        weights = "weights stored" if stored else "weights deleted; a stage that needs them trains it again"
        status = known.get(parent.key, ("not recorded", 0))[0]
        parts = " and ".join(part.replace("_", " ") for part in current.init.parts)
        after = "".join(f" after update {step:,} of {parent.optim.steps:,}" for step in current.init.save_at)
        yield (
            f"  {parent.key}  {parent.phase}  {parent.objective.name}  {status}; the next stage starts from its {parts}{after}; {weights}"
        )
        current = parent
    yield f"  encoder {stage.encoder.name}, digest {stage.encoder.digest}"


def _run_lines(store: Store, key: str, url: str | None) -> Iterator[str]:
    """The runs that end with a stage, each with the command that reproduces it."""
    labels, requests = store.labels(key), sorted(store.requests(key), key=lambda request: bool(request.study))
    if not labels:
        yield _labelled("runs", "no run ends with this stage; later stages start from it")
        yield from (f"  reproduce: {command(from_json(request.values), store=url)}" for request in requests[:1])
        return
    yield "runs"
    for label in labels:
        size = f"n{label['size']}" if label["size"] else "full size"
        yield (
            f"  table {label['table']}, row {label['row']}: {label['task']}, {size}, subset {label['subset']}, seed {label['seed']}"
        )
        asked = next((request for request in requests if request.table == label["table"]), None)
        if asked:
            yield f"    reproduce: {command(of_run(asked, label), store=url)}"
        else:
            yield (
                "    the command that reproduces it is unknown: this run is older than the store's record of commands; "
                f"bench table {label['table']} with the settings above"
            )
