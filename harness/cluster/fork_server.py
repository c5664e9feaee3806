"""A process that has imported what workers need, and forks one for each that a raylet of this machine asks for: importing torch
and transformers takes seconds of CPU time, a fork none.

`forked_worker.py` is what the raylet starts in place of Ray's script of a worker. It sends its arguments, environment, folder and standard streams to the
server, and lives as long as the worker that it gets. Whoever lost the server runs Ray's script itself.

No process lives longer than without it: a worker ends with the raylet, and all end with the driver. Only on Linux, and only without a GPU: a process
that was forked cannot use CUDA if an import asked it for anything.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from harness import private
from harness.cluster.forked_worker import ADDRESS, FORKED, SCRIPT
from harness.processes import end_with_parent

IMPORTS = ("harness.running", "harness.store", "harness.training.loop", "fsspec", "optuna", "pandas", "pyarrow.fs")
"""What the processes of a bench and of a study import, but Ray: its native code reads the environment when it is imported, and that of each worker is another."""
MAIN = (
    "import sys; _, listener, driver, *sys.path[:] = sys.argv\n"
    "from harness.cluster.fork_server import main; main(int(listener), int(driver))"
)
"""With the driver's modules: 'python -m' would take those of the current folder before all others."""
GPUS = ("nvidia[0-9]*", "kfd", "dxg")
"""In /dev: of CUDA, ROCm, and CUDA under Windows."""
WORKER_SCRIPT = Path(__file__).with_name("forked_worker.py")
CLIENT_SECONDS = 5.0
"""A client that takes longer to say what it wants was stopped."""


class Request(NamedTuple):
    """A worker that the raylet wants. `streams`: its standard streams."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    raylet: int
    oom_score_adj: str
    streams: list[int]


def can_fork() -> bool:
    """Whether workers of this machine can be forked."""
    return sys.platform == "linux" and not any(device for pattern in GPUS for device in Path("/dev").glob(pattern))


_address = ""
"""Of the server of this process."""


@contextmanager
def fork_server() -> Iterator[None]:
    """A server that imports from now on, and ends with the context or with this process. Contexts in this one share it. Does nothing where `can_fork` says no."""
    global _address
    if _address or not can_fork():
        yield
        return
    address = f"harness-{uuid.uuid4()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{address}")  # before the server is there, so that no client finds none
        listener.listen(128)
        # Ray sets OMP_NUM_THREADS before a worker imports torch, which reads it then. What the server cannot import, workers cannot, and they say so.
        server = subprocess.Popen(
            [sys.executable, "-c", MAIN, str(listener.fileno()), str(os.getpid()), *sys.path],
            pass_fds=[listener.fileno()],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # no SIGINT of the terminal
        )
    try:
        _address = address
        yield
    finally:
        _address = ""
        server.kill()
        server.wait()


@contextmanager
def forked_workers() -> Iterator[None]:
    """Let a Ray that is started here take its workers from the server of this process, if there is one."""
    if not _address:
        yield
        return
    with private.workers_by(str(WORKER_SCRIPT)) as script, patch.dict(os.environ, {ADDRESS: _address, SCRIPT: script}):
        yield


class _Server:
    def __init__(self, listener: socket.socket) -> None:
        self._pid, self._selector, self._listener = os.getpid(), selectors.DefaultSelector(), listener
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._workers: dict[int, set[int]] = {}
        """The workers of each living raylet, by its pid."""

    def _raylet_lives(self, raylet: int) -> bool:
        """Whether it does; from now on its end is seen."""
        if raylet not in self._workers:
            try:
                self._selector.register(os.pidfd_open(raylet), selectors.EVENT_READ, raylet)
            except ProcessLookupError:
                return False
            self._workers[raylet] = set()
        return True

    def _raylet_ended(self, raylet: int, ended: int) -> None:
        """End its workers too, which are seen to end like others."""
        self._selector.unregister(ended)
        os.close(ended)
        for worker in self._workers.pop(raylet):
            os.kill(worker, signal.SIGKILL)

    def forked(self) -> Request:
        """Fork a process for each client. Returns in these processes, and never in the server."""
        while True:
            for key, _ in self._selector.select()[:1]:  # the two of a worker end together
                if key.fileobj is self._listener:
                    client, _ = self._listener.accept()
                    try:
                        request = _received(client)
                    except (OSError, ValueError):
                        client.close()
                        continue
                    if self._fork(client, request):
                        return request
                elif isinstance(key.data, int):
                    self._raylet_ended(key.data, key.fd)
                else:
                    self._ended(*key.data, worker=key.fileobj != key.data[1])

    def _fork(self, client: socket.socket, request: Request) -> bool:
        """Whether this is the new process."""
        pid = -1
        if self._raylet_lives(request.raylet):
            with suppress(OSError):  # without memory the client goes on by itself
                pid = os.fork()
        if pid == 0:
            end_with_parent()
            if os.getppid() != self._pid:
                os._exit(1)
            os.setpgid(0, 0)  # the raylet kills a worker with its process group
            client.close()
            for key in self._selector.get_map().values():  # a client would not see that its worker ended
                key.fileobj.close() if isinstance(key.fileobj, socket.socket) else os.close(key.fd)
            self._selector.close()
            return True
        for stream in request.streams:
            os.close(stream)
        if pid < 0:
            client.close()
            return False
        self._workers[request.raylet].add(pid)
        ended = os.pidfd_open(pid)
        self._selector.register(ended, selectors.EVENT_READ, (pid, client, ended))
        self._selector.register(client, selectors.EVENT_READ, (pid, client, ended))
        with suppress(OSError):  # a client that is gone is seen as one that ended
            client.send(FORKED)
        return False

    def _ended(self, pid: int, client: socket.socket, ended: int, *, worker: bool) -> None:
        """A worker ended, or its client, whom the raylet killed in its place."""
        if not worker:
            os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for workers in self._workers.values():
            workers.discard(pid)
        with suppress(OSError):
            client.send(bytes([status % 256]))
        for each in (client, ended):
            self._selector.unregister(each)
        client.close()
        os.close(ended)


def _received(client: socket.socket) -> Request:
    """Raises OSError or ValueError where a client breaks off, is stopped or is another user's."""
    client.settimeout(CLIENT_SECONDS)
    user = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    if user != os.getuid():
        raise PermissionError
    _, streams, _, _ = socket.recv_fds(client, 1, 3)
    with client.makefile("rb") as rest:
        return Request(**json.loads(rest.readline()), streams=streams)


def main(listener: int, driver: int) -> None:
    """The process of the server, and of its workers."""
    end_with_parent()
    if os.getppid() != driver:
        return
    for name in IMPORTS:
        importlib.import_module(name)
    request = _Server(socket.socket(fileno=listener)).forked()
    for target, stream in enumerate(request.streams):
        os.dup2(stream, target)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    Path("/proc/self/oom_score_adj").write_text(request.oom_score_adj)
    sys.argv = request.arguments
    runpy.run_path(sys.argv[0], run_name="__main__")
