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
from harness.execution import Execution, WorkerSetup
from harness.planning.work import Ended, Event, Item
from harness.specs import Data, Encoder, Objective, Optim, Record, RowSet, Stage
from harness.storage import Storage
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


def start_worker(execution: Execution, setup: WorkerSetup, ledger: Any, name: str, /, **options: Any) -> Any:
    kind: Any = ray.remote(Idler)
    return kind.options(num_cpus=execution.cpus_per_run, **options).remote(setup, ledger, name, execution)


class Bench:
    """A pool at work in a thread."""

    def __init__(self, folder: Path, every: list[Item]) -> None:
        (folder / "begun").mkdir(exist_ok=True)
        self.folder, self.every, self.events = folder, every, list[Event]()
        self.store = Store(f"sqlite:///{folder / 'harness.db'}")
        setup = WorkerSetup({"e" * 32: (folder, None)}, Storage(str(folder / "products")))
        empty = (np.zeros(1, np.int32), np.zeros(1, np.int64))
        known = {"e" * 32: Vocabulary(9, None)}
        self.pool = Pool(self.store, setup, known, lambda *_: empty, Execution("auto", slots=2), "none")
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


def test_a_node_that_joins_is_used_and_one_that_leaves_gives_its_runs_back(cluster: Cluster, tmp_path: Path) -> None:
    """The node under a stage leaves, which is not the stage's fault; the whole cluster is gone for a while."""

    def without_nodes() -> list[str]:
        return [sentence for sentence in bench.said("notice") if sentence.startswith("waiting for a worker of 1 CPUs")]

    with node(cluster, num_cpus=1) as first:
        bench = Bench(tmp_path, leaves(6))
        bench.waits_for("a stage on the first node", bench.begun)
        with node(cluster, num_cpus=1) as second:
            bench.waits_for("one on the second", lambda: len({each["node"] for each in bench.begun()}) == 2)
            leave(cluster, second, gracefully=False)
            orphans = [each["pid"] for each in bench.begun() if each["node"] == second.node_id]
            assert not any(map(psutil.pid_exists, orphans)), "it would hold what it holds"
            bench.waits_for("it back", lambda: bench.said("retried"))
        before = len(without_nodes())  # on a busy machine
        leave(cluster, first)
        bench.waits_for("a word of it", lambda: len(without_nodes()) > before)
    with node(cluster, num_cpus=2):
        bench.go()
        records = bench.ends()
    assert [each.status for each in records.values()] == ["done"] * 6
    assert len(bench.said("retried")) == 2
    assert all(item.deaths == 0 for item in bench.every)


def test_a_node_that_gives_notice_gives_its_stages_back_and_gets_no_other(cluster: Cluster, tmp_path: Path) -> None:
    """Which is not the stage's fault."""
    every = leaves(2)
    with node(cluster, num_cpus=1):
        bench = Bench(tmp_path, every)
        bench.waits_for("a stage on the node that stays", bench.begun)
        with node(cluster, num_cpus=1) as leaving:
            bench.waits_for("the other on it", lambda: leaving.node_id in {each["node"] for each in bench.begun()})
            words = ["--address", cluster.address, "--node-id", leaving.node_id]  # as a cloud's notice does
            words += ["--deadline-remaining-seconds", "600", "--reason", "DRAIN_NODE_REASON_PREEMPTION"]
            ray_program = Path(sys.executable).with_name("ray")
            subprocess.run([ray_program, "drain-node", *words, "--reason-message", "spot"], check=True)
            bench.waits_for("it back", lambda: bench.said("retried"))
            gone(leaving)
        bench.go()
        records = bench.ends()
    assert [each.status for each in records.values()] == ["done"] * 2
    assert bench.said("retried") == ["stopped"]
    told = [said for said in bench.said("notice") if not said.startswith("waiting")]  # for a worker, on a busy machine
    assert told == [f"node {leaving.node_id[:10]} leaves the cluster: its stages stop with a checkpoint."]
    assert all(item.deaths == 0 for item in every)


def test_at_its_deadline_a_bench_ends_in_order_and_another_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    with node(cluster, num_cpus=2):
        bench = Bench(tmp_path, leaves(3))
        bench.waits_for("two stages", lambda: len(bench.begun()) == 2)
        bench.pool._stop_requests._deadline = time.monotonic()
        assert bench.ends() == {}
        assert bench.pool.over == "the time of this command is over"
        assert len(bench.begun()) == 2, "the third did not start"
        assert bench.said("retried") == ["stopped"] * 2
        again = Bench(tmp_path, leaves(3))
        again.go()
        records = again.ends()
    assert [each.status for each in records.values()] == ["done"] * 3
    assert again.pool.over == ""
