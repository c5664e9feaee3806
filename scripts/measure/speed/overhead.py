"""What the harness adds to its own training loop, counted inside the worker's process; and memory over many runs.

    python scripts/measure/speed/overhead.py CASE.json RUNS SLOTS FOLDER      (started by scripts/measure/speed; prints JSON)

Real runs through the real pool, ledger and store. `inside` are the seconds in `harness.training.loop.train`; everything else
between the start of the second run and the end of the last is the harness's: fetching tokens, a fresh copy of the model,
provenance, transport, scheduling and the record.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from case import Case, Opened

from harness.commands.prepare import storage_of
from harness.commands.train import read_rows, session_of
from harness.planning.request import Request
from harness.storage import WorkerSetup
from harness.store import Store

NAMES = {
    "Ledger": "ledger",
    "Idler": "workers",
    "ray::stage": "workers",
    "gcs_server": "gcs",
    "raylet/raylet": "raylet",
}
"""What stands in a process's title -> who it is."""


def used() -> dict[str, tuple[float, float]]:
    """(resident megabytes, seconds of a core) of this process and of Ray's processes below it, by name: the largest of
    equals, and their sum."""
    found: dict[str, tuple[float, float]] = {}
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        try:
            title = " ".join(process.cmdline())
            name = "driver" if process == me else next((n for sign, n in NAMES.items() if sign in title), "others")
            times = process.cpu_times()
            megabytes, seconds = found.get(name, (0.0, 0.0))
            resident = process.memory_info().rss / 2**20
            found[name] = max(megabytes, resident), seconds + times.user + times.system
        except psutil.Error:
            continue
    return found


def start_worker_into(workers: list[Any]) -> Any:
    """What starts a worker that takes the time of its runs and of the training inside them."""

    def start_worker(request: Request, setup: WorkerSetup, ledger: Any, **options: Any) -> Any:
        import ray

        from harness.cluster.worker import WorkerProcess

        class Timed(WorkerProcess):
            def __init__(self, *given: Any) -> None:
                super().__init__(*given)
                self._spent: list[tuple[float, float, float, float]] = []
                self._inside = 0.0
                from harness import running

                place: Any = running
                whole = place.train

                def timed(*given: Any, **options: Any) -> Any:
                    began = time.perf_counter()
                    try:
                        return whole(*given, **options)
                    finally:
                        self._inside = time.perf_counter() - began

                place.train = timed

            def run(self, *given: Any) -> Any:
                began, self._inside = time.perf_counter(), 0.0
                found = super().run(*given)
                resident = psutil.Process().memory_info().rss / 2**20
                self._spent.append((began, time.perf_counter(), self._inside, resident))
                return found

            def spent(self) -> list[tuple[float, float, float, float]]:
                return self._spent

        kind: Any = ray.remote(Timed)
        made = kind.options(num_cpus=request.cpus_per_run, num_gpus=request.gpus_per_run, **options)
        workers.append(made.remote(setup, ledger, request))
        return workers[-1]

    return start_worker


def main() -> None:
    count, slots = int(sys.argv[2]), int(sys.argv[3])
    opened = Opened(Case.read(sys.argv[1]), Path(sys.argv[4]), count)
    workers: list[Any] = []
    store, request = Store(opened.prepared.store.url), opened.prepared.request

    asked, storage = replace(request, slots=slots), storage_of(request, store)
    with session_of(asked, [opened.plan.encoders[0]], storage) as (_, settled, setup):
        import ray

        from harness.cluster import pool as place

        read = partial(read_rows, opened.plan, opened.plan.encoders[0], opened.tokeniser, store)
        vocabularies = {opened.plan.encoders[0].encoder.digest: opened.tokeniser.vocabulary}
        vars(place)["start_worker"] = start_worker_into(workers)
        pool = place.Pool(store, setup, vocabularies, lambda rows, data, _: read(rows, data), settled, "speed")
        ended, marks = 0, []
        for event in pool.run(opened.prepared.items):
            assert event.kind in ("started", "running", "done", "notice"), event
            ended += event.kind == "done"
            if event.kind == "done" and ended in (max(1, count // 10), count // 2, count):
                marks.append((ended, {name: round(each[0], 1) for name, each in used().items()}))
        spent = [ray.get(worker.spent.remote()) for worker in workers]
        pool.close()
    inside = sum(each[2] for runs in spent for each in runs[1:])
    outside_loop = sum(end - began - each for runs in spent for began, end, each, _ in runs[1:])
    between = sum(after[0] - before[1] for runs in spent for before, after in itertools.pairwise(runs))
    runs = sum(len(each) - 1 for each in spent)
    print(
        json.dumps(
            {
                "runs": runs,
                "slots": slots,
                "loop_seconds_a_run": inside / runs,
                "in_run_milliseconds": 1000 * outside_loop / runs,
                "between_runs_milliseconds": 1000 * between / runs,
                "overhead": (outside_loop + between) / inside,
                "memory": marks,
                "worker_megabytes": [[runs[len(runs) * share // 10 - 1][3] for share in (1, 5, 10)] for runs in spent]
                if count >= 20
                else [],
            }
        )
    )


if __name__ == "__main__":
    main()
