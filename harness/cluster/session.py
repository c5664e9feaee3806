"""A Ray session: local on loopback by default, or an existing cluster by address, without Ray's own output; and the watchdog that
ends it when a process dies that it depends on.

Ray itself would end the command without an error message of the harness: when it uses a dead raylet, or a minute after its GCS died.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn
from unittest.mock import patch

import psutil

from harness import private
from harness.errors import KEPT, SessionLostError, UserError, first_line
from harness.execution import Execution
from harness.processes import few_arenas, process_of
from harness.store import Owner, masked

OWNER, SESSION = "owner", "session"
"""In the temporary folder of a Ray that a command started: a file with the command's pid, start time and host, and a link to Ray's own folder."""
NOT_STARTED = "Ray did not start on this machine ({}); if the machine is overloaded, run the same command again later."
LOOK_SECONDS = 0.1
KILL_SECONDS = 3.0
CONNECT_SECONDS = 5.0
DASHBOARD_SECONDS = 60.0
DEAF_SECONDS = 20.0
RECONNECT_SECONDS = 45.0
"""The GCS of a cluster may restart with its state; Ray itself ends the command after 60 s."""


def _hide_passwords() -> None:
    """Ray's dashboard and `ps` show the command line, and a URL in it may have a password."""
    shown = shlex.join(masked(word) for word in sys.orig_argv)
    if shown != shlex.join(sys.orig_argv):
        private.set_command_line(shown)


@contextmanager
def session(execution: Execution, metadata: dict[str, str]) -> Iterator[tuple[Dashboard, Execution]]:
    """Start or join Ray. Yields its dashboard and the execution with `gpus_per_run` resolved (negative: 1 if the cluster has GPUs,
    else 0). The dashboard shows `metadata` for the job. Raises SessionLostError if the raylet or the GCS died meanwhile."""
    few_arenas()
    remove_abandoned()
    from ray.job_config import JobConfig

    private.silence_worker_logs()  # only tables go to standard output
    private.assume_dashboard_dependencies()
    private.start_fewer_processes()
    _hide_passwords()
    common: dict[str, Any] = {
        "logging_level": logging.ERROR,
        "log_to_driver": False,
        "configure_logging": True,
        "namespace": "harness",
        "job_config": JobConfig(metadata={f"harness_{k}": v for k, v in metadata.items()}),
    }
    local = execution.address == "local"
    with _own_handlers():
        dashboard, folder = _started(execution, common) if local else (_joined(execution, common), None)
    for name in ("ray", "ray.train", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    watchdog = Watchdog(local)
    try:
        with watchdog.watching(folder), redirect_stdout(sys.stderr):
            yield dashboard, replace(execution, gpus_per_run=_gpus(execution))
    finally:
        dashboard.end()
        lost = watchdog.lost  # ray.shutdown would end this process with another exit status
        try:
            _end(folder, lost=bool(lost))
        except KeyboardInterrupt:  # the first signal that ends the command; later ones are ignored
            _end(folder, lost=bool(lost))
            if not lost:
                raise
        if lost:
            sys.excepthook = sys.__excepthook__  # Ray's asks the dead GCS for a minute before it prints an error
            raise SessionLostError(f"{lost}; {KEPT}.")


def _end(folder: Path | None, *, lost: bool) -> None:
    """End the Ray that this command started in `folder`, or leave the cluster, and remove the folder. May be called again where a signal
    broke it off. `lost`: its GCS or raylet is dead, and `ray.shutdown` would end this process."""
    if not lost:
        import ray

        ray.shutdown()
    elif folder:
        _kill_processes(folder)
    if folder:
        _remove(folder)


def _leave(folder: Path | None, sentence: str) -> NoReturn:
    """End this process, whose main thread waits in a call to a Ray that is lost. Ray would end it after a minute, without a word and with nothing removed."""
    _end(folder, lost=True)
    print(f"harness: {sentence}", file=sys.stderr, flush=True)
    os._exit(2)


def _started(execution: Execution, common: dict[str, Any]) -> tuple[Dashboard, Path]:
    """Start a Ray for this command, on loopback. Returns its dashboard, and the folder of its temporary files."""
    import ray

    slots = execution.num_workers * (execution.slots or max(1, (os.cpu_count() or 1) // execution.num_workers))
    logs = private.user_temporary_folder()  # which would follow TMPDIR
    folder = new_folder()
    try:
        places = {"RAY_TMPDIR": logs, "TMPDIR": str(folder)}
        with (
            patch.dict(os.environ, places),
            _waiting_for_gcs(folder),
            private.dashboard_put_off() as start_dashboard,
        ):
            context = ray.init(
                address="local",
                num_cpus=max(1, round(slots * execution.cpus_per_run)),
                include_dashboard=True,
                dashboard_host="127.0.0.1",
                **common,
            )
            environment = os.environ.copy()  # Ray has added how to authenticate
        (folder / SESSION).symlink_to(context.address_info["session_dir"])
    except BaseException as error:
        _end(folder, lost=True)
        if not isinstance(error, Exception):  # Ray raises bare ones for its time limits
            raise
        raise UserError(NOT_STARTED.format(first_line(error))) from None
    asked = os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    if asked and not ip_address(context.address_info["node_ip_address"]).is_loopback:
        _end(folder, lost=False)
        raise UserError("Ray listens on all addresses: it was imported before harness.cluster; import that one first.")
    return Dashboard(start=patch.dict(os.environ, environment)(start_dashboard)), folder


class Dashboard:
    """Ray's dashboard: that of a cluster, at `address` ('' where it has none), or one that `start` starts."""

    def __init__(self, address: str = "", start: Callable[[], None] | None = None) -> None:
        self._address, self._start = address, start
        self._over, self._lock = threading.Event(), threading.Lock()
        self._show: Callable[[str], None] = lambda address: None

    def start(self) -> None:
        """Start it, where this command does and has not yet, and do not wait until it answers. Call it once there is nothing else to compute:
        its processes take 6 s of CPU time until then."""
        if start := self._start:
            self._start = None
            with suppress(Exception):  # bare ones of Ray; then it does not answer either
                start()
            threading.Thread(target=self._wait, daemon=True).start()

    def when_there(self, show: Callable[[str], None]) -> None:
        """Call `show`, and none given before, with its address as soon as it answers, perhaps in another thread; with '' where it did not start."""
        with self._lock:
            self._show, address = show, self._address
        if address:
            show(address)

    def _wait(self) -> None:
        """In a thread: the question is deaf to signals where the GCS has died."""
        address, until = "", time.monotonic() + DASHBOARD_SECONDS
        with suppress(Exception):  # Ray has ended
            while not address and time.monotonic() < until and not self._over.wait(LOOK_SECONDS):
                address = private.started_dashboard()
        with self._lock:
            self._address, show = address, self._show
        if not self._over.is_set():
            show(address)

    def end(self) -> None:
        """Show nothing any more."""
        self._over.set()


@contextmanager
def _waiting_for_gcs(folder: Path) -> Iterator[None]:
    """End this process with a sentence if the GCS ends while Ray starts in `folder`: `ray.init` would wait for it, deaf to signals."""
    others, started = psutil.Process().children(), threading.Event()

    def watch() -> None:
        gcs: psutil.Process | None = None
        while not started.wait(LOOK_SECONDS):
            gcs = gcs or _process((child for child in psutil.Process().children() if child not in others), "gcs_server")
            if gcs and _ended(gcs):
                _leave(folder, NOT_STARTED.format("its GCS process ended"))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        started.set()
        watcher.join()


def remove_abandoned() -> None:
    """Remove what Rays of commands that were killed left on this machine: their temporary files, and Ray's own folders (logs, sockets,
    spilled objects). Ray removes none."""
    own = Owner.current()
    for path in Path(tempfile.gettempdir()).glob(f"harness-*/{OWNER}"):
        with suppress(OSError, ValueError):
            pid, started, host = path.read_text().split(maxsplit=2)
            if (
                host == own.host and process_of(int(pid), float(started)) is None
            ):  # another container may share the folder
                _remove(path.parent)


def new_folder() -> Path:
    """A folder for the temporary files of all processes of a Ray."""
    own = Owner.current()
    folder = Path(tempfile.mkdtemp(prefix="harness-"))
    (folder / OWNER).write_text(f"{own.pid} {own.started} {own.host}")
    return folder


def _session_folder(folder: Path) -> Path:
    """Ray's own folder of the command that made `folder`; where Ray had not started yet, by the number of its process."""
    if (folder / SESSION).is_symlink():
        return (folder / SESSION).resolve()
    if not (folder / OWNER).exists():  # removed already
        return folder
    pid = (folder / OWNER).read_text().split(maxsplit=1)[0]
    of_pid = Path(private.user_temporary_folder(), "ray").glob(f"session_*_{pid}")
    dead = int(pid) == os.getpid() or not psutil.pid_exists(int(pid))  # else it is that of another command
    return max(of_pid, default=folder) if dead else folder


def _remove(folder: Path) -> None:
    """Remove what `new_folder` made, and Ray's folder. The last processes of Ray may still write as they end."""
    session = _session_folder(folder)
    latest = session.parent / "session_latest"
    for _ in range(20):
        for each in (session, folder):
            shutil.rmtree(each, ignore_errors=True)
        if not session.exists() and not folder.exists():
            break
        time.sleep(0.1)
    if latest.is_symlink() and not latest.exists():
        latest.unlink(missing_ok=True)


def _kill_processes(folder: Path) -> None:
    """Kill the processes of a Ray that lost its raylet or its GCS: they would end by themselves, and write into its folders until then. All have
    a log open; a worker whose raylet is dead is no child of this process any more."""
    session, own, killed = _session_folder(folder), psutil.Process(), []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process != own and any(Path(file.path).is_relative_to(session) for file in process.open_files()):
                process.kill()
                killed.append(process)
    psutil.wait_procs(killed, KILL_SECONDS)


def _joined(execution: Execution, common: dict[str, Any]) -> Dashboard:
    """Join a running cluster."""
    import ray

    try:
        return Dashboard(ray.init(address=execution.address, **common).dashboard_url or "")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(
            f"--address {execution.address}: no Ray cluster answers there ({str(error).splitlines()[0]}); start one "
            "with 'ray start --head', or omit the flag to run on this machine."
        ) from None


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Restore the command's handler of SIGTERM. Ray replaces it as it starts: first by a handler that ends the process, then by
    native code that prints a stack trace."""
    before = signal.getsignal(signal.SIGTERM)
    main = threading.current_thread() is threading.main_thread()
    try:
        yield
    except SystemExit:
        if not main:
            raise
        signal.signal(signal.SIGTERM, before)
        signal.raise_signal(signal.SIGTERM)
        raise
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)


def _gpus(execution: Execution) -> float:
    """GPUs per run: as requested, or 1 if the cluster has GPUs. On this machine they have to be of use to torch: with a build for
    the CPU a run would keep a GPU busy that it cannot use, and the others waiting."""
    import ray

    there = float(ray.cluster_resources().get("GPU", 0))
    if execution.gpus_per_run < 0:
        return 1.0 if there >= 1 and (execution.address != "local" or _torch_has_gpus()) else 0.0
    if execution.gpus_per_run > there:
        raise UserError(
            f"--gpus-per-run {execution.gpus_per_run:g}: this cluster has {there:g} GPUs; leave the flag out."
        )
    return execution.gpus_per_run


def _torch_has_gpus() -> bool:
    import torch

    return torch.cuda.is_available()


# ------------------------------------------------------------------------------------------------------------ watchdog


class Watchdog:
    """Interrupts the main thread if the raylet of this node or the GCS dies. `local`: this process started both."""

    def __init__(self, local: bool) -> None:
        import ray

        context = ray.get_runtime_context()
        processes = psutil.Process().children() if local else psutil.process_iter()
        self._checks: dict[str, Callable[[], bool]] = {}
        if raylet := _process(processes, "raylet", f"--node_id={context.get_node_id()}"):
            self._checks["Ray's raylet process ended on this machine, perhaps for lack of memory"] = lambda: _ended(
                raylet
            )
        if not local:
            address = context.gcs_address
            self._checks[f"the GCS of the Ray cluster at {address} does not answer any more"] = _Silence(address)
        elif gcs := _process(processes, "gcs_server"):
            self._checks["Ray's GCS process ended, perhaps for lack of memory"] = lambda: _ended(gcs)

    @property
    def lost(self) -> str:
        """The process that is dead now, as a clause; '' if none is."""
        return next((clause for clause, dead in self._checks.items() if dead()), "")

    @contextmanager
    def watching(self, folder: Path | None) -> Iterator[None]:
        """In the main thread; elsewhere nothing is watched. Where that thread does not hear it within DEAF_SECONDS, the process is ended:
        some calls of Ray to its GCS let no signal through. `folder`: that of the Ray that this command started."""
        main, over = threading.main_thread(), threading.Event()
        if threading.current_thread() is not main:
            yield
            return

        def watch() -> None:
            while not over.wait(LOOK_SECONDS):
                if lost := self.lost:
                    assert main.ident is not None
                    signal.pthread_kill(main.ident, signal.SIGUSR2)
                    if not over.wait(DEAF_SECONDS):
                        _leave(folder, f"{lost}; {KEPT}.")
                    return

        before = signal.signal(signal.SIGUSR2, _interrupt)  # SIGUSR1 is Ray Tune's
        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        finally:
            over.set()
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a pending signal
            signal.signal(signal.SIGUSR2, before)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt  # the only exception that passes through a waiting Ray call


def _process(processes: Iterable[psutil.Process], name: str, word: str = "") -> psutil.Process | None:
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
