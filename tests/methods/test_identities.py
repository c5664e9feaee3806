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

Values = dict[str, Any]
RTD_ONLY: Values = {"lm": "none", "contrast": False}
SIMCLR: Values = {"contrast": "simclr", "temperature": 0.5, "contrast_group": 4}


@pytest.mark.parametrize("context", [CONTEXT, HEADLESS], ids=["with an MLM head", "with a trained MLM head"])
@pytest.mark.parametrize(
    ("name", "values", "other", "of_other"),
    [
        ("cmlm", {"alpha": 0}, "tapt", {}),  # Table 3's 'w/o CL' is Table 1's TAPT
        ("cmlm", {"alpha": 0.0, "p_m": 0.3}, "tapt", {"p_m": 0.3}),
        ("mlm", {}, "tapt", {}),
        ("taco", {"weight": 0}, "mlm", {}),
        ("scl", {"lam": 0}, "ft", {}),
        ("coco_lm", RTD_ONLY, "electra", {"auxiliary": "shallow"}),
        ("coco_lm", {**RTD_ONLY, "auxiliary": "narrow", "lambda_copy": 20}, "electra", {"lambda_rtd": 20}),
    ],
)
def test_one_computation(name: str, values: Values, other: str, of_other: Values, context: RunContext) -> None:
    """With one key, also of each stage before the last."""
    assert keys(METHODS[name], context, **values) == keys(METHODS[other], context, **of_other)
    assert not of_other or keys(METHODS[other], context, **of_other) != keys(METHODS[other], context)
    assert not values or keys(METHODS[name], context, **values) != keys(METHODS[name], context)


@pytest.mark.parametrize(
    ("name", "beside", "without"),
    [
        *(
            ("cmlm", {"alpha": 0}, each)
            for each in ({"p_c": 0.1}, {"num_views": 3}, SIMCLR, {"masking": "independent"})
        ),
        ("cmlm", {"contrast": "simsiam"}, {"temperature": 0.5}),
        ("cmlm", {"contrast": "simsiam"}, {"contrast_group": 4}),
        ("scl", {"lam": 0}, {"temperature": 0.1}),
        ("scl", {"lam": 0}, {"reduction": "sum"}),
        ("scl", {"lam": 0}, {"representation": "pooled"}),
        ("scl", {"lam": 0}, {"contrast_group": 4}),
        *(("taco", {"weight": 0}, {key: value}) for key, value in {"window": 9, "num_negatives": 10}.items()),
        *(("taco", {"weight": 0}, {key: value}) for key, value in {"concentrated": True, "contrast_group": 8}.items()),
        ("coco_lm", RTD_ONLY, {"crop_ratio": 0.7, "temperature": 0.1}),
        ("coco_lm", {"lm": "none"}, {"stop_gradient": False}),
        ("coco_lm", {"lm": "softmax"}, {"stop_gradient": False}),
        ("coco_lm", {"contrast": False}, {"contrast_group": 8}),
        ("coco_lm", {"rtd": False, "lm": "softmax"}, {"lambda_copy": 5}),
        ("coco_lm", {"replacements": "random"}, {"auxiliary": "narrow"}),
    ],
    ids=str,
)
def test_what_has_no_effect_is_in_no_key(name: str, beside: Values, without: Values) -> None:
    method = METHODS[name]
    assert keys(method, **beside, **without) == keys(method, **beside)
    assert "simsiam" in beside.values() or keys(method, **without) != keys(method)


def test_a_converged_auxiliary_network_is_carried_over_and_the_encoder_is_not_trained_before() -> None:
    alone, main, fine = chain(METHODS["coco_lm"], HEADLESS, replacements="converged")
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
    with pytest.raises(
        UserError, match=rf"^method {name}: contrast_group {size + 1} is larger .* set {name}\..* to {size} "
    ):
        keys(method, contrast_group=size + 1)


# -------------------------------------------------------------------------------------------- one after another


def steps(name: str) -> list[Method]:
    return [method() for method in methods_named(name)]


def test_methods_follow_one_another() -> None:
    """'cmlm+scl' is CMLM's post-training and SCL's fine-tuning; 'cmlm+ft' is CMLM. The trained MLM head is used once."""
    both = chained(steps("cmlm+scl"), CONTEXT)
    assert both[0].key == chain(METHODS["cmlm"])[0].key
    assert both[1].objective == chain(METHODS["scl"])[0].objective
    assert [stage.key for stage in chained(steps("cmlm+ft"), CONTEXT)] == keys(METHODS["cmlm"])
    first, second, last = chained(steps("tapt+cmlm+scl"), HEADLESS)
    assert [stage.objective.name for stage in (first, second, last)] == ["mlm", "cmlm", "scl"]
    assert first.key == keys(METHODS["tapt"], HEADLESS)[0]
    assert first.init.stage.key == HEAD.key
    assert (second.init.stage.key, second.init.parts) == (first.key, ("encoder", "mlm_head"))


def test_pre_training_comes_before_and_is_shared() -> None:
    """A pre-trained encoder has its own MLM head, so a trained one is not used."""
    pre_trained = Parent(chain(METHODS["mlm"])[0])
    for context in (CONTEXT, HEADLESS):
        post, _ = chained(steps("cmlm"), context, pre_trained)
        assert (post.init.stage.key, post.init.parts) == (pre_trained.stage.key, ("encoder", "mlm_head"))
        (fine,) = chained(steps("ft"), context, pre_trained)
        assert (fine.init.stage.key, fine.init.parts) == (pre_trained.stage.key, ("encoder",))


@pytest.mark.parametrize(
    ("method", "values", "uses_head"),
    [
        ("tapt", {}, True),
        ("cmlm", {}, True),
        ("cmlm", {"mlm": False}, False),
        ("mlm", {}, True),
        ("cssl", {}, False),
        ("taco", {}, True),
        ("electra", {}, False),
        ("electra", {"auxiliary": "shallow"}, True),
        ("coco_lm", {}, True),
        ("coco_lm", {"replacements": "random"}, False),
    ],
)
def test_post_training_starts_from_the_mlm_head_where_it_is_trained(
    method: str, values: Values, uses_head: bool
) -> None:
    """Else from the encoder as it is, under a plain key; fine-tuning always does."""
    post, fine = chain(METHODS[method], HEADLESS, **values)
    if uses_head:
        assert (post.init.stage.key, post.init.step, post.init.parts) == (HEAD.key, "last", ("encoder", "mlm_head"))
    else:
        assert [post.key, fine.key] == keys(METHODS[method], CONTEXT, **values)
    assert (fine.init.stage.key, fine.init.step, fine.init.parts) == (post.key, "last", ("encoder",))
    assert all(keys(METHODS[name], HEADLESS) == keys(METHODS[name], CONTEXT) for name in ("ft", "scl"))


# ------------------------------------------------------------------------------------------------------- refused


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
def test_combinations_that_cannot_be(name: str, values: Values, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        hyperparameters(METHODS[name], values, "here")
    assert str(caught.value).count("\n") == 0


def test_a_method_skips_what_it_has_no_data_for_and_says_why() -> None:
    cssl = METHODS["cssl"]
    assert cssl.skipped(replace(CONTEXT, translated=None, untranslated="none is named")) == "none is named"
    (post, _) = chain(cssl)
    assert post.data == CONTEXT.translated
    assert (post.data.views, post.objective.params["num_views"]) == (2, 1)
    regression = replace(CONTEXT, data=replace(CONTEXT.data, num_labels=1))
    assert not [name for name, method in METHODS.items() if not method.labelled and method.skipped(regression)]
    assert METHODS["ft"].skipped(regression) is None
    assert "regression" in (METHODS["scl"].skipped(regression) or "")
