"""What a process of Ray that trains, or holds leases, does as it starts."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cluster import worker
from harness.cluster.tune import HarnessTrial

LIBC = ctypes.CDLL(None)
SET, GET = 1, 2


@pytest.fixture
def without_signal() -> Iterator[None]:
    yield
    LIBC.prctl(SET, 0)


def start_trial() -> None:
    given: Any = dict.fromkeys(("worker_setup", "vocabulary", "ledger", "execution", "retry"))
    given |= {
        "points": SimpleNamespace(runs=lambda point: (), request=SimpleNamespace(methods=())),
        "references": {},
    }
    HarnessTrial.setup(object.__new__(HarnessTrial), {"number": 0, "point": {}}, **given)


def start_worker() -> None:
    worker.stop_when_asked(None)


@pytest.mark.skipif(not hasattr(LIBC, "prctl"), reason="Linux only")
@pytest.mark.usefixtures("without_signal")
@pytest.mark.parametrize("start", [start_trial, start_worker])
def test_it_is_killed_with_its_raylet(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an orphan of a trial keeps its leases: on 25 November 2026 a study waited for one for ever."""
    monkeypatch.setattr(worker.ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "here"))
    monkeypatch.setattr(worker.threading.Thread, "start", lambda self: None)
    start()
    set_to = ctypes.c_int()
    LIBC.prctl(GET, ctypes.byref(set_to))
    assert set_to.value == signal.SIGKILL
