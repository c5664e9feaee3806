"""One test for each private interface of Ray and torch in `harness/private.py`: its name, and what it does."""

from __future__ import annotations

import mmap
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from harness import private

PROJECT = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text())["project"]


def test_workers_import_from_the_packages_folder_alone() -> None:
    """`ray.init` adds the current folder and the script's to what a job has."""
    config = private.job_config()
    config._py_driver_sys_path.extend([str(Path.cwd())])
    found = config._get_proto_job_config()
    assert list(found.py_driver_sys_path) == [str(Path(private.__file__).parent.parent)]


@pytest.mark.parametrize("name", ["ray", "torch"])
def test_versions_are_capped_to_the_tested_minor(name: str) -> None:
    (declared,) = (each for text in PROJECT["dependencies"] if (each := Requirement(text)).name == name)
    major, minor = version(name).split(".")[:2]
    assert declared.specifier.contains(f"{major}.{minor}.99")
    assert not declared.specifier.contains(f"{major}.{int(minor) + 1}.0")
    assert not declared.specifier.contains(f"{int(major) + 1}.0.0")


def test_only_this_module_knows_private_names() -> None:
    package = Path(private.__file__).parent
    names = ("ray._private.", "ray._raylet", "ray.dashboard", "_stopped_trials", "node has died")
    names += ("torch._softmax", "torch.ops.", "._study_id", "._trial_id")
    found = [
        f"{path.relative_to(package)}: {name}"
        for path in package.rglob("*.py")
        if path.name != "private.py"
        for text in [path.read_text()]
        for name in names
        if name in text
    ]
    assert not found


class TestRay:
    def test_death_with_a_node(self) -> None:
        import ray

        server = Path(ray.__file__).parent / "core/src/ray/gcs/gcs_server"  # which says it
        with server.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            assert text.find(f"The actor died because {private.NODE_DIED}.".encode()) >= 0


class TestTorch:
    def test_linear_pointwise(self) -> None:
        if not torch.backends.mkldnn.is_available():
            pytest.skip("torch was built without oneDNN")
        x, weight, bias = torch.randn(5, 3), torch.randn(4, 3), torch.randn(4)
        torch.testing.assert_close(private.linear_pointwise(x, weight, bias), x @ weight.t() + bias)
        torch.testing.assert_close(private.linear_pointwise(x, weight, None), x @ weight.t())

    def test_softmax_backward(self) -> None:
        scores = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
        given = torch.randn(4, 7, dtype=torch.float64)
        output = scores.softmax(-1)
        output.backward(given)
        torch.testing.assert_close(private.softmax_backward(given, output.detach()), scores.grad)
