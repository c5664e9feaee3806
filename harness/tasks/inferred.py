"""A task from a file of labelled rows: its text columns, its labels and their kind, read from the file itself.

What the file leaves open is an error that names the flag which settles it; nothing is guessed between two readings.
"""

from __future__ import annotations

import itertools
import os
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.answers import SQUAD, SpanReading
from harness.errors import UserError, quoted, unknown
from harness.hub import HUB
from harness.kinds import Spans, kind_of, number_of
from harness.paths import named_path
from harness.tasks.corpora import local_files
from harness.tasks.reading import Labelled, code_names, each_row, existing_file, is_separated, name_of, place_of
from harness.tasks.sources import TextSource
from harness.tasks.task import FILES, TASKS, Task
from harness.wording import some_of
from harness.yaml_files import validated

LABEL_NAMES = ("label", "labels", "class", "category", "target")
"""Columns that are taken for the labels where no flag names one."""
KINDS = ("classes", "regression", "spans")
QUESTIONS = ("question", "context")
"""The text columns of question answering where no flag names others, and beside answers a sign of it."""
MOST_CLASSES = 1000
FEW_NUMBERS = 10
"""Whole numbers of at most so many different values are classes; of more, a flag says what they are."""
SAMPLE = 1000
SHOWN_NAMES = 12
LABELS = (str, int, float, type(None))
"""What a label is read as."""
_Counts = Mapping[str, tuple[int, str, Any]]
"""(rows, place of the first, value) of each label by the name of its class."""


Option = Callable[[str], str]
"""How the user sets a field, as errors name it: '--label'."""


def infer_task(
    name: str,
    option: Option,
    source: TextSource,
    *,
    text: tuple[str, ...] = (),
    label: str = "",
    kind: str = "",
    **beside: Any,
) -> Task:
    """What the YAML file of a task would say of a file of labelled rows, or of a data set of the hub ('hub:OWNER/NAME'). What is read of it
    `source` keeps.

    The user says the columns and the `kind`, one of KINDS; what is left out is inferred. `beside`: other keys of `Task`, the files `dev`,
    `test` and `unlabelled` among them.

    Raises UserError for a file that cannot be read, and where text columns, labels or kind are not clear from it; NotAtHand for a
    data set that cannot be fetched.
    """
    if kind and kind not in KINDS:
        raise UserError(f"{option('kind')} {kind}: should be {', '.join(KINDS[:-1])} or {KINDS[-1]}.")
    place, split, of_codes = name, "train", dict[str, Sequence[str]]()
    if name.startswith(HUB):
        data = source.hub(name, f"task {name}", "name a file")
        split = split if split in data.splits else next(iter(data.splits))
        paths, of_codes = [*data.files(split, download=True)], dict(data.names)
    else:
        paths = [existing_file(named_path(name), option("tasks"))]
        place = str(paths[0].absolute())
    sample = [*itertools.islice(each_row(paths[0]), SAMPLE)]
    if not (first := [row for _, row in sample if not isinstance(row, str)]):
        wrong = next((f"{place_of(paths[0], line)}: {problem}" for line, problem in sample), "")
        raise UserError(wrong or f"{name}: there are no rows in it; give a file with labelled rows.")
    named_by_user = bool(label)
    text, label, spans = _columns(name, first, text, label, kind, option)
    named_like_a_score = not named_by_user and number_of(label) is not None
    if is_separated(paths[0]) and (named_like_a_score or label in (str(row.get(label)) for row in first)):
        raise UserError(
            f"{name}: '{label}' is both the name and a value of the column of labels; write a header line above the first row."
        )
    classes: tuple[str, ...] = ()
    if not spans:
        names = () if kind == "regression" else of_codes.get(label) or code_names(paths[0], label)
        classes = () if name.startswith(HUB) else tuple(names)
        files = [source.labelled(path, text, label) for path in paths]
        classes = classes or _classes(name, _counts(files, names), kind, label, option)
    title = "".join(c for c in _stem(name) if c.isprintable())[:60] or "data"
    found = {
        "name": task_name(name),
        "title": title,
        "data": place,
        "columns": text,
        "label": label,
        "classes": classes,
        "regression": not classes and not spans,
        "spans": bool(spans),
        "metrics": kind_of(classes, spans=spans).metrics,
        "splits": {"train": split} if split != "train" else None,
        **_beside(beside, option),
    }
    return validated(Task, {key: value for key, value in found.items() if value}, name)


def task_yaml(task: Task, folder: Path) -> dict[str, Any]:
    """What the YAML file of an inferred task in `folder` says, with paths from there; `load_user_task` reads the same task back."""
    left = {"title"} if task.title == task.name else set[str]()
    found = task.model_dump(mode="json", exclude_unset=True, exclude=left)
    named = [key for key in FILES if not found.get(key, HUB).startswith(HUB)]
    return found | {key: os.path.relpath(found[key], folder.absolute()) for key in named}


def _beside(said: Mapping[str, Any], option: Option) -> dict[str, Any]:
    """With absolute paths of the files, all of which have to be there; `unlabelled` in any form that `open_corpus` takes."""
    text, given = said.get("unlabelled", ""), {key: said[key] for key in ("dev", "test") if said.get(key)}
    found = {key: existing_file(named_path(file), option(key)) for key, file in given.items()}
    if text and not text.startswith(HUB):
        local_files(text, option("unlabelled"))
        found["unlabelled"] = named_path(text)
    return {**said, **{key: str(path.absolute()) for key, path in found.items()}}


def _stem(text: str) -> str:
    """The part of a file's or a data set's name that its task is named after."""
    return text[len(HUB) :].partition("@")[0].partition("/")[2] if text.startswith(HUB) else Path(text).stem


def task_name(text: str) -> str:
    """The name of the task of a file of labelled rows, or of a data set of the hub."""
    name = re.sub(r"[^a-z0-9_]+", "-", _stem(text).lower()).strip("-_") or "data"
    return f"own-{name}" if name in TASKS else name[:100]


# ------------------------------------------------------------------------------------------------------------ columns


def _columns(
    name: str, first: Sequence[Mapping[str, Any]], text: tuple[str, ...], label: str, kind: str, option: Option
) -> tuple[tuple[str, ...], str, SpanReading | None]:
    """(text columns, the column of labels, how questions are read where the rows are some): as the user says, else as they are clear from the
    first rows. Raises UserError."""
    columns = list(first[0])
    flag, shown, two = option("text"), some_of(columns, SHOWN_NAMES), len(columns) == 2
    if len(columns) < 2:
        raise UserError(f"{name}: has one column ({columns[0]}); labelled rows need one of texts and one of labels.")
    for column in (*text, *filter(None, [label])):
        if column not in columns:
            raise unknown("column", column, columns, f"{name}, {option('text' if column in text else 'label')}")
    if len(text) > 2 or len({*text, label}) < len(text) + 1:
        raise UserError(
            f"{flag} {','.join(text)}: name one text column, or the two of a pair, and none for the labels."
        )
    if kind == "spans" or (not (kind or text or label) and {*QUESTIONS, Spans.label_column} <= {*columns}):
        if len(text) == 1:
            raise UserError(f"{flag} {text[0]}: question answering takes two, QUESTION,CONTEXT.")
        return text or QUESTIONS, label or Spans.label_column, SQUAD
    texts = [column for column in columns if _is_text([row.get(column) for row in first])]
    if not label:
        named = [column for column in columns if column.casefold() in LABEL_NAMES and column not in text]
        others = [column for column in columns if column not in (text or (texts if two else ()))]
        label = next((found[0] for found in (named, others) if len(found) == 1), "")
    if not label:
        raise UserError(
            f"{name}: which column holds the labels is not clear; name it with {option('label')} ({shown})."
        )
    found = [column for column in columns if column != label and (two or column in texts)]
    if not text and len(found) != 1:
        which = (
            f"several columns hold text ({some_of(found, SHOWN_NAMES)})" if found else f"no column holds text ({shown})"
        )
        raise UserError(
            f"{name}: {which}; name one with {flag} COLUMN, or the two of a pair with {flag} COLUMN,COLUMN."
        )
    return text or (found[0],), label, None


def _is_text(values: Sequence[Any]) -> bool:
    """Whether values read like texts: strings, most of them different, and of several words or of some length."""
    texts = [value for value in values if isinstance(value, str) and value.strip()]
    if not texts or 2 * len(texts) < len(values) or 2 * len(set(texts)) < len(texts):
        return False
    return 2 * sum(" " in text.strip() or len(text) > 20 for text in texts) > len(texts)


# ------------------------------------------------------------------------------------------------------------ labels


def _counts(files: Sequence[Labelled], names: Sequence[str]) -> _Counts:
    """Of the rows with a text and a label; the others are refused, or skipped, where the task is read. `names`: those of codes."""
    found = dict[str, tuple[int, str, Any]]()
    for file in files:
        _, first, counts = np.unique(file.codes, return_index=True, return_counts=True)
        for row, count, raw in zip(first, counts.tolist(), file.values, strict=True):
            value = name_of(raw, names)
            if not isinstance(value, LABELS):
                raise UserError(
                    f"{place_of(file.path, file.lines[row])}: label {quoted(value)} is neither text nor a number."
                )
            if value is not None and value == value and (of := str(value).strip()):
                # 1, 1.0 and '1' are one class
                of = str(int(value)) if isinstance(value, float) and value.is_integer() else of
                before, *seen = found.get(of) or (0, place_of(file.path, file.lines[row]), value)
                found[of] = (before + count, *seen)
    for file in () if found else files:
        for line, problem in file.bad:
            raise UserError(f"{place_of(file.path, line)}: {problem}")
    return found


def _classes(name: str, counts: _Counts, kind: str, label: str, option: Option) -> tuple[str, ...]:
    """The names of the classes in the order of their codes: numbers by value, others as text; empty for a regression."""
    numbers = {each: number_of(value) for each, (_, _, value) in counts.items()}
    words = [each for each, number in numbers.items() if number is None]
    values = sorted(number for number in numbers.values() if number is not None)
    rows = sum(count for count, _, _ in counts.values())
    flag, column = option("kind"), f"{name}: column '{label}' holds"
    if not rows:
        raise UserError(f"{name}: no row has a text and a label in '{label}'; fill the labels in.")
    if kind == "regression":
        if words:
            raise UserError(
                f"{counts[words[0]][1]}: label '{words[0]}' is no number, as a regression needs; correct it."
            )
        return ()
    if not kind and words and (len(values) > 2 or 1 == len(words) < len(counts)):
        count, place, _ = counts[words[0]]
        raise UserError(
            f"{place}: label '{words[0]}' ({count:,} of {rows:,} rows) stands among numbers; correct it, or take each value for a class "
            f"with {flag} classes."
        )
    if not kind and (decimal := next((each for each in words if re.fullmatch(r"-?\d+,\d+", each)), None)):
        raise UserError(f"{counts[decimal][1]}: label '{decimal}' has a decimal comma; write it with a point.")
    if not kind and not words and len(counts) > 2:
        if not all(number.is_integer() for number in values):
            return ()
        if len(counts) > FEW_NUMBERS:
            raise UserError(
                f"{column} {len(counts):,} different whole numbers from {values[0]:.15g} to {values[-1]:.15g}; say with {flag} "
                f"regression that they are scores, or with {flag} classes that they are classes."
            )
    if not kind:
        _check_alike(counts, numbers, flag)
    if len(counts) > MOST_CLASSES or (not kind and 2 * len(counts) > rows and len(counts) > 2):
        raise UserError(
            f"{column} {len(counts):,} different values in {rows:,} rows, which are no classes; name another column "
            f"with {option('label')}."
        )
    if len(counts) < 2:
        raise UserError(f"{column} one value, '{next(iter(counts))}'; give rows of two classes or more.")
    return tuple(sorted(counts, key=lambda each: each if words else (numbers[each], each)))


def _check_alike(counts: _Counts, numbers: Mapping[str, float | None], flag: str) -> None:
    """Raises UserError for two labels that are one in two ways of writing: one number, or words that differ in case, spaces, forms of one character
    or characters that are not drawn."""
    alike: dict[str | float, str] = {}
    for each, number in numbers.items():
        drawn = (char for char in unicodedata.normalize("NFKC", each).casefold() if unicodedata.category(char) != "Cf")
        twin = alike.setdefault(" ".join("".join(drawn).split()) if number is None else number, each)
        if twin != each:
            raise UserError(
                f"{counts[each][1]}: label '{each}' and '{twin}' ({counts[twin][1]}) are one in two ways of writing; write them alike, or take each "
                f"value for a class with {flag} classes."
            )
