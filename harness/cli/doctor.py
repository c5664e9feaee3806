"""`harness doctor`: what this machine has, what it lacks, and how to fix it. Trains nothing and leaves no file behind.

The machine's own checks are in `machine_checks`; those of data, store, artifact storage and disk are here.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import Any

from harness.cli.machine_checks import (
    GIB,
    INSTALL,
    PACKAGED_ENCODERS,
    PACKAGED_TEXTS,
    Check,
    hub_check,
    imported,
    library_check,
    memory_check,
    package_check,
    python_check,
    ray_checks,
    shared_memory_check,
    torch_check,
    translator_check,
)
from harness.errors import UserError


def _data(data: str | None) -> Check:
    """The built-in tasks that the loader finds in the folder, the splits that it misses, and the other folders with a train
    split, which a user's own tasks have."""
    from harness.tasks import TASKS, Task, open_source

    layout = "a folder with TASK/train.parquet (or .csv, .jsonl) and TASK/validation.parquet"
    if data is None:
        return Check("data folder", None, "none named", f"for data from files, `--data` {layout}")
    if data == "hub":
        return Check("data folder", True, f"{open_source('hub').describe(TASKS['sst2'])}, fetched when it is needed")
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
    from harness.store import DEFAULT_URL

    return store or DEFAULT_URL


def _store_path(store: str | None) -> Path | None:
    """SQLite's file; None for a server, and for text that is no URL."""
    from harness.store.database import parsed

    try:
        url = parsed(_store_url(store))
    except UserError:
        return None
    return Path(url.database or "") if url.get_backend_name() == "sqlite" else None


def _nearest(path: Path) -> Path:
    """The path itself, or its closest parent that exists."""
    return next(p for p in (path, *path.parents) if p.exists())


def _to_create(name: str, path: Path) -> Check:
    """Whether a file or folder that is not there yet can be made."""
    place = _nearest(path)
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return Check(name, True, f"{path} (will be created)")
    fix = f"make {place} a writable folder, or give another place with `--{name}`"
    return Check(name, False, f"{place} is not writable", fix)


def _store(store: str | None) -> Check:
    """Opens the database and takes its write lock. Creates nothing: where there is no file, it checks that one can be made."""
    sqlalchemy: Any
    sqlalchemy, why = imported("sqlalchemy")
    if sqlalchemy is None:
        return Check("store", False, why, INSTALL)
    from harness.store import database

    try:
        url = database.parsed(_store_url(store))
    except UserError as error:
        return Check("store", False, str(error), "name another with `--store`")
    shown = database.shown(url)
    sqlite = url.get_backend_name() == "sqlite"
    if sqlite:
        path = Path(url.database or "").absolute()
        if not path.exists():
            return _to_create("store", path)
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
    """Checks every record of a database that opens, and the structure of the file."""
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
    return Check("store", True, f"{shown} opens; {count:,} records, none damaged")


def quarantine(store: str | None) -> str:
    """Move damaged records into a table of their own and say how many. Raises UserError."""
    from harness.store import Store

    opened = Store(_store_url(store), create=False)
    damages = opened.damages()[1] if opened.exists else []
    opened.quarantine(damages)
    return f"{len(damages):,} damaged records were moved to the table damaged_records of {opened.shown}."


def _storage(uri: str | None, store: str | None) -> Check:
    """Writes, reads and deletes a small file in the artifact storage. Creates no folder."""
    from harness.storage import Storage

    path = _store_path(store)
    beside = path.parent if path else Path(".harness")
    try:
        storage = Storage.named(uri or str(beside / "products"))
        if storage.folder and not storage.folder.exists():
            return _to_create("storage", storage.folder)
        storage.probe()
    except UserError as error:
        found, _, fix = str(error).partition("; ")
        return Check("storage", False, found, fix)
    except ImportError as error:
        return Check("storage", False, str(error), INSTALL)
    return Check("storage", True, f"{storage.shown} can be written and read")


def _disk(store: str | None) -> Check:
    place = _nearest((_store_path(store) or Path()).absolute())
    free = shutil.disk_usage(place).free / GIB
    found, need = f"{free:.1f} GB free at {place}", "0.5 GB a stage until the stages that start from it have ended"
    if free >= 5:
        return Check("disk", True, found)
    return Check("disk", None if free >= 0.5 else False, found, f"free some space: a base-size encoder needs {need}")


def checks(store_url: str | None = None, data: str | None = None, storage: str | None = None) -> list[Check]:
    """All checks in the order of the report. Takes a few seconds: torch and ray are imported."""
    found = [
        python_check(),
        torch_check(),
        *ray_checks(),
        library_check("transformers"),
        library_check("optuna"),
        package_check("packaged encoders", PACKAGED_ENCODERS),
        package_check("packaged texts", PACKAGED_TEXTS),
        hub_check(),
        translator_check(),
        _data(data),
        _store(store_url),
        _storage(storage, store_url),
        _disk(store_url),
        memory_check(),
        shared_memory_check(),
    ]
    return [check for check in found if check is not None]


def run(args: argparse.Namespace) -> int:
    """Print every check with its fix. Returns 0 if nothing needed is missing, else 1."""
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
