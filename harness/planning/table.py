"""A published table as data: rows, columns, recipe, replicates, aggregation, the paper's own numbers, and presets.

One YAML file under `benchmarks/` each, read by `load_table`. `resolve` (in `resolve.py`) turns a table and a request into one
flat object.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from harness.encoders import SIZES
from harness.encoders.sources import NEW, NEW_TOKENIZER
from harness.errors import unknown
from harness.planning.aggregation import AVERAGE, Aggregation
from harness.planning.recipe import (
    PHASES,
    Count,
    EncoderSettings,
    Every,
    Few,
    Length,
    MlmHead,
    Number,
    OfEncoder,
    Origin,
    Positive,
    PreTrain,
    Recipe,
    Seed,
    Size,
    StartsFrom,
    TaskRecipe,
)
from harness.planning.row import Row
from harness.tasks.metrics import METRICS, check_metric
from harness.tasks.protocols import PROTOCOLS
from harness.tasks.task import TASKS, Task
from harness.yaml_files import MisplacedError, Strict, load_named, one_of, packaged_files, placed

TASK_RECIPES = "task_recipes"
TOKENIZER = "encoder.tokenizer"


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
    metric: str
    evaluation: str = "test"
    title: str
    test_rows: Count | None = None

    def check(self, task: Task | None) -> None:
        """Raises MisplacedError for a metric or an evaluation that `task` (None: a user's, not read yet) does not have."""
        if task is None:
            _check(self.metric, METRICS, "metric", "metric")
            return
        with placed("metric"):
            check_metric(self.metric, task.kind, f"task {task.name}")
        with placed("evaluation"):
            if self.evaluation not in task.evaluations:
                raise unknown("evaluation", self.evaluation, task.evaluations, f"task {task.name}")


def _check(name: object, known: Iterable[object], kind: str, *loc: int | str) -> None:
    """Raises MisplacedError for a name that is not known."""
    names = [str(each) for each in known]
    if str(name) not in names:
        raise MisplacedError(loc, str(unknown(kind, str(name), names)))


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
        if self.x == HOURS or (self.x == "pre_train_step" and not row.pre_train):
            return None
        if self.x == SIZE:
            value: object = size
        else:
            value = getattr(row, self.x) if self.x in ("unlabelled", "pre_train_step") else row.set.get(self.x)
        with placed("figure"):
            if self.x == SIZE and not size:
                raise MisplacedError(["x"], "a full training set has no size to stand at; give sizes by number")
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise MisplacedError(["x"], f"the row '{row.name}' sets no number {self.x}; every row of a figure does")
            if self.log and value <= 0:
                raise MisplacedError(["log"], f"the row '{row.name}' has {self.x} {value}; leave log out")
        return float(value)


def _listed(value: object) -> object:
    return ",".join(map(str, value)) if isinstance(value, list) else value


class Preset(Strict):
    """What a preset changes; a key left out is the table's. `encoder`: one, or a list of several, whose rows make one table. `subsets` is a count, `methods` names of rows; `draws`: so many
    points of each grid, drawn at random."""

    description: str
    encoder: Annotated[str, BeforeValidator(_listed)]
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
    max_length: Length | None = None
    selection_every: Every | None = None
    comparable: bool = False


class Table(Strict):
    """One table, published where it has a source. `sizes`: total labelled examples, 0 the full training set; none: any size, and what
    the protocol says by default; without `tasks` the request names them; `columns` by column id. `task_recipes`: what the recipe is for some of the tasks; a preset's recipe goes over it. `selection_every`: updates
    between two evaluations on dev, 'last' for the last update alone, or '0.5 epochs'. `encoder_preset`: the preset of a request that names an encoder which no preset has, and no
    preset.

    `paper`: size -> row -> column -> [value, spread] in the paper's units; values times `paper_unit.value`, spreads times
    `paper_unit.spread`, lie in [0, 1]. `origin`: where each value comes from, by its path or a pattern ('recipe.*.lr'); a
    table that gives origins gives one for every value. `encoders`: what it has for other sizes of new encoders, under presets and overrides. `averages`: rows printed after the others by name, each with those that its
    cells are the means of; their spread is that of all runs which count in these.
    """

    model_config = ConfigDict(protected_namespaces=())

    class Unit(Strict):
        value: Positive = 1.0
        spread: Positive = 1.0

        def converted(self, pair: PaperValue) -> tuple[float, float | None]:
            """(value, spread) with 1 for 100 %."""
            value, spread = pair
            return round(value * self.value, 10), None if spread is None else round(spread * self.spread, 10)

    name: str
    title: str
    source: Source | None = None
    protocol: Annotated[str, one_of("protocol", PROTOCOLS)]
    origin: dict[str, Origin] = Field(default_factory=dict)
    recipe: Recipe
    task_recipes: tuple[TaskRecipe, ...] = ()
    pre_train: PreTrain | None = None
    starts_from: StartsFrom | None = None
    encoder_settings: EncoderSettings = EncoderSettings()
    encoders: dict[str, OfEncoder] = Field(default_factory=dict)
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
        rows = tuple(each for row in self.rows for each in row.configurations)
        object.__setattr__(self, "rows", rows)
        titles, names = list(dict.fromkeys(row.title for row in rows)), [row.name for row in rows]
        for index, row in enumerate(rows):
            with placed("rows", index):
                for place, task in enumerate(row.tasks):
                    _check(task, self.tasks, "task", "tasks", place)
                if row.name in names[:index]:
                    raise MisplacedError(["name"], f"the row '{row.name}' is given twice; keep one")
                if row.configuration_of in names:
                    wrong = f"the row '{row.configuration_of}' is run itself; give the printed row another name"
                    raise MisplacedError(["configuration_of"], wrong)
        if self.aggregate.select != "none" and titles == names:
            raise MisplacedError(["aggregate", "select"], "no row has configurations to select from; give rows a grid")
        self._check_names(titles)
        self._check_recipe()
        self._check_origins()
        return self

    def _check_names(self, titles: list[str]) -> None:
        """Raises MisplacedError for a name of nothing that the table has. `titles`: the rows that are printed."""
        averaged, drawn = self.aggregate.average != "none", [*titles, *self.averages]
        printed = [*self.columns, *([AVERAGE] if averaged else [])]
        for index, group in enumerate(self.aggregate.average_over or ()):
            for column in (group,) if isinstance(group, str) else group:
                _check(column, self.columns, "column", "aggregate", "average_over", index)
        for column, spec in self.columns.items():
            _check(spec.task, self.tasks, "task", "columns", column, "task")
            with placed("columns", column):
                spec.check(TASKS.get(spec.task))
        for index, task in enumerate(self.tasks):
            _check(task, {spec.task for spec in self.columns.values()}, "task with a column", "tasks", index)
        for name, members in self.averages.items():
            for index, member in enumerate(members):
                _check(member, titles, "row", "averages", name, index)
            with placed("averages", name):
                if name in titles:
                    raise ValueError("a row has this name")
                if len(members) == 1:
                    raise ValueError("names one row; give several")
                if averaged:
                    raise ValueError("a table has means of rows or an Avg of columns, not both")
        for size, rows in self.paper.items():
            _check(size, self.sizes, "size", "paper", size)
            for name, cells in rows.items():
                _check(name, drawn, "row", "paper", size, name)
                for column in cells:
                    _check(column, printed, "column", "paper", size, name, column)
        for key in ("default_preset", *(["encoder_preset"] if self.encoder_preset else [])):
            _check(getattr(self, key), self.presets, "preset", key)
        for preset, changes in self.presets.items():
            for index, size in enumerate((changes.sizes if self.sizes else None) or ()):
                _check(size, self.sizes, "size", "presets", preset, "sizes", index)
            for index, name in enumerate(changes.methods or ()):
                _check(name, titles, "row", "presets", preset, "methods", index)
        for size_of_new in self.encoders:
            _check(size_of_new, SIZES, "size of a new encoder", "encoders", size_of_new)

    def _check_recipe(self) -> None:
        for index, spec in enumerate(self.task_recipes):
            for place, task in enumerate(spec.tasks):
                with placed("task_recipes", index, "tasks", place):
                    _check(task, self.tasks, "task")
                    if any(task in other.tasks for other in self.task_recipes[:index]):
                        raise ValueError(f"{task} has a recipe already; keep one")
        pre_trained = any(row.pre_train for row in self.rows)
        for phase in PHASES if pre_trained else PHASES[:2]:
            given = getattr(self.recipe, phase).model_dump(exclude_none=True)
            for names in (("lr",), ("batch_size",), ("steps",) if phase == "pre_train" else ("epochs", "steps")):
                if not any(name in given for name in names):
                    raise MisplacedError(["recipe", phase, names[0]], f"the recipe needs {' or '.join(names)}")
        if pre_trained and self.pre_train is None:
            raise MisplacedError(["pre_train"], "rows with pre_train need a corpus: pre_train: {corpus: NAME}")
        texts: list[tuple[list[Any], PreTrain | None, Recipe]] = [(["pre_train"], self.pre_train, Recipe())]
        texts += [(["presets", name, "pre_train"], each.pre_train, each.recipe) for name, each in self.presets.items()]
        places: list[tuple[list[Any], Sequence[int], Recipe]] = [
            (["rows", index, "pre_train_step"], [row.pre_train_step or 0], row.recipe)
            for index, row in enumerate(self.rows)
        ]
        places += [([*loc, "save_at"], text.save_at, recipe) for loc, text, recipe in texts if text]
        for loc, updates, recipe in places if pre_trained else ():
            step, steps = max(updates, default=0), self.recipe.patched(recipe).pre_train.steps
            if step and not (isinstance(steps, int) and step <= steps):
                raise MisplacedError(loc, f"{step} is not among the {steps} updates of recipe.pre_train.steps")
        if self.figure:
            for row, size in itertools.product(self.rows, self.sizes or (0,)):
                self.figure.x_of(row, size)

    def _check_origins(self) -> None:
        values = stated(self) if self.origin else {}
        for pattern in self.origin:
            if not any(fnmatchcase(path, pattern) for path in values):
                _check(pattern, values, "value", "origin", pattern)
        for path in values:
            patterns = matching(self.origin, path)
            if len(patterns) != 1:
                several = (
                    f"matches {' and '.join(patterns)}; keep one" if patterns else "has no origin: give P, R, C or D"
                )
                raise MisplacedError(["origin", *patterns[1:2]], f"{path} {several}")

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

    def of_encoder(self, encoder: str) -> OfEncoder:
        """What the table has for an encoder by its name ('new:coco-lm-large++@bert-tiny')."""
        return self.encoders.get(encoder.partition("@")[0].removeprefix(NEW), OfEncoder())

    def origin_for(self, encoder: str) -> dict[str, str]:
        """The origin of each value by its path or a pattern, for an encoder."""
        return self.origin | self.of_encoder(encoder).origin

    def recipe_for(self, encoder: str) -> Recipe:
        """The table's recipe for an encoder."""
        return self.recipe.patched(self.of_encoder(encoder).recipe)

    def encoder_under(self, preset: Preset, encoder: str) -> dict[str, int]:
        """The table's settings of an encoder, and over them the preset's."""
        settings = (self.encoder_settings, self.of_encoder(encoder).encoder_settings, preset.encoder_settings)
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


def stated(table: Table, preset: Preset | None = None, encoder: str = "") -> dict[str, Any]:
    """Every value that a table states, by path; encoder and data are those of `preset` (None: its reference), and all that it changes where it is
    comparable. `encoder`: another, for which the table may have other values."""
    reference = preset or table.reference
    size = encoder or reference.encoder
    found: dict[str, Any] = {**_encoder(reference.encoder), "data": reference.data}
    found |= {f"encoder.{name}": value for name, value in table.encoder_under(reference, size).items()}
    for phase in PHASES:
        fields = getattr(table.recipe_for(size), phase).model_dump(exclude_none=True)
        found |= {f"recipe.{phase}.{name}": value for name, value in fields.items()}
    for spec in table.task_recipes:
        for phase in PHASES:
            fields = getattr(spec, phase).model_dump(exclude_none=True)
            found |= {f"{TASK_RECIPES}.{'+'.join(spec.tasks)}.{phase}.{name}": value for name, value in fields.items()}
    translator = table.translator if reference.translator is None else reference.translator
    found |= {"translator": translator} if translator else {}
    text = reference.pre_train or table.pre_train
    found |= {f"pre_train.{name}": value for name, value in _text(text).items()} if text else {}
    found |= _start(reference.starts_from or table.starts_from)
    found |= {"grids": "of the rows"} if any(row.configuration_of for row in table.rows) else {}
    for name in ("max_length", "selection_every", "sizes", "subsets", "seeds"):
        found[name] = (getattr(reference, name) if reference.comparable else None) or getattr(table, name)
    return found | {f"aggregate.{name}": value for name, value in table.aggregate.stated.items()}


def _encoder(name: str) -> dict[str, str]:
    """The name of an encoder; one with new weights, 'new:SIZE@TOKENIZER', in two parts."""
    if "," in name:  # several
        return {"encoder": name}
    size, _, tokenizer = name.partition("@")
    return {"encoder": size, TOKENIZER: tokenizer or NEW_TOKENIZER} if name.startswith(NEW) else {"encoder": name}


def _text(pre_train: PreTrain) -> dict[str, Any]:
    """The text of pre-training; all of the corpus goes without saying, and which weights are stored on the way changes no number."""
    return pre_train.model_dump(exclude={"save_at", *(["fraction"] if pre_train.fraction == 1 else [])})


def _start(starts_from: StartsFrom | None) -> dict[str, Any]:
    values = starts_from.model_dump() if starts_from else {}
    return {f"starts_from.{name}": value for name, value in values.items()}


def matching(origin: Mapping[str, str], path: str) -> list[str]:
    """The patterns of `origin` ('recipe.*.lr') that a path fits; a table has exactly one for each of its values."""
    return [pattern for pattern in origin if fnmatchcase(path, pattern)]


def origin_of(origin: Mapping[str, str], path: str) -> str:
    """The origin of a value, or '' where there is none."""
    return next((origin[pattern] for pattern in matching(origin, path)), "")
