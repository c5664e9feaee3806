"""What `harness plan` costs on a large file of labelled rows: CPU seconds and peak memory of the process.

    python benchmarks/million_rows.py [--rows 1000000] [--repeats 3]

Writes a CSV file of random English-like rows (three classes, 10 to 30 words) into a temporary folder and plans the table `own` on it.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

LETTERS = "etaoinshrdlucmfwypvbgkjqxz"


def write_rows(path: Path, rows: int, seed: int = 0) -> None:
    """A header and `rows` rows: a number, a text of 10 to 30 words (an accent in one of fifty), a label."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, 10, 20_000)
    words = ["".join(LETTERS[int(26 * place**2)] for place in rng.random(length)) for length in lengths]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "review", "stars"])
        for row in range(rows):
            chosen = rng.integers(0, len(words), int(rng.integers(10, 31))).tolist()
            text = " ".join(words[word] for word in chosen) + (" é." if row % 50 == 0 else ".")
            writer.writerow([row, text, ("bad", "fair", "good")[row % 3]])


def planned(path: Path, store: Path) -> tuple[float, float, int]:
    """(CPU seconds, wall seconds, peak resident bytes) of planning the file."""
    command = [
        "harness",
        "plan",
        "--tasks",
        str(path),
        "--text",
        "review",
        "--label",
        "stars",
        "--encoder",
        "bert-tiny",
    ]
    command = [sys.executable, "-m", *command, "--store", f"sqlite:///{store}"]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(said)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, wall, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "million.csv")
        write_rows(path, args.rows)
        print(f"{args.rows:,} rows, {path.stat().st_size / 1e6:.1f} MB")
        for _ in range(args.repeats):
            cpu, wall, peak = planned(path, Path(folder, "store.sqlite"))
            print(
                f"harness plan: {cpu:.1f} s of CPU time, {wall:.1f} s, at most {peak / 1e6:.0f} MB resident", flush=True
            )


if __name__ == "__main__":
    main()
