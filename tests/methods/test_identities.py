"""Two methods that are one computation have one key; what has no effect is in no key; what cannot be is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from methods.targets import TARGET, WARM, WARM_UP, chain, keys

from harness.errors import UserError
from harness.methods import METHODS, hyperparameters
from harness.specs import Encoder, Target

FT, SCL, TAPT, CMLM = (METHODS[name] for name in ("ft", "scl", "tapt", "cmlm"))
BASES = pytest.mark.parametrize("target", [TARGET, WARM], ids=["from the encoder", "after a warm-up"])


# ------------------------------------------------------------------------------------------------- one computation


@BASES
def test_cmlm_without_contrast_is_tapt(target: Target) -> None:
    """Table 3's 'w/o CL' is Table 1's TAPT: both stages have one key."""
    assert keys(CMLM, target, alpha=0) == keys(TAPT, target)
    assert keys(CMLM, target, alpha=0.0, p_m=0.3) == keys(TAPT, target, p_m=0.3) != keys(TAPT, target)
    assert len(keys(TAPT, target)) == 2


@pytest.mark.parametrize(
    "values",
    [
        {"p_c": 0.1},
        {"num_views": 3},
        {"contrast": "simclr"},
        {"contrast": "simclr", "temperature": 0.5},
        {"contrast": "simclr", "contrast_group": 4},
        {"masking": "independent"},
        {"mask_only": True},
    ],
    ids=str,
)
def test_without_contrast_nothing_of_it_has_an_effect(values: dict[str, Any]) -> None:
    assert keys(CMLM, alpha=0, **values) == keys(TAPT)
    assert keys(CMLM, alpha=0.5, **values) != keys(CMLM, alpha=0.5)


def test_scl_without_contrast_is_fine_tuning() -> None:
    assert keys(SCL, lam=0) == keys(FT)
    for values in ({"temperature": 0.1}, {"reduction": "sum"}, {"representation": "pooled"}, {"contrast_group": 4}):
        assert keys(SCL, lam=0, **values) == keys(FT)
        assert keys(SCL, **values) != keys(SCL)
    assert keys(SCL) != keys(FT)


@pytest.mark.parametrize(("name", "value"), [("temperature", 0.5), ("contrast_group", 4)])
def test_what_belongs_to_simclr_alone(name: str, value: float) -> None:
    assert keys(CMLM, **{name: value}) == keys(CMLM)
    assert keys(CMLM, contrast="simclr", **{name: value}) != keys(CMLM, contrast="simclr")
    assert name not in chain(CMLM)[0].objective.params
    assert name in chain(CMLM, contrast="simclr")[0].objective.params


def test_writing_a_default_out_changes_nothing() -> None:
    """Nothing in a key is relative to a default."""
    for method in METHODS.values():
        for name, info in method.Hyperparameters.model_fields.items():
            assert keys(method, **{name: info.default}) == keys(method)


def test_the_rows_of_table_3_are_five_computations() -> None:
    rows: list[dict[str, Any]] = [{}, {"contrast": "simclr"}, {"alpha": 0}, {"mlm": False}, {"masking": "independent"}]
    found = [keys(CMLM, **row) for row in rows]
    assert len({key for pair in found for key in pair}) == 10


def test_all_methods_are_different_computations_at_their_defaults() -> None:
    assert len({keys(method)[-1] for method in METHODS.values()}) == len(METHODS)


# ----------------------------------------------------------------------------------------- what is carried on


def test_post_training_carries_the_mlm_head_where_it_is_trained() -> None:
    for method, values, parts in (
        (TAPT, {}, ("encoder", "mlm_head")),
        (CMLM, {}, ("encoder", "mlm_head")),
        (CMLM, {"alpha": 0}, ("encoder", "mlm_head")),
        (CMLM, {"mlm": False}, ("encoder",)),
    ):
        post, fine = chain(method, WARM, **values)
        assert (post.init.stage.key, post.init.step, post.init.parts) == (WARM_UP.key, "last", parts)
        assert (fine.init.stage.key, fine.init.step, fine.init.parts) == (post.key, "last", ("encoder",))
    for method in (FT, SCL):
        (fine,) = chain(method, WARM)
        assert fine.init == WARM.base
        assert fine.init.parts == ("encoder",)


def test_without_a_warm_up_everything_starts_from_the_encoder() -> None:
    for method in METHODS.values():
        assert chain(method)[0].init == TARGET.base
        assert isinstance(chain(method)[0].init, Encoder)


def test_fine_tuning_after_post_training_is_cross_entropy() -> None:
    for method in (TAPT, CMLM):
        assert [s.objective.name for s in chain(method)][-1] == "cross_entropy"
        assert chain(method)[-1].objective == chain(FT)[0].objective
    assert [s.objective.name for s in chain(CMLM)] == ["cmlm", "cross_entropy"]
    assert dict(chain(TAPT)[0].objective.params) == {"p_m": 0.15}


def test_the_papers_settings_are_the_defaults() -> None:
    """CMLM, section 4.3, and what papers.md decides where the paper is silent."""
    assert METHODS["cmlm"].Hyperparameters().model_dump() == {
        "alpha": 0.5, "p_m": 0.15, "p_c": 0.7, "num_views": 1, "contrast": "simsiam", "temperature": 0.07,
        "masking": "complementary", "mask_only": False, "mlm": True, "contrast_group": 8,
    }  # fmt: skip
    assert METHODS["scl"].Hyperparameters().model_dump() == {
        "lam": 0.9, "temperature": 0.3, "reduction": "mean", "representation": "first_token", "contrast_group": 16,
    }  # fmt: skip
    assert METHODS["tapt"].Hyperparameters().model_dump() == {"p_m": 0.15}
    assert METHODS["ft"].Hyperparameters().model_dump() == {}


# ------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("name", "key", "bad", "words"),
    [
        ("cmlm", "alpha", -0.1, "greater than or equal to 0"),
        ("cmlm", "p_m", 0, "greater than 0"),
        ("cmlm", "p_m", 1.01, "less than or equal to 1"),
        ("cmlm", "p_c", 0, "greater than 0"),
        ("cmlm", "p_c", 70, "less than or equal to 1"),
        ("cmlm", "num_views", 0, "greater than or equal to 1"),
        ("cmlm", "num_views", 1.5, "integer"),
        ("cmlm", "contrast", "simsam", "'simsiam' or 'simclr'"),
        ("cmlm", "temperature", 0, "greater than 0"),
        ("cmlm", "temperature", -0.07, "greater than 0"),
        ("cmlm", "masking", "complement", "'complementary' or 'independent'"),
        ("cmlm", "mask_only", "maybe", "boolean"),
        ("cmlm", "mlm", 2, "boolean"),
        ("cmlm", "contrast_group", 1, "greater than or equal to 2"),
        ("scl", "lam", -0.1, "greater than or equal to 0"),
        ("scl", "lam", 1.1, "less than or equal to 1"),
        ("scl", "temperature", 0, "greater than 0"),
        ("scl", "reduction", "median", "'mean', 'mean_valid' or 'sum'"),
        ("scl", "representation", "last", "'first_token' or 'pooled'"),
        ("scl", "contrast_group", 1, "greater than or equal to 2"),
        ("tapt", "p_m", 0, "greater than 0"),
        ("tapt", "p_m", 2, "less than or equal to 1"),
    ],
)
def test_wrong_ranges_are_refused_in_a_sentence(name: str, key: str, bad: Any, words: str) -> None:
    with pytest.raises(UserError) as caught:
        hyperparameters(METHODS[name], {key: bad}, f"method {name} (row X)")
    message = str(caught.value)
    assert message.startswith(f"method {name} (row X)")
    assert words in message
    assert repr(bad) in message
    assert message.endswith(".")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("cmlm", {"p_m": 1, "p_c": 1}),
        ("cmlm", {"alpha": 1000}),
        ("cmlm", {"num_views": 50, "contrast_group": 2}),
        ("scl", {"lam": 1}),
        ("scl", {"lam": 0}),
    ],
)
def test_the_ends_of_ranges_are_allowed(name: str, values: dict[str, Any]) -> None:
    assert keys(METHODS[name], **values)


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(UserError, match=r"^here: alpha 0 with mlm false leaves nothing to train; set one of them\.$"):
        hyperparameters(CMLM, {"alpha": 0, "mlm": False}, "here")


def test_several_mistakes_are_told_together() -> None:
    with pytest.raises(UserError) as caught:
        hyperparameters(CMLM, {"p_m": 0, "p_c": 0, "alpa": 1}, "here")
    assert len(str(caught.value).splitlines()) == 3
    assert "Did you mean 'alpha'?" in str(caught.value)


def test_scl_skips_regression_and_the_others_do_not() -> None:
    regression = replace(TARGET, data=replace(TARGET.data, num_labels=1))
    assert {name: bool(m.skip(regression)) for name, m in METHODS.items()} == {
        "ft": False, "scl": True, "tapt": False, "cmlm": False
    }  # fmt: skip
    assert "regression" in SCL.skip(regression)
