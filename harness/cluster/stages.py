"""The stages of one command: which may be trained now, and what each answer of the cluster means. No Ray and no clock.

waiting -> ready -> running -> ended
   ^         ^  |      |
   |         |  |      +-> ready (its process died; at most WORKER_DEATHS times)
   |         +-held (another command trains it)
   +-- the weights that it starts from were deleted: they are made again first
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Literal

from harness.planning.work import End, Ended, Event, Item
from harness.specs import SHARED_PHASES, Parent, Record, Stage, Status
from harness.storage import Storage, weights_of

WORKER_DEATHS = 3
"""A stage whose worker died this often becomes a failed record."""


class Stages:
    """Each stage ends exactly once. `ask`: a method of the ledger, with its arguments. `open`: the keys of stages that have not ended; `ready`: those that may be
    trained, as a heap: of the lowest turn the most expensive first. Weights that no stage starts from any more are deleted, without `keep_weights`.

    A parent whose weights are gone is remade beside the items: a remake has no events, and never writes a record.
    """

    def __init__(self, items: Iterable[Item], ask: Callable[..., Any], storage: Storage, keep_weights: bool) -> None:
        every = list(items)
        self._ask, self._storage, self._keep_weights = ask, storage, keep_weights
        self.open = {item.stage.key for item in every}
        self.ready: list[tuple[int, float, int, Item]] = []
        self._held: list[Item] = []
        self._waiting: defaultdict[str, list[Item]] = defaultdict(list)
        """By their parent's key, as all that follows."""
        self._steps: defaultdict[str, set[int]] = defaultdict(set)
        """The updates after which weights are needed; 0: the final ones."""
        self._users = Counter[str]()
        """How many stages that have not ended start from its weights."""
        self._remade: set[str] = set()
        self._events: list[Event] = []
        self._pushed = 0
        for item in every:
            self._add(item)

    def events(self) -> list[Event]:
        """What happened since the last call."""
        events, self._events = self._events, []
        return events

    def ask_again(self) -> None:
        """Stages that another command trained a while ago are ready to be asked for again."""
        held, self._held = self._held, []
        for item in held:
            self._push(item)

    def next(self) -> Item | None:
        """Lease the next stage: it is to be trained now, and `ended` told. None where nothing can be trained."""
        while self.ready:
            item = heapq.heappop(self.ready)[-1]
            key, start = item.stage.key, item.stage.init
            grant = self._ask("lease", key, item.seen_attempt, item.remake)
            if grant == "held":
                self._held.append(item)
            elif grant == "settled":
                self._recorded(item)
            elif item.remake and self._stored(*item.stored):  # another command made them
                self._ask("release", key)
                self._end(item, "elsewhere")
            elif isinstance(start, Parent) and not self._stored(weights_of(start.stage.key, start.step)):
                self._ask("release", key)
                self._remake(start.stage, item)
            else:
                self._tell("started", item)
                return item
        return None

    def ended(self, item: Item, ended: Ended) -> None:
        """What became of a stage that `next` returned."""
        status, reason = ended
        if status == "elsewhere":
            self._recorded(item)
        elif status == "stopped" or status == "left" or status == "died":
            recorded = self._status(item)
            if recorded and not item.remake:  # its worker had committed it
                self._end(item, recorded)
                return
            if status == "died":
                item.deaths += 1
                reason += f", {item.deaths} of {WORKER_DEATHS} times"
            if item.deaths < WORKER_DEATHS:
                self._tell("retried", item, reason)
                self._push(item)
                return
            if item.remake:
                self._ask("release", item.stage.key)
            else:
                self._ask("commit", item.stage, Record(item.stage.key, "failed", reason))
            self._end(item, "failed", reason)
        else:
            self._end(item, status, reason)

    # ------------------------------------------------------------------------------------------------------- one stage

    def _add(self, item: Item) -> None:
        """A stage is ready, or waits for its parent."""
        self.open.add(item.stage.key)
        start = item.stage.init
        if isinstance(start, Parent):
            key = start.stage.key
            self._users[key] += 1
            self._steps[key] |= set(start.save_at or {0})
            if key in self.open:
                self._waiting[key].append(item)
                return
        self._push(item)

    def _push(self, item: Item) -> None:
        self._pushed += 1
        heapq.heappush(self.ready, (item.turn, -item.cost, self._pushed, item))

    def _remake(self, parent: Stage, item: Item) -> None:
        """The weights that a stage starts from were deleted: it waits until they are made."""
        self._waiting[parent.key].append(item)
        if parent.key in self.open:
            return
        self._remade.add(parent.key)
        steps, name = self._steps[parent.key], f"weights for {item.name}"
        save_at = tuple(sorted(steps - {0}))
        self._add(Item(parent, name, item.cost, (), 0 in steps, True, 0, save_at=save_at, turn=item.turn))
        deleted = f"the weights of stage {parent.key[:10]} ({parent.phase}) were deleted from {self._storage.shown}"
        self._events.append(Event("notice", item, f"{deleted}: they are made again."))

    def _status(self, item: Item) -> Status | None:
        """How an attempt ended that is newer than those before this command."""
        status, attempt = self._ask("ended", [item.stage.key])[0].get(item.stage.key, (None, 0))
        return status if attempt > item.seen_attempt else None

    def _recorded(self, item: Item) -> None:
        """Another command recorded the stage, or has its lease and will. Where it left no weights, and a stage needs them, they are made again."""
        status = self._status(item)
        if status is None:
            self._held.append(item)
        elif status != "done":
            self._end(item, status, "recorded by another driver")
        elif self._stored(*item.stored):
            self._end(item, "elsewhere")
        else:
            item.remake = True
            self._push(item)

    def _stored(self, *names: str) -> bool:
        return all(map(self._storage.exists, names))

    def _tell(self, kind: Literal[End, "started", "retried"], item: Item, reason: str = "") -> None:
        if item.stage.key not in self._remade:
            self._events.append(Event(kind, item, reason))

    def _end(self, item: Item, kind: End, reason: str = "", follows: bool = False) -> None:
        """End a stage: its children become ready, or fail with it; its parent's weights may have served. `follows`: `reason` names the ancestor."""
        key, parent, failed = item.stage.key, item.stage.parent, kind in ("failed", "diverged")
        self._tell(kind, item, reason)
        self._remade.discard(key)
        self.open.remove(key)
        for child in self._waiting.pop(key, []):
            if failed:
                self._end(child, "failed", reason if follows else f"its parent stage {key[:10]} {kind}: {reason}", True)
            else:
                self._push(child)
        if parent and not failed:
            self._users[parent.key] -= 1
            shared = parent.phase in (*SHARED_PHASES, "fine-tune")
            if not (self._users[parent.key] or shared or self._keep_weights or self._ask("others_alive")):
                self._storage.delete(weights_of(parent.key))
