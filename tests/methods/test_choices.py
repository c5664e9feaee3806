"""What a method says that it decides: never stale, the same for the same computation, and all of what docs/papers.md lists."""

from __future__ import annotations

import re
import typing
from pathlib import Path
from typing import Any

import pytest
from methods.contexts import every_hyperparameter

from harness.contract.methods import alternatives, effective_with, keys, needed_with
from harness.errors import UserError
from harness.methods import METHODS, Method, hyperparameters

PAPERS = Path(__file__).resolve().parents[2] / "docs/papers.md"
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


DECISIONS: dict[str, tuple[str, dict[str, Any], str]] = {
    "S1": ("scl", {}, "mean over all anchors"),
    "S2": ("scl", {}, "one alone in its class adds 0"),
    "S3": ("scl", {}, "softmax cross-entropy"),
    "S4": ("scl", {}, "raw first token with dropout active"),
    "S6": ("scl", {}, "temperature 0.3"),
    "C1": ("cmlm", {"contrast": "simclr"}, "view 0 as the anchor"),
    "C2": ("cmlm", {}, "printed exponential"),
    "C3": ("cmlm", {}, "predictor initialised as the encoder"),
    "C5": ("cmlm", {}, "of view 0 alone"),
    "C6": ("cmlm", {}, "other views masked 80/10/10"),
    "C7": ("cmlm", {}, "special tokens never masked"),
    "C8": ("cmlm", {}, "a draw for each token"),
    "C9": ("cmlm", {"masking": "independent"}, "independent masks with probability 0.7"),
    "C10": ("cmlm", {}, "a mean over the masked tokens"),
    "C11": ("cssl", {}, "SimCLR between the back-translations"),
    "T1": ("taco", {}, "exponential of the cosine"),
    "T2": ("taco", {}, "no gradient through positives and negatives"),
    "T3": ("taco", {}, "with position and dropout"),
    "T5": ("taco", {}, "at most 2 positions away for W = 5"),
    "T6": ("taco", {}, "inside the sequence"),
    "T7": ("taco", {}, "without padding"),
    "T8": ("taco", {}, "contrast within the whole batch"),
    "T9": ("taco", {}, "a mean over all tokens"),
    "T14": ("mlm", {}, "the masked 15 % a draw for each token, 80/10/10"),
    "T19": ("mlm", {"embeddings": "fixed"}, "the words alone fixed"),
    "L1": ("coco_lm", {}, "the printed mixture, not the released"),
    "L2": ("coco_lm", {}, "binary loss a mean over all tokens without padding, not their sum"),
    "L3": ("coco_lm", {}, "without a projection"),
    "L4": ("coco_lm", {}, "contrast within the whole batch"),
    "L5": ("coco_lm", {}, "the first token and 90 % of the others of the original text"),
    "L6": ("electra", {"sampling_dropout": True}, "sampled from it with dropout"),
    "L7": ("coco_lm", {}, "100 % of the masked tokens the mask"),
    "L8": ("mlm", {"mask_special_tokens": True}, "special tokens masked too (COCO-LM, appendix D) except the first"),
    "L9": ("coco_lm", {}, "position embeddings and their norm shared"),
    "L10": ("coco_lm", {}, "no bias in the LM head"),
    "L11": ("coco_lm", {}, "absolute positions kept"),
    "L14": ("coco_lm", {}, "without padding"),
    "L15": ("coco_lm", {"replacements": "converged"}, "trained as long as the main one"),
}
"""A method that says what a row of docs/papers.md decides, where it does, and in which words."""
ELSEWHERE = {
    *("S7", "S8", "S9", "S10", "S11", "S12", "S13", "S14", "S15"),
    *("C12", "C13", "C14", "C15", "C16", "C17", "C18", "C19", "C21", "C22"),
    *("T13", "T15", "T16", "T17", "T18"),
    *("L12", "L13", "L16", "L17", "L18", "L20", "L22", "L24", "L25", "L26", "L27"),
}
"""Rows of protocols, recipes, tables and figures, and those that follow the paper where nothing is open."""


def test_each_decision_of_the_papers_page_is_said() -> None:
    rows = set(re.findall(r"(?m)^\| ([SCTL]\d+) \|", PAPERS.read_text()))
    assert not DECISIONS.keys() & ELSEWHERE
    assert DECISIONS.keys() | ELSEWHERE == rows
    for row, (name, values, phrase) in DECISIONS.items():
        assert phrase in ", ".join(words(name, **values)), row
