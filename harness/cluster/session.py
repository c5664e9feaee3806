"""A Ray session: local on loopback by default, or an existing cluster by address, without Ray's own output."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from harness.cluster import set_environment
from harness.errors import UserError, first_line
from harness.machine import FEW_ARENAS, cores, set_malloc
from harness.planning.request import Request
from harness.private import command_line_masked, job_config

LONGEST_FOLDER = 24
"""Characters of the folder in which Ray's own lies: the path of a socket, up to 83 characters longer, has 107 bytes at most."""


@contextmanager
def session(request: Request) -> Iterator[tuple[str, Request]]:
    """Start a Ray on loopback, with all its files in a folder that is removed at the end, or join a running cluster, which is left. Yields the
    address of its dashboard ('' where it has none) and the request with `gpus_per_run` (where it names none: 1 if the cluster has GPUs, else
    0). Raises UserError where Ray does not start or answer, and where this process runs one already, which is left alone."""
    set_malloc(FEW_ARENAS)
    set_environment()
    import ray

    if ray.is_initialized():
        raise UserError(
            "Ray runs in this process already, and harness ends the one that it starts or joins: call ray.shutdown() first, or run "
            "harness in a process of its own."
        )
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False, "configure_logging": True}
    options |= {"namespace": "harness", "job_config": job_config()}
    local, folder, of_processes = request.address == "local", "", dict[str, str]()
    if local:
        slots, folder = request.slots or max(1, cores() // request.num_workers), _new_folder()
        options["num_cpus"] = max(1, round(slots * request.num_workers * request.cpus_per_run))
        options |= {"dashboard_host": "127.0.0.1", "_temp_dir": str(Path(folder, "r"))}
        # a file in the current folder may have the name of a library
        of_processes = {"TMPDIR": folder, "PYTHONSAFEPATH": "1"}
    for name in ("ray", "ray.train", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with redirect_stdout(sys.stderr):  # only tables go to standard output; Ray says there what became of its nodes
        try:
            try:
                with _starting(of_processes), command_line_masked():
                    context = ray.init(address=request.address, **options)
            except Exception as error:  # Ray raises bare ones for its time limits
                logs, folder = folder, ""
                raise _not_begun(error, request.address, logs) from None
            asked = os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
            if local and asked and not ip_address(context.address_info["node_ip_address"]).is_loopback:
                raise UserError(
                    "Ray listens on all addresses: it was imported before harness.cluster; import that one first."
                )
            yield context.dashboard_url or "", replace(request, gpus_per_run=_gpus(request))
        finally:
            try:
                ray.shutdown()
            except KeyboardInterrupt:  # the first signal that ends the command; later ones are ignored
                ray.shutdown()
                raise
            finally:
                if folder:
                    _remove(folder)


def _not_begun(error: Exception, address: str, folder: str) -> UserError:
    """What Ray said as it did not start or answer, where its logs are, and what helps."""
    said = first_line(error)
    if "AuthToken" in f"{error.__cause__}":
        fix = "set RAY_AUTH_MODE=token, and take its head's ~/.ray/auth_token"
        return UserError(f"--address {address}: the cluster wants another token; {fix}.")
    if address != "local":
        fix = "start one with 'ray start --head', or omit the flag to run on this machine"
        return UserError(f"--address {address}: no Ray cluster answers there ({said}); {fix}.")
    fix = "if the machine is overloaded, run the same command again later"
    if isinstance(error, OSError) and error.filename:
        fix = "HOME has to name a folder that can be written"
    return UserError(f"Ray did not start on this machine ({said}); {fix}. Ray's logs are in {folder}.")


def _new_folder() -> str:
    """For all files of a Ray, closed to other users: in RAY_TMPDIR or TMPDIR, or in /tmp where the paths of Ray's sockets would be too long."""
    place = os.environ.get("RAY_TMPDIR", tempfile.gettempdir())
    return tempfile.mkdtemp(prefix="ray-", dir=place if len(place) <= LONGEST_FOLDER else "/tmp")


def _remove(folder: str) -> None:
    """The last processes of Ray may still write as they end."""
    until = time.monotonic() + 2.0
    while Path(folder).exists() and time.monotonic() < until:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)


@contextmanager
def _starting(values: Mapping[str, str]) -> Iterator[None]:
    """Ray's processes start with `values` in their environment. A SIGTERM that comes meanwhile is heard once they have: raised in Ray's forks it
    would be lost, and Ray's own handler prints a stack trace."""
    came, main = list[int](), threading.current_thread() is threading.main_thread()
    before = {name: os.environ.get(name) for name in values}
    handler = signal.signal(signal.SIGTERM, lambda number, _: came.append(number)) if main else None
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({name: value} if value is not None else {})
        if main:
            signal.signal(signal.SIGTERM, handler)
            for number in came:
                signal.raise_signal(number)


def _gpus(request: Request) -> float:
    """GPUs per run: as requested, or 1 if the cluster has GPUs. On this machine they have to be of use to torch: with a build for
    the CPU a run would keep a GPU busy that it cannot use, and the others waiting."""
    import ray
    import torch

    if request.gpus_per_run is not None:
        return request.gpus_per_run
    there = ray.cluster_resources().get("GPU", 0) >= 1
    return float(there and (request.address != "local" or torch.cuda.is_available()))
