"""A node that the network cuts off without a word: its stage goes on elsewhere, and the records are those of an undisturbed bench."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster import in_process
from cluster.driver import Driver, kept, numbers, started, waited

CLUSTER = Path(__file__).with_name("partition.py")
LINE = (
    "bench --table few_shot --tasks movies --sizes 20 --subsets 0 --seeds 31,42 --methods ft --set fine_tune.steps=400 "
    "--set max_length=16 --checkpoint-minutes 0.02 --yes"
)
THERE = "import os, sys; os.execvp('ip', [*{prefix!r}.split(), sys.executable, '-m', 'harness', *sys.argv[1:]])"


@contextmanager
def ended(folder: Path, cluster: Driver) -> Iterator[None]:
    """The network is taken away in the end."""
    try:
        yield
    finally:
        (folder / "end").touch()
        cluster.wait()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and iproute2")
def test_nothing_is_lost_or_doubled_beyond_a_cut(
    tmp_path: Path, packaged: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as short,  # a socket's path has 107 bytes
        started(tmp_path, f"{uuid.uuid4().hex[:4]} {short}", (str(CLUSTER),), RAY_AUTH_MODE="token") as cluster,
    ):
        address, prefix = waited("the cluster", lambda: cluster.out.strip()).split(" ", 1)
        (tmp_path / "bench").mkdir()
        program = ("-c", THERE.format(prefix=prefix))
        with (
            ended(tmp_path, cluster),
            started(tmp_path / "bench", f"{LINE} --address {address}", program, RAY_AUTH_MODE="token") as driver,
        ):

            def seen(pattern: str) -> re.Match[str] | None:
                assert driver.popen.poll() is None, driver.err
                return re.search(pattern, driver.err)

            waited("both nodes at work", lambda: seen(" 2 running, .*update"))
            (tmp_path / "cut").touch()
            waited("the stage back", lambda: seen("retried: .*: its worker's node left"))
            assert driver.wait() == 0, driver.err
            assert "Traceback" not in driver.err
    in_process.alone(tmp_path / "alone", [LINE], monkeypatch)
    records = kept(tmp_path / "bench")
    assert numbers(records) == numbers(kept(tmp_path / "alone"))
    assert [(record.status, record.attempt) for record in records.values()] == [("done", 1)] * 2
