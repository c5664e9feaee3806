"""The overrides of a request, applied to a table: a patched recipe, hyperparameters by method, and settings of the encoder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from harness.errors import UserError, hint, unknown
from harness.methods import METHODS
from harness.planning.recipe import PHASES, EncoderSettings, Length, MlmHead, Phase, PreTrain, Recipe, Value
from harness.planning.request import Override, value_of
from harness.planning.row import ENCODER, ResolvedRow, Row, phases_of, rows_named
from harness.wording import listed
from harness.yaml_files import Strict, validated

if TYPE_CHECKING:
    from harness.planning.resolved import ResolvedTable
    from harness.planning.table import Preset, Table

M = TypeVar("M", bound=Strict)


@dataclass
class Applied:
    """What overrides come to, the later one of a pair wins. `patches` of the recipe, in order; `pre_train`, `mlm_head`, `encoder` and
    `max_length`: what the table has, with what they change; `hyperparameters` by method and name."""

    methods: tuple[str, ...]
    pre_train: PreTrain | None
    mlm_head: MlmHead
    encoder: EncoderSettings
    max_length: int
    patches: list[Recipe] = field(default_factory=list)
    hyperparameters: dict[str, dict[str, Value]] = field(default_factory=dict)

    def add(self, override: Override) -> None:
        """Raises UserError for a key that is not known and for a value that does not fit it."""
        group, name, value = override.path[0], ".".join(override.path[1:]), override.value
        if override.key == "max_length":
            self.max_length = value_of(Length, value, override.place)
        elif group == "mlm_head":
            self.mlm_head = _changed(self.mlm_head, override, name)
        elif group == "encoder":
            self.encoder = _changed(self.encoder, override, name)
        elif group == "pre_train" and name in PreTrain.model_fields:
            if self.pre_train is None:
                raise UserError(f"{override.place}: this table has no row that is pre-trained.")
            self.pre_train = _changed(self.pre_train, override, name)
        elif group in ("optim", *PHASES) and name:
            patch = _changed(Phase(), override, name, PreTrain.model_fields if group == "pre_train" else ())
            self.patches += [Recipe(**{phase: patch}) for phase in (PHASES[:2] if group == "optim" else (group,))]
        elif group in self.methods and name:
            if not isinstance(value, (bool, int, float, str)):
                raise UserError(f"{override.place}: should be a number, a word, true or false, not {value!r}.")
            self.hyperparameters.setdefault(group, {})[name] = value
        elif group in (*self.methods, "optim", *PHASES):
            example = "lr=1e-5" if group in ("optim", *PHASES) else "HYPERPARAMETER=VALUE"
            raise UserError(f"{override.place}: '{group}' needs a field, for example {group}.{example}.")
        else:
            raise self._unknown(override, name)

    def over(self, recipe: Recipe) -> Recipe:
        """The recipe with the patches."""
        for patch in self.patches:
            recipe = recipe.patched(patch)
        return recipe

    def _unknown(self, override: Override, name: str) -> UserError:
        models: dict[str, type[Strict]] = {"mlm_head": MlmHead, "encoder": EncoderSettings}
        models |= dict.fromkeys(("optim", *PHASES), Phase)
        known = [f"{group}.{field}" for group, model in models.items() for field in model.model_fields]
        known += [f"{method}.{name or 'HYPERPARAMETER'}" for method in self.methods]
        groups = ["max_length", *(f"{group}.*" for group in (*models, *self.methods))]
        return UserError(
            f"{override.place}: unknown key '{override.key}'.{hint(override.key, ['max_length', *known])} "
            f"Known: {', '.join(groups)}."
        )


def applied(table: Table, preset: Preset, encoder: str, rows: Iterable[Row], overrides: Iterable[Override]) -> Applied:
    """All overrides in their order, over what a table has under a preset for an encoder. Raises UserError as `Applied.add` does."""
    settings = Applied(
        methods=tuple(sorted({part for row in (*table.rows, *rows) for part in row.parts})),
        pre_train=preset.pre_train or table.pre_train,
        mlm_head=preset.mlm_head or MlmHead(),
        encoder=EncoderSettings(**table.encoder_under(preset, encoder)),
        max_length=preset.max_length or table.max_length,
    )
    for override in overrides:
        settings.add(override)
    return settings


def _changed(model: M, override: Override, name: str, others: Iterable[str] = ()) -> M:
    """The model with the value of an override as its field `name`. `others`: fields that the group of the key has besides."""
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
        own = row.encoder_settings.get(name, value) != value if f"{group}." == ENCODER else False
        own = row.pre_train_fraction not in (None, value) if override.key == "pre_train.fraction" else own
        return {override.key: own} if group != "pre_train" or row.pre_train else {}
    if group in ("optim", *PHASES):
        phases = [phase for phase in phases_of((row,)) if phase == group or (group == "optim" and phase != "pre_train")]
        given = Phase.model_validate({name: value})
        return {
            f"{phase}.{name}": getattr(given.patched(getattr(row.recipe, phase)), name) != getattr(given, name)
            for phase in phases
        }
    if group not in row.parts:
        return {}
    return {override.key: row.settings[group][name] not in (value, row.overridden[group][name])}
