"""What a method says that it decides: never stale, and the same for the same computation."""

from __future__ import annotations

import typing
from typing import Any

import pytest
from methods.contexts import every_hyperparameter

from harness.contract.methods import alternatives, effective_with, keys, needed_with
from harness.errors import UserError
from harness.methods import METHODS, Method, hyperparameters

OFF: dict[str, tuple[dict[str, Any], ...]] = {
    "cmlm": ({"alpha": 0}, {"mlm": False}),
    "scl": ({"lam": 0},),
    "taco": ({"weight": 0},),
    "coco_lm": ({"contrast": False}, {"lm": "none"}, {"replacements": "random"}),
}
"""Settings under which other hyperparameters have no effect."""
UNSAID = {("coco_lm", "stop_gradient")}
"""Switches that the paper describes without a doubt, so that no reading is chosen."""


def words(name: str, **values: Any) -> tuple[str, ...]:
    method = METHODS[name]
    return method.choices(hyperparameters(method, values, "test"))


@every_hyperparameter
def test_what_changes_no_key_changes_no_word(method: Method, name: str) -> None:
    for context in ({}, *OFF.get(method.name, ())):
        for value in () if name in context else alternatives(method, name):
            setting = {**context, **needed_with(method, name), name: value}
            try:
                same = keys(method, **setting) == keys(method, **{k: v for k, v in setting.items() if k != name})
            except UserError:  # the value cannot stand beside the context
                continue
            if same:
                assert words(method.name, **setting) == words(method.name, **context), setting


@every_hyperparameter
def test_each_reading_has_words_of_its_own(method: Method, name: str) -> None:
    """Of a switch or a named reading: no text is left over from another one."""
    kind = method.Hyperparameters.model_fields[name].annotation
    if (kind is not bool and typing.get_origin(kind) is not typing.Literal) or (method.name, name) in UNSAID:
        return
    context = effective_with(method, name)
    said = [words(method.name, **context)]
    said += [words(method.name, **context, **{name: value}) for value in alternatives(method, name)]
    assert len(set(said)) == len(said)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("mlm", {}), ("tapt", {})),
        (("mlm", {}), ("cmlm", {"alpha": 0})),
        (("mlm", {"token_prediction": True}), ("taco", {"weight": 0, "token_prediction": True})),
        (("ft", {}), ("scl", {"lam": 0})),
        (("electra", {"auxiliary": "shallow"}), ("coco_lm", {"lm": "none", "contrast": False})),
    ],
)
def test_one_computation_has_the_same_words_by_any_name(one: Any, other: Any) -> None:
    (name, values), (other_name, other_values) = one, other
    assert keys(METHODS[name], **values) == keys(METHODS[other_name], **other_values)
    assert words(name, **values) == words(other_name, **other_values)
