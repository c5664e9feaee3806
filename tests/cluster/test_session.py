"""What a session needs before Ray is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from cluster.driver import OURS

from harness.cluster.session import session
from harness.errors import UserError
from harness.execution import Execution

SET_FIRST = """
import importlib, os, sys
class Ray:
    def find_spec(self, name, path, target=None):
        if name == "ray":
            sys.exit(os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "unset"))
sys.meta_path.insert(0, Ray())
importlib.import_module(sys.argv[1])
sys.exit("0")
"""
"""Ends as Ray would be imported, with what it would read then."""


@pytest.mark.parametrize("module", ["pool", "proposals", "jobs"])
def test_whatever_is_imported_first_ray_finds_its_environment(module: str) -> None:
    """Ray reads once, as it is imported, that it has to stay on loopback."""
    environment = {name: value for name, value in os.environ.items() if name not in OURS}
    done = subprocess.run(
        [sys.executable, "-c", SET_FIRST, f"harness.cluster.{module}"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == "0\n"


def test_a_ray_that_does_not_start_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(**options: object) -> None:
        raise Exception("The current node timed out during startup. More.\nAnd more.")

    monkeypatch.setattr("ray.init", late)
    refused = pytest.raises(UserError, match=r"^Ray did not start on this machine \(The current node timed out")
    with refused, session(Execution("local", slots=1), {}):
        pass
