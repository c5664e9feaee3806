"""Fits what scikit-learn fits: every candidate on the training set, one selected on dev, and only then the test sets predicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.errors import StoppedError
from harness.kinds import Predictions
from harness.objectives.fitted import Fitted
from harness.specs import Stage
from harness.training.loop import Inputs, Report, encoded_once
from harness.training.result import Scoring, TrainingResult, finite


def fit(
    objective: Fitted,
    inputs: Inputs,
    stage: Stage,
    scoring: Scoring,
    *,
    threads: int = 1,
    report: Report = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
) -> TrainingResult:
    """The result of a stage, whose history has an entry for each candidate, in the place of an update. Of equal dev scores the first candidate
    counts. `threads`: of scikit-learn's linear algebra.

    Raises DivergedError for predictions that are not finite, and StoppedError where it is to stop between two candidates.
    """
    from sklearn.base import clone
    from threadpoolctl import threadpool_limits

    assert inputs.labels is not None
    result = TrainingResult(0)
    best: Any = None
    with threadpool_limits(threads):
        features = objective.features(inputs.train)
        transformer = objective.transformer(features)
        features = transformer.fit_transform(features)
        dev = transformer.transform(objective.features(inputs.evaluations[scoring.dev][0]))
        gold = inputs.evaluations[scoring.dev][1]
        for step, (measures, candidate) in enumerate(objective.candidates(inputs.labels), start=1):
            if stopping():
                raise StoppedError(f"stopped after fit {step - 1} of {stage.optim.steps}; it begins again")
            fitted = clone(candidate).fit(features, inputs.labels)
            predictions = finite(Predictions(objective.outputs(fitted, dev), gold), "dev", f"fit {step}")
            scores, selected = result.select(step, scoring, predictions)
            best = fitted if selected else best
            entry = {"step": step, **({"measures": measures} if measures else {}), "dev": scores}
            result.history.append(entry)
            report(entry)
        for digest, (examples, labels) in inputs.evaluations.items():
            if digest != scoring.dev:
                test = transformer.transform(objective.features(examples))
                predictions = Predictions(objective.outputs(best, test), labels)
                result.predictions[digest] = finite(predictions, "test", f"fit {result.selected_step}")
    if objective.params.encodes_once:
        result.flops = encoded_once(objective, inputs)
    return result
