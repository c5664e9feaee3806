"""Which device a run gets, and in which precision its products are: decided without a GPU being there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.cluster.session import _gpus
from harness.cluster.worker import prepared
from harness.execution import Execution, WorkerSetup
from harness.storage import Storage


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
    assert _gpus(Execution(address, gpus_per_run=-1.0)) == share
    assert _gpus(Execution(address, gpus_per_run=0.5)) == 0.5, "as requested"


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
