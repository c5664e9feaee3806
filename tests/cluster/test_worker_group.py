"""Several workers that train one stage together: started, killed and started again."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from cluster.driver import Driver, kept, started
from cluster.studies import NOISE

from harness.cli.request import read_words
from harness.commands.prepare import prepare
from harness.store import Store

LINE = (
    "bench --table few_shot --tasks movies --sizes 20 --subsets 0 --format json --methods ft --seeds 31 "
    "--set max_length=16 --set fine_tune.steps=200"
)


def listeners(driver: Driver) -> set[str]:
    """The addresses on which the processes of its Ray Train workers listen."""
    return {
        socket.laddr.ip.removeprefix("::ffff:")
        for process in driver.titled("ray::RayTrainWorker")
        for socket in process.net_connections(kind="inet")
        if socket.status == psutil.CONN_LISTEN
    }


@pytest.mark.ray
@pytest.mark.usefixtures("packaged")
def test_a_rank_that_is_killed_takes_its_group_with_it_and_another_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the last checkpoint, which the other ranks wait for no longer."""
    products = tmp_path / ".harness" / "products"
    with started(tmp_path, f"{LINE} --slots 1 --num-workers 2 --checkpoint-minutes 0.01") as driver:
        driver.waited("a checkpoint", lambda: products.exists() and [*products.glob("*.checkpoint.*")])
        assert listeners(driver) == {"127.0.0.1"}
        driver.titled("ray::RayTrainWorker")[0].kill()
        assert driver.wait() == 0, driver.err
        driver.gone()
    assert "its worker group ended (rank " in driver.err
    assert [noise for noise in NOISE if noise in driver.out] == []
    assert [(cell["done"], cell["expected"]) for cell in driver.table["cells"]] == [(1, 1)]
    found = kept(tmp_path)
    assert {(each.status, each.attempt) for each in found.values()} == {("done", 1)}
    (record,) = Store(f"sqlite:///{tmp_path / '.harness' / 'harness.db'}").records(found).values()
    assert record.provenance["workers"] == 2
    assert record.provenance["resumed_at"] > 0
    monkeypatch.chdir(tmp_path)
    alone = prepare(read_words([*LINE.split(), "--num-workers", "1"]), train=False)
    assert set(found) == set(alone.plan.stages), "how many workers is no part of a key"
