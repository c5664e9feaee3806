"""Classifiers that scikit-learn fits: the most frequent class, and logistic regression (of a regression ridge) on TF-IDF or on an
encoder's states."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harness.encoders.models.batch import Batch
from harness.encoders.tokens import Examples, by_length
from harness.kinds import Array, Arrays, Kind
from harness.methods.reference import Fitted as FittedMethod
from harness.objectives.base import TrainingObjective

LEAST_SHARE = 1e-30
"""Probabilities below it count as it: a class that no training row has would have the logit -inf."""
MOST_ITERATIONS = 10_000


class Fitted(TrainingObjective):
    """Base of what scikit-learn fits. There are no updates: `harness.training.fit` fits every candidate on the training set and selects one on dev."""

    params: FittedMethod
    kind: Kind

    def build(self) -> None:
        """It has no head of torch's."""

    def features(self, examples: Examples) -> Any:
        """What is fitted on, a row an example."""
        raise NotImplementedError

    def transformer(self, features: Any) -> Any:
        """What scikit-learn fits on the features of the training set, once for all candidates, before a classifier reads them."""
        from sklearn.preprocessing import FunctionTransformer

        return FunctionTransformer()  # as they are

    def candidate(self, strength: float, labels: Array) -> Any:
        """What is fitted on the transformed features, at an inverse strength of regularisation."""
        from sklearn.linear_model import LogisticRegression, Ridge

        if self.kind.answer == "score":
            return Ridge(alpha=1 / strength)
        if len(np.unique(labels)) == 1:
            return prior(self.kind)
        return LogisticRegression(C=strength, max_iter=MOST_ITERATIONS)

    def outputs(self, fitted: Any, features: Any) -> Arrays:
        """Predictions from transformed features: scores, or the logarithms of the classes' probabilities."""
        if self.kind.answer == "score":
            return {"logits": fitted.predict(features).astype(self.kind.output_type)[:, None]}
        shares = np.zeros((features.shape[0], self.kind.outputs))
        shares[:, fitted.classes_] = fitted.predict_proba(features)
        return {"logits": np.log(np.maximum(shares, LEAST_SHARE)).astype(np.float32)}


def prior(kind: Kind) -> Any:
    """The most frequent class, of several the one with the lowest code; of a regression the mean."""
    from sklearn.dummy import DummyClassifier, DummyRegressor

    return DummyRegressor() if kind.answer == "score" else DummyClassifier(strategy="prior")


class Majority(Fitted):
    def features(self, examples: Examples) -> NDArray[Any]:
        return np.zeros((len(examples), 1))

    def candidate(self, strength: float, labels: Array) -> Any:
        return prior(self.kind)


class TfidfRegression(Fitted):
    """On the words and pairs of words of whole texts, those of the training set; of a pair of texts on the words of each by itself."""

    def features(self, examples: Examples) -> NDArray[Any]:
        return np.array(examples.texts, dtype=object)

    def transformer(self, features: Any) -> Any:
        from sklearn.compose import ColumnTransformer
        from sklearn.feature_extraction.text import TfidfVectorizer

        # scikit-learn's own pattern has no words of one letter and no punctuation: a text may have nothing else.
        word = re.compile(r"(?u)\w+|[^\w\s]+")
        vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=word.pattern)
        # A text may be blank.
        columns = [at for at in range(features.shape[1]) if any(map(word.search, features[:, at]))]
        return ColumnTransformer([(str(at), vectorizer, at) for at in columns], sparse_threshold=1.0)


class StateRegression(Fitted):
    """On the encoder's last states without dropout, averaged over all tokens of a row and standardised by the training set. Of an encoder that was not
    fine-tuned the average tells sentences apart better than the first token (Reimers and Gurevych 2019, Table 1)."""

    def features(self, examples: Examples) -> NDArray[np.float64]:
        tokens, encoder = examples.tokens, self.encoder.eval()
        device = next(encoder.parameters()).device
        means = np.zeros((len(tokens), encoder.hidden_size))
        with torch.inference_mode():
            for rows in by_length(tokens.lengths):
                some = tokens.take(rows)
                states = encoder(Batch.of(some, device)).double().cpu().numpy()
                means[rows] = np.add.reduceat(states, some.offsets[:-1]) / some.lengths[:, None]
        return means

    def transformer(self, features: Any) -> Any:
        from sklearn.preprocessing import StandardScaler

        return StandardScaler()
