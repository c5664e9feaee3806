"""Tells Ray that this machine goes, so that `harness` stops its stages here with a checkpoint and starts no others. Run it on the node.

python drain.py aws [--every 5]      waits for EC2's notice, which comes two minutes before a spot machine is taken
python drain.py now SECONDS          the node goes in so many seconds: waits that long, or until nothing runs here (Kubernetes' preStop)
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

METADATA = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/") + "/latest/"
"""EC2's instance metadata service, version 2."""


def _asked(path: str, headers: dict[str, str], method: str = "GET") -> str:
    request = urllib.request.Request(METADATA + path, headers=headers, method=method)
    with urllib.request.urlopen(request, timeout=5) as answer:
        return str(answer.read().decode())


def seconds_left() -> float | None:
    """Until EC2 takes this machine; None without a notice. Raises OSError where there is no metadata service."""
    token = _asked("api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    try:
        notice = json.loads(_asked("meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token}))
    except urllib.error.HTTPError as error:
        if error.code == 404:  # there is none yet
            return None
        raise
    when = datetime.strptime(notice["time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


def drain(seconds: float, reason: str) -> None:
    """Give Ray the notice for this node, and wait until the node has left or the time is over."""
    import ray

    ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=False)
    node = ray.get_runtime_context().get_node_id()
    ray.shutdown()
    words = ["drain-node", "--node-id", node, "--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", reason]
    words += ["--deadline-remaining-seconds", str(max(1, int(seconds)))]
    subprocess.run([Path(sys.executable).with_name("ray"), *words], check=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end and _is_here(node):
        time.sleep(1)


def _is_here(node: str) -> bool:
    """Whether the raylet of the node runs: it ends by itself once nothing runs on a node that drains."""
    return any(f"--node_id={node}" in _command(folder) for folder in Path("/proc").iterdir() if folder.name.isdigit())


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:  # it ended
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("aws").add_argument("--every", type=float, default=5.0, metavar="SECONDS")
    commands.add_parser("now").add_argument("seconds", type=float, metavar="SECONDS")
    asked = parser.parse_args()
    if asked.command == "now":
        drain(asked.seconds, "this node is asked to end")
        return
    while True:
        try:
            left = seconds_left()
        except OSError as error:
            print(f"{METADATA}: {error}", file=sys.stderr, flush=True)
            left = None
        if left is not None:
            drain(left, "EC2 takes this spot machine")
            return
        time.sleep(asked.every)


if __name__ == "__main__":
    main()
