"""A Ray session: local on loopback by default, or an existing cluster by address, with Ray's own noise kept away."""

from __future__ import annotations

import ctypes
import logging
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from typing import Any

from harness.errors import UserError
from harness.specs import Execution
from harness.store import masked


def quiet_environment() -> None:
    """Before `import ray`: every listener on loopback (ray.md, section 0), no usage pings, no notices."""
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_TRAIN_ENABLE_STATE_TRACKING", "0")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def _hide_passwords() -> None:
    """Ray shows the command line on its dashboard, and so does `ps`: a URL in it may have a password."""
    import ray._private.utils
    import ray._raylet

    shown = shlex.join(masked(word) for word in sys.orig_argv)
    if shown != shlex.join(sys.orig_argv):
        ray._private.utils.get_entrypoint_name = lambda: shown
        ray._raylet.setproctitle(shown)


def _few_arenas() -> None:
    """glibc gives each of Ray's threads an arena and keeps what is freed there: 20 to 40 kB a stage, hundreds of megabytes in
    a long bench. Two are enough for all."""
    m_arena_max = -8
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(m_arena_max, 2)


@contextmanager
def session(execution: Execution, metadata: dict[str, str]) -> Iterator[tuple[str, Execution]]:
    """Start or join Ray; yields the dashboard's address ('' when there is none) and the execution with `gpus_per_run`
    settled (negative asks for 1 where the cluster has GPUs, else 0). `metadata` is shown for the job."""
    quiet_environment()
    _few_arenas()
    import ray
    import ray._private.worker
    from ray.job_config import JobConfig

    # A dead worker is said by the raylet on the driver's standard output, log_to_driver or not (2.60); only tables go there.
    ray._private.worker._worker_logs_enabled = False

    _hide_passwords()
    common: dict[str, Any] = {
        "logging_level": logging.ERROR,
        "log_to_driver": False,
        "configure_logging": True,
        "namespace": "harness",
        "job_config": JobConfig(metadata={f"harness_{k}": v for k, v in metadata.items()}),
    }
    if execution.address == "local":
        slots = execution.num_workers * (execution.slots or max(1, (os.cpu_count() or 1) // execution.num_workers))
        context = ray.init(
            address="local",
            num_cpus=max(1, round(slots * execution.cpus_per_run)),
            include_dashboard=True,
            dashboard_host="127.0.0.1",
            **common,
        )
    else:
        try:
            context = ray.init(address=execution.address, **common)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(
                f"--address {execution.address}: no Ray cluster answers there ({str(error).splitlines()[0]}); start one "
                "with 'ray start --head', or leave the flag out to run on this machine."
            ) from None
    for name in ("ray", "ray.train", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    gpus = execution.gpus_per_run
    if gpus < 0:
        gpus = 1.0 if ray.cluster_resources().get("GPU", 0) >= 1 else 0.0
    elif gpus > (there := ray.cluster_resources().get("GPU", 0)):
        ray.shutdown()
        raise UserError(f"--gpus-per-run {gpus:g}: this cluster has {there:g} GPUs; leave the flag out.")
    try:
        with redirect_stdout(sys.stderr):
            yield context.dashboard_url or "", replace(execution, gpus_per_run=gpus)
    finally:
        ray.shutdown()
