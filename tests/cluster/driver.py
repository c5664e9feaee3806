"""The command as a real process with its own Ray, watched through its database and its processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import psutil

from harness.specs import Record
from harness.store import Store

HARNESS = ("-m", "harness")
BENCH = (
    "bench --table few_shot --tasks movies --sizes 20 --subsets 0 --seeds 31,42 --methods ft,scl,tapt --format json "
    "--set max_length=16 --set mlm_head.steps=3 --set fine_tune.steps=12 --set post_train.steps=6"
)
STAGES = 9
"""A warm-up; for each of two seeds FT, SCL, TAPT's post-training and its fine-tuning."""
OURS = ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_USAGE_STATS_ENABLED", "TOKENIZERS_PARALLELISM")
"""What tests/conftest.py sets for this process, and a command has to set for itself."""
TRACE = re.compile(r"Traceback|\*\*\* SIG|^\s+@ +0x", re.MULTILINE)
"""A stack trace, of Python or of native code."""
WAIT_SECONDS = 900.0
"""Seconds after which something that must come is given up: long, since the machine may be busy."""


def table_of(printed: str) -> dict[str, Any]:
    """A table printed as JSON, without how long its runs took."""
    body: dict[str, Any] = json.loads(printed)
    for replicate in body["results"]:
        del replicate["seconds"]
    return body


def waited(what: str, found: Callable[[], Any], seconds: float = WAIT_SECONDS) -> Any:
    """Ask until the answer is true."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.process_time()
        answer = found()
        if answer:
            return answer
        # what is asked takes CPU time itself: all records are read, or all processes of the machine
        time.sleep(max(0.1, 5 * (time.process_time() - began)))
    raise AssertionError(f"waited {seconds:g} s in vain for {what}")


def default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@dataclass(frozen=True)
class Kept:
    """What the store holds of one stage. `numbers` are all that training found, to the last bit."""

    status: str
    attempt: int
    committed_at: float
    numbers: tuple[Any, ...]


def kept(folder: Path) -> dict[str, Kept]:
    """Every record of the folder's store, by key; empty while there is none."""
    store = Store(f"sqlite:///{folder / '.harness' / 'harness.db'}", create=False)
    if not store.exists:
        return {}
    with store._read() as connection:
        rows = {row[0]: row for row in connection.exec_driver_sql("SELECT key, committed_at FROM records")}
    statuses, records = store.statuses(rows), store.records(rows, predictions=True)
    store._engine.dispose()

    def numbers(of: Record) -> tuple[Any, ...]:
        predicted = {name: (p.logits.dtype, p.logits.tobytes(), p.gold.tobytes()) for name, p in of.predictions.items()}
        return of.selected_step, of.tied, of.dev_scores, of.histogram, of.history, of.weights_digest, predicted

    return {key: Kept(*statuses[key], rows[key][1], numbers(record)) for key, record in records.items()}


def outside(listeners: dict[tuple[str, int], str]) -> dict[tuple[str, int], str]:
    """Those that another machine can reach."""
    loopback = {place for place in listeners if ip_address(place[0].removeprefix("::ffff:")).is_loopback}
    return {place: listeners[place] for place in listeners.keys() - loopback}


def numbers(records: dict[str, Kept]) -> dict[str, tuple[Any, ...]]:
    return {key: each.numbers for key, each in records.items()}


class Driver:
    """One running command. Its processes are those that run in its folder: true also of one whose parent is dead, or
    whose title has overwritten its environment, as Ray's do."""

    def __init__(self, folder: Path, line: str, program: Sequence[str] = HARNESS, **environment: str) -> None:
        self.folder = folder
        for name in ("secrets", "tokenizers") if program == HARNESS else ():  # imported by Ray and by workers
            (folder / f"{name}.py").write_text("raise SystemError('a file of the current folder is no library')")
        self._out, self._err = (folder / f"{uuid.uuid4().hex}.{name}" for name in ("out", "err"))
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.popen = subprocess.Popen(
                [sys.executable, *program, *line.split()],
                cwd=folder,
                env={k: v for k, v in os.environ.items() if k not in OURS} | environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                # A test run in the background inherits an ignored SIGINT, one under nohup an ignored SIGHUP; the command would too.
                preexec_fn=default_signals,
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def table(self) -> dict[str, Any]:
        return table_of(self.out)

    def processes(self) -> list[psutil.Process]:
        """Every living process in the folder: the command's own, Ray's, the workers."""
        folder = str(self.folder.resolve())
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.cwd() == folder and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def gone(self, seconds: float = 60.0) -> None:
        """Wait until none of its processes is left."""
        waited("the end of its processes", lambda: not self.processes(), seconds)

    def listeners(self) -> dict[tuple[str, int], str]:
        """(address, port) of every socket that its processes listen on now -> command line."""
        found = {}
        for process in self.processes():
            with suppress(psutil.Error):
                for socket in process.net_connections(kind="inet"):
                    if socket.status == psutil.CONN_LISTEN:
                        found[socket.laddr.ip, socket.laddr.port] = " ".join(process.cmdline())[:100]
        return found

    def titled(self, pattern: str) -> list[psutil.Process]:
        """Processes whose title begins with a pattern: what Ray calls them."""
        found = []
        for process in self.processes():
            with suppress(psutil.Error):
                if re.match(pattern, " ".join(process.cmdline())):
                    found.append(process)
        return found

    def training(self) -> list[psutil.Process]:
        """Worker processes that train a stage now: Ray shows the run's name as the title."""
        return self.titled("ray::.*/movies/n20/")

    def waited(self, what: str, found: Callable[[], Any]) -> Any:
        """Ask until the answer is true, while the command runs."""

        def answer() -> Any:
            assert self.popen.poll() is None, f"ended with {self.popen.returncode} before {what}:\n{self.err}"
            return found()

        return waited(what, answer)

    def recorded(self, count: int) -> dict[str, Kept]:
        """Wait until the store holds this many records."""
        found: dict[str, Kept] = self.waited(f"{count} records", lambda: len(now := kept(self.folder)) >= count and now)
        return found

    def wait(self) -> int:
        try:
            return self.popen.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the command does not end:\n{self.err}") from None

    def clean(self) -> None:
        """Kill what is left, which is all ours."""
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()
        self.popen.wait()


@contextmanager
def started(folder: Path, line: str = BENCH, program: Sequence[str] = HARNESS, **environment: str) -> Iterator[Driver]:
    """A command that runs; whatever it leaves behind is killed at the end."""
    driver = Driver(folder, line, program, **environment)
    try:
        yield driver
    finally:
        driver.clean()
