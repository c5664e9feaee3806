"""The overrides of a request, applied to a table: a patched recipe, hyperparameters by method, and settings of the encoder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from harness.errors import UserError, unknown
from harness.tables.recipe import EncoderSettings, MlmHead, Phase, PreTrain, Recipe, Value
from harness.tables.request import Override
from harness.tables.table import ENCODER, Row
from harness.tables.values import EXCLUSIVE, PHASES
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


def check_effect(resolved: ResolvedTable) -> None:
    """Raises UserError for an override that every chosen row replaces by a value of its own."""
    for key, override in resolved.origins.items():
        method, _, name = key.partition(".")
        if method in resolved.settings:
            takers = [row for row in resolved.rows if method in row.parts]
            value = resolved.settings[method][name]
            if takers and all(resolved.settings_of(row)[method][name] != value for row in takers):
                raise UserError(
                    f"{override.place}: has no effect, each chosen row of {method} sets {name} itself; change it in a table "
                    "of your own."
                )
        elif f"{method}." == ENCODER and all(
            row.encoder_settings.get(name, override.value) != override.value for row in resolved.rows
        ):
            raise UserError(
                f"{override.place}: has no effect, each chosen row sets it itself; change it in a table of your own."
            )


def check_recipe(resolved: ResolvedTable, overrides: Iterable[Override]) -> None:
    """Raises UserError for an override of the recipe that every chosen row replaces by a value of its own."""
    for override in overrides:
        group, name = override.path[0], override.path[-1]
        phases = PHASES[:2] if group == "optim" else (group,)
        same = next((pair for pair in EXCLUSIVE if name in pair), (name,))
        rows = [row.recipe_settings for row in resolved.rows if not row.skip]
        if rows and all(any(key in row.get(phase, {}) for key in same) for row in rows for phase in phases):
            raise UserError(
                f"{override.place}: has no effect, each chosen row sets {name} itself; change it in a table of your own."
            )
