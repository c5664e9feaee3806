"""Several workers that train one stage together: started, killed and started again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest
from cluster.driver import Driver, kept, started
from cluster.studies import NOISE

from harness.cli.request import read_words
from harness.commands.prepare import prepare
from harness.store import Store

LINE = (
    "bench --table few_shot --tasks movies --sizes 20 --subsets 0 --format json "
    "--set max_length=16 --set fine_tune.steps=8"
)


def group_of(driver: Driver) -> list[psutil.Process]:
    """The processes of its Ray Train workers."""
    return driver.titled("ray::RayTrainWorker")


def listeners(processes: list[psutil.Process]) -> set[str]:
    """The addresses that processes listen on."""
    return {
        socket.laddr.ip.removeprefix("::ffff:")
        for process in processes
        for socket in process.net_connections(kind="inet")
        if socket.status == psutil.CONN_LISTEN
    }


HOOK = """
import os
import sys
import time
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pathlib import Path

NAME = "harness.training.loop"

class Hook(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(NAME)
        execute = spec.loader.exec_module
        def replace(module):
            execute(module)
            module.train = disturbed(module.train)
        spec.loader.exec_module = replace
        return spec

def disturbed(train):
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook
    def wrapped(module, *arguments, placement, **options):
        steps = []
        def before(*_):
            steps.append(None)
            if placement.process_group.rank == 0 and len(steps) == 4:
                try:
                    with Path("disturbed").open("x") as mark:
                        print(os.getpid(), file=mark)
                except FileExistsError:
                    return
                time.sleep(3600)
        handle = register_optimizer_step_pre_hook(before)
        try:
            return train(module, *arguments, placement=placement, **options)
        finally:
            handle.remove()
    return wrapped

sys.meta_path.insert(0, Hook())
"""
"""A sitecustomize: before the fourth update the first rank waits for ever, once; the others of its group wait for what it will not send."""


def disturbing(folder: Path) -> str:
    """The PYTHONPATH under which it does; the file 'disturbed' holds its process id."""
    (folder / "hook").mkdir()
    (folder / "hook" / "sitecustomize.py").write_text(HOOK)
    return os.pathsep.join([str(folder / "hook"), *sys.path])


@pytest.mark.ray
@pytest.mark.usefixtures("packaged")
def test_a_rank_that_is_killed_takes_its_group_with_it_and_another_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks train each stage; the one that is killed waits in its fourth update."""
    line = f"{LINE} --methods ft --seeds 31"
    mark, path = tmp_path / "disturbed", disturbing(tmp_path)
    with started(tmp_path, f"{line} --slots 1 --num-workers 2", PYTHONPATH=path) as driver:
        driver.waited("a worker that trains a run", lambda: mark.exists() and mark.read_text().endswith("\n"))
        group = group_of(driver)
        assert listeners(group) == {"127.0.0.1"}
        (victim,) = (process for process in group if process.pid == int(mark.read_text()))
        victim.kill()
        assert driver.wait() == 0, driver.err
        driver.gone()
    assert "its worker group ended (rank " in driver.err
    assert ": A worker health check failed." in driver.err
    assert [noise for noise in NOISE if noise in driver.out] == []
    assert [(cell["done"], cell["expected"]) for cell in driver.table["cells"]] == [(1, 1)]
    found = kept(tmp_path)
    assert {(each.status, each.attempt) for each in found.values()} == {("done", 1)}
    records = Store(f"sqlite:///{tmp_path / '.harness' / 'harness.db'}").records(found)
    assert {record.provenance["workers"] for record in records.values()} == {2}
    monkeypatch.chdir(tmp_path)
    alone = prepare(read_words([*line.split(), "--num-workers", "1"]), train=False)
    assert set(found) == set(alone.plan.stages), "how many workers is no part of a key"
