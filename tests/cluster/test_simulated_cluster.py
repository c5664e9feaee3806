"""The simulated cluster of benchmarks/simulated_cluster.py drives the pool's own loop: what the pool asks of a cluster, it has to answer."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_every_stage_is_committed_once() -> None:
    program = [sys.executable, "simulated_cluster.py", "--stages", "100", "--nodes", "2", "--cpu"]
    done = subprocess.run(program, cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    ends = re.match(r"(\d+) done(?:, (\d+) failed)? on 16 slots", done.stdout)
    assert ends, done.stderr
    assert sum(int(count or 0) for count in ends.groups()) == 100
    assert "ledger: 100 x commit" in done.stdout
