"""TACO: its contrast token by token from the library's padded states, its draws, and its MLM part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from objectives.formulas import paired

from harness.encoders.models.batch import Batch
from harness.encoders.tokens import Examples, Tokens
from harness.objectives.losses import token_alignment
from harness.specs import Objective

CPU = torch.device("cpu")
TACO = ["taco", "taco-concentrated"]
KINDS = [(kind, name) for kind, name in tiny.ALLOWED if name in TACO]


def changed(name: str, **params: Any) -> Objective:
    spec = tiny.OBJECTIVES[name]
    return replace(spec, params={**spec.params, **params})


def batch(folder: Path, rows: int = 10) -> Tokens:
    return tiny.tokens(folder, tiny.texts(rows, seed=4)[0])


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_against_padded_states(kind: str, name: str, folders: dict[str, Path]) -> None:
    module, tokens = tiny.built(folders[kind], tiny.OBJECTIVES[name]), batch(folders[kind])
    views = module.prepare(Examples(tokens), None, tiny.draw_of())
    found = module(views.on(CPU))["contrast"].item()

    plain = tiny.plain_model(folders[kind]).eval()
    base = getattr(plain, plain.base_model_prefix)
    padded = tiny.padded(tokens, views.ids, pad=plain.config.pad_token_id)
    if kind in ("roberta", "mpnet"):
        del padded["token_type_ids"]
    with torch.no_grad():
        states = base(**padded, output_hidden_states=True).hidden_states
        h, e = states[-1], states[0]
        if kind == "electra":
            e = base.embeddings_project(e) if e.shape[-1] != h.shape[-1] else e
    g, terms = h - e, []
    negatives = paired(views.placed["negatives"])
    for b, length in enumerate(tokens.lengths):
        for i in range(length):
            if not views.placed["anchors"][b, i]:
                continue
            j = views.placed["positives"][b, i]
            others = [(b, j), *negatives[b, i].tolist()]
            found_cosines = torch.stack([F.cosine_similarity(g[b, i], g[s, t], dim=0) for s, t in others])
            terms.append(-(found_cosines / 0.07).log_softmax(0)[0].item())
    assert found == pytest.approx(np.mean(terms), abs=2e-5)

    real = padded["attention_mask"].bool()
    anchors = torch.from_numpy(views.placed["anchors"])
    draws = torch.from_numpy(views.placed["positives"]), torch.from_numpy(negatives)
    options = {"temperature": 0.07, "anchors": anchors}
    assert found == pytest.approx(token_alignment(h, e, *draws, real, **options).item(), abs=1e-5)


@pytest.mark.parametrize("token_prediction", [False, True])
@pytest.mark.parametrize("name", TACO)
def test_the_mlm_part_is_mlm(name: str, token_prediction: bool, bert: Path) -> None:
    """At equal seed: the same view, the same positions, the same term."""
    tokens = batch(bert)
    taco = tiny.built(bert, changed(name, token_prediction=token_prediction))
    mlm = tiny.built(bert, tiny.OBJECTIVES["mlm-tp" if token_prediction else "mlm"])
    for step in (1, 2, 3):
        a, b = (module.prepare(Examples(tokens), None, tiny.draw_of(1, step)) for module in (taco, mlm))
        assert np.array_equal(a.ids, b.ids)
        assert np.array_equal(a.predicted["where"], b.predicted["where"])
        assert np.array_equal(a.predicted["targets"], b.predicted["targets"])
        assert a.flops > b.flops
        found, expected = (m(v.on(CPU))["masked_lm"] for m, v in ((taco, a), (mlm, b)))
        assert torch.equal(found, expected)


@pytest.mark.parametrize("name", TACO)
def test_anchors_and_draws(name: str, bert: Path) -> None:
    module, tokens = tiny.built(bert, tiny.OBJECTIVES[name]), batch(bert)
    masked = tiny.built(bert, tiny.OBJECTIVES["mlm"]).prepare(Examples(tokens), None, tiny.draw_of()).predicted["where"]
    views = module.prepare(Examples(tokens), None, tiny.draw_of())
    everywhere = np.arange(len(tokens.ids))
    negatives = paired(views.placed["negatives"])
    real = np.arange(max(tokens.lengths)) < tokens.lengths[:, None]
    assert not views.placed["anchors"][~real].any()
    found = np.flatnonzero(views.placed["anchors"][real])
    assert np.array_equal(found, masked if name == "taco-concentrated" else everywhere)
    for b, length in enumerate(tokens.lengths):
        drawn, place = views.placed["positives"][b, :length], np.arange(length)
        assert ((drawn >= 0) & (drawn < length)).all()
        assert (abs(drawn - place) <= 2).all()
        assert (drawn != place).all()
        sequence, position = np.moveaxis(negatives[b, :length], -1, 0)
        assert (sequence != b).all()
        assert (sequence // 4 == b // 4).all()
        assert (position < tokens.lengths[sequence]).all()
        assert (negatives[b, length:] == -1).all()


def test_the_embedding_is_what_went_into_the_first_layer(bert: Path) -> None:
    """With its dropout: a second pass of the embedding layer would have another."""
    module = tiny.built(bert, tiny.OBJECTIVES["taco"], dropout=0.5)
    views = module.prepare(Examples(batch(bert)), None, tiny.draw_of())
    given = Batch.of(views.tokens, CPU, views.ids)
    entered: list[torch.Tensor] = []
    module.encoder.base.embeddings.register_forward_hook(lambda _, __, out: entered.append(out[0, : len(views.ids)]))
    _, embedded = module.encoder.forward_with_embeddings(given)
    assert len(entered) == 1
    assert torch.equal(embedded, entered[0])
    assert (embedded == 0).float().mean() > 0.3


def test_negatives_of_other_groups_do_not_matter(bert: Path) -> None:
    """A change of the last group's texts leaves the first groups' draws and terms alone."""
    module, texts = tiny.built(bert, tiny.OBJECTIVES["taco"]), [("w1 w2 w3 w4",)] * 8
    values = []
    for word in ("w5", "w6"):
        tokens = tiny.tokens(bert, [*texts, (f"{word} {word} {word} {word}",)])
        views = module.prepare(Examples(tokens), None, tiny.draw_of())
        views.placed["anchors"][-1] = False
        values.append(module(views.on(CPU))["contrast"].item())
    assert values[0] == pytest.approx(values[1], abs=1e-6)
