"""A small plan with made-up records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from requested import resolve_table
from views.runs import OWNER, commit

from harness.encoders import HeadTraining, Located
from harness.planning.runs import Plan, make_plan
from harness.specs import Encoder, Record, Stage
from harness.store import Store
from harness.tracking import Tracked, Trackers

TINY = Located(Encoder("7" * 32, "tiny"), None, {}, HeadTraining("boolq_prose", steps=100, lr=1e-3))
HISTORY: list[dict[str, Any]] = [
    {
        "step": 4,
        "loss": 0.5,
        "ce": 0.5,
        "dev": {"mcc": 0.1},
        "curve": {"loss": [[2, 0.6], [4, 0.4]], "dev": [[2, 0.05]]},
    },
    {
        "step": 8,
        "loss": 0.25,
        "ce": 0.25,
        "dev": {"mcc": 0.2},
        "measures": {"embedding_std": 0.9, "cosine": float("nan")},
    },
]


def plan_of(methods: tuple[str, ...] = ("ft", "cmlm"), seeds: tuple[int, ...] = (31, 42)) -> Plan:
    """Rows on CoLA with 20 examples of one subset, one run a seed."""
    resolved = resolve_table(
        "few_shot",
        "quick",
        methods=methods,
        tasks=("cola",),
        sizes=(20,),
        subsets=(0,),
        seeds=seeds,
        encoder="bert-tiny",
    )
    return make_plan(resolved, None, TINY)


def filled(store: Store, plan: Plan, count: int | None = None) -> dict[str, Record]:
    """Records of the first `count` stages."""
    stages = list(plan.stages.values())[:count]
    origin = {"started_at": 1_000_000.0, "device": "a CPU", "tokens_per_second": 99.0}
    return {
        stage.key: commit(
            store, stage, history=HISTORY, seconds=2.0, provenance=origin, selected_step=8 if stage.selection else None
        )
        for stage in stages
    }


def trackers(store: Store, plan: Plan, *names: str) -> Trackers:
    return Trackers(names, "harness-few_shot", store.url).add_plan(plan)


def recorded_in(patch: pytest.MonkeyPatch, **writes: Callable[[Tracked, str, Path], str]) -> None:
    """Let these be the trackers that there are."""
    patch.setattr("harness.tracking.TRACKERS", {name: ("json", write) for name, write in writes.items()})


def failed_then_done(store: Store, stage: Stage, between: Callable[[], Any]) -> None:
    """The stage fails, `between` is called, and a later command trains it."""
    assert store.lease(stage.key, OWNER) == "granted"
    assert store.commit(stage, Record(stage.key, "failed", "out of memory"), OWNER)
    between()
    assert store.lease(stage.key, OWNER, seen_attempt=1) == "granted"
    history = [{"step": 3, "loss": 0.5}]
    assert store.commit(stage, Record(stage.key, "done", history=history, seconds=2.0, dev_scores={"mcc": 0.5}), OWNER)
