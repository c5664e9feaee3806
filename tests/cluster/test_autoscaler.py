"""A cluster whose head has nothing to train on grows to what a command asks for: Ray's autoscaler, with its provider for one machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from cluster.driver import started, waited

PROVIDER = "fake_multinode"
BENCH = "bench --table few_shot --seeds 31,42 --methods ft --tasks movies --sizes 20 --subsets 0 --set max_length=16 --set fine_tune.steps=12"
HEAD = "f" * 51 + "00000"  # the name that the provider gives the head


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of a head without CPUs that adds up to two nodes of one CPU."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    nothing = {"node_config": {}, "min_workers": 0}
    config = {
        "cluster_name": "growing",
        "max_workers": 2,
        "provider": {"disable_node_updaters": True, "gcs_address": address, "head_node_id": HEAD, "type": PROVIDER},
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": {"resources": {"CPU": 1, "object_store_memory": 10**8}, "max_workers": 2, **nothing},
        },
        "head_node_type": "ray.head.default",
        **{"upscaling_speed": 1.0, "idle_timeout_minutes": 5, "auth": {"ssh_user": "nobody"}, "file_mounts": {}},
        **{"cluster_synced_files": [], "file_mounts_sync_continuously": False, "rsync_exclude": [], "rsync_filter": []},
        **{f"{of}_commands": [] for of in ("initialization", "setup", "head_setup", "worker_setup")},
        **{f"{of}_start_ray_commands": [] for of in ("head", "worker")},
    }
    (tmp_path / "cluster.json").write_text(json.dumps(config))
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
            yield address
        finally:
            head.kill()
            head.wait()
            for process in psutil.process_iter(["cmdline"]):
                if any(short in word for word in process.info["cmdline"] or ()):
                    process.kill()


@pytest.mark.ray
@pytest.mark.usefixtures("packaged")
def test_a_cluster_grows_to_what_a_command_asks_for(address: str, tmp_path: Path) -> None:
    """Without CPUs nothing could be trained."""
    with started(tmp_path, f"{BENCH} --address {address}", RAY_AUTH_MODE="disabled") as driver:
        assert driver.wait() == 0, driver.err
    assert "2 done" in driver.err, driver.err
