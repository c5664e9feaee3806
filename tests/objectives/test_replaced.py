"""Replaced tokens: what is masked, sampled and cropped, which loss reaches which weights, and the terms by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor, nn

from harness.encoders.models.batch import Batch
from harness.encoders.models.weights import checked_weights
from harness.encoders.tokens import Examples, Tokens
from harness.methods import METHODS, UnlabelledPhase, hyperparameters
from harness.objectives import replaced
from harness.specs import Data, Encoder, Parent, RowSet, Stage
from harness.training.loop import train

CPU = torch.device("cpu")


def batch(folder: Path, rows: int = 9) -> Tokens:
    return tiny.tokens(folder, tiny.texts(rows, seed=4)[0])


class TestSampling:
    def place(self, module: Any, folder: Path, uniforms: Tensor) -> tuple[Batch, Tensor]:
        """(a batch with one masked position as often as there are uniforms, the auxiliary's distribution there)."""
        given = module.prepare(Examples(batch(folder)), None, tiny.draw_of()).on(CPU)
        where = given["where"][:1]
        module.auxiliary.eval()
        with torch.no_grad():
            law = module.auxiliary.logits(module.auxiliary(given)[where]).double().softmax(dim=1)[0]
        module.auxiliary.train()
        arrays = {**given.arrays, "where": where.expand(len(uniforms)), "drawn": uniforms}
        found = replace(given, arrays=arrays)
        vars(found)["at_predicted"] = found.__getitem__
        return found, law

    @pytest.mark.parametrize("name", ["electra-narrow", "coco_lm"])
    def test_frequencies_follow_the_distribution(self, name: str, bert: Path) -> None:
        module, size = tiny.built(bert, tiny.OBJECTIVES[name], dropout=0.3), 20_000
        given, law = self.place(module, bert, torch.from_numpy(np.random.default_rng(0).random(size)))
        drawn = module.sample(given)
        found = torch.bincount(drawn, minlength=len(law)) / size
        assert ((found - law).abs() <= 4 * (law * (1 - law) / size).sqrt() + 1 / size).all()
        grid = (torch.arange(size, dtype=torch.float64) + 0.5) / size  # every word exactly as often as it is due
        counts = torch.bincount(module.sample(self.place(module, bert, grid)[0]), minlength=len(law))
        assert (counts - size * law).abs().max() <= 1

    def test_nothing_and_more_rows_than_are_held_at_once(self, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        module = tiny.built(bert, tiny.OBJECTIVES["coco_lm"])
        uniforms = torch.from_numpy(np.random.default_rng(1).random(10))
        given, _ = self.place(module, bert, uniforms)
        whole = module.sample(given)
        monkeypatch.setattr(replaced, "SAMPLED_AT_ONCE", 3)
        assert torch.equal(module.sample(given), whole)
        assert len(module.sample(self.place(module, bert, uniforms[:0])[0])) == 0

    def test_without_dropout_and_without_torchs_generator(self, bert: Path) -> None:
        """A stream of its own decides, so that what comes after has the same dropout whatever was masked."""
        module, calm = (tiny.built(bert, tiny.OBJECTIVES["coco_lm"], dropout=dropout) for dropout in (0.5, 0.0))
        views = module.prepare(Examples(batch(bert)), None, tiny.draw_of())
        given = views.on(CPU)
        torch.manual_seed(1)
        before = torch.get_rng_state()
        graph: list[bool] = []
        hook = module.auxiliary.register_forward_hook(lambda *_: graph.append(torch.is_grad_enabled()))
        drawn = module.sample(given)
        hook.remove()
        assert graph == [False]
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.equal(module.sample(given), drawn)
        assert torch.equal(calm.sample(given), drawn)
        assert not drawn.requires_grad
        assert all(part.training for part in module.modules())
        assert not torch.equal(module.auxiliary(given), module.auxiliary(given))  # dropout is back

    def test_with_dropout_it_draws_from_the_pass_that_trains(self, bert: Path) -> None:
        """ELECTRA, number by number: one pass of the auxiliary network for its loss and for the replacements."""
        module = tiny.built(bert, tiny.OBJECTIVES["electra-dropout"], dropout=0.5)
        views = module.prepare(Examples(batch(bert)), None, tiny.draw_of())
        passes: list[Tensor] = []
        logits_of = module.auxiliary.logits
        module.auxiliary.logits = lambda hidden: passes.append(logits_of(hidden)) or passes[-1]
        replace_of, filled = module.replace, []
        module.replace = lambda *given: filled.append(replace_of(*given)) or filled[-1]
        terms, ((main, _),) = module(views.on(CPU)), filled
        assert len(passes) == 1
        laws = passes[0].detach().double().softmax(dim=1).tolist()
        expected = []
        where = np.flatnonzero(views.placed["predicted"])
        for law, u in zip(laws, views.placed["drawn"][where].tolist(), strict=True):
            below = np.cumsum(law)
            expected.append(next(word for word, total in enumerate(below) if total > u * below[-1]))
        assert main.ids[where].tolist() == expected
        cross_entropy = nn.functional.cross_entropy(passes[0], torch.from_numpy(views.placed["targets"][where]))
        assert terms["auxiliary_mlm"].item() == pytest.approx(cross_entropy.item(), rel=1e-6)


class TestGradients:
    def reached(self, module: Any, term: Tensor) -> set[str]:
        named = dict(module.named_parameters())
        found = torch.autograd.grad(term, list(named.values()), retain_graph=True, allow_unused=True)
        return {name for name, gradient in zip(named, found, strict=True) if gradient is not None and gradient.any()}

    @pytest.mark.parametrize("name", ["electra-narrow", "coco_lm"])
    def test_which_term_reaches_what(self, name: str, bert: Path) -> None:
        module = tiny.built(bert, tiny.changed(name, p_m=0.4))
        terms = module(module.prepare(Examples(batch(bert)), None, tiny.draw_of()).on(CPU))
        names = {n for n, _ in module.named_parameters()}
        auxiliary = {n for n in names if n.startswith("auxiliary.")}
        shared = {n for n in names if n.startswith("encoder.model.bert.embeddings.")}
        encoder = {n for n in names if n.startswith("encoder.model.bert.")}
        assert self.reached(module, terms["auxiliary_mlm"]) == auxiliary | shared
        assert self.reached(module, terms["rtd"]) == encoder | {"detector.weight"}
        for other in terms.keys() - {"auxiliary_mlm", "rtd"}:
            assert self.reached(module, terms[other]) == encoder


class TestConverged:
    def stages(self, folder: Path, **values: Any) -> tuple[Stage, Stage]:
        stage, _ = tiny.post_training(folder)
        assert isinstance(stage.init, Encoder)
        data = Data(RowSet("texts", "texts"), max_length=64)
        method = hyperparameters(
            METHODS["coco_lm"], {"replacements": "converged", "contrast_group": 4, **values}, "test"
        )
        text = UnlabelledPhase(data, tiny.optim(), 1, stage.init, "post")
        first, second = method.train(text)
        return first, second

    @pytest.mark.parametrize(("kind", "auxiliary"), [("bert", "narrow"), ("roberta", "shallow")])
    def test_the_parents_auxiliary_stays_as_it_is(
        self, auxiliary: str, kind: str, folders: dict[str, Path], tmp_path: Path
    ) -> None:
        folder = folders[kind]
        first, second = self.stages(folder, auxiliary=auxiliary)
        _, inputs = tiny.post_training(folder)
        place = tiny.worker_setup(folder, tmp_path)
        records = [tiny.record_of(stage, inputs, place) for stage in (first, second)]
        assert [(record.status, record.reason) for record in records] == [("done", "")] * 2
        weights = checked_weights(place.storage, first.key)[0]
        whole = {n: t for n, t in weights.items() if n.startswith("encoder/")}
        assert all(torch.equal(t, whole[n]) for n, t in tiny.encoder(folder).parts().items() if n in whole)
        assert not any(n.startswith("auxiliary/") for n in checked_weights(place.storage, second.key)[0])

        module = tiny.built(folder, second.objective)
        fresh = module.auxiliary.parts()
        module.load_parts(weights, second.init.parts if isinstance(second.init, Parent) else ())
        taken = module.auxiliary.parts()
        assert all(torch.equal(weights[n], t) for n, t in taken.items())
        assert any(not torch.equal(fresh[n], t) for n, t in taken.items())
        outcome = train(module, inputs, second.optim, 1)
        assert all(torch.equal(weights[n], t) for n, t in module.auxiliary.parts().items())
        assert [e["loss"] for e in outcome.history] == [e["loss"] for e in records[1].history]
