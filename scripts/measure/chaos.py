"""Kills what benches and studies consist of, at random moments, and counts what was lost and what was left behind.

    python scripts/measure/chaos.py [--kills 100] [--seed 0] [--kinds drain,raylet,...] [--commands bench,group,tune] [--minutes M] [--json FILE]

A Ray cluster of three nodes (raylets) on this machine, and `harness ... --address ...` as a process of its own. Three commands
take turns, each in a new store until it has finished: a bench, a bench whose stages are trained by two Ray Train workers together,
and a study. First all are run undisturbed, then under fire, until all kills are spent. What ends by a kill, or by itself, is started
again by the same command, as a user would. Where the next kill is one of a raylet or GCS that a command needs, the command
starts a Ray of its own instead of joining the cluster. Killed with SIGKILL are:

worker      a process that trains a stage
stopped     the same, after it hung for a while (SIGSTOP)
rank        one of the workers that train a stage together
controller  the actor of such a group, or Ray Train's controller of it
trial       the process of a trial of the study
node        a raylet, in half of the cases with all its processes at once; another node joins after a while
drain       the same, some seconds after notice was given (as by `ray drain-node`)
driver      the command itself
ledger      the process that writes its records
raylet      that of the command's own node
gcs         the control process of its Ray

and with the signal of that name, which ends it in order:

SIGTERM     the command
SIGHUP      the command

Every write to a store is written down by triggers of its database, so nothing is sampled:

lost        stages whose `done` record vanished or changed, or that have none when the command has finished
doubled     stages that were committed as `done` more than once
differing   stages whose numbers are not those of the undisturbed command to the last bit, and tables and studies that are not its
retrained   leases granted beyond the first of a stage: trainings that were begun again
failed      records of failed stages, which the same command, run again, replaced
gave up     times that the command ended by itself without a result, or by a kill without saying so in a sentence (Ray ends one whose
            raylet or GCS died)

What a command left behind is counted once it has ended and Ray had SETTLE_SECONDS to clear up: living actors, placement groups and bytes
of objects on the cluster; processes; temporary files and folders of its own Ray (not of a command that was killed, or whose raylet or GCS was); leases of a command that ended in a sentence of its own, and all that a finished one left.

`notice`: for each drain under a stage, the seconds until no process of the node trained one; "late" where the node died before. The
moments, kinds and victims come from the seed; what happens then depends on the machine's timing. Exit status 1 when something was
lost or doubled, differs, or was left behind.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import re
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from cluster.driver import TRACE, Driver, Kept, kept, numbers, started
from cluster.studies import table

import harness.cluster  # noqa: F401 - before ray
from harness.store import Store, published

SMALL = "--set max_length=16 --set mlm_head.steps=3 --set fine_tune.steps=24 --set post_train.steps=12 --checkpoint-minutes 0.01"
BENCH = f"bench --table few_shot --tasks movies --sizes 20 --seeds 31,42 --format json {SMALL}"
COMMANDS = {
    "bench": f"{BENCH} --subsets 0,1 --methods ft,scl,tapt",
    "group": f"{BENCH} --subsets 0 --methods ft,tapt --num-workers 2",
    "tune": f"tune cmlm --space space.yaml --grid --out grid {SMALL}",
}
SPACE = """
name: chaos
method: cmlm
table: few_shot
tasks: [movies]
sizes: [20]
subsets: 2
seeds: [31, 42]
racing: none
defaults: {alpha: 0.5}
grid: {alpha: [0.1, 0.5]}
presets: {quick: {description: for chaos}}
"""
KINDS = {
    "worker": 0.2,
    "stopped": 0.06,
    "rank": 0.12,
    "controller": 0.06,
    "trial": 0.08,
    "node": 0.14,
    "drain": 0.18,
    "driver": 0.04,
    "ledger": 0.04,
    "raylet": 0.02,
    "gcs": 0.02,
    "SIGTERM": 0.02,
    "SIGHUP": 0.02,
}
"""How often each is drawn: the last six end the command, whose start takes longer than all that the others cost."""
TITLES = {
    "worker": ("/movies/", "RayTrainWorker", "execute._join"),
    "stopped": ("/movies/", "RayTrainWorker", "execute._join"),
    "rank": ("RayTrainWorker", "execute._join"),
    "controller": ("/movies/", "TrainController"),
    "trial": ("ResourceTrainable",),
}
"""What Ray shows of the processes of these kinds: of one that trains the stage's name, or what the processes of a group show."""
ONLY = {"rank": "group", "controller": "group", "trial": "tune"}
"""Kinds that one command alone has."""
OWN = {"raylet": "raylet", "gcs": "gcs_server"}
"""Kinds that need a Ray of the command's own, and what their victim is called."""
ENDS = {"ledger": 2, "SIGTERM": 143, "SIGHUP": 129}
"""The status with which the command ends when it says why."""
MEAN_WAITS = {"bench": 1.5, "group": 30.0, "tune": 4.0}
"""Mean seconds from one kill to the next. Two workers need twenty until they train together, for each stage."""
MEAN_ABSENCE, MEAN_HANG = 3.0, 2.0
"""Seconds until a new node joins after one died, and that a stopped process hangs before it is killed."""
NOTICES = (2.0, 30.0)
"""The seconds that a node lives after its notice lie between these."""
SETTLE_SECONDS = 60.0
FINISHED = re.compile(r"^\d+/\d+ (stages|trials) in ", re.MULTILINE)
"""What a command says once all is trained: it exits then."""
BUSY = {"RAY_worker_niceness": "0"}
"""Ray makes its workers nicer by 15: on a busy machine they would starve."""
KEPT_FILES = {"own-files": ("torchinductor_",), "cluster-files": ("torchinductor_", "pymp-")}
"""Temporary files that are no command's: torch's cache, one for all, and a socket of the cluster's dashboard."""
NUM_NODES = 2
"""Besides the head, which is never killed: a cluster ends with it."""
STALL_SECONDS = 600.0
"""Seconds without a kill or a write to the store after which a bench hangs for good."""
GIVE_UPS = 3
"""A command that ends by itself so often without a kill in between ends by itself always."""

AUDIT = """
CREATE TABLE audit (number INTEGER PRIMARY KEY, what TEXT, key TEXT, status TEXT);
CREATE TRIGGER audit_lease AFTER INSERT ON leases
    BEGIN INSERT INTO audit (what, key, status) VALUES ('leased', NEW.key, NEW.owner); END;
CREATE TRIGGER audit_insert AFTER INSERT ON records
    BEGIN INSERT INTO audit (what, key, status) VALUES ('committed', NEW.key, NEW.status); END;
CREATE TRIGGER audit_delete AFTER DELETE ON records
    BEGIN INSERT INTO audit (what, key, status) VALUES ('vanished', OLD.key, OLD.status); END;
CREATE TRIGGER audit_update AFTER UPDATE ON records
    BEGIN INSERT INTO audit (what, key, status) VALUES ('vanished', OLD.key, OLD.status),
        ('committed', NEW.key, NEW.status); END;
"""

HOOK = """
import re
import sys
from importlib.util import find_spec

class Hook:
    def find_spec(self, name, path, target=None):
        if name != "harness.store.published":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        execute = spec.loader.exec_module
        def replace(module):
            execute(module)
            module._STORED = re.compile("CREATE")
        spec.loader.exec_module = replace
        return spec

sys.meta_path.insert(0, Hook())
"""
"""A sitecustomize: a store with triggers is opened."""


@contextmanager
def stores_with_triggers() -> Iterator[None]:
    """The same in this process."""
    before, published._STORED = published._STORED, re.compile("CREATE")
    try:
        yield
    finally:
        published._STORED = before


def database(folder: Path) -> Path:
    return folder / ".harness" / "harness.db"


def audited(folder: Path) -> None:
    """A new store in this folder that writes down what is done to it."""
    Store(f"sqlite:///{database(folder)}")._engine.dispose()
    with closing(sqlite3.connect(database(folder), timeout=60)) as connection:
        connection.executescript(AUDIT)


def audit(folder: Path) -> list[tuple[str, str, str]]:
    """(what, key, status), in the order of the writes; of a lease its owner stands for the status."""
    with closing(sqlite3.connect(database(folder), timeout=60)) as connection:
        return connection.execute("SELECT what, key, status FROM audit ORDER BY number").fetchall()


# ---------------------------------------------------------------- the cluster


def _serve(pipe: Connection, folder: str, environment: dict[str, str]) -> None:
    """A cluster in a process of its own: says its address, then answers "add" with the pid of a new node's raylet and Ray's id of
    the node (None of one that did not come), ("drain", node, seconds) and "left" with what is there of others."""
    os.chdir(folder)
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who reads the pipe decides when it ends
    import ray
    from ray._private.worker import global_worker
    from ray.cluster_utils import Cluster

    place = {"num_cpus": 1, "node_ip_address": "127.0.0.1"}

    def patiently(act: Callable[[], Any], what: str = "a node did not start") -> Any:
        """What `act` returns; None where it fails. On a busy machine Ray waits half a minute for a node, and one that dies takes no notice
        any more; Ray has no types for either."""
        try:
            return act()
        except Exception as error:
            print(f"{what}: {error}", file=sys.stderr)
            return None

    head = {**place, "include_dashboard": True, "dashboard_port": 0}
    tries = (patiently(lambda: Cluster(initialize_head=True, head_node_args=head, connect=True)) for _ in range(9))
    cluster: Any = next(filter(None, tries))
    pipe.send(cluster.address)
    with suppress(EOFError):
        while True:
            match pipe.recv():
                case "add":
                    os.chdir(tempfile.mkdtemp(prefix="node-", dir=folder))
                    node = patiently(lambda: cluster.add_node(**place))
                    os.chdir(folder)  # this process is none of the node's
                    pipe.send(node and (node.all_processes["raylet"][0].process.pid, node.node_id))
                case ("drain", node, seconds):
                    preemption, deadline = 2, int(1000 * (time.time() + seconds))
                    given = partial(global_worker.gcs_client.drain_node, node, preemption, "a spot notice", deadline)
                    patiently(given, f"{node} took no notice")
                case "left":
                    pipe.send(_there())
    ray.shutdown()
    cluster.shutdown()


def _there() -> dict[str, int]:
    """What is on this process's cluster now."""
    import ray
    from ray._private import internal_api, state

    # Ray Train's, without resources: one for a cluster, and one for each controller that was killed while that one started
    kept = re.compile("AutoscalingCoordinator|PlacementGroupCleaner")
    actors = [a for a in state.actors().values() if a["State"] != "DEAD" and not kept.search(a["ActorClassName"])]
    groups = [group for group in ray.util.placement_group_table().values() if group["state"] != "REMOVED"]
    stored = 0
    for node in ray.nodes():
        if node["Alive"]:
            with suppress(Exception):  # it ends just now
                stats = internal_api.node_stats(node["NodeManagerAddress"], node["NodeManagerPort"])
                stored += stats.store_stats.object_store_bytes_used
    return {"actors": len(actors), "placement groups": len(groups), "bytes of objects": stored}


def inside(folder: Path) -> list[psutil.Process]:
    """Every living process whose working folder is this one or lies in it: true also of one whose parent is dead."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if Path(process.cwd()).is_relative_to(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def of_node(raylet: psutil.Process) -> list[psutil.Process]:
    """The living processes of a node, which has a working folder of its own."""
    return inside(Path(raylet.cwd()))


def title(process: psutil.Process) -> str:
    """What Ray shows for a process that is there, else nothing."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline()).strip()
    return ""


class Nodes:
    """A head with one slot and `NUM_NODES` nodes with one each, which can die and be followed by others. Use `nodes`."""

    def __init__(self, folder: Path, temporary: Path) -> None:
        self._folder = folder.resolve()
        (temporary / "hook").mkdir()
        (temporary / "hook" / "sitecustomize.py").write_text(HOOK)
        parts = [str(temporary / "hook"), os.environ.get("PYTHONPATH", "")]  # an empty part would be the current folder
        path = {"PYTHONPATH": os.pathsep.join(filter(None, parts))}
        self.environments = {
            who: {"RAY_TMPDIR": str(temporary / who), "TMPDIR": str(temporary / f"{who}-files"), **path, **BUSY}
            for who in ("cluster", "own")
        }  # else other clusters of this machine and `--address auto` would meet this one
        self.temporary = temporary
        for name in ("cluster", "own"):
            (temporary / name).mkdir()
            (temporary / f"{name}-files").mkdir()
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._server = context.Process(target=_serve, args=(theirs, str(self._folder), self.environments["cluster"]))
        self._server.start()
        theirs.close()
        self.address = ""
        self._ids: dict[int, str] = {}
        """Ray's ids of the nodes by the pids of their raylets."""
        self._joining = [time.monotonic()] * NUM_NODES
        self._leaving: list[tuple[float, psutil.Process, Callable[[], object]]] = []
        self._asked = 0

    def begin(self) -> None:
        """Wait until all nodes are there."""
        self.address = self._pipe.recv()
        while len(self._ids) < NUM_NODES:
            self.look()
            time.sleep(0.1)

    def look(self) -> None:
        """Kill the nodes whose notice is over, ask for those whose time has come, take in those that are there. One that ended by itself
        is followed too."""
        for each in [each for each in self._leaving if each[0] <= time.monotonic()]:
            self._leaving.remove(each)
            each[2]()
        ended = [pid for pid in self._ids if not psutil.pid_exists(pid) or not title(psutil.Process(pid))]
        for pid in ended:
            del self._ids[pid]
        self._joining += [time.monotonic()] * len(ended)
        due = [moment for moment in self._joining if moment <= time.monotonic()]
        self._joining = [moment for moment in self._joining if moment not in due]
        for _ in due:
            self._pipe.send("add")
            self._asked += 1
        while self._asked and self._pipe.poll():
            self._take(self._pipe.recv())

    def _take(self, joined: tuple[int, str] | None) -> None:
        self._asked -= 1
        if joined is None:
            self._joining.append(time.monotonic())
        else:
            self._ids[joined[0]] = joined[1]

    def raylets(self) -> list[psutil.Process]:
        """Those that can be killed."""
        leaving = {raylet.pid for _, raylet, _ in self._leaving}
        return [psutil.Process(pid) for pid in self._ids if pid not in leaving and psutil.pid_exists(pid)]

    def kill(self, raylet: psutil.Process, whole: bool, absence: float) -> None:
        """`whole`: its workers and agents with it. A new node joins after `absence` seconds."""
        if self._ids.pop(raylet.pid, None) is None:
            return  # it ended by itself
        with suppress(psutil.Error):
            for process in [raylet, *(of_node(raylet) if whole else [])]:
                with suppress(psutil.Error):
                    process.kill()
        self._joining.append(time.monotonic() + absence)

    def drain(self, raylet: psutil.Process, seconds: float, whole: bool, absence: float) -> None:
        """Give notice that the node goes, and kill it after `seconds`."""
        self._pipe.send(("drain", self._ids[raylet.pid], seconds))
        self._leaving.append((time.monotonic() + seconds, raylet, lambda: self.kill(raylet, whole, absence)))

    def left(self, place: Path, files: bool) -> dict[str, int]:
        """What the commands of the folder `place`, which have all ended, left behind. `files`: temporary files and Rays' folders too."""
        until = time.monotonic() + SETTLE_SECONDS
        while True:
            while self._asked:
                self._take(self._pipe.recv())
            self._pipe.send("left")
            found: dict[str, int] = self._pipe.recv()
            found["processes"] = len(inside(place))
            if files:
                found["temporary files"] = sum(
                    not path.name.startswith(KEPT_FILES[path.parent.name]) for path in self.temporary.glob("*-files/*")
                )
                found["folders of Ray"] = len(list((self.temporary / "own").iterdir()))
            if not any(found.values()) or time.monotonic() > until:
                return found
            time.sleep(0.5)

    def remove_files(self) -> None:
        """Those of commands that were cut off; no command runs now."""
        for place in ("own", "own-files"):
            for path in (self.temporary / place).iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def titled(self, *marks: str) -> list[psutil.Process]:
        """The processes of Ray whose title has one of these."""
        every = ((process, title(process)) for process in inside(self._folder))
        return [p for p, name in every if name.startswith("ray::") and any(mark in name for mark in marks)]

    def ledgers(self) -> list[psutil.Process]:
        """The last one that started: that of a command before may be about to end."""
        with suppress(psutil.Error):
            return sorted(self.titled("ray::Ledger"), key=psutil.Process.create_time)[-1:]
        return []

    def close(self) -> None:
        self._pipe.close()
        self._server.join(30)
        if self._server.is_alive():
            self._server.kill()
        while left := [process for process in inside(self._folder) if process.pid != os.getpid()]:
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, 1)


@contextmanager
def nodes(folder: Path) -> Iterator[Nodes]:
    """A cluster whose processes run in `folder`; none of them is left at the end."""
    temporary = Path(tempfile.mkdtemp(prefix="chaos-"))  # short: sockets lie in it, and their names have an end
    cluster = Nodes(folder, temporary)
    try:
        cluster.begin()
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(temporary, ignore_errors=True)


# ---------------------------------------------------------------- under fire


def outcome(folder: Path, printed: str) -> Any:
    """What the folder's command found, without how long it took: the table that a bench printed, or a study's points in any order."""
    if not (folder / "space.yaml").exists():
        body = json.loads(printed)
        return {**body, "results": [{**each, "seconds": None} for each in body["results"]]}
    trials = table(folder / "grid")["trials"]
    return sorted([(k, str(v)) for k, v in each.items() if k not in ("trial", "seconds")] for each in trials)


@dataclass(frozen=True)
class Undisturbed:
    """What a command found and recorded that nobody disturbed."""

    outcome: Any
    records: dict[str, Kept]


@dataclass
class Tally:
    """What happened so far; the words are those of the module's docstring."""

    tables: int = 0
    studies: int = 0
    stages: int = 0
    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    lost: int = 0
    doubled: int = 0
    differing: int = 0
    retrained: int = 0
    failed: int = 0
    gave_up: int = 0
    left: Counter[str] = field(default_factory=Counter)
    notice: list[float | str] = field(default_factory=list)
    seconds: float = 0.0
    log: list[str] = field(default_factory=list)

    @property
    def killed(self) -> int:
        return sum(self.kills.values())

    @property
    def harmed(self) -> bool:
        return bool(self.lost or self.doubled or self.differing or self.left.total())

    def say(self, sentence: str) -> None:
        self.log.append(f"{time.strftime('%H:%M:%S')} {sentence}")
        print(self.log[-1], file=sys.stderr, flush=True)

    def judge(self, folder: Path, printed: str, expected: Undisturbed) -> None:
        """Count what became of a command that has finished."""
        history, records = audit(folder), kept(folder)
        leases = Counter(key for what, key, _ in history if what == "leased" and key in expected.records)
        done = Counter(key for what, key, status in history if (what, status) == ("committed", "done"))
        lost = {key for what, key, status in history if (what, status) == ("vanished", "done")}
        lost |= {key for key in expected.records if key not in records or records[key].status != "done"}
        ours = numbers(records)
        other = [key for key, each in numbers(expected.records).items() if key in ours and ours[key] != each]
        study = (folder / "space.yaml").exists()
        self.tables += not study
        self.studies += study
        self.stages += len(records)
        self.lost += len(lost)
        self.doubled += sum(count > 1 for count in done.values())
        another = outcome(folder, printed) != expected.outcome
        self.differing += len(other) + len(set(records) - set(expected.records)) + another
        self.retrained += leases.total() - len(leases)
        self.failed += sum((what, status) == ("committed", "failed") for what, _, status in history)
        for what, keys in (("lost", lost), ("differs", other)):
            for key in keys:
                self.say(f"{what}: {key} in {folder}")
        if another:
            self.say(f"another result in {folder}")

    def count_left(self, left: Mapping[str, int], folder: Path) -> None:
        self.left.update(left)
        if what := ", ".join(f"{count} {name}" for name, count in left.items() if count):
            self.say(f"left behind in {folder}: {what}")


class Fire:
    """Draws moments, kinds and victims, and kills until there are enough, or `until` (`time.monotonic()`). `left`: their kinds, the next one last; `struck`: those of the
    command that runs now."""

    def __init__(
        self,
        cluster: Nodes,
        kills: int,
        seed: int,
        tally: Tally,
        kinds: Sequence[str] = tuple(KINDS),
        until: float = math.inf,
    ) -> None:
        self._cluster, self._tally, self._until = cluster, tally, until
        self._draw = random.Random(seed)
        self.left = self._draw.choices(kinds, [KINDS[kind] for kind in kinds], k=kills)
        self.struck: set[str] = set()
        self._command, self._wait, self._alone = "", 1.0, False
        self._hanging: list[tuple[float, psutil.Process]] = []
        self._drained: list[tuple[float, psutil.Process]] = []
        self.again()

    def begin(self, command: str, wait: float) -> bool:
        """One of COMMANDS starts, with `wait` mean seconds from one kill to the next: whether it takes a Ray of its own."""
        self._command, self._wait = command, wait
        self.struck = set()
        place = self._next(lambda kind: True)
        self._alone = place >= 0 and self.left[place] in OWN
        return self._alone

    def _next(self, possible: Callable[[str], bool]) -> int:
        """The place of the next kind that the command has; -1 if none is left."""
        fit = (
            k for k, kind in enumerate(self.left) if ONLY.get(kind, self._command) == self._command and possible(kind)
        )
        return max(fit, default=-1)

    def again(self) -> None:
        """The next kill comes after a wait from now on."""
        self._due = time.monotonic() + self._draw.expovariate(1 / self._wait)

    def finish(self) -> None:
        """What hung for its time is killed."""
        for moment, process in [each for each in self._hanging if each[0] <= time.monotonic()]:
            self._hanging.remove((moment, process))
            with suppress(psutil.Error):
                process.kill()
        for moment, raylet in list(self._drained):
            seconds, trains = time.monotonic() - moment, self._trains(raylet)
            if not trains or not raylet.is_running():
                self._drained.remove((moment, raylet))
                self._tally.notice.append("late" if trains or not raylet.is_running() else round(seconds, 1))

    def _trains(self, raylet: psutil.Process) -> bool:
        """Whether a process of this node trains."""
        with suppress(psutil.Error):
            shown = [title(process) for process in of_node(raylet)]
            return any(mark in name for name in shown for mark in ("/movies/", *TITLES["rank"]))
        return False

    def burn(self, driver: Driver) -> bool:
        """Kill when it is time; True when something was hit. A kind that has no victim now waits for another moment."""
        if time.monotonic() > self._until:
            self.left.clear()
        if not self.left or time.monotonic() < self._due:
            return False
        self.again()
        others = OWN.keys() if not self._alone else {"node", "drain"}
        place = self._next(lambda kind: kind not in others)
        kind = self.left[place]
        victims = self._victims(kind, driver) if place >= 0 else []
        if not victims:
            return False
        victim = self._draw.choice(victims)
        name = title(victim)
        try:
            self._strike(kind, victim)
        except psutil.NoSuchProcess:
            return False
        self.left.pop(place)
        self.struck.add(kind)
        self._tally.kills[kind] += 1
        self._tally.say(f"kill {self._tally.killed}: {kind} {victim.pid} {name[:80]}")
        return True

    def _victims(self, kind: str, driver: Driver) -> list[psutil.Process]:
        if kind in ("driver", "SIGTERM", "SIGHUP"):
            return [psutil.Process(driver.popen.pid)]
        if kind in ("node", "drain"):
            return self._cluster.raylets()
        if kind == "ledger":
            return self._cluster.ledgers()
        if kind in OWN:
            return [each for each in psutil.Process(driver.popen.pid).children() if each.name() == OWN[kind]]
        hanging = [process for _, process in self._hanging]
        return [process for process in self._cluster.titled(*TITLES[kind]) if process not in hanging]

    def _strike(self, kind: str, victim: psutil.Process) -> None:
        if kind in ("node", "drain"):
            whole, absence = self._draw.random() < 0.5, self._draw.expovariate(1 / MEAN_ABSENCE)
            if kind == "node":
                self._cluster.kill(victim, whole, absence)
                return
            if self._trains(victim):
                self._drained.append((time.monotonic(), victim))
            self._cluster.drain(victim, self._draw.uniform(*NOTICES), whole, absence)
        elif kind == "stopped":
            victim.suspend()
            self._hanging.append((time.monotonic() + self._draw.expovariate(1 / MEAN_HANG), victim))
        elif kind.startswith("SIG"):
            victim.send_signal(signal.Signals[kind])
        else:
            victim.kill()


def leases(folder: Path, pid: int = 0) -> int:
    """Leases that a command holds, or that are there at all. Those of a command that was killed before it stay until their stages are
    leased again."""
    with closing(sqlite3.connect(database(folder), timeout=60)) as connection:
        return int(connection.execute("SELECT count(*) FROM leases WHERE ? IN (0, pid)", (pid,)).fetchone()[0])


def explained(status: int, said: str, struck: set[str]) -> bool:
    """Whether a command ended as one of these kills ends it: by Ray, or with a sentence and without a trace."""
    if OWN.keys() & struck and status:
        return True
    last = (said.strip().splitlines() or [""])[-1]
    expected = {ENDS[kind] for kind in struck if kind in ENDS}
    ended = status if status >= 0 else 128 - status  # by a signal after the last sentence, when no handler is left
    finished = status < 0 and FINISHED.search(said)
    explains = last.startswith("harness: ") and "recorded stages are kept" in last and not TRACE.search(said)
    return ended in expected and bool(finished or explains)


def endured(folder: Path, command: str, line: str, wait: float, cluster: Nodes, fire: Fire, tally: Tally) -> str:
    """Run the command in a new store until it has finished, whatever is killed; returns what it printed. It joins the cluster, or has
    a Ray of its own."""
    folder.mkdir()
    audited(folder)
    if "space.yaml" in line:
        (folder / "space.yaml").write_text(SPACE)
    gave_up = 0
    while True:
        before = count = len(audit(folder))
        changed, hit = time.monotonic(), False
        place = f"--slots {NUM_NODES}" if fire.begin(command, wait) else f"--address {cluster.address}"
        with started(folder, f"{line} {place}", **cluster.environments["own"]) as driver:
            while driver.popen.poll() is None:
                time.sleep(0.1)
                cluster.look()
                fire.finish()
                if (now := len(audit(folder))) != count:
                    count, changed = now, time.monotonic()
                if count == before:
                    fire.again()  # a command that has not begun is no victim
                elif fire.burn(driver):
                    hit, changed = True, time.monotonic()
                if time.monotonic() - changed > STALL_SECONDS:
                    raise SystemExit(f"{folder}: nothing was written for {STALL_SECONDS:g} s:\n{driver.err}")
            status, out, said = driver.wait(), str(driver.out), driver.err
            killed = status == -signal.SIGKILL and "driver" in fire.struck
            cut_off = killed or bool(OWN.keys() & fire.struck)
            left = cluster.left(folder, files=not cut_off)
            if cut_off:
                cluster.remove_files()
        for process in inside(folder) if left["processes"] else ():
            with suppress(psutil.Error):  # it ends just now
                tally.say(f"still there: {process.pid}, child of {process.ppid()}, {title(process)[:200]}")
        for sentence in said.splitlines():
            if sentence.startswith("retried: "):
                tally.say(sentence)
        if status == 0:
            tally.count_left({**left, "leases": leases(folder)}, folder)
            return out
        tally.count_left(left, folder)
        if killed:
            continue
        if explained(status, said, fire.struck):
            if not cut_off:  # Ray ends such a command at once: its leases end with its process
                tally.count_left({"leases": leases(folder, driver.popen.pid)}, folder)
            tally.say(f"it ended with {status}: {said.strip().splitlines()[-1]}")
            continue
        tally.gave_up += 1
        tally.say(f"the command ended by itself with {status} in {folder}:\n{said}")
        gave_up = 0 if hit else gave_up + 1
        if gave_up == GIVE_UPS:
            raise SystemExit(f"{folder}: the command ends by itself, {GIVE_UPS} times without a kill")


def chaos(
    folder: Path,
    commands: Mapping[str, str],
    kills: int,
    seed: int,
    expected: Mapping[str, Undisturbed] | None = None,
    kinds: Sequence[str] = tuple(KINDS),
    file: Path | None = None,
    until: float = math.inf,
) -> Tally:
    """All of it, in `folder`; `expected` stands for undisturbed runs of the same commands. Counts go to `file` after each command. `until`: no kill comes later."""
    tally, begun = Tally(), time.monotonic()
    with nodes(folder) as cluster, stores_with_triggers():
        whole = dict(expected or {})
        for name, line in commands.items():
            if name not in whole:
                place = folder / f"undisturbed-{name}"
                printed = endured(place, name, line, 1.0, cluster, Fire(cluster, 0, seed, tally), tally)
                whole[name] = Undisturbed(outcome(place, printed), kept(place))
                tally.say(
                    f"undisturbed {name}: {len(whole[name].records)} stages after {time.monotonic() - begun:.0f} s"
                )
        kinds = [kind for kind in kinds if kind not in ONLY or ONLY[kind] in commands]
        fire, turns = Fire(cluster, kills, seed, tally, kinds, until), cycle(commands.items())
        while fire.left:
            name, line = next(turns)
            place = folder / f"{name}-{tally.tables + tally.studies + 1}"
            printed = endured(place, name, line, MEAN_WAITS[name], cluster, fire, tally)
            tally.judge(place, printed, whole[name])
            tally.say(f"{place.name} is complete after {tally.killed} kills")
            tally.seconds = time.monotonic() - begun
            if file:
                file.write_text(json.dumps(vars(tally), indent=1))
    return tally


def shown(tally: Tally) -> str:
    rows: list[tuple[str, float]] = [
        ("tables", tally.tables),
        ("studies", tally.studies),
        ("stages", tally.stages),
        ("kills", tally.killed),
    ]
    rows += [(f"  {kind}", count) for kind, count in tally.kills.items()]
    names = ("lost", "doubled", "differing", "retrained", "failed", "gave_up")
    rows += [(name.replace("_", " "), getattr(tally, name)) for name in names]
    rows += [("left behind", tally.left.total()), *((f"  {name}", count) for name, count in tally.left.items())]
    released = sorted(each for each in tally.notice if not isinstance(each, str))
    rows += [("stages drained", len(tally.notice)), ("  late", len(tally.notice) - len(released))]
    if released:
        rows += [("  seconds, median", released[len(released) // 2]), ("  seconds, at most", released[-1])]
    return tabulate([*rows, ("seconds", round(tally.seconds))], tablefmt="plain")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--kinds", default=",".join(KINDS), help="of what is killed, separated by commas (default: all)"
    )
    parser.add_argument("--commands", default=",".join(COMMANDS), help="of what runs by turns (default: all)")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="no kill comes later (default: until all are spent)"
    )
    parser.add_argument("--json", type=Path, help="the counts and the log of kills, as a file, after each command")
    given = parser.parse_args(arguments)
    commands = {name: COMMANDS[name] for name in given.commands.split(",")}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder, harmed = Path(tempfile.mkdtemp(prefix="harness-chaos-")), True
    try:
        kinds, until = given.kinds.split(","), time.monotonic() + 60 * given.minutes
        tally = chaos(folder, commands, given.kills, given.seed, kinds=kinds, file=given.json, until=until)
        harmed = tally.harmed
    finally:
        if harmed:
            print(f"the stores are kept in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder)
    print(shown(tally))
    return 1 if harmed else 0


if __name__ == "__main__":
    sys.exit(main())
