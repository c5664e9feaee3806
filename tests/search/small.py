"""A small space of a user's own, and studies that nothing is trained for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optuna.trial import TrialState

from harness.commands.study import PreparedStudy, _remember
from harness.planning.request import Request
from harness.search.points import ReplicateOutcome, Trial
from harness.search.request import Point, TuneRequest
from harness.search.space import ResolvedSpace, Space, load_space, resolve_space
from harness.search.study import NOTES
from harness.specs import Record, Status

SPACE = """
name: mine
method: cmlm
table: few_shot
defaults: {alpha: 0.5, p_c: 0.7, contrast: simsiam, temperature: 0.07, num_views: 1}
grid: {alpha: [0.1, 0.5], p_c: [0.3, 0.7]}
search:
  alpha: {low: 0.01, high: 2.0, log: true}
  p_c: {low: 0.1, high: 0.9, step: 0.1}
  num_views: {low: 1, high: 3}
  contrast: {choice: [simsiam, simclr]}
  temperature: {low: 0.02, high: 0.5, log: true, when: {contrast: simclr}}
"""


_LOADED: dict[str, Space] = {}


def small_space(folder: Path, text: str = SPACE, **wishes: Any) -> ResolvedSpace:
    """A 2 x 2 grid, and a search with a conditional parameter."""
    if text not in _LOADED:
        path = folder / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        _LOADED[text] = load_space(path)
    return explored(_LOADED[text], **wishes)


def request(space: Space, **wishes: Any) -> TuneRequest:
    """`wishes`: fields of the request."""
    return TuneRequest(space.method, base=Request(), **wishes)


def explored(space: Space, **wishes: Any) -> ResolvedSpace:
    """As a request with these fields explores it."""
    return resolve_space(space, request(space, **wishes))


def outcome(value: float, **others: Any) -> ReplicateOutcome:
    return ReplicateOutcome(value, **{"flops": 1e9, "seconds": 0.5, "stages": 2, **others})


def ran(opened: PreparedStudy, point: Point, *values: float, status: Status = "done") -> None:
    """A trial of the next point that waits, or of a new one, as the command that ran it leaves it. `status`: of the last replicate."""
    study, store = opened.optuna, opened.prepared.store
    study.enqueue_trial(dict(point), skip_if_exists=True)
    trial = study.ask()
    assert opened.points.space.define(trial) == point
    ends: list[Status] = ["done"] * (len(values) - 1) + [status]
    replicates = opened.points.runs(point)
    stages = {run.stage.key: run.stage for runs in replicates for run in runs}
    for runs, value, end in zip(replicates, values, ends, strict=True):
        for stage in (stage for run in runs for stage in run.stage.chain):
            if store.lease(stage.key, opened.owner) == "granted":
                how = end if stage.key in stages else "done"
                scores = {"accuracy": value} if how == "done" and stage.key in stages else {}
                store.commit(stage, Record(stage.key, how, dev_scores=scores, flops=1e9, seconds=2.0), opened.owner)
    _remember(opened, "started", Trial(trial.number, point))
    trial.set_user_attr(NOTES, {"state": "complete"})
    if status == "done":
        study.tell(trial, sum(values) / len(values))
    else:
        study.tell(trial, state=TrialState.PRUNED)
