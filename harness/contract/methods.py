"""The laws of a method: what its stages read, what moves their keys, and that each hyperparameter is described, checked and has an effect."""

from __future__ import annotations

import inspect
import math
import sys
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from harness.contract.law import BrokenLawError, require
from harness.errors import UserError
from harness.methods import Method, RunContext, hyperparameters, mlm_head_stage
from harness.methods import chain as chained
from harness.objectives import DEFINITIONS
from harness.prompts import Prompt
from harness.specs import Data, Encoder, Optim, Parent, RowSet, Selection, Stage
from harness.yaml_files import Strict

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
    prompt=Prompt("{first} It was [MASK].", ("terrible", "great")),
)
HEAD = mlm_head_stage(ENCODER, RowSet("c" * 32, "prose", 9000, 500.0), Optim(1e-3, 32, 100), 64, 0, frozen=True)
HEADLESS = replace(CONTEXT, mlm_head=Parent(HEAD))


def chain(method: Method, context: RunContext = CONTEXT, **values: Any) -> tuple[Stage, ...]:
    return chained([(method, hyperparameters(method, values, "test"))], context)


def keys(method: Method, context: RunContext = CONTEXT, **values: Any) -> list[str]:
    return [stage.key for stage in chain(method, context, **values)]


def candidates(method: Method, name: str) -> list[Any]:
    """Values of a hyperparameter that are not its default, of every kind that its type allows."""
    info = method.Hyperparameters.model_fields[name]
    default, kind = info.default, info.annotation
    if typing.get_origin(kind) is typing.Literal:
        values: list[Any] = list(typing.get_args(kind))
    elif kind is bool:
        values = [not default]
    elif kind is int:
        values = [default + 1, default * 2, default + 4]
    elif kind is float:
        values = [default / 2, default + 0.1]
    elif kind is str:
        values = [f"another {default}", f"{default} <mask>"]
    else:
        raise BrokenLawError(f"{name} should be a number, a bool, a text or a Literal, not {kind}")
    return [value for value in dict.fromkeys(values) if value != default]


def allowed(method: Method, **values: Any) -> bool:
    try:
        method.Hyperparameters(**values)
    except ValidationError:
        return False
    return True


def settings(method: Method, name: str) -> Iterator[dict[str, Any]]:
    """The defaults, then each other hyperparameter at each of its candidates."""
    yield {}
    for other in method.Hyperparameters.model_fields:
        yield from ({other: value} for value in candidates(method, other) if other != name)


@lru_cache
def needed_with(method: Method, name: str) -> dict[str, Any]:
    """What another value of a hyperparameter needs beside it to be valid: nothing, or another hyperparameter."""
    for setting in settings(method, name):
        if any(allowed(method, **setting, **{name: value}) for value in candidates(method, name)):
            return setting
    raise BrokenLawError(f"none of {candidates(method, name)} is allowed for {name}; drop the hyperparameter")


def alternatives(method: Method, name: str) -> list[Any]:
    """Valid values of a hyperparameter that are not its default, beside what `needed_with` says."""
    setting = needed_with(method, name)
    return [value for value in candidates(method, name) if allowed(method, **setting, **{name: value})]


@lru_cache
def effective_with(method: Method, name: str) -> dict[str, Any]:
    """What to set beside a hyperparameter so that each of its values has a key of its own: nothing, or another hyperparameter."""
    values = alternatives(method, name)
    for setting in settings(method, name):
        beside = [setting, *({**setting, name: value} for value in values)]
        if all(allowed(method, **each) for each in beside):
            made = {keys(method, **each)[-1] for each in beside}
            if len(made) == len(beside):
                return setting
    raise BrokenLawError(f"{name} changes no key, whatever other hyperparameter is set; drop it")


# ---------------------------------------------------------------------------------------------------- laws of a method


def it_is_described(method: Method) -> None:
    require(bool(method.title), "it has no title")
    require(any(str(year) in method.citation for year in range(2015, 2030)), "its citation names no year")
    module = sys.modules[method.Hyperparameters.__module__]
    before, found, after = (inspect.getdoc(module) or "").partition("Deviations.")
    require(bool(before.strip()), "its file does not begin with a docstring that says what the method is")
    require(
        bool(found) and len(after.split()) > 10,
        "its docstring has no block 'Deviations.' that says where it departs from its paper",
    )


def its_hyperparameters_are_strict_and_described(method: Method) -> None:
    require(issubclass(method.Hyperparameters, Strict), "Hyperparameters is no subclass of harness.yaml_files.Strict")
    values = method.Hyperparameters().model_dump()
    require(hyperparameters(method, values, "test") == method.Hyperparameters(), "its defaults are no valid values")
    for name, info in method.Hyperparameters.model_fields.items():
        require(info.default is not None, f"{name} has no default")
        require(bool(info.description), f"{name} has no description")


def its_last_stage_fine_tunes_on_the_context_s_data(method: Method) -> None:
    for context in (CONTEXT, HEADLESS):
        leaf = chain(method, context)[-1]
        require(DEFINITIONS[leaf.objective.name].labelled, f"{leaf.objective.name} is not labelled")
        require(replace(leaf.data, prompt=None) == context.data, "it reads other data than the context's")
        require((leaf.selection, leaf.seed) == (context.selection, context.seed), "another selection or seed")
        require((leaf.optim, leaf.phase) == (context.fine_tune, "fine-tune"), "another recipe or phase")


def its_stages_begin_at_the_encoder_and_follow_one_another(method: Method) -> None:
    for context in (CONTEXT, HEADLESS):
        stages = chain(method, context)
        uses_head = context is HEADLESS and isinstance(stages[0].init, Parent)
        whole = (HEAD, *stages) if uses_head else stages
        require(
            [s.key for s in stages[-1].chain] == [s.key for s in whole], "a stage does not start from the one before it"
        )
        require(stages[-1].encoder == ENCODER, "its first stage does not start from the context's encoder")
        for stage in stages:
            require(
                isinstance(stage.init, Encoder) or stage.init.parts[0] == "encoder",
                "a stage leaves the encoder of the one before it",
            )


def its_stages_are_the_same_each_time(method: Method) -> None:
    require(keys(method) == keys(method) and chain(method) == chain(method), "two calls give two chains")


def earlier_stages_read_no_labels(method: Method) -> None:
    """Whatever has to do with labels, selection or fine-tuning leaves their keys alone; the leaf's own change."""
    changes = [
        replace(CONTEXT, data=replace(CONTEXT.data, train=RowSet("1" * 32))),
        replace(CONTEXT, data=replace(CONTEXT.data, dev=RowSet("2" * 32))),
        replace(CONTEXT, data=replace(CONTEXT.data, tests=())),
        replace(CONTEXT, data=replace(CONTEXT.data, num_labels=3)),
        replace(CONTEXT, selection=Selection("mcc", 50)),
        replace(CONTEXT, fine_tune=Optim(9e-5, 64, 700)),
    ]
    *earlier, leaf = chain(method)
    for stage in earlier:
        require(
            not DEFINITIONS[stage.objective.name].labelled,
            f"{stage.objective.name} trains on labels before fine-tuning",
        )
        read = CONTEXT.translated if method.translates else CONTEXT.unlabelled
        require(stage.data == read, f"{stage.objective.name} reads other rows than the context's unlabelled ones")
        require(
            (stage.selection, stage.optim, stage.phase) == (None, CONTEXT.post_train, "post-train"), "another recipe"
        )
    for change in changes:
        require(
            [s.key for s in earlier] == keys(method, change)[:-1],
            "labels, selection or fine-tuning move an earlier key",
        )
        require(leaf.key != keys(method, change)[-1], "its last stage has the same key on other data or another recipe")


def what_a_stage_reads_moves_its_key_and_names_of_cells_do_not(method: Method) -> None:
    texts: dict[str, Any] = {"translated" if method.translates else "unlabelled": Data(RowSet("3" * 32), max_length=96)}
    trains = len(chain(method)) > 1
    for change in (replace(CONTEXT, **texts), replace(CONTEXT, post_train=Optim(9e-5, 256, 650))):
        moved = [a != b for a, b in zip(keys(method), keys(method, change), strict=True)]
        require(moved == [trains] * len(moved), "other texts or another recipe of post-training move the wrong keys")
    assert CONTEXT.translated
    sets = {"data": CONTEXT.data, "unlabelled": CONTEXT.unlabelled, "translated": CONTEXT.translated}
    shorter: dict[str, Any] = {name: replace(data, max_length=64) for name, data in sets.items()}
    for change in (replace(CONTEXT, seed=42), replace(CONTEXT, **shorter), replace(CONTEXT, encoder=Encoder("9" * 32))):
        require(not set(keys(method)) & set(keys(method, change)), "seed, length or encoder leave a key as it was")
    other = replace(CONTEXT, task="other", size=7, subset=3)
    require(keys(method) == keys(method, other), "the name of a task, a size or a subset moves a key")


def it_says_in_a_sentence_what_it_skips(method: Method) -> None:
    require(method.unfit(CONTEXT) is None, "it is not run on classes of texts")
    reason = method.unfit(replace(CONTEXT, data=replace(CONTEXT.data, num_labels=1)))
    require(reason is None or len(reason.split()) > 3, "its reason to skip a task of scores is no sentence")


OF_METHOD: tuple[Callable[[Method], None], ...] = (
    it_is_described,
    its_hyperparameters_are_strict_and_described,
    its_last_stage_fine_tunes_on_the_context_s_data,
    its_stages_begin_at_the_encoder_and_follow_one_another,
    its_stages_are_the_same_each_time,
    earlier_stages_read_no_labels,
    what_a_stage_reads_moves_its_key_and_names_of_cells_do_not,
    it_says_in_a_sentence_what_it_skips,
)

# ---------------------------------------------------------------------------------------------- laws of a hyperparameter


def it_changes_the_key(method: Method, name: str) -> None:
    """At the defaults, or beside one other hyperparameter: then all of its values do, or none."""
    setting, values = effective_with(method, name), alternatives(method, name)
    made = [keys(method, **setting), *(keys(method, **setting, **{name: value}) for value in values)]
    require(len({k[-1] for k in made}) == 1 + len(values), f"two values of {name} have one key")
    if setting and not needed_with(method, name):
        same = all(keys(method, **{name: value}) == keys(method) for value in values)
        require(same, f"{name} has an effect at the defaults for some of its values alone")


def numbers_are_coerced(method: Method, name: str) -> None:
    """An int for a float, a float for an int, text from a command line: one value, one key."""
    kind = method.Hyperparameters.model_fields[name].annotation
    setting = effective_with(method, name)
    examples: dict[Any, Any] = {float: 1, int: 4, bool: True}
    whole = examples.get(kind)
    if isinstance(kind, types.GenericAlias) or whole is None or not allowed(method, **{**setting, name: whole}):
        return
    made = keys(method, **setting, **{name: whole})
    others: tuple[Any, ...] = (float(whole), str(whole))
    for other in others:
        require(keys(method, **setting, **{name: other}) == made, f"{name} {other!r} has another key than {whole!r}")
    value = getattr(hyperparameters(method, {**setting, name: whole}, "x"), name)
    require(type(value) is kind, f"{name} is read as {type(value).__name__}")


def the_objective_holds_it_as_declared(method: Method, name: str) -> None:
    kind = method.Hyperparameters.model_fields[name].annotation
    for stage in chain(method, **effective_with(method, name)):
        held = stage.objective.params.get(name)
        if held is not None and kind in (int, float, bool):
            require(type(held) is kind, f"{stage.objective.name} holds {name} as {type(held).__name__}")


def what_it_cannot_be_is_refused_in_a_sentence(method: Method, name: str) -> None:
    for bad in (math.nan, math.inf, -math.inf, -1, "many words", None, [1]):
        try:
            hyperparameters(method, {name: bad}, "row X")
        except UserError as error:
            text = str(error)
            require(
                text.startswith("row X") and text.endswith(".") and "\n" not in text, f"{name} {bad!r}: no sentence"
            )
        else:
            require(False, f"{name} takes {bad!r}; bound it with Field(gt=0, allow_inf_nan=False) or a Literal")


OF_HYPERPARAMETER: tuple[Callable[[Method, str], None], ...] = (
    it_changes_the_key,
    numbers_are_coerced,
    the_objective_holds_it_as_declared,
    what_it_cannot_be_is_refused_in_a_sentence,
)
