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
from harness.objectives.base import Views
from harness.objectives.losses import sequence_contrastive
from harness.running import run_stage
from harness.specs import Data, Encoder, Objective, Parent, RowSet, Stage
from harness.training.loop import train

CPU = torch.device("cpu")
REPLACED = [name for name, spec in tiny.OBJECTIVES.items() if spec.name in ("electra", "coco_lm")]
SAMPLED = [name for name in REPLACED if "random" not in name and "dropout" not in name]


def changed(name: str, **params: Any) -> Objective:
    spec = tiny.OBJECTIVES[name]
    return replace(spec, params={**spec.params, **params})


def batch(folder: Path, rows: int = 9) -> Tokens:
    return tiny.tokens(folder, tiny.texts(rows, seed=4)[0])


def run(module: Any, views: Views) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(terms, what the encoder's judge was given)."""
    given: dict[str, Any] = {}
    judge = module.judge

    def spy(seen: Any) -> Any:
        given.update(
            hidden=seen.states,
            original=seen.original,
            corrupted=seen.ids,
            masked=torch.zeros_like(seen.ids, dtype=torch.bool).index_fill(0, seen.batch["where"], True),
            first=(seen.first, seen.first_cropped),
        )
        return judge(seen)

    module.judge = spy
    terms = module(views.on(CPU))
    module.judge = judge
    return terms, given


class TestMask:
    @pytest.mark.parametrize(("name", "p_m"), [("coco_lm", 0.15), ("electra-shallow", 0.4), ("auxiliary_mlm", 0.4)])
    def test_a_fixed_count_always_the_mask_never_the_first(self, name: str, p_m: float, bert: Path) -> None:
        module, tokens = tiny.built(bert, changed(name, p_m=p_m)), batch(bert)
        special, counts = 0, []
        for step in range(1, 6):
            views = module.prepare(Examples(tokens), None, tiny.draw_of(1, step))
            where, off = views.predicted["where"], np.ones(len(tokens.ids), dtype=bool)
            off[where] = False
            assert views.tokens is tokens
            assert (views.ids[where] == module.vocabulary.mask_id).all()
            assert np.array_equal(views.ids[off], tokens.ids[off])
            assert np.array_equal(views.predicted["targets"], tokens.ids[where])
            assert not set(where) & set(tokens.offsets[:-1])
            found = np.add.reduceat(~off, tokens.offsets[:-1])
            share = p_m * tokens.lengths
            assert ((found == np.floor(share)) | (found == np.floor(share) + 1)).all()
            special += int(tokens.special[where].sum())
            counts.append(found.sum() / share.sum())
        assert special > 0
        assert np.mean(counts) == pytest.approx(1, abs=0.25)

    @pytest.mark.parametrize("name", REPLACED)
    def test_the_encoder_reads_replacements_where_the_mask_was(self, name: str, bert: Path) -> None:
        module, tokens = tiny.built(bert, changed(name, p_m=0.4)), batch(bert)
        views = module.prepare(Examples(tokens), None, tiny.draw_of())
        _, given = run(module, views)
        where = torch.from_numpy(views.predicted["where"])
        assert torch.equal(given["original"], torch.from_numpy(tokens.ids.astype(np.int64)))
        assert torch.equal(given["masked"].nonzero()[:, 0], where)
        assert not (given["corrupted"] != given["original"])[~given["masked"]].any()
        assert (given["corrupted"] != given["original"])[given["masked"]].float().mean() > 0.5
        if "replacements" in views.predicted:
            assert np.array_equal(given["corrupted"][where], views.predicted["replacements"])


class TestCrop:
    def test_nine_tenths_after_the_first_token(self, bert: Path) -> None:
        module, tokens = tiny.built(bert, tiny.OBJECTIVES["coco_lm"]), batch(bert, 30)
        places = set()
        for step in range(1, 5):
            main = module.prepare(Examples(tokens), None, tiny.draw_of(1, step)).main
            assert len(main) == 60
            assert np.array_equal(main.take(np.arange(30)).ids, tokens.ids)
            for row in range(30):
                whole, part = tokens.take([row]).ids, main.take([30 + row]).ids
                kept = max(1, int(0.9 * (len(whole) - 1)))
                assert part[0] == whole[0]
                assert len(part) == 1 + kept
                starts = [s for s in range(1, len(whole) - kept + 1) if np.array_equal(whole[s : s + kept], part[1:])]
                assert starts
                places.add(starts[0])
        assert len(places) > 1

    def test_a_ratio_of_one_is_the_original(self, bert: Path) -> None:
        """Figure 4's 100 %, 'no cropping': the corrupted sequence is contrasted with the original itself."""
        spec = tiny.of_method("coco_lm", crop_ratio=1)
        module, tokens = tiny.built(bert, spec), batch(bert)
        views = module.prepare(Examples(tokens), None, tiny.draw_of())
        kept = views.main.take(np.arange(9, 18))
        for name in ("ids", "types", "special", "offsets"):
            assert np.array_equal(getattr(kept, name), getattr(tokens, name))
        terms, given = run(module, views)
        original = module.encoder(Batch.of(tokens, CPU))[tokens.offsets[:-1]]
        corrupted = module.encoder(Batch.of(tokens, CPU, given["corrupted"].numpy()))[tokens.offsets[:-1]]
        expected = [
            sequence_contrastive(corrupted[rows], original[rows], temperature=1.0).item() * len(corrupted[rows]) / 9
            for rows in (slice(0, 8), slice(8, 9))
        ]
        assert terms["contrast"].item() == pytest.approx(sum(expected), abs=1e-5)

    @pytest.mark.parametrize("group", [2, 4, 9, 16])
    def test_the_contrast_is_the_mean_over_groups(self, group: int, bert: Path) -> None:
        """Each view through the encoder by itself."""
        module, tokens = tiny.built(bert, changed("coco_lm", contrast_group=group)), batch(bert)
        views = module.prepare(Examples(tokens), None, tiny.draw_of())
        terms, given = run(module, views)
        crops = views.main.take(np.arange(9, 18))
        pair = [
            module.encoder(Batch.of(tokens, CPU, given["corrupted"].numpy()))[tokens.offsets[:-1]],
            module.encoder(Batch.of(crops, CPU))[crops.offsets[:-1]],
        ]
        expected = 0.0
        for start in range(0, 9, group):
            a, b = (view[start : start + group] for view in pair)
            expected += sequence_contrastive(a, b, temperature=1.0).item() * len(a) / 9
        assert terms["contrast"].item() == pytest.approx(expected, abs=1e-5)


class TestSampling:
    def place(self, module: Any, folder: Path, uniforms: Tensor) -> tuple[Batch, Tensor]:
        """(a batch with one masked position as often as there are uniforms, the auxiliary's distribution there)."""
        given = module.prepare(Examples(batch(folder)), None, tiny.draw_of()).on(CPU)
        where = given["where"][:1]
        module.auxiliary.eval()
        with torch.no_grad():
            law = module.auxiliary.logits(module.auxiliary(given)[where]).double().softmax(dim=1)[0]
        module.auxiliary.train()
        return replace(given, arrays={**given.arrays, "where": where.expand(len(uniforms)), "uniforms": uniforms}), law

    @pytest.mark.parametrize("name", ["electra-narrow", "coco_lm", "coco_lm-converged"])
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

    @pytest.mark.parametrize("name", SAMPLED)
    def test_without_dropout_and_without_torchs_generator(self, name: str, bert: Path) -> None:
        """A stream of its own decides, so that what comes after has the same dropout whatever was masked."""
        module, calm = (tiny.built(bert, tiny.OBJECTIVES[name], dropout=dropout) for dropout in (0.5, 0.0))
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
        terms, given = run(module, views)
        assert len(passes) == 1
        laws = passes[0].detach().double().softmax(dim=1).tolist()
        expected = []
        for law, u in zip(laws, views.predicted["uniforms"].tolist(), strict=True):
            below = np.cumsum(law)
            expected.append(next(word for word, total in enumerate(below) if total > u * below[-1]))
        assert given["corrupted"][views.predicted["where"]].tolist() == expected
        cross_entropy = nn.functional.cross_entropy(passes[0], torch.from_numpy(views.predicted["targets"]))
        assert terms["auxiliary_mlm"].item() == pytest.approx(cross_entropy.item(), rel=1e-6)

    def test_with_dropout_it_takes_nothing_from_the_stream_of_other_dropout(self, bert: Path) -> None:
        """The encoder has the dropout that it has where the pass that samples has none; in evaluation the two agree."""
        found = []
        for name in ("electra-shallow", "electra-dropout"):
            module = tiny.built(bert, tiny.OBJECTIVES[name], dropout=0.5)
            views = module.prepare(Examples(batch(bert)), None, tiny.draw_of())
            torch.manual_seed(1)
            trained = run(module, views)[1]["corrupted"]
            state = torch.get_rng_state()
            module.eval()
            found.append((trained, state, run(module, views)[1]["corrupted"]))
        (calm, before, evaluated), (shaken, after, other) = found
        assert not torch.equal(calm, shaken)
        assert torch.equal(before, after)
        assert torch.equal(evaluated, other)

    def test_random_replacements_are_any_words(self, bert: Path) -> None:
        module, drawn = tiny.built(bert, changed("coco_lm-random", p_m=0.9)), []
        assert module.auxiliary is None
        for step in range(1, 30):
            drawn.append(module.prepare(Examples(batch(bert)), None, tiny.draw_of(1, step)).predicted["replacements"])
        assert set(np.concatenate(drawn)) == set(range(module.vocabulary.size))


class TestGradients:
    def reached(self, module: Any, term: Tensor) -> set[str]:
        named = dict(module.named_parameters())
        found = torch.autograd.grad(term, list(named.values()), retain_graph=True, allow_unused=True)
        return {name for name, gradient in zip(named, found, strict=True) if gradient is not None and gradient.any()}

    @pytest.mark.parametrize("name", ["electra-shallow", "electra-narrow", "coco_lm", "coco_lm-no_lm"])
    def test_which_term_reaches_what(self, name: str, bert: Path) -> None:
        module = tiny.built(bert, changed(name, p_m=0.4))
        terms, _ = run(module, module.prepare(Examples(batch(bert)), None, tiny.draw_of()))
        names = {n for n, _ in module.named_parameters()}
        auxiliary = {n for n in names if n.startswith("auxiliary.")}
        shared = {n for n in names if n.startswith("encoder.model.bert.embeddings.")}
        encoder = {n for n in names if n.startswith("encoder.model.bert.")}
        assert self.reached(module, terms["auxiliary_mlm"]) == auxiliary | shared
        assert self.reached(module, terms["rtd"]) == encoder | {"detector.weight"}
        for other in terms.keys() - {"auxiliary_mlm", "rtd"}:
            assert self.reached(module, terms[other]) == encoder

    @pytest.mark.parametrize("stop", [True, False])
    def test_the_copy_probability_in_the_lm_term(self, stop: bool, bert: Path) -> None:
        module = tiny.built(bert, changed("coco_lm", stop_gradient=stop))
        terms, _ = run(module, module.prepare(Examples(batch(bert)), None, tiny.draw_of()))
        assert ("detector.weight" in self.reached(module, terms["lm"])) is not stop

    def test_an_auxiliary_that_has_converged_is_reached_by_nothing(self, bert: Path) -> None:
        module = tiny.built(bert, tiny.OBJECTIVES["coco_lm-converged"])
        terms, _ = run(module, module.prepare(Examples(batch(bert)), None, tiny.draw_of()))
        assert "auxiliary_mlm" not in terms
        module.loss(terms).backward()
        assert all(p.grad is None for p in module.auxiliary.parameters())


class TestTerms:
    @pytest.mark.parametrize("name", [n for n in REPLACED if tiny.OBJECTIVES[n].name == "coco_lm"])
    def test_by_hand(self, name: str, bert: Path) -> None:
        """Token by token, in double precision, from the encoder's states."""
        module = tiny.built(bert, changed(name, p_m=0.4))
        views, params = module.prepare(Examples(batch(bert)), None, tiny.draw_of()), tiny.OBJECTIVES[name].params
        terms, given = run(module, views)
        hidden = given["hidden"].detach().double()
        words = module.encoder.base.embeddings.word_embeddings.weight.detach().double()
        copied = (hidden @ module.detector.weight.detach().double()[0]).sigmoid()
        law = (hidden @ words.T).softmax(dim=1)
        copy, lm = [], []
        for t, (right, read) in enumerate(zip(given["original"].tolist(), given["corrupted"].tolist(), strict=True)):
            keep, q = copied[t], law[t, right]
            copy.append(-(keep if right == read else 1 - keep).log())
            if not (given["masked"][t] or params["lm"] == "all_token"):
                continue
            mixed = (keep if right == read else 0.0) + (1 - keep) * q
            lm.append(-q.log() if params["lm"] == "softmax" else -mixed.log())
        if params["rtd"]:
            assert terms["rtd"].item() == pytest.approx(torch.stack(copy).mean().item(), rel=1e-5)
        assert ("lm" in terms) == (params["lm"] != "none")
        if "lm" in terms:
            assert terms["lm"].item() == pytest.approx(torch.stack(lm).mean().item(), rel=1e-5)
        if "auxiliary_mlm" in terms:
            seen = Batch.of(views.tokens, CPU, views.ids)
            logits = module.auxiliary.logits(module.auxiliary(seen)[views.predicted["where"]])
            expected = nn.functional.cross_entropy(logits, torch.from_numpy(views.predicted["targets"])).item()
            assert terms["auxiliary_mlm"].item() == pytest.approx(expected, rel=1e-5)

    def test_rtd_alone_is_electra(self, bert: Path) -> None:
        """As a method it has ELECTRA's key; as a module it is bit-identical."""
        alone = tiny.of_method("coco_lm", lm="none", contrast=False, lambda_copy=50.0)
        electra = tiny.OBJECTIVES["electra-shallow"]
        assert alone == electra
        coco = changed("coco_lm-no_contrast", lm="none")
        ends = []
        for spec in (electra, coco):
            stage, inputs = tiny.post_training(bert, spec)
            module = tiny.built(bert, spec)
            outcome = train(module, inputs, stage.optim, 1)
            ends.append((module.state_dict(), outcome.history))
        assert ends[0][0].keys() == ends[1][0].keys()
        assert all(torch.equal(ends[0][0][n], ends[1][0][n]) for n in ends[0][0])
        one, other = ({**entry, "measures": None} for _, (entry,) in ends)
        assert one == other


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

    @pytest.mark.parametrize("kind", ["bert", "roberta"])
    @pytest.mark.parametrize("auxiliary", ["shallow", "narrow"])
    def test_the_parents_auxiliary_stays_as_it_is(
        self, auxiliary: str, kind: str, folders: dict[str, Path], tmp_path: Path
    ) -> None:
        folder = folders[kind]
        first, second = self.stages(folder, auxiliary=auxiliary)
        _, inputs = tiny.post_training(folder)
        place = tiny.worker_setup(folder, tmp_path)
        records = [
            run_stage(stage, inputs, tiny.vocabulary(folder), (), place, keep_weights=True) for stage in (first, second)
        ]
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

    def test_a_parent_with_an_auxiliary_of_another_shape(self, bert: Path, tmp_path: Path) -> None:
        first, _ = self.stages(bert, auxiliary="narrow")
        _, second = self.stages(bert, auxiliary="shallow")
        _, inputs = tiny.post_training(bert)
        place = tiny.worker_setup(bert, tmp_path)
        run_stage(first, inputs, tiny.vocabulary(bert), (), place, keep_weights=True)
        wrong = replace(second, init=replace(second.init, stage=first))
        record = run_stage(wrong, inputs, tiny.vocabulary(bert), (), place, keep_weights=False)
        assert record.status == "failed"
        assert "in loading state_dict for Auxiliary" in record.reason
