"""The workers of a pool: as many as fit on the nodes that are there now, started without waiting for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError

from harness.cluster.pulse import Place
from harness.cluster.worker import GONE, answer, left_with_node, slots_in, slots_of
from harness.errors import UserError
from harness.specs import Execution

RECOUNT_SECONDS = 3.0
STALL_SECONDS = 20.0
"""With no worker for this long, what is waited for is said."""
MAX_STARTS = 3
"""So many starts in a row may fail, nodes that leave not counted."""
MAX_STAGES = 500
"""A worker is replaced after so many stages: fragmented memory and what libraries leak go with its process."""

Hire = Callable[[str, dict[str, Any]], Any]
"""(name, options of the actor) -> a worker that starts, with the interface of `WorkerProcess`."""


@dataclass(eq=False)
class Member:
    """One worker. `place`: where it is, once it runs."""

    name: str
    actor: Any
    place: Place | None = None
    stages: int = 0


@dataclass
class Staff:
    """`tend` it every round, wait for its `references` with those of the stages, and let it `hear` the ones that are there."""

    hire: Hire
    execution: Execution
    idle: list[Member] = field(default_factory=list)
    """Give stages to these, the last first."""

    def __post_init__(self) -> None:
        self._starting: dict[Any, Member] = {}
        self._members: set[Member] = set()
        self._barred: dict[str, str] = {}
        self._made = self._failed = 0
        self._news: list[str] = []
        self._slots, self._counted_at = slots_of(self.execution), time.monotonic()
        self._had_one_at = time.monotonic()
        self._said = False

    @property
    def references(self) -> list[Any]:
        return list(self._starting)

    def tend(self, wanted: int) -> list[str]:
        """Have `wanted` workers, or as many as fit. Returns what is to be said of the cluster, one sentence each. Raises
        UserError when workers cannot be started at all."""
        now = time.monotonic()
        if now - self._counted_at >= RECOUNT_SECONDS:
            self._counted_at = now
            self._recount()
        for _ in range(len(self._members), min(self._slots, wanted)):
            self._start()
        if len(self._members) > len(self._starting):
            self._had_one_at, self._said = now, False
        elif not self._said and now - self._had_one_at >= (STALL_SECONDS if self._slots else 0):
            self._said = True
            self._news.append(self._waits_for())
        news, self._news = self._news, []
        return news

    def _recount(self) -> None:
        nodes = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in self._barred]
        self._slots, there = slots_in(nodes, self.execution), {node["NodeID"] for node in nodes}
        for member in [member for member in self.idle if member.place and member.place.node not in there]:
            self.dismiss(member)
        surplus = max(0, len(self._members) - self._slots)
        for member in list(self._starting.values())[::-1][:surplus]:  # they would wait for what went
            self.dismiss(member)

    def _waits_for(self) -> str:
        each = f"{self.execution.cpus_per_run:g} CPUs and {self.execution.gpus_per_run:g} GPUs"
        if not self._slots:
            return f"waiting for nodes: none that is there now has {each}; what was recorded is kept."
        free = ray.available_resources()
        return f"waiting for a worker of {each}: the cluster has {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs free."

    def _start(self) -> None:
        self._made += 1
        name = f"harness-worker-{self._made}"
        options = {"label_selector": {"ray.io/node-id": f"!in({','.join(self._barred)})"}} if self._barred else {}
        member = Member(name, self.hire(name, options))
        self._members.add(member)
        self._starting[member.actor.ready.remote()] = member

    def hear(self, reference: Any) -> bool:
        """Whether the reference was ours."""
        member = self._starting.pop(reference, None)
        if member is None:
            return False
        try:
            member.place, wrong = answer(reference)
        except (RayError, *GONE) as error:
            self.dismiss(member)
            if not left_with_node(error) and not isinstance(error, ActorUnavailableError):
                self._failed += 1
                if self._failed >= MAX_STARTS:
                    why = str(error).strip().splitlines()[-1][:300]
                    raise UserError(
                        f"No worker can be started: {self._failed} processes in a row ended before their first stage ({why})."
                    ) from None
            return True
        if wrong:
            assert member.place is not None
            self.dismiss(member)
            if member.place.node not in self._barred:
                self._barred[member.place.node] = wrong
                self._news.append(f"node {member.place.node[:10]} is not used: {wrong}")
            self._counted_at = -RECOUNT_SECONDS
            if not any(n["Alive"] and n["NodeID"] not in self._barred for n in ray.nodes()):
                raise UserError(wrong)
        else:
            self._failed = 0
            self.idle.append(member)
        return True

    def returned(self, member: Member, *, spent: bool) -> None:
        """A worker is free again, or replaced when it is `spent` or has done enough, one worker after another."""
        member.stages += 1
        if spent or (member.stages >= MAX_STAGES and not self._starting):
            self.dismiss(member)
        else:
            self.idle.append(member)

    def dismiss(self, member: Member) -> None:
        """Its process ends, if it has not; `tend` starts another."""
        self._members.discard(member)
        if member in self.idle:
            self.idle.remove(member)
        self._starting = {reference: each for reference, each in self._starting.items() if each is not member}
        ray.kill(member.actor)
