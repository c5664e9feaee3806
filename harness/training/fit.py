"""Fits what scikit-learn fits: every candidate on the training set, one selected on dev, and only then the test sets predicted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from harness.encoders.tokens import Examples
from harness.errors import DivergedError, StoppedError
from harness.kinds import Predictions
from harness.objectives.fitted import Fitted, StateRegression
from harness.specs import Stage, digest_of
from harness.tasks.metrics import score
from harness.training.loop import Inputs, Report, Scoring, encoded_once
from harness.training.result import TrainingResult

KEPT_BYTES = 2**28
"""Of features of evaluation sets that a process keeps: runs of one task share them."""
_kept: OrderedDict[str, Any] = OrderedDict()


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
        dev = transformer.transform(_features(objective, stage, scoring.dev, inputs))
        gold = inputs.evaluations[scoring.dev][1]
        for step, (measures, candidate) in enumerate(objective.candidates(inputs.labels), start=1):
            if stopping():
                raise StoppedError(f"stopped after fit {step - 1} of {stage.optim.steps}; it begins again")
            fitted = clone(candidate).fit(features, inputs.labels)
            predictions = Predictions(objective.outputs(fitted, dev), gold)
            if problem := predictions.problem:
                raise DivergedError(f"the dev predictions {problem} at fit {step}")
            scores = {name: score(name, predictions) for name in scoring.metrics}
            entry = {"step": step, **({"measures": measures} if measures else {}), "dev": scores}
            result.history.append(entry)
            report(entry)
            chosen, before = (each.get(scoring.selection.metric, float("-inf")) for each in (scores, result.dev_scores))
            result.tied += chosen == before
            if chosen > before:
                best, result.selected_step, result.tied = fitted, step, 1
                result.dev_scores, result.predictions = scores, {scoring.dev: predictions}
        for digest, (_, labels) in inputs.evaluations.items():
            if digest != scoring.dev:
                test = transformer.transform(_features(objective, stage, digest, inputs))
                result.predictions[digest] = predictions = Predictions(objective.outputs(best, test), labels)
                if problem := predictions.problem:
                    raise DivergedError(f"the test predictions {problem} at fit {result.selected_step}")
    if objective.params.encodes_once:
        result.flops = encoded_once(objective, inputs)
    return result


def _features(objective: Fitted, stage: Stage, digest: str, inputs: Inputs) -> Any:
    """Of an evaluation set, kept for the next stage that starts from the same weights."""
    examples: Examples = inputs.evaluations[digest][0]
    if not isinstance(objective, StateRegression):
        return objective.features(examples)
    key = digest_of([stage.init, stage.data.max_length, digest])
    found = _kept.pop(key) if key in _kept else objective.features(examples)
    _kept[key] = found
    while sum(each.nbytes for each in _kept.values()) > KEPT_BYTES:
        _kept.popitem(last=False)
    return found
