"""A published table as data: rows, columns, recipe, replicates, aggregation, the paper's own numbers, and presets.

One YAML file under `benchmarks/` each, read by `load_table`. `resolve` (in `resolve.py`) turns a table and a request into one
flat object.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from harness.errors import UserError, unknown
from harness.tables.aggregation import AVERAGE, Aggregation
from harness.tables.recipe import (
    Count,
    EncoderSettings,
    Every,
    Few,
    MlmHead,
    Number,
    Positive,
    PreTrain,
    Recipe,
    Seed,
    Size,
    StartsFrom,
    TaskRecipe,
)
from harness.tables.row import Row
from harness.tables.values import matching, stated
from harness.tasks.metrics import METRICS, check_metric
from harness.tasks.protocols import PROTOCOLS
from harness.tasks.task import TASKS, Task
from harness.yaml_files import MisplacedError, Strict, load_named, packaged_files


class Source(Strict):
    """Where the table was published. `values_of`: the paper whose values `origin` marks P, where it is not `paper`."""

    paper: str
    table: str
    citation: str
    values_of: str = ""


Origin = Annotated[str, Field(pattern=r"^[PRC]( .+)?$")]
"""P (the paper), R (its authors' released code) or C (chosen here), then a section or a reason."""


class Column(Strict):
    """One column: `metric` of `task` on the named `evaluation` set. `test_rows`: the paper's number of test examples.

    The first column of a task has the metric that its checkpoints are selected by.
    """

    task: str
    metric: str
    evaluation: str = "test"
    title: str
    test_rows: Count | None = None

    def check(self, task: Task | None) -> None:
        """Raises MisplacedError for a metric or an evaluation that `task` (None: a user's, not read yet) does not have."""
        if task is None:
            if self.metric not in METRICS:
                raise MisplacedError(["metric"], str(unknown("metric", self.metric, METRICS)))
            return
        try:
            check_metric(self.metric, task.num_labels, f"task {task.name}")
        except UserError as error:
            raise MisplacedError(["metric"], str(error)) from None
        if self.evaluation not in task.evaluations:
            wrong = unknown("evaluation", self.evaluation, task.evaluations, f"task {task.name}")
            raise MisplacedError(["evaluation"], str(wrong))


def _pair(value: object) -> object:
    return (value, None) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


PaperValue = Annotated[tuple[Number, Number | None], BeforeValidator(_pair)]


SIZE = "size"
"""The `x` of a figure over the size of the training set."""


HOURS = "pre_train_hours"
"""The `x` of a figure over the hours of training before fine-tuning, as recorded."""


class Figure(Strict):
    """A figure of the table: its cells over a value that each row sets, `x` ('unlabelled', 'pre_train_step' or a hyperparameter), over the
    'size' of the training set, a line for each row, or over 'pre_train_hours', which the records tell; with its `label`. `log`: on a logarithmic axis. `bars`: one standard deviation, or from the
    lowest run to the highest. Over updates or hours of pre-training, a row without any is a line of reference."""

    x: str
    label: str
    log: bool = False
    bars: Literal["spread", "range"] = "spread"

    def x_of(self, row: Row, size: int) -> float | None:
        """Where a row at a size stands; None for a line of reference, and where the records tell. Raises MisplacedError for any other row that sets no number there,
        or none that a logarithmic axis has, and for a full training set on an axis of sizes."""
        if self.x == SIZE:
            if not size:
                raise MisplacedError(
                    ["figure", "x"], "a full training set has no size to stand at; give sizes by number"
                )
            return float(size)
        if self.x == HOURS or (self.x == "pre_train_step" and not row.pre_train):
            return None
        value = getattr(row, self.x) if self.x in ("unlabelled", "pre_train_step") else row.set.get(self.x)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise MisplacedError(
                ["figure", "x"], f"the row '{row.name}' sets no number {self.x}; every row of a figure does"
            )
        if self.log and value <= 0:
            raise MisplacedError(["figure", "log"], f"the row '{row.name}' has {self.x} {value}; leave log out")
        return float(value)


class Preset(Strict):
    """What a preset changes; a key left out is the table's. `subsets` is a count, `methods` names of rows; `draws`: so many
    points of each grid, drawn at random."""

    description: str
    encoder: str
    encoder_settings: EncoderSettings = EncoderSettings()
    data: str = "glue"
    methods: tuple[str, ...] | None = None
    tasks: tuple[str, ...] | None = None
    sizes: tuple[Size, ...] | None = None
    subsets: Few | None = None
    seeds: tuple[Seed, ...] | None = None
    draws: Few | None = None
    recipe: Recipe = Recipe()
    pre_train: PreTrain | None = None
    starts_from: StartsFrom | None = None
    translator: str | None = None
    mlm_head: MlmHead | None = None
    max_length: Annotated[int, Field(ge=8, le=512)] | None = None
    selection_every: Every | None = None
    num_workers: Few | None = None
    comparable: bool = False


class Table(Strict):
    """One table, published where it has a source. `sizes`: total labelled examples, 0 the full training set; none: any size, and what
    the protocol says by default; without `tasks` the request names them; `columns` by column id; `num_workers` train one stage
    together, which changes no number. `task_recipes`: what the recipe is for some of the tasks; a preset's recipe goes over it. `selection_every`: updates
    between two evaluations on dev, 'last' for the last update alone, or '0.5 epochs'. `encoder_preset`: the preset of a request that names an encoder which no preset has, and no
    preset.

    `paper`: size -> row -> column -> [value, spread] in the paper's units; values times `paper_unit.value`, spreads times
    `paper_unit.spread`, lie in [0, 1]. `origin`: where each value comes from, by its path or a pattern ('recipe.*.lr'); a
    table that gives origins gives one for every value. `averages`: rows printed after the others by name, each with those that its
    cells are the means of; their spread is that of all runs which count in these. `shares`: other packaged tables that have runs in common with it, which a
    plan counts.
    """

    model_config = ConfigDict(protected_namespaces=())

    class Unit(Strict):
        value: Positive = 1.0
        spread: Positive = 1.0

    name: str
    title: str
    source: Source | None = None
    protocol: str
    origin: dict[str, Origin] = Field(default_factory=dict)
    recipe: Recipe
    task_recipes: tuple[TaskRecipe, ...] = ()
    pre_train: PreTrain | None = None
    starts_from: StartsFrom | None = None
    encoder_settings: EncoderSettings = EncoderSettings()
    translator: str = ""
    max_length: Annotated[int, Field(ge=8, le=512)] = 128
    selection_every: Every = 100
    num_workers: Few = 1
    sizes: tuple[Size, ...] = ()
    subsets: Few = 1
    seeds: tuple[Seed, ...] = Field(min_length=1)
    tasks: tuple[str, ...] = ()
    columns: dict[str, Column] = Field(default_factory=dict)
    rows: tuple[Row, ...] = Field(min_length=1)
    averages: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    aggregate: Aggregation = Aggregation()
    paper_unit: Unit = Unit()
    paper: dict[Size, dict[str, dict[str, PaperValue]]] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    figure: Figure | None = None
    shares: tuple[str, ...] = ()
    default_preset: str = "quick"
    encoder_preset: str = ""
    presets: dict[str, Preset]

    @model_validator(mode="after")
    def _with_grids(self) -> Table:
        """Each row with a grid becomes its configurations. Errors that name a row by its place come before."""
        rows = tuple(each for row in self.rows for each in row.configurations)
        object.__setattr__(self, "rows", rows)
        return self

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Table:
        def check(loc: list[Any], name: Any, known: Any, kind: str) -> None:
            if name not in known:
                error = unknown(kind, str(name), map(str, known))
                raise MisplacedError(loc, str(error))

        check(["protocol"], self.protocol, PROTOCOLS, "protocol")
        names = [row.name for row in self.rows]
        for index, row in enumerate(self.rows):
            if row.name in names[:index]:
                raise MisplacedError(["rows", index, "name"], f"the row '{row.name}' is given twice; keep one")
        titles = list(dict.fromkeys(row.title for row in self.rows))
        for index, row in enumerate(self.rows):
            for place, task in enumerate(row.tasks):
                check(["rows", index, "tasks", place], task, self.tasks, "task")
            if row.configuration_of in names:
                wrong = f"the row '{row.configuration_of}' is run itself; give the printed row another name"
                raise MisplacedError(["rows", index, "configuration_of"], wrong)
        if self.aggregate.select != "none" and titles == names:
            wrong = "no row has configurations to select from; give rows a configuration_of"
            raise MisplacedError(["aggregate", "select"], wrong)
        for name, members in self.averages.items():
            for index, member in enumerate(members):
                check(["averages", name, index], member, titles, "row")
            wrong = (
                "a row has this name" if name in titles else "" if len(members) > 1 else "names one row; give several"
            )
            if wrong or self.aggregate.average != "none":
                raise MisplacedError(
                    ["averages", name], wrong or "a table has means of rows or an Avg of columns, not both"
                )
        for index, group in enumerate(self.aggregate.average_over or ()):
            for column in (group,) if isinstance(group, str) else group:
                check(["aggregate", "average_over", index], column, self.columns, "column")
        for column, spec in self.columns.items():
            check(["columns", column, "task"], spec.task, self.tasks, "task")
            try:
                spec.check(TASKS.get(spec.task))
            except MisplacedError as error:
                raise MisplacedError(["columns", column, *error.loc], str(error)) from None
        for index, recipe in enumerate(self.task_recipes):
            for place, task in enumerate(recipe.tasks):
                check(["task_recipes", index, "tasks", place], task, self.tasks, "task")
                if any(task in other.tasks for other in self.task_recipes[:index]):
                    raise MisplacedError(
                        ["task_recipes", index, "tasks", place], f"{task} has a recipe already; keep one"
                    )
        for index, task in enumerate(self.tasks):
            check(["tasks", index], task, {spec.task for spec in self.columns.values()}, "task with a column")
        for size, rows in self.paper.items():
            check(["paper", size], size, self.sizes, "size")
            for name, cells in rows.items():
                check(["paper", size, name], name, [*titles, *self.averages], "row")
                average = [AVERAGE] if self.aggregate.average != "none" else []
                for column in cells:
                    check(["paper", size, name, column], column, [*self.columns, *average], "column")
        if self.figure:
            for row, size in itertools.product(self.rows, self.sizes or (0,)):
                self.figure.x_of(row, size)
        check(["default_preset"], self.default_preset, self.presets, "preset")
        if self.encoder_preset:
            check(["encoder_preset"], self.encoder_preset, self.presets, "preset")
        for phase in ("fine_tune", "post_train"):
            spec = getattr(self.recipe, phase)
            for key in ("lr", "batch_size"):
                if getattr(spec, key) is None:
                    raise MisplacedError(["recipe", phase, key], f"the recipe needs {key}")
            if spec.epochs is None and spec.steps is None:
                raise MisplacedError(["recipe", phase, "epochs"], "the recipe needs epochs or steps")
        if any(row.pre_train for row in self.rows):
            for key in ("lr", "batch_size", "steps"):
                if getattr(self.recipe.pre_train, key) is None:
                    raise MisplacedError(["recipe", "pre_train", key], f"rows with pre_train need {key} in the recipe")
            if self.pre_train is None:
                raise MisplacedError(["pre_train"], "rows with pre_train need a corpus: pre_train: {corpus: NAME}")
            self._check_updates()
        for preset, changes in self.presets.items():
            for index, size in enumerate((changes.sizes if self.sizes else None) or ()):
                check(["presets", preset, "sizes", index], size, self.sizes, "size")
            for index, name in enumerate(changes.methods or ()):
                check(["presets", preset, "methods", index], name, titles, "row")
        self._check_origins()
        return self

    def _check_updates(self) -> None:
        """Raises MisplacedError for weights after an update that pre-training does not have."""
        places: list[tuple[list[Any], int | None, Recipe]] = [
            (["rows", index, "pre_train_step"], row.pre_train_step, self.recipe.patched(row.recipe))
            for index, row in enumerate(self.rows)
        ]
        texts = [(["pre_train"], self.pre_train, self.recipe)]
        for name, preset in self.presets.items():
            texts.append((["presets", name, "pre_train"], preset.pre_train, self.recipe.patched(preset.recipe)))
        places += [
            ([*loc, "save_at"], max(text.save_at), recipe) for loc, text, recipe in texts if text and text.save_at
        ]
        for loc, step, recipe in places:
            steps = recipe.pre_train.steps
            if step and not (isinstance(steps, int) and step <= steps):
                raise MisplacedError(loc, f"{step} is not among the {steps} updates of recipe.pre_train.steps")

    def _check_origins(self) -> None:
        values = stated(self) if self.origin else {}
        for pattern in self.origin:
            if not any(matching({pattern: ""}, path) for path in values):
                raise MisplacedError(["origin", pattern], str(unknown("value", pattern, values)))
        for path in values:
            found = matching(self.origin, path)
            if len(found) != 1:
                several = f"matches {' and '.join(found)}; keep one" if found else "has no origin: give P, R or C"
                raise MisplacedError(["origin", *found[1:2]], f"{path} {several}")

    def reason(self, path: str) -> str:
        """What stands after the letter of a value's origin: a section or a reason, or nothing."""
        return next((self.origin[pattern][2:] for pattern in matching(self.origin, path)), "")

    @property
    def reference(self) -> Preset:
        """The preset with the paper's setting: the comparable one, else 'paper', else the default."""
        found = next((preset for preset in self.presets.values() if preset.comparable), None)
        return found or self.presets.get("paper", self.presets[self.default_preset])

    def preset_for(self, encoder: str | None) -> str:
        """The preset of a request that names none."""
        if not encoder or not self.encoder_preset:
            return self.default_preset
        return next((name for name, preset in self.presets.items() if preset.encoder == encoder), self.encoder_preset)

    def encoder_under(self, preset: Preset) -> dict[str, int]:
        """The table's settings of the encoder, and over them the preset's."""
        settings = (self.encoder_settings, preset.encoder_settings)
        return {name: value for each in settings for name, value in each.model_dump(exclude_none=True).items()}


def table_names() -> tuple[str, ...]:
    """The names of the packaged tables, sorted."""
    return tuple(sorted(packaged_files("benchmarks")))


def load_table(name_or_path: str | Path, where: str = "") -> Table:
    """A packaged table by name, or a user's own by path (it ends in .yaml or .yml, or holds a slash).

    `where`: how errors name who asked for it. Raises UserError for an unknown name (with the closest one) and for a file
    that is no table (file, line, key).
    """
    return load_named(name_or_path, Table, "benchmarks", "table", where)
