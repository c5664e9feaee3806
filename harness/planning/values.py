"""The values of a table by path (recipe.fine_tune.lr, max_length, ...), and where each comes from.

An origin is 'P' (the paper), 'R' (read in released code), 'C' (chosen here, where the paper is silent) or 'D' (departs
from what the paper says), with what the table says behind it: a place ('P 4.3': section 4.3), or the paper's value and its place
('D fp16, Table 5'). Origins are no part of a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness.methods import METHODS
from harness.planning.recipe import EXCLUSIVE
from harness.planning.resolved import Departure, UnderEncoder
from harness.planning.table import TASK_RECIPES, TOKENIZER, _encoder, _start, _text, origin_of, stated
from harness.specs import Optim
from harness.wording import value_text
from harness.yaml_files import parse_value

if TYPE_CHECKING:
    from harness.planning.resolved import ResolvedTable
    from harness.planning.row import ResolvedRow


def used(resolved: ResolvedTable, under: UnderEncoder) -> dict[str, Any]:
    """What the chosen rows of a table use under an encoder, and no more, by path."""
    found: dict[str, Any] = {**_encoder(under.name), "data": resolved.data}
    found |= {f"encoder.{name}": value for name, value in under.settings.items()}
    found |= {path: value for path, (value, _) in reach(resolved, under).items()}
    found |= {"grids": "of the rows"} if grid_points(resolved, under) else {}
    if resolved.translates:
        found["translator"] = resolved.translator
    if resolved.pre_train:
        found |= {f"pre_train.{name}": value for name, value in _text(resolved.pre_train).items()}
    found |= _start(resolved.starts_from)
    for name in ("max_length", "selection_every", "sizes", "seeds"):
        found[name] = getattr(resolved, name)
    found["subsets"] = len(resolved.subsets)
    draws = resolved.table.presets[resolved.preset].draws
    found |= {"draws": draws} if draws else {}
    return found | {f"aggregate.{name}": value for name, value in resolved.aggregate.stated.items()}


def reach(resolved: ResolvedTable, under: UnderEncoder) -> dict[str, tuple[Any, tuple[str, ...]]]:
    """The values of recipes by path, each with the chosen tasks on which a row takes it: on the others all rows set their own."""
    found: dict[str, tuple[Any, tuple[str, ...]]] = {}
    rows = [(row, _set_by_row(row)) for row in resolved.rows_under(under)]
    specs = {task: spec for spec in resolved.table.task_recipes for task in spec.tasks}
    for phase in resolved.phases:
        trained = [(row, settings.get(phase, {})) for row, settings in rows if _trains(row, phase)]
        for task in resolved.tasks:
            of_rows = [_replaced(settings) for row, settings in trained if resolved.takes(row, task)]
            if not of_rows:
                continue
            own = set.intersection(*of_rows)
            spec = specs.get(task)
            stated_for_task = getattr(spec, phase).model_dump(exclude_none=True) if spec else {}
            recipe = getattr(under.task_recipes.get(task, under.recipe), phase)
            for name, value in recipe.model_dump(exclude_none=True).items():
                place = f"{TASK_RECIPES}.{'+'.join(spec.tasks)}" if spec and name in stated_for_task else "recipe"
                if name not in own and (name != "decay_biases_and_norms" or recipe.weight_decay):
                    tasks = found.get(f"{place}.{phase}.{name}", (value, ()))[1]
                    found[f"{place}.{phase}.{name}"] = value, (*tasks, task)
    return found


def _set_by_row(row: ResolvedRow) -> dict[str, dict[str, Any]]:
    """What a row and the overrides that reach it alone say of the recipe, by phase and name."""
    found = {phase: dict(values) for phase, values in row.recipe_settings.items()}
    for key, value in row.tuned.items():
        phase, _, name = key.partition(".")
        found.setdefault(phase, {})[name] = value
    return found


def _trains(row: ResolvedRow, phase: str) -> bool:
    """Whether a row has a phase."""
    if phase == "pre_train":
        return bool(row.pre_train)
    return phase == "fine_tune" or any(METHODS[part].train for part in row.method.split("+") if part in METHODS)


def _replaced(settings: Mapping[str, Any]) -> set[str]:
    """The fields of a phase whose value in the recipe a row's own `settings` replace."""
    pairs = {name for pair in EXCLUSIVE for name in pair if set(pair) & settings.keys()}
    return {*settings, *pairs, *({"min_steps"} if "steps" in settings else ())}


Points = dict[tuple[str, ...], tuple[dict[str, Any], ...]]


def grid_points(resolved: ResolvedTable, under: UnderEncoder) -> dict[str, Points]:
    """The points of each printed row that has a grid under an encoder, by the chosen tasks that it is run on: values of the recipe
    ('fine_tune.lr') and hyperparameters in which its configurations differ."""
    found: dict[str, Points] = {}
    printed: dict[str, list[ResolvedRow]] = {}
    for row in resolved.rows_under(under):
        printed.setdefault(row.own.title, []).append(row)
    for title, rows in printed.items():
        if not any(row.configuration_of for row in rows):
            continue
        differ = {key for row in rows for key, value in row.set.items() if value != rows[0].set.get(key)}
        by_tasks: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for row in rows:
            tasks = tuple(task for task in resolved.tasks if resolved.takes(row, task))
            recipe = {
                f"{phase}.{name}": v for phase, values in row.recipe_settings.items() for name, v in values.items()
            }
            point = recipe | {key: value for key, value in row.set.items() if key in differ}
            by_tasks.setdefault(tasks, []).append(point)
        found[title] = {tasks: tuple(points) for tasks, points in by_tasks.items() if tasks}
    return found


def _own(resolved: ResolvedTable, under: UnderEncoder) -> dict[str, Any]:
    """What the table states under the preset, where that is the paper's setting, else under its reference."""
    preset = resolved.table.presets[resolved.preset]
    return stated(resolved.table, preset if preset.comparable else None, under.name)


def changed(resolved: ResolvedTable, under: UnderEncoder) -> dict[str, tuple[str, str]]:
    """Values that are not the table's own, by path: (ours, the table's) as texts. Fewer sizes are no change of a value."""
    theirs = _own(resolved, under)
    found: dict[str, tuple[str, str]] = {}
    for path, ours in used(resolved, under).items():
        other = theirs.get(path)
        if path == "subsets" and ours == other and sorted(resolved.subsets) != list(range(other)):
            found[path] = value_text(resolved.subsets), value_text(range(other))  # as many, but others
        elif path == "seeds" and sorted(ours) == sorted(other or ()):
            continue
        elif path != "sizes" and ours != other and (ours, other) != ("", None) and (path, other) != (TOKENIZER, None):
            found[path] = value_text(ours), _unset(path, theirs) if other is None else value_text(other)
    return found


def deviations(resolved: ResolvedTable, under: UnderEncoder, departing: bool = True) -> list[str]:
    """Each changed value as 'fine_tune.lr 0.0001 instead of 1e-05', by the name under which a user sets it. `departing`: with those that depart
    from the paper in the table too, so that the table's value is not what they are held against."""
    origin = resolved.table.origin_for(under.name)
    found = [
        f"{path.removeprefix('recipe.')} {ours} instead of {theirs}"
        for path, (ours, theirs) in changed(resolved, under).items()
        if departing or origin_of(origin, path)[:1] != "D"
    ]
    extra = [task for task in resolved.tasks if task not in resolved.table.tasks]
    return [*found, *([f"tasks that the paper's table lacks: {', '.join(extra)}"] if extra else [])]


def _unset(path: str, theirs: Mapping[str, Any]) -> str:
    """The value that a table has where it states none: the other of a pair, or the default."""
    parent, _, name = path.rpartition(".")
    for pair in EXCLUSIVE:
        other = next((field for field in pair if name in pair and field != name), None)
        if other and f"{parent}.{other}" in theirs:
            return f"{other} {value_text(theirs[f'{parent}.{other}'])}"
    default = getattr(Optim, name, None) if path.startswith("recipe.") else None
    return "none" if default is None else f"{value_text(default)}, the default"


# ----------------------------------------------------------------------------------------------------------- origins


def departures(resolved: ResolvedTable, under: UnderEncoder) -> tuple[Departure, ...]:
    """The values in use for which the paper names another, the table's own or one that is set over it."""
    found, origin = [], resolved.table.origin_for(under.name)
    for path, value in used(resolved, under).items():
        text = origin_of(origin, path)
        if text[:1] == "D" and not _is_papers(text, value):
            paper, _, where = text[2:].rpartition(", ")
            found.append(Departure(path, value, paper, where, _flag(path, paper, under.name)))
    return tuple(found)


def _is_papers(origin: str, value: Any) -> bool:
    return bool(parse_value(origin[2:].rpartition(", ")[0]) == value)


def _flag(path: str, paper: str, encoder: str) -> str:
    """What a user types for the paper's value: in full where it is a setting."""
    files = {
        "pre_train.corpus": "--corpus FILES",
        "translator": "--translator NAME",
        "grids": "",
        TOKENIZER: f"--encoder {encoder.partition('@')[0]}@FOLDER",
    }
    return files.get(path, f"--set {path.removeprefix('recipe.')}={paper}")


def by_origin(resolved: ResolvedTable, under: UnderEncoder) -> dict[str, dict[str, Any]]:
    """The values in use that are the table's own, by the letter of their origin; where the table departs from the paper, also one that is
    set over its own, as P where it is the paper's. Empty for a table that names none."""
    origin, ours = resolved.table.origin_for(under.name), changed(resolved, under)
    found: dict[str, dict[str, Any]] = {"P": {}, "R": {}, "C": {}, "D": {}}
    for path, value in used(resolved, under).items():
        text = origin_of(origin, path)
        if text[:1] == "D":
            found["P" if _is_papers(text, value) else "D"][path] = value
        elif text and path not in ours:
            found[text[0]][path] = value
    return found if origin else {}
