"""A real bench on nodes of which one is drained under its stage: the stage goes on elsewhere, and no update is made twice."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from cluster import in_process
from cluster.driver import kept, numbers, started, waited

from harness.cli import main
from harness.store import Store

CLUSTER = Path(__file__).with_name("draining.py")
LINE = (
    "bench --table few_shot --tasks movies --sizes 20 --subsets 0 --seeds 31,42 --methods ft --set fine_tune.steps=400 "
    "--checkpoint-minutes 60 --yes"
)
STOPPED = r"retried: (\S+): stopped after update (\d+) of 400; it goes on from there"


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_no_update_is_lost_with_a_node_that_gave_notice(
    workers: int, tmp_path: Path, packaged: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as short,  # a socket's path has 107 bytes
        started(tmp_path, short, (str(CLUSTER),), RAY_AUTH_MODE="token") as cluster,
    ):
        address, first, _ = waited("the cluster", lambda: cluster.out.split())
        (tmp_path / "bench").mkdir()
        line = f"{LINE} --address {address} --num-workers {workers}"
        with started(tmp_path / "bench", line, RAY_AUTH_MODE="token") as driver:

            def seen(pattern: str) -> re.Match[str] | None:
                assert driver.popen.poll() is None, driver.err
                return re.search(pattern, driver.err)

            waited("both nodes at work", lambda: seen(rf" {3 - workers} running, .*update"))
            (tmp_path / "orders").write_text(f"drain {first} 600\n")
            stopped = waited("the stage back", lambda: seen(STOPPED))
            (tmp_path / "orders").write_text("add\n")
            assert driver.wait() == 0, driver.err
            assert f"node {first[:10]} leaves the cluster: its stages stop with a checkpoint." in driver.err
    with monkeypatch.context() as here:
        (tmp_path / "alone").mkdir()
        here.chdir(tmp_path / "alone")
        in_process.patch(here)
        assert main(LINE.split()) == 0
    found = kept(tmp_path / "bench")
    if workers == 1:  # sums over two ranks are rounded otherwise
        assert numbers(found) == numbers(kept(tmp_path / "alone"))
    records = Store(f"sqlite:///{tmp_path}/bench/.harness/harness.db").records(found)
    resumed = {record.provenance["resumed_at"] for record in records.values() if "resumed_at" in record.provenance}
    assert resumed == {int(stopped[2])}
    assert [record.status for record in records.values()] == ["done"] * 2
