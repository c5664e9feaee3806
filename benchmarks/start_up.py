"""What a command costs before its first stage trains and after its last: a bench of two short runs on two slots.

    python benchmarks/start_up.py [--rounds 3] [--slots 2]

Prints seconds from the start of the command until the first stage trains, until the dashboard answers (0 where the stages ended before), and
around the stages in all; and the CPU seconds of each kind of process, as far as they can be read before it ends.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psutil

from harness.store import Store

LINE = (
    "bench --table few_shot --preset quick --tasks movies --sizes 20 --subsets 0 --seeds 31,42 --methods ft "
    "--set fine_tune.steps=2 --store sqlite:///start_up.db"
)
KINDS = {
    r"-m harness": "driver",
    r"ray::(WorkerProcess|FT/)": "workers",
    r"ray::Ledger": "ledger",
    r"harness.cluster.fork_server": "the server that forks workers",
    r"dashboard|Dashboard|forkserver|resource_tracker": "Ray's dashboard",
    r"ray|gcs_server|raylet|default_worker|setup_worker": "the rest of Ray",
}
"""What stands in a process's title -> what it is; the first that fits."""


def kind_of(title: str) -> str:
    return next((kind for pattern, kind in KINDS.items() if re.search(pattern, title)), "other")


def measured(folder: Path, slots: int) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds by moment, and CPU seconds by kind of process, of one command."""
    spent: dict[tuple[int, float], tuple[str, float]] = {}
    errors, dashboard_at = folder / "errors", 0.0
    began = time.time()
    with errors.open("wb") as err:
        command = [sys.executable, "-m", "harness", *LINE.split(), "--slots", str(slots)]
        driver = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err)
    while driver.poll() is None:
        for process in psutil.process_iter():
            try:
                if process.cwd() == str(folder):
                    times, title = process.cpu_times(), " ".join(process.cmdline())
                    if title:
                        spent[process.pid, process.create_time()] = (kind_of(title), times.user + times.system)
            except psutil.Error:
                continue
        if not dashboard_at and b"Ray dashboard" in errors.read_bytes():
            dashboard_at = time.time() - began
        time.sleep(0.1)
    ended = time.time() - began
    if driver.returncode:
        raise SystemExit(errors.read_text())
    store = Store(f"sqlite:///{folder / 'start_up.db'}", create=False)
    with store._read() as connection:
        rows = connection.exec_driver_sql("SELECT key, committed_at FROM records").fetchall()
    at: dict[str, float] = {row[0]: row[1] for row in rows}
    records = store.records(at)
    first = min(at[key] - record.seconds for key, record in records.items()) - began
    trained = sum(record.seconds for record in records.values()) / slots
    totals: defaultdict[str, float] = defaultdict(float)
    for kind, seconds in spent.values():
        totals[kind] += seconds
    moments = {
        "until a stage trains": first,
        "until the dashboard answers": dashboard_at,
        "the command without its stages": ended - trained,
    }
    return moments, totals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=2)
    options = parser.parse_args()
    rounds = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            rounds.append(measured(Path(folder).resolve(), options.slots))
    for name in rounds[0][0]:
        values = [moments[name] for moments, _ in rounds]
        print(f"{statistics.median(values):6.1f} s  {name} ({min(values):.1f}-{max(values):.1f})")
    for kind in [*KINDS.values(), "other"]:
        values = [totals[kind] for _, totals in rounds]
        print(f"{statistics.median(values):6.1f} CPU seconds of {kind}")
    print(f"{statistics.median(sum(totals.values()) for _, totals in rounds):6.1f} CPU seconds in all")


if __name__ == "__main__":
    main()
