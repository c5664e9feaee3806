"""A real bench on nodes that are all taken away with notice, or without: it goes on where others join, no update is made twice after a notice, and
without one no more than since the last checkpoint."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import psutil
import pytest
from cluster import in_process
from cluster.driver import Driver, kept, numbers, started, waited

from harness.store import Store

CLUSTER = Path(__file__).with_name("draining.py")
STEPS = 400
BENCH = f"bench --table few_shot --tasks movies --sizes 20 --subsets 0 --seeds 31,42 --methods ft --set fine_tune.steps={STEPS} --yes"


def training(cluster: Driver) -> int:
    return len(cluster.titled(r"ray::.*/movies/"))


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize(("notice", "minutes"), [(True, 60), (False, 0.05)])
def test_what_is_lost_with_nodes(
    notice: bool, minutes: float, tmp_path: Path, packaged: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    products = tmp_path / "command" / ".harness" / "products"
    with (
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as short,  # a socket's path has 107 bytes
        started(tmp_path, short, (str(CLUSTER),), RAY_AUTH_MODE="token") as cluster,
    ):
        address, *nodes = waited("the cluster", lambda: cluster.out.split())
        (tmp_path / "command").mkdir()

        def order(line: str) -> None:
            waited("the order before", lambda: not (tmp_path / "orders").exists())
            (tmp_path / "orders").write_text(f"{line}\n")

        line = f"{BENCH} --address {address} --checkpoint-minutes {minutes}"
        with started(tmp_path / "command", line, RAY_AUTH_MODE="token") as driver:
            driver.waited("both nodes at work", lambda: training(cluster) == 2)
            if notice:
                for number, node in enumerate(nodes, 1):
                    order(f"drain {node} 600")
                    waited("the notice", lambda count=number: cluster.out.splitlines().count("0") >= count)
                driver.waited("the checkpoints", lambda: len([*products.glob("*.checkpoint.safetensors")]) == 2)
                driver.waited("workers that are released", lambda: not training(cluster))
            else:
                driver.waited("checkpoints", lambda: len([*products.glob("*.checkpoint.safetensors")]) == 2)
                raylets = [process for process in cluster.processes() if process.name() == "raylet"]
                for raylet in sorted(raylets, key=psutil.Process.create_time)[1:]:  # the first is the head's
                    for process in [*raylet.children(recursive=True), raylet]:
                        process.kill()
            order("add")
            order("add")
            assert driver.wait() == 0, driver.err
    in_process.alone(tmp_path / "alone", [BENCH], monkeypatch)
    found = kept(tmp_path / "command")
    assert numbers(found) == numbers(kept(tmp_path / "alone"))
    records = Store(f"sqlite:///{tmp_path}/command/.harness/harness.db").records(found)
    assert [record.status for record in records.values()] == ["done"] * 2
    resumed = [record.provenance.get("resumed_at", 0) for record in records.values()]
    assert sum(0 < at < STEPS for at in resumed) == 2
    if notice:
        stopped = re.findall(rf"retried: \S+: stopped after update (\d+) of {STEPS}; it goes on from there", driver.err)
        assert sorted(map(int, stopped)) == sorted(at for at in resumed if at), "no update is made twice"
