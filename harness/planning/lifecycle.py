"""The life of the stages of one command as a state machine: which may start now, and what each answer of the cluster means.

Pure: no ray, no clock, no database. The caller asks for a lease, trains, and reports; every report is one transition, which
returns what follows from it. The bench's pool keeps many stages in flight, a trial of `tune` one.

    waiting -> ready -> leasing -> running -> ended
       ^         ^        | | |       | |
       |         +- held -+-|-|-------+ +-> ready (its worker died; at most WORKER_DEATHS times)
       +-- weights missing -+ +-> ended (recorded elsewhere)
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from harness.planning.work import Item
from harness.specs import SHARED_PHASES, Parent, Stage, Status

WORKER_DEATHS = 3
"""A stage whose worker died this often becomes a failed record."""

State = Literal["waiting", "ready", "leasing", "held", "running", "ended"]
"""'waiting': for its parent; 'leasing': its lease was asked for; 'held': another process trains it, which may have taken the lease over."""
End = Literal["done", "failed", "diverged", "elsewhere"]
"""'elsewhere': recorded as done by another driver."""


@dataclass(frozen=True)
class Running:
    """How far a running stage is: `step` of `steps` updates, its tokens and FLOPs a second while it trains, and the
    seconds that are left at this speed."""

    step: int
    steps: int
    tokens: float
    flops: float
    seconds_left: float


@dataclass(frozen=True)
class Event:
    """What happened to a stage, for people. 'notice': what the cluster lacks, while this stage waits. 'running': how far it is."""

    kind: Literal["started", "running", "done", "failed", "diverged", "elsewhere", "retried", "waiting", "notice"]
    item: Item
    reason: str = ""
    running: Running | None = None

    @property
    def ended(self) -> bool:
        return self.kind in get_args(End)


@dataclass(frozen=True)
class RecordFailure:
    """The caller commits a failed record: no worker is left that could."""

    item: Item
    reason: str


@dataclass(frozen=True)
class ReleaseLease:
    """The caller gives the lease back: nothing will be committed under it now."""

    item: Item


@dataclass(frozen=True)
class DiscardWeights:
    """No unfinished stage starts from this stage's weights, and no other table shares them."""

    stage: Stage


Output = Event | RecordFailure | ReleaseLease | DiscardWeights


class Lifecycle:
    """Stages by key, each of which ends exactly once. A method that takes an item is a transition of its stage and returns its
    outputs in order; one that the stage's state does not admit raises ValueError.

    A parent whose weights are gone is remade beside the items: a remake has no events, and never writes a record.
    """

    def __init__(self, items: Iterable[Item]) -> None:
        every = list(items)
        self._states: dict[str, State] = {}
        self._counts: Counter[State] = Counter()
        self.ends: Counter[End] = Counter()
        """How many stages ended, and how; without remakes."""
        self._ready: list[tuple[int, float, int, Item]] = []
        self._pushed = 0
        self._held: list[Item] = []
        self._children: dict[str, list[Item]] = {}
        """Items that wait, by their parent's key."""
        self._remade: set[str] = set()
        self._starts: dict[str, set[int]] = {}
        """The updates after which items need the weights of their parent, by its key; 0: its final ones."""
        self._num_children = Counter(item.stage.parent.key for item in every if item.stage.parent)
        keys = {item.stage.key for item in every}
        for item in every:
            self._needs(item.stage)
            if item.stage.parent and item.stage.parent.key in keys:
                self._wait(item)
            else:
                self._push(item)

    # ------------------------------------------------------------------------------------------------------- queries

    def state(self, key: str) -> State | None:
        """Of a stage's key; None where it is none of these stages."""
        return self._states.get(key)

    def count(self, state: State) -> int:
        """How many stages are in a state."""
        return self._counts[state]

    @property
    def unfinished(self) -> int:
        """How many stages have not ended."""
        return len(self._states) - self._counts["ended"]

    @property
    def next_stage(self) -> Stage | None:
        """The stage of the item that `next_item` would return now."""
        return self._ready[0][-1].stage if self._ready else None

    # --------------------------------------------------------------------------------------------------- transitions

    def next_item(self) -> Item | None:
        """The most expensive stage of the lowest turn that is ready: ask for its lease now. None where none is."""
        if not self._ready:
            return None
        item = heapq.heappop(self._ready)[-1]
        self._move(item, "leasing", "ready")
        return item

    def ask_again(self) -> None:
        """Stages that another process trained a while ago are ready to be asked for again."""
        held, self._held = self._held, []
        for item in held:
            self._push(item)

    def held(self, item: Item) -> list[Output]:
        """Another live process has the lease, perhaps since it expired under us."""
        self._move(item, "held", "leasing", "running")
        self._held.append(item)
        return self._events("waiting", item, "another driver is training it")

    def started(self, item: Item) -> list[Output]:
        """The lease is ours, and a worker trains."""
        self._move(item, "running", "leasing")
        return self._events("started", item)

    def weights_missing(self, item: Item, shown: str) -> list[Output]:
        """The lease is ours, and the weights that the stage starts from were deleted: they are made first. `shown`: where they
        were."""
        parent = item.stage.parent
        assert parent is not None
        self._move(item, "waiting", "leasing")
        outputs: list[Output] = [ReleaseLease(item)]
        if self._states.get(parent.key, "ended") == "ended":
            if parent.parent:
                self._num_children[parent.parent.key] += 1
                self._needs(parent)
            self._remade.add(parent.key)
            starts = self._starts[parent.key]
            save_at = tuple(sorted(starts - {0}))
            name = f"weights for {item.name}"
            self._push(Item(parent, name, item.cost, (), 0 in starts, True, 0, save_at=save_at, turn=item.turn))
            sentence = f"the weights of stage {parent.key[:10]} ({parent.phase}) were deleted from {shown}: they are made again."
            outputs.append(Event("notice", item, sentence))
        self._wait(item)
        return outputs

    def weights_found(self, item: Item) -> list[Output]:
        """The lease of a remake is ours, and its weights are there again: another process made them."""
        if not item.remake:
            raise ValueError(f"{item.name} is no remake")
        return [ReleaseLease(item), *self._end(item, "elsewhere", "", "leasing")]

    def recorded(self, item: Item, status: Status, *, weights: bool) -> list[Output]:
        """Another process recorded the stage first. `weights`: whether all weights that it stores are there; if a child needs them and
        they are not, they are made again."""
        if status != "done":
            return self._end(item, status, "recorded by another driver", "leasing", "running")
        if item.stored and not weights:
            item.remake = True
            self._move(item, "ready", "leasing", "running")
            self._push(item)
            return []
        return self._end(item, "elsewhere", "", "leasing", "running")

    def finished(self, item: Item, status: Status, reason: str = "") -> list[Output]:
        """The stage was trained, and its record is ours."""
        return self._end(item, status, reason, "running")

    def worker_lost(
        self, item: Item, reason: str, *, with_node: bool = False, recorded: Status | None = None
    ) -> list[Output]:
        """The worker's process ended under the stage. `recorded`: the status that it had committed before, which stands.
        `with_node`: its node died with it, which says nothing of the stage."""
        if recorded and not item.remake:
            return self._end(item, recorded, "", "running")
        item.deaths += not with_node
        if item.deaths < WORKER_DEATHS:
            self._move(item, "ready", "running")
            self._push(item)
            return self._events("retried", item, reason)
        last = ReleaseLease(item) if item.remake else RecordFailure(item, reason)
        return [last, *self._end(item, "failed", reason, "running")]

    # ------------------------------------------------------------------------------------------------------ machinery

    def _needs(self, stage: Stage) -> None:
        if isinstance(stage.init, Parent):
            self._starts.setdefault(stage.init.stage.key, set()).update(stage.init.save_at or {0})

    def _move(self, item: Item, to: State, *allowed: State) -> None:
        now = self._states.get(item.stage.key)
        if now not in allowed:
            raise ValueError(f"{item.name} is {now}: it cannot become {to}")
        self._set(item, to)

    def _set(self, item: Item, to: State) -> None:
        if before := self._states.get(item.stage.key):
            self._counts[before] -= 1
        self._counts[to] += 1
        self._states[item.stage.key] = to

    def _push(self, item: Item) -> None:
        self._set(item, "ready")
        self._pushed += 1
        heapq.heappush(self._ready, (item.turn, -item.cost, self._pushed, item))

    def _wait(self, item: Item) -> None:
        assert item.stage.parent is not None
        self._set(item, "waiting")
        self._children.setdefault(item.stage.parent.key, []).append(item)

    def _events(
        self, kind: Literal["started", "retried", "waiting"] | End, item: Item, reason: str = ""
    ) -> list[Output]:
        return [] if item.stage.key in self._remade else [Event(kind, item, reason)]

    def _ended(self, kind: End, item: Item, reason: str) -> list[Output]:
        outputs = self._events(kind, item, reason)
        self.ends[kind] += len(outputs)
        self._remade.discard(item.stage.key)
        return outputs

    def _end(self, item: Item, kind: End, reason: str, *allowed: State) -> list[Output]:
        """End a stage: its children become ready, or fail with it; its parent's weights may have served."""
        self._move(item, "ended", *allowed)
        key = item.stage.key
        outputs = self._ended(kind, item, reason)
        if kind in ("failed", "diverged"):
            for child in self._descendants(key):
                self._move(child, "ended", "waiting")
                outputs += self._ended("failed", child, f"its parent stage {key[:10]} {kind}: {reason}")
            return outputs
        for child in self._children.pop(key, []):
            self._push(child)
        parent = item.stage.parent
        if parent:
            self._num_children[parent.key] -= 1
            if not self._num_children[parent.key] and parent.phase not in (*SHARED_PHASES, "fine-tune"):
                outputs.append(DiscardWeights(parent))
        return outputs

    def _descendants(self, key: str) -> Iterator[Item]:
        for child in self._children.pop(key, []):
            yield child
            yield from self._descendants(child.stage.key)
