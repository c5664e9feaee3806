"""The ways to train the same few-shot runs that are timed against each other, each as whole processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from case import EVERY, MAX_LENGTH, Opened, ended
from hf_trainer import Job, write

from harness.store import Store

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Timing:
    """Of some runs made at once: seconds until and after they were made (`start`: processes, imports, texts, the first
    model), `inside` seconds from the first update to the last prediction; and what each run ended with."""

    runs: int
    start: float
    inside: float
    ended: list[dict[str, Any]]


Variant = Callable[[Opened, Path], Timing]


def trainer(padding: str, processes: int) -> Variant:
    """Hugging Face's Trainer, one process a run, with the machine's cores shared between the processes."""

    def run(opened: Opened, folder: Path) -> Timing:
        case, rows = opened.case, opened.texts(folder / "rows.json")
        threads = max(1, cores() // processes)
        commands = []
        for index in range(processes):
            job = Job(
                encoder=str(opened.folder),
                rows=str(rows),
                folder=str(folder / f"trainer-{index}"),
                padding=padding,
                threads=threads,
                steps=case.steps,
                every=EVERY,
                batch_size=opened.runs[0].optim.batch_size,
                lr=case.lr,
                seed=index,
                max_length=MAX_LENGTH,
            )
            commands.append([str(HERE / "hf_trainer.py"), str(write(job, folder / f"job-{index}.json"))])
        return _timed(commands, threads)

    return run


def bare(opened: Opened, folder: Path) -> Timing:
    """`harness.training.loop.train` alone, one process with one thread a core."""
    count = cores()
    script = [str(HERE / "bare.py"), str(opened.case.write(folder / "case.json")), str(count)]
    return _timed([[*script, str(index), str(folder)] for index in range(count)], 1)


def harness_bench(opened: Opened, folder: Path) -> Timing:
    """The command itself, from a fresh store to the printed table."""
    count, database = opened.case.bench_runs * cores(), folder / "bench.db"
    command = ["-m", "harness", *opened.case.command(database, count)]
    started = time.time()
    finished = _run([command], None)
    whole = time.time() - started
    table = json.loads(finished[0])
    assert table["cells"], table
    stages = {stage.key: stage for stage in Opened(opened.case, folder, count).runs}
    records = Store(f"sqlite:///{database}").records(stages, predictions=True)
    assert len(records) == count
    assert all(record.status == "done" for record in records.values())
    # A worker imports and loads in its first run what a Trainer's process has before its first update.
    spans = sorted((each.provenance["started_at"], each.seconds) for each in records.values())
    ends = max(began + seconds for began, seconds in spans)
    later = spans[cores() :]
    found = [ended(stages[key], record) for key, record in records.items()]
    return Timing(len(later), whole - (ends - spans[0][0]), ends - later[0][0], found)


def bf16(variant: Variant) -> Variant:
    """The same with the case's precision changed."""

    def run(opened: Opened, folder: Path) -> Timing:
        return variant(Opened(replace(opened.case, precision="bf16"), folder), folder)

    return run


def cores() -> int:
    return len(os.sched_getaffinity(0))


def _timed(commands: list[list[str]], threads: int) -> Timing:
    started = time.time()
    found = [json.loads(text.strip().splitlines()[-1]) for text in _run(commands, threads)]
    whole = time.time() - started
    inside = max(each.pop("ended") for each in found) - min(each.pop("began") for each in found)
    return Timing(len(found), whole - inside, inside, found)


def _run(commands: list[list[str]], threads: int | None) -> list[str]:
    """Start Python with these arguments all at once, wait for all, and return what they printed."""
    environment = dict(os.environ, TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
    if threads:
        environment |= {"OMP_NUM_THREADS": str(threads)}
    started = [
        subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        for command in commands
    ]
    printed = []
    for process in started:
        out, err = process.communicate()
        if process.returncode:
            raise SystemExit(f"{' '.join(map(str, process.args))} ended with {process.returncode}:\n{err[-4000:]}")  # type: ignore[arg-type]
        printed.append(out)
    return printed
