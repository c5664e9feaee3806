"""The settings of a table: each value in use under the name that `--set` takes, with the origin of the value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from harness.methods import METHODS
from harness.paths import without_folders
from harness.planning.recipe import group_of, keyed
from harness.planning.resolved import TASK_RECIPES, ResolvedTable, Use
from harness.views.view import Table, View
from harness.wording import listed, value_text

ORIGINS = {
    "P": "from the {paper} paper",
    "R": "read in released code, named beside it",
    "C": "chosen here, where the paper is silent",
    "I": "how it is implemented here, as the paper says or as docs/papers.md decides",
    "D": "departs from the paper, whose value stands beside it",
    "S": "set by the preset or the request, the table's own value beside it",
}


class Setting(NamedTuple):
    """`key`: as `--set` takes it, as a flag or a key of the table's file names it, or the method that decides `value`. `origin`: a letter of
    `ORIGINS`, '' in a table that names none. `note`: the section of the paper, the reason, or the value of the paper or of the table."""

    key: str
    value: str
    origin: str = ""
    note: str = ""


def about_paper(resolved: ResolvedTable) -> bool:
    """Whether a task is one of the table's own. Otherwise only the table's protocol and recipe are used."""
    return resolved.table.source is not None and bool(set(resolved.tasks) & set(resolved.table.tasks))


def settings_view(resolved: ResolvedTable) -> View:
    import pandas as pd

    found = settings_of(resolved)
    letters, source = {setting.origin for setting in found}, resolved.table.source
    paper = (source.values_of or source.paper) if source else ""
    terms = [f"{letter}: {text.format(paper=paper)}." for letter, text in ORIGINS.items() if letter in letters]
    rows = [[setting.key, setting.value, f"{setting.origin} {setting.note}".strip()] for setting in found]
    shown = 3 if any(row[2] for row in rows) else 2
    table = Table("Settings", ["Setting", "Value", "Origin"][:shown], [row[:shown] for row in rows], range(shown))
    about = {"table": resolved.table.name, "preset": resolved.preset}
    return View("settings", pd.DataFrame(found, columns=Setting._fields), [table], terms, about=about)


def settings_of(resolved: ResolvedTable) -> list[Setting]:
    """Of the chosen rows, tasks and sizes, and no more; paths without their folders."""
    found = dict.fromkeys(Setting(*map(without_folders, each)) for each in _settings_of(resolved))
    keys = [each.key for each in found]
    return sorted(found, key=lambda each: keys.index(each.key))


def _settings_of(resolved: ResolvedTable) -> Iterator[Setting]:
    letters = about_paper(resolved) and bool(resolved.table.origin)
    yield Setting("table", resolved.table.name)
    yield Setting("preset", resolved.preset)
    yield Setting("protocol", resolved.protocol.name)
    for use in resolved.uses:
        origin = _origin(use) if letters else ("", "")
        if use.path == "grids":
            for (title, tasks), points in grid_points(resolved).items():
                text = f"{len(points)} points of {varied(points)}{_on(resolved, tasks)}"
                yield Setting(f"grid of {title}", text, *origin)
        else:
            key = ".".join(use.path.split(".")[-2:]) if use.path.startswith(TASK_RECIPES) else use.key
            on = _on(resolved, use.tasks) if use.tasks != resolved.tasks else ""
            yield Setting(key, _text(resolved, use) + on, *origin)
    for row in resolved.rows_of_one:
        own: dict[str, Any] = {}
        if not row.configuration_of:
            own |= row.recipe.values | {key: value for key, value in row.set.items() if key.startswith("encoder.")}
            own |= keyed("augment", row.augment)
            own |= row.model_dump(include={"pre_train_fraction", "pre_train_step", "unlabelled"}, exclude_none=True)
        yield from (Setting(f"{row.own.name}:{key}", value_text(value)) for key, value in own.items())
        for key, value in row.alone.items():
            yield Setting(f"{row.own.name}:{key}", value_text(value), "", "this row alone")
    for part in resolved.methods:
        source = {"source": METHODS[part].file} if METHODS[part].file else {}
        values = {**group_of(resolved.under[""], part), **source}
        yield from (Setting(f"{part}.{name}", value_text(value), "S" * letters) for name, value in values.items())
    if letters:
        if extra := [task for task in resolved.tasks if task not in resolved.table.tasks]:
            yield Setting("tasks", ", ".join(extra), "S", "the paper's table lacks them")
        decided = {resolved.protocol.name: resolved.protocol.decisions}
        decided |= {METHODS[part].title: METHODS[part].decisions for part in resolved.methods}
        yield from (Setting(name, f"docs/papers.md {', '.join(ids)}", "I") for name, ids in decided.items() if ids)


def _on(resolved: ResolvedTable, tasks: Iterable[str]) -> str:
    """The titles of the columns of tasks: ' on SST-2 and RTE'."""
    return (
        f" on {listed(column.title for task in tasks for column in resolved.columns.values() if column.task == task)}"
    )


def _text(resolved: ResolvedTable, use: Use) -> str:
    value = use.value
    if use.path == "sizes":
        return ", ".join(str(size) if size else "full" for size in value)
    if use.path == "aggregate.average_over":
        return ", ".join(group if isinstance(group, str) else "+".join(group) for group in value)
    if isinstance(value, Mapping) and set(value) & set(resolved.sizes):
        value = {size: value[size] for size in resolved.sizes if size in value}
    return value_text(value)


def _origin(use: Use) -> tuple[str, str]:
    """The letter of a value's origin, and what stands beside it."""
    if use.letter == "D":
        return "D", f"{use.note}: {use.paper}"
    return ("S", f"instead of {use.instead}") if use.instead and not use.letter else (use.letter, use.note)


def varied(points: Iterable[Mapping[str, Any]], text: Callable[[Any], str] = value_text) -> str:
    """'alpha=0.3, fine_tune.lr=1e-5|2e-5': each value once, in the order of the points."""
    values: dict[str, dict[str, None]] = {}
    for key, value in (pair for point in points for pair in point.items()):
        values.setdefault(key, {})[text(value)] = None
    return ", ".join(f"{key}={'|'.join(texts)}" for key, texts in values.items())


def grid_points(resolved: ResolvedTable) -> dict[tuple[str, tuple[str, ...]], list[dict[str, Any]]]:
    """The points of each printed row that has a grid, with the chosen tasks that it is run on: the values of the recipe
    ('fine_tune.lr') and hyperparameters of its configurations."""
    found: dict[tuple[str, tuple[str, ...]], list[dict[str, Any]]] = {}
    for row in resolved.rows_of_one:
        if row.configuration_of and row.tasks:
            found.setdefault((row.own.title, row.tasks), []).append(row.recipe.values | row.set)
    return found
