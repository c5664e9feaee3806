"""What a plan knows of each objective: its typed parameters, its version, what a step of it costs, and what it requires. No torch: plans
use this before anything is loaded."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, Field, ValidationError

from harness.encoders.flops import TRAIN, forward_flops, mlm_head_flops
from harness.errors import UserError, first_line
from harness.specs import Objective, digest_of
from harness.yaml_files import Strict, describe_errors

HEAD = "classifier"
"""The part of a classifier's weights that holds its head."""
WORD_EMBEDDINGS = "word_embeddings"
"""What a stage may take of its parent's encoder instead of all of it."""
Config = Mapping[str, Any]
"""An encoder's configuration, with its numbers under BERT's names."""


@dataclass(frozen=True)
class StepSize:
    """What one training step works on. `tokens` and `squares` (the sum of squared lengths) of the first view, `encoded` and
    `encoded_squares` of everything that goes through the encoder, and the number of `predicted` positions."""

    tokens: float
    squares: float
    encoded: float
    encoded_squares: float
    predicted: float = 0.0

    @classmethod
    def of(cls, rows: float, length: float, *, views: float = 1, predicted: float = 0.0) -> StepSize:
        """Of `rows` sequences of `length` tokens in each of their views, with the share of the first view that is `predicted`."""
        tokens, squares = rows * length, rows * length * length
        return cls(tokens, squares, views * tokens, views * squares, predicted * tokens)


class Definition(Strict):
    """An objective with its parameters, which are the fields of a subclass.

    `version` is part of every stage's key: raise it by hand when the code changes a value. `network`: the class that trains it, as
    'module:Class' of harness.objectives, or a class of the same file. `labelled`: it trains on labels. `fitted`: scikit-learn fits it, so that
    it has no updates and no weights; `encoded`: it reads an encoder; `encodes_once`: each row of a stage goes through it once, however often
    it is trained on or evaluated. `captured`: a GPU may repeat the operators of one update for the next ones (`harness check` says whether it
    may). `neutral`: values of parameters that are in no key. `retired`: parameters that had other values once, with the one that is left:
    they stay in its key. `source`, `code`: digest and text of a file from outside, set when it is read.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    network: ClassVar[str]
    labelled: ClassVar[bool] = False
    fitted: ClassVar[bool] = False
    encoded: ClassVar[bool] = True
    encodes_once: ClassVar[bool] = False
    captured: ClassVar[bool] = True
    neutral: ClassVar[Mapping[str, Any]] = {}
    retired: ClassVar[Mapping[str, Any]] = {}
    source: ClassVar[str] = ""
    code: ClassVar[str] = ""

    @property
    def without_effect(self) -> Collection[str]:
        """Parameters that change nothing beside the others: they are in no key."""
        return ()

    def objective(self, batch_size: int = 0) -> Objective:
        """Its identity, in batches of that size. Raises UserError where its contrast group does not fit into one."""
        return _identity(self, self.version, batch_size)

    def flops(self, config: Config, size: StepSize) -> float:
        """FLOPs of a training step of that size: encoder and MLM head are trained."""
        once = forward_flops(config, size.encoded, size.encoded_squares)
        return TRAIN * (once + mlm_head_flops(config, size.predicted))

    def expected(self, rows: float, length: float) -> StepSize:
        """The size of a step over `rows` sequences of `length` tokens (of one view, where data hold several), before any text
        is read."""
        return StepSize.of(rows, length)

    def refused(self, config: Config) -> str | None:
        """Why an encoder of this configuration cannot be trained, and what to change, in one sentence; or None."""
        return None

    @property
    def mlm_head(self) -> bool:
        """Whether it needs an encoder with an MLM head."""
        return False

    @property
    def inherits(self) -> tuple[str, ...]:
        """The parts of earlier weights that a stage starts from besides the encoder."""
        return ("mlm_head",) if self.mlm_head else ()


@lru_cache(4096)  # one object for thousands of stages, whose canonical form is then computed once
def _identity(known: Definition, version: int, batch_size: int) -> Objective:
    left_out = known.without_effect
    values = {name: value for name, value in {**known.model_dump(), **known.retired}.items() if name not in left_out}
    if batch_size and (group := values.get("contrast_group")) is not None:
        if batch_size < 2:
            raise UserError(
                f"method {known.name}: a batch of {batch_size} leaves nothing to contrast with; take 2 or more."
            )
        if group > batch_size:
            raise UserError(
                f"method {known.name}: contrast_group {group} is larger than the batch of {batch_size}; set "
                f"{known.name}.contrast_group to {batch_size} or less, or to 0 for the whole batch."
            )
        values["contrast_group"] = group or batch_size
    params = {name: value for name, value in values.items() if value != known.neutral.get(name)}
    return Objective(known.name, version, params, known.source, known.code)


DEFINITIONS: dict[str, type[Definition]] = {}
"""Every objective by name: those of the package, and those of the files from outside that were read."""


def objective(name: str, **params: float | int | str | bool) -> Objective:
    """The identity of the objective `name`. Raises KeyError where there is none, and TypeError for parameters that it cannot have."""
    return _definition(DEFINITIONS[name], tuple(params.items())).objective()


def definition_of(spec: Objective) -> Definition:
    """The definition with the parameters of a stage's objective. Raises as `objective` and `defined` do."""
    known = defined(spec)
    return _definition(known, tuple(item for item in spec.params.items() if item[0] not in known.retired))


@lru_cache(4096, typed=True)  # plans ask for that of each stage
def _definition(known: type[Definition], params: tuple[tuple[str, Any], ...]) -> Definition:
    try:
        return known(**dict(params))
    except ValidationError as error:
        raise TypeError(describe_errors(error, f"objective {known.name}", dict(params))) from None


def defined(spec: Objective) -> type[Definition]:
    """The class that defines a stage's objective. A worker process learns one from outside by the stage itself.

    Raises KeyError for an unknown objective, and UserError for one from outside whose file is not at hand or has changed.
    """
    known = DEFINITIONS.get(spec.name)
    if spec.source and (known is None or known.source != spec.source):
        if not spec.code:
            now = f"the file that was read now has {known.source}" if known else "no file was read that defines it"
            raise UserError(
                f"objective {spec.name}: the stage was recorded with the source {spec.source}, and {now}; "
                "name that file with --methods as it was then."
            )
        found = classes_in(run_outside(spec.code, f"the source of objective {spec.name}"), Definition)
        known = DEFINITIONS[spec.name] = found[spec.name]
    return known or DEFINITIONS[spec.name]


def narrow_embeddings(config: Config) -> str | None:
    """How embeddings and states differ in width; None where they do not."""
    width, size = config.get("embedding_size"), config.get("hidden_size")
    if not width or width == size:
        return None
    return f"its embeddings have {width} dimensions and its states {size}"


# --------------------------------------------------------------------------------------------------- contrast groups


def _group(value: int) -> int:
    if value < 0 or value == 1:
        raise ValueError("should be 2 or more, or 0 for the whole batch")
    return value


ContrastGroup = Annotated[
    int, AfterValidator(_group), Field(description="sequences that are contrasted with one another; 0: the whole batch")
]
"""How many sequences of the global batch are contrasted with one another, so that neither the number of workers nor the
size of a device's share changes the method (docs/papers.md D2)."""


# ------------------------------------------------------------------------------------------------ code from outside

OUTSIDE = "harness_outside_"
"""Begins the names of modules that are run from a source, whose digest follows."""
T = TypeVar("T")


def classes_in(module: ModuleType, kind: type[T]) -> dict[str, type[T]]:
    """The named classes of a kind that a module defines."""
    found: list[Any] = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, kind)]
    return {each.name: each for each in found if "name" in vars(each) and each.__module__ == module.__name__}


def run_outside(code: str, file: str) -> ModuleType:
    """The module of a source, run once in a process: another source is another module. `file`: what errors call it.

    Raises UserError for a source that is no Python, and for one that raises an error while it is run.
    """
    name = OUTSIDE + digest_of(code)
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module  # pydantic looks up the annotations of a module while it is run
    try:
        exec(compile(code, file, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if isinstance(error, SyntaxError):
            raise UserError(f"{file}, line {error.lineno}: is no Python ({error.msg}).") from None
        if isinstance(error, UserError):
            raise
        lines = [0, *(frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file)]
        raise UserError(f"{file}, line {lines[-1]}: {type(error).__name__}: {first_line(error)}") from None
    for definition in classes_in(module, Definition).values():
        definition.source, definition.code = digest_of(code), code
    return module
