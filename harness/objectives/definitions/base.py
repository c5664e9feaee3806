"""The base of the definitions, and the FLOPs that most of them share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from harness.encoders.families import family_of
from harness.encoders.flops import TRAIN, forward_flops, mlm_head_flops
from harness.specs import Objective

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


@dataclass(frozen=True, kw_only=True)
class Definition:
    """An objective with its parameters, which are the fields of a subclass: what a plan knows of it.

    A parameter that equals its default is in no key: declare one with a default where it has no effect in some settings.
    `version` is part of every stage's key: raise it by hand when the code changes a value. `module`: the class that trains
    it, in the module of harness.objectives that is named as the definition's own. `labelled`: it trains on labels. `fitted`: scikit-learn fits it, so that it
    has no updates and no weights; `encoded`: it reads an encoder; `encodes_once`: each row of a stage goes through it once, however often it is trained on or
    evaluated. `captured`: a GPU may repeat the operators of one update for the next ones (`harness check` says whether it may). `source`, `code`: digest and text of a file from outside, set when it is read. `retired`:
    parameters that had other values once, with the one that is left: they stay in its key.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    module: ClassVar[str]
    labelled: ClassVar[bool] = False
    fitted: ClassVar[bool] = False
    encoded: ClassVar[bool] = True
    encodes_once: ClassVar[bool] = False
    captured: ClassVar[bool] = True
    retired: ClassVar[Mapping[str, Any]] = {}
    source: ClassVar[str] = ""
    code: ClassVar[str] = ""

    @property
    def spec(self) -> Objective:
        """Its identity."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        params = {field.name: values[field.name] for field in fields(self) if values[field.name] != field.default}
        return Objective(self.name, self.version, {**params, **self.retired}, self.source, self.code)

    def flops(self, config: Config, size: StepSize) -> float:
        """FLOPs of a training step of that size: encoder and MLM head are trained."""
        once = forward_flops(config, size.encoded, size.encoded_squares)
        return TRAIN * (once + mlm_head_flops(config, size.predicted))

    def expected(self, rows: float, length: float) -> StepSize:
        """The size of a step over `rows` sequences of `length` tokens (of one view, where data hold several), before any text
        is read."""
        return StepSize.of(rows, length)

    def step_flops(self, config: Config, rows: float, length: float) -> float:
        """FLOPs of a training step, before any text is read."""
        return self.flops(config, self.expected(rows, length))

    def unmet(self, config: Config) -> str | None:
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

    def headless(self, config: Config) -> str | None:
        """Why a row is skipped for an encoder of a kind that has no MLM head; or None."""
        family = family_of(config)
        if family.mlm or not self.mlm_head:
            return None
        return f"{family.title} encoders have no MLM head, so they can be fine-tuned but not post-trained with one"


def narrow_embeddings(config: Config) -> str | None:
    """How embeddings and states differ in width; None where they do not."""
    width, size = config.get("embedding_size"), config.get("hidden_size")
    if not width or width == size:
        return None
    return f"its embeddings have {width} dimensions and its states {size}"
