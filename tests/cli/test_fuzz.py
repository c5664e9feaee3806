"""Mutated tables, spaces, tasks, points, arguments and data end in a status and a sentence (benchmarks/fuzz)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FUZZ = Path(__file__).parents[2] / "benchmarks" / "fuzz"


def test_no_traceback_and_no_hang() -> None:
    done = subprocess.run(
        [sys.executable, str(FUZZ), "--cases", "300", "--seed", "7"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert done.stdout.startswith("300 cases")
