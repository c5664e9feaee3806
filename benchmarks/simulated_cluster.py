"""A cluster of 100 nodes with 8 slots each, simulated on this machine: whether the driver and the ledger of one command keep 800 slots busy.

    python benchmarks/simulated_cluster.py [--stages 100000] [--nodes 100] [--store URL] [--cpu] [--figure FILE.svg]

Real: the pool's loop with its workers' bookkeeping, the stages' lifecycle and leases, the ledger's code, its store (SQLite in a temporary
folder, or the URL of an empty PostgreSQL) and records with predictions of 400 bytes to 40 kB. Simulated: Ray and the workers. They answer
by a clock of their own, which no stage waits for: stages last as long as the trained ones of results/few_shot_bert_tiny (drawn by seed; docs/clusters.md counts with the file of commit 0310732),
workers start in 8 s, one stage in 1,000 loses its worker, one in 1,000 fails, and every 10 minutes a node leaves and another joins.

The driver and the ledger are two servers on that clock: what the driver computes takes the time that it takes here, a call of the ledger
waits for those before it, and each call of Ray takes what Ray 2.60 took (`ROUND_TRIP`, `WAIT`). With `--cpu` CPU time counts alone, as on a
machine that does nothing else and has a disk without delay; without it the clock on the wall. Ray's own processes, its transport of
records, the network and the view are not in it: benchmarks/scheduler.py measures those on real slots.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import itertools
import random
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import psutil
from ray.exceptions import RayActorError
from scheduler import items, nothing

from harness import private
from harness.cluster import ledger, pool, worker
from harness.encoders.tokens import Vocabulary
from harness.execution import Execution, WorkerSetup
from harness.methods import REFERENCE
from harness.planning.work import Item
from harness.specs import Record
from harness.storage import Storage
from harness.store import Store

MEASURED = Path(__file__).parents[1] / "results" / "few_shot_bert_tiny" / "results.csv"
ROUND_TRIP = 0.002
"""Seconds of a call of a warm actor and its answer."""
WAIT = 2e-6
"""Seconds of `ray.wait` for each reference that it is given."""
START, DEATHS, FAILURES, NODE_LEAVES = 8.0, 1e-3, 1e-3, 600.0
"""Seconds of a worker's start, shares of stages, and seconds between nodes that leave."""
TURNS = 15
"""Replicates of the table: stages start in their order, the longest first within each."""


def plan(count: int) -> tuple[list[Item], dict[str, float]]:
    """So many stages, and the seconds of each by its key: those of methods that train, without reference rows, which no GPU waits for."""
    with MEASURED.open(newline="") as file:
        trained = (row for row in csv.DictReader(file) if row["status"] == "done" and row["method"] not in REFERENCE)
        rows = {row["key"]: row for row in trained}
    runs = [(float(row["flops"]), float(row["seconds"])) for row in rows.values()]
    random_, seconds, every = random.Random(31), {}, items(count)
    for number, item in enumerate(every):
        item.cost, seconds[item.stage.key] = random_.choice(runs)
        item.turn = number * TURNS // count
    return every, seconds


class Reference:
    """An answer: its value or its error, once it is there."""

    def __init__(self) -> None:
        self.ready_at: float | None = None
        self.value: Any = None
        self.error: Exception | None = None


class Cluster:
    """What `ray` is to the pool, the ledger's stages and the worker's answers; its clock, and the workers of its nodes.

    `now`: of the driver. `busy`: (seconds, slots that train) at each change.
    """

    def __init__(self, nodes: int, slots: int, seconds: dict[str, float], storage: Storage, cpu: bool) -> None:
        self.now, self._cpu = 0.0, cpu
        self._timer: Callable[[], float] = time.process_time if cpu else time.perf_counter
        self._mark = self._timer()
        self._coming: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers, self._names = itertools.count(), itertools.count()
        self._ready: dict[Reference, None] = {}
        self.random, self.slots, self.seconds, self.storage = random.Random(7), slots, seconds, storage
        self.at: float | None = None
        """The time of a worker, while it does something."""
        self.free = {f"node-{next(self._names)}": slots for _ in range(nodes)}
        self.workers: dict[str, set[Actor]] = defaultdict(set)
        self.waiting: list[Actor] = []
        self.busy: list[tuple[float, int]] = [(0.0, 0)]
        self.trained_seconds = self.driver_seconds = 0.0
        self.over = False
        self.after(NODE_LEAVES, self._node_leaves)

    # ---------------------------------------------------------------------------------------------------------- clock

    def spend(self) -> None:
        """What the driver has computed since the last call takes time."""
        mark = self._timer()
        spent, self._mark = mark - self._mark, mark
        self.now += spent
        self.driver_seconds += spent

    def forget(self) -> None:
        """What this process has computed since the last call was none of the driver's."""
        self._mark = self._timer()

    def monotonic(self) -> float:
        self.spend()
        return self.now

    def sleep(self, seconds: float) -> None:
        self.spend()
        self.advance(self.now + seconds)

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._coming, ((self.at or self.now) + seconds, next(self._numbers), act))

    def advance(self, until: float) -> None:
        """Let happen what happens elsewhere until then."""
        while self._coming and self._coming[0][0] <= until:
            self.at, _, act = heapq.heappop(self._coming)
            act()
        self.at, self.now = None, max(self.now, until)
        self.forget()

    def train(self, change: int) -> None:
        """A slot begins or ends to train."""
        self.busy.append((self.at or self.now, self.busy[-1][1] + change))

    # ------------------------------------------------------------------------------------------------------------ Ray

    def give(self, reference: Reference, value: Any = None, error: Exception | None = None) -> None:
        reference.value, reference.error, reference.ready_at = value, error, self.at or self.now
        self._ready[reference] = None

    def wait(self, references: list[Reference], timeout: float) -> tuple[list[Reference], list[Reference]]:
        self.spend()
        self.advance(self.now + WAIT * len(references))
        until, asked = self.now + timeout, set(references)
        while not (ready := next((each for each in self._ready if each in asked), None)):
            if not self._coming or self._coming[0][0] > until:
                self.advance(until)
                return [], references
            self.advance(self._coming[0][0])
        del self._ready[ready]
        self.forget()
        return [ready], []

    def get(self, reference: Reference) -> Any:
        if self.at is None:
            self.spend()
            if reference.ready_at is not None:
                self.advance(reference.ready_at)
        if reference.error:
            raise reference.error
        return reference.value

    def put(self, value: Any) -> Any:
        return value

    def kill(self, actor: Actor) -> None:
        actor.end()

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": name, "Alive": True, "Resources": {"CPU": float(self.slots)}} for name in self.free]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "driver")

    def available_resources(self) -> dict[str, float]:
        return {"CPU": float(sum(self.free.values()))}

    # ---------------------------------------------------------------------------------------------------------- nodes

    def place(self) -> None:
        """Start the actors that wait, where a slot is free."""
        for name, free in self.free.items():
            while free and self.waiting:
                actor, free = self.waiting.pop(0), free - 1
                self.free[name] = free
                self.workers[name].add(actor)
                actor.start(name)

    def _node_leaves(self) -> None:
        if self.over:
            return
        name = self.random.choice(list(self.free))
        del self.free[name]
        for actor in list(self.workers.pop(name)):
            actor.die(RayActorError(error_msg=private.NODE_DIED))
        self.free[f"node-{next(self._names)}"] = self.slots
        self.place()
        self.after(NODE_LEAVES, self._node_leaves)


class Actor:
    """A worker, with the calls that the pool makes."""

    def __init__(self, cluster: Cluster, ledger_: Any) -> None:
        self._cluster, self._ledger = cluster, ledger_
        self._node, self._ended = "", False
        self._answer: Reference | None = None
        self._began = 0.0
        self.ready = SimpleNamespace(remote=self._ready)
        self.run = SimpleNamespace(options=lambda name: SimpleNamespace(remote=self._run))
        cluster.waiting.append(self)

    def _ready(self) -> Reference:
        self._answer = Reference()
        self._cluster.place()
        return self._answer

    def start(self, node: str) -> None:
        self._node = node
        self._cluster.after(START, self._started)

    def _started(self) -> None:
        if not self._ended and self._answer:
            self._cluster.give(self._answer, (self._node, ""))

    def _run(self, item: Item, *_: Any) -> Reference:
        cluster, reference = self._cluster, Reference()
        self._answer, self._began = reference, cluster.now
        seconds = cluster.seconds[item.stage.key]
        cluster.train(+1)
        if cluster.random.random() < DEATHS:
            cluster.after(seconds * cluster.random.random(), lambda: self._dies(reference))
        else:
            cluster.after(seconds, lambda: self._trained(item, reference))
        return reference

    def _dies(self, reference: Reference) -> None:
        if self._answer is reference and not self._ended:
            self.die(RayActorError(error_msg="its process ended"))

    def _trained(self, item: Item, reference: Reference) -> None:
        cluster = self._cluster
        if self._answer is not reference or self._ended:
            return
        record = nothing(item, cluster.storage)
        if cluster.random.random() < FAILURES:
            record = Record(item.stage.key, "failed", "drawn to fail")
        record.seconds = cluster.seconds[item.stage.key]
        result = worker.committed(item, record, self._ledger, None, cluster.storage)
        self._no_longer()
        cluster.after(self._ledger.free_at + ROUND_TRIP - (cluster.at or 0.0), lambda: cluster.give(reference, result))

    def _no_longer(self) -> None:
        """The stage has ended, or was cut off."""
        self._cluster.trained_seconds += (self._cluster.at or self._cluster.now) - self._began
        self._began = 0.0
        self._cluster.train(-1)

    def die(self, error: Exception) -> None:
        if self._began:
            self._no_longer()
        self.end()
        if self._answer:
            self._cluster.give(self._answer, error=error)

    def end(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self in self._cluster.workers.get(self._node, ()):
            self._cluster.workers[self._node].remove(self)
            self._cluster.free[self._node] += 1
            self._cluster.place()
        elif self in self._cluster.waiting:
            self._cluster.waiting.remove(self)


class LedgerServer:
    """The ledger behind a queue: a call begins when those before it are done, and takes as long as it takes here."""

    def __init__(self, cluster: Cluster, ledger_: Any) -> None:
        self._cluster, self._ledger = cluster, ledger_
        self.free_at = 0.0
        self.calls: Counter[str] = Counter()
        self.wall: defaultdict[str, float] = defaultdict(float)
        self.cpu: defaultdict[str, float] = defaultdict(float)

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self._call(name, arguments))

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Reference:
        cluster, reference = self._cluster, Reference()
        if cluster.at is None:
            cluster.spend()
            cluster.advance(cluster.now + ROUND_TRIP / 2)
        asked = cluster.at or cluster.now
        wall, cpu = time.perf_counter(), time.process_time()
        reference.value = getattr(self._ledger, name)(*arguments)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        self.calls[name] += 1
        self.wall[name] += wall
        self.cpu[name] += cpu
        self.free_at = max(asked, self.free_at) + (cpu if cluster._cpu else wall)
        reference.ready_at = self.free_at + ROUND_TRIP / 2
        cluster.forget()
        return reference


def simulated(folder: Path, url: str, count: int, nodes: int, slots: int, cpu: bool) -> Any:
    """A plan trained on such a cluster: the cluster, its ledger, the ends of stages as (seconds, how), and (stages, MB) on the way."""
    every, seconds = plan(count)
    store, storage = Store(url or f"sqlite:///{folder / 'harness.db'}"), Storage(str(folder / "products"))
    cluster = Cluster(nodes, slots, seconds, storage, cpu)
    here: Any = ledger.Ledger
    servers: list[LedgerServer] = []

    def start_ledger(store: Store, storage: Storage, owner: Any) -> LedgerServer:
        servers.append(LedgerServer(cluster, here.__ray_metadata__.modified_class(store.url, storage, owner, 60.0)))
        return servers[0]

    with ExitStack() as patched:
        for module in (pool, ledger, worker):
            patched.enter_context(patch.object(module, "ray", cluster))
        patched.enter_context(patch.object(pool, "time", cluster))
        patched.enter_context(patch.object(pool, "start_ledger", start_ledger))
        patched.enter_context(patch.object(private, "draining_nodes", dict))
        patched.enter_context(patch.object(private, "orphaned_placement_groups", list))
        empty: Any = None
        vocabularies = {item.stage.encoder.digest: Vocabulary(100, None, 0) for item in every}
        driver = pool.Pool(
            store,
            WorkerSetup(folder, storage),
            vocabularies,
            lambda *_: empty,
            Execution(),
            "simulated",
            lambda execution, setup, ledger_, /, *_, **options: Actor(cluster, ledger_),
        )
        ends: list[tuple[float, str]] = []
        memory, process = [], psutil.Process()
        cluster.forget()
        for event in driver.run(every):
            if event.ended:
                ends.append((cluster.now, event.kind))
                if len(ends) in {count // 100, count // 10, count // 2, count}:
                    memory.append((len(ends), process.memory_info().rss / 2**20))
        cluster.over = True
        driver.close()
    return cluster, servers[0], ends, memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--slots", type=int, default=8, help="of each node")
    parser.add_argument("--store", default="", help="URL of an empty store (default: a file of SQLite)")
    parser.add_argument("--cpu", action="store_true", help="the clock counts CPU time alone")
    parser.add_argument("--figure", type=Path, help="write a picture of the busy slots")
    own = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        cluster, server, ends, memory = simulated(Path(folder), own.store, own.stages, own.nodes, own.slots, own.cpu)
    slots, last = own.nodes * own.slots, ends[-1][0]
    begun = next(at for at, number in cluster.busy if number)
    full = [at for at, number in cluster.busy if number >= 0.99 * slots] or [begun, last]
    counts = ", ".join(f"{number:,} {kind}" for kind, number in Counter(kind for _, kind in ends).items())
    print(f"{counts} on {slots} slots in {last / 60:.1f} simulated minutes, {time.perf_counter() - began:.0f} s here")
    print(f"the first stage trains after {begun:.1f} s, 99 % of the slots after {full[0]:.1f} s")
    print(f"stages a second, from the first start to the last end: {len(ends) / (last - begun):.1f}")
    idle = 1 - cluster.trained_seconds / (slots * (last - begun))
    print(
        f"idle share of the slots: {100 * idle:.2f} %; from the last moment with 99 % of them busy to the end: {last - full[-1]:.0f} s"
    )
    for name, number in server.calls.most_common():
        each = (
            f"{1000 * server.cpu[name] / number:.2f} ms of CPU, {1000 * server.wall[name] / number:.2f} ms by the clock"
        )
        print(f"ledger: {number:,} x {name}, each {each}")
    print(f"driver: {1000 * cluster.driver_seconds / len(ends):.2f} ms a stage")
    stage = {
        kind: sum(getattr(server, kind)[name] for name in ("lease", "commit")) / len(ends) for kind in ("cpu", "wall")
    }
    print(f"lease and commit: {1 / stage['cpu']:.0f} stages a second of CPU, {1 / stage['wall']:.0f} by the clock")
    print("memory of driver and ledger: " + ", ".join(f"{megabytes:.0f} MB after {at:,}" for at, megabytes in memory))
    if own.figure:
        draw(own.figure, cluster.busy, slots)


def draw(path: Path, busy: list[tuple[float, int]], slots: int) -> None:
    """Busy slots over time."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    every = max(1, len(busy) // 2000)
    figure, axes = plt.subplots(figsize=(6, 2.2), layout="constrained")
    axes.step([at / 60 for at, _ in busy[::every]], [number for _, number in busy[::every]], where="post", lw=0.8)
    axes.axhline(slots, color="0.6", lw=0.6)
    axes.set(xlabel="simulated minutes", ylabel="slots that train", ylim=(0, 1.05 * slots))
    figure.savefig(path)


if __name__ == "__main__":
    main()
