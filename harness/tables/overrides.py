"""The overrides of a request, applied to a table: a patched recipe, hyperparameters by method, and settings of the encoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from harness.errors import UserError, unknown
from harness.tables.recipe import EncoderSettings, MlmHead, Phase, PreTrain, Recipe, Value
from harness.tables.request import Override
from harness.tables.row import ENCODER, Row
from harness.tables.values import EXCLUSIVE, PHASES, listed
from harness.yaml_files import describe_errors

if TYPE_CHECKING:
    from harness.tables.resolve import ResolvedTable


@dataclass
class Applied:
    """What overrides come to. `hyperparameters` by method and name; `single`: max_length, mlm_head.* and encoder.* by key;
    `origins`: the override of each hyperparameter and single value, by key."""

    recipe: Recipe
    pre_train: PreTrain | None
    methods: tuple[str, ...]
    hyperparameters: dict[str, dict[str, Value]] = field(default_factory=dict)
    single: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, Override] = field(default_factory=dict)

    def add(self, override: Override) -> None:
        """Raises UserError for a key that is not known and for a value that does not fit it."""
        group, name, value = override.path[0], ".".join(override.path[1:]), override.value
        if override.key == "max_length":
            self._single(override, _whole(override, 8, 512))
        elif group == "mlm_head":
            _check_name(override, MlmHead.model_fields)
            self._single(override, _whole(override, 0, 10**9) if name == "steps" else _truth(override))
        elif group == "encoder":
            _check_name(override, EncoderSettings.model_fields)
            self._single(override, _whole(override, 1 if name == "relative_distance" else 0, 10**4))
        elif group == "pre_train" and name in PreTrain.model_fields:
            self._corpus(override, name)
        elif group in ("optim", *PHASES) and name:
            self._recipe(override, name)
        elif group in self.methods and name:
            if not isinstance(value, (bool, int, float, str)):
                raise UserError(f"{override.place}: should be a number, a word, true or false, not {value!r}.")
            self.hyperparameters.setdefault(group, {})[name] = value
            self.origins[override.key] = override
        elif group in (*self.methods, "optim", *PHASES):
            example = "lr=1e-5" if group in ("optim", *PHASES) else "HYPERPARAMETER=VALUE"
            raise UserError(f"{override.place}: '{group}' needs a field, for example {group}.{example}.")
        else:
            raise self._unknown(override, name)

    def _single(self, override: Override, value: int | bool) -> None:
        self.single[override.key] = value
        self.origins[override.key] = override

    def _recipe(self, override: Override, name: str) -> None:
        group = override.path[0]
        _check_name(
            override,
            (*Phase.model_fields, *(PreTrain.model_fields if group == "pre_train" else ())),
            Phase.model_fields,
        )
        try:
            patch = Phase.model_validate({name: override.value})
        except ValidationError as error:
            raise UserError(describe_errors(error, Phase, override.place)) from None
        for phase in PHASES[:2] if group == "optim" else (group,):
            self.recipe = self.recipe.patched(Recipe(**{phase: patch}))

    def _corpus(self, override: Override, name: str) -> None:
        if self.pre_train is None:
            raise UserError(f"{override.place}: this table has no row that is pre-trained.")
        try:
            self.pre_train = PreTrain.model_validate({**self.pre_train.model_dump(), name: override.value})
        except ValidationError as error:
            raise UserError(describe_errors(error, PreTrain, override.place)) from None

    def _unknown(self, override: Override, name: str) -> UserError:
        known = [
            "max_length",
            *(f"mlm_head.{n}" for n in MlmHead.model_fields),
            *(f"{ENCODER}{n}" for n in EncoderSettings.model_fields),
            *(f"{group}.{n}" for group in ("optim", *PHASES) for n in Phase.model_fields),
            *(f"{method}.{name or 'HYPERPARAMETER'}" for method in self.methods),
        ]
        hint = str(unknown("key", override.key, known)).partition(" Known:")[0]
        groups = [*(f"{group}.*" for group in ("mlm_head", "encoder", "optim", *PHASES, *self.methods))]
        return UserError(f"{override.place}: {hint} Known: {', '.join(['max_length', *groups])}.")


def applied(rows: Iterable[Row], recipe: Recipe, pre_train: PreTrain | None, overrides: Iterable[Override]) -> Applied:
    """All overrides in their order, the later one of a pair wins. Raises UserError as `Applied.add` does."""
    found = Applied(recipe, pre_train, tuple(sorted({part for row in rows for part in row.parts})))
    for override in overrides:
        found.add(override)
    return found


def _check_name(override: Override, known: Iterable[str], allowed: Iterable[str] | None = None) -> None:
    group, name = override.path[0], ".".join(override.path[1:])
    if name not in (known if allowed is None else allowed):
        raise unknown("key", override.key, [f"{group}.{each}" for each in known], override.place)


def _whole(override: Override, low: int, high: int) -> int:
    value = override.value
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UserError(f"{override.place}: should be a whole number, {low} to {high}, not {value!r}.")
    return value


def _truth(override: Override) -> bool:
    if not isinstance(override.value, bool):
        raise UserError(f"{override.place}: should be true or false, not {override.value!r}.")
    return override.value


@dataclass(frozen=True)
class Unreached:
    """An override of `value` that some `rows` replace by a value of their own; `all`: there are no others that it concerns."""

    override: Override
    value: str
    rows: tuple[str, ...]
    all: bool

    @property
    def sentence(self) -> str:
        one = len(self.rows) == 1
        return (
            f"{self.override.place} does not reach {listed(self.rows)}, which set{'s' * one} {self.value} "
            f"{'itself' if one else 'themselves'}"
        )


def unreached(resolved: ResolvedTable, overrides: Iterable[Override]) -> list[Unreached]:
    """The overrides that do not reach each row that they concern; of several of one key the last one counts."""
    found = []
    for override in {override.key: override for override in overrides}.values():
        group, name, value = override.path[0], ".".join(override.path[1:]), override.value
        rows = [row for row in resolved.rows if not row.skip]
        parts: dict[str, list[Row]] = {}
        if group in resolved.settings:
            rows = [row for row in rows if group in row.parts]
            parts[override.key] = [row for row in rows if resolved.settings_of(row)[group][name] != value]
        elif f"{group}." == ENCODER:
            parts[override.key] = [row for row in rows if row.encoder_settings.get(name, value) != value]
        elif override.key == "pre_train.fraction":
            rows = [row for row in rows if row.pre_train]
            parts[override.key] = [row for row in rows if row.pre_train_fraction not in (None, value)]
        elif group in ("optim", *PHASES):
            for phase in PHASES[:2] if group == "optim" else (group,):
                parts[f"{phase}.{name}"] = [
                    row for row in rows if _replaces(row.recipe_settings.get(phase, {}), name, value)
                ]
        everywhere = bool(rows) and all(len(keeping) == len(rows) for keeping in parts.values())
        found += [
            Unreached(override, each, tuple(row.name for row in keeping), everywhere)
            for each, keeping in parts.items()
            if keeping
        ]
    return found


def _replaces(settings: Mapping[str, Any], name: str, value: Any) -> bool:
    """Whether what a row sets of a phase takes the place of a field's value."""
    same = next((pair for pair in EXCLUSIVE if name in pair), (name,))
    return settings.get(name, value) != value or any(key in settings for key in same if key != name)


def check_effect(resolved: ResolvedTable, overrides: Iterable[Override]) -> None:
    """Raises UserError for an override that every chosen row replaces by a value of its own."""
    for each in unreached(resolved, overrides):
        if each.all:
            raise UserError(
                f"{each.override.place}: has no effect, each chosen row sets {each.value} itself; change it in a table of your own."
            )
