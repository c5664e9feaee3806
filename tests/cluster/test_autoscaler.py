"""A cluster whose head has nothing to train on grows to what a command asks for, and shrinks after it: Ray's autoscaler, with its provider for one machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from cluster.driver import started, waited
from cluster.studies import TINY, space_in

SMALL = "--set max_length=16 --set fine_tune.steps=12"
COMMANDS = (
    f"bench --table few_shot --seeds 31,42 --methods ft --tasks movies --sizes 20 --subsets 0 {SMALL}",
    f"tune cmlm --space space.yaml --grid --out grid --slots 2 {TINY}",
)
HEAD = "f" * 51 + "00000"  # the name that the provider gives the head


Cluster = tuple[str, Callable[[], int]]
"""The address of a head without CPUs, to which up to two nodes of one CPU are added, and how many there are."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    provider = {"type": "fake_multinode", "gcs_address": address, "head_node_id": HEAD}
    config = {
        "cluster_name": "growing",
        "max_workers": 2,
        "provider": provider | {"disable_node_updaters": True, "use_node_id_as_ip": True},
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": {"resources": {"CPU": 1, "object_store_memory": 10**8}, "node_config": {}, "max_workers": 2},
        },
        "head_node_type": "ray.head.default",
        **{"upscaling_speed": 1.0, "idle_timeout_minutes": 0.05, "auth": {"ssh_user": "nobody"}, "file_mounts": {}},
        **{"cluster_synced_files": [], "file_mounts_sync_continuously": False, "rsync_exclude": [], "rsync_filter": []},
        **{f"{of}_commands": [] for of in ("initialization", "setup", "head_setup", "worker_setup")},
        **{f"{of}_start_ray_commands": [] for of in ("head", "worker")},
    }
    (tmp_path / "cluster.json").write_text(json.dumps(config))

    def processes(word: str = "") -> list[psutil.Process]:
        """Of this cluster, with a word in their command line."""
        lines = {each: " ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])}
        return [each for each, line in lines.items() if short in line and word in line]

    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as short:
        words = ["start", "--head", "--block", "--num-cpus=0", "--include-dashboard=false", f"--temp-dir={short}/r"]
        words += [f"--autoscaling-config={tmp_path}/cluster.json", f"--port={address.rpartition(':')[2]}"]
        words += ["--node-ip-address=127.0.0.1", "--object-store-memory=100000000"]
        asked = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD}
        head = subprocess.Popen(
            [Path(sys.executable).with_name("ray"), *words],
            env={**os.environ, **asked, "RAY_AUTH_MODE": "disabled"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            waited("the cluster", lambda: next(Path(short).glob("r/session_latest/logs/raylet.out"), None))
            yield address, lambda: len(processes("raylet/raylet ")) - 1
        finally:
            head.kill()
            head.wait()
            for process in processes():
                with suppress(psutil.NoSuchProcess):
                    process.kill()


@pytest.mark.ray
@pytest.mark.usefixtures("packaged")
def test_it_grows_to_what_a_command_asks_for_and_shrinks(cluster: Cluster, tmp_path: Path) -> None:
    address, nodes = cluster
    space_in(tmp_path)
    for command in COMMANDS:
        with started(tmp_path, f"{command} --address {address}", RAY_AUTH_MODE="disabled") as driver:
            driver.waited("two nodes", lambda: nodes() == 2)
            assert driver.wait() == 0, driver.err
        waited("the end of the nodes", lambda: nodes() == 0)
