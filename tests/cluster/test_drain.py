"""A real bench, a bench of worker groups and a study on nodes that are all taken away with notice, or without: they go on where others join, no
update is made twice after a notice, and without one no more than since the last checkpoint."""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from cluster import in_process
from cluster.driver import Driver, kept, numbers, started, waited

from harness.store import Store

CLUSTER = Path(__file__).with_name("draining.py")
STEPS = 400
SMALL = f"--set fine_tune.steps={STEPS} --yes"
BENCH = f"bench --table few_shot --tasks movies --sizes 20 --subsets 0 --seeds 31,42 --methods ft {SMALL}"
SPACE = """
name: drained
method: scl
table: few_shot
tasks: [movies]
sizes: [20]
subsets: 1
seeds: [31]
racing: none
defaults: {lam: 0.3}
grid: {lam: [0.3, 0.7]}
presets:
  quick: {description: for tests}
"""
POINTS = [
    f"{BENCH.replace('--methods ft', '--methods scl').replace('31,42', '31')} --set scl.lam={lam}" for lam in (0.3, 0.7)
]
COMMANDS = {
    "bench": (BENCH, [BENCH]),
    "group": (f"{BENCH} --num-workers 2", [BENCH]),
    "study": (f"tune scl --space space.yaml --grid {SMALL}", POINTS),
}
"""What runs, and what trains the same stages on one worker."""


def training(cluster: Driver) -> int:
    return len(cluster.titled(r"ray::.*(/movies/|RayTrainWorker|execute._join)"))


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "notice", "minutes"), [*((what, True, 60) for what in COMMANDS), ("bench", False, 0.05)]
)
def test_what_is_lost_with_nodes(
    what: str,
    notice: bool,
    minutes: float,
    tmp_path: Path,
    packaged: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command, alone = COMMANDS[what]
    products = tmp_path / "command" / ".harness" / "products"
    with (
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as short,  # a socket's path has 107 bytes
        started(tmp_path, short, (str(CLUSTER),), RAY_AUTH_MODE="token") as cluster,
    ):
        address, *nodes = waited("the cluster", lambda: cluster.out.split())
        (tmp_path / "command").mkdir()
        (tmp_path / "command" / "space.yaml").write_text(SPACE)

        def order(line: str) -> None:
            waited("the order before", lambda: not (tmp_path / "orders").exists())
            (tmp_path / "orders").write_text(f"{line}\n")

        line = f"{command} --address {address} --checkpoint-minutes {minutes}"
        with started(tmp_path / "command", line, RAY_AUTH_MODE="token") as driver:
            driver.waited("both nodes at work", lambda: training(cluster) == 2)
            if notice:
                stages = 1 if what == "group" else 2
                for number, node in enumerate(nodes[:stages], 1):
                    order(f"drain {node} 600")
                    waited("the notice", lambda count=number: cluster.out.splitlines().count("0") >= count)
                told = time.time()
                files = driver.waited(
                    "the checkpoints", lambda: len(f := [*products.glob("*.checkpoint.safetensors")]) == stages and f
                )
                latest = max(file.stat().st_mtime for file in files)
                driver.waited("workers that are released", lambda: not training(cluster))
                print(
                    f"{what}: {latest - told:.1f} s from the notice to the checkpoint, {time.time() - told:.1f} s to released workers"
                )
            else:
                files = driver.waited(
                    "checkpoints", lambda: len(f := [*products.glob("*.checkpoint.safetensors")]) == 2 and f
                )
                died = time.time()
                raylets = [process for process in cluster.processes() if process.name() == "raylet"]
                for raylet in sorted(raylets, key=psutil.Process.create_time)[1:]:  # the first is the head's
                    for process in [*raylet.children(recursive=True), raylet]:
                        process.kill()
                for file in products.glob("*.checkpoint.safetensors"):
                    print(f"{what}: {died - file.stat().st_mtime:.1f} s since a checkpoint, of {60 * minutes:g} s")
            order("add")
            order("add")
            assert driver.wait() == 0, driver.err
    in_process.alone(tmp_path / "alone", alone, monkeypatch)
    found = kept(tmp_path / "command")
    if what != "group":  # sums over two ranks are rounded otherwise
        assert numbers(found) == numbers(kept(tmp_path / "alone"))
    records = Store(f"sqlite:///{tmp_path}/command/.harness/harness.db").records(found)
    assert [record.status for record in records.values()] == ["done"] * 2
    resumed = [record.provenance.get("resumed_at", 0) for record in records.values()]
    print(f"{what}: went on after updates {resumed} of {STEPS}")
    assert sum(0 < at < STEPS for at in resumed) == (1 if what == "group" else 2)
    if notice and what != "study":  # a trial's process has no line of its own
        stopped = re.findall(rf"retried: \S+: stopped after update (\d+) of {STEPS}; it goes on from there", driver.err)
        assert sorted(map(int, stopped)) == sorted(at for at in resumed if at), "no update is made twice"
