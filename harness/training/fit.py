"""Fits what scikit-learn fits: every candidate on the training set, one selected on dev, and only then the test sets predicted."""

from __future__ import annotations

from collections.abc import Callable

from harness.errors import StoppedError
from harness.kinds import Predictions
from harness.methods.reference import STRENGTHS
from harness.objectives.fitted import Fitted
from harness.training.loop import Inputs, encoded_once
from harness.training.result import Scoring, TrainingResult, finite


def fit(
    objective: Fitted, inputs: Inputs, scoring: Scoring, *, stopping: Callable[[], bool] = lambda: False
) -> TrainingResult:
    """The result of a stage, whose history has an entry for each candidate, in the place of an update. Of equal dev scores the first counts.

    Raises DivergedError for predictions that are not finite, and StoppedError where it is to stop between two candidates.
    """
    from threadpoolctl import threadpool_limits

    assert inputs.labels is not None
    result, best, count = TrainingResult(0), None, objective.params.candidates
    dev, gold = inputs.evaluations[scoring.dev]
    with threadpool_limits(1):
        features = objective.features(inputs.train)
        transformer = objective.transformer(features)
        features, seen = transformer.fit_transform(features), transformer.transform(objective.features(dev))
        for step, strength in enumerate(STRENGTHS[:count], start=1):
            if stopping():
                raise StoppedError(f"stopped after fit {step - 1} of {count}; it begins again")
            fitted = objective.candidate(strength, inputs.labels).fit(features, inputs.labels)
            predictions = finite(Predictions(objective.outputs(fitted, seen), gold), "dev", f"fit {step}")
            scores, selected = result.select(step, scoring, predictions)
            best = fitted if selected else best
            measures = {"measures": {"C": strength}} if count > 1 else {}
            result.history.append({"step": step, **measures, "dev": scores})
        for digest, (examples, gold) in inputs.evaluations.items():
            if digest == scoring.dev:
                continue
            outputs = objective.outputs(best, transformer.transform(objective.features(examples)))
            result.predictions[digest] = finite(Predictions(outputs, gold), "test", f"fit {result.selected_step}")
    if objective.params.encodes_once:
        result.flops = encoded_once(objective, inputs)
    return result
