"""Samplers: the training rows that a draw of some size takes.

A draw takes the rows with the smallest hash under its scope, so it is the same in any order of the rows and needs no other draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.tasks.rows import Rows, Scope, scoped
from harness.tasks.task import Task

DRAWS = 1000
"""Draws of one subset before a class is called too rare."""


def smallest(hashes: NDArray[np.uint64], count: int) -> NDArray[np.int64]:
    """Indices [count] of the smallest hashes, in the order of `hashes` [n]."""
    if count >= len(hashes):
        return np.arange(len(hashes))
    return np.sort(np.argpartition(hashes, count)[:count])


def draw(task: Task, rows: Rows, size: int, scope: Scope, fewer: str) -> Rows:
    """`size` of the rows, each class among them, in canonical order: those with the smallest hash under the scope and a salt, which
    starts at 0 and grows until every class is in.

    Raises UserError, naming task and counts, where there are not as many rows (`fewer` says what to do then), or a class cannot be
    in.
    """
    counts = _require(task, rows, size, fewer)
    for salt in range(DRAWS):
        drawn = smallest(scoped(rows.ids, [*scope, salt]), size)
        if task.regression or np.bincount(rows.gold[drawn], minlength=len(task.classes)).all():
            return rows.take(drawn).sorted()
    rare = int(np.argmin(counts))
    raise UserError(
        f"task {task.name}: class {rare} ({task.classes[rare]}) has {counts[rare]} of {len(rows):,} training examples and "
        f"is in none of {DRAWS:,} draws of {size}; ask for more examples a subset."
    )


def require_classes(task: Task, rows: Rows) -> list[int]:
    """Training examples of each class. Raises UserError where a class has none."""
    counts: list[int] = [] if task.regression else np.bincount(rows.gold, minlength=len(task.classes)).tolist()
    for code, name in enumerate(task.classes):
        if not counts[code]:
            raise UserError(f"task {task.name}: no training example has the class {code} ({name}); add examples of it.")
    return counts


def draw_stratified(task: Task, rows: Rows, size: int, scope: Scope, fewer: str) -> Rows:
    """`size` of the rows in canonical order, each class with its share of them to within one row; of a regression any rows.

    Raises UserError as `draw` does.
    """
    counts = _require(task, rows, size, fewer)
    hashes = scoped(rows.ids, scope)
    if task.regression:
        return rows.take(smallest(hashes, size)).sorted()
    shares = quotas(counts, size)
    if 0 in shares:
        rare = shares.index(0)
        raise UserError(
            f"task {task.name}: class {rare} ({task.classes[rare]}) has {counts[rare]} of {len(rows):,} training examples, and its "
            f"share of {size} is none; ask for more examples a subset."
        )
    return rows.take(of_classes(hashes, rows.gold, shares)).sorted()


def draw_per_class(task: Task, rows: Rows, size: int, scope: Scope, fewer: str) -> Rows:
    """`size` of the rows in canonical order, as many of each class.

    Raises UserError as `draw` does, and for a regression, for a size that the classes do not divide, and for a class with too few
    rows.
    """
    if task.regression:
        raise UserError(
            f"task {task.name}: a regression has no classes to draw the same number of; take another protocol."
        )
    counts = _require(task, rows, size, fewer)
    each, rest = divmod(size, len(counts))
    if rest:
        raise UserError(
            f"task {task.name}: {size} training examples are not the same number of each of its {len(counts)} classes; give a "
            f"multiple of {len(counts)}."
        )
    if min(counts) < each:
        rare = int(np.argmin(counts))
        raise UserError(
            f"task {task.name}: class {rare} ({task.classes[rare]}) has {counts[rare]} training examples, and {each} of each class "
            f"are requested; give sizes up to {min(counts) * len(counts)}."
        )
    return rows.take(of_classes(scoped(rows.ids, scope), rows.gold, [each] * len(counts))).sorted()


Sampler = Callable[[Task, Rows, int, Scope, str], Rows]

SAMPLERS: Mapping[str, Sampler] = {"uniform": draw, "stratified": draw_stratified, "per_class": draw_per_class}
"""What a protocol's `sampler` names."""


def quotas(counts: list[int], size: int, available: list[int] | None = None) -> list[int]:
    """`size` rows over classes with `counts` rows, each its share to within one row (largest remainders; of equal ones the lower
    code first). `available`: at most so many of each (left out: `counts`); what a class lacks, classes with more rows give.

    `size` is at most the sum of `available`.
    """
    total, most = sum(counts), counts if available is None else available
    found = [min(count * size // total, limit) for count, limit in zip(counts, most, strict=True)]
    order = sorted(range(len(counts)), key=lambda code: (-(counts[code] * size % total), code))
    while sum(found) < size:
        for code in order:
            if found[code] < most[code] and sum(found) < size:
                found[code] += 1
    return found


def of_classes(hashes: NDArray[np.uint64], codes: NDArray[np.int64], shares: list[int]) -> NDArray[np.int64]:
    """Indices of the rows with the smallest `hashes` [n], `shares` of each class of `codes` [n]."""
    found = []
    for code, share in enumerate(shares):
        mine = np.flatnonzero(codes == code)
        found.append(mine[smallest(hashes[mine], share)])
    return np.sort(np.concatenate(found))


def _require(task: Task, rows: Rows, size: int, fewer: str) -> list[int]:
    """Training examples of each class. Raises UserError where there are fewer rows or more classes than `size`, or a class has no
    row."""
    if size > len(rows):
        raise UserError(
            f"task {task.name}: {size:,} training examples are requested and there are {len(rows):,}; {fewer}."
        )
    if size < len(task.classes):
        raise UserError(
            f"task {task.name}: {size} training examples cannot hold its {len(task.classes)} classes; ask for more."
        )
    return require_classes(task, rows)
