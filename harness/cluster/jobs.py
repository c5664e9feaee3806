"""Jobs on a running cluster: submit a command to its head node, follow it, and learn how it ended."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import shutil
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, NoReturn

from harness import private
from harness.errors import UserError, first_line, unknown

ANSWER_SECONDS = 60.0
"""A cluster that does not answer for this long counts as absent."""
CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class JobResult:
    """How a job ended: Ray's status, the command's exit status if it has one, and Ray's reason."""

    status: str
    exit_code: int | None
    reason: str


class Jobs:
    """The jobs of one cluster. `address`: `auto`, the head node's HOST:PORT, or the URL of the dashboard.

    Raises UserError within a minute if no cluster answers, or if it rejects this user's token.
    """

    def __init__(self, address: str) -> None:
        import ray  # noqa: F401

        logging.getLogger("ray").setLevel(logging.ERROR)
        self._token = private.enable_token_authentication()
        self._named = address
        try:
            self._client = self._speaking(lambda: _client_of(_dashboard_of(address)))
        except (RuntimeError, ValueError) as error:  # something other than Ray answers
            self._no_cluster(error)
        self.address: str = self._client.get_address()

    def command(self, action: str, id: str) -> str:
        """The shell command for 'stop' or 'logs --follow' of a job. Ray's command sends a token only if RAY_AUTH_MODE says so."""
        ray = "ray" if shutil.which("ray") else str(Path(sys.executable).with_name("ray"))
        variables = ["RAY_AUTH_MODE=token"] if self._token else []
        if self._token and (path := os.environ.get("RAY_AUTH_TOKEN_PATH")):
            variables.append(f"RAY_AUTH_TOKEN_PATH={shlex.quote(str(Path(path).absolute()))}")
        return " ".join([*variables, shlex.join([ray, "job", *action.split(), id, "--address", self.address])])

    def submit(self, id: str, entrypoint: str, metadata: Mapping[str, str], runtime_env: Mapping[str, Any]) -> None:
        """Submit a shell command to the head node. The dashboard shows `metadata` for the job; a local `working_dir` is uploaded."""
        from ray.runtime_env import RuntimeEnv

        for key in runtime_env:
            if key not in RuntimeEnv.known_fields:
                known = [name for name in RuntimeEnv.known_fields if not name.startswith("_")]
                raise unknown("key", key, known, "--runtime-env")
        try:
            self._speaking(
                lambda: self._client.submit_job(
                    entrypoint=entrypoint,
                    submission_id=id,
                    metadata={f"harness_{k}": v for k, v in metadata.items()},
                    runtime_env=dict(runtime_env),
                )
            )
        except (TypeError, ValueError, RuntimeError) as error:
            if "already exists" in str(error):
                raise UserError(f"--id {id}: this cluster has a job of that name; choose another.") from None
            fix = (
                "; two clusters on one machine share a port: start this one with 'ray start --dashboard-agent-listen-port PORT'"
                if "No available agent" in str(error)
                else ""
            )
            raise UserError(f"The cluster at {self.address} refused the job: {_reason(error)}{fix}.") from None

    def follow(self, id: str, write: Callable[[str], object]) -> JobResult:
        """Write the job's output as it arrives, until the job ends."""

        async def tail() -> None:
            async for text in self._client.tail_job_logs(id):
                write(text)

        try:
            asyncio.run(tail())
            return self._ended(id)
        except (OSError, RuntimeError) as error:
            raise UserError(
                f"The connection to {self.address} was lost ({_reason(error)}); the job runs as long as the cluster does: follow "
                f"it again with: {self.command('logs --follow', id)}"
            ) from None

    def _ended(self, id: str) -> JobResult:
        until = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < until:
            job = self._speaking(lambda: self._client.get_job_info(id))
            if job.status.is_terminal():
                return JobResult(job.status.value, job.driver_exit_code, first_line(RuntimeError(job.message or "")))
            time.sleep(0.2)
        raise RuntimeError("its output ended, but the job did not")

    def _speaking(self, call: Callable[[], Any]) -> Any:
        """The result of a request; its errors become UserErrors."""
        from ray.exceptions import AuthenticationError, RpcError

        try:
            return call()
        except AuthenticationError:
            raise UserError(
                f"--address {self._named}: the cluster rejects this token; copy its own from the head node ('ray "
                "get-auth-token' prints it there) to ~/.ray/auth_token, or name its file with RAY_AUTH_TOKEN_PATH."
            ) from None
        except (RpcError, OSError) as error:  # among them those of requests
            self._no_cluster(error)

    def _no_cluster(self, error: Exception) -> NoReturn:
        raise UserError(
            f"--address {self._named}: no Ray cluster answers there ({_reason(error)}); give the address of its dashboard, "
            "such as http://127.0.0.1:8265 behind 'ray dashboard' or an ssh tunnel, or that of its head node."
        ) from None


def _client_of(dashboard: str) -> Any:
    # These variables would override the address.
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        os.environ.pop(name, None)
    return private.job_client(dashboard, (CONNECT_SECONDS, ANSWER_SECONDS))


def _dashboard_of(address: str) -> str:
    """The URL of the dashboard, from that URL, the head node's HOST:PORT, or 'auto'."""
    if address == "auto":
        address = os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS") or "auto"
    if "://" in address:
        return address
    if address != "auto":
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise UserError(f"--address {address}: write auto, HOST:PORT, or the dashboard's URL.")
        if _is_dashboard(address):
            return f"http://{address}"
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()  # Ray itself would try for 40 s
    return private.dashboard_url(address)


def _is_dashboard(address: str) -> bool:
    try:
        urllib.request.urlopen(f"http://{address}/api/version", timeout=CONNECT_SECONDS).close()
    except urllib.error.HTTPError as error:
        return error.code in (401, 403)  # it needs a token
    except (OSError, HTTPException):
        return False
    return True


def _reason(error: Exception) -> str:
    return first_line(error).rstrip(".")
