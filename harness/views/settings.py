"""The settings of a table: each value in use under the name that `--set` takes, with the origin of the value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from harness.methods import METHODS
from harness.paths import without_folders
from harness.planning.recipe import PHASES
from harness.planning.resolved import ResolvedTable, UnderEncoder, Use
from harness.planning.row import ENCODER, ResolvedRow, Row, on_encoder
from harness.planning.table import TASK_RECIPES
from harness.planning.values import grid_points
from harness.tasks import protocol_named
from harness.tasks.protocols import DevProtocol
from harness.views.document import Block, Folded, Table
from harness.wording import listed, value_text

ORIGINS = {
    "P": "from the {paper} paper",
    "R": "read in released code, named beside it",
    "C": "chosen here, where the paper is silent",
    "I": "how it is implemented here, as the paper says or as docs/papers.md decides",
    "D": "departs from the paper, whose value stands beside it",
    "S": "set by the preset or the request, the table's own value beside it",
}
SHARED = "optim"
"""What `--set` calls fine-tuning and post-training together."""


@dataclass(frozen=True)
class Setting:
    """`key`: as `--set` takes it, as a flag or a key of the table's file names it, or the method that decides `value`. `origin`: a letter of
    `ORIGINS`, '' in a table that names none. `note`: the section of the paper, the reason, or the value of the paper or of the table."""

    key: str
    value: str
    origin: str = ""
    note: str = ""


def about_paper(resolved: ResolvedTable) -> bool:
    """Whether a task is one of the table's own. Otherwise only the table's protocol and recipe are used."""
    return resolved.table.source is not None and bool(set(resolved.tasks) & set(resolved.table.tasks))


def settings_of(resolved: ResolvedTable) -> list[Setting]:
    """Of the chosen rows, tasks and sizes, and no more; paths without their folders. Of several encoders a value that not all have says whose
    it is."""
    found: dict[Setting, list[str]] = {}
    for under in resolved.encoders:
        for setting in _settings_of(resolved, under):
            found.setdefault(setting, []).append(under.title)
    keys = list(dict.fromkeys(setting.key for setting in found))
    return [
        each
        if each.key == "encoder" or len(encoders) == len(resolved.encoders)
        else replace(each, value=f"{each.value} with {listed(encoders)}")
        for each, encoders in sorted(found.items(), key=lambda item: keys.index(item[0].key))
    ]


def _settings_of(resolved: ResolvedTable, under: UnderEncoder) -> list[Setting]:
    """Of the rows of one encoder."""
    letters = about_paper(resolved) and bool(resolved.table.origin_for(under.name))
    found = [Setting(name, value_text(getattr(resolved, name))) for name in ("preset", "protocol")]
    found = [Setting("table", resolved.table.name), *found, *_values(resolved, under, letters)]
    found += _of_rows(resolved.rows_under(under))
    parts = dict.fromkeys(part for row in resolved.trained_rows for part in row.parts)
    for part in parts:
        for name, value in resolved.settings.get(part, {}).items():
            found.append(Setting(f"{part}.{name}", value_text(value), "S" if letters else ""))
        if source := METHODS[part].source:
            found.append(Setting(f"{part}.source", source, "S" if letters else ""))
    if letters:
        extra = [task for task in resolved.tasks if task not in resolved.table.tasks]
        found += [Setting("tasks", ", ".join(extra), "S", "the paper's table lacks them")] if extra else []
        decided = {resolved.protocol: protocol_named(resolved.protocol).decisions}
        decided |= {METHODS[part].title: METHODS[part].decisions for part in parts}
        found += [Setting(name, f"docs/papers.md {', '.join(ids)}", "I") for name, ids in decided.items() if ids]
    return [Setting(each.key, without_folders(each.value), each.origin, without_folders(each.note)) for each in found]


def settings_table(resolved: ResolvedTable) -> Table:
    settings = settings_of(resolved)
    head, rows = ["Setting", "Value", "Origin"], [[s.key, s.value, f"{s.origin} {s.note}".strip()] for s in settings]
    letters = {setting.origin for setting in settings}
    source = resolved.table.source
    paper = (source.values_of or source.paper) if source else ""
    terms = [f"{letter}: {text.format(paper=paper)}" for letter, text in ORIGINS.items() if letter in letters]
    if not terms and not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    title = f"Settings ({'; '.join(terms)})" if terms else "Settings"
    return Table(title, head, rows, frozenset(range(len(head))))


def settings_folded(resolved: ResolvedTable) -> list[Block]:
    """For a page: the settings, and the points of each grid that is not a product of lists."""
    table = settings_table(resolved)
    blocks: list[Block] = [Folded(f"Settings: {len(table.rows)}", [table])]
    for title, rows in _grids(resolved, resolved.encoders[0]).items():
        tables = []
        for tasks, points in rows.items():
            if _product(points) is None:
                keys = list(dict.fromkeys(key for point in points for key in point))
                body = [[value_text(point.get(key, "")) for key in keys] for point in points]
                tables.append(Table(f"On {titles_of(resolved, tasks)}", keys, body, headed=False))
        blocks += [Folded(f"Grid of {title}", tables)] if tables else []
    return blocks


def grid_records(resolved: ResolvedTable) -> list[dict[str, Any]]:
    """The points of all grids as JSON values."""
    return [
        {
            "row": on_encoder(title, under.title) if resolved.encoder_titles else title,
            "tasks": list(tasks),
            "points": [dict(point) for point in points],
        }
        for under in resolved.encoders
        for title, by_tasks in grid_points(resolved, under).items()
        for tasks, points in by_tasks.items()
    ]


def setting_records(resolved: ResolvedTable) -> list[dict[str, str]]:
    return [asdict(setting) for setting in settings_of(resolved)]


def titles_of(resolved: ResolvedTable, tasks: Iterable[str]) -> str:
    """The titles of the columns of tasks: 'SST-2 and RTE'."""
    return listed(column.title for task in tasks for column in resolved.columns.values() if column.task == task)


# --------------------------------------------------------------------------------------------------------------- values


def _values(resolved: ResolvedTable, under: UnderEncoder, letters: bool) -> list[Setting]:
    """The values of the table by path; those that fine-tuning and post-training share once. `letters`: with their origins."""
    found: dict[tuple[str, Setting], list[str]] = {}
    for use in under.uses:
        if use.path in _hidden(resolved, letters):
            continue
        text = (
            use.changed[0]
            if letters and use.path == "subsets" and use.changed
            else _text(resolved, use.path, use.value)
        )
        letter = (use.letter or "S" * bool(use.changed)) if letters else ""
        note = _note(use, letter) if letter else ""
        phase, name = "", use.path
        if name.startswith(("recipe.", TASK_RECIPES)):
            phase, name = name.split(".")[-2:]
        where = "" if use.tasks == resolved.tasks else f" on {titles_of(resolved, use.tasks)}"
        if use.path == "grids":
            for text, titles in _grid_texts(resolved, under).items():
                found[f"grid of {listed(titles)}", Setting("", text, letter, note)] = []
            continue
        found.setdefault((name, Setting("", text + where, letter, note)), []).append(phase)
    return [
        Setting(key, s.value, s.origin, s.note) for (name, s), phases in found.items() for key in _keys(name, phases)
    ]


def _keys(name: str, phases: Sequence[str]) -> list[str]:
    """The keys of a value that these phases share."""
    both = set(PHASES[:2]) <= set(phases)
    rest = [phase for phase in phases if not (both and phase in PHASES[:2])]
    return [*([f"{SHARED}.{name}"] if both else []), *(f"{phase}.{name}" if phase else name for phase in rest)] or [
        name
    ]


def _hidden(resolved: ResolvedTable, origins: bool) -> set[str]:
    """Values that say nothing of what is shown."""
    found = set() if any(resolved.sizes) else {"subsets"}  # a full training set is one
    found |= {"aggregate.ddof"} if resolved.aggregate.spread == "none" else set()
    found |= {"aggregate.average"} if len(resolved.columns) == 1 else set()
    if len(resolved.printed_rows) == len(resolved.rows):  # nothing to select
        found |= {"aggregate.select", "aggregate.select_by"}
    return found if origins else found | {f"aggregate.{name}" for name in resolved.aggregate.stated}


def _text(resolved: ResolvedTable, path: str, value: Any) -> str:
    if path in ("sizes", "starts_from.size"):
        return ", ".join(str(size) if size else "full" for size in ([value] if isinstance(value, int) else value))
    if path == "data" and value == "glue" and not set(resolved.tasks) <= set(DevProtocol.tasks):
        return "as published"
    if path == "aggregate.average_over":
        return ", ".join(group if isinstance(group, str) else "+".join(group) for group in value)
    if isinstance(value, Mapping) and set(value) & set(resolved.sizes):
        value = {size: value[size] for size in resolved.sizes if size in value}
    return value_text(value)


def _note(use: Use, letter: str) -> str:
    """What stands beside the letter of a value's origin."""
    if letter == "D":
        return f"{use.where}: {use.paper}{f'; {use.flag}' if use.flag else ''}"
    if use.changed and letter == "S":
        return f"instead of {use.changed[1]}"
    return use.origin[2:] if use.origin[:1] == letter else use.where


# ---------------------------------------------------------------------------------------------------------------- grids


def _grids(
    resolved: ResolvedTable, under: UnderEncoder
) -> dict[str, Mapping[tuple[str, ...], Sequence[Mapping[str, Any]]]]:
    """The points by tasks, once for all rows that have the same."""
    titles: dict[str, list[str]] = {}
    points = grid_points(resolved, under)
    for title, by_tasks in points.items():
        titles.setdefault(repr(by_tasks), []).append(title)
    return {listed(same): points[same[0]] for same in titles.values()}


def _grid_texts(resolved: ResolvedTable, under: UnderEncoder) -> dict[str, list[str]]:
    """Each grid in short: its values where it has all their combinations, else how many points, with the rows that have it."""
    found: dict[str, list[str]] = {}
    for title, by_tasks in _grids(resolved, under).items():
        parts: dict[str, list[str]] = {}
        for tasks, points in by_tasks.items():
            product = _product(points)
            keys = ", ".join(dict.fromkeys(key for point in points for key in point))
            text = product or f"{len(points)} points of {keys} (listed in HTML and JSON)"
            parts.setdefault(text, []).extend(tasks)
        text = "; ".join(f"{part} on {titles_of(resolved, tasks)}" for part, tasks in parts.items())
        found.setdefault(text, []).append(title)
    return found


def _product(points: Sequence[Mapping[str, Any]]) -> str | None:
    """'fine_tune.lr=1e-05|2e-05, lam=0.1|0.3' for points that are all combinations of these values, else None."""
    values = {key: dict.fromkeys(value_text(point.get(key, "")) for point in points) for key in points[0]}
    if math.prod(map(len, values.values())) != len(points):
        return None
    return ", ".join(f"{key}={'|'.join(texts)}" for key, texts in values.items())


# ------------------------------------------------------------------------------------------------------ rows and methods


def _of_rows(rows: Iterable[ResolvedRow]) -> Iterator[Setting]:
    """What a row has of its own, and what is set for it alone."""
    for row in rows:
        if not row.configuration_of:
            for name, text in _own(row).items():
                yield Setting(f"{row.own.name}:{name}", text)
        shared = {each.key: each.value for each in row.overrides if not each.row}
        alone = {
            f"{part}.{name}": value
            for part in row.parts
            for name, value in row.overridden.get(part, {}).items()
            if shared.get(f"{part}.{name}") != value
        }
        for name, value in (alone | row.tuned).items():
            yield Setting(f"{row.own.name}:{name}", value_text(value), "", "this row alone")


def _own(row: Row) -> dict[str, str]:
    found = {
        f"{phase}.{name}": value_text(value)
        for phase, values in row.recipe_settings.items()
        for name, value in values.items()
    }
    found |= {"unlabelled": f"{row.unlabelled:,} texts"} if row.unlabelled else {}
    found |= {"pre_train.fraction": value_text(row.pre_train_fraction)} if row.pre_train_fraction else {}
    found |= {name: value_text(value) for name, value in row.set.items() if name.startswith(ENCODER)}
    if row.augment:
        temperature = "" if row.augment.temperature is None else f", sampled at T = {row.augment.temperature:.15g}"
        copies = "back-translation" if row.augment.copies == 1 else "back-translations"
        found["augment"] = f"{row.augment.copies} {copies} of each labelled row{temperature}"
    return found
