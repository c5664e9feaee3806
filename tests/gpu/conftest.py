"""The devices of these tests, and what becomes of their figures. Tests with the marker `gpu` need a GPU."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu.models import CPU, Setting


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        skipped = pytest.mark.skip(reason=f"torch {torch.__version__} sees no CUDA device")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skipped)


@pytest.fixture
def cpu(tmp_path: Path) -> Setting:
    """The smallest sizes, on the CPU."""
    return Setting(CPU, tmp_path, shape="tiny", updates=1, warm=1)


@pytest.fixture
def cuda(
    machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> Iterator[Setting]:
    """The first GPU that CUDA_VISIBLE_DEVICES names, also for the processes that a test starts."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0])
    record_property("machine", machine)
    torch.set_float32_matmul_precision("highest")  # no TF32
    yield Setting(torch.device("cuda"), tmp_path, updates=60, warm=60)
    gc.collect()
    torch.cuda.empty_cache()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def setting(request: pytest.FixtureRequest) -> Setting:
    """The CPU, and the GPU where there is one."""
    made: Setting = request.getfixturevalue(request.param)
    return made


@pytest.fixture(scope="session")
def machine() -> str:
    """What a GPU's figures were measured on; printed once."""
    properties = torch.cuda.get_device_properties(0)
    size = f"{properties.total_memory / 2**30:.1f} GiB, capability {properties.major}.{properties.minor}"
    text = f"{properties.name}, {size}; torch {torch.__version__}, CUDA {torch.version.cuda}"
    print(f"\n{text}")
    return text


@pytest.fixture
def measured(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """(values, tolerances): print the numbers among the values and the texts (shown by -s), record all of them as properties of the
    test (--junitxml=FILE writes them), then assert that none is more than its tolerance."""

    def measure(values: Mapping[str, Any], tolerances: Mapping[str, float] | None = None) -> None:
        limits = tolerances or {}
        shown = []
        for name, value in values.items():
            record_property(name, value)
            text = f"{value:.3g}" if isinstance(value, float) else value
            if isinstance(value, int | float | str):
                shown.append(f"{name} {text}" + (f" (at most {limits[name]:.0e})" if name in limits else ""))
        print(f"\n{request.node.name}: {', '.join(shown)}")
        assert not {name: values[name] for name, limit in limits.items() if not values[name] <= limit}  # NaN is

    return measure
