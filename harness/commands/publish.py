"""A table published: its results and its printed form, and the records behind them in a folder that commands read as a store."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from harness.commands.prepare import Prepared, prepare
from harness.commands.recorded import check_exists, command, last_bench
from harness.commands.verify import RESULTS_FILE
from harness.commands.views import caption_of, grid_of
from harness.errors import UserError
from harness.paths import replace_file, without_folders
from harness.specs import Record
from harness.store import Store
from harness.store.exchange import Labels, publish_records
from harness.store.published import RECORDS_FILE, UNLABELLED_FILE, is_published, records_of
from harness.views.seal import time_of
from harness.views.settings import settings_view
from harness.views.table import notes_view, results_view
from harness.wording import counted, listed

TABLE_FILE = "README.md"
FILES = (RESULTS_FILE, TABLE_FILE, RECORDS_FILE, UNLABELLED_FILE)


class Published(NamedTuple):
    """What was written. `complete`: no run of the table is missing."""

    folder: Path
    records: int
    rows: int
    complete: bool


def publish(prepared: Prepared, folder: Path, *, gold: bool = True) -> Published:
    """Write a folder of a table, or write it again with what the store has gained. No texts, no weights, and of paths the last part alone.
    `gold`: with the gold labels of dev and test, or without: `open_other` takes them from the data.

    Raises UserError where nothing is recorded, where the folder holds anything else, and where it holds records that the store lacks or the plan does not
    make.
    """
    plan, store, table = prepared.plan, prepared.store, prepared.resolved.table.name
    recorded = store.records(prepared.plan.stages)
    if not recorded:
        raise UserError(
            f"publish: none of the {counted(len(plan.stages), 'stage')} of this table is recorded in {store.shown}."
        )
    _check_folder(folder, store, recorded)
    grid = grid_of(prepared)
    caption = caption_of(prepared)
    request = replace(prepared.request, preset=prepared.resolved.preset, store=None)
    made = [f"Made by `{without_folders(command(request))}`."]
    made += [f"Plan sealed: {each.digest}, {time_of(each)}." for each in store.seals(table)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # they start from the current folder of whoever reads it
        values = json.loads(without_folders(json.dumps(dict(prepared.kept.values), ensure_ascii=False)))
        count = publish_records(
            store, table, prepared.plan.stages, values | {"folder": "."}, folder, prepared.snapshot, gold
        )
        shown = results_view(grid, caption)
        replace_file(folder / RESULTS_FILE, shown.written("csv"))
        views = (shown, notes_view(grid, caption), settings_view(grid.resolved))
        replace_file(folder / TABLE_FILE, "\n".join([*(str(view.written("md")) for view in views), *made, ""]))
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}).") from None
    return Published(folder, count, len(grid.results), grid.complete)


def _check_folder(folder: Path, store: Store, recorded: Mapping[str, Record]) -> None:
    """Raises UserError for a folder that cannot be read or holds anything else, and where records in it would be lost. `recorded`: what is to be published."""
    try:
        names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise UserError(f"{folder}: is no folder that can be read ({error.strerror}).") from None
    if others := [name for name in names if name not in FILES and not name.startswith(".")]:  # of the Finder, of git
        raise UserError(
            f"{folder}: holds {listed(others[:3])}, which belongs to no published table; name a folder of its own."
        )
    for name in (name for name in (RECORDS_FILE, UNLABELLED_FILE) if is_published(str(folder), name)):
        # with other flags, without texts that runs depend on, or of a store that never had them
        if lost := Store(str(folder / name), create=False).keys() - recorded.keys():
            raise UserError(
                f"{folder}: holds {counted(len(lost), 'record')} that would be lost, since {store.shown} lacks them or this plan does not make them; publish "
                f"with the flags in its {TABLE_FILE} after 'harness merge {shlex.quote(str(folder))}', or into another folder."
            )


def open_other(name: str, data: str | None = None) -> tuple[Store, Labels | None, str]:
    """A store, a published folder, or the file of records of one (a path or an URL), for `harness.store.merge`, with the labels of one that was published
    without them, and its name for people. `data`: the folder with the data of such a one; None: where its bench had them. Raises UserError where it is not there, and where the data are not the rows that
    it predicts."""
    records = records_of(name)
    store = Store(records or name, create=False)
    check_exists(store)
    return store, _labels_of(store, name, data) if UNLABELLED_FILE in records else None, store.shown


def _labels_of(there: Store, shown: str, data: str | None) -> Labels:
    stored = last_bench(there)
    if stored is None:
        raise UserError(f"{shown}: names no bench; publish it again.")
    request = replace(stored[1], store=there.url, data=data or stored[1].data)
    library = prepare(request, train=False).plan.library
    for stage in there.stages(there.keys()).values():
        for rows in (stage.data.dev, *stage.data.tests):
            if rows is not None and rows.digest not in library:
                raise UserError(
                    f"{shown}: predicts {rows.name} (digest {rows.digest[:10]}), which {request.data or 'its data'} does not hold; name the data that "
                    "it was made from with --data."
                )
    return lambda digest: library[digest].gold
