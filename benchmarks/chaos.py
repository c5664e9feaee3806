"""Kills what a bench consists of, at random moments, and counts what was lost.

    python benchmarks/chaos.py [--kills 100] [--seed 0] [--kinds ledger,raylet,...] [--json FILE] [--num-workers 2]

A Ray cluster of three nodes (raylets) on this machine, and `harness bench --address ...` as a process of its own: first
undisturbed, then under fire, until all kills are spent; a table that was finished before that is followed by the next, in a
new store. What ends by a kill, or by itself, is started again by the same command, as a user would. Where the next kill is
one of a raylet or GCS that a command needs, the command starts a Ray of its own instead of joining the cluster. Killed with
SIGKILL are:

worker    a process that trains a stage
stopped   the same, after it hung for a while (SIGSTOP)
node      a raylet, in half of the cases with all its processes at once; another node joins after a while
driver    the command itself
ledger    the process that writes its records
raylet    that of the command's own node
gcs       the control process of its Ray

and with the signal of that name, which ends it in order:

SIGTERM   the command
SIGHUP    the command

Every write to a table's store is written down by triggers of its database, so nothing is sampled:

lost        stages whose `done` record vanished or changed, or that have none when the table is printed
doubled     stages that were committed as `done` more than once
differing   stages whose numbers are not those of the undisturbed bench to the last bit, and printed tables that are not it
retrained   leases granted beyond the first of a stage: trainings that were begun again
failed      records of failed stages, which the same command, run again, replaced
gave up     times that the command ended by itself without a complete table, or by a kill without saying so in a sentence
unreturned  leases that a command left behind when it ended in a sentence

The moments, kinds and victims come from the seed; what happens then depends on the machine's timing. Exit status 1 when
something was lost or doubled, or differs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from cluster.driver import TRACE, Driver, Kept, kept, numbers, started

import harness.cluster  # noqa: F401, before ray
from harness.store import Store

BENCH = (
    "bench --table few_shot --tasks movies --sizes 20 --subsets 0,1 --seeds 31,42,53 --methods ft,scl,tapt,cmlm "
    "--format json --set mlm_head.steps=3 --set fine_tune.steps=40 --set post_train.steps=20 --checkpoint-minutes 0.01"
)
KINDS = {
    "worker": 0.25,
    "node": 0.15,
    "driver": 0.1,
    "stopped": 0.1,
    "ledger": 0.1,
    "raylet": 0.05,
    "gcs": 0.05,
    "SIGTERM": 0.1,
    "SIGHUP": 0.1,
}
"""How often each is drawn."""
OWN = {"raylet": "raylet", "gcs": "gcs_server"}
"""Kinds that need a Ray of the command's own, and what their victim is called."""
ENDS = {"ledger": 2, "raylet": 2, "gcs": 2, "SIGTERM": 143, "SIGHUP": 129}
"""The status with which the command ends when it says why."""
KILLS_A_TABLE = 20
"""In the time in which an undisturbed bench records its stages: the mean wait from one kill to the next comes from that."""
MEAN_ABSENCE, MEAN_HANG = 3.0, 2.0
"""Seconds until a new node joins after one died, and that a stopped process hangs before it is killed."""
TRAINING = ("/movies/", "RayTrainWorker", "execute._join", "WorkerGroup")
"""In the title of a process that trains: the stage's name, or what the processes of a worker group show."""
NUM_NODES = 2
"""Besides the head, which is never killed: a cluster ends with it."""
STALL_SECONDS = 300.0
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


def _serve(pipe: Connection, folder: str, temporary: str) -> None:
    """A cluster in a process of its own: says its address, then of every node that is asked for the pid of its raylet, None
    of one that did not come."""
    os.chdir(folder)
    os.environ["RAY_TMPDIR"] = temporary  # else other clusters of this machine and `--address auto` would meet this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who reads the pipe decides when it ends
    from ray.cluster_utils import Cluster

    place = {"num_cpus": 1, "node_ip_address": "127.0.0.1"}
    cluster = Cluster(initialize_head=True, head_node_args={**place, "dashboard_port": None})
    pipe.send(cluster.address)
    with suppress(EOFError):
        while pipe.recv():
            try:
                pipe.send(cluster.add_node(**place).all_processes["raylet"][0].process.pid)
            except Exception as error:  # on a busy machine: Ray waits half a minute for a node, and has no type for it
                print(f"a node did not join: {error}", file=sys.stderr)
                pipe.send(None)
    cluster.shutdown()


def inside(folder: Path) -> list[psutil.Process]:
    """Every living process whose working folder is this one or lies in it: true also of one whose parent is dead."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if Path(process.cwd()).is_relative_to(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def title(process: psutil.Process) -> str:
    """What Ray shows for a process that is there, else nothing."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline()).strip()
    return ""


class Nodes:
    """A head with one slot and `NUM_NODES` nodes with one each, which can die and be followed by others. Use `nodes`."""

    def __init__(self, folder: Path, temporary: Path) -> None:
        self._folder = folder.resolve()
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._server = context.Process(target=_serve, args=(theirs, str(self._folder), str(temporary)))
        self._server.start()
        theirs.close()
        self.address = ""
        self._raylets: list[int] = []
        self._joining = [time.monotonic()] * NUM_NODES
        self._asked = 0

    def begin(self) -> None:
        """Wait until all nodes are there."""
        self.address = self._pipe.recv()
        while len(self._raylets) < NUM_NODES:
            self.look()
            time.sleep(0.1)

    def look(self) -> None:
        """Ask for the nodes whose time has come, take in those that are there. One that ended by itself is followed too."""
        ended = {pid for pid in self._raylets if not psutil.pid_exists(pid) or not title(psutil.Process(pid))}
        self._raylets = [pid for pid in self._raylets if pid not in ended]
        self._joining += [time.monotonic()] * len(ended)
        due = [moment for moment in self._joining if moment <= time.monotonic()]
        self._joining = [moment for moment in self._joining if moment not in due]
        for _ in due:
            self._pipe.send(True)
            self._asked += 1
        while self._asked and self._pipe.poll():
            self._asked -= 1
            if (raylet := self._pipe.recv()) is None:
                self._joining.append(time.monotonic())
            else:
                self._raylets.append(raylet)

    def raylets(self) -> list[psutil.Process]:
        """Those that can be killed."""
        return [psutil.Process(pid) for pid in self._raylets if psutil.pid_exists(pid)]

    def kill(self, raylet: psutil.Process, whole: bool, absence: float) -> None:
        """`whole`: its workers and agents with it. A new node joins after `absence` seconds."""
        self._raylets.remove(raylet.pid)
        below = raylet.children(recursive=True) if whole else []
        for process in [raylet, *below]:
            with suppress(psutil.Error):
                process.kill()
        self._joining.append(time.monotonic() + absence)

    def training(self) -> list[psutil.Process]:
        """The processes that train a stage now."""
        every = ((process, title(process)) for process in inside(self._folder))
        return [p for p, name in every if name.startswith("ray::") and any(mark in name for mark in TRAINING)]

    def ledgers(self) -> list[psutil.Process]:
        """The last one that started: that of a command before may be about to end."""
        found = [process for process in inside(self._folder) if title(process).startswith("ray::Ledger")]
        with suppress(psutil.Error):
            return sorted(found, key=psutil.Process.create_time)[-1:]
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


def _numbers(printed: str) -> Any:
    """A printed table without how long its runs took."""
    body = json.loads(printed)
    return {**body, "results": [{**each, "seconds": None} for each in body["results"]]}


@dataclass(frozen=True)
class Undisturbed:
    """What a bench printed and recorded that nobody disturbed."""

    table: str
    records: dict[str, Kept]

    @property
    def seconds(self) -> float:
        """From its first record to its last."""
        moments = [record.committed_at for record in self.records.values()]
        return float(max(moments) - min(moments))


@dataclass
class Tally:
    """What happened so far; the words are those of the module's docstring."""

    tables: int = 0
    runs: int = 0
    stages: int = 0
    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    lost: int = 0
    doubled: int = 0
    differing: int = 0
    retrained: int = 0
    failed: int = 0
    gave_up: int = 0
    unreturned: int = 0
    seconds: float = 0.0
    log: list[str] = field(default_factory=list)

    @property
    def killed(self) -> int:
        return sum(self.kills.values())

    @property
    def harmed(self) -> bool:
        return bool(self.lost or self.doubled or self.differing or self.unreturned)

    def say(self, sentence: str) -> None:
        self.log.append(f"{time.strftime('%H:%M:%S')} {sentence}")
        print(self.log[-1], file=sys.stderr, flush=True)

    def judge(self, folder: Path, printed: str, expected: Undisturbed) -> None:
        """Count what became of a table that was printed in full."""
        history, found = audit(folder), kept(folder)
        leases = Counter(key for what, key, _ in history if what == "leased")
        done = Counter(key for what, key, status in history if (what, status) == ("committed", "done"))
        lost = {key for what, key, status in history if (what, status) == ("vanished", "done")}
        lost |= {key for key in expected.records if key not in found or found[key].status != "done"}
        ours = numbers(found)
        other = [key for key, each in numbers(expected.records).items() if key in ours and ours[key] != each]
        self.tables += 1
        self.runs += len(json.loads(printed)["results"])
        self.stages += len(found)
        self.lost += len(lost)
        self.doubled += sum(count > 1 for count in done.values())
        self.differing += (
            len(other) + len(set(found) - set(expected.records)) + (_numbers(printed) != _numbers(expected.table))
        )
        self.retrained += leases.total() - len(leases)
        self.failed += sum((what, status) == ("committed", "failed") for what, _, status in history)
        for what, keys in (("lost", lost), ("differs", other)):
            for key in keys:
                self.say(f"{what}: {key} in {folder}")


class Fire:
    """Draws moments, kinds and victims, and kills until there are enough; `wait`: mean seconds from one to the next. `left`: their
    kinds, the next one last; `struck`: those of the command that runs now."""

    def __init__(
        self, cluster: Nodes, kills: int, seed: int, wait: float, tally: Tally, kinds: Sequence[str] = tuple(KINDS)
    ) -> None:
        self._cluster, self._wait, self._tally = cluster, wait, tally
        self._draw = random.Random(seed)
        self.left = self._draw.choices(kinds, [KINDS[kind] for kind in kinds], k=kills)
        self.struck: set[str] = set()
        self._alone = False
        self._hanging: list[tuple[float, psutil.Process]] = []
        self.again()

    def begin(self) -> bool:
        """A command starts: whether it takes a Ray of its own."""
        self.struck = set()
        self._alone = bool(self.left) and self.left[-1] in OWN
        return self._alone

    def again(self) -> None:
        """The next kill comes after a wait from now on."""
        self._due = time.monotonic() + self._draw.expovariate(1 / self._wait)

    def finish(self) -> None:
        """What hung for its time is killed."""
        for moment, process in [each for each in self._hanging if each[0] <= time.monotonic()]:
            self._hanging.remove((moment, process))
            with suppress(psutil.Error):
                process.kill()

    def burn(self, driver: Driver) -> bool:
        """Kill when it is time; True when something was hit. A kind that has no victim now waits for another moment."""
        if not self.left or time.monotonic() < self._due:
            return False
        self.again()
        others = OWN.keys() if not self._alone else {"node"}
        place = max((k for k, kind in enumerate(self.left) if kind not in others), default=-1)
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
        if kind == "node":
            return self._cluster.raylets()
        if kind == "ledger":
            return self._cluster.ledgers()
        if kind in OWN:
            return [each for each in psutil.Process(driver.popen.pid).children() if each.name() == OWN[kind]]
        hanging = [process for _, process in self._hanging]
        return [process for process in self._cluster.training() if process not in hanging]

    def _strike(self, kind: str, victim: psutil.Process) -> None:
        if kind == "node":
            whole = self._draw.random() < 0.5
            self._cluster.kill(victim, whole, self._draw.expovariate(1 / MEAN_ABSENCE))
        elif kind == "stopped":
            victim.suspend()
            self._hanging.append((time.monotonic() + self._draw.expovariate(1 / MEAN_HANG), victim))
        elif kind.startswith("SIG"):
            victim.send_signal(signal.Signals[kind])
        else:
            victim.kill()


def leases(folder: Path, pid: int) -> int:
    """Leases that a command holds. Those of a command that was killed before it stay until their stages are leased again."""
    with closing(sqlite3.connect(database(folder), timeout=60)) as connection:
        return int(connection.execute("SELECT count(*) FROM leases WHERE pid = ?", (pid,)).fetchone()[0])


def explained(status: int, said: str, struck: set[str]) -> bool:
    """Whether a command ended as one of these kills ends it, with a sentence and without a trace."""
    last = (said.strip().splitlines() or [""])[-1]
    expected = {ENDS[kind] for kind in struck if kind in ENDS}
    return (
        status in expected
        and last.startswith("harness: ")
        and "recorded stages are kept" in last
        and not TRACE.search(said)
    )


def endured(folder: Path, line: str, cluster: Nodes, fire: Fire, tally: Tally) -> str:
    """Run the command in a new store until its table is complete, whatever is killed; returns what it printed. It joins the
    cluster, or has a Ray of its own."""
    folder.mkdir()
    audited(folder)
    gave_up = 0
    while True:
        before = count = len(audit(folder))
        changed, hit = time.monotonic(), False
        place = f"--slots {NUM_NODES}" if fire.begin() else f"--address {cluster.address}"
        with started(folder, f"{line} {place}") as driver:
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
        for sentence in said.splitlines():
            if sentence.startswith("retried: "):
                tally.say(sentence)
        if status == 0:
            return out
        if status == -signal.SIGKILL and "driver" in fire.struck:
            continue
        if explained(status, said, fire.struck):
            tally.unreturned += leases(folder, driver.popen.pid)
            tally.say(f"it ended with {status}: {said.strip().splitlines()[-1]}")
            continue
        tally.gave_up += 1
        tally.say(f"the command ended by itself with {status} in {folder}:\n{said}")
        gave_up = 0 if hit else gave_up + 1
        if gave_up == GIVE_UPS:
            raise SystemExit(f"{folder}: the command ends by itself, {GIVE_UPS} times without a kill")


def chaos(
    folder: Path,
    line: str,
    kills: int,
    seed: int,
    expected: Undisturbed | None = None,
    kinds: Sequence[str] = tuple(KINDS),
) -> Tally:
    """All of it, in `folder`; `expected` stands for an undisturbed bench of the same command."""
    tally, begun = Tally(), time.monotonic()
    with nodes(folder) as cluster:
        if expected is None:
            place = folder / "undisturbed"
            expected = Undisturbed(
                endured(place, line, cluster, Fire(cluster, 0, seed, 1.0, tally), tally), kept(place)
            )
            tally.say(f"undisturbed: {len(expected.records)} stages in {time.monotonic() - begun:.0f} s")
        fire = Fire(cluster, kills, seed, expected.seconds / KILLS_A_TABLE, tally, kinds)
        while fire.left:
            place = folder / f"table-{tally.tables + 1}"
            printed = endured(place, line, cluster, fire, tally)
            tally.judge(place, printed, expected)
            tally.say(f"table {tally.tables} is complete after {tally.killed} kills")
    tally.seconds = time.monotonic() - begun
    return tally


def shown(tally: Tally) -> str:
    rows = [("tables", tally.tables), ("runs", tally.runs), ("stages", tally.stages), ("kills", tally.killed)]
    rows += [(f"  {kind}", count) for kind, count in tally.kills.items()]
    names = ("lost", "doubled", "differing", "retrained", "failed", "gave_up", "unreturned")
    rows += [(name.replace("_", " "), getattr(tally, name)) for name in names]
    return tabulate([*rows, ("seconds", round(tally.seconds))], tablefmt="plain")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--kinds", default=",".join(KINDS), help="of what is killed, separated by commas (default: all)"
    )
    parser.add_argument("--num-workers", type=int, default=1, help="Ray Train workers that train one stage together")
    parser.add_argument("--json", type=Path, help="the counts and the log of kills, as a file")
    given = parser.parse_args(arguments)
    line = BENCH if given.num_workers == 1 else f"{BENCH} --num-workers {given.num_workers}"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder, harmed = Path(tempfile.mkdtemp(prefix="harness-chaos-")), True
    try:
        tally = chaos(folder, line, given.kills, given.seed, kinds=given.kinds.split(","))
        harmed = tally.harmed
    finally:
        if harmed:
            print(f"the stores are kept in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder)
    print(shown(tally))
    if given.json:
        given.json.write_text(json.dumps(vars(tally), indent=1))
    return 1 if harmed else 0


if __name__ == "__main__":
    sys.exit(main())
