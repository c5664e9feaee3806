"""What is left to do of a plan, in stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.specs import Stage, Status
from harness.tables.plan import Plan


@dataclass
class Item:
    """A stage to be trained. `remake`: it is recorded, and only its weights are wanted again."""

    stage: Stage
    name: str
    cost: float
    metrics: tuple[str, ...]
    keep_weights: bool
    remake: bool
    seen_attempt: int
    deaths: int = 0


@dataclass(frozen=True)
class Blocked:
    """A stage that cannot be trained because an earlier one of its chain diverged, which is final unless it is retried."""

    stage: Stage
    ancestor: Stage


def work(
    plan: Plan,
    statuses: Mapping[str, tuple[Status, int]],
    has_weights: Callable[[str], bool],
    retry: bool,
    keep: str = "none",
) -> tuple[list[Item], list[Blocked]]:
    """The stages to train, parents first, and those that are blocked.

    A stage without a `done` record is trained (a diverged one with `retry` only); a recorded parent is made again when
    a stage that is trained needs its weights and they are gone. `keep`: with 'best' and 'all' every run saves its weights.
    """
    pending = {stage.key for stage in plan.pending(statuses, retry)}
    blocked: list[Blocked] = []
    wanted: dict[str, Stage] = {}
    parents: set[str] = set()

    def want(stage: Stage) -> None:
        if stage.key in wanted:
            return
        if stage.parent:
            parents.add(stage.parent.key)
            if stage.parent.key in pending or not has_weights(stage.parent.key):
                want(stage.parent)
        wanted[stage.key] = stage

    def dead_end(stage: Stage) -> Stage | None:
        return next(
            (
                s
                for s in stage.chain[:-1]
                if s.key in statuses and s.key not in pending and statuses[s.key][0] != "done"
            ),
            None,
        )

    for key in plan.stages:
        if key in pending:
            ancestor = dead_end(plan.stages[key])
            if ancestor:
                blocked.append(Blocked(plan.stages[key], ancestor))
            else:
                want(plan.stages[key])
    names = plan.names()
    items = []
    for key, stage in wanted.items():
        serves = names[key]
        name = serves[0] if len(serves) == 1 else f"{stage.phase} of {serves[0]} and {len(serves) - 1} more"
        selection = (stage.selection.metric,) if stage.selection else ()
        task = next((t for t in plan.tasks.values() if stage.data.dev and t.dev.digest == stage.data.dev.digest), None)
        metrics = tuple(dict.fromkeys((*selection, *(task.task.metrics if task else ()))))
        attempt = statuses[key][1] if key in statuses else 0
        kept = keep != "none" or key in parents
        items.append(Item(stage, name, plan.stage_flops(stage), metrics, kept, key not in pending, attempt))
    return items, blocked
