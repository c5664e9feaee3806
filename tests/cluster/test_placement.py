"""Where stages run: the pool on real raylets that stand for nodes, which come and go, with workers that train nothing and
wait where a test wants them to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
from cluster.driver import waited
from ray.cluster_utils import Cluster

from harness.cluster import pool as pool_module
from harness.cluster import worker
from harness.cluster.pool import Pool
from harness.cluster.worker import WorkerProcess
from harness.encoders.tokens import Vocabulary
from harness.planning.request import Request
from harness.planning.work import Ended, Event, Item
from harness.specs import Data, Encoder, Objective, Optim, Record, RowSet, Stage
from harness.storage import Storage, WorkerSetup
from harness.store import Store

pytestmark = pytest.mark.ray


class Idler(WorkerProcess):
    """Trains nothing: it says what it begins in the folder of the store, and goes on when the file `go` is there, or stops when it is asked
    to."""

    def ready(self) -> str:
        """Without torch."""
        return str(ray.get_runtime_context().get_node_id())

    def record(self, item: Item, *_: Any) -> Record | Ended:
        ((folder, _),) = self._setup.encoders.values()
        context = ray.get_runtime_context()
        place = {"pid": os.getpid(), "node": context.get_node_id()}
        begun = folder / "begun" / f"{item.stage.seed}.{uuid.uuid4().hex}"
        begun.with_suffix(".part").write_text(json.dumps(place))
        begun.with_suffix(".part").rename(begun)
        while not (folder / "go").exists():
            time.sleep(0.02)
            if worker.STOP.is_set():
                return Ended("stopped", "stopped")
        return Record(item.stage.key, "done", flops=1e9, seconds=0.01, provenance={"host": "none", "encoder": "e" * 32})


def start_worker(request: Request, setup: WorkerSetup, ledger: Any, **options: Any) -> Any:
    kind: Any = ray.remote(Idler)
    return kind.options(num_cpus=request.cpus_per_run, **options).remote(setup, ledger, request)


class Bench:
    """A pool at work in a thread."""

    def __init__(self, folder: Path, every: list[Item]) -> None:
        (folder / "begun").mkdir(exist_ok=True)
        self.folder, self.every, self.events = folder, every, list[Event]()
        self.store = Store(f"sqlite:///{folder / 'harness.db'}")
        setup = WorkerSetup({"e" * 32: (folder, None)}, Storage(str(folder / "products")))
        empty = (np.zeros(1, np.int32), np.zeros(1, np.int64))
        known = {"e" * 32: Vocabulary(9, None)}
        self.pool = Pool(self.store, setup, known, lambda *_: empty, Request(address="auto", slots=2), "none")
        self._ended = ThreadPoolExecutor(1).submit(self._run)

    def _run(self) -> None:
        try:
            for event in self.pool.run(self.every):
                self.events.append(event)
        finally:
            self.pool.close()

    def begun(self) -> list[dict[str, Any]]:
        """Every beginning of a stage so far, with its process's pid and node."""
        return [json.loads(path.read_text()) for path in (self.folder / "begun").iterdir() if path.suffix != ".part"]

    def waits_for(self, what: str, found: Callable[[], Any]) -> Any:
        return waited(what, lambda: (self._ended.done() and self._ended.result()) or found())

    def go(self) -> None:
        (self.folder / "go").touch()

    def ends(self) -> dict[str, Record]:
        """The records, once all stages have ended."""
        self.waits_for("the end", self._ended.done)
        return self.store.records([item.stage.key for item in self.every])

    def said(self, kind: str) -> list[str]:
        return [event.reason for event in self.events if event.kind == kind]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head that has nothing to train on; each test adds its nodes."""
    system = {"health_check_period_ms": 1000, "health_check_timeout_ms": 5000, "health_check_failure_threshold": 5}
    head = {"num_cpus": 0, "include_dashboard": False, "dashboard_port": 0}
    there = Cluster(initialize_head=True, head_node_args={**head, "_system_config": system})
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # which a worker cannot import
    ray.init(address=there.address, namespace="harness", log_to_driver=False, logging_level="ERROR")
    yield there
    ray.shutdown()
    there.shutdown()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "start_worker", start_worker)
    monkeypatch.setattr(pool_module, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(pool_module, "STALL_SECONDS", 3.0)


@contextmanager
def node(cluster: Cluster, **resources: Any) -> Iterator[Any]:
    """A node that leaves at the end, if it has not before."""
    added = cluster.add_node(**resources)
    try:
        yield added
    finally:
        if added in cluster.worker_nodes:
            leave(cluster, added)


def leave(cluster: Cluster, leaving: Any, *, gracefully: bool = True) -> None:
    cluster.remove_node(leaving, allow_graceful=gracefully)
    gone(leaving)


def gone(left: Any) -> None:
    waited("the cluster to know", lambda: not any(n["Alive"] and n["NodeID"] == left.node_id for n in ray.nodes()))


def leaves(count: int) -> list[Item]:
    """Stages without parents."""
    rows, optim, encoder = RowSet("a" * 32, "none/train", 20, 20.0), Optim(1e-3, 8, 10), Encoder("e" * 32, "none")
    stages = [Stage(Objective("mlm", 1, {"p_m": 0.15}), Data(rows), optim, seed, encoder) for seed in range(count)]
    return [Item(stage, f"stage {stage.seed}", 2.0, (), False, False, 0) for stage in stages]


def drain(cluster: Cluster, leaving: Any) -> None:
    """Give notice of a node, as a cloud does."""
    words = ["--address", cluster.address, "--node-id", leaving.node_id, "--deadline-remaining-seconds", "600"]
    words += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot"]
    subprocess.run([Path(sys.executable).with_name("ray"), "drain-node", *words], check=True)


def test_nodes_that_come_and_go_and_a_deadline(cluster: Cluster, tmp_path: Path) -> None:
    """A node that joins is used. One under a stage dies, one gives notice, the whole cluster is gone for a while: which is not the stage's fault. At
    its deadline a bench ends in order, and another goes on."""

    def without_nodes() -> list[str]:
        return [sentence for sentence in bench.said("notice") if sentence.startswith("waiting for a worker of 1 CPUs")]

    def begun_on(one: Any) -> list[int]:
        return [each["pid"] for each in bench.begun() if each["node"] == one.node_id]

    with node(cluster, num_cpus=1) as first:
        bench = Bench(tmp_path, leaves(6))
        bench.waits_for("a stage on the first node", bench.begun)
        with node(cluster, num_cpus=1) as second:
            bench.waits_for("one on the second", lambda: begun_on(second))
            leave(cluster, second, gracefully=False)
            assert not any(map(psutil.pid_exists, begun_on(second))), "it would hold what it holds"
            bench.waits_for("it back", lambda: bench.said("retried"))
        with node(cluster, num_cpus=1) as third:
            bench.waits_for("it on the third", lambda: begun_on(third))
            drain(cluster, third)
            bench.waits_for("it back", lambda: "stopped" in bench.said("retried"))
            gone(third)
        before = len(without_nodes())  # on a busy machine
        leave(cluster, first)
        bench.waits_for("a word of it", lambda: len(without_nodes()) > before)
    notice = f"node {third.node_id[:10]} leaves the cluster: its stages stop with a checkpoint."
    assert bench.said("notice").count(notice) == 1
    assert len(bench.said("retried")) == 3
    with node(cluster, num_cpus=2) as last:
        bench.waits_for("two stages", lambda: len(begun_on(last)) == 2)
        bench.pool._stop_requests._deadline = time.monotonic()
        assert bench.ends() == {}
        assert bench.pool.over == "the time of this command is over"
        assert len(begun_on(last)) == 2, "the third did not start"
        assert bench.said("retried")[3:] == ["stopped"] * 2
        assert all(item.deaths == 0 for item in bench.every)
        again = Bench(tmp_path, leaves(6))
        again.go()
        records = again.ends()
    assert [each.status for each in records.values()] == ["done"] * 6
    assert again.pool.over == ""
