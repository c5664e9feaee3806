"""What the raylet starts for a worker: it asks the server of `harness.cluster.fork_server` for a process, and lives as long as that does. Imports next to
nothing, because each worker waits for it."""

import json
import os
import socket
import sys

ADDRESS = "HARNESS_FORK_SERVER"
"""In the environment: the abstract socket of the server."""
SCRIPT = "HARNESS_WORKER_SCRIPT"
"""In the environment: Ray's own script of a worker, which runs here where there is no server."""
FORKED = b"+"
"""The server's first answer; the second is the exit status of the worker, or none if the server was killed, and with it the worker."""
PATIENCE_SECONDS = 20.0
"""Of a server that still imports. The raylet waits for a minute, and on a busy machine an import takes longer."""


def main() -> None:
    script, arguments, raylet = os.environ[SCRIPT], sys.argv[1:], os.getppid()
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.settimeout(PATIENCE_SECONDS)
            server.connect(f"\0{os.environ[ADDRESS]}")
            socket.send_fds(server, [b"+"], [0, 1, 2])
            with open("/proc/self/oom_score_adj") as file:  # the raylet lets workers be killed first
                oom_score_adj = file.read()
            wanted = {
                "arguments": [script, *arguments],
                "environment": dict(os.environ),
                "folder": os.getcwd(),
                "raylet": raylet,
                "oom_score_adj": oom_score_adj,
            }
            server.sendall(json.dumps(wanted).encode() + b"\n")
            forked = server.recv(1) == FORKED
        except OSError:
            forked = False
        if forked:
            server.settimeout(None)
            try:
                status = server.recv(1)
            except OSError:
                status = b""
            os._exit(status[0] if status else 1)
    import ctypes
    import signal

    pr_set_pdeathsig = 1  # as `harness.processes.end_with_parent`, which this script may not find
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)  # also of the script: it would wait for a dead GCS
    if os.getppid() != raylet:
        os._exit(1)
    os.execv(sys.executable, [sys.executable, script, *arguments])


if __name__ == "__main__":
    main()
