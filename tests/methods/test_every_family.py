"""Every method trains every family of encoders, or says in a sentence why not: some updates on tiny encoders with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster import in_process
from family_encoders import SPECIFIC, encoder_folder, sentences, write_task

import harness
from harness.api.arguments import request_from
from harness.commands.prepare import prepare
from harness.errors import UserError
from harness.methods import METHODS, definition_of
from harness.specs import Stage

UPDATES = 8
QUICK = ("modernbert",)
"""In every test run."""


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in SPECIFIC]
)
def test_every_method_trains_or_says_why_not(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prints the mean loss of a method's own stage over the first and the last quarter of its updates (pytest -rP)."""
    in_process.patch(monkeypatch)
    rows = sentences(200)
    write_task(tmp_path, rows)
    encoder = encoder_folder(tmp_path, kind, [text for text, _ in rows])
    fields: dict[str, Any] = {
        "tasks": str(tmp_path / "reviews.yaml"),
        "encoder": str(encoder),
        "translator": f"file:{tmp_path / 'views.jsonl'}",
        "store": f"sqlite:///{tmp_path}/families.db",
        **{"sizes": 20, "subsets": 0, "seeds": 31},
    }
    values = {"fine_tune.steps": UPDATES, "post_train.steps": UPDATES, "optim.lr": 1e-3, "max_length": 64}
    stages: dict[str, Stage] = {}
    for method in METHODS:
        try:
            plan = prepare(request_from("objectives", values, **fields, methods=method), train=False).plan
        except UserError as error:
            print(f"{kind}, {method}: {error}")
            continue
        if plan.runs:
            stages[method] = own_stage(plan.runs[0].stage)
        else:
            print(f"{kind}, {method}: {next(reason for *_, reason in plan.skipped)}")
    assert {"ft", "scl"} <= stages.keys()
    done = harness.bench("objectives", set=values, methods=list(stages), **fields)
    assert done.complete, done
    for method, stage in stages.items():
        if definition_of(stage.objective).fitted:
            continue  # no updates, no loss
        curve = harness.record(stage.key, store=fields["store"]).curve["loss"].dropna()
        quarter = max(1, len(curve) // 4)
        assert np.isfinite(curve).all(), method
        print(f"{kind}, {method}: {curve[:quarter].mean():.2f} > {curve[-quarter:].mean():.2f}")


def own_stage(leaf: Stage) -> Stage:
    """A method's own stage: its post-training, or the fine-tuning of a method that has none."""
    parent = leaf.parent
    return leaf if parent is None or parent.phase == "mlm-head" else parent
