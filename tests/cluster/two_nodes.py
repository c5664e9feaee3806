"""Run as a program: a cluster of two nodes (raylets) on this machine, whose second one lives in another working folder, so that some paths
are not there what they are here. Prints what it found as JSON."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.cluster import worker  # isort: skip, before ray
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from harness.encoders.sources import encoder_digest
from harness.errors import UserError
from harness.execution import Execution, WorkerSetup
from harness.storage import Storage

HERE = Path("/proc/self/cwd")
"""The working folder of whoever asks, which is another one on the second node: a path of one machine only."""
CLUSTER = Execution("auto")


def at(node: str, setup: WorkerSetup) -> Any:
    """What becomes of a setup as a worker starts on that node."""

    def start() -> tuple[str, str]:
        try:
            ((folder, _),) = worker.on_this_node(setup).encoders.values()
            return str(folder), ""
        except UserError as error:
            return "", str(error)

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=there)(start).remote()


def main() -> dict[str, Any]:
    folder = Path.cwd()
    place = {"num_cpus": 1, "node_ip_address": "127.0.0.1"}
    cluster = Cluster(initialize_head=True, head_node_args={**place, "include_dashboard": False})
    try:
        ray.init(address=cluster.address, log_to_driver=False, namespace="harness")
        os.chdir(folder / "elsewhere")
        environment = {"XDG_CACHE_HOME": str(folder / "elsewhere" / "cache")}
        second = cluster.add_node(**place, env_vars=environment)
        os.chdir(folder)
        found: dict[str, Any] = {}
        encoder, digest = HERE / "encoder", encoder_digest(folder / "encoder")
        setup = WorkerSetup({digest: (encoder, None)}, Storage(str(folder / "shared")))
        marked = worker.for_nodes(setup, CLUSTER)
        (head,) = {node["NodeID"] for node in ray.nodes()} - {second.node_id}
        found["folders"] = ray.get([at(node, marked) for node in (head, second.node_id, second.node_id)])
        new = worker.for_nodes(replace(setup, encoders={digest: (encoder, {"model_type": "bert"})}), CLUSTER)
        found["new"] = ray.get(at(second.node_id, new))
        local = worker.for_nodes(replace(setup, storage=Storage(str(HERE / "weights"))), CLUSTER)
        found["local path"] = ray.get(at(second.node_id, local))
        return found
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    print(json.dumps(main()))
