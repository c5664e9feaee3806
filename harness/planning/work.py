"""What is left to do of a plan, in stages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from harness.specs import Parent, Stage, Status
from harness.storage import weights_of

if TYPE_CHECKING:
    from harness.planning.runs import Plan
    from harness.training.result import Speed

End = Literal["done", "failed", "diverged", "elsewhere"]
"""'elsewhere': recorded as done by another command."""


@dataclass
class Item:
    """A stage to be trained. `remake`: it is recorded, and only its weights are wanted again. `keep_weights`: its final ones are
    stored; `save_at`: the updates after which it stores its weights as well. `turn`: stages of a lower turn start first, among equals the
    most expensive."""

    stage: Stage
    name: str
    cost: float
    metrics: tuple[str, ...]
    keep_weights: bool
    remake: bool
    seen_attempt: int
    deaths: int = 0
    save_at: tuple[int, ...] = ()
    turn: int = 0

    @property
    def until(self) -> int:
        """The update after which it ends: 0 for its last, earlier where no later weights are wanted."""
        return max(self.save_at) if self.remake and not self.keep_weights else 0

    @property
    def stored(self) -> tuple[str, ...]:
        """The names of the weights that it stores."""
        final = (weights_of(self.stage.key),) if self.keep_weights else ()
        return (*final, *(weights_of(self.stage.key, step) for step in self.save_at))


class Ended(NamedTuple):
    """What became of a stage that a worker was given: a record of ours, or 'elsewhere' one of another command, which has its lease; 'stopped' with a
    checkpoint; 'left' with its node; 'died' with its process."""

    status: Literal[End, "stopped", "left", "died"]
    reason: str = ""


@dataclass(frozen=True)
class Event:
    """What happened to a stage, for people. 'notice': what the cluster lacks, while this stage waits. 'running': how far it is."""

    kind: Literal[End, "started", "running", "retried", "notice"]
    item: Item
    reason: str = ""
    running: Speed | None = None

    @property
    def ended(self) -> bool:
        return self.kind in get_args(End)


def work(
    plan: Plan,
    statuses: Mapping[str, tuple[Status, int]],
    is_stored: Callable[[str], bool],
    retry: bool,
    keep: str = "none",
) -> tuple[list[Item], list[Stage]]:
    """The stages to train, parents first, and those that are blocked: an earlier one of their chain diverged, which is final unless it
    is retried.

    A stage without a `done` record is trained (a diverged one with `retry` only); a recorded parent is made again when
    a stage that is trained needs its weights and they are gone; it ends then with the last weights that are needed. `is_stored`:
    whether weights are there, by name. `keep`: with 'best' and 'all' every run saves its weights.
    """
    pending = {stage.key: stage for stage in plan.pending(statuses, retry)}
    final = {key for key, (status, _) in statuses.items() if status != "done"} - pending.keys()
    blocked = [stage for stage in pending.values() if any(parent.key in final for parent in stage.chain[:-1])]
    wanted = pending.keys() - {stage.key for stage in blocked}
    needed = defaultdict[str, set[int]](set)
    """Of each parent to train, the updates after which its weights are needed; 0: its final ones."""
    for stage in reversed(plan.stages.values()):
        if stage.key in wanted and isinstance(stage.init, Parent):
            key = stage.init.stage.key
            if key in pending or not is_stored(weights_of(key, stage.init.step)):
                needed[key] |= set(stage.init.save_at or {0})
                wanted.add(key)
    if not wanted:
        return [], blocked
    items, names, turns = list[Item](), plan.names(), _turns(plan)
    fitted = {run.stage.key for run in plan.runs} - {run.stage.key for run in plan.runs_with_weights}
    for key, stage in ((key, stage) for key, stage in plan.stages.items() if key in wanted):
        serves = names[key]
        name = serves[0] if len(serves) == 1 else f"{stage.phase} of {serves[0]} and {len(serves) - 1} more"
        selection = (stage.selection.metric,) if stage.selection else ()
        task = plan.task_of.get(key)
        metrics = tuple(dict.fromkeys((*selection, *(task.metrics if task else ()))))
        _, attempt = statuses.get(key, ("", 0))
        steps, remake, cost = needed[key], key not in pending, plan.stage_flops(stage)
        kept = 0 in steps or (key not in fitted and not remake and (keep != "none" or bool(steps)))
        save_at = tuple(sorted((steps if remake else steps | plan.saved_at(stage)) - {0}))
        item = Item(stage, name, cost, metrics, kept, remake, attempt, save_at=save_at, turn=turns[key])
        item.cost *= item.until / stage.optim.steps if item.until else 1
        items.append(item)
    return items, blocked


def _turns(plan: Plan) -> dict[str, int]:
    """When each stage is to start, by its key. All rows and columns on one subset and seed come first, then on the grid of two and
    two, and so on: whenever a bench is interrupted, its rows can be compared."""
    turns: dict[str, int] = {}
    values = plan.resolved.subsets, plan.resolved.seeds
    subsets, seeds = ({value: place for place, value in enumerate(each)} for each in values)
    for run in plan.runs:
        turn = max(subsets.get(run.subset, 0), seeds.get(run.seed, 0))
        for stage in run.stage.chain:
            turns[stage.key] = min(turn, turns.get(stage.key, turn))
    return turns
