"""A context that methods make chains for: CONTEXT's encoder has an MLM head, HEADLESS' has a trained one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.methods import Method, RunContext, hyperparameters, mlm_head_stage
from harness.methods import chain as chained
from harness.specs import Data, Encoder, Optim, Parent, RowSet, Selection, Stage

ENCODER = Encoder("e" * 32, "tiny")
CONTEXT = RunContext(
    task="toy",
    size=100,
    subset=2,
    seed=31,
    data=Data(
        RowSet("b" * 32, "toy/train", 100, 50.0),
        num_labels=2,
        max_length=96,
        dev=RowSet("d" * 32, "toy/dev", 500, 50.0),
        tests=(RowSet("f" * 32, "toy/test", 300, 50.0),),
    ),
    unlabelled=Data(RowSet("a" * 32, "toy/train-texts", 100, 50.0), max_length=96),
    fine_tune=Optim(1e-5, 64, 700),
    post_train=Optim(2e-5, 256, 650),
    selection=Selection("accuracy"),
    encoder=ENCODER,
    translated=Data(RowSet("9" * 32, "toy/train-texts/views", 100, 50.0), max_length=96, views=2),
)
HEAD = mlm_head_stage(ENCODER, RowSet("c" * 32, "prose", 9000, 500.0), Optim(1e-3, 32, 100), 64, 0, frozen=True)
HEADLESS = replace(CONTEXT, mlm_head=Parent(HEAD))


def chain(method: Method, context: RunContext = CONTEXT, **values: Any) -> tuple[Stage, ...]:
    return chained([(method, hyperparameters(method, values, "test"))], context)


def keys(method: Method, context: RunContext = CONTEXT, **values: Any) -> list[str]:
    return [stage.key for stage in chain(method, context, **values)]
