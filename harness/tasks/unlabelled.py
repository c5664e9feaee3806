"""Unlabelled texts of a task, for post-training: files with the task's text columns, or any corpus."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness.errors import UserError
from harness.tasks.corpora import open_corpus
from harness.tasks.hub_data import HUB
from harness.tasks.overlap import among, normal_ids
from harness.tasks.reading import LABELLED, columns_of, read_texts
from harness.tasks.rows import Rows
from harness.tasks.separated import SEPARATED
from harness.tasks.task import Task


def unlabelled_rows(task: Task) -> Rows:
    """The texts that `task.unlabelled` names, in canonical order: rows of the task's text columns where a file has them, else
    single texts, as `open_corpus` reads them (a text file with one a line, a column `text` or PATH:COLUMN, a folder, a data set
    of the hub). Rows without text are skipped.

    Raises NotAtHand or UserError as `open_corpus` does, UserError for a file of no known kind or without the columns.
    """
    name, path = f"{task.name}/unlabelled", Path(task.unlabelled)
    table = not task.unlabelled.startswith(HUB) and path.is_file() and path.suffix in LABELLED
    if table and (path.suffix in SEPARATED or set(task.columns) <= set(columns_of(path))):
        rows = read_texts(path, task.columns, name)
        if not len(rows):
            raise UserError(f"{path}: there is no text in it; give rows with text.")
        return rows.sorted()
    corpus = open_corpus(task.unlabelled, download=True, where=f"task {task.name}, unlabelled")
    return Rows(tuple((text,) for text in corpus.texts()), None, name).sorted()


def without(rows: Rows, *others: Rows) -> Rows:
    """The rows whose text is in none of `others`, by normalised text: of whole rows where both have as many columns, else of
    any one text of a row."""
    kept = np.ones(len(rows), dtype=np.bool_)
    for other in others:
        whole = rows.columns == other.columns
        kept &= ~among(normal_ids(rows, whole), normal_ids(other, whole)).any(axis=1)
    return rows if kept.all() else rows.take(kept)
