"""What scikit-learn fits is what plain scikit-learn gives on the same rows; selection reads dev alone; the frozen encoder is encoded once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from scipy.sparse import hstack
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

from harness.encoders.models.weights import checked_weights
from harness.encoders.tokens.reading import reading_of
from harness.methods import objective
from harness.methods.reference import STRENGTHS
from harness.specs import Data, Optim, Record, RowSet, Selection, Stage
from harness.tasks.metrics import score
from harness.training.loop import Inputs, predict

FITS = Optim(0.0, 0, len(STRENGTHS), dropout=0.0)
Sets = dict[str, tuple[list[tuple[str, ...]], np.ndarray[Any, Any]]]


def rows_of(pairs: bool = False, scores: bool = False) -> Sets:
    found = {
        name: tiny.texts(count, seed, pairs)
        for name, count, seed in (("train", 24, 1), ("dev", 31, 2), ("test", 27, 3))
    }
    if not scores:
        return found
    rng = np.random.default_rng(0)
    return {
        name: (rows, (labels + rng.normal(0, 0.3, len(labels))).astype(np.float32))
        for name, (rows, labels) in found.items()
    }


def fitted(folder: Path, name: str, sets: Sets, num_labels: int = 2, metric: str = "accuracy") -> Record:
    blocks: Any = "text" if name == "frozen_states" else "whole"
    data = Data(RowSet("train"), num_labels, 64, RowSet("dev"), (RowSet("test"),), blocks=blocks)
    read = {
        key: (reading_of(data).examples(rows, tiny.tokeniser(folder)), labels) for key, (rows, labels) in sets.items()
    }
    plain, _ = tiny.fine_tuning(folder)
    stage = Stage(
        objective(name), data, replace(FITS, steps=1 if name == "majority" else 5), 0, plain.init, Selection(metric, 1)
    )
    inputs = Inputs(*read["train"], {"dev": read["dev"], "test": read["test"]})
    record = tiny.record_of(stage, inputs, tiny.worker_setup(folder, Path("/nowhere")), keep_weights=False)
    assert (record.status, record.reason, record.weights_digest) == ("done", "", None)
    assert record.selected_step is not None
    return record


def by_hand(features: dict[str, Any], sets: Sets, metric: str, model: Any) -> tuple[int, dict[str, Any]]:
    """The first candidate with the best dev score, and what it predicts: log-probabilities of classes, or scores."""
    best: tuple[float, int, dict[str, Any]] = (-np.inf, 0, {})
    for step, c in enumerate(STRENGTHS, start=1):
        made = model(c).fit(features["train"], sets["train"][1])
        predicted = {key: made.predict(features[key]) for key in ("dev", "test")}
        if metric == "accuracy":
            dev = float(np.mean(predicted["dev"] == sets["dev"][1]))
            predicted = {key: made.predict_log_proba(features[key]) for key in predicted}
        else:
            dev = float(np.corrcoef(predicted["dev"], sets["dev"][1])[0, 1])
        if dev > best[0]:
            best = dev, step, predicted
    return best[1], best[2]


def logistic(c: float) -> Any:
    return LogisticRegression(C=c, max_iter=10_000)


def test_tf_idf_of_pairs_that_lack_a_text_is_that_of_the_other(bert: Path) -> None:
    whole = rows_of(pairs=False)
    blank = {key: ([(row[0], " ") for row in rows], labels) for key, (rows, labels) in whole.items()}
    alone, beside = (fitted(bert, "tfidf", sets) for sets in (whole, blank))
    for key, found in alone.predictions.items():
        np.testing.assert_array_equal(beside.predictions[key].logits, found.logits)


@pytest.mark.parametrize(("pairs", "scores"), [(True, False), (False, True)])
def test_tf_idf_is_plain_scikit_learn(bert: Path, pairs: bool, scores: bool) -> None:
    sets, metric = rows_of(pairs, scores), "pearson" if scores else "accuracy"
    columns = [{key: [row[at] for row in rows] for key, (rows, _) in sets.items()} for at in range(1 + pairs)]
    parts: dict[str, list[Any]] = {key: [] for key in sets}
    for texts in columns:
        words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\w+|[^\w\s]+").fit(
            texts["train"]
        )
        for key, rows in texts.items():
            parts[key].append(words.transform(rows))
    features = {key: hstack(found).tocsr() for key, found in parts.items()}
    step, expected = by_hand(features, sets, metric, (lambda c: Ridge(alpha=1 / c)) if scores else logistic)
    record = fitted(bert, "tfidf", sets, 1 if scores else 2, metric)
    assert record.selected_step == step
    for key, found in expected.items():
        np.testing.assert_allclose(record.predictions[key].logits, found.reshape(len(found), -1), atol=1e-5)
    assert record.flops == 0


def test_states_are_the_mean_over_all_tokens_of_the_library_s_own(bert: Path) -> None:
    sets = rows_of(pairs=True)
    model = tiny.plain_model(bert).base_model.eval()
    features: dict[str, Any] = {}
    for key, (rows, _) in sets.items():
        padded = tiny.padded(tiny.tokens(bert, rows))
        with torch.inference_mode():
            states = model(**padded)[0].double().numpy()
        mask = padded["attention_mask"].numpy()[..., None]
        features[key] = (states * mask).sum(axis=1) / mask.sum(axis=1)
    scaler = StandardScaler().fit(features["train"])
    step, expected = by_hand(
        {key: scaler.transform(found) for key, found in features.items()}, sets, "accuracy", logistic
    )
    record = fitted(bert, "frozen_states", sets)
    assert record.selected_step == step
    assert [entry["measures"]["C"] for entry in record.history] == list(STRENGTHS)
    for key, found in expected.items():
        np.testing.assert_allclose(record.predictions[key].logits, found, atol=1e-3)
    assert record.flops > 0


@pytest.mark.parametrize("name", ["majority", "tfidf", "frozen_states"])
def test_selection_never_sees_test(bert: Path, name: str) -> None:
    """Other texts and labels of the test set change its predictions, and nothing else."""
    sets = rows_of()
    rows, labels = tiny.texts(40, 9)
    one = fitted(bert, name, sets)
    other = fitted(bert, name, {**sets, "test": (rows, 1 - labels)})
    assert (one.selected_step, one.dev_scores, one.tied) == (other.selected_step, other.dev_scores, other.tied)
    assert one.history == other.history
    assert one.predictions["dev"].difference(other.predictions["dev"]) == 0
    assert len(other.predictions["test"].gold) == 40
    scores = [entry["dev"]["accuracy"] for entry in one.history]
    assert scores.index(max(scores)) + 1 == one.selected_step, "of equal scores the first"
    assert scores.count(max(scores)) == one.tied


@pytest.mark.parametrize("name", ["majority", "tfidf", "frozen_states"])
def test_a_class_that_no_training_row_has(bert: Path, name: str) -> None:
    """It is never predicted, its logit is finite; with one class alone every row is of it."""
    sets = rows_of()
    record = fitted(bert, name, sets, num_labels=3)
    assert record.predictions["test"].logits.shape == (27, 3)
    assert set(record.predictions["test"].decoded) <= {0, 1}
    rows, labels = sets["train"]
    alone = fitted(bert, name, {**sets, "train": (rows, np.ones_like(labels))})
    assert set(alone.predictions["test"].decoded) == {1}
    assert alone.collapsed


def test_the_majority_is_scikit_learn_s_dummy(bert: Path) -> None:
    sets = rows_of()
    rows, labels = sets["train"]
    dummy = DummyClassifier(strategy="prior").fit(rows, labels)
    record = fitted(bert, "majority", sets)
    np.testing.assert_allclose(record.predictions["test"].logits, dummy.predict_log_proba(sets["test"][0]), atol=1e-6)
    scores = rows_of(scores=True)
    record = fitted(bert, "majority", scores, 1, "pearson")
    np.testing.assert_allclose(record.predictions["test"].decoded, scores["train"][1].mean(), rtol=1e-6)
    assert record.dev_scores == {"pearson": 0.0}
    assert score("pearson", record.predictions["test"]) == 0.0


def test_the_frozen_encoder_stays_and_its_rows_are_encoded_once(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, inputs = tiny.fine_tuning(bert, objective("frozen_head"), lr=1e-2, steps=40, dropout=0.1)
    module = tiny.built(bert, stage.objective)
    encoded: list[int] = []
    forward = type(module.encoder).forward

    def counting(encoder: Any, batch: Any, positions: Any = None) -> Any:
        encoded.append(len(batch.first))
        return forward(encoder, batch, positions)

    monkeypatch.setattr(type(module.encoder), "forward", counting)
    setup = tiny.worker_setup(bert, tmp_path)
    record = tiny.record_of(stage, inputs, setup)
    assert record.status == "done"
    assert sum(encoded) == 20 + 30 + 25
    kept = checked_weights(setup.storage, stage.key)[0]
    before = tiny.encoder(bert).parts()
    assert all(torch.equal(kept[name], tensor) for name, tensor in before.items() if name.startswith("encoder/"))
    again = tiny.record_of(stage, inputs, setup, keep_weights=False)
    assert all(record.predictions[key].difference(again.predictions[key]) == 0 for key in ("dev", "test"))
    module.take_training_set(inputs.train, inputs.labels)
    for evaluation in inputs.evaluations.values():
        predict(module, evaluation, "fp32", torch.device("cpu"))
        assert sum(map(len, module._evaluated)) == len(evaluation[1]), "states of one set are kept"
