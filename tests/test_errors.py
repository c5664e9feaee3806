"""Suggestions: a name that is spelled nearly like a known one is answered with it, any other name with the list alone."""

from __future__ import annotations

import itertools

import pytest

from harness.encoders.families import FAMILIES
from harness.errors import nearest, unknown
from harness.methods import METHODS
from harness.tasks import METRICS, TASKS

KNOWN = (*FAMILIES, *METHODS, *TASKS, *METRICS)
FIELDS = ("optim.lr", "fine_tune.lr", "fine_tune.batch_size", "cmlm.alpha", "max_length", "contrast")


@pytest.mark.parametrize("name", [name for name in KNOWN if len(name) > 3])
def test_one_slip_in_a_name_is_near_it(name: str) -> None:
    for i in range(len(name) - 1):
        for slip in (
            name[:i] + name[i + 1 :],
            name[:i] + name[i] + name[i:],
            name[:i] + "#" + name[i + 1 :],
            name[:i] + name[i + 1] + name[i] + name[i + 2 :],
        ):
            assert nearest(slip, [name]) == name
            assert nearest(slip.upper(), [name]) == name


@pytest.mark.parametrize(
    ("name", "meant"),
    [("roberat", "roberta"), ("ccola", "cola"), ("acuracy", "accuracy"), ("f1-macro", "f1_macro"), ("sst-2", "sst2")],
)
def test_the_nearest_is_the_one_that_is_meant(name: str, meant: str) -> None:
    assert nearest(name, [*KNOWN, "f1_macro"]) == meant


@pytest.mark.parametrize(
    "name",
    ["longformer", "funnel", "canine", "t5", "gpt2", "perplexity", "imdb", "dpo", "q", "", "-", "#"],
)
def test_another_name_is_near_to_none(name: str) -> None:
    assert nearest(name, KNOWN) is None
    assert "Did you mean" not in str(unknown("name", name, KNOWN))
    assert str(unknown("name", name, KNOWN)).endswith(f"Known: {', '.join(sorted(KNOWN))}.")


def test_known_names_are_not_taken_for_one_another() -> None:
    """Two known names differ by more than one misspelling, short ones excepted."""
    for names in (FAMILIES, METRICS):
        for one, other in itertools.permutations((name for name in names if len(name) > 4), 2):
            averages = {one, other} <= {"f1_macro", "f1_micro"}  # two letters apart, and each is found as it stands
            assert nearest(one, [other]) is None or other.startswith(one) or one.startswith(other) or averages


def test_a_beginning_stands_for_the_name() -> None:
    assert nearest("cont", FIELDS) == "contrast"
    assert nearest("max_len", FIELDS) == "max_length"
    assert nearest("co", FIELDS) is None


def test_each_part_of_a_dotted_name_has_to_be_near() -> None:
    assert nearest("fine_tune.lrr", FIELDS) == "fine_tune.lr"
    assert nearest("fine_tune.batch", FIELDS) == "fine_tune.batch_size"
    assert nearest("cml.alhpa", FIELDS) == "cmlm.alpha"
    assert nearest("optim.foo", FIELDS) is None
    assert nearest("fine_tune.zz", FIELDS) is None


def test_a_number_is_near_to_none() -> None:
    assert nearest("30", ["20", "100", "300"]) is None


def test_a_long_name_costs_no_time() -> None:
    assert nearest("x" * 10_000_000, KNOWN) is None
