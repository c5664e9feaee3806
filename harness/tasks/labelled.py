"""Labelled rows of a file: texts and labels read once, before it is known which labels are right, then the rows of a task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.tasks.reading import FileColumns, column_texts, parts_of, shown_value
from harness.tasks.rows import Rows
from harness.tasks.task import Task
from harness.tasks.text_buffer import TextWriter


@dataclass(frozen=True)
class LabelledFile:
    """A file of labelled rows, read before it is known which labels are right: `values[codes[i]]` is the label of row i as the file
    gives it, codes int32 [n]. `texts`: the rows without labels; `unit`, `places`, `names`: see `FileColumns`."""

    path: Path | str
    texts: Rows
    codes: NDArray[np.int32]
    values: Sequence[Any]
    unit: str
    places: NDArray[np.int64]
    names: Mapping[str, Sequence[str]]

    @cached_property
    def _first(self) -> NDArray[np.int64]:
        """The first row of each value: codes count the values as they appear."""
        return np.flatnonzero(np.diff(np.maximum.accumulate(self.codes), prepend=-1))

    def place(self, code: int) -> str:
        """Where a value stands first."""
        return f"{self.path}, {self.unit} {self.places[self._first[code]]}"


def read_rows(path: Path, task: Task, name: str) -> Rows:
    """The rows of a file for `task`, in the file's order. `name` labels them.

    Raises UserError: file missing or broken, column missing, no rows, a text that is null, not text or blank, a label that
    is unknown, out of range or hidden.
    """
    return rows_of(read_labelled(path, task.columns, task.label), task, name)


def read_labelled(path: Path, columns: Sequence[str], label: str, shown: str = "") -> LabelledFile:
    """The text columns and the labels of a file, read once. Raises UserError as `read_rows` does, except for labels: which are
    right, the task says. `shown`: how errors name the file; its path where left out."""
    writer, known, codes, places = TextWriter(len(columns)), dict[Any, int](), [], []
    for part in parts_of(path, (*columns, label), label):
        part = replace(part, path=shown or path)
        writer.add(_filled_texts(part, columns))
        codes.append(_label_codes(part, label, known))
        places.append(np.asarray(part.places, dtype=np.int64))
    return LabelledFile(
        part.path,
        Rows(writer.buffer()),
        np.concatenate(codes),
        [key if isinstance(key, str) else key[1] for key in known],
        part.unit,
        np.concatenate(places),
        part.names,
    )


def rows_of(table: LabelledFile, task: Task, name: str) -> Rows:
    """The rows of a task, with its labels. Raises UserError as `read_rows` does."""
    if not len(table.texts):
        raise UserError(f"{table.path}: there are no rows in it; give a file with labelled rows.")
    found = [(_score if task.regression else _code)(value, task) for value in table.values]
    if None in found:
        raise _bad_label(table, task, found.index(None))
    labels = np.array(found, dtype=np.float32 if task.regression else np.int64)
    return table.texts.with_labels(labels[table.codes], name)


def rows_of_all(tables: Sequence[LabelledFile], task: Task, name: str) -> Rows:
    """The rows of several files, of which some may be empty, one file after another. Raises UserError as `read_rows` does."""
    parts = [rows_of(table, task, name) for table in tables if len(table.texts) or len(tables) == 1]
    if len(parts) == 1:
        return parts[0]
    return Rows((texts for part in parts for texts in part.texts), np.concatenate([part.gold for part in parts]), name)


def _filled_texts(table: FileColumns, columns: Sequence[str]) -> list[str]:
    """The texts of rows that are not blank, row after row."""
    texts = [column_texts(table, column) for column in columns]
    for index, row in enumerate(zip(*texts, strict=True)):
        if not row[0].strip() and not any(text.strip() for text in row):
            raise UserError(f"{table.place(index)}: {' and '.join(columns)} blank; fill the text in or delete the row.")
    return texts[0] if len(texts) == 1 else [text for row in zip(*texts, strict=True) for text in row]


def _label_codes(table: FileColumns, label: str, known: dict[Any, int]) -> NDArray[np.int32]:
    """The number of each label among those that differ; `known` counts them as they appear, with the type of what is no text."""
    values = table.columns[label]
    for index, value in enumerate(values if set(map(type, values)) & {list, dict} else ()):
        if isinstance(value, (list, dict)):
            raise UserError(f"{table.place(index)}: label {shown_value(value)} is neither text nor a number.")
    keys = (value if type(value) is str else (type(value), value) for value in values)
    return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int32)


def _code(value: Any, task: Task) -> int | None:
    """The code of a label: by the task's own mapping, by the name of its class, or, without a mapping, by its number."""
    number = number_of(value)
    whole = number is not None and number.is_integer()
    for text in (str(value).strip(), str(int(number)) if number is not None and whole else ""):
        name = dict(task.labels).get(text, text)
        if name in task.classes:
            return task.classes.index(name)
    if number is None or not whole or task.labels or any(number_of(name) is not None for name in task.classes):
        return None
    return int(number) if 0 <= number < len(task.classes) else None


def _score(value: Any, task: Task) -> float | None:
    """A regression label; None for what is none of the task."""
    low, high = task.label_range or (-math.inf, math.inf)
    number = number_of(value)
    fits = number is not None and low <= number <= high and abs(number) <= np.finfo(np.float32).max
    return number if fits else None


def number_of(value: Any) -> float | None:
    """A finite number, given as such or as text; None for anything else."""
    if not isinstance(value, (bool, int, float, str)):
        return None
    if isinstance(value, str) and "_" in value:  # Python would read 1_0 as 10
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _bad_label(table: LabelledFile, task: Task, code: int) -> UserError:
    value, place = table.values[code], table.place(code)
    if task.regression:
        allowed = (
            f"a number from {task.label_range[0]:g} to {task.label_range[1]:g}" if task.label_range else "a number"
        )
    elif task.labels:
        allowed = "one of " + ", ".join(dict.fromkeys([*dict(task.labels), *task.classes]))
    else:
        allowed = "one of " + ", ".join(f"{code} ({name})" for code, name in enumerate(task.classes))
    if value is None or value == "":
        return UserError(f"{place}: the label is missing; it should be {allowed}.")
    if number_of(value) == -1:
        return UserError(
            f"{place}: label -1 means that the label is hidden, as in GLUE's test files; give a split with labels "
            f"({allowed})."
        )
    fix = ", or stand under labels in the task's YAML" if task.own and not task.regression else ""
    return UserError(
        f"{place}: label {shown_value(value)} is unknown to task {task.name}; it should be {allowed}{fix}."
    )
