"""A published table as data: rows, columns, recipe, replicates, aggregation, the paper's own numbers, presets, and where each value comes from.

One YAML file under `benchmarks/` each, read by `load_table`. `resolve` (in `resolve.py`) turns a table and a request into one
flat object.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from harness.errors import unknown
from harness.methods import METHODS
from harness.planning.aggregation import AVERAGE, Aggregation
from harness.planning.recipe import (
    PHASES,
    Augment,
    Count,
    EncoderSettings,
    Every,
    Few,
    Length,
    MlmHead,
    Number,
    Origin,
    Phase,
    Positive,
    PreTrain,
    Recipe,
    Seed,
    Share,
    Size,
    TaskRecipe,
    Value,
    group_of,
    patched,
    read_value,
)
from harness.tasks.metrics import METRICS, check_metric
from harness.tasks.protocols import PROTOCOLS
from harness.tasks.task import TASKS, Task
from harness.yaml_files import MisplacedError, Strict, load_named, one_of, packaged_files, placed

T = TypeVar("T")


class Source(Strict):
    """Where the table was published. `values_of`: the paper whose values `origin` marks P, where it is not `paper`."""

    paper: str
    table: str
    citation: str
    values_of: str = ""


class Column(Strict):
    """One column: `metric` of `task` on the named `evaluation` set. `test_rows`: the paper's number of test examples.

    The first column of a task has the metric that its checkpoints are selected by.
    """

    task: str
    metric: Annotated[str, one_of("metric", METRICS)]
    evaluation: str = "test"
    title: str
    test_rows: Count | None = None

    def check(self, task: Task) -> None:
        """Raises MisplacedError for a metric or an evaluation that the task does not have."""
        with placed("metric"):
            check_metric(self.metric, task.kind, f"task {task.name}")
        with placed("evaluation"):
            if self.evaluation not in task.tests:
                raise unknown("evaluation", self.evaluation, task.tests, f"task {task.name}")


def _check(names: Iterable[object], known: Iterable[object], kind: str, *loc: int | str) -> None:
    """Raises MisplacedError for the first of the names, a list or keys at `loc`, that is not known."""
    texts = [str(each) for each in known]
    for index, name in enumerate(map(str, names)):
        if name not in texts:
            raise MisplacedError((*loc, name if isinstance(names, Mapping) else index), str(unknown(kind, name, texts)))


def _pair(value: object) -> object:
    return (value, None) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


PaperValue = Annotated[tuple[Number, Number | None], BeforeValidator(_pair)]


def drawn(points: Sequence[T], draws: int, seed: str) -> list[T]:
    """`draws` of the points of a grid, without replacement."""
    return random.Random(seed).sample(points, min(draws, len(points)))


class Grid(Strict):
    """Values by hyperparameter, or by value of the recipe ('fine_tune.lr'), for a group of `tasks` (none: those of the row)."""

    tasks: tuple[str, ...] = ()
    grid: dict[str, tuple[Value, ...]] = Field(min_length=1)


def _as_grids(value: object) -> object:
    return [{"grid": value}] if isinstance(value, Mapping) else value


class Row(Strict):
    """One row: a method with the hyperparameters that make it this row.

    `method`: 'cmlm', or several after one another as 'cmlm+scl'; `pre_train`: the same, before, on the table's corpus; `pre_train_step`: the
    update of pre-training that it starts from (left out: the last), of those in the table's own recipe; `pre_train_fraction`: of the corpus's
    texts, where it is not the table's. `set`: hyperparameters by name, by 'method.name' where the row has several methods, and `encoder.`
    settings of this row alone. `recipe`: what this row changes in the recipe. `unlabelled`: post-training reads so many texts, those of the
    training set and further ones. `augment`: back-translations as further labelled rows of fine-tuning, over the same updates. `incomparable`:
    why our row gets no verdict even under the paper's preset. `tasks`: those that it is run on (left out: all).
    `grid`: the values of a grid, or a list with a grid for each group of tasks: the row is printed, and has a configuration for each point, or
    for `draws` of them; rows with the same tasks and grid draw the same points. `configuration_of`: the printed row that it is one of several
    configurations of. `line`: of the table's figure (left out: that of its pre-training).
    """

    name: str
    pre_train: str = ""
    pre_train_step: Count | None = None
    pre_train_fraction: Share | None = None
    method: str = Field(min_length=1)
    set: dict[str, Value] = Field(default_factory=dict)
    recipe: Recipe = Recipe()
    unlabelled: Count | None = None
    augment: Augment | None = None
    incomparable: str = ""
    tasks: tuple[str, ...] = ()
    grid: Annotated[tuple[Grid, ...], BeforeValidator(_as_grids)] = ()
    draws: Count | None = None
    configuration_of: str = ""
    line: str = ""

    @model_validator(mode="after")
    def _fits(self) -> Row:
        tasks = [bool(each.tasks) for each in self.grid]
        for key, wrong, why in (
            ("pre_train_step", self.pre_train_step and not self.pre_train, "the row has no pre_train to start from"),
            ("pre_train_fraction", self.pre_train_fraction and not self.pre_train, "the row has no pre_train"),
            ("grid", len(tasks) > 1 and not all(tasks), "name the tasks of each of several grids"),
            ("tasks", self.tasks and any(tasks), "the grids of the row name their tasks; leave tasks out"),
            ("draws", self.draws and not self.grid, "there is no grid to draw from"),
        ):
            if wrong:
                raise MisplacedError([key], why)
        for key, value in self.set.items():
            with placed("set", key):
                self._check(key, value)
        for index, part in enumerate(self.grid):
            for key, place in ((key, place) for key, values in part.grid.items() for place in range(len(values))):
                with placed("grid", index, "grid", key, place):
                    self._check(key, part.grid[key][place], PHASES)
        return self

    def _check(self, key: str, value: Value, phases: Sequence[str] = ()) -> None:
        """Raises ValueError for a value that does not fit its key; of the recipe for `phases` alone."""
        group, _, name = key.partition(".") if "." in key else ("", "", key)
        if len(self.parts) > 1 and group not in ("encoder", *self.parts, *phases):
            known = " or ".join(f"{part}.{key}" for part in dict.fromkeys(self.parts))
            raise ValueError(f"the row has several methods; write {known}")
        models: dict[str, type[Strict]] = {**METHODS, "encoder": EncoderSettings, **dict.fromkeys(phases, Phase)}
        if model := models.get(group or self.parts[0]):
            read_value(model, name, value)

    @property
    def configurations(self) -> tuple[Row, ...]:
        """The row itself, or a row for each point of its grids, or for each of the points that are drawn."""
        found = []
        for part in self.grid:
            tasks = part.tasks or self.tasks
            points = [dict(zip(part.grid, values, strict=True)) for values in itertools.product(*part.grid.values())]
            points = drawn(points, self.draws, f"{' '.join(tasks)} 0") if self.draws else points
            name = f"{self.name} on {', '.join(part.tasks)}" if part.tasks else self.name
            found += [self._at(name, tasks, point) for point in points]
        return tuple(found) if self.grid else (self,)

    def _at(self, name: str, tasks: tuple[str, ...], point: Mapping[str, Value]) -> Row:
        """The row with the values of a point. Its name has the last parts of their keys."""
        shown = [f"{key.rpartition('.')[2]} {value}" for key, value in point.items()]
        of_recipe = {key: value for key, value in point.items() if key.partition(".")[0] in PHASES}
        settings = self.set | {key: value for key, value in point.items() if key not in of_recipe}
        recipe = patched(self.recipe.values, of_recipe)
        changed: dict[str, Any] = {"name": f"{name}, {', '.join(shown)}", "tasks": tasks, "set": settings}
        changed |= {"recipe": Recipe(**{phase: group_of(recipe, phase) for phase in PHASES}), "grid": (), "draws": None}
        return self.model_copy(update={**changed, "configuration_of": self.title})

    @property
    def title(self) -> str:
        return self.configuration_of or self.name

    @property
    def own_values(self) -> dict[str, Any]:
        """What it sets, by keys as overrides have them."""
        known = ("encoder", *self.parts)
        named = {key if key.partition(".")[0] in known else f"{self.parts[0]}.{key}": v for key, v in self.set.items()}
        fraction = self.pre_train_fraction
        return self.recipe.values | named | ({"pre_train.fraction": fraction} if fraction else {})

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the row's methods, pre-training first."""
        return tuple(part for text in (self.pre_train, self.method) if text for part in text.split("+"))

    @property
    def groups(self) -> tuple[str, ...]:
        """Its methods, and the phases that it trains, fine-tuning first."""
        unlabelled = any(not METHODS[part].labelled for part in self.method.split("+") if part in METHODS)
        phases = {"fine_tune": True, "post_train": unlabelled, "pre_train": bool(self.pre_train)}
        return (*self.parts, *(phase for phase in PHASES if phases[phase]))


SIZE = "size"
"""The `x` of a figure over the size of the training set."""
HOURS = "pre_train_hours"
"""The `x` of a figure over the hours of training before fine-tuning, as recorded."""


class Figure(Strict):
    """A figure of the table: its cells over `x`, a value that each row sets ('unlabelled', 'pre_train_step' or a hyperparameter), the 'size' of the
    training set, a line for each row, or 'pre_train_hours', which the records tell; with its `label`. `log`: on a logarithmic axis. `bars`: one
    standard deviation, or from the lowest run to the highest. Over updates or hours of pre-training, a row without any is a line of reference."""

    x: str
    label: str
    log: bool = False
    bars: Literal["spread", "range"] = "spread"

    def x_of(self, row: Row, size: int) -> float | None:
        """Where a row at a size stands; None for a line of reference, and where the records tell. Raises MisplacedError for any other row that sets no
        number there, or none that a logarithmic axis has, and for a full training set on an axis of sizes."""
        if self.x == HOURS or (self.x == "pre_train_step" and not row.pre_train):
            return None
        value = size if self.x == SIZE else {**row.set, **dict(row)}.get(self.x)
        if self.x == SIZE and not size:
            raise MisplacedError(["figure", "x"], "a full training set has no size; give sizes by number")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            wrong = f"the row '{row.name}' sets no number {self.x}; every row of a figure does"
            raise MisplacedError(["figure", "x"], wrong)
        if self.log and value <= 0:
            raise MisplacedError(["figure", "log"], f"the row '{row.name}' has {self.x} {value}; leave log out")
        return float(value)


DATA = ("pre_train", "translator")
DESIGN = ("max_length", "selection_every", "tasks", "sizes", "subsets", "seeds")
"""With `DATA` what a preset replaces of a table."""


class Preset(Strict):
    """What a preset changes; a key left out is the table's. `subsets` is a count, `methods` names of rows; `draws`: so many points of each grid,
    drawn at random."""

    description: str
    encoder: str
    data: str = "glue"
    methods: tuple[str, ...] | None = None
    tasks: tuple[str, ...] | None = None
    sizes: tuple[Size, ...] | None = None
    subsets: Few | None = None
    seeds: tuple[Seed, ...] | None = None
    draws: Few | None = None
    recipe: Recipe = Recipe()
    pre_train: PreTrain | None = None
    translator: str | None = None
    mlm_head: MlmHead | None = None
    max_length: Length | None = None
    selection_every: Every | None = None
    comparable: bool = False


class Table(Strict):
    """One table, published where it has a source. `sizes`: total labelled examples, 0 the full training set; none: any size, and what the protocol
    says by default; without `tasks` the request names them; `columns` by column id. `task_recipes`: what the recipe is for some of the tasks; a
    preset's recipe goes over it. `selection_every`: updates between two evaluations on dev, 'last' for the last update alone, or '0.5 epochs'.
    `encoder_preset`: of a request that names an encoder which no preset has, and no preset.

    `paper`: size -> row -> column -> [value, spread] in the paper's units; values times `paper_unit.value`, spreads times
    `paper_unit.spread`, lie in [0, 1]. `origin`: where each value comes from, by its path or a pattern ('recipe.*.lr'); a packaged table
    gives one for every value. `averages`: rows printed after the others by name, each with those that its cells are the means of; their
    spread is that of all runs which count in these.
    """

    model_config = ConfigDict(protected_namespaces=())

    class Unit(Strict):
        value: Positive = 1.0
        spread: Positive = 1.0

    name: str
    title: str
    source: Source | None = None
    protocol: Annotated[str, one_of("protocol", PROTOCOLS)]
    origin: dict[str, Origin] = Field(default_factory=dict)
    recipe: Recipe
    task_recipes: tuple[TaskRecipe, ...] = ()
    pre_train: PreTrain | None = None
    encoder_settings: EncoderSettings = EncoderSettings()
    translator: str = ""
    max_length: Length = 128
    selection_every: Every = 100
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
    default_preset: str = "quick"
    encoder_preset: str = ""
    presets: dict[str, Preset]

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Table:
        """Each row with a grid becomes its configurations. Errors that name a row by its place come before."""
        object.__setattr__(self, "rows", tuple(each for row in self.rows for each in row.configurations))
        titles = list(dict.fromkeys(row.title for row in self.rows))
        self._check_rows(titles)
        self._check_names(titles)
        self._check_recipe()
        return self

    def _check_rows(self, titles: list[str]) -> None:
        """`titles`: of the rows that are printed."""
        names = [row.name for row in self.rows]
        for index, row in enumerate(self.rows):
            if row.name in names[:index]:
                raise MisplacedError(["rows", index, "name"], f"the row '{row.name}' is given twice; keep one")
            if row.configuration_of in names:
                wrong = f"the row '{row.configuration_of}' is run itself; give the printed row another name"
                raise MisplacedError(["rows", index, "configuration_of"], wrong)
            for size in self.sizes or (0,):
                if self.figure:
                    self.figure.x_of(row, size)
        if self.aggregate.select != "none" and titles == names:
            raise MisplacedError(["aggregate", "select"], "no row has configurations to select from; give rows a grid")
        if self.averages and self.aggregate.average != "none":
            raise MisplacedError(["averages"], "a table has means of rows or an Avg of columns, not both")
        if both := self.averages.keys() & {*titles}:
            raise MisplacedError(["averages", *both], "a row has this name")

    def _check_names(self, titles: list[str]) -> None:
        """Raises MisplacedError for a name of something that the table does not have. `titles`: the rows that are printed."""
        columns = [*self.columns, *([AVERAGE] if self.aggregate.average != "none" else [])]
        for index, row in enumerate(self.rows):
            _check(row.tasks, self.tasks, "task", "rows", index, "tasks")
        for index, group in enumerate(self.aggregate.average_over or ()):
            group = (group,) if isinstance(group, str) else group
            _check(group, self.columns, "column", "aggregate", "average_over", index)
        for column, spec in self.columns.items():
            _check([spec.task], self.tasks, "task", "columns", column, "task")
            if task := TASKS.get(spec.task):
                with placed("columns", column):
                    spec.check(task)
        _check(self.tasks, {spec.task for spec in self.columns.values()}, "task with a column", "tasks")
        for name, members in self.averages.items():
            _check(members, titles, "row", "averages", name)
        _check(self.paper, self.sizes, "size", "paper")
        for size, rows in self.paper.items():
            _check(rows, [*titles, *self.averages], "row", "paper", size)
            for name, cells in rows.items():
                _check(cells, columns, "column", "paper", size, name)
        _check([self.default_preset], self.presets, "preset", "default_preset")
        _check([self.encoder_preset] if self.encoder_preset else [], self.presets, "preset", "encoder_preset")
        for preset, changes in self.presets.items():
            _check((changes.sizes if self.sizes else None) or (), self.sizes, "size", "presets", preset, "sizes")
            _check(changes.methods or (), titles, "row", "presets", preset, "methods")
        left = [*self.tasks]
        for index, each in enumerate(self.task_recipes):
            _check(each.tasks, left, "task", "task_recipes", index, "tasks")
            left = [task for task in left if task not in each.tasks]

    def _check_recipe(self) -> None:
        pre_trained = any(row.pre_train for row in self.rows)
        for phase in PHASES if pre_trained else PHASES[:2]:
            for names in (("lr",), ("batch_size",), ("steps",) if phase == "pre_train" else ("epochs", "steps")):
                if not any(f"{phase}.{name}" in self.recipe.values for name in names):
                    raise MisplacedError(["recipe", phase, names[0]], f"the recipe needs {phase}.{' or '.join(names)}")
        if pre_trained and self.pre_train is None:
            raise MisplacedError(["pre_train"], "rows with pre_train need a corpus: pre_train: {corpus: NAME}")

    def preset_for(self, encoders: tuple[str, ...] | None) -> str:
        """The preset of a request that names none, but these encoders."""
        if not encoders or not self.encoder_preset:
            return self.default_preset
        return next((name for name, each in self.presets.items() if (each.encoder,) == encoders), self.encoder_preset)

    def under(self, preset: Preset, names: Iterable[str] = (*DATA, *DESIGN)) -> Table:
        """The table with what a preset changes of the named keys."""
        changes = {name: getattr(preset, name) for name in names}
        return self.model_copy(update={name: value for name, value in changes.items() if value not in (None, ())})


def table_names() -> tuple[str, ...]:
    """The names of the packaged tables, sorted."""
    return tuple(sorted(packaged_files("benchmarks")))


def load_table(name_or_path: str | Path, where: str = "") -> Table:
    """A packaged table by name, or a user's own by path, as `load_named` says. `where`: how errors name who asked for it."""
    return load_named(name_or_path, Table, "benchmarks", "table", where)
