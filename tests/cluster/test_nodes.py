"""The storage and the encoder on every node: what a node cannot see is said before it trains, and weights travel."""

from __future__ import annotations

import json
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from bucket import Server, served
from cluster.driver import BENCH, Driver, kept, started

from harness.cluster import worker
from harness.encoders.models.text_encoder import load_encoder
from harness.encoders.sources import encoder_digest
from harness.errors import UserError
from harness.execution import Execution, WorkerSetup
from harness.storage import Storage, weights_of
from harness.store import Store

TWO_NODES = Path(__file__).with_name("two_nodes.py")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, bert: Path) -> Iterator[dict[str, Any]]:
    """What a driver with two nodes says of storages that both of them see, or only one."""
    if not sys.platform.startswith("linux"):
        pytest.skip("a path that is another one in each process needs Linux's /proc")
    folder = tmp_path_factory.mktemp("two")
    (folder / "elsewhere").mkdir()
    shutil.copytree(bert, folder / "encoder")
    try:
        with started(folder, "", (str(TWO_NODES),)) as driver:
            assert driver.wait() == 0, driver.err
            yield {**json.loads(driver.out.splitlines()[-1]), "folder": folder}
    finally:
        for process in psutil.process_iter(["cwd"]):
            if process.info["cwd"] == str(folder / "elsewhere"):
                process.kill()


@pytest.mark.ray
class TestTwoNodes:
    def test_the_encoder_is_lent_to_the_node_that_lacks_it(self, found: dict[str, Any], bert: Path) -> None:
        digest = encoder_digest(bert)
        own, lent, same = found["folders"]
        cached = found["folder"] / "elsewhere" / "cache" / "harness" / "encoders" / digest
        assert own == ["/proc/self/cwd/encoder", ""]
        assert lent == same == [str(cached), ""]
        assert encoder_digest(cached) == digest
        assert load_encoder(cached, digest, seed=0).parts().keys() == load_encoder(bert, digest, seed=0).parts().keys()
        assert found["new"] == ["/proc/self/cwd/encoder", ""], "what has no weights yet needs no files"

    def test_a_path_of_one_machine_is_named_with_the_node(self, found: dict[str, Any]) -> None:
        folder, said = found["local path"]
        assert not folder
        start = r"The node \S+ \(127\.0\.0\.1\) sees another place than the driver under the storage "
        assert re.match(rf"{start}/proc/self/cwd/weights; name one with --storage that all nodes share", said)


@pytest.mark.parametrize("there", ["nothing", "another encoder", "half of it in the cache"])
def test_an_encoder_is_fetched_where_it_is_not(
    there: str, bert: Path, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("ray.put", lambda value: value)
    monkeypatch.setattr("ray.get", lambda value, timeout: value)
    digest, folder = encoder_digest(bert), folders["roberta"] if there == "another encoder" else tmp_path / "nowhere"
    setup = worker.for_nodes(WorkerSetup({digest: (bert, None)}, Storage(str(tmp_path / "s"))), Execution("auto"))

    def found() -> Path:
        ((here, _),) = worker.on_this_node(replace(setup, encoders={digest: (folder, None)})).encoders.values()
        assert encoder_digest(here) == digest
        return here

    if there == "half of it in the cache":
        weights = found() / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-4])
    assert found() not in (folder, bert)
    with pytest.raises(UserError, match="has another harness than the driver"):
        worker.on_this_node(replace(setup, code="another"))


@pytest.mark.ray
@pytest.mark.slow
def test_weights_travel_through_a_bucket(server: Server, tmp_path: Path, packaged: dict[str, Path]) -> None:
    """A parent's weights are there while a child needs them; the root's stay. The secret is nowhere but in the command."""
    line = BENCH.replace("31,42", "31").replace("ft,scl,tapt", "ft,tapt")
    with started(tmp_path, f"{line} --slots 2 --storage {server.uri('bench')}") as driver:
        assert driver.wait() == 0, driver.err
        _hidden(driver)
    store = Store(f"sqlite:///{tmp_path}/.harness/harness.db", create=False)
    stages = {key: store.stage(key) for key in kept(tmp_path)}
    (root,) = (key for key, stage in stages.items() if stage.phase == "mlm-head")  # FT starts from no stage
    (middle,) = (key for key, stage in stages.items() if stage.phase == "post-train")
    assert server.files("bench") == {weights_of(root)}
    for key, answered in {root: ("POST", "GET"), middle: ("POST", "GET", "DELETE")}.items():
        assert all(server.asked(method, f"bench/{weights_of(key)}") for method in answered)
    records = store.records(stages)
    for key, stage in stages.items():
        if stage.parent:
            assert records[key].provenance["parent_product"] == records[stage.parent.key].weights_digest
    assert not (tmp_path / ".harness" / "products").exists()


def _hidden(driver: Driver) -> None:
    texts = [driver.out.encode(), driver.err.encode()]
    texts += [path.read_bytes() for path in (driver.folder / ".harness").rglob("*") if path.is_file()]
    for text in texts:
        assert b"hush" not in text


def test_a_storage_that_does_not_answer_is_said_before_ray_starts(tmp_path: Path, packaged: dict[str, Path]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        uri = f"s3://me:hush@weights/x?endpoint_override=127.0.0.1:{unused.getsockname()[1]}&scheme=http"
        with started(tmp_path, f"{BENCH} --storage {uri}") as driver:
            assert driver.wait() == 2
        assert re.search(r"harness: The storage s3://\*\*\*@weights/x\S* could not be .*connect", driver.err)
        assert "hush" not in driver.out + driver.err
