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

from harness.encoders.models.text_encoder import Batch, TextEncoder
from harness.encoders.models.weights import weights_digest
from harness.encoders.tokens import Examples
from harness.errors import DivergedError
from harness.kinds import Predictions
from harness.objectives import DEFINITIONS, build, definition_of
from harness.objectives.base import TrainingObjective
from harness.objectives.classification import CrossEntropy
from harness.objectives.heads import Head, HeadOutputs
from harness.specs import Objective, Stage
from harness.training import forward_backward, loop
from harness.training.loop import (
    Inputs,
    Placement,
    Scoring,
    batch_order,
    decay_groups,
    mean_terms,
    predict,
    schedule,
    train,
    trainable,
)
from harness.training.result import TrainingResult

CPU = torch.device("cpu")


def objective_of(folder: Path, stage: Stage) -> TrainingObjective:
    return build(
        stage.objective,
        tiny.encoder(folder, stage.seed),
        tiny.vocabulary(folder),
        stage.data.kind,
        stage.optim.dropout,
        stage.seed,
    )


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

    def test_epochs_and_seeds_differ(self) -> None:
        orders = [list(itertools.islice(batch_order(20, 20, seed), 2)) for seed in (1, 2)]
        assert len({tuple(rows) for order in orders for rows in order}) == 4

    def test_the_order_does_not_depend_on_the_batch_size(self) -> None:
        whole = next(batch_order(20, 20, 1))
        assert np.array_equal(np.concatenate(list(itertools.islice(batch_order(20, 8, 1), 3))), whole)


class TestSchedule:
    def test_linear_without_warm_up(self) -> None:
        assert [schedule(tiny.optim(steps=4), step) for step in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]

    def test_warm_up(self) -> None:
        optim = tiny.optim(steps=10, warmup=0.35)  # 4 steps, rounded up
        factors = [schedule(optim, step) for step in range(10)]
        assert factors == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])

    def test_constant(self) -> None:
        optim = tiny.optim(steps=4, warmup=0.5, schedule="constant")
        assert [schedule(optim, step) for step in range(4)] == [0.5, 1.0, 1.0, 1.0]

    @pytest.mark.parametrize("changes", [{"warmup": 0.0}, {"warmup": 0.5}, {"schedule": "constant"}])
    def test_the_optimizer_follows_it(self, changes: Any, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        rates = []
        step = torch.optim.AdamW.step

        def spy(self: torch.optim.AdamW, *arguments: Any, **options: Any) -> Any:
            rates.append({group["lr"] for group in self.param_groups})
            return step(self, *arguments, **options)

        monkeypatch.setattr(torch.optim.AdamW, "step", spy)
        stage, inputs = tiny.post_training(bert, steps=4, **changes)
        run(bert, stage, inputs)
        assert rates == [{stage.optim.lr * schedule(stage.optim, i)} for i in range(4)]


class TestParameters:
    def test_biases_and_norms_are_not_decayed(self, bert: Path) -> None:
        stage, _ = tiny.fine_tuning(bert)
        parameters = trainable(objective_of(bert, stage))
        decayed, free = decay_groups(parameters, tiny.optim(weight_decay=0.1))
        assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
        names = {id(p): n for n, p in parameters.items()}
        for parameter in free["params"]:
            assert names[id(parameter)].endswith("bias") or "LayerNorm" in names[id(parameter)]
        for parameter in decayed["params"]:
            assert names[id(parameter)].endswith("weight")
            assert "LayerNorm" not in names[id(parameter)]
        assert len(decayed["params"]) + len(free["params"]) == len(parameters)

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

    @pytest.mark.parametrize(("kind", "name"), tiny.ALLOWED)
    def test_what_is_trained_moves_and_nothing_else(self, kind: str, name: str, folders: dict[str, Path]) -> None:
        """The MLM head is trained where the objective uses it, the tied word embeddings once; what is frozen stays."""
        spec = tiny.OBJECTIVES[name]
        if DEFINITIONS[spec.name].labelled:
            stage, inputs = tiny.fine_tuning(folders[kind], spec, steps=2, every=1)
        else:
            stage, inputs = tiny.post_training(folders[kind], spec, steps=2)
        objective = objective_of(folders[kind], stage)
        before = {n: p.detach().clone() for n, p in objective.named_parameters()}
        chosen = trainable(objective)
        assert len({id(p) for p in chosen.values()}) == len(chosen)
        head = {f"encoder.model.{n.split('/')[1]}" for n in objective.encoder.parts() if n.startswith("mlm_head/")}
        assert head
        encoder_alone = spec.name in ("auxiliary_mlm", "frozen_head")
        part = "encoder." if encoder_alone else "auxiliary."
        has_frozen = encoder_alone or spec.params.get("replacements") == "converged"
        frozen = {n for n in before if has_frozen and n.startswith(part)}
        frozen |= before.keys() - head if spec.name == "mlm_head" else set()
        uses_head = "masked_lm" in objective.weights or spec.name == "prompt"
        assert (head <= chosen.keys()) == uses_head
        assert before.keys() - chosen.keys() == frozen | (set() if uses_head else head)
        train(objective, inputs, stage.optim, stage.seed)
        after = dict(objective.named_parameters())
        still = {n for n in before if torch.equal(before[n], after[n])}
        assert still == before.keys() - chosen.keys()

    def test_a_contrast_without_mlm_leaves_the_head_alone(self, bert: Path) -> None:
        spec = tiny.OBJECTIVES["cmlm-simsiam"]
        stage, _ = tiny.post_training(bert, Objective(spec.name, spec.version, {**spec.params, "mlm": False}))
        assert not any(".cls." in name for name in trainable(objective_of(bert, stage)))


class TestCompact:
    KINDS = ("bert", "roberta", "electra")

    @staticmethod
    def words(objective: TrainingObjective) -> Any:
        return objective.encoder.model.get_input_embeddings()

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("every", [4, 100])
    def test_changes_nothing(
        self, kind: str, every: int, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stage, inputs = tiny.fine_tuning(folders[kind], every=every)
        compact, found = run(folders[kind], stage, inputs)
        monkeypatch.setattr(loop, "compact", lambda base, ids: lambda: None)
        whole, expected = run(folders[kind], stage, inputs)
        assert found.selected_step == expected.selected_step
        for digest in ("dev", "test"):
            np.testing.assert_allclose(
                found.predictions[digest].logits, expected.predictions[digest].logits, atol=1e-5, rtol=0
            )
        states = compact.state_dict(), whole.state_dict()
        assert states[0].keys() == states[1].keys()
        for name, tensor in states[0].items():
            # The key biases have no gradient but rounding, which Adam blows up to steps of the learning rate.
            if "key.bias" not in name:
                torch.testing.assert_close(tensor, states[1][name], atol=1e-5, rtol=0, msg=name)

    @pytest.mark.parametrize("kind", KINDS)
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

    def test_evaluation_reads_rows_that_training_never_saw(self, bert: Path) -> None:
        """Else the test on predictions above would say nothing of them."""
        _, inputs = tiny.fine_tuning(bert)
        extra = Examples(tiny.tokens(bert, [("w35 ##ish w39",)]))
        assert set(extra.tokens.ids.tolist()) - set(inputs.train.tokens.ids.tolist())
        labels = np.array([0])
        stage, _ = tiny.fine_tuning(bert)
        wide = Inputs(inputs.train, inputs.labels, {**inputs.evaluations, "extra": (extra, labels)})
        objective, outcome = run(bert, stage, wide)
        again, _ = predict(objective, (extra, labels), "fp32", CPU)
        assert np.array_equal(again.logits, outcome.predictions["extra"].logits)

    def test_with_weight_decay_the_table_stays_whole(self, bert: Path) -> None:
        stage, inputs = tiny.fine_tuning(bert, weight_decay=0.1, lr=1e-2)
        before = objective_of(bert, stage)
        after, _ = run(bert, stage, inputs)
        moved = (self.words(after).weight != self.words(before).weight).any(dim=1)
        assert moved.all()

    def test_with_mlm_the_table_stays_whole(self, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loop, "compact", lambda *_: pytest.fail("compacted"))
        run(bert, *tiny.post_training(bert, steps=2))

    def test_with_words_that_the_embeddings_predict_the_table_stays_whole(
        self, bert: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Label words and separators are in no training text."""
        monkeypatch.setattr(loop, "compact", lambda *_: pytest.fail("compacted"))
        run(bert, *tiny.fine_tuning(bert, tiny.of_method("prompt", head="embeddings"), steps=2))

    @pytest.mark.parametrize("kind", ["bert", "roberta"])
    def test_a_classifier_on_the_mlm_head_trains_as_with_the_whole_table(
        self, kind: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The head's decoder is the word embeddings: without those that no text holds it would train other weights."""
        stage, inputs = tiny.fine_tuning(folders[kind], steps=20)
        logits = []
        for compacted in (True, False):
            if not compacted:
                monkeypatch.setattr(loop, "compact", lambda base, ids: lambda: None)
            spec, vocabulary = stage.objective, tiny.vocabulary(folders[kind])
            objective = LabelWords(
                tiny.encoder(folders[kind]), vocabulary, stage.data.kind, 0.0, 1, definition_of(spec)
            )
            outcome = train(objective, inputs, stage.optim, stage.seed, scoring=Scoring.of(stage, tiny.METRICS))
            logits.append(outcome.predictions["test"].logits)
        assert np.array_equal(*logits)


class LabelWords(CrossEntropy):
    """Classifies by the MLM head's logits of two words at the first token."""

    uses_mlm_head = True

    def build(self) -> None:
        self.weights = {"cross_entropy": 1.0}
        self.head = WordHead()


class WordHead(Head):
    WORDS = (8, 9)

    def forward(self, encoder: TextEncoder, batch: Batch) -> HeadOutputs:
        first = encoder(batch, batch.packing.first)
        return HeadOutputs(first, first, encoder.mlm_logits(first)[:, self.WORDS])


class TestDeterminism:
    @pytest.mark.parametrize("name", tiny.OBJECTIVES)
    def test_twice_the_same_bits(self, name: str, bert: Path) -> None:
        spec = tiny.OBJECTIVES[name]
        supervised = DEFINITIONS[spec.name].labelled

        def once(seed: int, noise: int) -> tuple[str, list[Any], list[bytes]]:
            stage, inputs = (tiny.fine_tuning if supervised else tiny.post_training)(bert, spec, seed=seed, steps=9)
            torch.manual_seed(noise)
            np.random.seed(noise)
            torch.randn(noise)
            objective, outcome = run(bert, stage, inputs)
            logits = [p.logits.tobytes() for p in outcome.predictions.values()]
            parts = {**objective.encoder.parts(), **objective.parts()}
            return weights_digest(parts), outcome.history, logits

        first = once(1, 3)
        assert once(1, 77) == first
        other = once(2, 3)
        assert other[0] != first[0]
        assert [e["loss"] for e in other[1]] != [e["loss"] for e in first[1]]

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

    def test_evaluating_more_often_changes_no_weight(self, bert: Path) -> None:
        ends = []
        for every in (2, 3, 100):
            stage, inputs = tiny.fine_tuning(bert, every=every)
            _, outcome = run(bert, stage, inputs)
            ends.append(outcome.history[-1]["dev"])
            assert outcome.history[-1]["step"] == stage.optim.steps
        assert ends[0] == ends[1] == ends[2]

    def test_reporting_changes_nothing(self, bert: Path) -> None:
        entries: list[Any] = []
        stage, inputs = tiny.fine_tuning(bert)
        _, silent = run(bert, stage, inputs)
        _, loud = run(bert, stage, inputs, report=entries.append)
        assert entries == loud.history == silent.history

    @pytest.mark.parametrize("weight_decay", [0.0, 0.01])
    def test_the_learning_curve_changes_no_number(self, bert: Path, weight_decay: float) -> None:
        """With compact embeddings and without: dev scored in between, by points or not at all, gives the same record but for the curve."""
        stage, inputs = tiny.fine_tuning(bert, every=8, weight_decay=weight_decay)
        (ours, plain), *others = [
            run(bert, stage, inputs, placement=Placement(dev_points=points)) for points in (0, 6, 100)
        ]
        assert [entry["step"] for entry in plain.history] == [8, 12]
        assert [step for entry in plain.history for step, _ in entry["curve"]["loss"]] == list(range(1, 13))
        for entry, steps in zip(plain.history, (slice(0, 8), slice(8, 12)), strict=True):
            losses = [loss for each in plain.history for _, loss in each["curve"]["loss"]][steps]
            assert entry["loss"] == pytest.approx(np.mean(losses))
            assert "dev" not in entry["curve"]
        scored = {8: plain.history[0]["dev"]["accuracy"], 12: plain.history[1]["dev"]["accuracy"]}
        for (theirs, other), steps in zip(others, ([2, 4, 6, 10], [*range(1, 8), *range(9, 12)]), strict=True):
            found = {step: value for entry in other.history for step, value in entry["curve"].pop("dev")}
            assert list(found) == steps
            for step, value in found.items():  # what an evaluation at that step finds
                every, _ = tiny.fine_tuning(bert, every=step, weight_decay=weight_decay)
                assert value == run(bert, every, inputs)[1].history[0]["dev"]["accuracy"]
            assert scored == {entry["step"]: entry["dev"]["accuracy"] for entry in other.history}
            for entry, mine in zip(other.history, plain.history, strict=True):
                assert entry == mine
            assert (other.flops, other.selected_step, other.dev_scores) == (
                plain.flops,
                plain.selected_step,
                plain.dev_scores,
            )
            for digest, predicted in plain.predictions.items():
                assert np.array_equal(predicted.logits, other.predictions[digest].logits)
            for name, parameter in ours.named_parameters():
                assert torch.equal(parameter, theirs.get_parameter(name))


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
            objective: TrainingObjective, evaluation: tuple[Examples, Any], *rest: Any
        ) -> tuple[Predictions, float]:
            found.append({30: "dev", 25: "test"}[len(evaluation[0])])
            return predicted(objective, evaluation, *rest)

        monkeypatch.setattr(torch.optim.AdamW, "step", stepped)
        monkeypatch.setattr(loop, "predict", evaluated)
        return found

    @pytest.mark.parametrize(
        ("steps", "every", "expected"),
        [(12, 4, [4, 8, 12]), (14, 4, [4, 8, 12, 14]), (5, 1, [1, 2, 3, 4, 5]), (3, 100, [3])],
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
        [
            ([0.5, 0.7, 0.7, 0.6, 0.7], 2, 3),
            ([0.5, 0.5, 0.6], 3, 1),
            ([0.9, 0.5, 0.5], 1, 1),
            ([0.0, 0.0, 0.0], 1, 3),
            ([-0.2, -0.1, -0.1], 2, 2),
        ],
    )
    def test_the_first_best_is_kept(
        self, scores: list[float], chosen: int, tied: int, bert: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        coming = iter(scores)
        monkeypatch.setattr(loop, "score", lambda *_: next(coming))
        stage, inputs = tiny.fine_tuning(bert, steps=2 * len(scores), every=2)
        objective, outcome = run(bert, stage, inputs)
        assert (outcome.selected_step, outcome.tied) == (2 * chosen, tied)
        assert outcome.dev_scores == {"accuracy": scores[chosen - 1]}
        assert [entry["dev"]["accuracy"] for entry in outcome.history] == scores
        self.assert_is_the_selected_state(objective, outcome, inputs)
        # The same steps without a choice: the state right after the selected step.
        monkeypatch.setattr(loop, "score", lambda *_: float(next(rising)))
        rising = itertools.count()
        stopped = {**inputs.evaluations}
        states: dict[int, Any] = {}

        def keep(entry: dict[str, Any]) -> None:
            states[entry["step"]] = predict(other, stopped["dev"], "fp32", CPU)[0].logits
            other.train()

        other = objective_of(bert, stage)
        train(other, inputs, stage.optim, 1, scoring=Scoring.of(stage, tiny.METRICS), report=keep)
        assert np.array_equal(states[2 * chosen], outcome.predictions["dev"].logits)
        assert chosen == len(scores) or not np.array_equal(states[2 * len(scores)], states[2 * chosen])

    @staticmethod
    def assert_is_the_selected_state(objective: TrainingObjective, outcome: TrainingResult, inputs: Inputs) -> None:
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

    def test_only_gold_of_dev_can_move_the_choice(self, bert: Path) -> None:
        stage, inputs = tiny.fine_tuning(bert, steps=30, every=3)
        _, outcome = run(bert, stage, inputs)
        tokens, gold = inputs.evaluations["test"]
        swapped = Inputs(inputs.train, inputs.labels, {**inputs.evaluations, "test": (tokens, 1 - gold)})
        _, again = run(bert, stage, swapped)
        assert (again.selected_step, again.history) == (outcome.selected_step, outcome.history)
        assert np.array_equal(again.predictions["test"].logits, outcome.predictions["test"].logits)


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

    @pytest.mark.parametrize(("precision", "near"), [("bf16", 0.5), ("fp16", 0.05)])
    def test_half_precision(self, precision: str, near: float, bert: Path) -> None:
        """It trains, stays finite, keeps float32 weights, and is another computation than float32, but not by far."""
        outcomes = {}
        for each in ("fp32", precision):
            stage, inputs = tiny.fine_tuning(bert, precision=each)
            objective, outcomes[each] = run(bert, stage, inputs)
            assert {p.dtype for p in objective.parameters()} == {torch.float32}
        exact, half = (outcomes[p].predictions["test"].logits for p in ("fp32", precision))
        assert np.isfinite(half).all()
        assert not np.array_equal(half, exact)
        assert np.abs(half - exact).max() < near
        for name in ("mlm", "cmlm-simsiam", "cmlm-simclr"):
            stage, inputs = tiny.post_training(bert, tiny.OBJECTIVES[name], precision=precision, steps=3)
            assert np.isfinite(run(bert, stage, inputs)[1].history[-1]["loss"])

    def test_flops_are_those_of_the_steps_and_evaluations(self, bert: Path) -> None:
        stage, inputs = tiny.fine_tuning(bert, every=4)
        objective, outcome = run(bert, stage, inputs)
        spent = {d: predict(objective, e, "fp32", CPU)[1] for d, e in inputs.evaluations.items()}
        order = batch_order(len(inputs.train), stage.optim.batch_size, stage.seed)
        batches = [inputs.train.take(next(order)) for _ in range(stage.optim.steps)]
        steps = sum(objective.step_flops(batch.tokens) for batch in batches)
        assert outcome.flops == pytest.approx(steps + 3 * spent["dev"] + spent["test"])


class TestDivergence:
    @pytest.mark.parametrize("value", [math.nan, math.inf])
    @pytest.mark.parametrize("first", [1, 3, 7, 12])
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

        def spoiled(objective: TrainingObjective, evaluation: Any, *more: Any) -> Any:
            predictions, flops = whole(objective, evaluation, *more)
            if evaluation is not dev:
                predictions.logits[1] = np.inf
            return predictions, flops

        monkeypatch.setattr(loop, "predict", spoiled)
        with pytest.raises(DivergedError, match=r"the test predictions are not finite at step \d+"):
            run(bert, stage, inputs)

    def test_a_learning_rate_far_too_high(self, bert: Path) -> None:
        with pytest.raises(DivergedError, match=r"not finite at step \d+"):
            run(bert, *tiny.post_training(bert, lr=1e36, steps=20))

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
