"""A table under one preset and the command line's overrides: one flat, frozen object that the planner reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from harness import specs
from harness.bench.table import (
    ENCODER,
    Aggregation,
    Column,
    EncoderSettings,
    MlmHead,
    Phase,
    PreTrain,
    Recipe,
    Row,
    Table,
    Value,
    encoder_part,
)
from harness.bench.values import PHASES, deviations
from harness.errors import UserError, unknown
from harness.methods import METHODS, methods_named
from harness.yaml_files import MisplacedError, describe_errors, parse_value

if TYPE_CHECKING:
    from harness.tasks.task import Task

T = TypeVar("T")


@dataclass(frozen=True)
class Overrides:
    """What the command line changes. None keeps the preset's list; `subsets` are indices from 0; `set`: KEY=VALUE texts.

    `methods` takes names of rows as written ('w/ SimCLR'), or of methods ('cmlm': all its rows); a method that the table has
    no row for gets one ('taco', 'cmlm+scl').
    """

    methods: tuple[str, ...] | None = None
    tasks: tuple[str, ...] | None = None
    sizes: tuple[int, ...] | None = None
    subsets: tuple[int, ...] | None = None
    seeds: tuple[int, ...] | None = None
    set: tuple[str, ...] = ()
    encoder: str | None = None
    data: str | None = None
    corpus: str | None = None
    translator: str | None = None
    num_workers: int | None = None


@dataclass(frozen=True)
class ResolvedTable:
    """A table as it is run: flat and frozen.

    `columns` by id, in order; `subsets` indices; `sizes` total labelled examples, 0 the full training set; `mlm_head`:
    the MLM stage for an encoder without a usable MLM head; `incomparable`: why no cell here can be held against the paper's (empty: it can);
    `deviations`: every value that differs from the paper's recipe; `settings`: hyperparameters by method from `--set`;
    `encoder_settings`: what the table, the preset or `--set` says of the encoder, for all rows;
    `num_workers` train one stage together, which is no part of what is computed.
    """

    table: Table
    preset: str
    encoder: str
    data: str
    rows: tuple[Row, ...]
    tasks: tuple[str, ...]
    columns: Mapping[str, Column]
    sizes: tuple[int, ...]
    subsets: tuple[int, ...]
    seeds: tuple[int, ...]
    recipe: Recipe
    max_length: int
    selection_every: int
    mlm_head: MlmHead
    aggregate: Aggregation
    pre_train: PreTrain | None = None
    translator: str = ""
    incomparable: tuple[str, ...] = ()
    deviations: tuple[str, ...] = ()
    settings: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    encoder_settings: Mapping[str, int] = field(default_factory=dict)
    num_workers: int = 1

    @property
    def comparable(self) -> bool:
        return not self.incomparable

    @property
    def replicates(self) -> tuple[tuple[int, int], ...]:
        """The crossed design: every (subset, seed), subsets slowest."""
        return tuple((subset, seed) for subset in self.subsets for seed in self.seeds)

    def settings_of(self, row: Row) -> dict[str, dict[str, Value]]:
        """What each method of a row is set to: `--set METHOD.key=value` first, then the row's own `set`, which makes it
        this row."""
        found = {part: dict(self.settings.get(part, {})) for part in row.parts}
        for key, value in row.hyperparameters.items():
            part, _, name = key.partition(".")
            if part not in found or not name:
                part, name = row.parts[0], key
            found[part][name] = value
        return found

    def hyperparameters(self, row: Row) -> dict[str, Value]:
        """What a row sets, for a reader: by name, by 'method.name' where the row has several methods."""
        several = len(row.parts) > 1
        found = {
            f"{part}.{key}" if several else key: value
            for part, values in self.settings_of(row).items()
            for key, value in values.items()
        }
        return found | {f"{ENCODER}{key}": value for key, value in row.encoder_settings.items()}

    def row_incomparable(self, row: Row) -> str:
        """Why this row gets no verdict, or ''."""
        changed = ", ".join(
            f"{part}.{k}={v}" for part in row.parts for k, v in sorted(self.settings.get(part, {}).items())
        )
        return row.incomparable or (f"--set {changed}" if changed else "")

    @property
    def translates(self) -> bool:
        """Some row reads back-translations."""
        parts = [part for row in self.rows if not row.skip for part in row.parts]
        return any(METHODS[part].translates for part in parts if part in METHODS)

    @property
    def phases(self) -> tuple[str, ...]:
        """The training phases that its rows have, fine-tuning first."""
        parts = [part for row in self.rows if not row.skip for part in row.method.split("+") if part in METHODS]
        found = {"post_train"} if any(METHODS[part].train is not None for part in parts) else set()
        found |= {"pre_train"} if any(row.pre_train for row in self.rows) else set()
        return tuple(phase for phase in PHASES if phase == "fine_tune" or phase in found)

    def selection(self, task: str) -> specs.Selection:
        """The checkpoint rule of a task: its first column's metric on dev, every `selection_every` updates."""
        metric = next(column.metric for column in self.columns.values() if column.task == task)
        return specs.Selection(metric=metric, every=self.selection_every)

    def fine_tune_optim(self, size: int, num_rows: int) -> specs.Optim:
        """The fine-tuning recipe at `size`; steps = epochs * ceil(num_rows / batch_size), `num_rows` the labelled rows.

        Raises UserError when the recipe has no epochs for this size.
        """
        return self._optim("fine_tune", size, num_rows)

    def post_train_optim(self, size: int, num_rows: int) -> specs.Optim:
        """The post-training recipe at `size`, as `fine_tune_optim`; `num_rows` counts the unlabelled rows."""
        return self._optim("post_train", size, num_rows)

    def pre_train_optim(self) -> specs.Optim:
        """The pre-training recipe, always in steps."""
        return self._optim("pre_train", 0, 0)

    def _optim(self, phase: str, size: int, num_rows: int) -> specs.Optim:
        values: dict[str, Any] = getattr(self.recipe, phase).model_dump(exclude_none=True)
        key = "steps" if "steps" in values else "epochs"
        length = values.pop(key)
        if isinstance(length, dict):
            if size not in length:
                have = ", ".join(map(str, sorted(length)))
                raise UserError(
                    f"table {self.table.name}, key recipe.{phase}.{key}: no {key} for size {size} (given for {have}); "
                    f"add one, or give --set {phase}.{key}=NUMBER."
                )
            length = length[size]
        if key == "epochs":
            length = max(1, round(length * math.ceil(num_rows / values["batch_size"])))
        if "warmup_steps" in values:
            values["warmup"] = _fraction(values.pop("warmup_steps"), int(length))
        return specs.Optim(steps=int(length), **values)

    def paper_value(self, size: int, row: str, column: str) -> tuple[float, float | None] | None:
        """The paper's (value, spread), both with 1 for 100 %, whatever its units; None where it prints none."""
        pair = self.table.paper.get(size, {}).get(row, {}).get(column)
        if pair is None:
            return None
        value, spread = pair
        unit = self.table.paper_unit
        return round(value * unit.value, 10), None if spread is None else round(spread * unit.spread, 10)


def resolve(table: Table, preset: str, overrides: Overrides, tasks: Mapping[str, Task] | None) -> ResolvedTable:
    """`table` under `preset` with the command line's `overrides`.

    `tasks`: the known tasks by name, for those the table has no column for (one column for each evaluation, the task's
    first metric); None means `harness.tasks.task.TASKS`.
    Raises UserError for an unknown name, a number out of range, or a bad `--set`.
    """
    if preset not in table.presets:
        raise unknown("preset", preset, table.presets, f"--preset of table {table.name}")
    base = table.presets[preset]

    by_name = {row.name: row for row in table.rows}
    rows = tuple(by_name[name] for name in base.methods) if base.methods is not None else table.rows
    if overrides.methods is not None:
        rows = _pick_rows(table, overrides.methods)
    sizes = base.sizes if base.sizes is not None else table.sizes
    if overrides.sizes is not None:
        for size in overrides.sizes:
            if size not in table.sizes:
                raise unknown("size", str(size), map(str, table.sizes), "--sizes")
        sizes = _distinct(overrides.sizes)
    subsets: Sequence[int] = range(base.subsets or table.subsets)
    if overrides.subsets is not None:
        subsets = _in_range(overrides.subsets, max(table.subsets, base.subsets or 0), "--subsets")
    seeds = base.seeds or table.seeds
    if overrides.seeds is not None:
        seeds = _in_range(overrides.seeds, 2**32, "--seeds")
    chosen_tasks = base.tasks or table.tasks
    if overrides.tasks is not None:
        chosen_tasks = _distinct(overrides.tasks)
    columns = _columns(table, chosen_tasks, tasks, "--tasks" if overrides.tasks is not None else f"preset {preset}")

    pre_train = base.pre_train or table.pre_train
    patched = table.recipe.patched(base.recipe)
    recipe, pre_train, settings, single = _apply_sets((*table.rows, *rows), patched, pre_train, overrides.set)
    if overrides.corpus is not None:
        if pre_train is None:
            raise UserError(f"--corpus {overrides.corpus}: table {table.name} has no row that is pre-trained.")
        pre_train = pre_train.model_copy(update={"corpus": overrides.corpus})
    translator = table.translator if base.translator is None else base.translator
    result = ResolvedTable(
        table=table,
        preset=preset,
        encoder=overrides.encoder or base.encoder,
        data=overrides.data or base.data,
        rows=rows,
        tasks=tuple(chosen_tasks),
        columns=columns,
        sizes=tuple(sizes),
        subsets=tuple(subsets),
        seeds=tuple(seeds),
        recipe=recipe,
        max_length=single.get("max_length", base.max_length or table.max_length),
        selection_every=base.selection_every or table.selection_every,
        mlm_head=(base.mlm_head or MlmHead()).model_copy(
            update={key.partition(".")[2]: value for key, value in single.items() if key.startswith("mlm_head.")}
        ),
        aggregate=table.aggregate,
        pre_train=pre_train if any(row.pre_train for row in rows) else None,
        translator=translator if overrides.translator is None else overrides.translator,
        settings=settings,
        encoder_settings=table.encoder_under(base) | encoder_part(single),
        num_workers=overrides.num_workers or base.num_workers or table.num_workers,
    )
    differs = deviations(result)
    incomparable = differs if base.comparable else [f"preset {preset} is not the paper's setting"]
    for method, values in settings.items():
        takers = [row for row in rows if method in row.parts]
        for name, value in values.items():
            if takers and all(result.settings_of(row)[method][name] != value for row in takers):
                raise UserError(
                    f"--set {method}.{name}={value}: has no effect, each chosen row of {method} sets {name} itself; change it "
                    "in a table of your own."
                )
    for name, number in encoder_part(single).items():
        if all(row.encoder_settings.get(name, number) != number for row in rows):
            raise UserError(
                f"--set {ENCODER}{name}={number}: has no effect, each chosen row sets it itself; change it in a table of your "
                "own."
            )
    chosen = {part for row in rows for part in row.parts}
    set_here = [
        f"{method}.{name} set to {value}"
        for method, values in sorted(settings.items())
        if method in chosen
        for name, value in sorted(values.items())
    ]
    return replace(result, deviations=(*differs, *set_here), incomparable=tuple(incomparable))


def _fraction(updates: int, steps: int) -> float:
    """The share of `steps` that the loop reads as `updates`, at most all: it rounds up, so an error upwards would add one."""
    share = min(1.0, updates / steps)
    return share if math.ceil(share * steps) <= updates else math.nextafter(share, 0)


def _distinct(values: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))


def _in_range(values: Iterable[int], stop: int, flag: str) -> tuple[int, ...]:
    for value in values:
        if not 0 <= value < stop:
            raise UserError(f"{flag}: {value} is out of range; allowed are 0 to {stop - 1}.")
    return _distinct(values)


def _pick_rows(table: Table, names: Iterable[str]) -> tuple[Row, ...]:
    """Rows by row name or method name, in the table's order; then a row for each method that the table lacks."""
    chosen: set[str] = set()
    added: dict[str, Row] = {}
    for name in names:
        found = [row for row in table.rows if row.name == name]
        found = found or [row for row in table.rows if row.method and row.method.lower() == name.lower()]
        found = found or [row for row in table.rows if row.name.lower() == name.lower()]
        if not found:
            known = {text.lower() for row in table.rows for text in (row.name, row.method) if text} | set(METHODS)
            if any(part not in METHODS for part in name.lower().split("+")):
                raise unknown("method", name.lower(), known, "--methods")
            title = "+".join(method.title for method in methods_named(name.lower(), "--methods"))
            added[title] = Row(name=title, method=name.lower(), incomparable="the paper has no such row")
        chosen |= {row.name for row in found}
    return (*(row for row in table.rows if row.name in chosen), *added.values())


def _columns(table: Table, tasks: Iterable[str], known: Mapping[str, Task] | None, where: str) -> dict[str, Column]:
    """The table's columns of the chosen tasks in its order, then automatic ones for each task it lacks."""
    tasks = tuple(tasks)
    columns = {name: column for name, column in table.columns.items() if column.task in tasks}
    for key, spec in columns.items():
        if known is not None and spec.task not in known:
            wrong = unknown("task", spec.task, known, f"table {table.name}, key columns.{key}.task")
            raise UserError(f"{str(wrong).rstrip('.')}; name the YAML of a task of your own with --tasks.")
        try:
            spec.check((known or {}).get(spec.task))
        except MisplacedError as error:
            key = ".".join(["columns", key, *map(str, error.loc)])
            raise UserError(f"table {table.name}, key {key}: {str(error).rstrip('.')}.") from None
    extra = [task for task in tasks if task not in table.tasks]
    if extra and known is None:
        from harness.tasks.task import TASKS

        known = TASKS
    for name in extra:
        if known is None or name not in known:
            raise unknown("task", name, {*table.tasks, *(known or ())}, where)
        task = known[name]
        for evaluation, title in task.columns_of_table.items():
            column = name if len(task.evaluations) == 1 else f"{name}_{evaluation}"
            columns[column] = Column(task=name, metric=task.metrics[0], evaluation=evaluation, title=title)
    return columns


def _apply_sets(
    rows: Iterable[Row], recipe: Recipe, pre_train: PreTrain | None, texts: Iterable[str]
) -> tuple[Recipe, PreTrain | None, dict[str, dict[str, Value]], dict[str, int]]:
    """`--set KEY=VALUE`: the patched recipe, what is pre-trained on, hyperparameters by method, and single values (max_length,
    mlm_head.*, encoder.*)."""
    methods = sorted({part for row in rows for part in row.parts})
    settings: dict[str, dict[str, Value]] = {}
    single: dict[str, int] = {}
    for text in texts:
        key, equals, raw = text.partition("=")
        key, value = key.strip(), parse_value(raw.strip())
        if not equals or not key or value is None:
            raise UserError(f"--set {text}: should be KEY=VALUE, for example fine_tune.lr=1e-5.")
        group, _, name = key.partition(".")
        if key == "max_length":
            single[key] = _whole(value, 8, 512, text)
        elif group == "mlm_head":
            if name not in MlmHead.model_fields:
                raise unknown("key", key, [f"mlm_head.{n}" for n in MlmHead.model_fields], f"--set {text}")
            single[key] = _whole(value, 0, 10**9, text) if name == "steps" else _flag(value, text)
        elif group == "encoder":
            if name not in EncoderSettings.model_fields:
                raise unknown("key", key, [f"{ENCODER}{n}" for n in EncoderSettings.model_fields], f"--set {text}")
            single[key] = _whole(value, 1 if name == "relative_distance" else 0, 10**4, text)
        elif group == "pre_train" and name in PreTrain.model_fields:
            pre_train = _patched_text(pre_train, name, value, text)
        elif group in ("optim", *PHASES) and name:
            if name not in Phase.model_fields:
                names = [*Phase.model_fields, *(PreTrain.model_fields if group == "pre_train" else ())]
                raise unknown("key", key, [f"{group}.{n}" for n in names], f"--set {text}")
            try:
                patch = Phase.model_validate({name: value})
            except ValidationError as error:
                raise UserError(describe_errors(error, Phase, f"--set {text}")) from None
            for phase in PHASES[:2] if group == "optim" else (group,):
                recipe = recipe.patched(Recipe(**{phase: patch}))
        elif group in methods and name:
            if not isinstance(value, (bool, int, float, str)):
                raise UserError(f"--set {text}: should be a number, a word, true or false, not {value!r}.")
            settings.setdefault(group, {})[name] = value
        elif group in (*methods, "optim", *PHASES):
            raise UserError(f"--set {text}: '{group}' needs a field, for example {group}.{_example(group)}.")
        else:
            known = [
                "max_length",
                *(f"mlm_head.{n}" for n in MlmHead.model_fields),
                *(f"{ENCODER}{n}" for n in EncoderSettings.model_fields),
                *(f"{g}.{n}" for g in ("optim", *PHASES) for n in Phase.model_fields),
            ]
            close = unknown("key", key, [*known, *(f"{m}.{name or 'HYPERPARAMETER'}" for m in methods)])
            hint = str(close).partition(" Known:")[0]
            groups = ["max_length", "mlm_head.*", "encoder.*", "optim.*", *(f"{g}.*" for g in (*PHASES, *methods))]
            raise UserError(f"--set {text}: {hint} Known: {', '.join(groups)}.")
    return recipe, pre_train, settings, single


def _patched_text(pre_train: PreTrain | None, name: str, value: Any, text: str) -> PreTrain:
    if pre_train is None:
        raise UserError(f"--set {text}: this table has no row that is pre-trained.")
    try:
        return PreTrain.model_validate({**pre_train.model_dump(), name: value})
    except ValidationError as error:
        raise UserError(describe_errors(error, PreTrain, f"--set {text}")) from None


def _example(group: str) -> str:
    return "lr=1e-5" if group in ("optim", *PHASES) else "HYPERPARAMETER=VALUE"


def _whole(value: Any, low: int, high: int, text: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UserError(f"--set {text}: should be a whole number, {low} to {high}, not {value!r}.")
    return value


def _flag(value: Any, text: str) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"--set {text}: should be true or false, not {value!r}.")
    return value
