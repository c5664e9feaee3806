"""Detects the death of a process that a session depends on. Ray itself would end the command without an error message of the
harness: when it uses a dead raylet, or a minute after its GCS died."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType
from typing import Any, Self

import psutil
import ray

LOOK_SECONDS = 0.1
CONNECT_SECONDS = 5.0
RECONNECT_SECONDS = 45.0
"""The GCS of a cluster may restart with its state; Ray itself ends the command after 60 s."""


class Watchdog:
    """Interrupts the main thread if the raylet of this node or the GCS dies. `local`: this process started both. Use as a context
    manager, in the main thread."""

    def __init__(self, local: bool) -> None:
        context = ray.get_runtime_context()
        processes = psutil.Process().children() if local else psutil.process_iter()
        self._checks: dict[str, Callable[[], bool]] = {}
        if raylet := _found(processes, "raylet", f"--node_id={context.get_node_id()}"):
            self._checks["Ray's raylet process ended on this machine, perhaps for lack of memory"] = lambda: _ended(
                raylet
            )
        if not local:
            address = context.gcs_address
            self._checks[f"the GCS of the Ray cluster at {address} does not answer any more"] = _Silence(address)
        elif gcs := _found(processes, "gcs_server"):
            self._checks["Ray's GCS process ended, perhaps for lack of memory"] = lambda: _ended(gcs)
        self._over = threading.Event()
        self._before: Any = None

    @property
    def lost(self) -> str:
        """The process that is dead now, as a clause; '' if none is."""
        return next((clause for clause, dead in self._checks.items() if dead()), "")

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGUSR2, _interrupt)  # SIGUSR1 is Ray Tune's
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            if self.lost:
                main = threading.main_thread().ident
                assert main is not None
                signal.pthread_kill(main, signal.SIGUSR2)
                return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._before is not None:
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a pending signal
            signal.signal(signal.SIGUSR2, self._before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # the only exception that passes through a waiting Ray call


def _found(processes: Iterable[psutil.Process], name: str, word: str = "") -> psutil.Process | None:
    for process in processes:
        try:
            if process.name() == name and (not word or word in process.cmdline()):
                return process
        except psutil.Error:
            continue
    return None


def _ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class _Silence:
    """Whether an address has accepted no connection for RECONNECT_SECONDS."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._place = (host.strip("[]"), int(port))
        self._heard_at = self._asked_at = time.monotonic()

    def __call__(self) -> bool:
        now = time.monotonic()
        if now - self._asked_at >= 1:
            self._asked_at = now
            try:
                socket.create_connection(self._place, CONNECT_SECONDS).close()
                self._heard_at = time.monotonic()
            except OSError:
                pass
        return now - self._heard_at > RECONNECT_SECONDS
