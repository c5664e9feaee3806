"""Where stages run: the pool on real raylets that stand for nodes, which come and go, with workers that train nothing and
wait where a test wants them to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
from cluster.driver import waited
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, remove_placement_group

import benchmarks.scheduler
from benchmarks.scheduler import items, nothing
from harness import private
from harness.cluster import ledger as ledger_module
from harness.cluster import pool as pool_module
from harness.cluster import stop
from harness.cluster.ledger import ask, start_ledger
from harness.cluster.pool import Pool
from harness.cluster.worker import TokenCache, UnusableProcessError, WorkerProcess, slots_in, slots_of
from harness.encoders.tokens import Vocabulary
from harness.errors import StoppedError, UserError
from harness.execution import Execution, WorkerSetup
from harness.planning.lifecycle import Event
from harness.planning.work import Item
from harness.specs import Record
from harness.storage import Storage
from harness.store import Owner, Store

pytestmark = pytest.mark.ray


class Idler(WorkerProcess):
    """Trains nothing: it says what it begins in the folder of the store, and goes on when the file `go` is there, or stops when it is asked
    to. What a stage does to its process stands in the stage's name."""

    def _prepare(self) -> None:
        """Without torch."""

    def record(self, item: Item, *_: Any) -> Record:
        folder = Path(self._setup.encoder_folder)
        context = ray.get_runtime_context()
        place = {"pid": os.getpid(), "node": context.get_node_id(), "gpu": context.get_accelerator_ids().get("GPU", [])}
        before = len(list((folder / "begun").glob(f"{item.stage.seed}.*")))
        begun = folder / "begun" / f"{item.stage.seed}.{uuid.uuid4().hex}"
        begun.with_suffix(".part").write_text(json.dumps(place))
        begun.with_suffix(".part").rename(begun)
        while not (folder / "go").exists():
            time.sleep(0.02)
            if stop.STOP.is_set():
                raise StoppedError("stopped")
        if item.name == "dies":
            os._exit(1)
        if item.name == "spoils once" and not before:
            raise UnusableProcessError("CUDA error: device-side assert triggered")
        record = nothing(item, self._setup.storage)
        if item.name == "fills memory":
            record.status, record.reason = "failed", "out of memory: tried to allocate 20 GiB"
        record.history = [place]
        return record


def start_worker(execution: Execution, setup: WorkerSetup, ledger: Any, name: str, /, **options: Any) -> Any:
    kind: Any = ray.remote(Idler)
    return kind.options(num_cpus=execution.cpus_per_run, num_gpus=execution.gpus_per_run, **options).remote(
        setup, ledger, name
    )


class Bench:
    """A pool at work in a thread."""

    def __init__(self, folder: Path, every: list[Item], execution: Execution) -> None:
        (folder / "begun").mkdir(exist_ok=True)
        self.folder, self.every = folder, every
        self.store = Store(f"sqlite:///{folder / 'harness.db'}")
        self.events: list[Event] = []
        self.error: BaseException | None = None
        self.over = ""
        self._pool: Pool | None = None
        self._execution = execution
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        setup = WorkerSetup(self.folder, Storage(str(self.folder / "products")))
        empty = (np.zeros(1, np.int32), np.zeros(1, np.int64))
        vocabularies = {item.stage.encoder.digest: Vocabulary(9, None, 0) for item in self.every}
        try:
            at_work = self._pool = Pool(
                self.store, setup, vocabularies, lambda *_: empty, self._execution, "none", start_worker
            )
            try:
                for event in at_work.run(self.every):
                    self.events.append(event)
                self.over = at_work.over
            finally:
                at_work.close()
        except BaseException as error:
            self.error = error

    def begun(self) -> list[dict[str, Any]]:
        """Every beginning of a stage so far, with its process's pid, node and GPUs."""
        return [json.loads(path.read_text()) for path in (self.folder / "begun").iterdir() if path.suffix != ".part"]

    def waits_for(self, what: str, found: Callable[[], Any]) -> Any:
        def asked() -> Any:
            if self.error:
                raise self.error
            return found()

        return waited(what, asked)

    def go(self) -> None:
        (self.folder / "go").touch()

    def time_is_over(self) -> None:
        """The deadline is now: one given by the clock might pass before a stage has begun."""
        assert self._pool
        self._pool._stop_requests._deadline = time.monotonic()

    def ends(self) -> dict[str, Record]:
        """The records, once all stages have ended."""
        self.waits_for("the end", lambda: not self._thread.is_alive())
        if self.error:
            raise self.error
        return self.store.records([item.stage.key for item in self.every])

    def said(self, kind: str) -> list[str]:
        return [event.reason for event in self.events if event.kind == kind]


@pytest.fixture(scope="module")
def minimal_agents() -> Iterator[None]:
    """The agent of a node without the dashboard's modules: a second of CPU time for each node that joins."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ray._private.utils.get_dashboard_dependency_error", lambda: ImportError("not needed here"))
        yield


@pytest.fixture(scope="module")
def cluster(minimal_agents: None) -> Iterator[Cluster]:
    """A head that has nothing to train on; each test adds its nodes."""
    system = {"health_check_period_ms": 1000, "health_check_timeout_ms": 5000, "health_check_failure_threshold": 5}
    system |= {"local_fs_capacity_threshold": 0.0001}  # no object goes to the disk
    head = {"num_cpus": 0, "include_dashboard": False, "dashboard_port": 0, "object_store_memory": 80 * 2**20}
    there = Cluster(initialize_head=True, head_node_args={**head, "_system_config": system})
    for module in (sys.modules[__name__], benchmarks.scheduler):  # which a worker cannot import
        ray.cloudpickle.register_pickle_by_value(module)
    ray._private.worker._worker_logs_enabled = False  # a raylet that is killed says so at length
    ray.init(address=there.address, namespace="harness", log_to_driver=False, logging_level="ERROR")
    yield there
    ray.shutdown()
    there.shutdown()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "RECOUNT_SECONDS", 0.5)
    monkeypatch.setattr(ledger_module, "LOOK_SECONDS", 0.5)


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


def leaves(count: int, name: str = "") -> list[Item]:
    """Stages without parents."""
    found = [item for item in items(20 * count) if item.stage.parent is None]
    for item in found:
        item.keep_weights, item.name = False, name or item.name
    return found


@pytest.mark.parametrize(
    ("nodes", "asked", "slots"),
    [
        pytest.param([{"CPU": 1.5}, {"CPU": 1.5}], {}, 2, id="half a run on each of two nodes is none"),
        pytest.param([{"CPU": 3}, {"CPU": 3}], {"cpus_per_run": 2}, 2, id="nor is a CPU of each"),
        pytest.param([{"CPU": 8, "GPU": 4}], {"gpus_per_run": 0.5}, 8, id="halves of GPUs"),
        pytest.param([{"CPU": 64, "GPU": 4}], {"gpus_per_run": 0.4}, 8, id="a share lies whole on one GPU"),
        pytest.param([{"CPU": 64, "GPU": 1}], {"gpus_per_run": 0.1}, 10, id="tenths"),
        pytest.param([{"CPU": 3, "GPU": 4}], {"gpus_per_run": 0.5}, 3, id="too few CPUs for all GPUs"),
        pytest.param([{"CPU": 64, "GPU": 3}, {"CPU": 64, "GPU": 3}], {"gpus_per_run": 2}, 2, id="whole GPUs"),
        pytest.param([{"CPU": 64}, {"CPU": 1, "GPU": 1}], {"gpus_per_run": 1}, 1, id="a node without GPUs"),
        pytest.param([{"CPU": 1}], {"cpus_per_run": 0.1}, 10, id="tenths of a CPU"),
        pytest.param([{"CPU": 3}, {"CPU": 4}], {"num_workers": 3}, 2, id="workers of one stage on two nodes"),
        pytest.param([{"CPU": 8}], {"slots": 3}, 3, id="fewer when asked"),
        pytest.param([{"CPU": 8}], {"slots": 3, "num_workers": 2}, 3, id="slots are stages, not workers"),
        pytest.param([{}], {}, 0, id="nothing"),
    ],
)
def test_slots_are_counted_node_by_node(nodes: list[dict[str, float]], asked: dict[str, Any], slots: int) -> None:
    alive = [{"Alive": True, "Resources": each} for each in nodes]
    assert slots_in([*alive, {"Alive": False, "Resources": {"CPU": 100, "GPU": 100}}], Execution(**asked)) == slots


def test_a_run_that_fits_nowhere_is_refused(cluster: Cluster) -> None:
    with node(cluster, num_cpus=2), node(cluster, num_cpus=2), pytest.raises(UserError) as refused:
        slots_of(Execution(cpus_per_run=3))
    assert "a run takes 3 CPUs and 0 GPUs of one node" in str(refused.value)
    assert "lower --cpus-per-run" in str(refused.value)


def test_a_node_that_joins_is_used_and_one_that_leaves_gives_its_runs_back(cluster: Cluster, tmp_path: Path) -> None:
    """Three times the node under a stage leaves, which is not the stage's fault; the whole cluster is gone for a while."""

    def without_nodes() -> list[str]:
        return [sentence for sentence in bench.said("notice") if sentence.startswith("waiting for nodes")]

    with node(cluster, num_cpus=1) as first:
        bench = Bench(tmp_path, leaves(6), Execution())
        bench.waits_for("a stage on the first node", bench.begun)
        with node(cluster, num_cpus=1) as second:
            bench.waits_for("one on the second", lambda: len({each["node"] for each in bench.begun()}) == 2)
            leave(cluster, second, gracefully=False)
            orphans = [each["pid"] for each in bench.begun() if each["node"] == second.node_id]
            assert not any(map(psutil.pid_exists, orphans)), "it would hold what it holds"
            bench.waits_for("it back", lambda: bench.said("retried"))
        leave(cluster, first)
        bench.waits_for("a word of it", without_nodes)
    for times in (3, 4):
        with node(cluster, num_cpus=1):
            bench.waits_for("a stage there", lambda count=times: len({each["node"] for each in bench.begun()}) >= count)
        bench.waits_for("it back", lambda count=times: len(bench.said("retried")) >= count)
        bench.waits_for("a word of it", lambda count=times: len(without_nodes()) >= count - 1)
    with node(cluster, num_cpus=2):
        bench.go()
        records = bench.ends()
    assert [each.status for each in records.values()] == ["done"] * 6
    assert bench.said("retried") == ["its worker's node left"] * 4
    assert all(item.deaths == 0 for item in bench.every)
    assert len(without_nodes()) == 3, "once each time"
    others = [sentence for sentence in bench.said("notice") if sentence not in without_nodes()]
    assert all(sentence.startswith("waiting for a worker of") for sentence in others), "on a busy machine"


def drain(cluster: Cluster, leaving: Any) -> None:
    """Tell the cluster that a node goes in ten minutes, as a cloud's notice does."""
    words = ["--address", cluster.address, "--node-id", leaving.node_id, "--deadline-remaining-seconds", "600"]
    words += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot"]
    subprocess.run([Path(sys.executable).with_name("ray"), "drain-node", *words], check=True, capture_output=True)


def test_a_node_that_gives_notice_gives_its_stages_back_and_gets_no_other(cluster: Cluster, tmp_path: Path) -> None:
    """As often as it happens, which is not the stage's fault."""
    every = leaves(2)
    with node(cluster, num_cpus=1):
        bench = Bench(tmp_path, every, Execution())
        bench.waits_for("a stage on the node that stays", bench.begun)
        for times in range(1, 5):
            leaving = cluster.add_node(num_cpus=1)
            bench.waits_for("the other on it", lambda name=leaving.node_id: name in {b["node"] for b in bench.begun()})
            drain(cluster, leaving)
            bench.waits_for("it back", lambda count=times: len(bench.said("retried")) == count)
            gone(leaving)
            cluster.remove_node(leaving)
        bench.go()
        records = bench.ends()
    assert [each.status for each in records.values()] == ["done"] * 2
    assert bench.said("retried") == ["stopped"] * 4
    told = [
        sentence for sentence in bench.said("notice") if not sentence.startswith("waiting")
    ]  # for a worker, on a busy machine
    assert [sentence.partition(" leaves")[2] for sentence in told] == [
        " the cluster: its stages stop with a checkpoint."
    ] * 4
    assert all(item.deaths == 0 for item in every)


def test_what_a_dead_controller_held_is_free_again(cluster: Cluster, tmp_path: Path) -> None:
    """As Ray Train's controller holds the CPUs of its ranks, placed or not: Ray frees them only when the command ends."""

    class Controller:
        def hold(self, cpus: int) -> None:
            self.held = [placement_group([{"CPU": 1}] * cpus), placement_group([{"CPU": 1}] * 9)]
            assert self.held[0].wait(60)

    def states() -> list[str]:
        return sorted(each["state"] for each in ray.util.placement_group_table().values() if each["state"] != "REMOVED")

    own = placement_group([{"memory": 1.0}])  # of the driver
    with node(cluster, num_cpus=2):
        living, dead = (ray.remote(num_cpus=0)(Controller).remote() for _ in range(2))
        ray.get([living.hold.remote(1), dead.hold.remote(1)])
        bench = Bench(tmp_path, leaves(1), Execution())
        ray.kill(dead)
        assert bench.waits_for("a stage on the CPU that it held", bench.begun)
        assert states() == ["CREATED", "CREATED", "PENDING"], "those of the driver and of a living one stay"
        bench.go()
        assert [each.status for each in bench.ends().values()] == ["done"]
        remove_placement_group(own)
        ray.kill(living)
        waited(
            "the rest",
            lambda: [remove_placement_group(each) for each in private.orphaned_placement_groups()] or not states(),
        )


def test_at_its_deadline_a_bench_ends_in_order_and_another_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    every = leaves(3)
    with node(cluster, num_cpus=2):
        bench = Bench(tmp_path, every, Execution())
        bench.waits_for("two stages", lambda: len(bench.begun()) == 2)
        bench.time_is_over()
        assert bench.ends() == {}
        assert bench.over == "the time of this command is over"
        assert len(bench.begun()) == 2, "the third did not start"
        assert bench.said("retried") == ["stopped"] * 2
        again = Bench(tmp_path, leaves(3), Execution())
        again.go()
        records = again.ends()
    assert [each.status for each in records.values()] == ["done"] * 3
    assert again.over == ""


@pytest.fixture(scope="module")
def large_node(cluster: Cluster) -> Iterator[None]:
    """A node that the tests from here on share: those above need a cluster without it."""
    with node(cluster, num_cpus=16, num_gpus=4):
        yield


@pytest.mark.usefixtures("large_node")
def test_two_runs_on_each_of_four_gpus_by_halves_and_never_more(tmp_path: Path) -> None:
    bench = Bench(tmp_path, leaves(20), Execution(cpus_per_run=0.5, gpus_per_run=0.5))
    begun = bench.waits_for("eight at once", lambda: len(bench.begun()) >= 8 and bench.begun())
    assert len({each["pid"] for each in begun}) == 8
    assert Counter(gpu for each in begun for gpu in each["gpu"]) == {str(gpu): 2 for gpu in range(4)}
    bench.go()
    records = bench.ends()
    assert len(records) == 20
    places = {(each.history[0]["pid"], *each.history[0]["gpu"]) for each in records.values()}
    assert len(places) == 8, "a process keeps its half"


@pytest.mark.usefixtures("large_node")
def test_a_shared_parent_is_trained_once_and_then_fanned_out_the_dearest_first(tmp_path: Path) -> None:
    family = items(20)
    for item in family[10:]:
        item.cost = 5.0
    bench = Bench(tmp_path, family, Execution(slots=3))
    bench.waits_for("the parent", bench.begun)
    bench.go()
    records = bench.ends()
    # On a busy machine a command says that it waits for its workers.
    events = [event for event in bench.events if event.kind != "notice"]
    order = [event.item.stage.seed for event in events if event.kind == "started"]
    assert order[0] == 0, "their parent"
    assert sorted(order) == list(range(20)), "each once"
    assert set(order[1:11]) == set(range(10, 20)), "the dearest before the others"
    assert [event.kind for event in events if event.item.stage.seed == 0] == ["started", "done"]
    assert events[1].item.stage.seed == 0, "nothing starts before it is done"
    assert {each.status for each in records.values()} == {"done"}


@pytest.mark.usefixtures("large_node")
def test_the_ledger_stays_with_the_driver(cluster: Cluster, tmp_path: Path) -> None:
    with node(cluster, num_cpus=8):
        here = ray.get_runtime_context().get_node_id()
        for number in range(3):
            store = Store(f"sqlite:///{tmp_path / str(number)}.db")
            ledger = start_ledger(store, Storage(str(tmp_path)), Owner.current())
            assert ask(ledger, "others_alive") is False, "it has started"
            found = ray._private.state.actors(ledger._actor_id.hex())
            assert found["Address"]["NodeID"] == here


@pytest.mark.usefixtures("large_node")
def test_workers_are_replaced_when_they_are_worn_out_or_spoiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "MAX_STAGES", 3)
    every = leaves(10)
    for item, (name, cost) in zip(every, {"spoils once": 9.0, "fills memory": 8.0, "dies": 7.0}.items(), strict=False):
        item.name, item.cost = name, cost
    bench = Bench(tmp_path, every, Execution(slots=1))
    bench.go()
    records = bench.ends()
    spoiled, full, dying, *others = (records[item.stage.key] for item in every)
    assert spoiled.status == "done"
    assert "CUDA error" in bench.said("retried")[0]
    assert (full.status, dying.status) == ("failed", "failed")
    assert dying.reason == "its worker process died 3 times (ActorDiedError)"
    assert [each.status for each in others] == ["done"] * 7
    used = Counter(each["pid"] for each in bench.begun())
    assert max(used.values()) <= 3
    # One process for each that did not outlive its stage (spoiled, dead three times), two stages before the memory was full.
    assert len(used) >= 1 + 1 + 3 + 2
    assert [event.kind for event in bench.events].count("failed") == 2


@pytest.mark.usefixtures("large_node")
@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_stages_are_recorded_once_each(count: int, tmp_path: Path) -> None:
    every = items(count)
    bench = Bench(tmp_path, every, Execution(slots=2))
    bench.go()
    records = bench.ends()
    assert Counter(event.kind for event in bench.events) == {"started": count, "done": count}
    assert len({event.item.stage.key for event in bench.events}) == len(records) == count
    assert set(bench.store.statuses(records).values()) == {("done", 1)}
    full = bench.store.records([item.stage.key for item in every[:60]], predictions=True)
    for item in every[:60]:
        expected = nothing(item, Storage(str(tmp_path / "elsewhere"))).predictions
        assert full[item.stage.key].predictions.keys() == expected.keys()
        for digest, found in full[item.stage.key].predictions.items():
            assert np.array_equal(found.logits, expected[digest].logits)
    with bench.store._read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM leases").scalar() == 0


def test_an_object_store_without_room_is_said_at_once(cluster: Cluster) -> None:
    """The head's store has 80 MB, the tokens 100 MB, and Ray takes the disk for full."""
    assert cluster.head_node
    with pytest.raises(UserError, match=r"^The tokens of none/train do not fit into Ray's object store") as refused:
        TokenCache(lambda *_: np.ones(100 * 2**20, np.uint8)).references(items(1)[0].stage)
    assert "--object-store-memory" in str(refused.value)
