"""The overrides of a request, applied to a table: a patched recipe, hyperparameters by method, and settings of the encoder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from harness.errors import UserError, hint, unknown
from harness.methods import METHODS
from harness.planning.recipe import (
    EncoderSettings,
    Length,
    MlmHead,
    Phase,
    PreTrain,
    patched,
    read_value,
    replaced,
)
from harness.planning.request import Override, value_of
from harness.planning.row import ResolvedRow, Row, UnderEncoder, rows_named
from harness.wording import listed

if TYPE_CHECKING:
    from harness.planning.resolved import ResolvedTable
    from harness.planning.table import Preset, Table

MODELS: dict[str, tuple[type[BaseModel], ...]] = {
    "mlm_head": (MlmHead,),
    "encoder": (EncoderSettings,),
    "optim": (Phase,),
    "fine_tune": (Phase,),
    "post_train": (Phase,),
    "pre_train": (Phase, PreTrain),
}
"""Whose fields the keys of an override name, by the group that they begin with; a method's hyperparameters follow."""


def applied(
    table: Table, preset: Preset, rows: Iterable[Row], name: str, title: str, overrides: Iterable[Override]
) -> UnderEncoder:
    """What a table has under a preset for an encoder, with all overrides in their order; the later one of a pair wins. Raises UserError for a key
    that is not known and for a value that does not fit it."""
    methods = sorted({part for row in (*table.rows, *rows) for part in row.parts})
    own = table.values_under(preset, name)
    patch: dict[str, Any] = {}
    for each in overrides:
        if table_wide(each.key) and each.group == "pre_train" and "pre_train.corpus" not in own:
            raise UserError(f"{each.place}: this table has no row that is pre-trained.")
        patch = patched(patch, _read(each, methods))
    layers = preset.recipe.values, patch
    of_tasks = {task: patched(own, spec.values, *layers) for spec in table.task_recipes for task in spec.tasks}
    return UnderEncoder(name, title, patched(own, *layers), of_tasks)


def _read(override: Override, methods: Sequence[str]) -> dict[str, Any]:
    """The value of an override by its keys in full."""
    group, field, value = override.group, override.field, override.value
    if override.key == "max_length":
        return {"max_length": value_of(Length, value, override.place)}
    if value is None or (group in methods and field and not isinstance(value, (bool, int, float, str))):
        raise UserError(f"{override.place}: should be a number, a word, true or false, not {value!r}.")
    if group in methods and field:
        return {override.key: value}
    if group not in MODELS or not field:
        raise _unknown(override, methods)
    model = next((each for each in MODELS[group] if field in each.model_fields), None)
    if model is None:
        raise unknown("key", override.key, _keys(group), override.place)
    try:
        read = read_value(model, field, value)
    except ValueError as error:
        raise UserError(f"{override.place}: {error}.") from None
    return dict.fromkeys(override.keys, read)


def _keys(group: str) -> list[str]:
    return [f"{group}.{field}" for model in MODELS[group] for field in model.model_fields]


def _unknown(override: Override, methods: Sequence[str]) -> UserError:
    known = [key for group in MODELS for key in _keys(group)]
    known += ["max_length", *(f"{method}.{override.field or 'HYPERPARAMETER'}" for method in methods)]
    groups = ["max_length", *(f"{group}.*" for group in (*MODELS, *methods))]
    return UserError(
        f"{override.place}: unknown key '{override.key}'.{hint(override.key, known)} Known: {', '.join(groups)}."
    )


def rows_reached(table: Table, rows: Sequence[Row], overrides: Sequence[Override]) -> dict[str, set[str]]:
    """The names of the chosen `rows` that overrides of some rows alone reach, by the name that these have for them.

    Raises UserError for a name of no row, for a value that holds for the whole table, and for a point of a file whose rows are not chosen.
    """
    known, reached = (*table.rows, *rows), dict[str, set[str]]()
    for override in (each for each in overrides if each.row):
        name = override.row
        if table_wide(override.key):
            raise UserError(f"{override.place}: {override.key} holds for all rows; leave '{name}:' out.")
        if not rows_named(known, name) and not set(name.lower().split("+")) <= METHODS.keys():
            raise unknown("row", name, [row.name for row in known], override.place)
        reached[name] = {row.name for row in rows_named(rows, name)}
        if override.in_file and not reached[name]:
            raise UserError(f"{override.place}: is for {name}, which is none of the chosen rows; choose it too.")
    return reached


def table_wide(key: str) -> bool:
    """Whether an override is of a value that all rows of a table share: the tokens and the text that they are trained on."""
    group, _, field = key.partition(".")
    return group in ("max_length", "mlm_head", "encoder") or (group == "pre_train" and field in PreTrain.model_fields)


def unreached(resolved: ResolvedTable, overrides: Iterable[Override]) -> list[str]:
    """A sentence for each override that no row reads, or that does not reach each row that it concerns."""
    found = []
    for override, own in _effects(resolved, overrides):
        if not own:
            found.append(f"{override.place} has no effect: no chosen row reads it.")
        keeping: dict[str, list[str]] = {}
        for row, keeps in own.items() if not override.row else ():
            for key in (key for key, kept in keeps.items() if kept):
                keeping.setdefault(key, []).append(row)
        for key, rows in keeping.items():
            verb, itself = ("sets", "itself") if len(rows) == 1 else ("set", "themselves")
            found.append(f"{override.place} has no effect on {listed(rows)}, which {verb} {key} {itself}.")
    return found


def check_effect(resolved: ResolvedTable, overrides: Iterable[Override]) -> None:
    """Raises UserError for an override that every row which it concerns replaces by a value of its own, or a row that it is for alone."""
    for override, own in _effects(resolved, overrides):
        keeps = [all(found.values()) for found in own.values()]
        if keeps and (any(keeps) if override.row else all(keeps)):
            key = next(iter(next(iter(own.values()))))
            raise UserError(
                f"{override.place}: has no effect, each chosen row sets {key} itself; change it in a table of your own."
            )


def _effects(
    resolved: ResolvedTable, overrides: Iterable[Override]
) -> Iterator[tuple[Override, dict[str, dict[str, bool]]]]:
    """Each override, of several of one key the last, with the rows that read its value: by name, whether they keep one of their own, by key."""
    for override in {(each.row, each.key): each for each in overrides}.values():
        rows = [row for row in resolved.rows if not override.row or override in row.overrides]
        yield override, {row.name: own for row in rows if (own := _own(override, row))}


def _own(override: Override, row: ResolvedRow) -> dict[str, bool]:
    """Whether a row keeps a value of its own, by the override's key in full; nothing where it does not read the value."""
    value = override.value
    if override.key == "pre_train.fraction":
        return {override.key: row.pre_train_fraction not in (None, value)} if row.pre_train else {}
    read = (*row.groups, "max_length", "mlm_head", "encoder")
    keys, own = [key for key in override.keys if key.partition(".")[0] in read], row.own.own_values
    return {key: key in replaced(own) and own.get(key) != value for key in keys}
