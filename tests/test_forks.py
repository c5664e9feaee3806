"""`pytest --forks`: each test is run once, a file's in one process, and neither a failure nor a process that dies is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

TESTS = """
import json, os, pathlib, pytest, warnings

@pytest.fixture(scope="module")
def module():
    yield
    said("torn down")

def said(name):
    with open(os.environ["SAID"], "a") as file:
        file.write(json.dumps([pathlib.Path(__file__).stem, name, os.getpid(), os.environ.get("PYTEST_FORK")]) + "\\n")

@pytest.mark.parametrize("number", range(5))
def test_passes(number, module, tmp_path):
    said(f"passes {number}")

def test_is_skipped():
    pytest.skip("for a reason")

def test_warns():
    warnings.warn("a word of warning")
"""
FAILS = """
def test_fails():
    print("what it printed")
    assert 1 == 2
"""
DIES = """
import os

def test_dies():
    os._exit(3)

def test_is_not_run():
    pass
"""


def run(folder: Path, *words: str) -> tuple[int, str, list[list[str]]]:
    """Exit status, output, and what its tests said: [file, sentence, process, fork]."""
    said = folder / "said"
    said.touch()
    (folder / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "forks", "-p", "no:cacheprovider", *words]
    environment = os.environ | {"SAID": str(said), "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    return done.returncode, done.stdout + done.stderr, [json.loads(line) for line in said.read_text().splitlines()]


def test_each_test_runs_once_and_a_files_in_one_process(tmp_path: Path) -> None:
    names = [f"test_{letter}" for letter in "abcdef"]
    for name in names:
        (tmp_path / f"{name}.py").write_text(TESTS)
    status, out, said = run(tmp_path, "--forks", "3")
    assert status == 0, out
    assert "36 passed, 6 skipped, 6 warnings" in out
    assert Counter((file, sentence) for file, sentence, *_ in said) == {
        (name, sentence): 1 for name in names for sentence in (*(f"passes {i}" for i in range(5)), "torn down")
    }
    processes = {file: {process for each, _, process, _ in said if each == file} for file in names}
    assert all(len(each) == 1 for each in processes.values()), processes
    assert 1 <= len(set.union(*processes.values())) <= 3
    assert {fork for *_, fork in said} <= {"0", "1", "2"}, "fixtures know that others run beside them"


def test_a_failure_is_told_with_what_was_printed(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(TESTS)
    (tmp_path / "test_b.py").write_text(FAILS)
    status, out, _ = run(tmp_path, "--forks", "2")
    assert status == 1, out
    assert "1 failed, 6 passed, 1 skipped, 1 warning" in out
    assert "assert 1 == 2" in out
    assert "what it printed" in out


def test_a_process_that_dies_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(DIES)
    (tmp_path / "test_b.py").write_text(TESTS)
    status, out, said = run(tmp_path, "--forks", "2")
    assert status != 0, out
    assert "2 tests were not run to their end; a process ended with 3 in test_a.py::test_dies" in out
    assert len(said) == 6, "the other process ran its file to the end"


def test_the_first_failure_stops_all(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(FAILS)
    (tmp_path / "test_b.py").write_text("import time\n\ndef test_waits():\n    time.sleep(600)\n")
    status, out, _ = run(tmp_path, "--forks", "2", "-x")
    assert status != 0, out
    assert "stopping after 1 failures" in out
