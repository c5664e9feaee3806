"""Laws of identity: whatever can change a number changes the key, and nothing else does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from harness import specs
from harness.answers import SpanReading
from harness.prompts import Prompt
from harness.specs import UNRESOLVED, Data, Encoder, Objective, Optim, Parent, RowSet, Run, Selection, Stage, digest_of
from harness.storage import WorkerSetup

ENCODER = Encoder("e" * 32, "tiny")
CORPUS = RowSet("c" * 32, "prose", 9000, 500.0)
TEXTS = RowSet("a" * 32, "toy/train-texts", 100, 50.0)
TRAIN = RowSet("b" * 32, "toy/train", 100, 50.0)
DEV = RowSet("d" * 32, "toy/dev", 500, 50.0)
OTHERS = RowSet("9" * 32, "toy/others", 1, 1.0)
TESTS = (RowSet("f" * 32, "toy/matched", 300, 50.0), RowSet("0" * 32, "toy/mismatched", 200, 50.0))

WARM_UP = Stage(Objective("mlm", 1, {"p_m": 0.15}), Data(CORPUS, max_length=64), Optim(1e-3, 32, 100), 0, ENCODER)
POST = Stage(
    Objective("cmlm", 1, {"alpha": 0.5, "num_views": 1, "contrast": "simsiam", "mlm": True}),
    Data(TEXTS),
    Optim(1e-5, 8, 650),
    31,
    Parent(WARM_UP, parts=("encoder", "mlm_head")),
    phase="post-train",
)
FINE = Stage(
    Objective("scl", 1, {"lam": 0.9, "temperature": 0.3}),
    Data(TRAIN, num_labels=2, dev=DEV, tests=TESTS),
    Optim(1e-5, 16, 700),
    31,
    Parent(POST),
    Selection("accuracy"),
    "fine-tune",
)
PLAIN = replace(FINE, objective=Objective("cross_entropy", 1), init=ENCODER)
CHAINS = (PLAIN, WARM_UP, POST, FINE)


# ------------------------------------------------------------------------------------------------- every field by name

PROMPT = Prompt("{first} It was [MASK].", ("terrible", "great"))
OTHER: dict[type, Any] = {
    type(each): each
    for each in (
        Stage(
            *(Objective("cross_entropy", 1), Data(TRAIN, num_labels=3, dev=DEV, tests=TESTS), Optim(2e-5, 16, 700)),
            *(42, ENCODER, None, "another phase"),
        ),
        Objective("other", 2, {"lam": 0.8, "temperature": 0.3}, "7" * 32, "another source"),
        Data(
            *(OTHERS, 1, 64, OTHERS, (OTHERS,), 2, "packed", SpanReading(stride=64), PROMPT, (2.5, 1.25)), ("no", "yes")
        ),
        RowSet("9" * 32, "renamed", 7, 1.5),
        Optim(2e-5, 32, 701, 0.06, "constant", 0.01, 0.0, 0.8, 0.98, 1e-6, 0.0, "bf16", True),
        Selection("mcc", 50),
        Encoder("8" * 32, "renamed", 32, 128),
        Parent(PLAIN, "selected", ("mlm_head",)),
    )
}
"""Another value of every field: with that of a new field its key would stay, and its test fails."""
LABELS = {
    (Stage, "phase"),
    (Data, "classes"),
    (Objective, "code"),
    (RowSet, "name"),
    (RowSet, "rows"),
    (RowSet, "mean_chars"),
    (Encoder, "name"),
}
EVERY = [(kind, f.name) for kind in OTHER for f in fields(kind)]
NUMBERS = [(kind, name) for kind, name in EVERY if type(getattr(OTHER[kind], name)) in (int, float)]


def altered(value: Any, kind: type, name: str, new: Any) -> Any:
    """`value` with field `name` of its first `kind` (itself, or one below it) set to `new`."""
    if type(value) is kind:
        return replace(value, **{name: new})
    if isinstance(value, tuple):
        for index, each in enumerate(value):
            other = altered(each, kind, name, new)
            if other is not each:
                return (*value[:index], other, *value[index + 1 :])
    elif is_dataclass(value):
        for f in fields(value):
            each = getattr(value, f.name)
            other = altered(each, kind, name, new)
            if other is not each:
                return replace(value, **{f.name: other})
    return value


def parts(value: Any) -> Iterator[Any]:
    """Every dataclass in a chain."""
    if isinstance(value, tuple):
        for each in value:
            yield from parts(each)
    elif is_dataclass(value):
        yield value
        for f in fields(value):
            yield from parts(getattr(value, f.name))


def test_every_field_of_a_chain_has_another_value_here() -> None:
    assert {type(part) for part in parts(FINE)} == set(OTHER)
    assert {(kind, f.name) for kind in OTHER for f in fields(kind) if f.metadata.get("label")} == LABELS


def canonical(value: Any) -> Any:
    """What a key is the hash of, naively."""
    if isinstance(value, Stage):
        return value.key
    if is_dataclass(value):
        hashed = [(f, getattr(value, f.name)) for f in fields(value) if not f.metadata.get("label")]
        return {
            f.name: canonical(float(each) if f.type == "float" else each)
            for f, each in hashed
            if "neutral" not in f.metadata or each != f.metadata["neutral"]
        }
    if isinstance(value, dict):
        return {str(name): canonical(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [*map(canonical, value)]
    return float(f"{value:.12g}") or 0.0 if isinstance(value, float) else value


@pytest.mark.parametrize(("kind", "name"), EVERY, ids=lambda x: x if isinstance(x, str) else x.__name__)
def test_every_field_but_labels_changes_the_key_which_goes_through_json(kind: type, name: str) -> None:
    """`digest_of` puts the text together from parts that it keeps."""
    other = altered(FINE, kind, name, getattr(OTHER[kind], name))
    assert other is not FINE
    assert (other.key == FINE.key) == ((kind, name) in LABELS)
    kept = json.loads(json.dumps(other.to_json()))
    kept["data"]["held_out"] = None  # as stores of an earlier version have it
    again = Stage.from_json(kept)
    assert (again, again.key, again.to_json()) == (other, other.key, other.to_json())
    for stage in again.chain:
        named = {f.name: getattr(stage, f.name) for f in fields(stage) if f.name != "phase"}
        text = json.dumps(canonical({"loop": specs.LOOP_VERSION, **named}), sort_keys=True, separators=(",", ":"))
        assert stage.key == hashlib.sha256(text.encode()).hexdigest()[: specs.KEY_LENGTH]


def test_execution_and_labels_of_a_run_are_no_part_of_a_stage() -> None:
    run = Run(FINE, "CMLM", "cmlm", "toy", 100, 2, 31)
    assert replace(run, row="w/o CL", method="tapt", task="x", size=0, subset=9, seed=1).stage.key == FINE.key
    assert (run.name, replace(run, size=0).name) == ("CMLM/toy/n100/subset2/seed31", "CMLM/toy/full/subset2/seed31")
    assert not {f.name for f in fields(WorkerSetup)} & {f.name for f in fields(Stage)}


# --------------------------------------------------------------------------------------------------- numbers as declared


@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=lambda x: x if isinstance(x, str) else x.__name__)
def test_numbers_are_coerced_by_the_declared_type(kind: type, name: str) -> None:
    """1 in a float field is 1.0, and 1.0 in an int field is 1."""
    whole = altered(FINE, kind, name, 1)
    for same in (1.0, np.float32(1.0), np.float64(1.0), np.int64(1)):
        assert altered(FINE, kind, name, same).key == whole.key
    assert (altered(FINE, kind, name, 2).key == whole.key) == ((kind, name) in LABELS)


def test_floats_have_twelve_digits_and_one_zero() -> None:
    def key(lr: float) -> str:
        return replace(FINE, optim=replace(FINE.optim, lr=lr)).key

    assert 0.1 + 0.2 != 0.3
    assert key(0.1 + 0.2) == key(0.3)
    assert key(-0.0) == key(0.0) == key(0)
    assert key(1e-5) == key(0.00001) == key(float(np.float64("1e-5")))
    assert key(1e-5) != key(1.00000001e-5)
    assert digest_of(Optim(1, 16.5, 10)) != digest_of(Optim(1, 16, 10)), "what is no whole number is not made one"
    assert digest_of(np.float32(0.5)) == digest_of(0.5)


NOT_FINITE = [float("nan"), float("inf"), -float("inf"), np.float32("nan")]


@pytest.mark.parametrize("bad", [*NOT_FINITE, object(), {1, 2}, b"bytes", 1j, Optim, np.zeros(2)])
def test_what_is_not_finite_or_has_no_canonical_form_is_refused(bad: Any) -> None:
    for value in (bad, {"a": bad}, [bad], Optim(bad, 16, 10), Objective("scl", 1, {"lam": bad})):
        with pytest.raises(ValueError, match="no canonical form"):
            digest_of(value)
    with pytest.raises(ValueError, match="no canonical form"):
        _ = replace(FINE, optim=replace(FINE.optim, lr=bad)).key


def test_true_is_not_one_and_text_is_no_number() -> None:
    assert len({digest_of({"x": value}) for value in (True, 1, "1", "true", None, "", [], {})}) == 8


# --------------------------------------------------------------------------------------------------------- later fields


def test_a_later_field_leaves_old_keys_alone_at_its_neutral_value() -> None:
    @dataclass(frozen=True)
    class LaterStage(Stage):
        accumulate: int = specs.neutral(1)

    @dataclass(frozen=True)
    class LaterOptim(Optim):
        layer_decay: float = specs.neutral(1.0)

    values = {f.name: getattr(FINE, f.name) for f in fields(Stage)}
    optim = {f.name: getattr(FINE.optim, f.name) for f in fields(Optim)}
    assert LaterStage(**values).key == FINE.key
    assert LaterStage(**values, accumulate=2).key != FINE.key
    assert replace(FINE, optim=LaterOptim(**optim)).key == FINE.key
    assert replace(FINE, optim=LaterOptim(**optim, layer_decay=0.9)).key != FINE.key
    assert replace(FINE, init=Parent(LaterStage(**{f.name: getattr(POST, f.name) for f in fields(Stage)}))).key == (
        FINE.key
    )


def test_the_loops_version_is_in_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {chain.key for chain in CHAINS}
    monkeypatch.setattr(specs, "LOOP_VERSION", specs.LOOP_VERSION + 1)
    assert before.isdisjoint(Stage.from_json(chain.to_json()).key for chain in CHAINS)


# ------------------------------------------------------------------------------------------------------ chains


def test_chain_parent_and_encoder() -> None:
    assert FINE.chain == (WARM_UP, POST, FINE)
    assert all(child.parent is parent for parent, child in pairwise(FINE.chain))
    assert (FINE.parent, WARM_UP.parent, PLAIN.chain) == (POST, None, (PLAIN,))
    assert FINE.encoder == PLAIN.encoder == ENCODER
    assert list(FINE.row_sets) == [TRAIN, DEV, *TESTS]
    assert list(POST.row_sets) == [TEXTS]


def test_what_is_not_at_hand_is_named_once() -> None:
    assert FINE.unresolved == ()
    absent = RowSet(f"{UNRESOLVED}toy/train", "toy/train")
    encoder = Encoder(f"{UNRESOLVED}roberta-base", "roberta-base")
    assert not absent.resolved
    assert not encoder.resolved
    data = Data(absent, num_labels=2, dev=absent, tests=(TESTS[0], RowSet(f"{UNRESOLVED}toy/mm", "toy/mm")))
    leaf = replace(FINE, data=data, init=Parent(replace(POST, data=Data(absent), init=encoder)))
    assert leaf.unresolved == ("encoder roberta-base", "data toy/train", "data toy/mm")
    assert leaf.key != FINE.key


# ------------------------------------------------------------------------------------- parents after a numbered update


def test_each_update_of_a_stage_is_a_parent_of_its_own() -> None:
    """And the last one is the parent that 'last' names, key included; the stage has one key whichever are used."""
    parents = [Parent(POST, step) for step in (1, 5, POST.optim.steps - 1)]
    keys = {replace(FINE, init=parent).key for parent in (*parents, Parent(POST))}
    assert len(keys) == 4
    assert Parent(POST, POST.optim.steps) == Parent(POST)
    assert replace(FINE, init=Parent(POST, POST.optim.steps)).key == replace(FINE, init=Parent(POST)).key
    assert {replace(FINE, init=parent).parent.key for parent in parents} == {POST.key}  # type: ignore[union-attr]
    assert [parent.save_at for parent in (*parents, Parent(POST))] == [(1,), (5,), (POST.optim.steps - 1,), ()]
    leaf = replace(FINE, init=parents[1])
    again = Stage.from_json(json.loads(json.dumps(leaf.to_json())))
    assert (again.key, again.init) == (leaf.key, leaf.init)


@pytest.mark.parametrize("step", [0, -1, 10**9])
def test_an_update_that_a_stage_does_not_have_is_no_parent(step: int) -> None:
    with pytest.raises(ValueError, match=f"after update {step}"):
        Parent(POST, step)
    with pytest.raises(ValueError, match="after update 5"):  # a stage that selects has no numbered weights
        Parent(replace(POST, selection=Selection("accuracy")), 5)
