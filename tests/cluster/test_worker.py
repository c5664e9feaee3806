"""What a worker needs before it trains: its node's storage and encoders, the device that Ray gave it, and tokens."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bucket import Server, served
from cluster import in_process
from cluster.driver import BENCH, kept
from ray.train import WorkerGroupError

from harness import private
from harness.cli import main
from harness.cluster import worker
from harness.cluster.session import _gpus
from harness.cluster.worker import TokenCache, prepared, slots_of
from harness.encoders.sources import encoder_digest
from harness.errors import UserError
from harness.planning.request import Request
from harness.specs import Data, Encoder, Objective, Optim, RowSet, Selection, Stage
from harness.storage import Storage, WorkerSetup, weights_of
from harness.store import Store


@pytest.fixture(autouse=True)
def _node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with an empty cache, whose object store is this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("ray.put", lambda value: value)
    monkeypatch.setattr("ray.get", lambda value, timeout: value)
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "10.0.0.7")


@pytest.mark.parametrize("there", ["the folder", "nothing", "another encoder", "half of it in the cache"])
def test_an_encoder_is_fetched_where_it_is_not(
    there: str, bert: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    digest = encoder_digest(bert)
    folder = {"the folder": bert, "another encoder": folders["roberta"]}.get(there, tmp_path / "nowhere")
    setup = worker.for_nodes(WorkerSetup({digest: (bert, None)}, Storage(str(tmp_path / "shared"))), "auto")

    def found() -> Path:
        ((here, _),) = worker.on_this_node(replace(setup, encoders={digest: (folder, None)})).encoders.values()
        assert encoder_digest(here) == digest
        return here

    if there == "half of it in the cache":
        weights = found() / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-4])
    assert found() == (bert if there == "the folder" else tmp_path / "cache" / "harness" / "encoders" / digest)


def test_what_a_node_lacks_is_said_with_its_name(tmp_path: Path) -> None:
    new = {"e": (Path("/nowhere"), {"model_type": "bert"})}
    setup = worker.for_nodes(WorkerSetup(new, Storage(str(tmp_path / "shared"))), "auto")
    assert worker.on_this_node(setup).encoders == new, "what has no weights yet needs no files"
    for lacking, said in (
        (replace(setup, storage=Storage(str(tmp_path / "own"))), "sees another place than the driver .*--storage"),
        (replace(setup, code="another"), "has another harness than the driver"),
    ):
        with pytest.raises(UserError, match=rf"^The node \S+ \(10\.0\.0\.7\) {said}"):
            worker.on_this_node(lacking)
    alone = WorkerSetup(new, Storage(str(tmp_path / "alone")))
    assert worker.on_this_node(worker.for_nodes(alone, "local")) == alone
    assert not (tmp_path / "alone").exists(), "on one machine nothing is left"


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.mark.slow
def test_weights_travel_through_a_bucket(
    server: Server, tmp_path: Path, packaged: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parent's weights are there while a child needs them; the root's stay. The secret is nowhere but in the command."""
    line = BENCH.replace("31,42", "31").replace("ft,scl,tapt", "ft,tapt")
    in_process.alone(tmp_path / "here", [f"{line} --storage {server.uri('bench')}"], monkeypatch)
    store = Store(f"sqlite:///{tmp_path}/here/.harness/harness.db", create=False)
    stages = store.stages(kept(tmp_path / "here"))
    (root,) = (key for key, stage in stages.items() if stage.phase == "mlm-head")  # FT starts from no stage
    (middle,) = (key for key, stage in stages.items() if stage.phase == "post-train")
    assert server.files("bench") == {weights_of(root)}
    for key, answered in {root: ("POST", "GET"), middle: ("POST", "GET", "DELETE")}.items():
        assert all(server.asked(method, f"bench/{weights_of(key)}") for method in answered)
    records = store.records(stages)
    for key, stage in stages.items():
        if stage.parent:
            assert records[key].provenance["parent_product"] == records[stage.parent.key].weights_digest
    assert not (tmp_path / "here" / ".harness" / "products").exists()
    for path in (tmp_path / "here" / ".harness").rglob("*"):
        assert not path.is_file() or b"hush" not in path.read_bytes()


def test_a_storage_that_does_not_answer_is_said_before_ray_starts(
    packaged: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.cluster.session.session", lambda *_: 1 / 0)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        uri = f"s3://me:hush@weights/x?endpoint_override=127.0.0.1:{unused.getsockname()[1]}&scheme=http"
        assert main([*BENCH.split(), "--storage", uri]) == 2
    said = capsys.readouterr().err
    assert re.search(r"harness: The storage s3://\*\*\*@weights/x\S* could not be .*connect", said)
    assert "hush" not in said


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A cluster with one GPU, which Ray gave to this process."""
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 8.0, "GPU": 1.0})
    monkeypatch.setattr("ray.get_gpu_ids", lambda: [0])
    return monkeypatch


@pytest.mark.parametrize(
    ("address", "torch_has", "share"),
    [("local", True, 1.0), ("local", False, 0.0), ("auto", False, 1.0)],
    ids=["a GPU", "torch without CUDA", "another machine's torch"],
)
def test_a_run_takes_a_gpu_where_one_is_of_use(
    machine: pytest.MonkeyPatch, address: str, torch_has: bool, share: float
) -> None:
    """With a build of torch for the CPU a GPU would hold back all runs but one."""
    machine.setattr("torch.cuda.is_available", lambda: torch_has)
    assert _gpus(Request(address=address)) == share
    assert _gpus(Request(address=address, gpus_per_run=0.5)) == 0.5, "as requested"


@pytest.mark.parametrize(
    ("asked", "slots"),
    [
        ({}, 8),
        ({"cpus_per_run": 0.1}, 80),
        ({"gpus_per_run": 0.5}, 2),
        ({"num_workers": 3}, 2),
        ({"slots": 3}, 3),
        ({"gpus_per_run": 2, "address": "auto"}, 1),
    ],
)
def test_slots_are_what_the_resources_hold(machine: pytest.MonkeyPatch, asked: dict[str, Any], slots: int) -> None:
    assert slots_of(Request(**asked)) == slots
    with pytest.raises(UserError, match="takes 1 CPUs and 2 GPUs, and this machine has 8 CPUs and 1 GPUs; lower"):
        slots_of(Request(gpus_per_run=2))


@pytest.mark.parametrize(("given", "there", "device"), [([0], True, "cuda"), ([], True, "cpu"), ([0], False, "cpu")])
def test_a_worker_trains_on_the_gpu_that_ray_gave_it_in_float32(
    machine: pytest.MonkeyPatch, tmp_path: Path, given: list[int], there: bool, device: str
) -> None:
    """Whatever the environment set: a variable that allows TF32 would change numbers and no key."""
    machine.setattr("ray.get_gpu_ids", lambda: given)
    machine.setattr("torch.cuda.is_available", lambda: there)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert prepared(WorkerSetup({}, Storage(str(tmp_path)))).device == device
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_node_that_died_costs_a_worker_group_no_attempt() -> None:
    """Of a node with notice the ledger tells the ranks: Ray Train's watcher, which would end them with another error, is off."""
    assert os.environ["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] == "0"
    left = WorkerGroupError("", {0: RuntimeError("connection closed"), 1: RuntimeError(private.NODE_DIED)})
    assert worker._group_ended(left) == worker.NODE_LEFT


TRAIN, OTHER, DEV, TEST = (RowSet(name, name) for name in ("train", "other", "dev", "test"))
READINGS = [
    Data(TRAIN, 2, 64, DEV, (TEST,)),
    Data(OTHER, 2, 64, DEV, (TEST,)),
    Data(TRAIN, 2, 128, DEV, (TEST,)),
    Data(TRAIN, max_length=64),
    Data(TRAIN, max_length=64, views=2),
    Data(TRAIN, max_length=64, blocks="packed"),
    Data(TRAIN, 2, 64, DEV, (TEST,), views=2),
    Data(TRAIN, 2, 64, TRAIN, (DEV, TEST)),
]
"""Longer, in views and in blocks, with and without evaluation sets, and a training set that is another's dev set."""


def test_a_row_set_is_tokenised_once_for_each_way_of_reading_it() -> None:
    """However many stages ask for it; a process without texts gets what another has made."""
    made: list[Any] = []

    def tokenised(rows: RowSet, data: Data, encoder: str) -> Any:
        made.append((rows.digest, data.max_length, data.views, data.blocks))
        return made[-1]

    first = TokenCache(tokenised)
    for times in range(3):
        cache = first if times < 2 else TokenCache(made=first.made)
        for data in READINGS:
            selection = Selection("accuracy") if data.dev else None
            stage = Stage(Objective("cross_entropy", 1), data, Optim(1e-3, 8, 2), 0, Encoder("e", "e"), selection)
            evaluations = [*([data.dev] if data.dev else []), *data.tests]
            # Evaluation sets are read text by text, however the training rows are.
            assert cache.references(stage) == [
                (data.train.digest, data.max_length, data.views, data.blocks),
                *((rows.digest, data.max_length, 1, "text") for rows in evaluations),
            ]
    assert len(made) == len(set(made)) == 9, "train in 4 ways, other in one, dev and test at 2 lengths"
