"""The overrides of a request, applied to a table: a patched recipe, hyperparameters by method, and settings of the encoder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from harness.errors import UserError, hint, unknown
from harness.methods import METHODS
from harness.planning.recipe import PHASES, EncoderSettings, Length, MlmHead, Phase, PreTrain, Recipe, Value, replaced
from harness.planning.request import Override, value_of
from harness.planning.row import ENCODER, ResolvedRow, Row, UnderEncoder, phases_of, rows_named
from harness.wording import listed
from harness.yaml_files import Strict, validated

if TYPE_CHECKING:
    from harness.planning.resolved import ResolvedTable
    from harness.planning.table import Preset, Table

M = TypeVar("M", bound=Strict)


def applied(
    table: Table, preset: Preset, rows: Iterable[Row], name: str, title: str, overrides: Iterable[Override]
) -> UnderEncoder:
    """What a table has under a preset for an encoder, with all overrides in their order; the later one of a pair wins. Raises UserError for a key
    that is not known and for a value that does not fit it."""
    methods = sorted({part for row in (*table.rows, *rows) for part in row.parts})
    length, patch = preset.max_length or table.max_length, Recipe()
    text, head = preset.pre_train or table.pre_train, preset.mlm_head or MlmHead()
    encoder = EncoderSettings(**table.encoder_under(preset, name))
    hyperparameters: dict[str, dict[str, Value]] = {}
    for each in overrides:
        group, field, value = each.path[0], ".".join(each.path[1:]), each.value
        if each.key == "max_length":
            length = value_of(Length, value, each.place)
        elif group == "mlm_head":
            head = _changed(head, each, field)
        elif group == "encoder":
            encoder = _changed(encoder, each, field)
        elif group == "pre_train" and field in PreTrain.model_fields:
            if text is None:
                raise UserError(f"{each.place}: this table has no row that is pre-trained.")
            text = _changed(text, each, field)
        elif group in ("optim", *PHASES) and field:
            changed = _changed(Phase(), each, field, PreTrain.model_fields if group == "pre_train" else ())
            patch = patch.patched(Recipe(**dict.fromkeys(PHASES[:2] if group == "optim" else (group,), changed)))
        elif group in methods and field:
            if not isinstance(value, (bool, int, float, str)):
                raise UserError(f"{each.place}: should be a number, a word, true or false, not {value!r}.")
            hyperparameters.setdefault(group, {})[field] = value
        else:
            raise _unknown(each, methods)
    own = table.recipe_for(name)
    recipes = {
        task: own.patched(spec).patched(preset.recipe).patched(patch)
        for spec in table.task_recipes
        for task in spec.tasks
    }
    return UnderEncoder(
        name,
        title,
        own.patched(preset.recipe).patched(patch),
        recipes,
        encoder.model_dump(exclude_none=True),
        length,
        head,
        text,
        hyperparameters,
    )


def _unknown(override: Override, methods: Sequence[str]) -> UserError:
    group, _, name = override.key.partition(".")
    phases = ("optim", *PHASES)
    if group in (*methods, *phases):
        example = "lr=1e-5" if group in phases else "HYPERPARAMETER=VALUE"
        return UserError(f"{override.place}: '{group}' needs a field, for example {group}.{example}.")
    models: dict[str, Any] = {"mlm_head": MlmHead, "encoder": EncoderSettings, **dict.fromkeys(phases, Phase)}
    known = [f"{group}.{field}" for group, model in models.items() for field in model.model_fields]
    known += ["max_length", *(f"{method}.{name or 'HYPERPARAMETER'}" for method in methods)]
    groups = ["max_length", *(f"{group}.*" for group in (*models, *methods))]
    meant = hint(override.key, known)
    return UserError(f"{override.place}: unknown key '{override.key}'.{meant} Known: {', '.join(groups)}.")


def _changed(model: M, override: Override, name: str, others: Iterable[str] = ()) -> M:
    if name not in type(model).model_fields:
        known = [f"{override.path[0]}.{field}" for field in (*type(model).model_fields, *others)]
        raise unknown("key", override.key, known, override.place)
    return validated(type(model), {**model.model_dump(exclude_none=True), name: override.value}, override.place)


def of_rows(table: Table, rows: Sequence[Row], overrides: Sequence[Override]) -> dict[str, tuple[Override, ...]]:
    """What reaches each of the chosen `rows` that some override reaches alone, in order, by name.

    Raises UserError for a name of no row, for a value that holds for the whole table, and for a point of a file whose rows are not chosen.
    """
    known, reached = (*table.rows, *rows), dict[str, set[str]]()
    for override in overrides:
        name = override.row
        if not name:
            continue
        if table_wide(override.path):
            raise UserError(f"{override.place}: {override.key} holds for all rows; leave '{name}:' out.")
        if not rows_named(known, name) and not set(name.lower().split("+")) <= METHODS.keys():
            raise unknown("row", name, [row.name for row in known], override.place)
        reached[name] = {row.name for row in rows_named(rows, name)}
        if override.in_file and not reached[name]:
            raise UserError(f"{override.place}: is for {name}, which is none of the chosen rows; choose it too.")
    alone = set[str]().union(*reached.values())
    return {
        row.name: tuple(each for each in overrides if not each.row or row.name in reached[each.row])
        for row in rows
        if row.name in alone
    }


def table_wide(path: Sequence[str]) -> bool:
    """Whether an override is of a value that all rows of a table share: the tokens and the text that they are trained on."""
    text = path[0] == "pre_train" and ".".join(path[1:]) in PreTrain.model_fields
    return text or path[0] in ("max_length", "mlm_head", ENCODER.rstrip("."))


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
    group, name, value = override.path[0], ".".join(override.path[1:]), override.value
    if table_wide(override.path):
        own = {f"{ENCODER}{key}": set_here for key, set_here in row.encoder_settings.items()}
        kept = row.pre_train_fraction if override.key == "pre_train.fraction" else own.get(override.key)
        return {override.key: kept not in (None, value)} if group != "pre_train" or row.pre_train else {}
    if group in ("optim", *PHASES):
        phases = [phase for phase in phases_of((row,)) if phase == group or (group == "optim" and phase != "pre_train")]
        keys, set_here = [f"{phase}.{name}" for phase in phases], replaced(row.recipe.values)
        return {key: key in set_here and row.recipe.values.get(key) != value for key in keys}
    if group not in row.parts:
        return {}
    return {override.key: row.settings[group][name] not in (value, row.overridden[override.key])}
