"""The values of a table by path (recipe.fine_tune.lr, max_length, ...), and where each comes from.

An origin is 'P' (the paper), 'R' (read in released code), 'C' (chosen here, where the paper is silent) or 'D' (departs
from what the paper says), with what the table says behind it: a place ('P 4.3': section 4.3), or the paper's value and its place
('D fp16, Table 5'). Origins are no part of a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness.planning.recipe import EXCLUSIVE
from harness.planning.resolved import UnderEncoder, Use
from harness.planning.row import phases_of
from harness.planning.table import TASK_RECIPES, TOKENIZER, _encoder, _start, _text, origin_of, stated
from harness.specs import Optim
from harness.wording import value_text

if TYPE_CHECKING:
    from harness.planning.resolved import ResolvedTable
    from harness.planning.row import ResolvedRow


def uses(resolved: ResolvedTable, under: UnderEncoder) -> tuple[Use, ...]:
    """What the chosen rows of a table use under an encoder, and no more."""
    reached = _reach(resolved, under)
    found: dict[str, Any] = {**_encoder(under.name), "data": resolved.data}
    found |= {f"encoder.{name}": value for name, value in under.settings.items()}
    found |= {path: value for path, (value, _) in reached.items()}
    found |= {"grids": "of the rows"} if grid_points(resolved, under) else {}
    if resolved.translates:
        found["translator"] = resolved.translator
    if resolved.pre_train:
        found |= {f"pre_train.{name}": value for name, value in _text(resolved.pre_train).items()}
    found |= _start(resolved.starts_from)
    for name in ("max_length", "selection_every", "sizes", "seeds"):
        found[name] = getattr(resolved, name)
    found["subsets"] = len(resolved.subsets)
    preset = resolved.table.presets[resolved.preset]
    found |= {"draws": preset.draws} if preset.draws else {}
    found |= {f"aggregate.{name}": value for name, value in resolved.aggregate.stated.items()}
    # The table's own under the preset, where that is the paper's setting, else under its reference.
    theirs = stated(resolved.table, preset if preset.comparable else None, under.name)
    origins = resolved.table.origin_for(under.name)
    return tuple(
        Use(
            path,
            value,
            reached[path][1] if path in reached else resolved.tasks,
            _changed(resolved, path, value, theirs),
            origin,
            flag,
        )
        for path, value in found.items()
        for origin in [origin_of(origins, path)]
        for flag in [_flag(path, origin[2:].rpartition(", ")[0], under.name)]
    )


def _reach(resolved: ResolvedTable, under: UnderEncoder) -> dict[str, tuple[Any, tuple[str, ...]]]:
    """The values of recipes by path, each with the chosen tasks on which a row takes it: on the others all rows set their own."""
    found: dict[str, tuple[Any, tuple[str, ...]]] = {}
    rows = [(row, _set_by_row(row)) for row in resolved.rows_under(under)]
    specs = {task: spec for spec in resolved.table.task_recipes for task in spec.tasks}
    for phase in resolved.phases:
        trained = [(row, settings.get(phase, {})) for row, settings in rows if phase in phases_of((row,))]
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


def _changed(resolved: ResolvedTable, path: str, ours: Any, theirs: Mapping[str, Any]) -> tuple[str, str] | None:
    """Our value and the table's as texts, where they differ. Fewer sizes are no change of a value."""
    other = theirs.get(path)
    if path == "subsets" and ours == other and sorted(resolved.subsets) != list(range(other)):
        return value_text(resolved.subsets), value_text(range(other))  # as many, but others
    same = path == "sizes" or ours == other or (path == "seeds" and sorted(ours) == sorted(other or ()))
    if same or (ours, other) == ("", None) or (path, other) == (TOKENIZER, None):
        return None
    return value_text(ours), _unset(path, theirs) if other is None else value_text(other)


def _unset(path: str, theirs: Mapping[str, Any]) -> str:
    """The value that a table has where it states none: the other of a pair, or the default."""
    parent, _, name = path.rpartition(".")
    for pair in EXCLUSIVE:
        other = next((field for field in pair if name in pair and field != name), None)
        if other and f"{parent}.{other}" in theirs:
            return f"{other} {value_text(theirs[f'{parent}.{other}'])}"
    default = getattr(Optim, name, None) if path.startswith("recipe.") else None
    return "none" if default is None else f"{value_text(default)}, the default"


def _flag(path: str, paper: str, encoder: str) -> str:
    """What a user types for the paper's value: in full where it is a setting."""
    files = {
        "pre_train.corpus": "--corpus FILES",
        "translator": "--translator NAME",
        "grids": "",
        TOKENIZER: f"--encoder {encoder.partition('@')[0]}@FOLDER",
    }
    return files.get(path, f"--set {path.removeprefix('recipe.')}={paper}")
