"""Two methods that are one computation have one key; a setting without effect is in no key; impossible settings are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from methods.contexts import CONTEXT, HEAD, HEADLESS, chain, keys

from harness.errors import UserError
from harness.methods import METHODS, Method, RunContext, hyperparameters, methods_named
from harness.methods import chain as chained
from harness.specs import Parent

FT, SCL, TAPT, CMLM, MLM = (METHODS[name] for name in ("ft", "scl", "tapt", "cmlm", "mlm"))
CSSL, TACO, ELECTRA, COCO_LM = (METHODS[name] for name in ("cssl", "taco", "electra", "coco_lm"))
BASES = pytest.mark.parametrize("context", [CONTEXT, HEADLESS], ids=["with an MLM head", "with a trained MLM head"])


# ------------------------------------------------------------------------------------------------- one computation


@BASES
def test_cmlm_without_contrast_is_tapt(context: RunContext) -> None:
    """Table 3's 'w/o CL' is Table 1's TAPT: both stages have one key."""
    assert keys(CMLM, context, alpha=0) == keys(TAPT, context)
    assert keys(CMLM, context, alpha=0.0, p_m=0.3) == keys(TAPT, context, p_m=0.3) != keys(TAPT, context)
    assert len(keys(TAPT, context)) == 2


def test_without_contrast_nothing_of_it_has_an_effect() -> None:
    simclr: dict[str, Any] = {"contrast": "simclr", "temperature": 0.5, "contrast_group": 4}
    for values in ({"p_c": 0.1}, {"num_views": 3}, simclr, {"masking": "independent"}, {"mask_only": True}):
        assert keys(CMLM, alpha=0, **values) == keys(TAPT)
    assert keys(CMLM, temperature=0.5, contrast_group=4) == keys(CMLM), "SimSiam has neither"


def test_scl_without_contrast_is_fine_tuning() -> None:
    assert keys(SCL, lam=0) == keys(FT)
    for values in ({"temperature": 0.1}, {"reduction": "sum"}, {"representation": "pooled"}, {"contrast_group": 4}):
        assert keys(SCL, lam=0, **values) == keys(FT)
        assert keys(SCL, **values) != keys(SCL)
    assert keys(SCL) != keys(FT)


@BASES
def test_mlm_as_post_training_is_tapt_and_taco_without_weight_is_mlm(context: RunContext) -> None:
    assert keys(MLM, context) == keys(TAPT, context) == keys(TACO, context, weight=0)
    assert keys(TACO, context, weight=0, token_prediction=True) == keys(MLM, context, token_prediction=True)
    for values in ({"window": 9}, {"num_negatives": 10}, {"concentrated": True}, {"contrast_group": 8}):
        assert keys(TACO, context, weight=0, **values) == keys(MLM, context)
        assert keys(TACO, context, **values) != keys(TACO, context)


@BASES
def test_coco_lm_with_the_binary_loss_alone_is_electra_with_the_shallow_auxiliary_network(context: RunContext) -> None:
    rtd_only = {"lm": "none", "contrast": False}
    assert keys(COCO_LM, context, **rtd_only) == keys(ELECTRA, context, auxiliary="shallow")
    assert keys(COCO_LM, context, **rtd_only, auxiliary="narrow", lambda_copy=20) == keys(
        ELECTRA, context, lambda_rtd=20
    )
    assert keys(COCO_LM, context, **rtd_only, crop_ratio=0.7, temperature=0.1) == keys(COCO_LM, context, **rtd_only)
    assert keys(COCO_LM, context, **rtd_only, replacements="random") != keys(COCO_LM, context, **rtd_only)


@pytest.mark.parametrize(
    ("values", "without"),
    [
        ({"lm": "none"}, {"stop_gradient": False}),
        ({"lm": "softmax"}, {"stop_gradient": False}),
        ({"contrast": False}, {"contrast_group": 8}),
        ({"rtd": False, "lm": "softmax"}, {"lambda_copy": 5}),
        ({"replacements": "random"}, {"auxiliary": "narrow"}),
    ],
    ids=str,
)
def test_what_has_no_effect_in_coco_lm(values: dict[str, Any], without: dict[str, Any]) -> None:
    assert keys(COCO_LM, **values, **without) == keys(COCO_LM, **values)
    assert keys(COCO_LM, **without) != keys(COCO_LM)


def test_a_converged_auxiliary_network_is_carried_over_and_the_encoder_is_not_trained_before() -> None:
    alone, main, fine = chain(COCO_LM, HEADLESS, replacements="converged")
    assert alone.objective.name == "auxiliary_mlm"
    assert (alone.init.stage.key, alone.init.parts) == (HEAD.key, ("encoder", "mlm_head"))
    assert (main.init.stage.key, main.init.parts) == (alone.key, ("encoder", "auxiliary"))
    assert (fine.init.stage.key, fine.init.parts) == (main.key, ("encoder",))


@pytest.mark.parametrize("name", ["scl", "cssl", "taco", "coco_lm"])
def test_the_whole_batch_is_a_group_of_its_size(name: str) -> None:
    """0 is the batch, key included; more than the batch is refused in one sentence."""
    method = METHODS[name]
    size = CONTEXT.fine_tune.batch_size if method.labelled else CONTEXT.post_train.batch_size
    assert keys(method, contrast_group=0) == keys(method, contrast_group=size) != keys(method, contrast_group=4)
    with pytest.raises(UserError) as caught:
        keys(method, contrast_group=size + 1)
    assert str(caught.value) == (
        f"method {name}: contrast_group {size + 1} is larger than the batch of {size}; set {name}.contrast_group to {size} "
        "or less, or to 0 for the whole batch."
    )


# -------------------------------------------------------------------------------------------- one after another


def steps(name: str) -> list[Method]:
    return [method() for method in methods_named(name)]


def test_methods_follow_one_another() -> None:
    """'cmlm+scl' is CMLM's post-training and SCL's fine-tuning; 'cmlm+ft' is CMLM."""
    both = chained(steps("cmlm+scl"), CONTEXT)
    assert both[0].key == chain(CMLM)[0].key
    assert both[1].objective == chain(SCL)[0].objective
    assert [stage.key for stage in chained(steps("cmlm+ft"), CONTEXT)] == keys(CMLM)
    three = chained(steps("tapt+cmlm+scl"), CONTEXT)
    assert [stage.objective.name for stage in three] == ["mlm", "cmlm", "scl"]
    assert three[0].key == keys(TAPT)[0]
    assert (three[1].init.stage.key, three[1].init.parts) == (three[0].key, ("encoder", "mlm_head"))


def test_pre_training_comes_before_and_is_shared() -> None:
    """A pre-trained encoder has its own MLM head, so a trained one is not used."""
    pre_trained = Parent(chain(MLM)[0])
    for context in (CONTEXT, HEADLESS):
        post, _ = chained(steps("cmlm"), context, pre_trained)
        assert (post.init.stage.key, post.init.parts) == (pre_trained.stage.key, ("encoder", "mlm_head"))
        (fine,) = chained(steps("ft"), context, pre_trained)
        assert (fine.init.stage.key, fine.init.parts) == (pre_trained.stage.key, ("encoder",))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cmln", "Did you mean 'cmlm'?"),
        ("cmlm+scll", "Did you mean 'scl'?"),
        ("scl+cmlm", "'scl+cmlm' trains after fine-tuning; only the last method may use labels."),
        ("cmlm+cmlm", "'cmlm+cmlm' names a method twice; keep one of them."),
        ("ft+scl", "only the last method may use labels."),
    ],
)
def test_orders_that_cannot_be(name: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        methods_named(name, "row X")
    assert str(caught.value).startswith("row X")
    assert words in str(caught.value)


# ----------------------------------------------------------------------------------------- what is carried on


def test_post_training_carries_the_mlm_head_where_it_is_trained() -> None:
    for method, values, parts in (
        (TAPT, {}, ("encoder", "mlm_head")),
        (CMLM, {}, ("encoder", "mlm_head")),
        (CMLM, {"alpha": 0}, ("encoder", "mlm_head")),
        (CMLM, {"mlm": False}, ("encoder",)),
        (MLM, {}, ("encoder", "mlm_head")),
        (CSSL, {}, ("encoder",)),
        (TACO, {}, ("encoder", "mlm_head")),
        (ELECTRA, {}, ("encoder",)),
        (ELECTRA, {"auxiliary": "shallow"}, ("encoder", "mlm_head")),
        (COCO_LM, {}, ("encoder", "mlm_head")),
        (COCO_LM, {"replacements": "random"}, ("encoder",)),
    ):
        post, fine = chain(method, HEADLESS, **values)
        if parts == ("encoder",):  # no MLM head is used: the encoder as it is, under a plain key
            assert [post.key, fine.key] == keys(method, CONTEXT, **values)
        else:
            assert (post.init.stage.key, post.init.step, post.init.parts) == (HEAD.key, "last", parts)
        assert (fine.init.stage.key, fine.init.step, fine.init.parts) == (post.key, "last", ("encoder",))


def test_fine_tuning_does_not_depend_on_an_mlm_head() -> None:
    """FT, SCL and CSSL start from the encoder as it is, whatever MLM head it lacks."""
    for method in (FT, SCL, CSSL):
        assert keys(method, HEADLESS) == keys(method, CONTEXT)
        assert chain(method, HEADLESS)[0].init == HEADLESS.encoder


def test_after_a_stage_the_trained_head_is_not_used_again() -> None:
    first, second, _ = chained(steps("tapt+cmlm"), HEADLESS)
    assert first.init.stage.key == HEAD.key
    assert second.init.stage.key == first.key


# ------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("coco_lm", {"lm": "none", "rtd": False, "contrast": False}, "leaves nothing to train"),
        ("coco_lm", {"rtd": False}, "leaves the copy probability untrained"),
        ("coco_lm", {"rtd": False, "lm": "all_token"}, "leaves the copy probability untrained"),
        ("cmlm", {"contrast_group": 1}, "should be 2 or more, or 0 for the whole batch"),
        ("cmlm", {"alpha": 0, "mlm": False}, "leaves nothing to train"),
    ],
)
def test_combinations_that_cannot_be(name: str, values: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        hyperparameters(METHODS[name], values, "here")
    assert words in str(caught.value)
    assert str(caught.value).count("\n") == 0


def test_cssl_skips_without_a_translation_and_says_why() -> None:
    missing = replace(CONTEXT, translated=None, untranslated="no translator is named")
    assert CSSL.skip(missing) == "no translator is named"
    (post, _) = chain(CSSL)
    assert post.data == CONTEXT.translated
    assert (post.data.views, post.objective.params["num_views"]) == (2, 1)


def test_scl_skips_regression_and_methods_without_labels_do_not() -> None:
    regression = replace(CONTEXT, data=replace(CONTEXT.data, num_labels=1))
    assert not [name for name, method in METHODS.items() if not method.labelled and method.skipped(regression)]
    assert METHODS["ft"].skipped(regression) is None
    assert "regression" in (SCL.skipped(regression) or "")
