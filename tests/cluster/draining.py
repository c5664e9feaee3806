"""Run as a program: a cluster whose head trains nothing and that has two nodes of one CPU each. Prints its address and the nodes' ids, and
does what the file `orders` in the current folder says, which it then deletes.

    drain NODE SECONDS   a notice that the node goes in so many seconds, as `ray drain-node` gives it
    add                  another node joins; its id is printed
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import harness.cluster  # noqa: F401  # isort: skip, before ray
from ray.cluster_utils import Cluster


def main(folder: str) -> None:
    head = {"num_cpus": 0, "include_dashboard": False, "dashboard_port": 0, "temp_dir": folder}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    print(cluster.address, *(cluster.add_node(num_cpus=1).node_id for _ in range(2)), flush=True)
    orders = Path("orders")
    while True:
        time.sleep(0.1)
        order = orders.read_text() if orders.exists() else ""
        if not order.endswith("\n"):
            continue
        orders.unlink()
        match order.split():
            case ["drain", node, seconds]:
                words = ["--address", cluster.address, "--node-id", node, "--deadline-remaining-seconds", seconds]
                words += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a spot notice"]
                ray = str(Path(sys.executable).parent / "ray")
                print(
                    subprocess.run([ray, "drain-node", *words], capture_output=True, text=True).returncode, flush=True
                )
            case ["add"]:
                print(cluster.add_node(num_cpus=1).node_id, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
