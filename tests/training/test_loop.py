"""Laws of the training loop: order, schedule, selection, compact vocabulary, determinism, evaluation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.encoders.models.batch import Batch
from harness.encoders.models.weights import weights_digest
from harness.encoders.tokens import Examples
from harness.errors import DivergedError
from harness.kinds import Predictions
from harness.objectives.base import TrainingObjective
from harness.objectives.classification import CrossEntropy
from harness.specs import Stage
from harness.training import forward_backward, loop, result
from harness.training.loop import Inputs, batch_order, mean_terms, predict, schedule, train
from harness.training.result import Scoring, TrainingResult

CPU = torch.device("cpu")


def objective_of(folder: Path, stage: Stage) -> TrainingObjective:
    made: TrainingObjective = tiny.built(folder, stage.objective, seed=stage.seed, dropout=stage.optim.dropout)
    return made


def run(folder: Path, stage: Stage, inputs: Inputs, **options: Any) -> tuple[TrainingObjective, TrainingResult]:
    objective = objective_of(folder, stage)
    scoring = Scoring.of(stage, tiny.METRICS)
    return objective, train(objective, inputs, stage.optim, stage.seed, **{"scoring": scoring, **options})


class TestOrder:
    @settings(max_examples=50)
    @given(size=st.integers(1, 30), batch=st.integers(1, 12), seed=st.integers(0, 5))
    def test_every_epoch_is_a_permutation(self, size: int, batch: int, seed: int) -> None:
        per_epoch = math.ceil(size / batch)
        order: Iterator[Any] = batch_order(size, batch, seed)
        for _ in range(3):
            rows = list(itertools.islice(order, per_epoch))
            assert [len(r) for r in rows[:-1]] == [batch] * (per_epoch - 1)
            assert len(rows[-1]) == size - batch * (per_epoch - 1)  # the small last batch is kept
            assert sorted(np.concatenate(rows)) == list(range(size))

    def test_epochs_and_seeds_differ_and_batch_sizes_do_not(self) -> None:
        orders = [list(itertools.islice(batch_order(20, 20, seed), 2)) for seed in (1, 2)]
        assert len({tuple(rows) for order in orders for rows in order}) == 4
        assert np.array_equal(np.concatenate(list(itertools.islice(batch_order(20, 8, 1), 3))), orders[0][0])


class TestSchedule:
    def test_its_factors(self) -> None:
        assert [schedule(tiny.optim(steps=4), step) for step in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]
        warmed = tiny.optim(steps=10, warmup=0.35)  # 4 steps, rounded up
        expected = [0.25, 0.5, 0.75, 1.0, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]
        assert [schedule(warmed, step) for step in range(10)] == pytest.approx(expected)
        constant = tiny.optim(steps=4, warmup=0.5, schedule="constant")
        assert [schedule(constant, step) for step in range(4)] == [0.5, 1.0, 1.0, 1.0]


class TestParameters:
    @pytest.mark.parametrize("decay_all", [False, True])
    def test_updates_are_those_of_a_naive_adamw(
        self, decay_all: bool, bert: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each number by itself: fairseq's Adam decays biases and norms, Hugging Face's scripts leave them out."""
        settings = {"weight_decay": 0.1, "decay_biases_and_norms": decay_all, "lr": 1e-2, "beta2": 0.98, "eps": 1e-6}
        stage, inputs = tiny.fine_tuning(bert, steps=4, clip=0.0, **settings)
        module = objective_of(bert, stage)
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        expected = {name: p.detach().double().clone() for name, p in module.named_parameters()}
        moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in expected.items()}
        taken = [0]
        step = torch.optim.AdamW.step

        def spy(self: torch.optim.AdamW, *arguments: Any, **options: Any) -> Any:
            taken[0] += 1
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is None:
                        continue
                    name, gradient, rate = names[id(parameter)], parameter.grad.double(), group["lr"]
                    first, second = moments[name]
                    first.mul_(0.9).add_(0.1 * gradient)
                    second.mul_(0.98).add_(0.02 * gradient**2)
                    free = name.endswith("bias") or "LayerNorm" in name
                    if decay_all or not free:
                        expected[name] *= 1 - rate * 0.1
                    corrected = (second / (1 - 0.98 ** taken[0])).sqrt() + 1e-6
                    expected[name] -= rate * first / (1 - 0.9 ** taken[0]) / corrected
            return step(self, *arguments, **options)

        monkeypatch.setattr(torch.optim.AdamW, "step", spy)
        train(module, inputs, stage.optim, stage.seed)
        assert taken == [4]
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(parameter.detach().double(), expected[name], rtol=1e-5, atol=1e-6)


class TestCompact:
    @staticmethod
    def words(objective: TrainingObjective) -> Any:
        return objective.encoder.model.get_input_embeddings()

    @pytest.mark.parametrize("kind", ["bert", "electra"])
    def test_the_librarys_embedding_is_back(self, kind: str, folders: dict[str, Path]) -> None:
        stage, inputs = tiny.fine_tuning(folders[kind])
        objective = objective_of(folders[kind], stage)
        words = self.words(objective)
        before, names = words.weight.detach().clone(), set(dict(objective.named_parameters()))
        train(objective, inputs, stage.optim, 1, scoring=Scoring.of(stage, tiny.METRICS))
        assert self.words(objective) is words
        assert type(words) is torch.nn.Embedding
        assert set(dict(objective.named_parameters())) == names
        assert objective.encoder.model.get_output_embeddings().weight is words.weight
        seen = torch.zeros(len(words.weight), dtype=torch.bool)
        seen[torch.as_tensor(inputs.train.tokens.ids.astype(np.int64))] = True
        moved = (words.weight != before).any(dim=1)
        assert not moved[~seen].any()
        assert moved[seen].all()
        assert 0 < int(seen.sum()) < len(seen)

    def test_where_words_are_predicted_the_table_stays_whole(self, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """MLM; and a prompt, by the MLM head or by the embeddings: label words and separators are in no training text."""
        monkeypatch.setattr(loop, "compact", lambda *_: pytest.fail("compacted"))
        run(bert, *tiny.post_training(bert, steps=2))
        for head in ("mlm", "embeddings"):
            run(bert, *tiny.fine_tuning(bert, tiny.of_method("prompt", head=head), steps=2))
        monkeypatch.setattr(CrossEntropy, "uses_mlm_head", True)  # as a loss from outside may say of itself
        run(bert, *tiny.fine_tuning(bert, steps=2))


class TestDeterminism:
    @staticmethod
    def once(
        name: str, bert: Path, seed: int, noise: int, precision: str = "fp32"
    ) -> tuple[str, list[Any], list[bytes]]:
        spec = tiny.OBJECTIVES[name]
        make = tiny.fine_tuning if name in tiny.SUPERVISED else tiny.post_training
        stage, inputs = make(bert, spec, seed=seed, steps=6, precision=precision)
        torch.manual_seed(noise)
        np.random.seed(noise)
        torch.randn(noise)
        objective, outcome = run(bert, stage, inputs)
        logits = [p.logits.tobytes() for p in outcome.predictions.values()]
        return weights_digest({**objective.encoder.parts(), **objective.parts()}), outcome.history, logits

    @pytest.mark.parametrize("name", ["scl", "prompt", "frozen_head", "simcse", "taco", "coco_lm"])
    def test_twice_the_same_bits(self, name: str, bert: Path) -> None:
        """One of each kind: that each objective repeats its losses is a law of the contract."""
        for precision in ("fp32", "fp16")[: 2 if name in ("scl", "coco_lm") else 1]:
            assert self.once(name, bert, 1, 77, precision) == self.once(name, bert, 1, 3, precision)

    def test_dropout_has_a_stream_of_its_own_at_each_step(self, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        seeds: list[int] = []
        seeded = forward_backward.seed_dropout
        monkeypatch.setattr(
            forward_backward, "seed_dropout", lambda seed, device: (seeds.append(seed), seeded(seed, device))
        )
        for seed in (1, 2):
            stage, inputs = tiny.post_training(bert, seed=seed, steps=4)
            train(objective_of(bert, stage), inputs, stage.optim, seed)
        assert len(set(seeds)) == len(seeds) == 8

    def test_the_learning_curve_has_every_update_of_a_short_stage(self, bert: Path) -> None:
        stage, inputs = tiny.fine_tuning(bert, every=8)
        _, outcome = run(bert, stage, inputs)
        assert [entry["step"] for entry in outcome.history] == [8, 12]
        points = [point for entry in outcome.history for point in entry["curve"]["loss"]]
        assert [step for step, _ in points] == list(range(1, 13))
        for entry, steps in zip(outcome.history, (slice(0, 8), slice(8, 12)), strict=True):
            assert entry["loss"] == pytest.approx(np.mean([loss for _, loss in points[steps]]))


class TestSelection:
    @pytest.fixture
    def events(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """'dev' or 'test' for each evaluation, 'step' for each update, in their order."""
        found: list[str] = []
        step, predicted = torch.optim.AdamW.step, loop.predict

        def stepped(self: torch.optim.AdamW, *arguments: Any, **options: Any) -> Any:
            found.append("step")
            return step(self, *arguments, **options)

        def evaluated(
            objective: TrainingObjective, evaluation: tuple[Examples, Any], *rest: Any, **named: Any
        ) -> tuple[Predictions, float]:
            found.append({30: "dev", 25: "test"}[len(evaluation[0])])
            return predicted(objective, evaluation, *rest, **named)

        monkeypatch.setattr(torch.optim.AdamW, "step", stepped)
        monkeypatch.setattr(loop, "predict", evaluated)
        return found

    @pytest.mark.parametrize(
        ("steps", "every", "expected"), [(14, 4, [4, 8, 12, 14]), (5, 1, [1, 2, 3, 4, 5]), (3, 100, [3])]
    )
    def test_when_it_is_evaluated(
        self, steps: int, every: int, expected: list[int], bert: Path, events: list[str]
    ) -> None:
        stage, inputs = tiny.fine_tuning(bert, steps=steps, every=every)
        _, outcome = run(bert, stage, inputs)
        assert [entry["step"] for entry in outcome.history] == expected
        wanted = [e for i in range(1, steps + 1) for e in (["step", "dev"] if i in expected else ["step"])]
        assert events == [*wanted, "test"]  # the test set once, after everything else

    @pytest.mark.parametrize(
        ("scores", "chosen", "tied"),
        [([0.5, 0.7, 0.7, 0.6, 0.7], 2, 3), ([0.5, 0.5, 0.6], 3, 1), ([0.0, 0.0, 0.0], 1, 3)],
    )
    def test_the_first_best_is_kept(
        self, scores: list[float], chosen: int, tied: int, bert: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        coming = iter(scores)
        monkeypatch.setattr(result, "score", lambda *_: next(coming))
        stage, inputs = tiny.fine_tuning(bert, steps=2 * len(scores), every=2)
        objective, outcome = run(bert, stage, inputs)
        assert (outcome.selected_step, outcome.tied) == (2 * chosen, tied)
        assert outcome.dev_scores == {"accuracy": scores[chosen - 1]}
        assert [entry["dev"]["accuracy"] for entry in outcome.history] == scores
        for digest, evaluation in inputs.evaluations.items():
            again, _ = predict(objective, evaluation, "fp32", CPU)
            assert np.array_equal(again.logits, outcome.predictions[digest].logits), digest
            assert np.array_equal(outcome.predictions[digest].gold, evaluation[1])

    def test_without_selection_the_last_state_is_kept_and_nothing_predicted(
        self, bert: Path, events: list[str]
    ) -> None:
        stage, inputs = tiny.post_training(bert, steps=5)
        _, outcome = run(bert, stage, inputs)
        assert outcome.selected_step == 5
        assert events == ["step"] * 5
        assert not outcome.predictions


class TestEvaluation:
    @pytest.mark.parametrize(("precision", "near"), [("fp32", 2e-6), ("bf16", 2e-2), ("fp16", 3e-3)])
    def test_in_the_original_order(self, precision: str, near: float, bert: Path) -> None:
        """Sorted by length inside; what comes back lies as the rows do, and dropout is off."""
        stage, inputs = tiny.fine_tuning(bert)
        objective = objective_of(bert, stage)
        examples, gold = inputs.evaluations["dev"]
        assert len(set(examples.tokens.lengths.tolist())) > 4
        found, flops = predict(objective, (examples, gold), precision, CPU)
        alone = [predict(objective, (examples.take([i]), gold[[i]]), precision, CPU) for i in range(len(examples))]
        expected = np.concatenate([prediction.logits for prediction, _ in alone])
        np.testing.assert_allclose(found.logits, expected, atol=near, rtol=0)
        assert found.logits.dtype == np.float32
        assert np.array_equal(found.gold, gold)
        assert flops == pytest.approx(sum(spent for _, spent in alone))

    def test_of_several_sequences_an_example_is_their_mean(self, bert: Path) -> None:
        """An example may hold any number of sequences: predictions are of examples, and each sequence counts once."""
        stage, inputs = tiny.fine_tuning(bert)
        objective = objective_of(bert, stage)
        tokens, starts = inputs.evaluations["dev"][0].tokens, np.array([0, 1, 4, 6, 30])
        found, _ = predict(objective, (Examples(tokens, starts), np.zeros(4)), "fp32", CPU)
        alone, _ = predict(objective, (Examples(tokens), np.zeros(30)), "fp32", CPU)
        expected = [alone.logits[start:stop].mean(axis=0) for start, stop in itertools.pairwise(starts)]
        np.testing.assert_allclose(found.logits, expected, rtol=1e-5)
        assert found.logits.dtype == np.float32

    def test_flops_are_those_of_the_steps_and_evaluations(self, bert: Path) -> None:
        stage, inputs = tiny.fine_tuning(bert, every=4)
        objective, outcome = run(bert, stage, inputs)
        spent = {d: predict(objective, e, "fp32", CPU)[1] for d, e in inputs.evaluations.items()}
        order = batch_order(len(inputs.train), stage.optim.batch_size, stage.seed)
        batches = [inputs.train.take(next(order)) for _ in range(stage.optim.steps)]
        steps = sum(objective.step_flops(Batch(batch.tokens, batch.owner)) for batch in batches)
        assert outcome.flops == pytest.approx(steps + 3 * spent["dev"] + spent["test"])


class TestDivergence:
    @pytest.mark.parametrize(("first", "value"), [(1, math.nan), (7, math.inf), (12, math.nan)])
    def test_the_first_step_is_named(
        self, first: int, value: float, bert: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Evaluation is every 4 steps, and the loss is finite again after the bad step."""
        stage, inputs = tiny.fine_tuning(bert, every=4)
        objective = objective_of(bert, stage)
        forward, count = objective.forward, itertools.count(1)

        def spoiled(*arguments: Any) -> Any:
            factor = value if next(count) == first else 1.0
            return {name: term * factor for name, term in forward(*arguments).items()}

        monkeypatch.setattr(objective, "forward", spoiled)
        monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda parameters, *_, **__: zero(parameters))
        with pytest.raises(DivergedError, match=rf"not finite at step {first} \(term cross_entropy\)"):
            train(objective, inputs, stage.optim, 1, scoring=Scoring.of(stage, tiny.METRICS))

    def test_dev_predictions(self, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The loss is still finite, the update made the weights NaN: no score is computed of that."""
        stage, inputs = tiny.fine_tuning(bert, every=1)
        monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda parameters, *_, **__: spoil(parameters))
        with pytest.raises(DivergedError, match="dev predictions are not finite at step 1"):
            run(bert, stage, inputs)

    def test_test_predictions(self, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Dev is finite, one text of the test set is too much for the model: a record without a score, and no table that cannot be printed."""
        stage, inputs = tiny.fine_tuning(bert, every=4)
        assert stage.data.dev is not None
        dev, whole = inputs.evaluations[stage.data.dev.digest], loop.predict

        def spoiled(objective: TrainingObjective, evaluation: Any, *more: Any, **named: Any) -> Any:
            predictions, flops = whole(objective, evaluation, *more, **named)
            if evaluation is not dev:
                predictions.logits[1] = np.inf
            return predictions, flops

        monkeypatch.setattr(loop, "predict", spoiled)
        with pytest.raises(DivergedError, match=r"the test predictions are not finite at step \d+"):
            run(bert, stage, inputs)

    def test_mean_terms(self) -> None:
        def terms(a: float, b: float) -> dict[str, torch.Tensor]:
            return {"loss": torch.tensor(a + b), "a": torch.tensor(a), "b": torch.tensor(b)}

        pending = [(1, terms(1.0, 2.0)), (2, terms(3.0, 5.0)), (3, terms(2.0, 2.0))]
        assert mean_terms(pending[:2]) == ({"loss": 5.5, "a": 2.0, "b": 3.5}, [])
        assert mean_terms(pending, width=2)[1] == [[2, 5.5], [3, 4.0]]
        assert mean_terms(pending, width=3)[1] == []
        with pytest.raises(DivergedError, match=r"step 8 \(term a\)"):
            mean_terms([(7, terms(1.0, 1.0)), (8, terms(math.nan, 1.0)), (9, terms(1.0, math.inf))])


def zero(parameters: Any) -> None:
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.zero_()


def spoil(parameters: Any) -> None:
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.fill_(math.nan)
