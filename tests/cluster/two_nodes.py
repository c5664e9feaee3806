"""Run as a program: a cluster of two nodes (raylets) on this machine, whose second one lives in another working folder, so that some paths
are not there what they are here. Prints what it found as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.cluster import nodes  # isort: skip, before ray
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


def said(act: Callable[[], Any]) -> str:
    try:
        act()
    except UserError as error:
        return str(error)
    return ""


def at(node: str, setup: WorkerSetup) -> Any:
    """What becomes of a setup as a worker starts on that node."""

    def start() -> tuple[str, str]:
        try:
            return str(nodes.checked(setup).encoder_folder), ""
        except UserError as error:
            return "", str(error)

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=there)(start).remote()


def main() -> dict[str, Any]:
    folder = Path.cwd()
    nodes.ANSWER_SECONDS = 600.0  # no node hangs here, however busy the machine is
    place = {"num_cpus": 1, "node_ip_address": "127.0.0.1"}
    cluster = Cluster(initialize_head=True, head_node_args={**place, "include_dashboard": False})
    try:
        ray.init(address=cluster.address, log_to_driver=False, namespace="harness")
        os.chdir(folder / "elsewhere")
        environment = {"XDG_CACHE_HOME": str(folder / "elsewhere" / "cache")}
        second = cluster.add_node(**place, env_vars=environment)
        os.chdir(folder)
        name = second.node_id
        found: dict[str, Any] = {"second": name[:8]}

        shared = Storage(str(folder / "shared"))
        encoder, digest = HERE / "encoder", encoder_digest(folder / "encoder")
        setup = WorkerSetup(encoder, shared)
        marked = nodes.shared(setup, CLUSTER, digest)
        found["lent"] = sorted(
            str(path.relative_to(folder)) for path in (folder / "shared").rglob("*") if path.is_file()
        )
        (head,) = {node["NodeID"] for node in ray.nodes()} - {name}
        found["folders"] = ray.get([at(head, marked), at(name, marked), at(name, marked)])
        new = nodes.shared(replace(setup, encoder_config={"model_type": "bert"}), CLUSTER, digest)
        found["new"] = ray.get(at(name, new))

        local = Storage(str(HERE / "weights"))
        found["local path"] = said(lambda: nodes.shared(replace(setup, storage=local), CLUSTER, digest))
        mark = local.read(nodes.MARK).decode()
        found["late, local path"] = ray.get(at(name, replace(marked, storage=local, storage_mark=mark)))
        found["left"] = sorted(path.name for path in folder.rglob("probe-*"))
        return found
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    print(json.dumps(main()))
