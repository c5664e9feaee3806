"""From a request to a table that is ready to be run or shown: files and data read and checked, the plan made, the store asked."""

from __future__ import annotations

import math
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from harness.encoders import Located, locate, with_weights
from harness.encoders.families import family_of
from harness.encoders.sources import check_vocabulary
from harness.errors import NotAtHand, NotFetched, UserError
from harness.machine import cores, cpu_name
from harness.planning.recipe import Augment
from harness.planning.request import (
    BESIDE,
    LABELLED,
    OWN_DATA,
    Request,
    from_json,
    has_rows,
    is_own,
    same_table,
    to_json,
)
from harness.planning.resolve import resolve
from harness.planning.resolved import ResolvedTable
from harness.planning.runs import Plan, make_plan
from harness.planning.snapshot import Snapshot, remade, snapshot
from harness.planning.table import Table, load_table
from harness.planning.work import Item, work
from harness.specs import Record, Stage, Status
from harness.storage import Storage
from harness.store import DEFAULT_URL, Store, StoredRequest
from harness.tasks.corpora import Corpus, open_corpus
from harness.tasks.inferred import infer_task, task_name
from harness.tasks.overlap import count_overlap
from harness.tasks.protocols import protocol_named
from harness.tasks.rows import Rows
from harness.tasks.sources import TextSource, open_source
from harness.tasks.task import TASKS, Task, load_user_task
from harness.tasks.translation import UNNAMED, Translator, open_translator, translated
from harness.views.other_system import OtherSystem
from harness.wording import some_of

UNTRANSLATED = "data back-translation of "
"""How the plan names rows that are not back-translated yet, which the command that trains does."""
GPU_DRIVERS = tuple(map(Path, ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")))
"""Of NVIDIA, of either maker under Windows' subsystem, of AMD."""
PROBE_SHARE = 0.5
"""Share of a matrix product's speed that a training step reaches; used until a stage has been timed on this machine."""
WINDOW = 24
"""The last stages, which alone are learned from: the load of a machine changes."""


@dataclass
class Prepared:
    """A table ready to be run or shown. `files`: the names of the user's own tasks, by those of their files. `stopped`: why its training ended with
    stages left; `textless`: why texts of a bench of the store are not at hand. `others`: rows of another system."""

    request: Request
    files: Mapping[str, str]
    plan: Plan
    store: Store
    statuses: dict[str, tuple[Status, int]]
    items: list[Item]
    blocked: list[Stage]
    stopped: str = ""
    textless: str = ""
    others: OtherSystem | None = None

    @property
    def resolved(self) -> ResolvedTable:
        return self.plan.resolved

    @property
    def slots(self) -> int:
        return self.request.slots or cores() // self.request.num_workers or 1

    @property
    def kept(self) -> StoredRequest:
        """The request as a store keeps it."""
        return StoredRequest(self.resolved.table.name, to_json(replace(self.request, preset=self.resolved.preset)))

    @property
    def recorded(self) -> bool:
        """Whether the store has any of its runs."""
        return any(run.stage.key in self.statuses for run in self.plan.runs)

    @property
    def note(self) -> str:
        """A sentence for whoever sees its numbers; mostly empty."""
        return f"Texts are missing ({self.textless})." if self.textless else ""

    def work_of(self, located: Located) -> list[Item]:
        """The stages to train of one of its encoders."""
        return [item for item in self.items if self.plan.encoder_of(item.stage) is located]

    @cached_property
    def calibration(self) -> Calibration:
        """Made when asked for: commands that only show records need neither the last stages nor the device."""
        encoders = {each.encoder.digest for each in self.plan.encoders}
        return calibrate(self.store.newest(200), encoders, device_here(self.request.gpus_per_run))

    @property
    def hours(self) -> float:
        """What the stages to train take here."""
        return self.hours_of(sum(item.cost for item in self.items), len(self.items))

    def hours_of(self, flops: float, stages: int) -> float:
        """What `stages` stages of `flops` in all take here."""
        slots = self.slots * self.request.num_workers
        return flops / self.calibration.flops / max(1, min(slots, stages)) / 3600

    def remember(self) -> None:
        """Keep which runs the stages are for and which request needs them: `show` and `report` read it."""
        rows = {row.name: row.own.name for row in self.resolved.rows}
        self.store.label(self.resolved.table.name, [replace(run, row=rows[run.row]) for run in self.plan.runs])
        self.store.keep_request(self.kept, self.plan.stages, self.snapshot)

    @property
    def snapshot(self) -> Any:
        """What the plan read, as JSON, for a store; None where some of it is not at hand."""
        return None if self.plan.unresolved else snapshot(self.plan, self.files)


# ------------------------------------------------------------------------------------------------------------- reading


def prepare(request: Request, *, train: bool) -> Prepared:
    """Read and check everything that the request names. With `train`, what a hub holds is fetched."""
    table = load_table(request.table, request.origin("table"))
    request = _of_preset(table, request)
    source = open_source(request.data, request.origin("data"))
    own = _own_tasks(request, source)
    names = request.tasks and tuple(own[text].name if text in own else text for text in request.tasks)
    named = replace(request, tasks=names)
    tasks = {**TASKS, **{task.name: task for task in own.values()}}
    resolved = resolve(table, named, tasks)
    _check_selected(named, resolved, source, tasks)
    if request.sizes is None and not table.sizes:
        with suppress(NotAtHand):  # as a plan shows it
            known = (resolved.protocol.sizes(tasks[name], source) for name in resolved.tasks)
            common = min(known, key=max)  # those that every task can give
            resolved = resolve(table, replace(named, sizes=common), tasks)
    located = _located(resolved, request, train)
    store = Store(request.store or DEFAULT_URL, create=False)  # made only once there is something to train
    plan = make_plan(
        resolved,
        source,
        *located,
        user_tasks=tasks,
        translator_of=partial(translator_of, resolved, store, train),
        corpora=corpora_of(resolved, store, train, request.origin("corpus") if request.corpus else "pre_train.corpus"),
    )
    if train and (missing := lacking(plan)):
        raise UserError(plan.unread[0] if plan.unread else f"Not at hand: {', '.join(missing)}.")
    return _with_work(request, {Path(text).name: task.name for text, task in own.items()}, plan, store)


def _of_preset(table: Table, request: Request) -> Request:
    """The request without what names the data of its preset."""
    preset = table.presets.get(request.preset or table.preset_for(request.encoder))
    own = OWN_DATA if request.tasks and all(map(is_own, request.tasks)) else None
    if preset and request.data and request.data in (own, preset.data) and not Path(request.data).is_dir():
        return replace(request, data=None)  # a name for where its tasks come from, as captions print it
    return request


def _own_tasks(request: Request, source: TextSource) -> dict[str, Task]:
    """The user's own tasks by the names of their files. Raises UserError for two of one name, of which one would be left out."""
    own: dict[str, Task] = {}
    texts = [text for text in dict.fromkeys(request.tasks or ()) if is_own(text)]
    described = _description(request, sum(map(has_rows, texts)))
    for text in texts:
        task = infer_task(text, request.origin, source, **described) if has_rows(text) else load_user_task(text)
        twin = next((other for other, known in own.items() if known.name == task.name), None)
        if twin is not None:
            where = request.origin("tasks")
            raise UserError(f"{where}: {twin} and {text} both name their task '{task.name}'; rename one of them.")
        own[text] = task
    return own


def _description(request: Request, files: int) -> dict[str, Any]:
    """What a request says of its `files` of labelled rows. Raises UserError where there is none, or a file beside several."""
    said = {name: getattr(request, name) for name in LABELLED if getattr(request, name) is not None}
    beside = [name for name in BESIDE if name in said]
    if said and not files:
        raise UserError(
            f"{request.origin(next(iter(said)))} describes a file of labelled rows, and {request.origin('tasks')} names none; name one, or "
            "write it into the YAML file of the task."
        )
    if beside and files > 1:
        raise UserError(
            f"{request.origin(beside[0])} goes with one file of labelled rows, and {request.origin('tasks')} names {files}; write a "
            "YAML file for each with 'harness init'."
        )
    return said


def _check_selected(named: Request, resolved: ResolvedTable, source: TextSource, tasks: Mapping[str, Task]) -> None:
    """Raises UserError where a text that a point was selected on, of a dev set of its study, is in a test set here."""
    ours = resolved.protocol
    for file, study in named.selected.items():
        theirs = protocol_named(study.protocol or load_table(study.table).protocol)
        places = [*product(study.sizes or (0,), study.subsets or (0,))]
        for name in {*map(name_of_task, study.tasks or ())} & {*resolved.tasks} if theirs != ours else ():
            with suppress(NotAtHand):
                tests = ours.evaluation_sets(tasks[name], source).tests.values()
                dev_sets = {rows.digest: rows for rows in (theirs.dev_set(tasks[name], source, *at) for at in places)}
                if shared := max(count_overlap(*pair) for pair in product(dev_sets.values(), tests)):
                    raise UserError(
                        f"{file}: its point was selected under protocol {theirs.name} on rows of {name} of which {shared:,} are test rows "
                        f"under protocol {ours.name}; take the study's with --protocol {theirs.name}, or tune again with "
                        f"--protocol {ours.name}."
                    )


def name_of_task(text: str) -> str:
    """The name of the task that a name or a file stands for. Raises UserError for a YAML file that cannot be read."""
    if not is_own(text):
        return text
    return task_name(text) if has_rows(text) else load_user_task(text).name


def _located(resolved: ResolvedTable, request: Request, download: bool) -> list[Located]:
    """The encoders of a table. Raises UserError for one that cannot be had, and where sequences do not fit its positions."""
    place = f"table {resolved.table.name}, preset {resolved.preset}, encoder"
    lengths, found = {"max_length": resolved.max_length}, []
    if resolved.pre_train:
        lengths["pre_train.max_length"] = resolved.pre_train.max_length
    for each in resolved.encoders:
        at = locate(each, download=download, where=request.origin("encoder") if request.encoder else place)
        usable = family_of(at.config).positions(at.config)
        if name := next((name for name, length in lengths.items() if length > usable), None):
            raise UserError(
                f"{name} is {lengths[name]}, but {at.name} has {usable} positions; set {name} to {usable} or less."
            )
        found.append(with_weights(at))
    return found


def _with_work(request: Request, files: Mapping[str, str], plan: Plan, store: Store) -> Prepared:
    """A plan with what the store and the storage have of it."""
    statuses, storage = store.statuses(plan.stages), storage_of(request, store)
    items, blocked = work(plan, statuses, cache(storage.exists), request.retry, request.keep)
    return Prepared(request, files, plan, store, statuses, items, blocked)


def storage_of(request: Request, store: Store) -> Storage:
    """The request's storage; without one, a folder beside the store."""
    return Storage.named(request.storage) if request.storage else Storage(str(store.artifacts.resolve()))


def lacking(plan: Plan) -> list[str]:
    """What a plan needs and has not got, without back-translations, which a command that trains makes."""
    return [name for name in plan.unresolved if not name.startswith(UNTRANSLATED)]


# ---------------------------------------------------------------------------------------- texts besides the tasks' rows


def translator_of(resolved: ResolvedTable, store: Store, download: bool, augment: Augment | None) -> Translator:
    """What makes the views of a table's rows (None), or the copies of an augmentation. Raises UserError as `open_translator` does."""
    name = resolved.translator_of(augment)
    if not resolved.translator:
        return UNNAMED
    try:
        made = open_translator(name, download=download, copies=augment.copies if augment else None)
    except NotFetched:  # of a plan only: the run that follows it will fetch
        return Translator(name)
    except NotAtHand as error:
        return Translator(name, reason=str(error).rstrip("."))
    return replace(made, find=partial(translated, translator=made, cache=store))


def corpora_of(resolved: ResolvedTable, store: Store, download: bool, where: str) -> dict[float, Corpus]:
    """The parts of a table's pre-training corpus, by fraction; empty where no row is pre-trained, and in a plan
    where it is not downloaded yet."""
    if resolved.pre_train is None:
        return {}
    memo = store.artifacts.parent / "corpora.json"
    kept = memo if download or memo.exists() else None  # a plan starts no file
    try:
        whole = open_corpus(resolved.pre_train.corpus, download=download, memo=kept, where=where)
    except NotAtHand:
        if download:
            raise
        return {}
    return {fraction: whole.part(fraction) for fraction in resolved.fractions}


# ------------------------------------------------------------------------------------------------------ what is recorded


def prepare_recorded(request: Request, *, texts: bool = False) -> Prepared:
    """As `prepare`, for what shows records: by what a bench of the store read, whose data and encoder are not read again. With `texts` they are, and
    where they are not at hand, `textless` says why. What no bench read is read, too."""
    store = Store(request.store or DEFAULT_URL, create=False)
    snapshots = (_of_snapshot(request, stored, store) for stored in store.requests())
    found = next((each for each in snapshots if each and each.recorded), None)
    if found is None:
        return prepare(request, train=False)
    if texts:
        try:
            read = prepare(request, train=False)
            if read.plan.stages.keys() == found.plan.stages.keys():
                return read
            names = lacking(read.plan) or read.plan.unresolved
            reasons = [f"{some_of(names)} is not at hand"] if names else [reason for *_, reason in read.plan.skipped]
            found.textless = next(iter(reasons), "its data or its encoder changed since then")
        except UserError as error:
            found.textless = str(error).rstrip(".")
    return found


def _of_snapshot(request: Request, stored: StoredRequest, store: Store) -> Prepared | None:
    """The table of a request by what a stored bench read; None where that read something else."""
    benched = from_json(stored.values)
    if stored.study or not same_table(request.table, benched.table):
        return None
    read, own = Snapshot.of(store.snapshot_of(stored)), [text for text in request.tasks or () if is_own(text)]
    if read is None or any(Path(text).name not in read.files for text in own):
        return None
    if any(map(has_rows, own)) and any(getattr(request, name) != getattr(benched, name) for name in LABELLED):
        return None
    table = load_table(request.table, request.origin("table"))
    tasks = None if request.tasks is None else tuple(read.files.get(Path(text).name, text) for text in request.tasks)
    request = _of_preset(table, request)
    named = replace(request, tasks=tasks, sizes=request.sizes or (None if table.sizes else read.sizes))
    known = {name: each.task for name, each in read.data.tasks.items() if each.task.own}
    plan = remade(resolve(table, named, {**TASKS, **known}), read)
    files = {name: read.files[name] for name in (Path(text).name for text in own)}
    return None if plan is None else _with_work(request, files, plan, store)


# ---------------------------------------------------------------------------------------------------------------- checks


def check_work(items: Sequence[Item], tokeniser: Any, located: Located, library: Mapping[str, Rows]) -> None:
    """Raises UserError where an objective masks and there is no mask token, where a token has no row of the embedding, where rows cannot be read: a
    template or label words that do not fit the encoder, a question that leaves its context no room; and where a training set has too few
    examples of a class to show one beside another."""
    from harness.encoders.tokens.reading import reading_of

    check_vocabulary(tokeniser.vocabulary.size, located.config, f"The encoder {located.name}")
    masking = next((i for i in items if "p_m" in i.stage.objective.params or i.stage.data.prompt), None)
    if masking and tokeniser.vocabulary.mask_id is None:
        raise UserError(f"{masking.name} masks tokens, but the tokenizer of {located.name} has no mask token.")
    checked, shown = set(), set()
    for item in items:
        data = item.stage.data
        reading = reading_of(data)
        for row_set in item.stage.row_sets:
            if row_set.digest in library and (reading, row_set.digest) not in checked:
                checked.add((reading, row_set.digest))
                reading.check(library[row_set.digest], tokeniser)
        if data.prompt and data.prompt.demonstrations and data.train not in shown:
            shown.add(data.train)
            rows = library[data.train.digest]
            assert data.kind is not None
            codes, names = data.kind.sampled_groups(rows.gold)
            different = {*zip(codes.tolist(), rows.texts, strict=True)}
            counts = [sum(code == each for each, _ in different) for code in range(len(names))]
            few = counts.index(min(counts))
            if counts[few] < 2:
                raise UserError(
                    f"{item.name}: a demonstration shows another example of each class, and '{names[few]}' has {counts[few]} in "
                    f"{data.train.name}; draw more examples, or set prompt.demonstrations to false."
                )


# --------------------------------------------------------------------------------------------- how fast this machine is


class Calibration(NamedTuple):
    """FLOP/s of one slot on this machine, and the source of that number."""

    flops: float
    known_by: str


def calibrate(ended: Iterable[Record], encoders: Container[Any], device: str) -> Calibration:
    """From the last finished stages of these encoders (digests) on a device of this name, the newest first, else from a matrix product."""
    long = [s for s in ended if s.flops > 0 and s.seconds > 0.5]
    here = [s for s in long if s.provenance.get("device") == device]
    same = [s for s in here if s.provenance.get("encoder") in encoders][:WINDOW]
    if not same:
        return Calibration(_probe() * PROBE_SHARE, "guessed from the speed of a matrix product")
    # A ratio of sums: the fixed cost of a stage of a few steps should not count as slowness.
    speed = math.fsum(s.flops for s in same) / math.fsum(s.seconds for s in same)
    return Calibration(speed, f"measured on the last stage{'s' if len(same) > 1 else ''} of this encoder on {device}")


@cache
def _probe() -> float:
    import numpy as np
    from threadpoolctl import threadpool_limits

    left, best = np.ones((512, 512), dtype=np.float32), math.inf
    with threadpool_limits(1):
        for _ in range(20):  # other work on the machine slows down most of them
            started = time.perf_counter()
            left @ left
            best = min(best, time.perf_counter() - started)
    return float(2 * 512**3 / best)


def device_here(gpus_per_run: float | None) -> str:
    """The name of the device that a run gets on this machine. torch, which takes seconds to import, is asked only where there is a driver."""
    if gpus_per_run == 0 or not any(path.exists() for path in GPU_DRIVERS):
        return cpu_name()
    import torch

    from harness.running import device_name

    return device_name("cuda" if torch.cuda.is_available() else "cpu")
